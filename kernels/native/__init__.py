"""The compiled machine room: functions that Numba compiles once per machine and that every crossing runs through.

The modules here other than the layouts import Numba. Only what is about to compile imports them: `numbridge.kernels.machine` when
the cache of object code misses, and whoever makes code that runs beside the functions here.
"""
