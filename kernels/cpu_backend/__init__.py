"""The CPU back end: the loop around a kernel's body, threads and SIMD lanes, blocks, and what a body calls there."""
