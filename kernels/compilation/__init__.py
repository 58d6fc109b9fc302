"""From text to machine code: with Numba or past it, on the CPU and on CUDA, and what is said where that fails."""
