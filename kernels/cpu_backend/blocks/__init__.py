"""Blocks on the CPU whose threads work together: as coroutines, or taken apart at their barriers into loops over the threads."""
