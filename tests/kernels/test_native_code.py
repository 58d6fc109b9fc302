"""Native functions that are compiled without Numba's analysis do what the same Python does."""

from __future__ import annotations

import ctypes
import importlib
import itertools

import numpy as np
import pytest
from numba import njit

from numbridge.kernels.compilation.native_code import typed_exports
from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.machine import EXCHANGE_MODULES, MODULES, check_objects, compile_functions
from numbridge.kernels.native import object_layout
from numbridge.kernels.native.memory import function_symbol, inlined, load_i64, native, store_i64
from numbridge.kernels.native.reading import item
from numbridge.kernels.object_cache import load


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


def exported(function, count):
    return {f"test_{function.__name__}": (function, f"int64({', '.join(['int64'] * count)})")}


def compiled(function, count):
    (address,) = load(compile_functions(exported(function, count))).values()
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)(address)


@pytest.mark.parametrize(("function", "count"), PURE, ids=lambda part: getattr(part, "__name__", None))
def test_compiled_functions_do_what_python_does(function, count):
    assert typed_exports(exported(function, count)) is not None
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
    assert typed_exports(exported(function, 1)) is None


@native
def halved(x):
    """Return a float."""
    return x / 2


def test_functions_compiled_together_know_each_other_and_return_what_they_are_declared_to():
    address_of = function_symbol("test_halved")

    @native
    def asked():
        """Return where the other function is."""
        return address_of()

    exports = {"test_asked": (asked, "int64()"), "test_halved": (halved, "int32(int64)")}
    made = compile_functions(exports)
    assert len(made.objects) == 1
    assert not made.externals
    addresses = load(made)
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["test_asked"])() == addresses["test_halved"]
    assert ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(addresses["test_halved"])(-9) == -4


def test_one_function_that_only_numba_knows_leaves_all_to_it():
    made = compile_functions(exported(reassigned, 2) | exported(widened, 1))
    assert len(made.objects) == 2
    addresses = load(made)
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(addresses["test_widened"])(9) == 3
    found = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(addresses["test_reassigned"])
    assert found(40, 3) == reassigned.py_func(40, 3)


KERNELS = [f"numbridge.kernels.native.{name}" for name in (*MODULES, *EXCHANGE_MODULES)]
HANDLERS = [f"numbridge.jax_ffi.{name}" for name in ("compiled", "cuda_compiled", "compiled_plan", "cuda_graphs")]


@pytest.mark.parametrize("name", [*KERNELS, *HANDLERS])
def test_nothing_of_numbridge_is_left_to_numba(name):
    module = importlib.import_module(name)
    exports = {symbol: (getattr(module, function), kind) for symbol, (function, kind) in module.EXPORTS.items()}
    assert typed_exports(exports) is not None


def test_items_lie_in_a_tuple_where_compiled_code_looks_for_them():
    @njit
    def at(items, k):
        return item(items, k)

    pair = (object(), "b")
    assert [at(id(pair), k) for k in range(2)] == [id(part) for part in pair]


def test_a_python_whose_objects_begin_otherwise_is_refused(monkeypatch):
    check_objects()
    monkeypatch.setattr(object_layout, "OBJECT_SIZE", 32)  # as in the free-threaded build
    with pytest.raises(NumbridgeError, match=r"another build, such as the free-threaded.*use the ordinary build"):
        check_objects()
