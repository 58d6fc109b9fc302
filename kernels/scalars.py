"""The one table of scalar dtypes: NumPy, DLPack (code, bits), array-interface typestr and Numba names, side by side.

Everything that must know what an element is asks here. It imports no framework; ml_dtypes supplies bfloat16 and fp8.

The DLPack codes are those of ``DLDataTypeCode`` in dlpack.h version 1.1. A *tag* packs a ``DLDataType`` into one
integer, as the struct lies in memory on a little-endian machine: ``code | bits << 8 | lanes << 16``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from numbridge.kernels.errors import ConversionError

__all__ = [
    "ALL",
    "Scalar",
    "bfloat16",
    "by_name",
    "by_tag",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "of_framework",
    "scalar_of",
    "tag_of",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
FLOAT8_E4M3FN, FLOAT8_E5M2 = 10, 12

# One by one: type checkers take none of several that are assigned together for a type.
int8 = np.int8
int16 = np.int16
int32 = np.int32
int64 = np.int64
uint8 = np.uint8
uint16 = np.uint16
uint32 = np.uint32
uint64 = np.uint64
float16 = np.float16
float32 = np.float32
float64 = np.float64
complex64 = np.complex64
complex128 = np.complex128
bfloat16 = ml_dtypes.bfloat16
float8_e4m3fn = ml_dtypes.float8_e4m3fn
float8_e5m2 = ml_dtypes.float8_e5m2


@dataclass(frozen=True)
class Scalar:
    """One row of the table.

    Attributes
    ----------
    name : str
        NumPy's and ml_dtypes' name, such as ``"float32"``.
    numpy : numpy.dtype
        The NumPy dtype.
    tag : int
        The packed DLPack data type, ``code | bits << 8 | 1 << 16``.
    numba : str or None
        Numba's name, or None where Numba has no such type.
    """

    name: str
    numpy: np.dtype[Any]
    tag: int
    numba: str | None

    @property
    def code(self) -> int:
        """The ``DLDataTypeCode``."""
        return self.tag & 0xFF

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return (self.tag >> 8 & 0xFF) // 8

    @property
    def is_float(self) -> bool:
        """Whether this is a real floating type of any width."""
        return self.code in (FLOAT, BFLOAT, FLOAT8_E4M3FN, FLOAT8_E5M2)

    @property
    def is_inexact(self) -> bool:
        """Whether this is a floating type, real or complex."""
        return self.is_float or self.code == COMPLEX


def _row(scalar_type: Any, code: int, numba: str | None) -> Scalar:
    dtype = np.dtype(scalar_type)
    return Scalar(dtype.name, dtype, code | dtype.itemsize * 8 << 8 | 1 << 16, numba)


ALL: tuple[Scalar, ...] = (
    _row(np.bool_, BOOL, "boolean"),
    *(_row(t, INT, np.dtype(t).name) for t in (int8, int16, int32, int64)),
    *(_row(t, UINT, np.dtype(t).name) for t in (uint8, uint16, uint32, uint64)),
    _row(float16, FLOAT, "float16"),
    _row(float32, FLOAT, "float32"),
    _row(float64, FLOAT, "float64"),
    _row(bfloat16, BFLOAT, None),
    _row(float8_e4m3fn, FLOAT8_E4M3FN, None),
    _row(float8_e5m2, FLOAT8_E5M2, None),
    _row(complex64, COMPLEX, "complex64"),
    _row(complex128, COMPLEX, "complex128"),
)

_BY_TAG = {row.tag: row for row in ALL}
_BY_NAME = {row.name: row for row in ALL}
_BY_DTYPE = {row.numpy: row for row in ALL}
# Annotations follow Warp: `float` is float32 and `int` is int32.
_PYTHON = {float: _BY_NAME["float32"], int: _BY_NAME["int32"], bool: _BY_NAME["bool"], complex: _BY_NAME["complex64"]}


def by_tag(tag: int) -> Scalar | None:
    """Return the row of a packed DLPack data type, or None where there is none."""
    return _BY_TAG.get(tag)


def by_name(name: str) -> Scalar:
    """Return the row named as NumPy or ml_dtypes name it."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ConversionError(f"dtype {name!r} is unknown; numbridge has {', '.join(_BY_NAME)}") from None


def scalar_of(dtype: Any) -> Scalar:
    """Return the row of anything that names a dtype: a NumPy dtype or scalar type, a string, `float`, `int`, `bool`.

    A framework's own dtype is known by what it is called there, such as ``torch.float32``, and so is a type of Numba's.

    Raises
    ------
    ConversionError
        If there is no such scalar type; the message lists those there are.
    """
    if isinstance(dtype, Scalar):
        return dtype
    if isinstance(dtype, type) and dtype in _PYTHON:
        return _PYTHON[dtype]
    if dtype is None:  # which NumPy takes for float64
        raise ConversionError(_unknown(dtype))
    try:
        row = _BY_DTYPE.get(np.dtype(dtype))
    except (TypeError, ValueError):
        row = of_framework(dtype)
    if row is None:
        raise ConversionError(_unknown(dtype))
    return row


def of_framework(dtype: Any) -> Scalar | None:
    """Return the row of a framework's dtype, which is called after the framework and then as here; None for anything else.

    Types of Numba, as kernels' local arrays have them, are called as here alone.
    """
    package = type(dtype).__module__.partition(".")[0]
    if package == "numba":
        return _BY_NAME.get(str(dtype))
    before, _, name = str(dtype).rpartition(".") if package != "builtins" else ("", "", "")
    return _BY_NAME.get(name) if before == package else None


def _unknown(dtype: Any) -> str:
    if isinstance(dtype, np.dtype) and not dtype.isnative and dtype.newbyteorder("=") in _BY_DTYPE:
        return f"dtype {dtype.str!r} is not in this machine's byte order; convert the data to dtype.newbyteorder('=')"
    listed = f"dtype {dtype!r} is not a scalar type; numbridge has {', '.join(_BY_NAME)}"
    is_device = isinstance(dtype, str) and dtype.partition(":")[0] in ("cpu", "cuda")
    return f"{listed}. A device is given by name, as device={dtype!r}" if is_device else listed


def tag_of(dtype: Any) -> int:
    """Return the packed DLPack data type of anything that names a dtype."""
    return scalar_of(dtype).tag
