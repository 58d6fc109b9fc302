"""Byte offsets of numbridge's own native structures: process state, reader table, reading, launch plan, specialisation.

Nothing but numbers, shared by the compiled functions and by the Python code that fills the structures in. All fields
are 64 bits wide.

The *word* of a reading sums an argument up in one integer, so that a compiled variant recognises its arguments with one
masked comparison each.
"""

# Process state (one block per process)
STATE_TABLE, STATE_TABLE_MASK, STATE_PARALLEL_FOR, STATE_THREAD_COUNT, STATE_LOCK, STATE_NUMPY_TAGS = (
    0,
    8,
    16,
    24,
    32,
    40,
)
STATE_NUMPY_TAG_COUNT, STATE_ARRAY_TYPE, STATE_ARRAY_RECORD, STATE_ARRAY_SOURCE, STATE_ARRAY_EXTRA = 48, 56, 64, 72, 80
# Memory that was lent (see `machine`), or 0: a count, then for each piece its first address, the address behind its last,
# and READ_ONLY, with IMMUTABLE where nothing else may write to it either
STATE_LENT = 88
LENT_PIECES, LENT_FIRST, LENT_BEHIND, LENT_BITS, LENT_SIZE = 8, 0, 8, 16, 24
# The Python function that is told of each read-only Array that compiled code is about to hand on, or 0
STATE_LENDER = 96
STATE_SIZE = 128

# Reader table: open addressing on the type's address
ENTRY_TYPE, ENTRY_KIND, ENTRY_FUNCTION, ENTRY_FLAGS = 0, 8, 16, 24
# How a framework's own object tells what DLPack does not: the chain object -> implementation -> key set, the bits of the
# key set that are harmless, where the implementation keeps its autograd state, and where its version counter.
ENTRY_IMPLEMENTATION, ENTRY_KEYS, ENTRY_ALLOWED, ENTRY_AUTOGRAD, ENTRY_VERSION, ENTRY_COUNTER = 32, 40, 48, 56, 64, 72
ENTRY_GUARD, ENTRY_ADAPTER, ENTRY_SIZE = 80, 88, 96

UNKNOWN, EXCHANGE, NUMPY, BUFFER, RECORD, ADAPTER, CAPSULE = 0, 1, 2, 3, 4, 5, 6
PY_FLOAT, PY_INT, PY_BOOL, PY_COMPLEX, NUMPY_SCALAR = 8, 9, 10, 11, 12

# Reading: what one argument turned out to be
READ_WORD, READ_DATA, READ_SHAPE, READ_STRIDES, READ_STRIDE_UNIT, READ_DEVICE_ID, READ_ENTRY = 0, 8, 16, 24, 32, 40, 48
READ_HOLD, READ_HELD, READ_REAL, READ_INTEGER, READ_IMAGINARY, READ_BUFFER, READ_IMPLEMENTATION = (
    56,
    64,
    72,
    80,
    88,
    96,
    176,
)
READ_SIZE = 192
HOLD_NOTHING, HOLD_BUFFER, HOLD_OBJECT = 0, 1, 2

# The word: tag 0..31, ndim 32..39, class 40..43, then one bit each, device type 56..63
WORD_NDIM, WORD_CLASS, WORD_DEVICE = 32, 40, 56
CLASS_ARRAY, CLASS_FLOAT, CLASS_INT, CLASS_BOOL, CLASS_COMPLEX = 1, 2, 3, 4, 5
CONTIGUOUS, READ_ONLY, REPEATED, MISALIGNED = 1 << 44, 1 << 45, 1 << 46, 1 << 47
UNSURE, TOO_BIG, STRONG, GUARDED, IMMUTABLE = 1 << 48, 1 << 49, 1 << 50, 1 << 51, 1 << 52

# Launch plan: one per launcher. From PLAN_DIMS on it is what a variant's range function receives as `geometry`.
PLAN_VARIANTS, PLAN_TOTAL, PLAN_DIMS, PLAN_BLOCK, PLAN_GRID, PLAN_FLAGS, PLAN_SIZE = 0, 8, 16, 48, 72, 96, 104
PLAN_GUARDS_PASSED = 1
MAX_DIMS, MAX_VARIANTS = 4, 8

# Specialisation: one compiled variant as the entry sees it, then its parameters
SPEC_COUNT, SPEC_RUN, SPEC_SERIAL_BELOW, SPEC_BLOCK_SIZE, SPEC_GLOBALS, SPEC_GLOBAL_COUNT, SPEC_GRAIN = (
    0,
    8,
    16,
    24,
    32,
    40,
    48,
)
SPEC_BRIEF_BELOW, SPEC_PARAMETERS = 56, 64
PARAM_MASK, PARAM_WANT, PARAM_OFFSET, PARAM_TAG, PARAM_WRITTEN, PARAM_SIZE = 0, 8, 16, 24, 32, 40
GLOBAL_CONTAINER, GLOBAL_NAME, GLOBAL_VALUE, GLOBAL_SIZE = 0, 8, 16, 24

# A Numba array as a value: meminfo, parent, item count, item size, data, shape, strides in bytes
VALUE_COUNT, VALUE_ITEMSIZE, VALUE_DATA, VALUE_SHAPE = 16, 24, 32, 40

# Work shared out to threads
WORK_RUN, WORK_BLOCK, WORK_GEOMETRY, WORK_TOTAL, WORK_GRAIN, WORK_FAILED, WORK_SIZE = 0, 8, 16, 24, 32, 40, 48

# Limits of what is read: no array has more dimensions, and none lies in the first pages of the address space
MAX_RANK, LOWEST_ADDRESS = 64, 1 << 16

# How a native launch ended
LAUNCHED, MISSED, RAISED = 0, 1, 2
