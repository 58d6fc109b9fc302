"""The compiled machine room: functions that Numba compiles once per machine and that every crossing runs through.

The modules here other than the layouts import Numba; nothing outside imports them except `numbridge.kernels.machine`, and
only when its cache of object code misses.
"""
