"""Parameters that are tuples: a kernel becomes one that takes what they hold, one by one, and says so in its syntax tree.

What reads one element of such a tuple reads that parameter; where the tuple itself is needed, it is made again. None is a tuple
that holds nothing: what asks whether a parameter is None is answered, and what would run otherwise is left out. A record, such
as ``records[0]``, is an array without dimensions. So everything behind this knows numbers and arrays only. Works on `ast` and on
the structure of arguments; nothing is resolved or compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, NoneType
from typing import Any

import numpy as np

from numbridge.kernels.errors import KernelError

__all__ = [
    "Leaf",
    "Spread",
    "Structure",
    "is_named_tuple",
    "is_record",
    "leaves",
    "rebuilt",
    "remade",
    "spread_parameters",
    "structure_of",
]

_Refuse = Callable[[ast.AST, str], KernelError]


@dataclass(frozen=True)
class Structure:
    """How a tuple is built.

    Attributes
    ----------
    kind : type
        `tuple`, or a class of named tuples; `NoneType` for None, which is taken for a tuple of nothing; `numpy.void` for a
        record, which holds the array that its memory is.
    items : tuple of (Structure or None)
        The same of each of its elements; None for one that is no tuple.
    """

    kind: Any
    items: tuple[Structure | None, ...]

    def called(self, place: int) -> str:
        """Return the field or the index of an element as a name that may follow another."""
        if self is _RECORD:
            return "record"
        return str(self.kind._fields[place]) if is_named_tuple(self.kind) else str(place)

    def written(self, place: int) -> str:
        """Return how an element is read, as Python writes it."""
        if self is _RECORD:
            return ""
        return f".{self.called(place)}" if is_named_tuple(self.kind) else f"[{place}]"


_NOTHING = Structure(NoneType, ())
_RECORD = Structure(np.void, (None,))


@dataclass(frozen=True)
class Leaf:
    """An element of a tuple that is no tuple: the parameter that stands for it, and what messages call it, ``shape[0]``."""

    name: str
    label: str


@dataclass(frozen=True)
class Spread:
    """A tuple as it was spread: its structure, what stands for its elements, and what messages call it."""

    structure: Structure
    items: tuple[Spread | Leaf, ...]
    label: str

    @property
    def is_none(self) -> bool:
        """Whether it stands for None."""
        return self.structure is _NOTHING

    def leaves(self) -> Iterator[Leaf]:
        """Yield what stands for its elements and for theirs, in order."""
        for item in self.items:
            if isinstance(item, Leaf):
                yield item
            else:
                yield from item.leaves()


def is_named_tuple(kind: Any) -> bool:
    """Tell whether something is a class of named tuples."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def structure_of(value: Any, *, records: bool = False) -> Structure | None:
    """Return how a tuple is built, or None for anything else; other classes of tuples, such as `torch.Size`, are plain ones.

    With `records`, a record is one of its memory.
    """
    if value is None:
        return _NOTHING
    if records and is_record(value):
        return _RECORD
    if not isinstance(value, tuple):
        return None
    kind = type(value)
    items = tuple(structure_of(item, records=records) for item in value)
    return Structure(kind if is_named_tuple(kind) else tuple, items)


def is_record(value: Any) -> bool:
    """Tell whether something is an element of a NumPy array of records."""
    return isinstance(value, np.void) and value.dtype.names is not None


def leaves(value: Any) -> Iterator[Any]:
    """Yield what a tuple holds that is no tuple, in order, and of anything else that itself; None holds nothing."""
    if isinstance(value, tuple):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def rebuilt(structure: Structure | None, items: Iterator[Any]) -> Any:
    """Return a tuple of a structure that holds the next of some items; for None, the next itself."""
    if structure is None:
        return next(items)
    if structure is _NOTHING:
        return None
    made = (rebuilt(inner, items) for inner in structure.items)
    return structure.kind._make(made) if is_named_tuple(structure.kind) else tuple(made)


def remade(like: tuple[Any, ...], items: Iterator[Any]) -> tuple[Any, ...]:
    """Return a tuple of the class of another that holds something else."""
    kind: Any = type(like)
    made: tuple[Any, ...] = kind._make(items) if is_named_tuple(kind) else tuple(items)
    return made


def spread_parameters(
    tree: ast.FunctionDef, function: FunctionType, structures: Mapping[str, Structure], refuse: _Refuse
) -> tuple[dict[str, Spread], dict[str, type]]:
    """Let a kernel take what some of its parameters hold, and return that, and what names of classes stand for.

    Parameters
    ----------
    tree : ast.FunctionDef
        The kernel; changed in place.
    function : function
        The same, as Python made it.
    structures : mapping of str to Structure
        How the tuples are built, by the parameters.
    refuse : callable
        Makes an error of a node and a message.
    """
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    taken |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    spread = {name: _spread(name, name, structure, taken) for name, structure in structures.items()}
    _replace_parameters(tree.args, spread)
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    given = {name: each for name, each in spread.items() if name not in assigned}
    is_len = "len" not in {*function.__globals__, *function.__code__.co_varnames, *function.__code__.co_freevars}
    writer = _Writer(given, refuse, knows_len=is_len)
    # A parameter that is assigned to is a variable, which begins as the tuple. As long as nothing is assigned it is known.
    absent = {name: each for name, each in spread.items() if each.is_none and name in assigned}
    first, body = tree.body[0], list(writer.statements(tree.body, absent))
    begun = [
        ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], writer.expression(each, first)), first)
        for name, each in spread.items()
        if name not in given and not each.is_none
    ]
    tree.body = [*begun, *body]
    for statement in begun:
        ast.copy_location(statement.targets[0], first)
    return spread, writer.classes


def _spread(name: str, label: str, structure: Structure, taken: set[str]) -> Spread:
    items: list[Spread | Leaf] = []
    for place, inner in enumerate(structure.items):
        made, called = f"{name}_{structure.called(place)}", f"{label}{structure.written(place)}"
        if inner is not None:
            items.append(_spread(made, called, inner, taken))
            continue
        while made in taken:
            made += "_"
        taken.add(made)
        items.append(Leaf(made, called))
    return Spread(structure, tuple(items), label)


def _replace_parameters(arguments: ast.arguments, spread: Mapping[str, Spread]) -> None:
    for given in (arguments.posonlyargs, arguments.args):
        given[:] = [
            ast.copy_location(ast.arg(name), argument)
            for argument in given
            for name in (
                [argument.arg] if argument.arg not in spread else [leaf.name for leaf in spread[argument.arg].leaves()]
            )
        ]


def _listed(made: Any) -> list[ast.stmt]:
    return made if isinstance(made, list) else [made]


class _Writer(ast.NodeTransformer):
    """Writes what stands for the elements of tuples where these are read."""

    def __init__(self, given: Mapping[str, Spread], refuse: _Refuse, *, knows_len: bool) -> None:
        self._given, self._refuse, self._knows_len = dict(given), refuse, knows_len
        # What expressions of the new tree are tuples, by identity; they are kept so that no other gets that
        self._tuples: dict[int, tuple[ast.expr, Spread]] = {}
        # The same for conditions that are decided by what is None
        self._decided: dict[int, tuple[ast.expr, bool | None]] = {}
        self.classes: dict[str, type] = {}

    def statements(self, body: Sequence[ast.stmt], absent: dict[str, Spread]) -> Iterator[ast.stmt]:
        """Yield what becomes of statements that run one after the other, with parameters that are None until one assigns them.

        ``if scale is None: scale = 1.0`` is the assignment then.
        """
        for statement in body:
            self._given |= absent
            if isinstance(statement, ast.If):
                chosen = self._chosen(statement)
                if chosen is not None:
                    yield from self.statements(chosen, absent)
                    continue
            names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
            for name in absent.keys() & {node.id for node in names if not isinstance(node.ctx, ast.Load)}:
                is_read = any(node.id == name and isinstance(node.ctx, ast.Load) for node in names)
                if is_read or not isinstance(statement, ast.Assign | ast.AnnAssign):
                    raise self._refuse(
                        statement,
                        f"parameter {name!r} is None, and assigned here under some condition, or from itself; assign it in a "
                        f"statement of its own, or in `if {name} is None:` outside of loops, or use another name",
                    )
                del absent[name], self._given[name]
            yield from _listed(self.visit(statement))

    def _chosen(self, node: ast.If) -> list[ast.stmt] | None:
        """Return the statements that run, where a condition is known from what is None; else None. Visits the condition."""
        node.test = self.visit(node.test)
        known = self._known(node.test)
        return None if known is None else (node.body if known else node.orelse) or [ast.copy_location(ast.Pass(), node)]

    def _visited(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [part for statement in body for part in _listed(self.visit(statement))]

    def _known(self, node: ast.expr) -> bool | None:
        """Return the truth of an expression that is known from what is None; else None."""
        found = self._tuple(node)
        return False if found is not None and found.is_none else self._decided.get(id(node), (node, None))[1]

    def _decide(self, node: ast.expr, truth: bool) -> ast.expr:
        made = ast.copy_location(ast.Constant(truth), node)
        self._decided[id(made)] = made, truth
        return made

    def visit_If(self, node: ast.If) -> Any:
        """Leave out what does not run because something is None, or is not."""
        chosen = self._chosen(node)
        if chosen is not None:
            return self._visited(chosen)
        node.body, node.orelse = self._visited(node.body), self._visited(node.orelse)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """The same for ``0.0 if x is None else x[i]``."""
        node.test = self.visit(node.test)
        known = self._known(node.test)
        if known is not None:
            made: ast.expr = self.visit(node.body if known else node.orelse)
            return made
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """The same for ``x is not None and x[i] > 0``."""
        ends = isinstance(node.op, ast.Or)
        values = list[ast.expr]()
        for value in node.values:
            made = self.visit(value)
            known = self._known(made)
            if known is None or known is ends:
                values.append(made)
            if known is ends:
                break
        if not values:
            return self._decide(node, not ends)
        node.values = values
        return node if len(values) > 1 else values[0]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """The same for ``not x``."""
        self.generic_visit(node)
        known = self._known(node.operand) if isinstance(node.op, ast.Not) else None
        return node if known is None else self._decide(node, not known)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Answer what asks whether a parameter is None."""
        self.generic_visit(node)
        _, found = self._tuples.get(id(node.left), (None, None))
        match node:
            case ast.Compare(ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None)]) if found:
                return self._decide(node, found.is_none)
            case ast.Compare(ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None)]) if found:
                return self._decide(node, not found.is_none)
        for operand in (node.left, *node.comparators):
            self._present(operand)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Refuse to compute with None."""
        self.generic_visit(node)
        self._present(node.left)
        self._present(node.right)
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        """Refuse to go through None."""
        self.generic_visit(node)
        self._present(node.iter)
        return node

    def expression(self, item: Spread | Leaf, place: ast.AST) -> ast.expr:
        """Return an element of a tuple, or a tuple, as an expression at some place."""
        if isinstance(item, Leaf):
            return ast.copy_location(ast.Name(item.name, ast.Load()), place)
        if item.structure is _RECORD:
            element = ast.Subscript(self.expression(item.items[0], place), ast.Tuple([], ast.Load()), ast.Load())
            self._tuples[id(element)] = element, item
            ast.copy_location(element.slice, place)
            return ast.copy_location(element, place)
        parts = [self.expression(part, place) for part in item.items]
        made: ast.expr = ast.Constant(None) if item.is_none else ast.Tuple(parts, ast.Load())
        if is_named_tuple(item.structure.kind):
            # No user can write this name.
            name = f"type of {item.structure.kind.__name__} {len(self.classes)}"
            name = next((known for known, kind in self.classes.items() if kind is item.structure.kind), name)
            self.classes[name] = item.structure.kind
            made = ast.Call(ast.copy_location(ast.Name(name, ast.Load()), place), parts, [])
        self._tuples[id(made)] = made, item
        return ast.copy_location(made, place)

    def _tuple(self, node: ast.AST) -> Spread | None:
        _, found = self._tuples.get(id(node), (None, None))
        return None if found is None or found.structure is _RECORD else found

    def _present(self, node: ast.expr) -> Spread | None:
        """Return what stands for the elements of a tuple, and refuse to read those of None."""
        found = self._tuple(node)
        if found is not None and found.is_none:
            raise self._refuse(
                node,
                f"parameter {found.label!r} is None, and the kernel uses it here; pass an array or a number, or let the kernel "
                f"ask before: if {found.label} is not None",
            )
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Make a tuple again."""
        is_read = node.id in self._given and isinstance(node.ctx, ast.Load)
        return self.expression(self._given[node.id], node) if is_read else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Read the field of a named tuple."""
        self.generic_visit(node)
        owner = self._present(node.value)
        fields = () if owner is None else getattr(owner.structure.kind, "_fields", ())
        return self.expression(owner.items[fields.index(node.attr)], node) if owner and node.attr in fields else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Read an element, or a slice, of a tuple."""
        self.generic_visit(node)
        owner, index = self._present(node.value), _constant_index(node.slice)
        if owner is None or index is None:
            return node
        if isinstance(index, slice):
            chosen = Structure(tuple, owner.structure.items[index])
            return self.expression(Spread(chosen, owner.items[index], owner.label), node)
        if not -len(owner.items) <= index < len(owner.items):
            raise self._refuse(node, f"{_passed(owner)}, and none is at {index}")
        return self.expression(owner.items[index], node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Count the elements of a tuple, or pass them one by one."""
        self.generic_visit(node)
        owner = self._tuple(node.args[0]) if len(node.args) == 1 else None
        if owner and self._knows_len and isinstance(node.func, ast.Name) and node.func.id == "len":
            self._present(node.args[0])
            return ast.copy_location(ast.Constant(len(owner.items)), node)
        node.args = [part for argument in node.args for part in self._starred(argument)]
        return node

    def _starred(self, argument: ast.expr) -> Sequence[ast.expr]:
        owner = self._tuple(argument.value) if isinstance(argument, ast.Starred) else None
        return [argument] if owner is None else [self.expression(item, argument) for item in owner.items]

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Make one assignment each of ``a, b = pair``: arrays and numbers are better followed outside of tuples."""
        self.generic_visit(node)
        owner = self._tuple(node.value)
        match node.targets:
            case [ast.Tuple(elts=targets)] if owner:
                if len(targets) != len(owner.items):
                    raise self._refuse(node, f"{_passed(owner)}, and it is unpacked into {len(targets)}")
                names = {target.id for target in targets if isinstance(target, ast.Name)}
                if len(names) == len(targets):
                    pairs = zip(targets, owner.items, strict=True)
                    return [
                        ast.copy_location(ast.Assign([target], self.expression(item, node.value)), node)
                        for target, item in pairs
                    ]
        return node


def _passed(spread: Spread) -> str:
    return f"the tuple that was passed has {len(spread.items)} element(s)"


def _constant_index(node: ast.expr) -> int | slice | None:
    """Return an index that is written as a number, or as a slice of such, or None."""
    if isinstance(node, ast.Slice):
        parts = [None if part is None else _constant_index(part) for part in (node.lower, node.upper, node.step)]
        written = [part is not None for part in (node.lower, node.upper, node.step)]
        known = all(type(part) is int for part, is_written in zip(parts, written, strict=True) if is_written)
        return slice(*parts) if known and parts[2] != 0 else None
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) is int:
            return -value
    return None
