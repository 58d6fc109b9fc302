"""Operations of vectors and matrices, and the loop around a body, are compiled without a function of Numba's for each."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core import event

import numbridge as nb
from numbridge.kernels.compilation.built_calls import Body, built

VECTOR = nb.vector(5, nb.float32)  # in no other test: what Numba has compiled once it does not compile again


@nb.kernel
def step(x: nb.array[VECTOR], v: nb.array[VECTOR], m: nb.array[nb.matrix((5, 5), nb.float32)], dt: float):
    i = nb.tid()
    a = m[i] @ v[i] - VECTOR(1.0) * nb.length(v[i])
    a[2] = nb.dot(a, x[i])
    if a[0] > 1.0:
        a = nb.normalize(a)
    x[i] = x[i] + a * dt
    nb.atomic_add(v, i, a)


def compiled_while(launch):
    """Return the names of the functions that Numba compiles meanwhile."""
    with event.install_recorder("numba:compile") as recorder:
        launch()
    return {what.data["dispatcher"].py_func.__name__ for _, what in recorder.buffer}


def test_numba_compiles_the_body_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(nb.config, "kernel_cache_dir", str(tmp_path))
    x, v, m = np.ones((2, 5), "f4"), np.ones((2, 5), "f4"), np.zeros((2, 5, 5), "f4")
    assert compiled_while(lambda: nb.launch(step, 2, [x, v, m, 0.5])) == {"step"}
    np.testing.assert_allclose(x[0], 1 - 0.5 * np.sqrt(5) * np.array([1, 1, 5, 1, 1]), rtol=1e-6)


def least_of(a, b):
    raise NotImplementedError


@built(least_of)
def _least_of(a, b):
    return Body("def implementation(a, b): return a if a < b else b", {}) if a == b else None


def test_operands_are_named_and_counted():
    @nb.kernel
    def named(x, y):
        i = nb.tid()
        y[i] = least_of(b=x[i], a=y[i])

    x, y = np.array([1.0, 5.0]), np.array([2.0, 3.0])
    nb.launch(named, 2, [x, y])
    assert y.tolist() == [1, 3]

    @nb.kernel
    def of_three(x, y):
        i = nb.tid()
        y[i] = least_of(x[i], y[i], 1.0)

    with pytest.raises(nb.KernelError, match="of_three"):
        nb.launch(of_three, 2, [x, y])
    assert y.tolist() == [1, 3]
