"""How the stacks of a launch on CUDA lie in memory: an entry takes eight bytes, and those of 32 threads lie side by side."""

ENTRY = 8  # bytes
GROUP = 32  # threads
