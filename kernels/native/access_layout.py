"""Where the check for data races keeps what it knows: words of its state and of the memory that it watches, bytes of its table.

Nothing but numbers, shared by the compiled functions (`accesses`), by what calls them, and by what tells of a race.
"""

# The state of the process's only check: one launch is checked at a time. In words, as is all that is watched and found.
CHECK_LOCK, CHECK_PROGRAM, CHECK_RANK, CHECK_DIMS = 0, 1, 2, 3
CHECK_THREAD, CHECK_EPOCH, CHECK_BLOCK, CHECK_BLOCK_SIZE = 8, 9, 10, 11
# What has been done to elements, and the generations that still count: of arrays, and of shared memory
CHECK_TABLE, CHECK_CAPACITY, CHECK_COUNT, CHECK_GENERATION, CHECK_SHARED_GENERATION = 12, 13, 14, 15, 16
CHECK_ROWS, CHECK_ROW_COUNT, CHECK_ROW_ROOM = 17, 18, 19
# What threads of the blocks that run have waited for, of how many threads; and how often a thread has waited for all blocks
CHECK_CLOCKS, CHECK_CLOCK_COUNT, CHECK_GRIDS = 20, 21, 22
# Whether each byte is noted by itself, since numbers of different sizes overlap
CHECK_BYTES = 23

# What was found: in which program, or 0; two threads, what each did, and on which line of the generated text; and whether these
# are of a statement that changes an element as it finds it
RACE_PROGRAM, RACE_LACKING = 24, 25
RACE_FIRST, RACE_FIRST_DID, RACE_FIRST_LINE, RACE_SECOND, RACE_SECOND_DID, RACE_SECOND_LINE = 26, 27, 28, 29, 30, 31
RACE_IS_UPDATE, RACE_RANK, RACE_DIMS, RACE_BLOCK_SIZE = 32, 33, 34, 38
# Where: how many bytes behind the first that is watched; which other parameter lies there, too; and the row of what is watched
RACE_OFFSET, RACE_ALSO, RACE_ROW = 39, 40, 41

# A row of memory that is watched: from where to where, which parameter it is, how many bytes each of its numbers has (1 for
# records, 0 for those whose fields overlap), and how its elements lie
ROW_LOW, ROW_HIGH, ROW_PARAMETER, ROW_NUMBER, ROW_NDIM, ROW_SHAPE, ROW_MOST_DIMS = 0, 1, 2, 3, 4, 5, 8
ROW_STRIDES = ROW_SHAPE + ROW_MOST_DIMS
ROW_WORDS = ROW_STRIDES + ROW_MOST_DIMS
# What stands for a parameter
IN_SHARED_MEMORY = -1

# What was found, once its launch has ended and until it is told: of as many launches, since other threads launch meanwhile
CHECK_TOLD = RACE_ROW + ROW_WORDS
RACE_WORDS, MOST_TOLD = CHECK_TOLD - RACE_PROGRAM, 16
CHECK_WORDS = CHECK_TOLD + MOST_TOLD * RACE_WORDS

# What a thread does to an element
READS, CHANGES, STORES_THE_SAME, CHANGES_ATOMICALLY = 0, 1, 2, 3

# What is known of an element, in bytes: its address, its generation, and slots of threads, two for each but for the last. A slot
# is one more than a thread's number, or 0; and the thread's epoch with a line. An epoch says how often its thread has waited for
# its block, and below that for lanes since then.
SLOT_SIZE = 16
ELEMENT_KEY, ELEMENT_GENERATION, ELEMENT_READ = 0, 8, 16
ELEMENT_SAME = ELEMENT_READ + 2 * SLOT_SIZE
ELEMENT_ATOMIC = ELEMENT_SAME + 2 * SLOT_SIZE
ELEMENT_CHANGE = ELEMENT_ATOMIC + 2 * SLOT_SIZE
ELEMENT_SIZE = ELEMENT_CHANGE + SLOT_SIZE
LINE_BITS, LANES_BITS = 16, 40

# What a thread has waited for, in words: of each lane of its warp how many waits for lanes are known to it to be over, its own
# among them; and how often it has waited for its block and for all blocks
CLOCK_BLOCK, CLOCK_GRID, CLOCK_WORDS = 32, 33, 34
