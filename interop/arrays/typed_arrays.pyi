"""What type checkers see of annotations such as ``nb.array[float]``: arrays whose elements have a type.

At run time `numbridge.array` is `numbridge.Array`, and its siblings are annotations that a launch checks.
"""

from typing import Any, Generic, TypeVar

from numbridge.arrays.array import Array

Element = TypeVar("Element")

class array(Array, Generic[Element]):  # type: ignore[misc]  # noqa: N801
    def __getitem__(self, key: Any) -> Element: ...  # type: ignore[override]
    def __setitem__(self, key: Any, value: Any) -> None: ...

class array1d(array[Element]): ...  # type: ignore[misc]  # noqa: N801
class array2d(array[Element]): ...  # type: ignore[misc]  # noqa: N801
class array3d(array[Element]): ...  # type: ignore[misc]  # noqa: N801
class array4d(array[Element]): ...  # type: ignore[misc]  # noqa: N801
