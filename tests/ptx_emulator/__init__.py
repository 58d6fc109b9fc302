"""Runs PTX on the CPU, so that what was compiled for CUDA can be tested where there is no GPU.

`program` reads PTX, `instructions` and `functions` translate it to LLVM IR, `execution` runs a grid of it.
"""
