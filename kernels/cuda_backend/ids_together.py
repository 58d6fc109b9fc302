"""Several ids of one thread at once on CUDA: what they load is asked for before any of them stores.

A kernel that loads a number or two, and stores one, is as fast as many of its loads are under way at the same time. An H100 needs
some 32 KiB of them on each multiprocessor, of which one float32 for each of 2,048 threads is a fourth (Little's law; CUB's
`DeviceTransform` has such figures for each architecture). In a large grid a thread therefore takes a few ids, each as far from
the next as the grid is wide.

A body that loads elements of one array at several places along its last index but one, as stencils do, takes neighbours along
that one instead: what one of them loads, the next one needs as well, and it is loaded once. Else each row of the array is asked
for by as many multiprocessors as have rows beside it, and goes as many times through the L2 cache.

The threads of a launch do not wait for each other here, so they may run in any order, and also in steps: of each id first what
comes before its first store, then the rest. Bodies that loop, raise, or work with the threads of their block stay as they are.
This reads and writes source; it compiles nothing.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from numbridge.kernels.cuda_backend.column_pairs import PAIR_STEPS, column_pairs
from numbridge.kernels.element_types.element_functions import FUNCTIONS
from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.language.emission import Emitted
from numbridge.kernels.language.parsing import parsed
from numbridge.kernels.language.rewriting import CUDA_MODULE
from numbridge.kernels.parameter_types import ArrayType, ParameterType

__all__ = ["LOADS", "READY", "STEPS", "STORES", "Together", "ids_together"]

READY, LOADS, STORES = "_nb_ready", "_nb_loads", "_nb_stores"
STEPS = (READY, LOADS, STORES, *PAIR_STEPS)
# How many ids a thread may take, how many bytes these should load (2,048 times as many are under way on a multiprocessor), and
# by how many instructions they may, each of which takes a register; and how many operations there may be, which are compiled for
# each of them. A thread that computes much has other threads to hide its loads behind.
_COUNTS, _ENOUGH_BYTES, _MOST_LOADS, _MOST_WORK = (2, 4, 8), 24, 24, 128
_CALL = 10
# Of two columns, a thread that takes more rows gains nothing.
_ROWS_OF_PAIRS = 4
_BUILTINS = frozenset({"abs", "bool", "complex", "float", "int", "len", "max", "min", "pow", "round"})
_CASTS = ("_nb_float", "_nb_int", "_nb_uint", "_nb_bool", "_nb_decided", "_nb_nonnegative")
_ATOMICS = ("_nb_atomic_", f"{CUDA_MODULE}.atomic.")
_PURE = (
    *(ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Attribute),
    *(ast.Tuple, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_VALUE, _AT = "_nb_value", "_nb_index"


@dataclass(frozen=True)
class Together:
    """A body in steps.

    Attributes
    ----------
    count : int
        How many ids a thread takes at once.
    along_y : bool
        Whether they are neighbours along the last index but one, and not as far from each other as the grid is wide.
    text : str
        Device functions of what the body takes: `READY`, whether an id has anything to do; `LOADS`, which returns what comes
        before the first store, for ids that are ready; `STORES`, the rest, which takes that as its last argument.
    guarded : bool
        Whether there is a `READY`.
    pairs : tuple of str
        The arrays of which two neighbours along the last index can be taken at once as well, by the functions of `column_pairs`
        in the text; empty where they cannot.
    """

    count: int
    along_y: bool
    text: str
    guarded: bool
    pairs: tuple[str, ...] = ()


def ids_together(emitted: Emitted, parameters: Sequence[ParameterType]) -> Together | None:
    """Return a body in steps, or None where several ids at once are not possible or of no use."""
    if emitted.has_loop or emitted.may_raise or emitted.asks_for_block or emitted.sums:
        return None
    tree = parsed(emitted.text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    reader = _Reader(functions, emitted.namespace)
    steps = reader.steps(functions[emitted.entry])
    if steps is None or _names_block(tree):
        return None
    along_y = _shares_rows(steps.loading, emitted.hidden)
    count = _how_many([*reader.loads(steps.loading)], _work(steps.loading), parameters, along_y=along_y)
    kept = steps.kept()
    if count is None or not kept:
        return None
    taken = ", ".join([*emitted.hidden, *(p.name for p in parameters)])
    text = [*_functions(steps, kept, taken)]
    paired = column_pairs(steps.loading, steps.rest, kept, emitted.hidden, parameters) if along_y else None
    if paired is None:
        return Together(count, along_y, "\n\n\n".join(text), steps.guarded)
    text += [_function(name, f"{taken}, {more}" if more else taken, body) for name, more, body in paired[0]]
    return Together(min(count, _ROWS_OF_PAIRS), along_y, "\n\n\n".join(text), steps.guarded, paired[1])


@dataclass
class _Steps:
    """What a body does: statements before its first store, each list with the condition that must hold after it, and the rest."""

    before: list[tuple[list[ast.stmt], ast.expr | None]] = field(default_factory=list)
    rest: list[ast.stmt] = field(default_factory=list)

    @property
    def guarded(self) -> bool:
        return any(condition is not None for _, condition in self.before)

    @property
    def loading(self) -> list[ast.stmt]:
        """The statements before the first store, without the conditions."""
        return [statement for part, _ in self.before for statement in part]

    def kept(self) -> list[str]:
        """Return the variables of the statements before that the rest reads."""
        made = _assigned(self.loading)
        read = {node.id for statement in self.rest for node in ast.walk(statement) if isinstance(node, ast.Name)}
        return [name for name in made if name in read]


def _functions(steps: _Steps, kept: Sequence[str], taken: str) -> Iterator[str]:
    listed = f"({', '.join(kept)},)"
    if steps.guarded:
        lines: list[ast.stmt] = []
        for part, condition in steps.before:
            if condition is not None:
                lines += [*part, ast.If(_negated(condition), parsed("return False").body, [])]
        yield _function(READY, taken, [*lines, *parsed("return True").body])
    yield _function(LOADS, taken, [*steps.loading, *parsed(f"return {listed}").body])
    yield _function(STORES, f"{taken}, _nb_kept", [*parsed(f"{listed} = _nb_kept").body, *steps.rest])


def _function(name: str, taken: str, body: list[ast.stmt]) -> str:
    lines = [
        f"    {line}" for statement in body for line in ast.unparse(ast.fix_missing_locations(statement)).splitlines()
    ]
    return "\n".join(["@_nb_device", f"def {name}({taken}):", *lines])


def _shares_rows(statements: Sequence[ast.stmt], ids: Sequence[str]) -> bool:
    """Tell whether an array is loaded from at several places along the last index but one."""
    if len(ids) < 2:
        return False
    along = {ids[-2]}
    places: dict[str, set[str]] = {}
    for statement in statements:
        for node in ast.walk(statement):
            match node:
                case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                    along |= _names_in(t for t, v in zip(targets, values, strict=True) if _names_in([v]) & along)
                case ast.Assign(targets, value) if _names_in([value]) & along:
                    along |= _names_in(targets)
                case ast.Subscript(ast.Name(name), ast.Tuple(index), ast.Load()):
                    at = [ast.unparse(part) for part in index if _names_in([part]) & along]
                    places.setdefault(name, set()).update([", ".join(at)] if at else [])
    return any(len(found) > 1 for found in places.values())


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {inner.id for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _how_many(loads: Sequence[str], work: int, parameters: Sequence[ParameterType], *, along_y: bool) -> int | None:
    """Return how many ids a thread takes that loads from these arrays, or None for one."""
    sizes = {p.name: p.itemsize for p in parameters if isinstance(p, ArrayType)}
    size = sum(sizes.get(name, 0) for name in {*loads})
    if not 0 < size < _ENOUGH_BYTES:
        return None
    wanted = next((count for count in _COUNTS if count * size >= _ENOUGH_BYTES), _COUNTS[-1])
    # Along y they share about half of them.
    most = min(wanted, (2 if along_y else 1) * _MOST_LOADS // len(loads), _MOST_WORK // max(work, 1))
    return max((count for count in _COUNTS if count <= most), default=None)


def _work(statements: Sequence[ast.stmt]) -> int:
    """Return about how many operations statements come to."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    operations = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Subscript)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    # A constant of some type is a call, too.
    functions = sum(not all(isinstance(argument, ast.Constant) for argument in call.args) for call in calls)
    return _CALL * functions + sum(isinstance(node, operations) for node in nodes)


def _names_block(tree: ast.AST) -> bool:
    """Tell whether anything of numba.cuda but atomics is named."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "atomic"}
    return any(
        isinstance(node, ast.Name) and node.id == CUDA_MODULE and id(node) not in inner for node in ast.walk(tree)
    )


class _Reader:
    """What the statements of a text do: which only compute, and which have an effect.

    Parameters
    ----------
    functions : mapping of str to ast.FunctionDef
        The functions of the text.
    namespace : mapping
        Its globals.
    """

    def __init__(self, functions: Mapping[str, ast.FunctionDef], namespace: Mapping[str, Any]) -> None:
        self._functions, self._namespace = functions, namespace
        self._known: dict[str, bool] = {}
        self._own: frozenset[str] = frozenset()

    def steps(self, function: ast.FunctionDef) -> _Steps | None:
        """Return a body's steps, or None if nothing of it is before its first store, or it stores nothing."""
        self._own = _names_of(function)
        found, part, left = _Steps(), list[ast.stmt](), [*function.body]
        while left:
            statement = left.pop(0)
            assigned = _assigned([*found.loading, *part])
            if isinstance(statement, ast.Pass) or self._computes(statement, assigned):
                part.append(statement)
                continue
            guarded = self._guard(statement, is_last=all(isinstance(other, ast.Pass) for other in left))
            if guarded is None:
                found.rest = self._stores_what_is_known(statement, part, left)
                break
            condition, inside = guarded
            found.before.append((part, condition))
            part = []
            left = [*inside, *left]
        found.before.append((part, None))
        return found if found.rest else None

    def loads(self, statements: Sequence[ast.stmt]) -> Iterator[str]:
        """Yield the name of the array for each element that statements load."""
        for statement in statements:
            for node in ast.walk(statement):
                if (
                    isinstance(node, ast.Subscript)
                    and isinstance(node.ctx, ast.Load)
                    and isinstance(node.value, ast.Name)
                ):
                    yield node.value.id

    def _guard(self, statement: ast.stmt, *, is_last: bool) -> tuple[ast.expr, list[ast.stmt]] | None:
        """Return what must hold for the rest of a body to run, and what of a statement belongs to that, or None."""
        if not isinstance(statement, ast.If) or not self._is_pure(statement.test):
            return None
        body, other = _without_pass(statement.body), _without_pass(statement.orelse)
        negated = _negated(statement.test)
        if not other and len(body) == 1 and isinstance(body[0], ast.Return):
            return negated, []
        if is_last and not other:
            return statement.test, body
        return (negated, other) if is_last and not body else None

    def _stores_what_is_known(self, statement: ast.stmt, part: list[ast.stmt], left: list[ast.stmt]) -> list[ast.stmt]:
        """Return the rest of a body from its first store on; what that stores is computed before, at the end of `part`."""

        def known(name: str, value: ast.expr) -> ast.expr:
            part.append(ast.Assign([ast.Name(name, ast.Store())], value))
            return ast.Name(name, ast.Load())

        match statement:
            case ast.Assign([ast.Subscript(ast.Name(), index) as target], value) if self._both_pure(index, value):
                return [ast.Assign([self._at(target, known)], known(_VALUE, value)), *left]
            case ast.AugAssign(ast.Subscript(ast.Name(), index) as target, operator, value) if self._both_pure(
                index, value
            ):
                at = self._at(target, known)
                old = ast.Subscript(at.value, at.slice, ast.Load())
                return [ast.Assign([at], known(_VALUE, ast.BinOp(old, operator, value))), *left]
            case ast.Expr(ast.Call(called, arguments, [])) if ast.unparse(called).startswith(_ATOMICS):
                if all(map(self._is_pure, arguments)):
                    given = [known(f"{_AT}{k}", a) if _loads_any(a) else a for k, a in enumerate(arguments)]
                    return [ast.Expr(ast.Call(called, given, [])), *left]
        return [statement, *left]

    def _at(self, target: ast.Subscript, known: Any) -> ast.Subscript:
        """Return an element to store to whose index is loaded before, if it is loaded at all."""
        index = target.slice
        if isinstance(index, ast.Tuple):
            index = ast.Tuple(
                [known(f"{_AT}{k}", e) if _loads_any(e) else e for k, e in enumerate(index.elts)], ast.Load()
            )
        elif _loads_any(index):
            index = known(_AT, index)
        return ast.Subscript(target.value, index, ast.Store())

    def _both_pure(self, index: ast.expr, value: ast.expr) -> bool:
        return self._is_pure(index) and self._is_pure(value)

    def _computes(self, statement: ast.stmt, assigned: Set[str]) -> bool:
        """Tell whether a statement only computes, into variables that have a value then on every path."""
        match statement:
            case ast.Assign([target], value):
                return _is_plain(target) and self._is_pure(value)
            case ast.AugAssign(ast.Name(name), _, value):
                return name in assigned and self._is_pure(value)
            case ast.If(test, body, orelse):
                one, two = _assigned(body), _assigned(orelse)
                inside = (self._computes(part, assigned | one | two) for part in _without_pass([*body, *orelse]))
                return (one ^ two) <= assigned and self._is_pure(test) and all(inside)
        return False

    def _is_pure(self, expression: ast.expr) -> bool:
        """Tell whether an expression has no effect."""
        for node in ast.walk(expression):
            if isinstance(node, ast.Call):
                named = node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args)
                if named or not self._is_pure_function(node.func, len(node.args)):
                    return False
            elif not isinstance(node, _PURE):
                return False
        return True

    def _is_pure_function(self, called: ast.expr, count: int) -> bool:
        match called:
            case ast.Attribute(ast.Name(module), name) if module not in self._own:
                found = self._namespace.get(module)
                return isinstance(found, ModuleType) and _is_of_numbers(getattr(found, name, None), count)
            case ast.Name(name) if name not in self._own:
                if name in self._functions:
                    return self._is_pure_text(name)
                if name in self._namespace:
                    return _is_of_numbers(self._namespace[name], count)
                return name in _BUILTINS or name.startswith(_CASTS)
        return False

    def _is_pure_text(self, name: str) -> bool:
        """Tell whether a device function of the text only computes."""
        if name not in self._known:
            # One that comes back to itself is taken to do more.
            self._known[name] = False
            inner = _Reader(self._functions, self._namespace)
            inner._known, inner._own = self._known, _names_of(self._functions[name])
            self._known[name] = inner._only_computes(self._functions[name].body, inner._own)
        return self._known[name]

    def _only_computes(self, body: Sequence[ast.stmt], assigned: Set[str]) -> bool:
        for statement in _without_pass(body):
            match statement:
                case ast.Return(value) if value is not None and self._is_pure(value):
                    continue
                case ast.If(test, inside, other) if self._is_pure(test):
                    if not (self._only_computes(inside, assigned) and self._only_computes(other, assigned)):
                        return False
                case _ if not self._computes(statement, assigned):
                    return False
        return True


def _is_of_numbers(value: Any, count: int) -> bool:
    """Tell whether a global is a function that makes a number or an element of so many others, and writes nothing."""
    if isinstance(value, np.ufunc):
        # A further argument is an array to write to.
        return count == value.nin
    if isinstance(value, ElementType) or (isinstance(value, type) and issubclass(value, np.generic)):
        return True
    known = [*FUNCTIONS.values(), *vars(math).values(), *(getattr(builtins, name) for name in _BUILTINS)]
    return callable(value) and any(value is function for function in known)


def _negated(condition: ast.expr) -> ast.expr:
    match condition:
        case ast.UnaryOp(ast.Not(), inner):
            return inner
    return ast.UnaryOp(ast.Not(), condition)


def _is_plain(target: ast.expr) -> bool:
    """Tell whether what is assigned to is a variable, or a tuple of variables."""
    return isinstance(target, ast.Name) or (isinstance(target, ast.Tuple) and all(map(_is_plain, target.elts)))


def _loads_any(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.Subscript) for node in ast.walk(expression))


def _without_pass(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    return [statement for statement in statements if not isinstance(statement, ast.Pass)]


def _assigned(statements: Sequence[ast.stmt]) -> KeysView[str]:
    """Return the names that statements assign to, in one order in every process, as keys of code on disk want it."""
    nodes = (node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {node.id: None for node in nodes if isinstance(node.ctx, ast.Store)}.keys()


def _names_of(function: ast.FunctionDef) -> frozenset[str]:
    """Return a function's parameters and variables."""
    return frozenset({argument.arg for argument in function.args.args} | _assigned(function.body))
