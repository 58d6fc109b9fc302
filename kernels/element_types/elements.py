"""Vector and matrix element types as plain values: their names, scalars and shapes, and how a value is read by a launch.

An element type is a class (`vec3`), made once for each family, shape and scalar; its instances are values that Python code
computes with and that kernels take by value. Everything that an element can do is in `element_functions`. This module
compiles nothing, and knows neither Numba nor any framework.
"""

from __future__ import annotations

import copyreg
import itertools
import math
import numbers
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.errors import (
    ConversionError,
    NumbridgeIndexError,
    NumbridgeTypeError,
    NumbridgeValueError,
    shown,
)
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.scalars import Scalar, scalar_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "OF_CONSTANTS",
    "Element",
    "ElementType",
    "beyond",
    "by_number",
    "complex_parts",
    "dtype_of",
    "element_types",
    "float_fields",
    "has_gradient",
    "mat22",
    "mat22d",
    "mat22f",
    "mat22h",
    "mat22i",
    "mat33",
    "mat33d",
    "mat33f",
    "mat33h",
    "mat33i",
    "mat44",
    "mat44d",
    "mat44f",
    "mat44h",
    "mat44i",
    "matrix",
    "number_fields",
    "quat",
    "quatd",
    "quaternion",
    "quatf",
    "quath",
    "quati",
    "record_type",
    "scalar_in_memory",
    "sliced",
    "spatial_matrix",
    "spatial_matrixd",
    "spatial_matrixf",
    "spatial_matrixh",
    "spatial_matrixi",
    "spatial_vector",
    "spatial_vectord",
    "spatial_vectorf",
    "spatial_vectorh",
    "spatial_vectori",
    "transform",
    "transformd",
    "transformf",
    "transformh",
    "transformi",
    "vec2",
    "vec2d",
    "vec2f",
    "vec2h",
    "vec2i",
    "vec3",
    "vec3d",
    "vec3f",
    "vec3h",
    "vec3i",
    "vec4",
    "vec4d",
    "vec4f",
    "vec4h",
    "vec4i",
    "vector",
]

Family = Literal["vector", "matrix", "quaternion", "transform", "record", "complex"]

# Above this an element would be an array: unrolled code grows with its square.
MAX_COMPONENTS = 256
_SUFFIXES = {"float32": "", "float64": "d", "float16": "h", "int32": "i"}
_COMPONENTS = "xyzw"
OF_CONSTANTS = "is written with constants, within its dimensions, and leaves something of it, as in v[0:2]"
"""What slices of vectors and matrices are like; how large they are is part of their types."""

_lock = threading.Lock()
_numbers = itertools.count(1)
_known: dict[tuple[Family, tuple[int, ...], str], ElementType] = {}
_by_number: dict[int, ElementType] = {}
_records: dict[str, ElementType] = {}


class ElementType(type):
    """The class of element types: `vec3` is an instance of this, and a value of three numbers is an instance of `vec3`.

    Attributes
    ----------
    family : {'vector', 'matrix', 'quaternion', 'transform', 'record', 'complex'}
        What products mean; records have none. Those of complex numbers are within derivatives alone.
    extents : tuple of int
        ``(length,)`` or ``(rows, columns)``: the trailing dimensions of an array of such elements in other frameworks.
    scalar : Scalar
        The components.
    number : int
        Stands for the type in the words of readings, from 0x8001 on; not the same in every process.
    fields : numpy.dtype or None
        The structured dtype of a record, whose bytes are counted in words of its alignment as if they were components.
    """

    family: Family
    extents: tuple[int, ...]
    scalar: Scalar
    number: int
    fields: np.dtype[Any] | None

    @property
    def name(cls) -> str:
        """What the type is called; no two types share a name."""
        return cls.__name__

    @property
    def count(cls) -> int:
        """How many components there are."""
        return math.prod(cls.extents)

    @property
    def bytes(cls) -> int:
        """Bytes of one element; there is no padding."""
        return cls.count * cls.scalar.itemsize

    @property
    def word(cls) -> int:
        """The low 32 bits of a reading's word: the scalar's code and bits, and `number` where DLPack has the lanes."""
        return cls.scalar.tag & 0xFFFF | cls.number << 16

    def __repr__(cls) -> str:
        """Return the name."""
        return cls.__name__


def _reduced(kind: ElementType) -> Any:
    """Return how a type is pickled: most have no name in this module to be found by, and none the same number everywhere."""
    if kind is Element:
        return kind.__qualname__
    if kind.fields is not None:
        return record_type, (kind.fields,)
    return _type_restored, (kind.family, kind.extents, kind.scalar.name)


copyreg.pickle(ElementType, _reduced)


class Element(metaclass=ElementType):
    """A value of an element type: components that never change.

    Parameters
    ----------
    *components
        Nothing for zeros; one number for all components alike; all components in row-major order; shorter vectors and
        numbers that together make up a vector; or one element or nested sequence of the same shape, which is converted.

    Examples
    --------
    >>> vec3(1, 2, 3)[1]
    2.0
    >>> vec4(vec3(1, 2, 3), 1).w
    1.0
    >>> mat22(1, 2, 3, 4)[1, 0]
    3.0
    """

    __slots__ = ("__weakref__", "_record", "_values")

    _values: NDArray[Any]
    _record: Any

    def __init__(self, *components: Any) -> None:
        object.__setattr__(self, "_values", _values_of(type(self), components))
        self._values.flags.writeable = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse: a value that a kernel was compiled with must stay what it was."""
        raise NumbridgeTypeError(f"a {type(self).__name__} never changes in Python; make a new one")

    def __setitem__(self, index: Any, value: Any) -> None:
        """Refuse likewise; kernels do assign to components."""
        raise NumbridgeTypeError(
            f"a {type(self).__name__} never changes in Python; change a copy, value.numpy(), and make a new one of it"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name, shape and scalar: type numbers differ between processes."""
        kind = type(self)
        return _restored, (kind.family, kind.extents, kind.scalar.name, self._values.tolist())

    def numpy(self) -> NDArray[Any]:
        """Return a NumPy array of the components."""
        return self._values.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the components for NumPy."""
        return np.array(self._values, dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Let NumPy compute with the components; a number of NumPy's times an element is one, as in the other order."""
        if (
            ufunc is np.multiply
            and method == "__call__"
            and isinstance(inputs[0], np.number | np.bool_)
            and not options
        ):
            return _operated("mul", *inputs)
        plain = [given._values if isinstance(given, Element) else given for given in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over a vector's components, or a matrix's rows."""
        return (self[place] for place in range(len(self)))

    def __len__(self) -> int:
        """Return the length of a vector, or how many rows a matrix has."""
        return type(self).extents[0]

    def __getitem__(self, index: Any) -> Any:
        """Return a component as a Python number, a matrix's row as a vector, and a slice as a vector or a matrix."""
        if any(isinstance(part, bool | np.bool_) for part in (index if isinstance(index, tuple) else (index,))):
            raise NumbridgeIndexError(f"{type(self).__name__}: {index!r} is no index; pass ints or slices")
        try:
            found = self._values[index]
        except IndexError as error:
            raise IndexError(f"{type(self).__name__}: {error}") from None
        if np.ndim(found) == 0:
            return found.item()
        if np.ndim(found) > 2:  # indexed by None
            return found.copy()
        kind = vector(found.shape[0], type(self).scalar) if found.ndim == 1 else matrix(found.shape, type(self).scalar)
        return kind(found.tolist())

    def __getattr__(self, name: str) -> Any:
        """Return a component by name (``x``, ``y``, ``z``, ``w``), or a transform's parts ``p`` and ``q``."""
        kind = type(self)
        found = component(kind, name)
        if found is None:
            raise AttributeError(f"a {kind.__name__} has no attribute {name!r}")
        first, part = found
        flat = self._values.reshape(-1)
        return flat[first].item() if part is None else part(*flat[first : first + part.count].tolist())

    def __repr__(self) -> str:
        """Return the value as it is written."""
        return f"{type(self).__name__}({', '.join(map(repr, self._values.reshape(-1).tolist()))})"

    def __hash__(self) -> int:
        """Hash the components."""
        return hash((type(self), (self._values + 0).tobytes()))  # 0.0 for -0.0, which is equal

    def __float__(self) -> float:
        """Refuse: an element is no number."""
        raise NumbridgeTypeError(f"a {type(self).__name__} is no number; take a component, such as value[0]")

    def __eq__(self, other: Any) -> Any:
        """Tell whether all components are equal."""
        return _operated("eq", self, other)

    def __ne__(self, other: Any) -> Any:
        """Tell whether some components differ."""
        return _operated("ne", self, other)

    def __neg__(self) -> Any:
        """Return the negative."""
        return _operated("neg", self)

    def __pos__(self) -> Any:
        """Return the value."""
        return self

    def __abs__(self) -> Any:
        """Return the components' absolute values."""
        return _operated("abs", self)

    def __add__(self, other: Any) -> Any:
        """Add components."""
        return _operated("add", self, other)

    def __sub__(self, other: Any) -> Any:
        """Subtract components."""
        return _operated("sub", self, other)

    def __mul__(self, other: Any) -> Any:
        """Scale by a number; multiply matrices, quaternions and transforms."""
        return _operated("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        """Scale by a number."""
        return _operated("mul", other, self)

    def __matmul__(self, other: Any) -> Any:
        """Multiply matrices and vectors."""
        return _operated("matmul", self, other)

    def __truediv__(self, other: Any) -> Any:
        """Divide by a number."""
        return _operated("truediv", self, other)

    def __floordiv__(self, other: Any) -> Any:
        """Divide by a number, rounding down."""
        return _operated("floordiv", self, other)

    def __mod__(self, other: Any) -> Any:
        """Return the remainders of a division by a number."""
        return _operated("mod", self, other)


def _operated(name: str, *operands: Any) -> Any:
    from numbridge.kernels.element_types.element_functions import operate

    return operate(name, *operands)


def _type_restored(family: Family, extents: tuple[int, ...], scalar: str) -> ElementType:
    return _element_type(family, extents, scalars.by_name(scalar))


def _restored(family: Family, extents: tuple[int, ...], scalar: str, values: Any) -> Element:
    made: Element = _type_restored(family, extents, scalar)(values)
    return made


def _values_of(kind: ElementType, components: tuple[Any, ...]) -> NDArray[Any]:
    """Return the components as an array of the type's extents."""
    dtype, extents = kind.scalar.numpy, kind.extents
    if not components:
        return np.zeros(extents, dtype)
    if len(components) == 1:
        given = _real_numbers(kind, components[0])
        if given.ndim == 0 and kind.family in ("vector", "matrix"):
            return np.full(extents, given.astype(dtype))
        # Numbers without rows are those of the rows, one after another; those of a vector might be meant otherwise.
        if given.shape == extents or (given.shape == (kind.count,) and not isinstance(components[0], Element)):
            return given.astype(dtype).reshape(extents)
    flat = [_real_numbers(kind, part) for part in components]
    joined = np.concatenate([part.reshape(-1) for part in flat])
    fits = all(part.ndim == 0 or (part.ndim == 1 and len(extents) == 1) for part in flat)
    if not fits or joined.size != kind.count or joined.dtype == object:
        shown = ", ".join(type(part).__name__ for part in components)
        of_vectors = kind.family == "matrix" and all(part.ndim == 1 for part in flat)
        way = "; nb.matrix_from_rows and nb.matrix_from_cols make a matrix of vectors" if of_vectors else ""
        raise NumbridgeValueError(
            f"{kind.__name__} has {kind.count} components ({' x '.join(map(str, extents))}), got {len(components)} "
            f"argument(s) ({shown}) with {joined.size} number(s){way}"
        )
    return joined.astype(dtype).reshape(extents)


def _real_numbers(kind: ElementType, part: Any) -> NDArray[Any]:
    """Return some components as an array; NumPy would also make numbers of text, of dates and of half a complex number."""
    if isinstance(part, Element):
        return part._values
    try:
        given = np.asarray(part)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError is torch's
        raise NumbridgeValueError(f"{kind.__name__} cannot be made of this {type(part).__name__}: {error}") from None
    if given.dtype.kind in "OUSMmc" and not all(isinstance(number, numbers.Real) for number in given.flat):
        what = type(part).__name__ if given.ndim == 0 else f"{type(part).__name__} of {given.dtype}"
        raise NumbridgeTypeError(f"{kind.__name__} is made of real numbers, and not of {what}")
    if given.dtype.kind in "iuO" and kind.scalar.numpy.kind in "iu":
        limits = np.iinfo(kind.scalar.numpy)
        outside = next((number for number in given.flat if not limits.min <= number <= limits.max), None)
        if outside is not None:
            text = (
                f"{kind.__name__} holds integers from {limits.min} to {limits.max}, and was given {shown(int(outside))}"
            )
            raise NumbridgeValueError(f"{text}; take a vector or matrix of a wider type")
    return given


def component(kind: ElementType, name: str) -> tuple[int, ElementType | None] | None:
    """Return where a named part of an element starts, with its type if it is an element itself; None if there is none."""
    if kind.family == "transform":
        parts = {"p": (0, _element_type("vector", (3,), kind.scalar)), "q": (3, quaternion(kind.scalar))}
        return parts.get(name)
    place = _COMPONENTS.find(name) if len(name) == 1 and len(kind.extents) == 1 else -1
    return (place, None) if 0 <= place < kind.count and kind.count <= len(_COMPONENTS) else None


def sliced(kind: ElementType, index: Any) -> tuple[tuple[int, ...], ElementType] | None:
    """Return the places, in row-major order, of what an index with slices selects of an element, with its type.

    A slice of a vector, a quaternion or a transform is a vector, and so is part of a row or a column of a matrix; some rows are a
    matrix. A number among slices that is beyond its extent counts as 0, since whoever asks refuses it apart. There is None for an
    index without slices, or with something else in it than numbers, and for a slice that selects nothing.

    Examples
    --------
    >>> sliced(vec3, slice(1, None))
    ((1, 2), vec2)
    >>> sliced(mat22, (slice(None), 0))
    ((0, 2), vec2)
    """
    given = index if isinstance(index, tuple) else (index,)
    is_known = all(type(part) is int or (isinstance(part, slice) and _is_of_numbers(part)) for part in given)
    if not is_known or len(given) > len(kind.extents) or not any(isinstance(part, slice) for part in given):
        return None
    pairs = zip(given, kind.extents, strict=False)
    inside = tuple(part if isinstance(part, slice) or -extent <= part < extent else 0 for part, extent in pairs)
    places = np.arange(kind.count).reshape(kind.extents)[inside]
    if not places.size:
        return None
    family: Family = "vector" if places.ndim == 1 else "matrix"
    return tuple(places.reshape(-1).tolist()), _element_type(family, places.shape, kind.scalar)


def beyond(kind: ElementType, index: Any) -> str | None:
    """Return what is wrong with the first number of an index that is beyond an element's extents; None if none is."""
    pairs = zip(index if isinstance(index, tuple) else (index,), kind.extents, strict=False)
    for axis, (place, extent) in enumerate(pairs):
        if type(place) is int and not -extent <= place < extent:
            return f"index {place} is out of range for axis {axis} of a {kind.name}, whose extent is {extent}"
    return None


def _is_of_numbers(part: slice) -> bool:
    return all(bound is None or type(bound) is int for bound in (part.start, part.stop, part.step)) and part.step != 0


def _element_type(family: Family, extents: tuple[int, ...], scalar: Scalar, name: str | None = None) -> ElementType:
    """Return the one type of a family, shape and scalar."""
    key = (family, extents, scalar.name)
    with _lock:
        found = _known.get(key)
        if found is None:
            body = {"__slots__": (), "__module__": __name__, "__doc__": _described(family, extents, scalar)}
            found = ElementType(name or _name(family, extents, scalar), (Element,), body)
            found.family, found.extents, found.scalar = family, extents, scalar
            found.fields = None
            _known[key] = _numbered(found)
        return found


def _numbered(made: ElementType) -> ElementType:
    made.number = nb.ELEMENT | next(_numbers)
    if made.number > 0xFFFF:
        raise NumbridgeValueError("there are too many element types in this process, at most 32767")
    _by_number[made.number] = made
    return made


def record_type(dtype: np.dtype[Any]) -> ElementType:
    """Return the element type that stands for a structured NumPy dtype.

    Raises
    ------
    ConversionError
        If it holds Python objects, or is not in this machine's byte order.
    """
    if dtype.hasobject or not dtype.isnative or not dtype.itemsize:
        why = "holds Python objects" if dtype.hasobject else "is not in this machine's byte order, or is empty"
        raise ConversionError(f"{dtype!r} {why}; kernels take records of numbers in native byte order")
    with _lock:
        found = _records.get(repr(dtype))
        if found is None:
            unit = _word_of(dtype)
            body = {"__slots__": (), "__module__": __name__, "__doc__": f"Records of {dtype!r}."}
            found = ElementType(repr(dtype), (Element,), body)
            found.family, found.extents, found.scalar = "record", (dtype.itemsize // unit.itemsize,), unit
            found.fields = dtype
            _records[repr(dtype)] = _numbered(found)
        return found


def scalar_in_memory(element: ElementType) -> type[np.generic]:
    """Return the NumPy scalar type of memory for an element's components; of 16-bit floats, the integers of their size."""
    row = element.scalar
    found: type[np.generic] = np.uint16 if row.is_float and row.itemsize < 4 else row.numpy.type
    return found


def has_gradient(element: ElementType | None, scalar: Scalar) -> bool:
    """Tell whether what an array holds has a gradient: floats, complex numbers, elements, or records with a field of floats."""
    if element is not None and element.fields is not None:
        return any(True for _ in float_fields(element.fields))
    return scalar.is_inexact


def float_fields(dtype: np.dtype[Any]) -> Iterator[tuple[str, ...]]:
    """Yield where the fields are that have a gradient, as in `number_fields`: those of real floats that kernels compute with."""
    return (path for path, kind in number_fields(dtype) if kind.char in "fd")


def number_fields(dtype: np.dtype[Any]) -> Iterator[tuple[tuple[str, ...], np.dtype[Any]]]:
    """Yield the fields of a structured dtype that hold no fields themselves, with those within fields.

    Each is its name after those of the fields that it lies in, and the type of its numbers, without their dimensions.
    """
    for name, (kind, *_) in (dtype.fields or {}).items():
        if kind.base.fields is None:
            yield (name,), kind.base
        else:
            yield from (((name, *inner), base) for inner, base in number_fields(kind.base))


def _word_of(dtype: np.dtype[Any]) -> Scalar:
    """Return the unsigned type in whose multiples all fields lie, so that whoever reads one sees what is misaligned."""
    size = max(_alignments(dtype), default=1)
    offsets = [offset for _, offset, *_ in (dtype.fields or {}).values()]
    fits = dtype.itemsize % size == 0 and all(offset % size == 0 or dtype.isalignedstruct for offset in offsets)
    return scalars.by_name(f"uint{8 * size if fits else 8}")


def _alignments(dtype: np.dtype[Any]) -> Iterator[int]:
    for _, kind in number_fields(dtype):
        if kind.kind in "?iufc" or (kind.kind == "V" and kind.type is not np.void):  # the latter are ml_dtypes'
            yield min(kind.alignment, 8)


def _described(family: Family, extents: tuple[int, ...], scalar: Scalar) -> str:
    return f"A {family} of {' x '.join(map(str, extents))} components of {scalar.name}."


def _name(family: Family, extents: tuple[int, ...], scalar: Scalar) -> str:
    suffix = _SUFFIXES.get(scalar.name, f"_{scalar.name}")
    if family != "matrix":
        stems = {
            "vector": f"vec{extents[0]}",
            "quaternion": "quat",
            "transform": "transform",
            "complex": "complex_parts",
        }
        stem = stems[family]
        return stem + suffix
    between = "" if max(extents) < 10 else "x"
    return f"mat{extents[0]}{between}{extents[1]}{suffix}"


def quaternion(scalar: Scalar) -> ElementType:
    """Return the type of quaternions of a scalar type."""
    return _element_type("quaternion", (4,), scalar)


def complex_parts(scalar: Scalar) -> ElementType:
    """Return the type of complex numbers as pairs of real ones, of a scalar type, which derivatives compute with."""
    return _element_type("complex", (2,), scalar)


def by_number(number: int) -> ElementType | None:
    """Return the element type that a word names, or None."""
    return _by_number.get(number)


def element_types() -> tuple[ElementType, ...]:
    """Return every element type that exists."""
    with _lock:
        return tuple(_known.values())


def dtype_of(dtype: Any) -> Scalar | ElementType:
    """Return what an array's elements are: an element type, records of a structured dtype, or the row of a scalar type.

    Raises
    ------
    ConversionError
        If it is neither.
    """
    if isinstance(dtype, np.dtype) and dtype.names is not None:
        return record_type(dtype)
    if isinstance(dtype, ElementType):
        if dtype is Element:
            raise ConversionError("Element is the base of element types and none itself; name one, such as nb.vec3")
        return dtype
    return scalar_of(dtype)


def vector(length: int, dtype: Any = float) -> ElementType:
    """Return the type of vectors of a length.

    Parameters
    ----------
    length : int
        How many components.
    dtype : dtype_like
        Their type; `float` is float32 and `int` is int32.

    Examples
    --------
    >>> import numpy as np, numbridge as nb
    >>> nb.vector(3, float) is nb.vec3
    True
    >>> nb.vector(5, np.float64)
    vec5d
    """
    return _element_type("vector", _checked((length,)), _component_scalar(dtype))


def matrix(shape: Sequence[int], dtype: Any = float) -> ElementType:
    """Return the type of matrices of a shape; components lie row by row.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns.
    dtype : dtype_like
        The components' type; `float` is float32 and `int` is int32.

    Examples
    --------
    >>> import numbridge as nb
    >>> nb.matrix((2, 3), float)(1, 2, 3, 4, 5, 6)[1]
    vec3(4.0, 5.0, 6.0)
    """
    try:
        rows, columns = shape
    except (TypeError, ValueError):
        raise NumbridgeValueError(f"shape is {shape!r}; a matrix has rows and columns") from None
    extents = _checked((rows, columns))
    return _element_type("matrix", extents, _component_scalar(dtype))


def _checked(extents: tuple[Any, ...]) -> tuple[int, ...]:
    extents = tuple([extent.item() if isinstance(extent, np.integer) else extent for extent in extents])
    if not all(type(extent) is int and extent > 0 for extent in extents) or math.prod(extents) > MAX_COMPONENTS:
        raise NumbridgeValueError(
            f"an element type of shape {shown(extents)} cannot be: extents are positive ints, with at most {MAX_COMPONENTS} "
            "components in all; use an array of another dimension"
        )
    return extents


def _component_scalar(dtype: Any) -> Scalar:
    row = scalar_of(dtype)
    if row.code in (scalars.COMPLEX, scalars.BOOL):
        raise ConversionError(f"elements have real numbers as components, not {row.name}")
    return row


def _named(name: str, family: Family, extents: tuple[int, ...]) -> tuple[ElementType, ...]:
    return tuple(
        _element_type(family, extents, scalars.by_name(scalar), name + suffix) for scalar, suffix in _SUFFIXES.items()
    )


vec2f, vec2d, vec2h, vec2i = _named("vec2", "vector", (2,))
vec3f, vec3d, vec3h, vec3i = _named("vec3", "vector", (3,))
vec4f, vec4d, vec4h, vec4i = _named("vec4", "vector", (4,))
mat22f, mat22d, mat22h, mat22i = _named("mat22", "matrix", (2, 2))
mat33f, mat33d, mat33h, mat33i = _named("mat33", "matrix", (3, 3))
mat44f, mat44d, mat44h, mat44i = _named("mat44", "matrix", (4, 4))
quatf, quatd, quath, quati = _named("quat", "quaternion", (4,))
transformf, transformd, transformh, transformi = _named("transform", "transform", (7,))
spatial_vectorf, spatial_vectord, spatial_vectorh, spatial_vectori = _named("spatial_vector", "vector", (6,))
spatial_matrixf, spatial_matrixd, spatial_matrixh, spatial_matrixi = _named("spatial_matrix", "matrix", (6, 6))
vec2, vec3, vec4, mat22, mat33, mat44 = vec2f, vec3f, vec4f, mat22f, mat33f, mat44f
quat, transform, spatial_vector, spatial_matrix = quatf, transformf, spatial_vectorf, spatial_matrixf
