"""Byte offsets inside CPython and NumPy objects on a 64-bit machine, and the buffer structure of the C API.

Numbers and ctypes structures; importing it fails where objects do not begin as they do in CPython with the GIL. CPython:
``PyObject``, ``PyTupleObject`` (Include/cpython/tupleobject.h; with a hash before the items since 3.14) and ``Py_buffer``
(Include/pybuffer.h) of the stable ABI's era, 3.11 to 3.14. NumPy: ``PyArrayObject_fields`` and
``_PyArray_Descr`` (ndarraytypes.h), whose leading fields are the same in NumPy 1 and 2. `numpy_arrays` checks the NumPy
offsets against a live array before it relies on them.
"""

import ctypes
import sys

# PyObject is a count and a type; the free-threaded build's is twice as long, and so every offset below would be wrong.
if object.__basicsize__ != 16:
    raise ImportError(
        f"numbridge reads Python's objects as CPython with the GIL lays them out on 64-bit machines, and {sys.executable} is "
        "another build (a free-threaded one, such as python3.14t, or a debugging one); use the ordinary build of this version"
    )
OBJECT_TYPE = 8
# What a tuple's type says its size is without the items: 24, and 32 since 3.14.
TUPLE_ITEMS = tuple.__basicsize__
# PyMemberDescrObject (Include/cpython/descrobject.h), and PyMemberDef, to which it points
MEMBER_DESCR_DEF, MEMBER_OFFSET = 40, 16

# Py_buffer
BUFFER_DATA, BUFFER_ITEMSIZE, BUFFER_READONLY, BUFFER_NDIM = 0, 24, 32, 36
BUFFER_FORMAT, BUFFER_SHAPE, BUFFER_STRIDES = 40, 48, 56
PYBUF_STRIDED_FORMAT = 0x1C  # PyBUF_STRIDES | PyBUF_FORMAT: read-only consumers, no indirection

# PyArrayObject and PyArray_Descr
ARRAY_DATA, ARRAY_NDIM, ARRAY_SHAPE, ARRAY_STRIDES, ARRAY_DESCR, ARRAY_FLAGS = 16, 24, 32, 40, 56, 64
DESCR_BYTEORDER, DESCR_TYPE_NUM = 26, 28
# NPY_OPPBYTE, '>' on a little-endian machine, whose own order is '=', or '<' where something else than NumPy made the dtype
DESCR_OTHER_ORDER = 0x3E
ARRAY_WRITEABLE = 0x0400
# The value inside a NumPy scalar object follows the object's head; so does a Python float's.
SCALAR_VALUE = 16

# Slots of NumPy's C-API table (numpy/__multiarray_api.h)
API_NEW_FROM_DESCR, API_SET_BASE_OBJECT = 94, 282


class MethodDef(ctypes.Structure):
    """``PyMethodDef`` (Include/methodobject.h)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Span(ctypes.Structure):
    """``struct iovec`` (POSIX, sys/uio.h)."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))
