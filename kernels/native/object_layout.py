"""Byte offsets inside CPython and NumPy objects on a 64-bit machine, and the buffer structure of the C API.

Nothing but numbers and ctypes structures. CPython: ``PyObject`` and ``Py_buffer`` (Include/pybuffer.h) of the stable ABI's era,
3.11 to 3.14 with the GIL. NumPy: ``PyArrayObject_fields`` and ``_PyArray_Descr`` (ndarraytypes.h), whose leading fields are the
same in NumPy 1 and 2.
`machine` checks the size of objects before it compiles what relies on it, and `numpy_arrays` the NumPy offsets against a live
array.
"""

import ctypes

# PyObject, of the build with the global interpreter lock
OBJECT_SIZE, OBJECT_TYPE = 16, 8
# PyMemberDescrObject (Include/cpython/descrobject.h), and PyMemberDef, to which it points
MEMBER_DESCR_DEF, MEMBER_OFFSET = 40, 16

# Py_buffer
BUFFER_DATA, BUFFER_ITEMSIZE, BUFFER_READONLY, BUFFER_NDIM = 0, 24, 32, 36
BUFFER_FORMAT, BUFFER_SHAPE, BUFFER_STRIDES = 40, 48, 56
PYBUF_STRIDED_FORMAT = 0x1C  # PyBUF_STRIDES | PyBUF_FORMAT: read-only consumers, no indirection

# Flags of PyMethodDef (Include/methodobject.h): (self, arguments, count), with a tuple of names behind, and (self, argument)
METH_FASTCALL, METH_KEYWORDS, METH_O = 0x0080, 0x0002, 0x0008

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
