"""Compiled: a line that a kernel prints is handed to Python, under the GIL, on whatever thread the kernel runs."""

from __future__ import annotations

from numba import types

from numbridge.kernels.native.memory import external, load_i64, native, stack, store_i64, symbol

intp = types.int64
printer = symbol("numbridge_print")
initialized = external("Py_IsInitialized", types.int32)
hold_gil = external("PyGILState_Ensure", types.int32)
drop_gil = external("PyGILState_Release", types.void, types.int32)
from_string = external("PyUnicode_FromString", intp, intp)
from_int = external("PyLong_FromLongLong", intp, intp)
call_with = external("PyObject_Vectorcall", intp, intp, intp, intp, intp)
report = external("PyErr_WriteUnraisable", types.void, intp)
decrease = external("Py_DecRef", types.void, intp)


@native
def show(template, numbers):
    """Let Python print a line of numbers, which lie behind their count; see `printing.print_line`."""
    if initialized() == 0:
        return
    gil, arguments = hold_gil(), stack(24)
    store_i64(arguments, 0, from_string(template))
    store_i64(arguments, 8, from_int(numbers + 8))
    store_i64(arguments, 16, from_int(load_i64(numbers, 0)))
    answer = call_with(printer(), arguments, 3, 0)
    if answer == 0:
        report(printer())
    else:
        decrease(answer)
    for k in range(3):
        decrease(load_i64(arguments, 8 * k))
    drop_gil(gil)
