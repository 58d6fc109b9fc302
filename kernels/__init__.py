"""The compiled core: kernels, readers and launches. It knows protocols and dtypes, and names no framework."""
