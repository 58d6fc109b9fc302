"""Local and shared memory of vectors and matrices, on both back ends."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda
from numba.cuda import local

import numbridge as nb

N = 5
SHAPE = (2, 2)
VEC5D = nb.vector(5, nb.float64)


def floats(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@nb.kernel
def vectors(x: nb.array[nb.vec3], y: nb.array[nb.vec3]):
    i = nb.tid()
    t = cuda.local.array(4, nb.vec3)
    for k in range(4):
        t[k] = x[i] * float(k)
    t[1].x = 7.0
    t[2][1] = 8.0
    t[3] += nb.vec3(1.0)
    t[0][-3] += 2.0
    s = nb.vec3()
    for k in range(len(t)):
        s += t[k]
        for m in range(3):
            s[m] += t[k][m]
    y[i] = s + t[-1]


def test_vectors():
    x, y = floats(N, 3), np.zeros((N, 3), np.float32)
    nb.launch(vectors, N, [x, y])
    t = np.stack([x * k for k in range(4)])
    t[1, :, 0], t[2, :, 1], t[3], t[0, :, 0] = 7, 8, t[3] + 1, 2
    np.testing.assert_allclose(y, 2 * t.sum(0) + t[3], rtol=1e-5)


@nb.func
def filled(memory, value):
    for a in range(memory.shape[0]):
        for b in range(memory.shape[1]):
            memory[a, b] = value * float(a + 2 * b)
    return memory[1, 1]


@nb.kernel
def matrices(x: nb.array[nb.vec3], y: nb.array[nb.vec3]):
    i = nb.tid()
    t = local.array(shape=SHAPE, dtype=nb.mat33)
    last = filled(t, nb.outer(x[i], x[i]))
    t[0, 1][1, 2] = 5.0
    t[1, 0][2] = x[i]
    row = t[0]
    y[i] = row[1] @ x[i] + t[1, 0] @ x[i] + last[0]


def test_matrices():
    x, y = floats(N, 3), np.zeros((N, 3), np.float32)
    nb.launch(matrices, N, [x, y])
    for v, got in zip(x, y, strict=True):
        outer = np.outer(v, v)
        b, c = 2 * outer, outer.copy()
        b[1, 2], c[2] = 5, v
        np.testing.assert_allclose(got, b @ v + c @ v + 3 * outer[0], rtol=1e-4, atol=1e-5)


@nb.kernel
def others(y: nb.array[nb.float64]):
    i = nb.tid()
    wide = cuda.local.array(3, VEC5D)
    half = cuda.local.array(2, nb.vec3h)
    turn = cuda.local.array(2, nb.quat)
    count = cuda.local.array(2, nb.vec2i)
    wide[i % 3] = VEC5D(1.0, 2.0, 3.0, 4.0, 5.0)
    half[1] = nb.vec3h(0.5, 1.5, 2.5)
    turn[1] = nb.quat(0.0, 0.0, 0.0, 1.0)
    turn[1].w *= 2.0
    count[0] = nb.vec2i(3, 4)
    count[0] += nb.vec2i(1, i)
    y[i] = wide[i % 3][4] + half[1][2] + turn[1].w + count[0].x + count[0][1]


def test_other_element_types():
    y = np.zeros(N)
    nb.launch(others, N, [y])
    assert (y == 5 + 2.5 + 2 + 4 + 4 + np.arange(N)).all()


def test_each_thread_has_its_own():
    x, y = floats(300_000, 3), np.zeros((300_000, 3), np.float32)
    nb.launch(vectors, len(x), [x, y])
    short = np.zeros((N, 3), np.float32)
    nb.launch(vectors, N, [x[-N:], short])
    assert (y[-N:] == short).all()


@nb.kernel
def reversed_in_blocks(x: nb.array[nb.vec3], y: nb.array[nb.vec3]):
    i = nb.tid()
    tile = cuda.shared.array(64, nb.vec3)
    k = cuda.threadIdx.x
    tile[k] = x[i]
    tile[k].x += 1.0
    cuda.syncthreads()
    y[i] = tile[63 - k]


@nb.kernel
def dynamic(x: nb.array[nb.vec3], y: nb.array[nb.vec3]):
    i = nb.tid()
    tile = cuda.shared.array(0, dtype=nb.vec3)
    tile[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    y[i] = tile[0]


@nb.kernel
def by_constant(x: nb.array[nb.vec3], y: nb.array[nb.vec3]):
    i = nb.tid()
    t = cuda.local.array(2, nb.vec3)
    t[0], t[1] = x[i], x[i] * 2.0
    t[1].y = t[0].x
    y[i] = nb.cross(t[0], t[1])


def test_shared_memory_of_vectors():
    x, y = floats(128, 3), np.zeros((128, 3), np.float32)
    nb.launch(reversed_in_blocks, 128, [x, y], block_dim=64)
    assert np.array_equal(y, (x + np.float32([1, 0, 0])).reshape(2, 64, 3)[:, ::-1].reshape(128, 3))


def test_dynamic_shared_memory_of_vectors():
    x, y = floats(16, 3), np.zeros((16, 3), np.float32)
    dynamic[2, 8, 0, 8 * 12](x, y)
    assert np.array_equal(y, np.repeat(x[[0, 8]], 8, axis=0))


def test_code_for_cuda():
    x = floats(N, 3)
    text = reversed_in_blocks.ptx(x, x.copy(), capability=(9, 0))
    assert ".shared" in text and "[768]" in text and "bar.sync" in text and ".local" not in text
    assert ".extern .shared" in dynamic.ptx(x, x.copy(), capability=(9, 0))
    assert ".local" not in by_constant.ptx(x, x.copy(), capability=(9, 0))
    for kernel in (reversed_in_blocks, dynamic, by_constant, vectors, matrices):
        assert kernel.cubin(x, x.copy(), capability=(9, 0)).startswith(b"\x7fELF")
    assert others.cubin(np.zeros(N), capability=(9, 0)).startswith(b"\x7fELF")


def test_shapes_are_constants():
    @nb.kernel
    def wrong(x: nb.array[nb.vec3]):
        i = nb.tid()
        t = cuda.local.array(i, nb.vec3)
        x[i] = t[0]

    with pytest.raises(nb.KernelError, match=r"constant shape and a dtype(.|\n)*:\d+:\d+\n"):
        nb.launch(wrong, N, [floats(N, 3)])


def test_a_derivative_of_shared_memory_is_refused():
    x = floats(N, 3)
    with pytest.raises(nb.KernelUnsupportedError, match=r"shared(.|\n)*:\d+:\d+\n"):
        reversed_in_blocks.adjoint(["x", "y"]).ptx(x, x.copy(), x.copy(), x.copy(), capability=(9, 0))


def test_a_derivative_of_halves_is_refused():
    @nb.kernel
    def narrow(x: nb.array[float], y: nb.array[float]):
        i = nb.tid()
        t = cuda.local.array(1, nb.vec3h)
        t[0] = nb.vec3h(x[i], 0.0, 0.0)
        y[i] = t[0][0]

    x = floats(N)
    with pytest.raises(nb.KernelUnsupportedError, match=r"vec3h(.|\n)*:\d+:\d+\n"):
        nb.launch(narrow, N, [x], [x.copy()], adj_inputs=[x.copy()], adj_outputs=[x.copy()], adjoint=True)


# ---------------------------------------------------------------------------------------------- memory that is asked for ahead


@nb.kernel
def turned(m: nb.array2d[nb.mat33], v: nb.array2d[nb.vec3], out: nb.array2d[nb.vec3]):
    i, j = nb.tid()
    out[i, j] = m[i, j] @ v[i, j]


@nb.kernel
def picked(m: nb.array[nb.mat33], index: nb.array[int], out: nb.array[nb.mat33]):
    i = nb.tid()
    out[i] = m[index[i]]


def test_large_elements_that_are_read_in_order_are_asked_for_ahead():
    m, v, out = floats(4, N, 3, 3), floats(4, N, 3), np.zeros((4, N, 3), np.float32)
    for step in (1, -1, 2):
        part = m[::step, ::-1]
        there = v[: len(part)]
        nb.launch(turned, (len(part), N), [part, there, out[: len(part)]])
        np.testing.assert_allclose(out[: len(part)], np.einsum("abij,abj->abi", part, there), rtol=1e-5, atol=1e-6)
    text = str(turned.explain(m, v, out))
    assert (
        "_nb_prefetch(m, (_nb_i0, _nb_k,))" in text and "_nb_prefetch(v" not in text and "_nb_prefetch(out" not in text
    )
    index = np.array([1, 0], np.int32)
    assert "_nb_prefetch" not in str(picked.explain(m[0], index, np.zeros((2, 3, 3), np.float32)))


@nb.kernel
def in_halves(x, y):
    i = nb.tid()
    t = cuda.local.array(2, np.float16)
    t[0] = x[i]
    t[1] = 2 * t[0]
    y[i] = t[0] * t[1]


def test_local_memory_of_halves_rounds_and_has_no_derivative():
    x, y = np.float32([1, 0.1, 3]), np.zeros(3, np.float32)
    nb.launch(in_halves, 3, [x, y])
    assert np.array_equal(y, 2 * np.float16(x).astype(np.float32) ** 2)
    with pytest.raises(nb.KernelUnsupportedError, match="local arrays of float16 have no derivative"):
        nb.launch(in_halves, 3, [x], [y], adj_inputs=[x], adj_outputs=[x], adjoint=True)


@nb.kernel
def in_bfloat16(x):
    cuda.local.array(2, nb.bfloat16)[0] = x[0]


def test_memory_of_other_narrow_floats_is_refused_with_its_place():
    with pytest.raises(nb.KernelError, match=r"cuda.local.array of bfloat16: .* use float32 here(.|\n)*\^"):
        nb.launch(in_bfloat16, 1, [np.ones(1, np.float32)])
