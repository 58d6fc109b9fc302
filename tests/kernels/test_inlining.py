"""Bodies that LLVM would leave out of the loop over the threads for their size, and which functions go into their callers."""

from __future__ import annotations

import ast
import re

import numpy as np
from numba.core import config as numba_config

import numbridge as nb
from numbridge.kernels import variant
from numbridge.kernels.compilation.inlining import inlined
from numbridge.kernels.launch import launch


@nb.func
def half(x, y):
    a, b, c, d = x / (y + 1.5), y / (x + 2.5), x / (y + 3.5), y / (x + 4.5)
    e, f, g, h = a / (b + 1.5), b / (c + 2.5), c / (d + 3.5), d / (a + 4.5)
    return a / (e + 1.5) + b / (f + 2.5) + c / (g + 3.5) + d / (h + 4.5) + e / (h + 5.5) + min(f, g) + max(g, h)


@nb.kernel
def long_body(x, y, out):
    i = nb.tid()
    if x[i] > 0.5:
        out[i] = half(x[i], y[i]) + half(y[i], x[i]) / (1.5 + half(x[i], x[i]))
    else:
        out[i] = half(x[i] + 1.5, y[i] + 2.5) - half(y[i] + 3.5, x[i])


def test_long_bodies_are_vectorised(monkeypatch, capfd):
    monkeypatch.setattr(variant, "compiled_or_stored", lambda key, compiled: (compiled(), False))
    monkeypatch.setattr(numba_config, "DUMP_OPTIMIZED", 1)
    x, y, out = np.random.default_rng(0).uniform(size=(3, 1000)).astype(np.float32)
    launch(long_body, 1000, [x, y, out])
    assert re.search(r"fdiv <\d+ x float>", capfd.readouterr().out)
    f = half.function
    true = [
        f(a, b) + f(b, a) / (1.5 + f(a, a)) if a > 0.5 else f(a + 1.5, b + 2.5) - f(b + 3.5, a)
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    np.testing.assert_allclose(out, true, rtol=1e-5, atol=1e-6)


def decorators(text):
    tree = inlined(ast.parse(text))
    return {function.name: function.decorator_list[0].id for function in tree.body if function.decorator_list}


def test_a_function_with_one_caller_is_inlined_and_so_are_all_where_that_stays_short():
    text = """
@_nb_device
def f(x):
    return x + 1

@_nb_device
def g(x):
    return f(x) * f(x + 1)

@_nb_device
def _nb_work(x):
    for i in range(x):
        g(i)
"""
    assert decorators(text) == {"f": "_nb_inlined", "g": "_nb_inlined", "_nb_work": "_nb_device"}


def test_what_would_grow_without_end_is_left_to_llvm():
    levels = range(1, 40)
    parts = [f"@_nb_device\ndef f{k}(x):\n    return f{k - 1}(x) + f{k - 1}(x + 1)\n" for k in levels]
    again = "@_nb_device\ndef again(x):\n    return again(x - 1) + again(x - 2) if x > 0 else f39(x)\n"
    found = decorators("@_nb_device\ndef f0(x):\n    return x * x\n" + "".join(parts) + again)
    assert found["f0"] == found["f3"] == "_nb_inlined"
    assert {found[f"f{k}"] for k in range(10, 38)} == {"_nb_device"} and found["again"] == "_nb_device"
