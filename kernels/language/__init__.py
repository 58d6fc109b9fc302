"""What a kernel says: its source, its names, what may be written, and the text for the back ends. Imports no Numba."""
