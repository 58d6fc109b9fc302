"""What a function of numbridge's made from a kernel once, as copies and pickles see it.

Such an object stands for a function: a copy of a module, or of a tree of parameters, that holds one goes on using it, and a
pickle says how it was made. Imports no framework.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self

__all__ = ["Remade"]

Maker = Callable[..., Any]
_alive: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


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
            _alive[self._made] = self

    def __copy__(self) -> Self:
        """Return the object itself."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the object itself."""
        return self

    def __reduce__(self) -> tuple[Maker, tuple[Any, ...]]:
        """Pickle the call that made it."""
        return _once_more, self._made


def _once_more(maker: Maker, arguments: tuple[Any, ...]) -> Any:
    found = _alive.get((maker, arguments)) if _is_hashable(arguments) else None
    return maker(*arguments) if found is None else found


def _is_hashable(arguments: tuple[Any, ...]) -> bool:
    # Dims may be lists and dicts.
    try:
        hash(arguments)
    except TypeError:
        return False
    return True
