"""The structures of XLA's foreign function interface, version 0, on a 64-bit machine.

The source is xla/ffi/api/c_api.h, which jaxlib ships in `jax.ffi.include_dir()`; `header` compares the two. The names are those
of the newest header; `OLDER_NAMES` has what they were called before. Only what numbridge reads or writes is here. Pointers are
``c_void_p``, so that nothing is converted behind one's back.
"""

import ctypes

# XLA_FFI_API_MAJOR, and each XLA_FFI_API_MINOR whose header these structures were compared with.
KNOWN_MAJOR, KNOWN_MINORS = 0, (3, 4, 5)
# The names of minor version 3, which JAX 0.10 has; places and meaning are the same.
OLDER_NAMES = (
    ("XLA_FFI_InternalExtension", "XLA_FFI_Extension_Base"),
    ("XLA_FFI_Error_GetDetails", "XLA_FFI_Error_GetMessage"),
    ("XLA_FFI_InvokeContext_Get", "XLA_FFI_ExecutionContext_Get"),
)

# XLA_FFI_InternalExtension_Type, XLA_FFI_ExecutionStage, XLA_FFI_AttrType
EXTENSION_METADATA = 1
STAGE_EXECUTE = 3
ATTRIBUTE_ARRAY, ATTRIBUTE_DICTIONARY, ATTRIBUTE_SCALAR, ATTRIBUTE_STRING = 1, 2, 3, 4

# XLA_FFI_Error_Code
INVALID_ARGUMENT, FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL = 3, 9, 12, 13

# XLA_FFI_DataType, by numbridge's name of the element type
DATA_TYPES = (
    ("bool", 1),
    ("int8", 2),
    ("int16", 3),
    ("int32", 4),
    ("int64", 5),
    ("uint8", 6),
    ("uint16", 7),
    ("uint32", 8),
    ("uint64", 9),
    ("float16", 10),
    ("float32", 11),
    ("float64", 12),
    ("complex64", 15),
    ("bfloat16", 16),
    ("complex128", 18),
    ("float8_e5m2", 19),
    ("float8_e4m3fn", 20),
)
# Those that numbridge does not have, by JAX's name; only messages need them.
OTHER_DATA_TYPES = (
    ("int4", 21),
    ("uint4", 22),
    ("float8_e4m3b11fnuz", 23),
    ("float8_e5m2fnuz", 24),
    ("float8_e4m3fnuz", 25),
    ("int2", 26),
    ("uint2", 27),
    ("float8_e4m3", 28),
    ("float8_e3m4", 29),
    ("int1", 30),
    ("uint1", 31),
    ("float4_e2m1fn", 32),
    ("float8_e8m0fnu", 33),
)
CODE_INT64, CODE_UINT32 = 5, 8

# XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE
COMMAND_BUFFER_COMPATIBLE = 1


class XLA_FFI_InternalExtension(ctypes.Structure):  # noqa: N801 - the header's own name, by which it is compared
    """What may be chained to a structure."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p))


class XLA_FFI_Api_Version(ctypes.Structure):  # noqa: N801
    """A version of the interface."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("major_version", ctypes.c_int),
        ("minor_version", ctypes.c_int),
    )


class XLA_FFI_Metadata(ctypes.Structure):  # noqa: N801
    """What XLA asks a handler about itself; a handler without state leaves what follows alone."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("api_version", XLA_FFI_Api_Version),
        ("traits", ctypes.c_uint32),
    )


class XLA_FFI_Metadata_Extension(ctypes.Structure):  # noqa: N801
    """The extension through which it asks."""

    _fields_ = (("extension_base", XLA_FFI_InternalExtension), ("metadata", ctypes.c_void_p))


class XLA_FFI_Buffer(ctypes.Structure):  # noqa: N801
    """An argument or a result."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.c_void_p),
    )


class XLA_FFI_ByteSpan(ctypes.Structure):  # noqa: N801
    """A string, not terminated by a null byte."""

    _fields_ = (("ptr", ctypes.c_void_p), ("len", ctypes.c_size_t))


class XLA_FFI_Scalar(ctypes.Structure):  # noqa: N801
    """An attribute that is a number."""

    _fields_ = (("dtype", ctypes.c_int), ("value", ctypes.c_void_p))


class XLA_FFI_Array(ctypes.Structure):  # noqa: N801
    """An attribute that is an array."""

    _fields_ = (("dtype", ctypes.c_int), ("size", ctypes.c_size_t), ("data", ctypes.c_void_p))


class XLA_FFI_Args(ctypes.Structure):  # noqa: N801
    """The arguments."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
    )


class XLA_FFI_Rets(ctypes.Structure):  # noqa: N801
    """The results."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("rets", ctypes.c_void_p),
    )


class XLA_FFI_Attrs(ctypes.Structure):  # noqa: N801
    """The attributes, sorted by name."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
    )


class XLA_FFI_CallFrame(ctypes.Structure):  # noqa: N801
    """What a handler gets."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("api", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("args", XLA_FFI_Args),
        ("rets", XLA_FFI_Rets),
        ("attrs", XLA_FFI_Attrs),
        ("future", ctypes.c_void_p),
    )


class XLA_FFI_Error_Create_Args(ctypes.Structure):  # noqa: N801
    """What an error is made from."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("errc", ctypes.c_int),
    )


class XLA_FFI_Stream_Get_Args(ctypes.Structure):  # noqa: N801
    """How a handler asks for its stream."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


class XLA_FFI_DeviceOrdinal_Get_Args(ctypes.Structure):  # noqa: N801
    """How a handler asks for its device."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
        ("device_ordinal", ctypes.c_int32),
    )


class XLA_FFI_Api(ctypes.Structure):  # noqa: N801
    """XLA's functions."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("api_version", XLA_FFI_Api_Version),
        ("internal_api", ctypes.c_void_p),
        ("XLA_FFI_Error_Create", ctypes.c_void_p),
        ("XLA_FFI_Error_GetDetails", ctypes.c_void_p),
        ("XLA_FFI_Error_Destroy", ctypes.c_void_p),
        ("XLA_FFI_Handler_Register", ctypes.c_void_p),
        ("XLA_FFI_Stream_Get", ctypes.c_void_p),
        ("XLA_FFI_Type_Register", ctypes.c_void_p),
        ("XLA_FFI_InvokeContext_Get", ctypes.c_void_p),
        ("XLA_FFI_State_Set", ctypes.c_void_p),
        ("XLA_FFI_State_Get", ctypes.c_void_p),
        ("XLA_FFI_DeviceMemory_Allocate", ctypes.c_void_p),
        ("XLA_FFI_DeviceMemory_Free", ctypes.c_void_p),
        ("XLA_FFI_ThreadPool_Schedule", ctypes.c_void_p),
        ("XLA_FFI_ThreadPool_NumThreads", ctypes.c_void_p),
        ("XLA_FFI_Future_Create", ctypes.c_void_p),
        ("XLA_FFI_Future_SetAvailable", ctypes.c_void_p),
        ("XLA_FFI_Future_SetError", ctypes.c_void_p),
        ("XLA_FFI_RunId_Get", ctypes.c_void_p),
        ("XLA_FFI_DeviceOrdinal_Get", ctypes.c_void_p),
    )
