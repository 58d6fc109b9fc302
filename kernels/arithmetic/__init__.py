"""What operations on numbers give, where Numba's or numba.cuda's own code gives something else, or is slow."""
