"""What a function of numbridge's made from a kernel once, as copies, pickles and the same call once more see it.

Such an object stands for a function: a copy of a module, or of a tree of parameters, that holds one goes on using it, a pickle
says how it was made, and what was traced or compiled for it is there for everybody who makes it again. Imports no framework.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, MutableMapping
from types import FunctionType
from typing import Any, Self

__all__ = ["Remade", "made_once"]

Maker = Callable[..., Any]
_TABLE = "__numbridge_made__"
# How many calls of one function keep what they made: one with a new lambda or new extents each time would keep all
_MOST = 64
_of_others: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


class Remade:
    """Base of objects of which copies are the object itself, and pickles the call that made it.

    Where an object that the same call made is alive, its pickle is that object, as that of a function is. Pickling one fails as
    that of its parts does: kernels and functions are pickled by name, so lambdas cannot be.
    """

    _made: tuple[Maker, tuple[Any, ...]]

    def made_by(self, maker: Maker, *arguments: Any) -> None:
        """Say which call makes the object."""
        self._made = (maker, arguments)
        if _is_hashable(arguments):
            _alive(arguments)[self._made] = self

    def is_current(self) -> bool:
        """Tell whether what was traced of this reads what there is now."""
        return True

    def __copy__(self) -> Self:
        """Return the object itself."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the object itself."""
        return self

    def __reduce__(self) -> tuple[Maker, tuple[Any, ...]]:
        """Pickle the call that made it."""
        return _once_more, self._made


class _Table:
    """What was made of a Python function, by the call that makes it: what is alive, and what lives as long as the function.

    It is in the function's own namespace: whatever held it elsewhere would never let go of the function, which all of it holds.
    Whoever copies or pickles the function copies none of it.
    """

    def __init__(self) -> None:
        self.alive: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self.kept: dict[Any, Any] = {}
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[type[_Table], tuple[()]]:
        """Pickle as an empty one."""
        return _Table, ()


def _table(arguments: tuple[Any, ...]) -> _Table | None:
    """Return the table of the Python function that something is made of: a kernel's, or the first argument itself."""
    function = getattr(arguments[0], "function", arguments[0])
    if not isinstance(function, FunctionType):
        return None
    table: _Table = function.__dict__.setdefault(_TABLE, _Table())
    return table


def _alive(arguments: tuple[Any, ...]) -> MutableMapping[Any, Any]:
    table = _table(arguments)
    return _of_others if table is None else table.alive


def made_once(maker: Maker, *arguments: Any) -> Any:
    """Return what this call made before, or what it makes now, which lives as long as the Python function that it is made of.

    Of many different calls that holds for the last ones. What is no longer current is made anew: others, such as `jax.jit`, may
    keep what they traced of it. A method, or another object with ``__call__``, keeps nothing, so that the call may make something
    new each time.
    """
    table = _table(arguments)
    if table is None or not _is_hashable(arguments):
        return maker(*arguments)
    with table.lock:
        found = table.kept.pop((maker, arguments), None)
        if found is None or not found.is_current():
            found = maker(*arguments)
        table.kept[maker, arguments] = found
        if len(table.kept) > _MOST:
            del table.kept[next(iter(table.kept))]
    return found


def _once_more(maker: Maker, arguments: tuple[Any, ...]) -> Any:
    found = _alive(arguments).get((maker, arguments)) if _is_hashable(arguments) else None
    return maker(*arguments) if found is None else found


def _is_hashable(arguments: tuple[Any, ...]) -> bool:
    # Dims may be lists and dicts.
    try:
        hash(arguments)
    except TypeError:
        return False
    return True
