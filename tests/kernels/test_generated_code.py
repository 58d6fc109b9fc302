"""Generated functions that are compiled without Numba's analysis do what Numba's own compilation of them does."""

from __future__ import annotations

import ast
import math

import numpy as np
import pytest
from numba import cuda, njit, types
from numba.core.typeinfer import TypeInferer

import numbridge as nb
from adjoint_cases import long_one, prefix_products
from numbridge.kernels.compilation.generated_code import typed
from numbridge.kernels.cpu_backend import cpu, cpu_atomics, cpu_intrinsics
from numbridge.kernels.geometry import geometry_of
from numbridge.kernels.launch import launch

NAMES = {
    "math": math,
    "_nb_float32": np.float32,
    "_nb_float64": np.float64,
    "_nb_local_array": cpu_intrinsics.local_array,
    "_nb_add": cpu_atomics.atomic_add,
    "table": np.array([1.5, 2.5, 3.5]),
}
FLOATS, INTEGERS = types.float64[::1], types.int64[:, ::1]

CONSTRUCTS = """
def made(x, n, out):
    kept = _nb_local_array(4, _nb_float64)
    square = _nb_local_array((2, 3), _nb_float32)
    kept[...] = 0.5
    square[1, 2] = 7
    total = _nb_float64(0.0)
    at = 0
    for k in range(n):
        value = x[k] * 2.0 - -3.0
        if value > 1.0:
            total += value
            side = value
        else:
            total -= math.sin(value)
            side = -value
        total += side
        kept[k & 3] += total
    for k in range(n - 1, -1, -2):
        total = total * 0.5 + x[k] ** 2 + x[-1 - k]
    while True:
        at += 1
        if at > n: break
        total += 0.25 if at % 2 == 0 else 1
        if total > 40.0: break
    n -= 1
    while n > 0 and at > 0:
        n = n >> 1
        at -= 1
    _nb_add(out, 0, total)
    _nb_add(out, 1, kept[-1] + square[1, 2] + table[1])
    out[2] = max(total, 1.0, kept[0]) + min(x[0], 3)
    out[3] += x.shape[0] + (not at) + (~at) + float(total)
    return (total, at,)
"""
PAIRS = """
def made(x):
    a, b = x[0], x[1]
    return (a, b,)
"""
REFUSED = ["raise ValueError", "v = 1\n    v = 2.0", "for k in range(0, n, n): pass", "v = [n]", "v = unheard_of(n)"]


def function(text, kinds, names):
    """Return a function as Numba compiles it, and with its body built from what is typed here."""
    (tree,) = ast.parse(text).body
    found = typed(tree, kinds, names, fastmath=False)
    assert found is not None
    scope = {**names}
    exec(text, scope)
    call, arguments = found.call, ", ".join(argument.arg for argument in tree.args.args)
    exec(f"def outer({arguments}): return call({arguments})", around := {"call": call})
    settings = {"_nrt": False, "error_model": "numpy"}
    return njit(**settings)(scope["made"]), njit(**settings)(around["outer"])


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_constructs(count):
    by_numba, by_us = function(CONSTRUCTS, [FLOATS, types.int64, FLOATS], NAMES)
    x = np.random.default_rng(count).normal(size=count) * 4
    expected, got = np.zeros(4), np.zeros(4)
    assert by_numba(x, count, expected) == by_us(x, count, got)
    assert expected.any() and np.array_equal(expected, got)


AGAIN = """def made(x):
    total = 0.0
    if x > 0.0:
        value = x * 2.0
    if x > 0.0:
        total += value
    return (total,)
"""


@pytest.mark.parametrize("x", [1.5, -1.5])
def test_what_one_branch_computes_another_may_add(x):
    by_numba, by_us = function(AGAIN, [types.float64], NAMES)
    assert by_numba(x) == by_us(x) == (max(2 * x, 0.0),)


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_left_to_numba(line):
    (tree,) = ast.parse(f"def made(n):\n    {line}").body
    assert typed(tree, [types.int64], NAMES, fastmath=False) is None
    (pairs,) = ast.parse(PAIRS).body
    assert typed(pairs, [FLOATS], NAMES, fastmath=False) is None


def test_lines_of_float64_are_known():
    (tree,) = ast.parse("def made(x):\n    y = x * 2.0\n    return (y,)").body
    assert typed(tree, [types.float32], NAMES, fastmath=False).wide == {2}


@nb.kernel
def of_many(a, b, c, d, e, f, g, h, j, k, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc, dd, ee, ff, gg, hh):
    i = nb.tid()
    if a[i] < 0.0:
        raise ValueError("a")
    b[i] = a[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i] + j[i] + k[i] + m[i] + n[i] + o[i] + p[i] + q[i] + r[i] + s[i]
    b[i] += (
        t[i] + u[i] + v[i] + w[i] + x[i] + y[i] + z[i] + aa[i] + bb[i] + cc[i] + dd[i] + ee[i] + ff[i] + gg[i] + hh[i]
    )


def test_more_arguments_than_numba_calls_with_where_it_catches():
    arrays, adjoints = ([np.ones(3) for _ in range(32)] for _ in range(2))
    launch(of_many, 3, arrays)
    assert arrays[1].tolist() == [31] * 3
    launch(of_many, 3, arrays, adj_inputs=adjoints, adjoint=True)
    assert all(by.tolist() == [2] * 3 for k, by in enumerate(adjoints) if k != 1)
    arrays[0][1] = -1.0
    with pytest.raises(nb.KernelError, match="raised an exception in one of its threads"):
        launch(of_many, 3, arrays)


@pytest.mark.parametrize("kernel", [long_one, prefix_products], ids=lambda kernel: kernel.name)
def test_adjoints_are_not_analysed(kernel, monkeypatch, tmp_path):
    found = {}
    original = cpu.typed

    def watched(tree, *arguments, **named):
        made = original(tree, *arguments, **named)
        found[tree.name] = made is not None
        return made

    monkeypatch.setattr(cpu, "typed", watched)
    monkeypatch.setattr("numbridge.kernels.object_cache.stored", lambda key: None)
    x, a, y = np.ones(6), np.ones(4), np.zeros(6)
    name, kernel = kernel.name, nb.kernel(kernel.function)  # another test may have launched the adjoint of this one
    if name == "long_one":
        launch(kernel, 6, [x, a, y, 6], adj_inputs=[np.zeros(6), np.zeros(4), np.ones(6), None], adjoint=True)
        assert found == {"long_one_adjoint": True, "_nb_loop_long_one_adjoint": True, "_nb_run": True}
    else:
        launch(kernel, 1, [x, y], adj_inputs=[np.zeros(6), np.ones(6)], adjoint=True)
        # What a loop overwrites is kept on a stack, for which there may be no memory: Numba catches that.
        assert not found.pop("_nb_run") and found and all(found.values())


@nb.func
def half(value):
    return 0.5 * value


@nb.kernel
def with_neighbours(x, y):
    tile = cuda.shared.array(8, np.float64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = half(x[i])
    cuda.syncthreads()
    y[i] = tile[t] * tile[(t + 1) % 8]


@pytest.mark.parametrize("simd", [None, False])  # without, each thread is a coroutine
def test_of_threads_that_work_together_numba_analyses_the_body_once_at_most_and_the_adjoint_not_at_all(
    simd, monkeypatch
):
    analysed = []
    original = TypeInferer.propagate

    def watched(self, *arguments, **named):
        analysed.append(self.func_ir.func_id.func_name)
        return original(self, *arguments, **named)

    monkeypatch.setattr(TypeInferer, "propagate", watched)
    monkeypatch.setattr("numbridge.kernels.object_cache.stored", lambda key: None)
    x, y, by_x = np.arange(1.0, 17.0), np.zeros(16), np.zeros(16)
    kernel = nb.kernel(simd=simd)(with_neighbours.function)
    kernel[2, 8](x, y)
    following = np.roll(x.reshape(2, 8), -1, 1).reshape(-1)
    assert y.tolist() == (x * following / 4).tolist()
    assert analysed.count("with_neighbours") == analysed.count("half") == (simd is False) and "_nb_run" not in analysed
    analysed.clear()
    kernel.adjoint(["x", "y"]).over(geometry_of(kernel, 16, 8))(x, y, by_x, np.ones(16))
    assert by_x.tolist() == ((following + np.roll(x.reshape(2, 8), 1, 1).reshape(-1)) / 4).tolist()
    assert not {"with_neighbours_adjoint", "_nb_run"} & {*analysed}
