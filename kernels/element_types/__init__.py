"""Vectors, matrices, quaternions and records: as plain values, as arguments, and as types of Numba's on the CPU and on CUDA."""
