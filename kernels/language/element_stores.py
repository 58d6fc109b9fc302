"""Stores into elements, as source: ``v[k] = x`` becomes ``v = _nb_replaced(v, k, x)``, since elements are values.

What a name stands for is not known here. The same text works in place where it turns out to be an array, so only what is
certain to be a plain store into an array stays as it is written. A store of several steps, ``a[i].p[k] = x``, becomes
``a = _nb_put_part(a, "[],p,[]", (i, k), x)``, which stores that component alone: other threads may store others. So does a store
into a slice of constants, ``v[:2] = x``, which is ``v = _nb_put_part(v, ":2", (), x)``. One that goes through a slice of an
array, ``a[m:n][i].x = v``, gives the slice a name first: it is a view, as `_nb_view` makes sure. Nothing is compiled, and no
types are inferred.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["PARTS", "PartLoader", "StoreRewriter", "slice_text", "sliced_by"]

PARTS = ("x", "y", "z", "w", "p", "q")


class StoreRewriter:
    """Rewrites the assignments of one function.

    Parameters
    ----------
    is_array : callable
        Tells whether a name is certainly an array, or nothing that a function may assign to.
    """

    def __init__(self, is_array: Callable[[str], bool]) -> None:
        self._is_array = is_array
        self._count = 0

    def assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        """Return the statements of an assignment."""
        before: list[ast.stmt] = []
        for target in node.targets:
            for part in _leaves(target):
                _keep_constants(part, before)
        if not any(map(self._concerns_a_leaf, node.targets)):
            return [*before, node] if before else node
        value = node.value
        # Python evaluates what is stored before where, and a function may store, one that finds an index or one that gives the
        # value: there an index that is more than a name comes after.
        calls = _has_call(value) and any(_reads_memory(part) for part in _leaves(node.targets[0]))
        if len(node.targets) > 1 and isinstance(value, ast.Tuple):
            # The first target may be what the second is given.
            names = [self._name() for _ in value.elts]
            before += [ast.Assign([ast.Name(n, ast.Store())], v) for n, v in zip(names, value.elts, strict=True)]
            value = ast.Tuple([ast.Name(name, ast.Load()) for name in names], ast.Load())
        elif len(node.targets) > 1 or _has_call(node.targets[0]) or calls:
            value = self._held(value, before)
        after = [statement for target in node.targets for statement in self._stored(target, value)]
        return [*before, *after]

    def augment(self, node: ast.AugAssign, function: str | None = None) -> ast.stmt | list[ast.stmt]:
        """Return the statements of an augmented assignment, whose operation may be one of a function's name."""
        before: list[ast.stmt] = []
        target: ast.expr = node.target
        if _is_within_slice(target):
            target = self._within_view(target, before)
        concerns = self._concerns(target) and not _has_slice(_chain(target)[0][-1])
        if not concerns and (function is None or not _is_place(target)):
            return node
        target = self._steady(target, before)
        held = _loaded(target)
        changed = ast.BinOp(held, node.op, node.value) if function is None else _call(function, held, node.value)
        return [*before, self._put(target, changed) if concerns else ast.Assign([target], changed)]

    def _concerns_a_leaf(self, target: ast.expr) -> bool:
        return any(self._concerns(part) or _is_within_slice(part) for part in _leaves(target))

    def _concerns(self, target: ast.expr) -> bool:
        """Tell whether a target may be a part of an element."""
        steps, base = _chain(target)
        if not steps or not isinstance(base, ast.Name):
            return False
        if not _may_lead_to_part(steps):
            return False
        if isinstance(steps[-1], str):
            return True
        return len(steps) > 1 or not self._is_array(base.id)

    def _within_view(self, target: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """Return a target whose slices have a name; `before` gets what gives them one."""
        if isinstance(target, ast.Subscript) and _has_slice(target.slice):
            name = self._name()
            before.append(ast.Assign([ast.Name(name, ast.Store())], _call("_nb_view", _loaded(target))))
            return ast.Name(name, ast.Load())
        if isinstance(target, ast.Subscript):
            return ast.Subscript(self._within_view(target.value, before), target.slice, target.ctx)
        assert isinstance(target, ast.Attribute)
        return ast.Attribute(self._within_view(target.value, before), target.attr, target.ctx)

    def _stored(self, target: ast.expr, value: ast.expr) -> Iterator[ast.stmt]:
        if isinstance(target, ast.Tuple) and self._concerns_a_leaf(target):
            names = [self._name() for _ in target.elts]
            yield ast.Assign([ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())], value)
            for part, name in zip(target.elts, names, strict=True):
                yield from self._stored(part, ast.Name(name, ast.Load()))
        elif _is_within_slice(target):
            views: list[ast.stmt] = []
            within = self._within_view(target, views)
            yield from views
            yield from self._stored(within, value)
        elif self._concerns(target):
            before: list[ast.stmt] = []
            # An index that is read twice, on the way down and on the way back, is evaluated once.
            steady = self._steady(target, before) if len(_chain(target)[0]) > 1 else target
            yield from before
            yield self._put(steady, value)
        else:
            yield ast.Assign([target], value)

    def _put(self, target: ast.expr, value: ast.expr) -> ast.stmt:
        """Return the statement that stores into a chain: from the last step outward, every owner is replaced."""
        steps, base = _chain(target)
        assert isinstance(base, ast.Name)
        if (len(steps) > 1 or _has_slice(steps[-1])) and not any(map(_is_field, steps)):
            value = _call("_nb_put_part", ast.Name(base.id, ast.Load()), *_way(steps), value)
            target = base
        last = True
        while isinstance(target, ast.Subscript | ast.Attribute):
            owner = _loaded(target.value)
            if isinstance(target, ast.Attribute):
                value = _call(f"_nb_with_{target.attr}", owner, value)
            else:
                value = _call("_nb_replaced" if last else "_nb_put_back", owner, target.slice, value)
            target, last = target.value, False
        return ast.Assign([ast.Name(base.id, ast.Store())], value)

    def _steady(self, target: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """Return a target whose indices may be evaluated again; `before` gets what must run first."""
        if isinstance(target, ast.Attribute):
            return ast.Attribute(self._steady(target.value, before), target.attr, target.ctx)
        if isinstance(target, ast.Subscript):
            owner = self._steady(target.value, before)
            return ast.Subscript(owner, self._held(target.slice, before), target.ctx)
        return target

    def _held(self, value: ast.expr, before: list[ast.stmt]) -> ast.expr:
        if isinstance(value, ast.Slice):
            return value
        if isinstance(value, ast.Tuple):
            return ast.Tuple([self._held(part, before) for part in value.elts], ast.Load())
        if isinstance(value, ast.Name | ast.Constant) or (
            isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Constant)
        ):
            return value
        name = self._name()
        before.append(ast.Assign([ast.Name(name, ast.Store())], value))
        return ast.Name(name, ast.Load())

    def _name(self) -> str:
        self._count += 1
        return f"_nb_held{self._count}"


class PartLoader(ast.NodeTransformer):
    """Lets a rewritten function load components, rows and slices alone, ``a[i].x`` as ``_nb_load_part(a, "[],x", (i,))``.

    Parameters
    ----------
    function : ast.FunctionDef
        The function, whose own names are those of arrays and elements.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        stored = (
            node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        self._own = {*stored, *(argument.arg for argument in function.args.args)}

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Replace what is loaded; of what is stored into, the indices alone."""
        return self._replaced(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replace what is loaded."""
        return self._replaced(node)

    def _replaced(self, node: ast.Subscript | ast.Attribute) -> ast.expr:
        if isinstance(node.ctx, ast.Store):
            part: ast.expr = node
            while isinstance(part, ast.Subscript | ast.Attribute):
                if isinstance(part, ast.Subscript):
                    part.slice = self.visit(part.slice)
                part = part.value
            return node
        made = self._loaded(node)
        self.generic_visit(node if made is None else made)
        return node if made is None else made

    def _loaded(self, node: ast.expr) -> ast.expr | None:
        steps, base = _chain(node)
        if len(steps) < 2 or not isinstance(base, ast.Name) or base.id not in self._own:
            return None
        if any(map(_is_field, steps)) or not _may_lead_to_part(steps):
            return None
        return _call("_nb_load_part", base, *_way(steps))


def _has_call(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(node))


def _reads_memory(target: ast.expr) -> bool:
    """Tell whether an index of a target is looked up in an array or a vector."""
    indices = (step for step in _chain(target)[0] if not isinstance(step, str))
    return any(isinstance(part, ast.Subscript | ast.Attribute) for index in indices for part in ast.walk(index))


def _keep_constants(target: ast.expr, before: list[ast.stmt]) -> None:
    """Let constants beside slices be checked before, by statements that `before` gets, so that they stay constants."""
    if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Tuple) or not _has_slice(target.slice):
        return
    for place, part in enumerate(target.slice.elts):
        match part:
            case ast.Call(ast.Name("_nb_checked"), [_, index, *_]) if slice_text(ast.Tuple([ast.Slice(), index])):
                before.append(ast.Expr(part))
                target.slice.elts[place] = copy.deepcopy(index)


def slice_text(index: ast.expr | str) -> str | None:
    """Return how a slice of constants, and the slices and numbers for the dimensions of a matrix, stand in a way; else None."""
    if not _has_slice(index) or isinstance(index, str):
        return None
    parts = [ast.unparse(part) for part in (index.elts if isinstance(index, ast.Tuple) else [index])]
    return "/".join(parts) if all(re.fullmatch(r"(-?\d+)?(:(-?\d+)?){0,2}", part) for part in parts) else None


def sliced_by(name: str) -> Any:
    """Return the index that `slice_text` is of, or None for another step."""
    if ":" not in name:
        return None
    parts = [[int(bound) if bound else None for bound in part.split(":")] for part in name.split("/")]
    index = tuple(slice(*part) if len(part) > 1 else part[0] for part in parts)
    return index if len(index) > 1 else index[0]


def _may_lead_to_part(steps: list[ast.expr | str]) -> bool:
    """Tell whether steps may lead to a part of an element."""
    if any(map(_has_slice, steps[:-1])):
        return False
    if _has_slice(steps[-1]) and (slice_text(steps[-1]) is None or any(map(_is_field, steps))):
        return False  # how long a slice of an element is, is part of its type
    # Another name is that of a field of a record, which is memory.
    return all(step in PARTS for step in steps if isinstance(step, str))


def _way(steps: list[ast.expr | str]) -> tuple[ast.Constant, ast.Tuple]:
    """Return the way that steps are, and the indices on it."""
    indices = [step for step in steps if isinstance(step, ast.expr) and not _has_slice(step)]
    return ast.Constant(",".join(map(_named, steps))), ast.Tuple(indices, ast.Load())


def _named(step: ast.expr | str) -> str:
    """Return how a step stands in a way."""
    return step if isinstance(step, str) else slice_text(step) or "[]"


def _is_field(step: ast.expr | str) -> bool:
    """Tell whether a step names a field of a record by its name in a string."""
    return isinstance(step, ast.Constant) and isinstance(step.value, str)


def _is_place(target: ast.expr) -> bool:
    """Tell whether a target is a name or reached from one by steps that may be taken twice."""
    steps, base = _chain(target)
    return isinstance(base, ast.Name) and not any(map(_has_slice, steps))


def _is_within_slice(target: ast.expr) -> bool:
    """Tell whether a target may be a part of an element that is reached through a slice of an array."""
    steps, base = _chain(target)
    sliced = [k for k, step in enumerate(steps) if _has_slice(step)]
    if not sliced or not isinstance(base, ast.Name) or any(map(_is_field, steps)):
        return False
    if any(isinstance(step, str) and step not in PARTS for step in steps):
        return False  # a field of a record, which is memory
    return len(steps) - 1 - sliced[-1] > 1


def _has_slice(step: ast.expr | str) -> bool:
    return isinstance(step, ast.expr) and any(isinstance(part, ast.Slice) for part in ast.walk(step))


def _leaves(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple):
        for part in target.elts:
            yield from _leaves(part)
    else:
        yield target


def _chain(target: ast.expr) -> tuple[list[ast.expr | str], ast.expr]:
    """Return the steps of ``base[i].x`` from the base outward, indices and names, and the base."""
    steps: list[ast.expr | str] = []
    while isinstance(target, ast.Subscript | ast.Attribute):
        steps.append(target.slice if isinstance(target, ast.Subscript) else target.attr)
        target = target.value
    return steps[::-1], target


def _loaded(target: ast.expr) -> ast.expr:
    """Return a copy of a target as something that is read."""
    read = copy.deepcopy(target)
    for node in ast.walk(read):
        if isinstance(node, ast.Name | ast.Subscript | ast.Attribute):
            node.ctx = ast.Load()
    return read


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
