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
# STATE_WATCHED is not 0 while somebody must be told of every launch, which then goes over the slow road.
STATE_DRIVER, STATE_WATCHED = 88, 96
# Memory that was lent (see `native.lent`): where its pieces lie, how many there are, and for how many there is room. Each
# piece has its first address, the address behind its last, READ_ONLY (with IMMUTABLE where nothing else may write to it
# either), and the highest address behind any piece up to this one.
STATE_LENT, STATE_LENT_COUNT, STATE_LENT_ROOM = 104, 112, 120
LENT_FIRST, LENT_BEHIND, LENT_BITS, LENT_REACH, LENT_SIZE = 0, 8, 16, 24, 32
# The Python function that is told of each read-only Array that compiled code is about to hand on, or 0
STATE_LENDER = 128
# Of a block whose threads wait for each other in vain: its number and one more, or 0; a thread, and the lanes that it names, or 0
# for one that waits for all blocks.
STATE_STUCK, STATE_STUCK_THREAD, STATE_STUCK_MASK = 136, 144, 152
# How many bytes a block asked for that there were not, or 0
STATE_LACKING = 160
# The tuple of what compiled code that stands before Python functions knows (see `native.front`), by place: those functions; the
# class of kernels, and the attribute where a kernel remembers launchers; the block that is meant where none is passed, and
# what stands for a block where blocks and threads are said; the class of devices, and the attribute that is a device's name;
# the function that launches where compiled code does not know the arguments; the names of arguments; what stands for any extents,
# of which there may be 1, 2, 3, 4.
STATE_FRONT = 168
# Whether exported memory that its consumer deletes is only put aside (see `native.dlpack`), and the last that was put aside, or 0
STATE_RELEASES_LATER, STATE_PUT_ASIDE = 176, 184
# Memory that stacks have given back (see `native.stacks`): how many bytes there are, and the addresses of so many pieces, or 0
STATE_SPARE_BYTES, STATE_SPARE, SPARE_COUNT = 192, 200, 32
STATE_SIZE = STATE_SPARE + 8 * SPARE_COUNT
FRONT_LAUNCH, FRONT_FORALL, FRONT_CONFIGURE, FRONT_KERNEL, FRONT_TABLES = 0, 1, 2, 3, 4
FRONT_BLOCK, FRONT_BRACKETS, FRONT_DEVICE, FRONT_DEVICE_NAME, FRONT_MISSED, FRONT_NAMES, FRONT_ANY = (
    5,
    6,
    7,
    8,
    9,
    10,
    16,
)
# A stack of a thread on the CPU (see `cpu_backend.cpu_stack`): memory, capacity and height in bytes, and its block's crew or 0
STACK_MEMORY, STACK_CAPACITY, STACK_HEIGHT, STACK_CREW, STACK_SIZE = 0, 8, 16, 24, 32

# The largest extents of a grid, and of a block along z: CUDA C++ Programming Guide, "Compute Capabilities"
MAX_GRID_X, MAX_GRID_Y, MAX_GRID_Z, MAX_BLOCK_Z = (1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1, 64

# The CUDA driver as compiled code calls it: functions of libcuda, one primary context and one event per device ordinal, and
# a function (device ordinal -> stream) for the current stream of whatever has none of its own (0 as long as none is set).
DRIVER_CONTEXT_GET, DRIVER_CONTEXT_PUSH, DRIVER_CONTEXT_POP, DRIVER_EVENT_RECORD, DRIVER_STREAM_WAIT = 0, 8, 16, 24, 32
DRIVER_CONTEXTS, DRIVER_EVENTS, DRIVER_CURRENT_STREAM, DRIVER_IS_CAPTURING, DRIVER_SIZE = 40, 48, 56, 64, 72

# Reader table: open addressing on the type's address
ENTRY_TYPE, ENTRY_KIND, ENTRY_FUNCTION, ENTRY_FLAGS = 0, 8, 16, 24
# How a framework's own object tells what DLPack does not: the chain object -> implementation -> key set, the bits of the
# key set that are harmless, where the implementation keeps its autograd state, and where its version counter. And how far into
# the memory that it is a view of a tensor begins: where the implementation keeps that, if not 0, and in bytes or, if 0, elements.
ENTRY_IMPLEMENTATION, ENTRY_KEYS, ENTRY_ALLOWED, ENTRY_AUTOGRAD, ENTRY_VERSION, ENTRY_COUNTER = 32, 40, 48, 56, 64, 72
ENTRY_GUARD, ENTRY_ADAPTER = 80, 88
# The DLPack exchange table's ``current_work_stream``, or 0; what is asked before a kernel reads a tensor with autograd state; and
# what returns that which holds an object's memory, where the object may be given other memory: a Python function, or the exchange
# table's ``managed_tensor_from_py_object_no_sync``.
ENTRY_STREAM, ENTRY_LOST_GRADIENT, ENTRY_KEEPER, ENTRY_EXPORTER = 96, 104, 112, 120
ENTRY_OFFSET, ENTRY_OFFSET_BYTES, ENTRY_SIZE = 128, 136, 144

UNKNOWN, EXCHANGE, NUMPY, BUFFER, RECORD, ADAPTER, CAPSULE, FIELDS = 0, 1, 2, 3, 4, 5, 6, 7
# Of a FIELDS type, ENTRY_FUNCTION points to the offsets of an array object's fields: first and end of a vector of extents,
# first of one of strides in bytes, a NumPy dtype, the object that holds the memory; and in that the address and the ordinal.
FIELD_SHAPE, FIELD_SHAPE_END, FIELD_STRIDES, FIELD_DTYPE = 0, 8, 16, 24
FIELD_MEMORY, FIELD_ADDRESS, FIELD_ORDINAL = 32, 40, 48
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
# The stream of an array in CUDA memory, or NO_STREAM and the table entry of the type whose current stream is to be asked for
READ_STREAM, READ_STREAM_ENTRY = 184, 192
# Of a record, what its memory is taken from, or 0: an object, or another record's capsule
READ_OWNER, READ_SIZE = 200, 208
NO_STREAM = -1
HOLD_NOTHING, HOLD_BUFFER, HOLD_OBJECT = 0, 1, 2

# The word: tag 0..31, ndim 32..39, class 40..42, then one bit each, device type 56..63
WORD_NDIM, WORD_CLASS, WORD_DEVICE = 32, 40, 56
CLASS_ARRAY, CLASS_FLOAT, CLASS_INT, CLASS_BOOL, CLASS_COMPLEX, CLASS_ELEMENT = 1, 2, 3, 4, 5, 6
CLASS_MASK = 7
# Of vectors and matrices, the tag has the element type's number (from ELEMENT on) where DLPack has the lanes, ndim does not
# count the element's own dimensions, and WORD_INNER (2 bits) says how many those are.
WORD_ELEMENT, ELEMENT, WORD_INNER = 16, 1 << 15, 54
ELEMENTS = 3 << WORD_INNER  # what is not zero for vectors, matrices and records
CONTIGUOUS, READ_ONLY, REPEATED, MISALIGNED = 1 << 44, 1 << 45, 1 << 46, 1 << 47
UNSURE, TOO_BIG, STRONG, GUARDED, IMMUTABLE, PINNED = 1 << 48, 1 << 49, 1 << 50, 1 << 51, 1 << 52, 1 << 53
# Of a tensor with autograd state, which may be just past.
TRACKED = 1 << 43

# Launch plan: one per launcher. From PLAN_DIMS on it is what a variant's range function receives as `geometry`.
PLAN_VARIANTS, PLAN_TOTAL, PLAN_DIMS, PLAN_BLOCK, PLAN_GRID, PLAN_FLAGS = 0, 8, 16, 48, 72, 96
# The same launch on CUDA: hardware grid and block, dynamic shared memory in bytes, and the stream if one was asked for
PLAN_CUDA_GRID, PLAN_CUDA_BLOCK, PLAN_SHARED, PLAN_STREAM = 104, 128, 152, 160
# Where the addresses of the kernel's spreads lie, with a 0 behind the last
PLAN_SPREADS, PLAN_SIZE = 168, 176
PLAN_GUARDS_PASSED, PLAN_HAS_STREAM, PLAN_FOLLOWED = 1, 2, 4
# Of the kernel: its first index runs along x on CUDA, the hardware's block is the same for all extents, no thread has an index.
PLAN_FIRST, PLAN_SHAPED, PLAN_COUNTED = 8, 16, 32
MAX_DIMS, MAX_VARIANTS = 4, 64

# Spread: how tuples among arguments are built. How many arguments, how many parts of them that are no tuples, the specialisations
# of the kernel that takes these, and its launcher's ``self``; then for each argument and each item of a tuple, in order, the
# address of its class and how many items it has, or 0 for what is no tuple.
SPREAD_COUNT, SPREAD_LEAVES, SPREAD_VARIANTS, SPREAD_ANSWERS, SPREAD_NODES = 0, 8, 16, 24, 32
NODE_TYPE, NODE_COUNT, NODE_SIZE = 0, 8, 16
NODE_OF_NONE = -1  # in place of the count
MAX_SPREADS, MAX_DEPTH, MAX_LEAVES = 8, 8, 64
# How many arguments a launch takes at most, each of which has its reading on the stack
MAX_ARGUMENTS = 256

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
# SPEC_GRAIN: how many threads a worker takes at least, of which it takes whole multiples; from that bit on, how many pieces of a
# launch each worker takes about.
GRAIN_PIECES = 32
SPEC_BRIEF_BELOW = 56
# For CUDA: the driver function that launches (0 for the CPU), the kernel's handle, the device ordinal, and where in the block
# of arguments each of the kernel's parameters lies, followed by that many dimensions of the plan; and how many ids a thread of
# a large grid takes at once along x; or if it is negative, along y in the bits TOGETHER_ROWS, and above TOGETHER_COLUMNS how many
# more than one along x.
TOGETHER_ROWS, TOGETHER_COLUMNS = 255, 8
SPEC_LAUNCH, SPEC_HANDLE, SPEC_DEVICE, SPEC_PLACES, SPEC_PLACE_COUNT, SPEC_DIM_COUNT = 64, 72, 80, 88, 96, 104
SPEC_TOGETHER = 112
# How long arrays must be for a launch: so many rows, each an operation and four numbers.
SPEC_REACHES, SPEC_REACH_COUNT, SPEC_PARAMETERS = 120, 128, 136
REACH_OPERATION, REACH_A, REACH_B, REACH_C, REACH_D, REACH_SIZE = 0, 8, 16, 24, 32, 40
# An axis is long enough if it has what a row gives, and so much more: where its extent lies in the block of arguments, nothing,
# row (or -1), more. A kernel's own memory has -1 for a place, and then the extent.
REACH_LEAST = 0
# Goes on at another row unless what a row gives is positive: row, where.
REACH_IF = 1
# The others give a number: a constant; what a variant's range function finds in its geometry, by its place there; an integer of
# the block of arguments, by its place and how many of 64 bits it does not have; and what is made of two rows.
REACH_NUMBER, REACH_ALONG, REACH_GIVEN = 2, 3, 4
REACH_PLUS, REACH_TIMES, REACH_SMALLER, REACH_LARGER, REACH_QUOTIENT = 5, 6, 7, 8, 9
# From so many blocks on a thread takes several ids: each multiprocessor of a large device has a block or more then as well, of
# threads that take eight. On an H200 an addition of 512K float32 takes 2.7 us one by one and 2.1 by fours, one of 1M 4.1 and 2.7,
# and a stencil of 1024 x 1024 12.3 and 4.9; an addition of 256K gains nothing.
LARGE_GRID = 2048
# Rank and item size of an array parameter (an element's size for one by value, whose tag is ELEMENT_TAG); and, where the
# argument shall have an element's dimensions as its last ones, the address of INNER_RANK, INNER_ITEMSIZE and the extents.
# PARAM_ASKS: the bit of a word with which the framework is asked first, which is GUARDED where the kernel writes, TRACKED
# where it only reads and has not warned yet, and 0 afterwards.
PARAM_MASK, PARAM_WANT, PARAM_OFFSET, PARAM_TAG, PARAM_WRITTEN, PARAM_ASKS = 0, 8, 16, 24, 32, 40
PARAM_NDIM, PARAM_ITEMSIZE, PARAM_INNER, PARAM_SIZE = 48, 56, 64, 72
ELEMENT_TAG, INNER_RANK, INNER_ITEMSIZE, INNER_EXTENTS = -1, 0, 8, 16
# Of a NumPy array: where it had its elements, how many bytes, and a copy of them; 0 bytes for what is no array.
GLOBAL_CONTAINER, GLOBAL_NAME, GLOBAL_VALUE, GLOBAL_BYTES = 0, 8, 16, 24
GLOBAL_DATA, GLOBAL_COPY, GLOBAL_SIZE = 32, 40, 48

# A Numba array as a value: meminfo, parent, item count, item size, data, shape, strides in bytes
VALUE_COUNT, VALUE_ITEMSIZE, VALUE_DATA, VALUE_SHAPE = 16, 24, 32, 40

# Work shared out to threads
WORK_RUN, WORK_BLOCK, WORK_GEOMETRY, WORK_TOTAL, WORK_GRAIN, WORK_FAILED, WORK_SIZE = 0, 8, 16, 24, 32, 40, 48

# What threads are told that share a checksum
SUM_PLACE, SUM_SIZE, SUM_CHUNKS, SUM_GRAIN, SUM_TOTALS, SUM_WORK = 0, 8, 16, 24, 32, 40

# A crew: the threads of a block that one worker of the CPU runs in turn. How many they are; where their frames lie, and how
# many bytes each has; dynamic shared memory; whether one of them has ended with an exception; of those that were last let
# through a barrier, how many gave a number that is not 0, and how many they were; the first piece of static shared memory; the
# first of what it has lent to threads. The threads' records follow.
CREW_COUNT, CREW_FRAMES, CREW_FRAME_SIZE, CREW_DYNAMIC, CREW_DYNAMIC_SIZE, CREW_FAILED = 0, 8, 16, 24, 32, 40
CREW_TRUE, CREW_ARRIVED, CREW_SHARED, CREW_LOANS, CREW_SIZE = 48, 56, 64, 72, 80
# A piece of static shared memory: the next one, what it is for, and the memory itself
PIECE_NEXT, PIECE_KEY, PIECE_MEMORY = 0, 8, 16
# What a crew has lent to a thread: the one before it and the one after it, how many bytes, and the memory itself
LOAN_BEFORE, LOAN_AFTER, LOAN_SIZE, LOAN_MEMORY = 0, 8, 16, 24
# A thread of a crew: its coroutine, what it waits for, with which lanes, and what it tells them; what it told when they were
# last let through together, and who they were.
THREAD_HANDLE, THREAD_WAITS, THREAD_MASK, THREAD_GIVEN, THREAD_TOLD, THREAD_GROUP, THREAD_SIZE = (
    0,
    8,
    16,
    24,
    32,
    40,
    48,
)
# Who waits at a place waits for those lanes that come there, whichever these are; the mask is the place's number. Who waits for
# a turn only lets others run first.
WAITS_FOR_NOTHING, WAITS_FOR_BLOCK, WAITS_FOR_LANES, WAITS_AT_PLACE, WAITS_FOR_GRID, IS_THROUGH = 0, 1, 2, 3, 4, 5
WAITS_FOR_TURN = 6
WARP_SIZE = 32
# How a crew ended
CREW_DONE, CREW_RAISED, CREW_STUCK, CREW_AT_GRID = 0, 1, 2, 3

# Limits of what is read: no array has more dimensions, and none lies in the first pages of the address space
READ_MAX_RANK, LOWEST_ADDRESS = 64, 1 << 16

# How a native launch ended; from DRIVER_FAILED on, the rest is the CUresult
LAUNCHED, MISSED, RAISED, DRIVER_FAILED = 0, 1, 2, 1 << 32
