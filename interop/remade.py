"""What a function of numbridge's made from a kernel once, as copies and pickles see it.

Such an object stands for a function: a copy of a module, or of a tree of parameters, that holds one goes on using it, and a
pickle says how it was made. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

__all__ = ["Remade"]


class Remade:
    """Base of objects of which copies are the object itself, and pickles the call that made it.

    Pickling one fails as that of its parts does: kernels and functions are pickled by name, so lambdas cannot be.
    """

    _maker: tuple[Callable[..., Any], tuple[Any, ...]]

    def __copy__(self) -> Self:
        """Return the object itself."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the object itself."""
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the call that made it."""
        return self._maker
