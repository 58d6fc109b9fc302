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


# ------------------------------------------------------------------ threads that store different components of one element


@nb.kernel
def scattered(order: nb.array[nb.int64], v: nb.array[nb.float64], out: nb.array[nb.vec3d]):
    p = order[nb.tid()]
    out[p // 3][p % 3] = v[p]


@nb.kernel
def squared(order: nb.array[nb.int64], x: nb.array[nb.vec3d], y: nb.array[nb.mat33d]):
    p = order[nb.tid()]
    x[p // 3][p % 3] *= x[p // 3][p % 3]
    y[p // 9][p // 3 % 3][p % 3] = x[p // 3][p % 3] * 3.0


@nb.kernel
def diagonal(out: nb.array[nb.mat33d], v: nb.array[nb.float64]):
    i, k = nb.tid()
    out[i][k][k] = v[i]


@nb.kernel
def by_name(out: nb.array[nb.transformd], v: nb.array[nb.float64]):
    i = nb.tid()
    out[i].q.w = v[i]


def interleaved(count):
    """Return an order in which neighbouring components are far apart, so that workers store them at the same time."""
    return np.concatenate([np.arange(0, count, 2), np.arange(1, count, 2)])


def test_no_component_that_another_thread_stores_is_lost():
    order, v = interleaved(3 << 17), np.random.default_rng(1).uniform(1, 2, 3 << 17)
    for _ in range(20):
        out = np.zeros((1 << 17, 3))
        nb.launch(scattered, v.size, [order, v, out])
        assert np.array_equal(out.ravel(), v)


def test_no_part_of_a_gradient_is_lost():
    random, count = np.random.default_rng(2), 9 << 14
    order, values = interleaved(count), random.uniform(1, 2, (count // 3, 3))
    cotangents = random.normal(size=values.shape), random.normal(size=(count // 9, 3, 3))
    wanted = 2 * values * (cotangents[0] + 3 * cotangents[1].reshape(values.shape))
    adjoint = squared.adjoint(["x", "y"])
    for _ in range(20):
        by_x, by_y = (c.copy() for c in cotangents)
        adjoint.forall(count)(order, values.copy(), np.zeros(by_y.shape), by_x, by_y)
        np.testing.assert_allclose(by_x, wanted, rtol=1e-13)
        assert not by_y.any()


@pytest.mark.parametrize(("kernel", "extents", "in_adjoint"), [(diagonal, (3, 3), (1, 1)), (by_name, (7,), (2, 2))])
def test_one_component_is_stored_on_cuda(kernel, extents, in_adjoint):
    def accesses(text):
        assert ".local" not in text and ".v2" not in text
        return text.count("ld.global"), text.count("st.global")

    out, v = np.zeros((N, *extents)), np.zeros(N)
    assert accesses(kernel.ptx(out, v, capability=(9, 0))) == (1, 1)
    # That component's cotangent goes to `v`, in whose adjoint several threads add or this one alone, and becomes zero.
    adjoint = kernel.adjoint(["out", "v"])
    assert accesses(adjoint.ptx(out, v, out.copy(), v.copy(), capability=(9, 0))) == in_adjoint


def test_steps_of_a_store():
    record = np.dtype([("x", np.float64), ("v", np.float64, 3)])
    name = "v"

    @nb.kernel
    def steps(
        a: nb.array2d[nb.vec2d], m: nb.array[nb.mat33d], t: nb.array[nb.transformd], p, q: nb.array2d[nb.float64]
    ):
        i = nb.tid()
        place = (i, 1)
        a[place][-1] = 1.0
        a[i][0].x = 2.0
        row = a[i]
        row[2].y += 3.0
        m[i][-1] = nb.vec3d(1.0, 2.0, 3.0)
        m[i][0][1] = 4.0
        m[i][i, -i] += 5.0
        m[i][1].z = 6.0
        t[i].p[i] = 7.0
        t[i].q = nb.quatd(1.0, 2.0, 3.0, 4.0)
        t[i].q.y *= 8.0
        p[i].x = 9.0
        p[i]["v"][1] = 10.0
        p[i][name][2] = 11.0
        p.v[i][0] = 12.0
        q[i][i] = 13.0
        own = m[i]
        own[2][2] = 14.0
        own[1].x = own[2].z
        m[i][1, 1] = own[2][2] + own[1][0]

    a, m, t, p, q = np.zeros((2, 3, 2)), np.zeros((2, 3, 3)), np.zeros((2, 7)), np.zeros(2, record), np.zeros((2, 2))
    nb.launch(steps, 2, [a, m, t, p, q])
    assert a.tolist() == [[[2, 0], [0, 1], [0, 3]]] * 2
    assert m[0].tolist() == [[5, 4, 0], [0, 28, 6], [1, 2, 3]] and m[1].tolist() == [[0, 4, 0], [0, 28, 6], [1, 2, 3]]
    assert t.tolist() == [[7, 0, 0, 1, 16, 3, 4], [0, 7, 0, 1, 16, 3, 4]]
    assert p["x"].tolist() == [9, 9] and p["v"].tolist() == [[12, 10, 11]] * 2
    assert q.tolist() == [[13, 0], [0, 13]]


def test_what_does_not_fit_into_a_part_is_refused_with_its_place():
    def refused(body, message):
        with pytest.raises(nb.KernelError, match=message) as caught:
            nb.launch(body, 2, [np.zeros((2, 3, 3))])
        assert f"{__file__}:" in str(caught.value) and "^" in str(caught.value)
        with pytest.raises(nb.KernelError, match=message):
            body.adjoint(["m"]).forall(2)(np.zeros((2, 3, 3)), np.zeros((2, 3, 3)))

    @nb.kernel
    def beyond(m: nb.array[nb.mat33d]):
        m[nb.tid()][1][-4] = 1.0

    @nb.kernel
    def no_row(m: nb.array[nb.mat33d]):
        m[nb.tid()][1] = 1.0

    @nb.kernel
    def no_integer(m: nb.array[nb.mat33d]):
        m[nb.tid()][0][0.5 * nb.tid()] = 1.0

    @nb.kernel
    def together(m: nb.array[nb.mat33d]):
        m[nb.tid(), 1][0] = 1.0

    @nb.kernel
    def no_part(m: nb.array[nb.mat33d]):
        m[nb.tid()].q = 1.0

    refused(beyond, "index -4 is out of range for axis 0 of a vec3d, whose extent is 3")
    refused(no_row, r"vec3d can be stored into this part of a mat33d, and not float64|float64 does not fit .* vec3d")
    refused(no_integer, "does not take float64 at an index of type float64|an index is an integer")
    refused(
        together,
        r"an array of mat33d has no index of type tuple; its elements are indexed apart|more indices are given",
    )
    refused(no_part, "has no such part|has no part")


def test_constants_beyond_the_components_of_values_are_refused():
    @nb.kernel
    def row(y: nb.array[nb.float64]):
        m = nb.mat33d(1.0)
        m[5][0] = y[0]
        y[nb.tid()] = m[0][0]

    @nb.kernel
    def component(y: nb.array[nb.float64]):
        t = nb.transformd()
        t.p[3] = 2.0
        y[nb.tid()] = t.p[0]

    for kernel, message in ((row, "index 5 .* axis 0 of a mat33d"), (component, "index 3 .* axis 0 of a vec3d")):
        with pytest.raises(nb.KernelError, match=message):
            nb.launch(kernel, 2, [np.zeros(2)])


@nb.func
def stored(pair, i, value):
    vectors, factor = pair
    vectors[i][1] = factor * value


@nb.kernel
def through_tuples(
    order: nb.array[nb.int64], v: nb.array[nb.float64], a: nb.array[nb.vec3d], b: nb.array2d[nb.float64]
):
    p = order[nb.tid()]
    mixed, alike = (1.0, a, b), (a, a)
    mixed[1][p // 3][p % 3] = v[p]
    mixed[2][p // 3][p % 3] = 2.0 * v[p]
    alike[p % 2][p // 3][p % 3] += mixed[0]
    if p % 3 == 1:
        stored((a, 3), p // 3, v[p])


def test_stores_through_tuples():
    count = 3 << 16
    order, v = interleaved(count), np.random.default_rng(1).uniform(1, 2, count)
    wanted = (v + 1.0).reshape(-1, 3)
    wanted[:, 1] = 3.0 * v.reshape(-1, 3)[:, 1]
    for _ in range(10):
        a, b = np.zeros((1 << 16, 3)), np.zeros((1 << 16, 3))
        nb.launch(through_tuples, count, [order, v, a, b])
        assert np.array_equal(a, wanted) and np.array_equal(b.ravel(), 2.0 * v)


def test_the_derivative_of_a_store_through_a_tuple():
    @nb.kernel
    def doubled(x: nb.array[nb.float64], y: nb.array[nb.vec3d]):
        i = nb.tid()
        pair = (2.0, y)
        pair[1][i][2] = pair[0] * x[i]

    x, y, by_x, by_y = np.ones(2), np.zeros((2, 3)), np.zeros(2), np.ones((2, 3))
    doubled.adjoint(["x", "y"]).forall(2)(x, y, by_x, by_y)
    assert by_x.tolist() == [2, 2] and by_y.tolist() == [[1, 1, 0]] * 2


def test_an_index_beyond_the_components_is_the_first_as_in_values():
    @nb.kernel
    def far(y: nb.array[nb.vec3d], k: int):
        y[nb.tid()][k] = 1.0

    for k, place in ((3, 0), (-1, 2), (-4, 0), (2, 2)):
        y, by = np.zeros((2, 3)), np.ones((2, 3))
        nb.launch(far, 2, [y, k])
        assert y.ravel().nonzero()[0].tolist() == [place, 3 + place]
        far.adjoint(["y"]).forall(2)(y, k, by)
        assert (by == 0).ravel().nonzero()[0].tolist() == [place, 3 + place]


def test_the_derivative_of_shared_memory():
    x, y, weights, by = floats(128, 3), np.zeros((128, 3), np.float32), floats(128, 3), np.zeros((128, 3), np.float32)
    kept = weights.copy()
    nb.launch(reversed_in_blocks, 128, [x], [y], [by], [weights], adjoint=True, block_dim=64)
    assert np.array_equal(by, kept.reshape(2, 64, 3)[:, ::-1].reshape(128, 3))
    assert ".shared" in reversed_in_blocks.adjoint(["x", "y"]).ptx(x, y, by, weights, capability=(9, 0))


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
