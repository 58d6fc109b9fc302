"""Byte offsets of what numbridge passes to its own handler: the words of a call site, the native table, work on the stack.

Nothing but numbers. All fields are 64 bits wide. The *words* are the attribute of one custom call: which kernel, how many
threads, where each parameter comes from. They hold no address, so an exported module means the same in another process.
"""

# The words of a call site. The first one says how to read the rest.
WORDS_MAGIC = 0x6E62_7264_6765_0001
WORD_MAGIC, WORD_KEY, WORD_KEY_HIGH, WORD_LEVELS, WORD_COUNT, WORD_OPERANDS, WORD_RESULTS = 0, 8, 16, 24, 32, 40, 48
WORD_RANK, WORD_DIMS, WORD_BLOCK, WORD_GRID, WORD_WEAK, WORD_PARAMETERS = 56, 64, 96, 120, 144, 152
# A launch dimension that is not known when the program is traced is the extent of an operand: -1 - (operand << 8 | axis). A grid
# of 0 then says that it has to be worked out too.
REFERENCE_SHIFT, REFERENCE_MASK = 8, 0xFF

# One parameter: where it comes from, its element type (XLA's code), rank and bytes per element, the operand that a result
# must share its memory with (-1: none), whether the result is to be zero first, and the value of a static scalar.
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
OPERAND, RESULT, STATIC, TRACED, PACKED = 0, 1, 2, 3, 4

# The native state of this room, its table of pointers (open addressing on the key), and one kernel's code in it
ROOM_TABLE, ROOM_REPORT, ROOM_MAJOR, ROOM_MINOR, ROOM_SIZE = 0, 8, 16, 24, 32
INDEX_MASK, INDEX_SLOTS = 0, 8
CODE_KEY, CODE_KEY_HIGH, CODE_RUN, CODE_BLOCK_SIZE, CODE_SERIAL_BELOW, CODE_GRAIN, CODE_SIZE = 0, 8, 16, 24, 32, 40, 48

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

# How a call ended; a parameter's number may stand above the lowest byte.
DONE, UNKNOWN_KERNEL, RAISED, WRONG_WORDS, WRONG_COUNT, WRONG_TYPE, WRONG_RANK, WRONG_DIMS = 0, 1, 2, 3, 4, 5, 6, 7
