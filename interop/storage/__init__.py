"""The memory of arrays: adopted, allocated, viewed and lent, on the CPU and in CUDA's pools; and in which order streams use it.

An array is no more than its record here, before it has any methods: `numbridge.arrays` builds on this, and nothing here imports
it but for types. Names no framework but CuPy, whose pools are those of CUDA memory; others are asked through
`numbridge.bridges.bridge`.
"""
