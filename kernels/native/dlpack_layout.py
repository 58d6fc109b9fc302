"""Byte offsets of the DLPack structures on a 64-bit machine, and of the record that numbridge keeps for an array.

Nothing but numbers: no code, no imports of the package. The source is dlpack.h, version 1.3 (``DLTensor``,
``DLManagedTensor``, ``DLManagedTensorVersioned``, ``DLPackExchangeAPI``). All pointers are 8 bytes.

A *record* is numbridge's own block: a ``DLTensor`` at offset 0, so that any reader of DLPack can read it, then
what ownership needs, then shape and strides.
"""

# DLTensor
DATA, DEVICE_TYPE, DEVICE_ID, NDIM, DTYPE, SHAPE, STRIDES, BYTE_OFFSET, DLTENSOR_SIZE = 0, 8, 12, 16, 20, 24, 32, 40, 48

# DLManagedTensor (before version 1.0)
LEGACY_TENSOR, LEGACY_CONTEXT, LEGACY_DELETER, LEGACY_SIZE = 0, 48, 56, 64

# DLManagedTensorVersioned
MANAGED_MAJOR, MANAGED_MINOR, MANAGED_CONTEXT, MANAGED_DELETER, MANAGED_FLAGS, MANAGED_TENSOR = 0, 4, 8, 16, 24, 32
MANAGED_SIZE = 80
MAJOR_VERSION, MINOR_VERSION = 1, 1
FLAG_READ_ONLY, FLAG_COPIED = 1, 2

# DLPackExchangeAPI
EXCHANGE_MAJOR, EXCHANGE_MINOR, EXCHANGE_PREVIOUS, EXCHANGE_ALLOCATE, EXCHANGE_FROM_OBJECT, EXCHANGE_TO_OBJECT = (
    0,
    4,
    8,
    16,
    24,
    32,
)
EXCHANGE_READ, EXCHANGE_STREAM, EXCHANGE_SIZE = 40, 48, 56

# DLDeviceType
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13

# The record: DLTensor, then flags (as in DLManagedTensorVersioned), the Python object that owns the memory (a strong
# reference or NULL), the managed tensor that was consumed to get it (or NULL) with its kind, the CUDA stream on which its
# producer works, if RECORD_HAS_STREAM is set (if RECORD_ASKS_STREAM is: the reader table's entry of the producer's type, whose
# framework knows the stream), and what holds the memory itself where its owner may be given other memory (a strong reference
# or NULL).
RECORD_FLAGS, RECORD_OWNER, RECORD_MANAGED, RECORD_MANAGED_KIND, RECORD_STREAM, RECORD_KEPT = 48, 56, 64, 72, 80, 88
RECORD_SHAPE = 96
MANAGED_NONE, MANAGED_LEGACY, MANAGED_VERSIONED, MANAGED_MALLOC = 0, 1, 2, 3
# Bits of RECORD_FLAGS beyond DLPack's own: memory that its framework promises never to change.
RECORD_IMMUTABLE, RECORD_HAS_STREAM, RECORD_VALUE, RECORD_ASKS_STREAM = 1 << 8, 1 << 9, 1 << 10, 1 << 11
# Where in RECORD_FLAGS the number of an element type stands, and how many of the last dimensions are its own. With
# RECORD_VALUE the record is one element, to be passed by value. The DLTensor itself always counts scalars.
RECORD_ELEMENT, RECORD_INNER = 16, 32

NAME_EXCHANGE = "dlpack_exchange_api"
