"""Streams, events and graphs of CUDA, which are CuPy's: which is current, what waits for what, and launches that are replayed.

Knows no arrays. In which order streams use the memory of one is said in `numbridge.storage`.
"""
