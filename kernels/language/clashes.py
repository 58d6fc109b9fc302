"""Elements that several threads of a launch are sure to change as they find them, so that one undoes what another has done.

``total[0] += x[i]`` loads, adds and stores, as in numba.cuda: of threads that do so at the same time, one stores a sum without
what the others add. Where such a statement stands, and which threads come to it, is read with the rest: see `reaches`. What is
known of an index, and of the guards around it, tells which threads have one element. Nothing is launched or compiled here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numbridge.kernels.language.index_boxes import Box, Operation, Value, Variable
from numbridge.kernels.language.launch_sizes import Along, Known, Size, are_positive

__all__ = ["Change", "Clash", "change_of", "sharing"]

# Those that give something else when they are done once more; the others do so only with another number.
_CHANGING = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.LShift, ast.RShift, ast.BitXor)
_SETTLING = (ast.BitOr, ast.BitAnd, ast.Mod, min, max)
_COMMUTING = (ast.Add, ast.Mult, ast.BitXor, ast.BitOr, ast.BitAnd, min, max)
_ATOMICS = {"Add": "nb.atomic_add", "Sub": "nb.atomic_sub", "max": "nb.atomic_max", "min": "nb.atomic_min"}


@dataclass(frozen=True)
class Clash:
    """What several threads of a launch are sure to change as they find it.

    Attributes
    ----------
    array : str
        Which parameter; or which local variable, of shared memory.
    is_shared : bool
        Whether it is shared memory.
    axis : int
        Along which axis of the launch these threads lie.
    needs : tuple of Size
        What must be positive for that to be so.
    text : str
        The element.
    way : str
        What to write instead.
    place : str
        Where it stands: file, line, column, and the line with a caret.
    fewest_axes : int
        How many axes the array has at least, if a whole row or the whole array is changed; with fewer, it is a number of the
        thread's own.
    extents : tuple of Size, optional
        Those of shared memory.
    """

    array: str
    is_shared: bool
    axis: int
    needs: tuple[Size, ...]
    text: str
    way: str
    place: str
    fewest_axes: int = 0
    extents: tuple[Size, ...] | None = None

    @property
    def memory(self) -> str:
        """How messages call what it lies in; empty for a parameter."""
        return "shared memory" if self.is_shared else ""

    @property
    def sizes(self) -> tuple[Size, ...]:
        """What decides whether threads clash."""
        return self.needs

    @property
    def spelling(self) -> str:
        """What a launch asks, as text."""
        return f"{self.array} clash {self.fewest_axes} {[*map(str, self.needs)]}"

    def missing(self, known: Known, is_shorter: Callable[[Any, Any], bool | None]) -> bool | None:
        """Tell whether several threads of a launch clash; None where symbolic extents do not tell; see `Reach.missing`."""
        shape = known.shape(self.array) if self.extents is None else self.extents
        if shape is None or len(shape) < self.fewest_axes:
            return False  # a vector that is passed by value, or a number, of which each thread has its own
        return are_positive(self.needs, known, is_shorter)

    def refusal(self, dims: Sequence[Any]) -> str:
        """Return the end of the message about it."""
        along = f" along axis {self.axis}" if len(dims) > 1 else ""
        return (
            f"threads{along} of a launch over {tuple(dims)} change {'the same elements' if self.fewest_axes else 'one element'}, "
            f"{self.text}, each as it finds it, so that changes are lost; {self.way}\n  {self.place}"
        )


@dataclass(frozen=True)
class Change:
    """A statement that changes an element as it finds it: ``a[i] += b``, ``a[i] = a[i] + b`` or ``a[i] = max(a[i], b)``.

    Attributes
    ----------
    element : ast.Subscript or ast.Name
        The element; or a variable, as in ``a += b``, which changes all elements of an array.
    operation : str
        What is done: the name of an operator of Python's syntax, or ``min`` or ``max``.
    by : ast.expr, optional
        What must differ between threads for one to undo what another does; None if it always does.
    is_part : bool
        Whether it is a component of the element that is changed, or a field.
    """

    element: ast.Subscript | ast.Name
    operation: str
    by: ast.expr | None
    is_part: bool

    def way(self, labels: Mapping[str, str]) -> str:
        """Return what to write instead; `labels` are what names stand for in what its writer has written."""
        if isinstance(self.element, ast.Name):
            return "let one thread do it, or let each change its own element"
        atomic, array = _ATOMICS.get(self.operation), self.element.value
        if atomic is None or self.is_part or not isinstance(array, ast.Name):
            return "let one thread do it, or use an atomic operation"
        index = ast.unparse(self.element.slice)
        return f"use {atomic}({labels.get(array.id, array.id)}, {index}, ...), or let one thread do it"


def change_of(node: ast.stmt, is_builtin: Callable[[ast.expr, Any], bool]) -> Change | None:
    """Return what a statement changes as it finds it, or None; `is_builtin` tells whether a name stands for one."""
    done: Any
    match node:
        case ast.AugAssign(target, operator, by):
            done = type(operator)
        case ast.Assign([target], ast.expr() as made) | ast.AnnAssign(target, _, ast.expr() as made):
            match made:
                case ast.BinOp(left, operator, right):
                    done = type(operator)
                case ast.Call(function, [left, right], []):
                    done = next((known for known in (min, max) if is_builtin(function, known)), None)
                case _:
                    return None
            if ast.unparse(left) == ast.unparse(target):
                by = right
            elif ast.unparse(right) == ast.unparse(target) and done in _COMMUTING:
                by = left
            else:
                return None
        case _:
            return None
    if done in (ast.Mult, ast.Pow) and isinstance(by, ast.Constant) and by.value == 0:
        return None  # a way to store one number
    is_part = isinstance(target, ast.Attribute)
    while isinstance(target, ast.Attribute):  # a component of a vector, or a field of a record
        target = target.value
    if not isinstance(target, ast.Subscript | ast.Name) or done not in (*_CHANGING, *_SETTLING):
        return None
    if isinstance(target, ast.Name) and not isinstance(node, ast.AugAssign):
        return None  # another array is assigned to the variable
    return Change(target, done.__name__, None if done in _CHANGING else by, is_part)


def sharing(
    index: Sequence[Value],
    by: Sequence[Value] | None,
    box: Box,
    turns: Mapping[Variable, Variable],
    *,
    is_shared: bool,
) -> Iterator[tuple[int, tuple[Size, ...]]]:
    """Yield axes along which several threads have one element.

    Parameters
    ----------
    index : sequence of Value
        The element's.
    by : sequence of Value or None
        What must differ between the threads, as `Change.by` says.
    box : Box
        What is known where it is changed.
    turns : mapping of Variable to Variable
        The loops over the grid, or over a block, whose trips its threads make by turns, and the thread's index that says which.
    is_shared : bool
        Whether the memory is that of one block.

    Yields
    ------
    axis : int
        Which axis.
    needs : tuple of Size
        What must be positive for that to be so.
    """
    used, differing = (
        {turns.get(variable, variable) for value in values for variable in _variables(value)}
        for values in (index, by or ())
    )
    for variable, span in box.spans.items():
        own = turns.get(variable, variable)
        if own.kind == "loop" or own in used or (by is not None and own not in differing):
            continue
        # How far the index tells threads apart: one by itself, or by its block, or by its place in that
        told = {other.kind for other in used if other.kind != "loop" and other.number == own.number}
        if is_shared:
            is_one = own.kind == "threadIdx" and "own" not in told
        elif own.kind == "own":
            is_one = not told
        else:
            is_one = told == {"blockIdx" if own.kind == "threadIdx" else "threadIdx"}
        if is_one:
            # Those that take turns are no more than there are.
            count = Size.of(Along("dim" if own.kind == "own" else "blockDim", own.number))
            yield own.number, (span.need - 1, *(() if own is variable else (count - 1,)))


def _variables(value: Value) -> Iterator[Variable]:
    match value:
        case Variable():
            yield value
        case Operation(_, left, right):
            yield from _variables(left)
            yield from _variables(right)
