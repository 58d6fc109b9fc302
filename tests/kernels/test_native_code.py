"""Native functions that are compiled without Numba's analysis do what the same Python does."""

from __future__ import annotations

import ctypes
import importlib
import itertools

import numpy as np
import pytest
from numba import njit, types
from numba.core import sigutils

from numbridge.kernels.machine import _MODULES, compile_functions, machine
from numbridge.kernels.native.memory import inlined, load_i64, native, store_i64
from numbridge.kernels.native_code import native_call
from numbridge.kernels.object_cache import load

WORD = types.int64


@inlined
def sign(x):
    """Return -1, 0 or 1, from the middle of a function."""
    if x < 0:
        return -1
    if x == 0:
        return 0
    return 1


@native
def loops(n, limit):
    """Leave loops, and go on with them, from within others."""
    total = 0
    for k in range(n, -n, -3):
        if k % 5 == 0:
            continue
        j = k
        while True:
            j -= 2
            if j < limit:
                break
            if j % 7 == 0:
                total += 100
                continue
            if total > 5000:
                return -total
            total += j
        total += sign(k)
    return total


@native
def choices(a, b):
    """Choose by conditions of all kinds."""
    first, second = b, a
    first, second = second, first + 1
    small = large = 0
    small, large = min(a, b, 4), max(a, b)
    between = small <= a < large
    divided = a // b if b != 0 else 77
    both = (b != 0 and a % b == 0) or not between
    flags = between & both | (a == b)
    if not (between or both):
        return first * 1000 + second
    return divided + (10 if flags else 20) + small - large


@native
def reassigned(a, b):
    """Change parameters, alone and together."""
    while a > b:
        a, b = a - 3, b + 1
    b += a
    return a * 1000 + b


PURE = [(loops, 2), (choices, 2), (reassigned, 2)]


def compiled(function, count):
    name = f"test_{function.__name__}"
    made = compile_functions({name: (function, f"int64({', '.join(['int64'] * count)})")})
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)(load(made)[name])


@pytest.mark.parametrize(("function", "count"), PURE, ids=lambda part: getattr(part, "__name__", None))
def test_compiled_functions_do_what_python_does(function, count):
    assert native_call(function, [WORD] * count) is not function
    native_code = compiled(function, count)
    by_numba = njit(error_model="numpy")(function.py_func)
    for values in itertools.product((-9, -2, -1, 0, 1, 2, 3, 7, 40), repeat=count):
        assert native_code(*values) == by_numba(*values), values


@native
def seen(memory, at, limit):
    """Look at memory only where that is allowed."""
    if at < limit and load_i64(memory, 8 * at) == 7:
        store_i64(memory, 8 * at, 8)
    return at >= limit or load_i64(memory, 8 * at) == 8


def test_what_comes_after_a_decision_is_not_evaluated():
    look = compiled(seen, 3)
    memory = np.array([7, 1], np.int64)
    assert [look(memory.ctypes.data, at, 2) for at in (0, 1, 2)] == [1, 0, 1]
    assert memory.tolist() == [8, 1]
    # Address 0 is nobody's.
    assert look(0, 5, 5) == 1


@native
def sometimes_nothing(x):
    """Return nothing, sometimes."""
    if x > 0:
        return x
    return None


@native
def listed(x):
    """Do what only Numba knows."""
    return len([x, x])


@native
def widened(n):
    """Give a name an integer and then a float: Numba may hold them apart, so that the integer keeps all its bits."""
    value = 1
    for _ in range(n):
        value = value * 1.5
    return 3 if value > 5 else 2 if value == 1 else 1


@pytest.mark.parametrize("function", [sometimes_nothing, listed, widened])
def test_what_is_not_known_is_left_to_numba(function):
    assert native_call(function, [WORD]) is function


def test_nothing_of_the_machine_is_left_to_numba():
    machine()
    for name in _MODULES:
        module = importlib.import_module(f"numbridge.kernels.native.{name}")
        for function, kind in module.EXPORTS.values():
            given, (kinds, _) = getattr(module, function), sigutils.normalize_signature(kind)
            assert native_call(given, kinds) is not given, function
