"""Derivatives of kernels with complex numbers: against differences along both parts, against each other, and on both targets."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, njit

import numbridge as nb
from emulated_cuda import emulated_cuda
from numbridge.kernels.errors import KernelError, NumbridgeTypeError
from written_kernels import made

SIZE = 6


@nb.kernel
def product(x, y, r, out):
    i = nb.tid()
    out[i] = x[i] * y[i]


@nb.kernel
def mixed(x, y, r, out):
    i = nb.tid()
    out[i] = (
        (2.0 * x[i] - 1j * y[i].conjugate()) / (x[i] + 3) + x[i] * abs(y[i]) - r[i] * y[i] + r[i] / x[i] + (r[i] - y[i])
    )


@nb.kernel
def exponentials(x, y, r, out):
    i = nb.tid()
    out[i] = cmath.exp(x[i]) * cmath.sqrt(y[i]) + np.log(x[i]) - cmath.log10(y[i]) * np.exp(r[i])


@nb.kernel
def circular(x, y, r, out):
    i = nb.tid()
    a = cmath.sin(x[i]) * np.cos(y[i]) + cmath.tanh(x[i] * y[i])
    out[i] = a - cmath.tan(y[i]) + cmath.sinh(x[i]) / cmath.cosh(y[i])


@nb.kernel
def powers(x, y, r, out):
    i = nb.tid()
    out[i] = x[i] ** y[i] + x[i] ** 3 + y[i] ** -2 + x[i] ** 0.5 + x[i] ** r[i] + np.square(y[i]) + x[i] ** 0


@nb.kernel
def parts(x, y, r, out):
    i = nb.tid()
    z = x[i]
    size, angle = cmath.polar(y[i])
    out[i] = (
        complex(z.real * y[i].imag, abs(z) ** 2)
        + cmath.phase(y[i])
        - size * np.angle(z)
        + angle
        + np.conj(z) * np.real(y[i])
    )


@nb.kernel
def repeated(x, y, r, out):
    i = nb.tid()
    z = 0.0j
    for _ in range(40):
        z = z * z * 0.1 + x[i]
    out[i] = z * y[i]


@nb.kernel
def growing(x, y, r, out):
    """A real number that becomes complex, and a choice."""
    i = nb.tid()
    s = 0.0
    for k in range(x.shape[0]):
        s += x[k] * y[i]
        if s.real > r[k]:
            s = s * 0.5
        else:
            s -= 1.0
    out[i] = s if s != y[i] and s != 2.0 else -s


@nb.kernel
def until(x, y, r, out):
    i = nb.tid()
    z, trips = x[i], 0
    while abs(z) < 20.0 and trips < 30:
        z = z * z + y[i]
        trips += 1
    out[i] = z / (1.0 + trips)


@nb.kernel
def own_memory(x, y, r, out):
    i = nb.tid()
    held = cuda.local.array(3, np.complex128)
    for k in range(3):
        held[k] = x[(i + k) % x.shape[0]] * r[k]
    for k in range(1, 3):
        held[k] += held[k - 1] * y[i]
    out[i] = held[2] + held[0].conjugate()


@nb.kernel
def in_place(x, y, r, out):
    i = nb.tid()
    for _ in range(4):
        out[i] = out[i] * x[i] + y[i]
        x[i] /= 1.0 + r[i] * r[i]


@nb.kernel
def added_parts(x, y, r, out):
    """What is written for CUDA, which has no atomic addition of complex numbers."""
    i = nb.tid()
    cuda.atomic.add(out.real, i // 2, (x[i] * y[i]).real)
    cuda.atomic.add(out.imag, i // 2, r[i] * x[i].imag)
    cuda.atomic.add(out.real, i, r[i])


@nb.kernel
def stored_parts(x, y, r, out):
    i = nb.tid()
    y.imag[i] = x[i].real * r[i]
    x.real[i] *= 2.0
    out[i] = x[i] * y[i]
    y[i] = r[i]


@nb.func
def rotated(z, angle):
    return z * cmath.exp(1j * angle), abs(z)


@njit
def shifted(z, by):
    return z + by if by > 0 else z - 2j


@nb.kernel
def in_functions(x, y, r, out):
    i = nb.tid()
    turned, size = rotated(x[i], r[i])
    out[i] = shifted(turned, size) * y[i] + UNIT * SCALE


UNIT, SCALE = 0.3 - 1.2j, np.complex64(2 + 0.5j)


@nb.func
def squared(z):
    return z * z


@nb.func_grad(squared)
def squared_gradient(z, given):
    return 2.0 * z.conjugate() * given


@nb.kernel
def by_hand(x, y, r, out):
    i = nb.tid()
    out[i] = squared(x[i] * y[i]) * r[i]


@nb.func
def energy(z, w):
    return z.real * z.real + 3.0 * z.imag * w * w


@nb.kernel
def of_function(x, y, r, out):
    i = nb.tid()
    by_z, by_w = nb.grad(energy)(x[i], r[i])
    out[i] = by_z * y[i] + by_w


@njit("complex128(complex128)")
def declared(z):
    return z * z + 1j


@njit("complex64(complex64)")
def declared_narrow(z):
    return z * 2


CONSTANTS = np.array([1 + 2j, 3 - 1j, 0.5j])
NOWHERE = complex(0.0, math.inf)


@nb.kernel
def constants(x, y, r, out):
    """Constant arrays, and constants that are no finite numbers."""
    i = nb.tid()
    z = NOWHERE
    if r[i] > 1:
        z = x[i] * CONSTANTS[i % 3]
    for factor in CONSTANTS[1:]:
        y[i] *= factor
    at_least = z if cmath.isfinite(z) else y[i]
    out[i] = at_least + CONSTANTS.imag[i % 3] * y[i] if not (np.isnan(z) or cmath.isinf(x[i])) else 0


@nb.kernel
def of_real_numbers(x, y, r, out):
    i = nb.tid()
    angles = cmath.exp(-r[i]) + cmath.rect(r[i], 2 * r[i]) * np.conj(r[i]) + np.imag(r[i]) + r[i].conjugate()
    out[i] = cmath.sqrt(-r[i]) * x[i] + cmath.log(r[i], 2.0) + cmath.log(x[i], y[i]) * cmath.log(y[i], r[i]) * angles


@nb.kernel
def in_declared_functions(x, y, r, out):
    i = nb.tid()
    out[i] = declared(x[i]) * y[i] + declared(r[i]) + declared_narrow(np.complex64(2j))


@nb.kernel
def read_in_parts(x, y, r, out):
    """Elements of an array of whose elements parts are stored."""
    i = nb.tid()
    out.real[i] = out[i].real * out[i].conjugate().imag * out.real[i].real + x[i].real * r[i]


CASES = (
    *(
        product,
        mixed,
        exponentials,
        circular,
        powers,
        parts,
        repeated,
        growing,
        until,
        own_memory,
        in_place,
        added_parts,
    ),
    *(in_functions, by_hand, of_function),
    *(constants, of_real_numbers, in_declared_functions, read_in_parts),
)


def arguments(dtype=np.complex128, seed=0):
    random = np.random.default_rng(seed)
    x, y, out = (random.normal(size=(SIZE, 2)).view(np.complex128)[:, 0].astype(dtype) for _ in range(3))
    return [x, y, (random.random(SIZE) + 0.5).astype(x.real.dtype), out]


def like(values, seed):
    random = np.random.default_rng(seed)
    return [
        (random.normal(size=(*v.shape, 2)) @ [1.0, 1.0j if v.dtype.kind == "c" else 0.0]).astype(v.dtype)
        for v in values
    ]


def inner(a, b):
    """Return the sum of the products of parts."""
    return sum(float(np.vdot(u, v).real) for u, v in zip(a, b, strict=True))


def ran(kernel, values):
    made = [v.copy() for v in values]
    nb.launch(kernel, SIZE, made)
    return made


NAMES = ["x", "y", "r", "out"]


def adjoints(kernel, values, given, names=NAMES):
    """Return the gradients by all arguments, given those by what they are after the launch."""
    made = [g.copy() for g in given]
    held = [v.copy() for v in values]
    nb.launch(kernel.adjoint(names), SIZE, [*held, *made])
    assert all(np.array_equal(a, b) for a, b in zip(held, values, strict=True))
    return made


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernel", CASES, ids=lambda k: k.name)
def test_tangents_and_adjoints_against_differences(kernel):
    values = arguments()
    moved, given = like(values, 1), like(values, 2)
    step = 1e-6
    ends = [ran(kernel, [v + sign * step * m for v, m in zip(values, moved, strict=True)]) for sign in (1, -1)]
    slope = [(a - b) / (2 * step) for a, b in zip(*ends, strict=True)]
    tangents = [m.copy() for m in moved]
    nb.launch(kernel.tangent(NAMES), SIZE, [*(v.copy() for v in values), *tangents])
    for tangent, difference in zip(tangents, slope, strict=True):
        np.testing.assert_allclose(tangent, difference, rtol=1e-6, atol=1e-6)
    found = adjoints(kernel, values, given)
    assert math.isclose(inner(found, moved), inner(given, tangents), rel_tol=1e-10)


@pytest.mark.one_in(2, first=1)
@pytest.mark.parametrize("kernel", CASES, ids=lambda k: k.name)
def test_second_derivatives(kernel):
    """The adjoint of the tangent against differences of the adjoint."""
    values, step = arguments(), 1e-6
    moved, given = like(values, 1), like(values, 2)
    ends = [
        adjoints(kernel, [v + sign * step * m for v, m in zip(values, moved, strict=True)], given) for sign in (1, -1)
    ]
    tangent = kernel.tangent(NAMES)
    by = [p.name for p in tangent.parameters if p.name not in NAMES]
    made = [np.zeros_like(v) for v in values] + [g.copy() for g in given]
    nb.launch(tangent.adjoint([*NAMES, *by]), SIZE, [*(v.copy() for v in values), *(m.copy() for m in moved), *made])
    for second, a, b in zip(made[:4], *ends, strict=True):
        np.testing.assert_allclose(second, (a - b) / (2 * step), rtol=2e-5, atol=2e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernel", [k for k in CASES if k is not own_memory], ids=lambda k: k.name)
def test_single_precision(kernel):
    values = arguments(np.complex64)
    given = like(values, 2)
    wide = adjoints(kernel, *([v.astype(np.promote_types(v.dtype, float)) for v in group] for group in (values, given)))
    for narrow, exact in zip(adjoints(kernel, values, given), wide, strict=True):
        assert narrow.dtype in (np.complex64, np.float32)
        np.testing.assert_allclose(narrow, exact, rtol=2e-3, atol=2e-3 * np.abs(exact).max())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernel", CASES, ids=lambda k: k.name)
def test_both_compile_for_cuda(kernel):
    values = arguments()
    for derivative in (kernel.adjoint(NAMES), kernel.tangent(NAMES)):
        assert ".visible .entry" in derivative.ptx(*values, *values, capability=(9, 0))


@pytest.mark.parametrize("kernel", [mixed, repeated, own_memory, in_place, added_parts], ids=lambda k: k.name)
def test_emulated_cuda(kernel):
    values, given = arguments(), like(arguments(), 2)
    wanted = adjoints(kernel, values, given)
    made = [g.copy() for g in given]
    with emulated_cuda() as device:
        there = [[device.on_device(v) for v in group] for group in ([v.copy() for v in values], made)]
        nb.launch(kernel, SIZE, there[0], adj_inputs=there[1], adjoint=True)
    for a, b in zip(made[:3], wanted, strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@nb.kernel
def in_a_block(x, out):
    t = cuda.threadIdx.x
    tile = cuda.shared.array(4, np.complex128)
    tile[t] = x[t] * x[t]
    cuda.syncthreads()
    out[t] = tile[3 - t] * tile[t].conjugate()


def test_shared_memory():
    x, given = arguments()[0][:4], like(arguments()[:1], 5)[0][:4]
    by_x, held = np.zeros_like(x), given.copy()
    in_a_block.adjoint(["x", "out"])[1, 4](x, np.zeros_like(x), by_x, held)
    moved, step = like([x], 6)[0], 1e-6
    outs = []
    for sign in (1, -1):
        outs.append(np.zeros_like(x))
        in_a_block[1, 4](x + sign * step * moved, outs[-1])
    slope = (outs[0] - outs[1]) / (2 * step)
    assert math.isclose(inner([by_x], [moved]), inner([given], [slope]), rel_tol=1e-7)


@nb.kernel
def parts_in_a_block(x, out):
    t = cuda.threadIdx.x
    tile, total = cuda.shared.array(4, np.complex128), cuda.shared.array(1, np.complex128)
    tile.real[t] = x[t].imag
    tile.imag[t] = x[t].real
    total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total.imag, 0, abs(x[t]) ** 2)
    cuda.syncthreads()
    out[t] = tile[3 - t] * tile[t] + total[0]


def test_parts_in_shared_memory():
    x, given = arguments()[0][:4], like(arguments()[:1], 5)[0][:4]
    by_x, out = np.zeros_like(x), np.zeros_like(x)
    parts_in_a_block[1, 4](x, out)
    turned = x.imag + 1j * x.real
    np.testing.assert_allclose(out, turned[::-1] * turned + 1j * (np.abs(x) ** 2).sum())
    parts_in_a_block.adjoint(["x", "out"])[1, 4](x, np.zeros_like(x), by_x, given.copy())
    by_turned = turned.conj()[::-1] * (given + given[::-1])
    np.testing.assert_allclose(by_x, by_turned.imag + 1j * by_turned.real + 2 * x * given.imag.sum())


@nb.kernel
def root(x, out):
    i = nb.tid()
    out[i] = cmath.sqrt(x[i])


@nb.kernel
def logarithm(x, out):
    i = nb.tid()
    out[i] = cmath.log(x[i])


def adjoint_of_ones(kernel, *values, names):
    """Return the gradient by the first argument, where that of the result is one."""
    out, by = np.zeros_like(values[0]), [np.zeros_like(value) for value in values]
    nb.launch(kernel.adjoint(names), values[0].size, [*values, out, *by, np.ones_like(out)])
    return by[0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_roots_on_the_axes(sign):
    x = np.array([4.0, 2j, -3j, complex(-4.0, 0.0), complex(-1.0, -0.0), complex(-0.0, 1.0)]) * sign
    np.testing.assert_allclose(adjoint_of_ones(root, x, names=["x", "out"]), np.conj(0.5 / np.sqrt(x)), rtol=1e-14)


def test_logarithms_of_numbers_whose_squares_are_out_of_range():
    x = np.array([1e200 + 2e200j, -1e155 + 1e155j, 1e-160 - 2e-160j, 3e-200j])
    found = adjoint_of_ones(logarithm, x, names=["x", "out"])
    np.testing.assert_allclose(found, np.conj(1 / x), rtol=1e-14)


@nb.kernel
def series(x, factors, out):
    i = nb.tid()
    total = 0j
    for n in range(factors.shape[0]):
        total += factors[n] * x[i] ** n
    out[i] = total


def test_powers_of_zero():
    x, factors = np.array([0j, 0.5 - 1j, 2.0]), np.array([3.0, 1 + 1j, 2j])
    found = adjoint_of_ones(series, x, factors, names=["x", "factors", "out"])
    np.testing.assert_allclose(found, np.conj(factors[1] + 2 * factors[2] * x), rtol=1e-13)


@nb.kernel
def scaled(x, factor: complex, out):
    i = nb.tid()
    out[i] = factor * x[i] + factor.conjugate()


def test_a_number_by_value_is_a_factor_and_has_no_gradient():
    x, given = arguments()[0], like(arguments()[:1], 2)[0]
    by_x, held = np.zeros_like(x), given.copy()
    nb.launch(scaled.adjoint(["x", "out"]), SIZE, [x, 2 - 3j, np.zeros_like(x), by_x, held])
    np.testing.assert_allclose(by_x, (2 + 3j) * given, rtol=1e-14)
    with pytest.raises(NumbridgeTypeError, match=r"'factor' is complex\d+ by value.*pass an array of one element"):
        nb.launch(scaled.adjoint(["x", "factor", "out"]), SIZE, [x, 2 - 3j, np.zeros_like(x), by_x, np.zeros(1), held])


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e15, 1e30])
def test_quotients_and_sizes_out_of_the_range_of_squares(dtype, size):
    values = arguments(dtype)
    values[1] = (values[1] * dtype(size)).astype(dtype)
    given, nothing = like(values, 2), np.zeros_like(values[0])
    found = adjoints(quotient, [*values[:2], values[3]], [nothing, nothing, given[3]], ["x", "y", "out"])
    x, y = values[0].astype(complex), values[1].astype(complex)
    wanted = given[3] / np.conj(y), -given[3] * np.conj(x / y / y)
    with np.errstate(over="ignore"):
        for a, b in zip(found, wanted, strict=False):
            in_range = np.isfinite(b.astype(dtype)) & (np.abs(b) > np.finfo(dtype).tiny * 1e3)
            np.testing.assert_allclose(a[in_range], b[in_range], rtol=1e-5 if dtype == np.complex64 else 1e-12)


@nb.kernel
def quotient(x, y, out):
    i = nb.tid()
    out[i] = x[i] / y[i]


@nb.kernel
def rooted(x, out):
    i = nb.tid()
    out[i] = cmath.sqrt(x[i]) + abs(x[i]) + x[i] ** 2.5


def test_gradients_at_zero_are_numbers():
    zeros, by = np.zeros(3, complex), np.zeros(3, complex)
    nb.launch(rooted.adjoint(["x", "out"]), 3, [zeros, zeros.copy(), by, np.ones(3, complex)])
    assert not by.any()


def test_tapes():
    x = nb.array([1 + 2j, -0.5j], dtype=nb.complex64, requires_grad=True)
    y, loss = nb.zeros(2, nb.complex64, requires_grad=True), nb.zeros(1, requires_grad=True)

    with nb.Tape() as tape:
        nb.launch(doubled, 2, [x], [y])
        nb.launch(summed, 2, [y], [loss])
    tape.backward(loss)
    np.testing.assert_allclose(x.grad.numpy(), 8 * x.numpy(), rtol=1e-6)
    with nb.Tape() as tape:
        nb.launch(doubled, 2, [x], [y])
    with pytest.raises(NumbridgeTypeError, match=r"the loss is complex64, and must be a real number; pass grads="):
        tape.backward(y[:1])


def test_real_numbers_have_real_gradients_on_a_tape():
    r, z = nb.array([1.0, -2.0], requires_grad=True), nb.zeros(2, nb.complex64, requires_grad=True)
    loss = nb.zeros(1, requires_grad=True)
    with nb.Tape() as tape:
        nb.copy(z, r)
        nb.launch(summed, 2, [z], [loss])
    tape.backward(loss)
    np.testing.assert_allclose(r.grad.numpy(), [2.0, -4.0])
    with nb.Tape() as tape:
        copied = r.clone()
    for seed in (np.ones(2, complex), [1j, 2], nb.ones(2, nb.complex64)):
        with pytest.raises(
            NumbridgeTypeError, match=r"the gradient is complex, and its array has real numbers, float32"
        ):
            tape.backward(grads={copied: seed})


@nb.kernel
def doubled(x: nb.array[nb.complex64], y: nb.array[nb.complex64]):
    i = nb.tid()
    y[i] = x[i] * 2.0


@nb.kernel
def summed(y: nb.array[nb.complex64], loss: nb.array[nb.float32]):
    i = nb.tid()
    nb.atomic_add(loss, 0, y[i].real ** 2 + y[i].imag ** 2)


REFUSED = (
    ("out[i] = cmath.asin(x[i])", r"cmath.asin has no derivative for complex numbers here.*z.real"),
    ("out[i] = x[i] // 2", "there is no such operation"),
    ("out[i] = x.real[1:][0]", "slices of the parts of complex arrays"),
    ("if x[i]:\n        out[i] = 1.0", "a real number is needed here, and this is complex.*z != 0"),
    ("out[i] = np.maximum(x[i], y[i])", "np.maximum has no derivative for complex numbers here"),
    ("h = cuda.local.array(2, np.complex128); h.real[0] = r[i]; out[i] = h[0]", "store whole ones"),
)


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_is_refused(line, message):
    kernel = kernel_of(line)
    with pytest.raises(KernelError, match=message) as error:
        kernel.adjoint(NAMES).ptx(*arguments(), *arguments(), capability=(9, 0))
    assert line.splitlines()[0].split("[")[0] in str(error.value)


def kernel_of(line):
    """Return a kernel of a line."""
    return made(f"def k(x, y, r, out):\n    i = nb.tid()\n    {line}\n", cmath=cmath, np=np)[0]


LEAVES = st.sampled_from(("x[i]", "y[i]", "r[i]", "x[i - 1]", "2.0", "0.5j", "(1.5 - 0.5j)", "3"))
UNARY = st.sampled_from(
    (
        "-{}",
        "{}.conjugate()",
        "cmath.exp(0.2 * {} + 0j)",
        "cmath.sin({} + 0j)",
        "abs({})",
        "({} + 0j).real",
        "({} + 0j).imag",
    ),
)
BINARY = st.sampled_from(("({} + {})", "({} - {})", "({} * {})", "({} / ({} + 4.5))"))


def expressions(children):
    complex_only = children.map(lambda text: f"({text} + 0j)")
    return st.builds(lambda form, a: form.format(a), UNARY, complex_only) | st.builds(
        lambda form, a, b: form.format(a, b), BINARY, children, children
    )


@settings(max_examples=14, deadline=None)
@given(st.recursive(LEAVES, expressions, max_leaves=6), st.integers(0, 1000))
def test_random_expressions(text, seed):
    kernel = kernel_of(f"out[i] = {text}")
    values = arguments(seed=seed)
    moved, given_ = like(values, seed + 1), like(values, seed + 2)
    tangents = [m.copy() for m in moved]
    nb.launch(kernel.tangent(NAMES), SIZE, [*(v.copy() for v in values), *tangents])
    step = 1e-6
    ends = [ran(kernel, [v + sign * step * m for v, m in zip(values, moved, strict=True)])[3] for sign in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * step)
    scale = max(np.abs(slope).max(), np.abs(ends[0]).max(), 1.0)
    np.testing.assert_allclose(tangents[3], slope, atol=2e-5 * scale, rtol=2e-5)
    found = adjoints(kernel, values, given_)
    assert math.isclose(inner(found, moved), inner(given_, tangents), rel_tol=1e-9, abs_tol=1e-9 * scale)
