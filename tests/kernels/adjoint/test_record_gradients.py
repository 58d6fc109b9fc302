"""Gradients by the fields of records: against central differences in float64, to second order, on both back ends."""

# ruff: noqa: B905 - the zip of kernels has no `strict`

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numbridge as nb

N = 4
INNER = np.dtype([("w", np.float64), ("id", np.int32)], align=True)
P = np.dtype(
    [
        ("x", np.float64),
        ("alive", np.bool_),
        ("n", np.int32),
        ("v", np.float64, (2, 2)),
        ("in", INNER, (2,)),
        ("o", INNER),
    ],
    align=True,
)
SINGLE = np.dtype([("x", np.float32), ("n", np.int16), ("y", np.float64)], align=True)
PACKED = np.dtype([("flag", np.uint8), ("x", np.float64), ("y", np.float64)])


def floats_of(values):
    """Yield the floating-point fields of an array, as views of it; of an array of numbers, itself."""
    if values.dtype.fields is None:
        if values.dtype.kind == "f":
            yield values
        return
    for name in values.dtype.fields:
        yield from floats_of(values[name])


def random_records(shape, dtype=P, seed=1):
    random, made = np.random.default_rng(seed), np.zeros(shape, dtype)
    for part in floats_of(made):
        part[...] = random.normal(size=part.shape) + 0.2
    for name in dtype.names:
        if made[name].dtype.kind == "i":
            made[name] = random.integers(0, N, made[name].shape)
    return made


@nb.kernel
def read_modify_write(p, q, s: nb.float64):
    i = nb.tid()
    q[i].x = p[i].x * q[i].x + p[i]["v"][1, 0] * s
    q[i]["x"] *= q[i].x
    q[i].n += p[i].n
    q[i].v[0, i % 2] += q[i].x * p[i].v[0][-1]
    q[i].o.w = q[i].v[0, 0] * p[i].o.w + q[i].o.w
    q[i].alive = q[i].x > 0.5


@nb.kernel
def gathered(p, out):
    i = nb.tid()
    r = p[p[i].n]
    nb.atomic_add(out, r.n, r.x * p[i].x * r.v[i % 2, 1])
    out[N + i] = p[r.n].o.w * r.o.w


@nb.kernel
def in_place_in_a_loop(p, out):
    i = nb.tid()
    for k in range(1, 5):
        p[i].x = p[i].x * p[i]["in"][k % 2].w + 0.1 * k
        p[i]["in"][0].w = p[i].x * p[i].o.w
        p[i].n = (p[i].n + k) % 4
        p[i].o.w += p[i].v[p[i].n % 2, 0]
    out[i] = p[i].x * p[i].o.w


@nb.func
def kinetic(r, factor):
    total = 0.0
    for a in range(2):
        for b in range(2):
            total += r.v[a, b] * r.v[b, a]
    if r.x > 0.0:
        total *= r.x
    return total * factor


@nb.func
def push(r, step):
    r.x += step * r.v[0, 0]
    return r.x


@nb.kernel
def by_functions(p, q, out):
    i = nb.tid()
    while p[i].x < 3.0:
        push(p[i], 1.0 + p[i].v[0, 0] * p[i].v[0, 0] / (1.0 + p[i].v[0, 0] * p[i].v[0, 0]))
        p[i].x += 1.0
    first, second = q[i], p[i]
    out[i] = kinetic(first, 0.5) + push(second, 0.25) * len(p[i].v)


@nb.kernel
def whole(p, q):
    i = nb.tid()
    q[i] = p[i]
    q[i].x *= q[i].o.w
    p[i].o = q[i]["in"][1]
    q[i]["in"][0] = p[i].o
    r = q[i]
    r.v[1, 1] = r.x * r["in"][0].w


@nb.kernel
def plane(g, out):
    i, j = nb.tid()
    out[i, j] = g[i, j].x * g[j, i].o.w + g.shape[0] * g[i].size * g[i, j].v[0, 0] * g[i, -1].x


@nb.kernel
def by_column(p, only, out):
    i = nb.tid()
    out[i] = p.x[i] * p["v"][i, 0, 1] * only[0].x
    nb.atomic_add(p.o.w, 0, out[i])


@nb.kernel
def gone_through(p, q, out):
    i = nb.tid()
    s = 0.0
    for r in q:
        s += r.x * r.o.w
    for k, row in enumerate(p[i].v):
        for v in row[::-1]:
            s = s * 0.5 + v * v + k
    p[i].v[:, 1] = s * s
    for a, b in zip(p[i].v[0], q["v"][:, 1, 0]):
        s += a * b
    out[i] = s


CASES = [
    (gone_through, N, random_records(N), random_records(N, seed=2), np.zeros(N)),
    (read_modify_write, N, random_records(N), random_records(N, seed=2), 1.3),
    (gathered, N, random_records(N), np.zeros(2 * N)),
    (in_place_in_a_loop, N, random_records(N), np.zeros(N)),
    (by_functions, N, random_records(N), random_records(N, seed=2), np.zeros(N)),
    (whole, N, random_records(N), random_records(N, seed=2)),
    (plane, (3, 3), random_records((3, 3)), np.zeros((3, 3))),
    (by_column, N, random_records(N), random_records(1, seed=4), np.zeros(N)),
]


def copied(values):
    return [v.copy() if isinstance(v, np.ndarray) else v for v in values]


def zeros_of(values):
    return [np.zeros_like(v) if isinstance(v, np.ndarray) else np.zeros(()) for v in values]


def flat(values):
    """Return every floating-point number of some arrays and numbers as one vector."""
    parts = [part for v in values for part in floats_of(np.asarray(v))]
    return np.concatenate([part.reshape(-1) for part in parts])


def placed(values, numbers):
    """Return values of the same kinds with other floating-point numbers."""
    made, place = [], 0
    for value in values:
        array = np.array(value)
        for part in floats_of(array):
            part[...] = numbers[place : place + part.size].reshape(part.shape)
            place += part.size
        made.append(array if isinstance(value, np.ndarray) else float(array))
    return made


def is_array(values):
    """Return which of the numbers of `flat` lie in arrays."""
    return np.concatenate([np.full(flat([v]).size, isinstance(v, np.ndarray)) for v in values])


def after(kernel, dim, values):
    now = copied(values)
    nb.launch(kernel, dim, now)
    return flat(now)


def pulled(kernel, dim, values, cotangent):
    adjoints = zeros_of(values)
    for adjoint, found in zip(adjoints, placed(adjoints, cotangent), strict=True):
        adjoint[...] = found
    given = copied(values)
    kernel.adjoint([p.name for p in kernel.parameters]).forall(dim)(*given, *adjoints)
    for value, before in zip(given, values, strict=True):
        np.testing.assert_array_equal(value, before)
    return flat(adjoints)


def pushed(kernel, dim, values, direction):
    tangents = placed(values, direction)
    names = [p.name for p in kernel.parameters]
    kernel.tangent(names).forall(dim)(*copied(values), *tangents)
    return flat(tangents)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].name)
def test_every_field_of_the_gradient(case):
    kernel, dim, *values = case
    here, random = flat(values), np.random.default_rng(3)
    weights = np.where(is_array(values), random.normal(size=here.size), 0.0)
    got = pulled(kernel, dim, values, weights)
    for k in range(here.size):
        step = np.zeros(here.size)
        step[k] = 1e-6
        up, down = (after(kernel, dim, placed(values, here + s)) for s in (step, -step))
        np.testing.assert_allclose(got[k], weights @ (up - down) / 2e-6, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].name)
def test_tangents_and_second_derivatives(case):
    kernel, dim, *values = case
    here, random = flat(values), np.random.default_rng(3)
    arrays = is_array(values)
    weights = np.where(arrays, random.normal(size=here.size), 0.0)
    direction = random.normal(size=here.size)
    tangent = pushed(kernel, dim, values, direction)
    np.testing.assert_allclose(weights @ tangent, pulled(kernel, dim, values, weights) @ direction, rtol=1e-10)

    names = [p.name for p in kernel.parameters]
    second, again = zeros_of(values), zeros_of(values)
    for adjoint, found in zip(again, placed(again, weights), strict=True):
        adjoint[...] = found
    adjoint = kernel.tangent(names).adjoint([*names, *(f"_nb_tan_{name}" for name in names)])
    adjoint.forall(dim)(*copied(values), *placed(values, direction), *second, *again)
    up, down = (pulled(kernel, dim, placed(values, here + h * direction), weights) for h in (1e-5, -1e-5))
    np.testing.assert_allclose(flat(second), (up - down) / 2e-5, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(flat(again), pulled(kernel, dim, values, weights), rtol=1e-9, atol=1e-12)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([slice(None), slice(None, None, -1), slice(None, None, 3)]))
def test_random_records_and_strides(seed, part):
    p, q = random_records(9, seed=seed)[part], random_records(9, seed=seed + 1)[part]
    p["n"] = np.random.default_rng(seed).integers(0, len(p), len(p))
    values = [p, q, 0.7]
    here, random = flat(values), np.random.default_rng(seed)
    weights = np.where(is_array(values), random.normal(size=here.size), 0.0)
    direction = random.normal(size=here.size)
    up, down = (after(read_modify_write, len(p), placed(values, here + h * direction)) for h in (1e-6, -1e-6))
    wanted = weights @ (up - down) / 2e-6
    got = pulled(read_modify_write, len(p), values, weights) @ direction
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


@nb.kernel
def spread(p, out):
    i = nb.tid()
    out[i] = p[p[i].n].y * p[i].x


def test_integers_of_adjoints_stay_and_unused_fields_are_zero():
    p, out, adjoint = random_records(N, SINGLE), np.zeros(N), np.zeros(N, SINGLE)
    adjoint["n"] = 77
    nb.launch(spread, N, [p], [out], adj_inputs=[adjoint], adj_outputs=[np.ones(N)], adjoint=True)
    assert (adjoint["n"] == 77).all()
    np.testing.assert_allclose(adjoint["x"], p["y"][p["n"]], rtol=1e-6)
    np.testing.assert_allclose(adjoint["y"], np.bincount(p["n"], p["x"], N), rtol=1e-6)


def test_many_threads_add_to_one_field():
    count = 200_000
    p, out, adjoint = np.zeros(count, SINGLE), np.zeros(count), np.zeros(count, SINGLE)
    p["x"] = 2.0
    nb.launch(spread, count, [p], [out], adj_inputs=[adjoint], adj_outputs=[np.ones(count)], adjoint=True)
    assert adjoint["y"][0] == 2.0 * count and not adjoint["y"][1:].any()


@nb.kernel
def own(p, out):
    i = nb.tid()
    out[i] = p[i].x * p[i].y


def test_one_record_without_dimensions():
    @nb.kernel
    def scaled(p, out):
        i = nb.tid()
        out[i] = p[()].x * (i + 1)

    p, adjoint = random_records((), SINGLE), np.zeros((), SINGLE)
    nb.launch(scaled, N, [p, np.zeros(N)], adj_inputs=[adjoint, np.ones(N)], adjoint=True)
    assert adjoint["x"] == 10.0


def test_packed_records():
    p, out, adjoint = random_records(N, PACKED), np.zeros(N), np.zeros(N, PACKED)
    nb.launch(own, N, [p], [out], adj_inputs=[adjoint], adj_outputs=[np.ones(N)], adjoint=True)
    np.testing.assert_allclose(adjoint["x"], p["y"])

    @nb.kernel
    def first(p, out):
        i = nb.tid()
        out[i] = p[0].x

    with pytest.raises(nb.KernelUnsupportedError, match=r"p\.x.*align=True\n.*:\d+:\d+\n"):
        nb.launch(first, N, [p], [out], adj_inputs=[adjoint], adj_outputs=[np.ones(N)], adjoint=True)


def test_threads_add_to_one_record_without_gaps():
    # As np.dtype makes them: not aligned as C structs are, and every number at a multiple of its size all the same.
    dense = np.dtype([("x", np.float64), ("n", np.int64), ("y", np.float64)])
    assert not dense.isalignedstruct

    @nb.kernel
    def shared(p, out):
        i = nb.tid()
        out[i] = p[i % 2].x * p[0].y

    p, adjoint = random_records(2, dense), np.zeros(2, dense)
    nb.launch(shared, 9, [p], [np.zeros(9)], adj_inputs=[adjoint], adj_outputs=[np.ones(9)], adjoint=True)
    np.testing.assert_allclose(adjoint["x"], p["y"][0] * np.array([5.0, 4.0]))
    np.testing.assert_allclose(adjoint["y"], [5.0 * p["x"][0] + 4.0 * p["x"][1], 0.0])


def test_a_field_that_needs_an_adjoint_and_has_none():
    @nb.kernel
    def through(p, q, out):
        i = nb.tid()
        q[i].x = p[i].x * 2.0
        q[i].y = 1.0
        out[i] = q[i].x + q[i].y

    p, q, out = random_records(N, SINGLE), random_records(N, SINGLE), np.zeros(N)
    given = [np.zeros(N, SINGLE), None, np.ones(N)]
    with pytest.raises(nb.KernelUnsupportedError, match=r"passes through the array 'q\.x'(.|\n)*q\[i\]\.x = p\[i\]\.x"):
        nb.launch(through, N, [p, q, out], adj_inputs=given, adjoint=True)


OVERLAPPING = np.dtype({"names": ["x", "y"], "formats": ["f8", "f4"], "offsets": [0, 4], "itemsize": 8})
COMPLEX = np.dtype([("x", np.complex64), ("y", np.float32)], align=True)
HALF = np.dtype([("x", np.float16), ("y", np.float32)], align=True)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [(OVERLAPPING, "share bytes"), (COMPLEX, "complex64.*both parts"), (HALF, "float16.*float32")],
)
def test_fields_without_derivative(dtype, text):
    @nb.kernel
    def double(p, out):
        i = nb.tid()
        out[i] = p[i].x

    with pytest.raises(nb.KernelUnsupportedError, match=rf"{text}(.|\n)*:\d+:\d+\n(.|\n)*p\[i\]\.x"):
        nb.launch(
            double, N, [np.zeros(N, dtype), np.zeros(N)], adj_inputs=[np.zeros(N, dtype), np.ones(N)], adjoint=True
        )


def test_records_of_integers_have_no_gradient():
    @nb.kernel
    def numbers(p, x):
        i = nb.tid()
        x[i] = p[i].n * x[i]

    p, x = np.zeros(N, [("n", np.int32)]), np.ones(N)
    with pytest.raises(nb.NumbridgeTypeError, match="records without fields of float32"):
        nb.launch(numbers, N, [p, x], adj_inputs=[p.copy(), np.ones(N)], adjoint=True)
    by_x = np.ones(N)
    nb.launch(numbers, N, [p, x], adj_inputs=[None, by_x], adjoint=True)
    assert not by_x.any()


def test_adjoints_of_other_dtypes_are_refused():
    p, out = random_records(N, SINGLE), np.zeros(N)
    for wrong in (np.zeros(N, PACKED), np.zeros(N), np.zeros(N + 1, SINGLE), np.zeros((N, SINGLE.itemsize), np.uint8)):
        with pytest.raises(nb.NumbridgeError, match=r"parameter 'p'|argument '_nb_adj_p'"):
            nb.launch(own, N, [p], [out], adj_inputs=[wrong], adj_outputs=[np.ones(N)], adjoint=True)
    with pytest.raises(nb.BufferAccessError, match="shares memory"):
        nb.launch(own, N, [p], [out], adj_inputs=[p], adj_outputs=[np.ones(N)], adjoint=True)


def test_the_adjoint_reads_as_text():
    @nb.kernel
    def product(p, out):
        i = nb.tid()
        out[i] = p[i].x * p[i].y

    nb.launch(product, N, [random_records(N, SINGLE), np.zeros(N)])
    text = product.adjoint_source
    assert "= _nb_field(p, 0)  # p.x" in text and "_nb_adj_p_x_1 = _nb_field(_nb_adj_p, 0)" in text


MODES = [(case, mode) for case in CASES for mode in ("adjoint", "tangent")]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("case", "mode"), MODES, ids=lambda part: part if isinstance(part, str) else part[0].name)
def test_derivatives_compile_for_cuda(case, mode):
    kernel, _, *values = case
    more = zeros_of(values) if mode == "adjoint" else values
    derivative = getattr(kernel, mode)([p.name for p in kernel.parameters])
    assert derivative.cubin(*values, *more, capability=(9, 0)).startswith(b"\x7fELF")


# --------------------------------------------------------------------------------------------------------------------
# Tapes


@nb.kernel
def fill(a, p):
    i = nb.tid()
    p[i].x = a[i] * a[i]
    p[i].y = a[i] * 3.0
    p[i].n = i


@nb.kernel
def use(p, out):
    i = nb.tid()
    out[i] = p[i].x * p[p[i].n].y


@pytest.mark.parametrize("new", [lambda: np.zeros(3, SINGLE), lambda: nb.zeros(3, dtype=SINGLE)])
def test_a_tape_carries_gradients_through_records(new):
    a, p, out = nb.array([1.0, 2.0, 3.0], requires_grad=True), new(), nb.zeros(3, nb.float64)
    with nb.Tape() as tape:
        nb.launch(fill, 3, [a], [p])
        nb.launch(use, 3, [p], [out])
        nb.launch(fill, 3, [out], [p])
    tape.backward(grads={out: [1.0, 1.0, 1.0]})
    np.testing.assert_allclose(a.grad.numpy(), 9 * np.array([1.0, 2.0, 3.0]) ** 2)
    assert tape.kept_bytes == 3 * SINGLE.itemsize


def test_records_that_require_a_gradient():
    p, out = nb.zeros(3, dtype=SINGLE, requires_grad=True), nb.zeros(3, nb.float64)
    p.numpy()["x"], p.numpy()["y"], p.numpy()["n"] = [1, 2, 3], [4, 5, 6], [0, 0, 1]
    seed = np.zeros(3, SINGLE)
    seed["x"], seed["n"] = 10, 9
    with nb.Tape() as tape:
        nb.launch(use, 3, [p], [out])
        nb.launch(use, 3, [p.clone()], [out])
    tape.backward(grads=[(out, np.ones(3)), (p, seed)])
    found = p.grad.numpy()
    assert found.dtype == SINGLE and found["x"].tolist() == [14, 14, 15] and found["y"].tolist() == [3, 3, 0]
    assert not found["n"].any()
    assert tape.gradients[p].numpy()["x"].tolist() == [14, 14, 15]
    with pytest.raises(nb.NumbridgeTypeError, match="must be a number"):
        nb.Tape().backward(nb.zeros(1, dtype=SINGLE))
    with pytest.raises(nb.NumbridgeTypeError, match="requires_grad needs"):
        nb.zeros(3, dtype=np.dtype([("n", "i4")]), requires_grad=True)


def test_arrays_of_records_are_structured_to_numpy():
    p = nb.zeros(3, dtype=SINGLE)
    p.numpy()["x"][:] = [1, 2, 3]
    for view in (
        np.asarray(p),
        nb.to_numpy(p),
        p[::-1].numpy()[::-1],
        p.clone().numpy(),
        p.to("cpu", copy=True).numpy(),
    ):
        assert view.dtype == SINGLE and view["x"].tolist() == [1, 2, 3]
    p.assign(np.ones(3, SINGLE))
    assert p.numpy()["y"].tolist() == [1, 1, 1]
    assert p.zero_().numpy()["y"].tolist() == [0, 0, 0]
