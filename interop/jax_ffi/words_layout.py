"""Byte offsets of what numbridge passes to its own handler: the words of a call site, the native table, work on the stack.

Nothing but numbers. All fields are 64 bits wide. The *words* are the attribute of one custom call: which kernel, how many
threads, where each parameter comes from. They hold no address, so an exported module means the same in another process.
"""

# The words of a call site. The first one says how to read the rest.
WORDS_MAGIC = 0x6E62_7264_6765_0005
WORD_MAGIC, WORD_KEY, WORD_KEY_HIGH, WORD_LEVELS, WORD_COUNT, WORD_OPERANDS, WORD_RESULTS = 0, 8, 16, 24, 32, 40, 48
WORD_RANK, WORD_DIMS, WORD_BLOCK, WORD_GRID, WORD_WEAK = 56, 64, 96, 120, 144
# The hardware's grid and block on CUDA; a grid of 0 has to be worked out. Then how many words there are in all: behind the
# parameters are the values of static vectors and matrices. Then a bit for each parameter that is an integer, of which only the
# call tells what it is: that of its number's remainder by NUMBER_BITS; and BLOCKS_BIT, for no trace knows blocks.
WORD_CUDA_GRID, WORD_CUDA_BLOCK, WORD_LENGTH, WORD_UNKNOWN, WORD_PARAMETERS = 152, 176, 200, 208, 216
NUMBER_BITS, BLOCKS_BIT = 62, 1 << 62
# A launch dimension that is not known when the program is traced is the extent of an operand: -1 - (operand << 8 | axis). A grid
# of 0 then says that it has to be worked out too.
REFERENCE_SHIFT, REFERENCE_MASK = 8, 0xFF

# One parameter: where it comes from, its scalar type (XLA's code), rank and bytes per element, the operand that a result
# must share its memory with (-1: none), whether the result is to be zero first, and the value of a static scalar, or for a static
# vector or matrix how many bytes from the first word on that is. The dimensions
# of vectors and matrices, which the buffer has behind those of the array, are counted above the rank.
SLOT_KIND, SLOT_INDEX, SLOT_TYPE, SLOT_NDIM, SLOT_ITEMSIZE, SLOT_ALIAS, SLOT_FILL, SLOT_VALUE, SLOT_SIZE = (
    0,
    8,
    16,
    24,
    32,
    40,
    48,
    56,
    72,
)
INNER_SHIFT, RANK_MASK = 8, 0xFF
OPERAND, RESULT, STATIC, TRACED, PACKED = 0, 1, 2, 3, 4
# Bytes of a scalar in an operand into which an eager call packs all of its own: those of the widest, complex128
SCALAR_ROOM = 16

# The native state of this room, its table of pointers (open addressing on the key), and one kernel's code in it
ROOM_TABLE, ROOM_REPORT, ROOM_MAJOR, ROOM_MINOR = 0, 8, 16, 24
# On CUDA: its own table, and the driver's functions that copy and fill memory
ROOM_CUDA_TABLE, ROOM_COPY, ROOM_FILL = 32, 40, 48
# Plans' graphs, and the driver's functions that make and launch them
ROOM_GRAPHS, ROOM_IS_CAPTURING, ROOM_STREAM_CREATE, ROOM_STREAM_DESTROY, ROOM_CAPTURE_BEGIN, ROOM_CAPTURE_END = (
    56,
    64,
    72,
    80,
    88,
    96,
)
ROOM_INSTANTIATE, ROOM_EXEC_UPDATE, ROOM_EXEC_DESTROY, ROOM_GRAPH_DESTROY, ROOM_GRAPH_LAUNCH, ROOM_KERNEL_LOAD = (
    104,
    112,
    120,
    128,
    136,
    144,
)
ROOM_SIZE = 152
INDEX_MASK, INDEX_SLOTS = 0, 8
CODE_KEY, CODE_KEY_HIGH, CODE_RUN, CODE_BLOCK_SIZE, CODE_SERIAL_BELOW, CODE_GRAIN = 0, 8, 16, 24, 32, 40
# Rows that ask whether arrays are long enough, as the launcher has them: where they lie, how many, and the bits of what decides
# that. Nobody asks where the call site knows all of it: see WORD_UNKNOWN.
CODE_REACHES, CODE_REACH_COUNT, CODE_DECIDES, CODE_SIZE = 48, 56, 64, 72
# One kernel's code on CUDA: the driver function that launches it, its handle, the size of the block of arguments, where in that
# each of the parameters lies, how many dimensions follow, how many indices it asks for, whether the first is along x, how
# many axes of a batch one launch runs (else it is one for each element), of how many arrays, and how many ids a thread takes
CODE_LAUNCH, CODE_HANDLE, CODE_CUDA_BLOCK, CODE_PLACES, CODE_PLACE_COUNT, CODE_DIM_COUNT = 16, 24, 32, 40, 48, 56
CODE_RANK, CODE_FIRST, CODE_LEVELS, CODE_ARRAYS, CODE_TOGETHER, CODE_CUDA_SIZE = 64, 72, 80, 88, 96, 104

# The words of a plan: several calls, one after the other, that XLA sees as one. A step has the words of its call, and says where
# each of that call's operands and results is among the plan's: an operand k as k, a result k as -1 - k.
PLAN_MAGIC = 0x6E62_706C_616E_0001
PLAN_KEY, PLAN_KEY_HIGH, PLAN_LENGTH, PLAN_OPERANDS, PLAN_RESULTS, PLAN_CAPACITY, PLAN_COUNT, PLAN_STEPS = (
    8,
    16,
    24,
    32,
    40,
    48,
    56,
    64,
)
STEP_SIZE, STEP_ARGS, STEP_RETS, STEP_NAME, STEP_NAME_SIZE, STEP_WORDS, STEP_WORD_COUNT, STEP_PLACES = (
    0,
    8,
    16,
    24,
    32,
    40,
    48,
    56,
)
# The executable graphs of one plan: a lock, how many to keep for each device (-1: all), how many there are, and a list of them,
# the one that was used last in front. A graph is good for one device, and for the addresses and extents of all the plan's
# buffers: for each its address, its rank and its extents. GRAPH_COUNT counts these words.
GRAPHS_LOCK, GRAPHS_CAPACITY, GRAPHS_COUNT, GRAPHS_HEAD, GRAPHS_SIZE = 16, 24, 32, 40, 48
GRAPH_NEXT, GRAPH_ORDINAL, GRAPH_EXEC, GRAPH_COUNT, GRAPH_BUFFERS = 0, 8, 16, 24, 32

# A call in progress, as the threads that share it see it
CALL_RUN, CALL_BLOCK, CALL_BLOCK_SIZE, CALL_GEOMETRY, CALL_PER, CALL_TOTAL, CALL_GRAIN, CALL_FAILED = (
    0,
    8,
    16,
    24,
    32,
    40,
    48,
    56,
)
CALL_LEVELS, CALL_EXTENTS, CALL_COUNT, CALL_ROWS, CALL_ROW_SIZE, CALL_SIZE = 64, 72, 80, 88, 96, 112
# What a batch element changes: where in the block, from which address on, how many bytes to copy (0: it is a pointer), and
# one stride in bytes for each level.
ROW_TARGET, ROW_BASE, ROW_BYTES, ROW_STRIDES = 0, 8, 16, 24

# How a call ended; a parameter's number may stand above the lowest byte, or that of an element of the batch for which an array is
# too short.
DONE, UNKNOWN_KERNEL, RAISED, WRONG_WORDS, WRONG_COUNT, WRONG_TYPE, WRONG_RANK, WRONG_DIMS = 0, 1, 2, 3, 4, 5, 6, 7
UNKNOWN_ON_CUDA, DRIVER_REFUSED, UNKNOWN_PLAN, TOO_SHORT = 8, 9, 10, 11
