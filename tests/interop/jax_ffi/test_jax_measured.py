"""Adjoints that CUDA must measure first, inside JAX: XLA has Python launch them; here on the CPU, and over emulated devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import numbridge as nb
from adjoint_cases import CASES, name_of
from compiled_calls import as_function
from emulated_cupy import emulated_devices
from numbridge.jax_ffi import callback, measured_calls, primitive
from numbridge.kernels.adjoint.derive import Derivative

TARGET = measured_calls.MEASURED_TARGET
MEASURED = [
    case
    for case in CASES
    if name_of(case)
    in (
        "changed_between",
        "in_place_nested-3",
        "local_memory",
        "read_before_and_after-9",
        "squares_in_a_loop-3",
        "stored_in_the_loop",
        "written_slices",
    )
]


@nb.kernel
def powers(x: nb.array[float], a: float, n: int, y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i]
    for _ in range(n):
        y[i] = a * y[i] * y[i]


@nb.kernel
def turned(x: nb.array[nb.vec3], by: nb.vec3, y: nb.array[nb.vec3]):
    i = nb.tid()
    y[i] = x[i]
    for _ in range(3):
        y[i] = nb.cross(y[i], by) + nb.dot(y[i], y[i]) * by


@nb.kernel
def plain(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


def targets_of(function, *operands, platform):
    text = jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,)).as_text()
    return {name for name in (TARGET, "numbridge_launch") if f"@{name}(" in text}


def test_where_python_launches():
    x = jnp.ones(5)
    gradient = jax.grad(lambda x: nb.jax_kernel(powers, enable_backward=True)(x, 1.0, 3)[0].sum())
    for function, operand in ((gradient, x), (jax.vmap(gradient), jnp.ones((2, 5)))):
        assert TARGET in targets_of(function, operand, platform="cuda")
        assert targets_of(function, operand, platform="cpu") == {"numbridge_launch"}
    square = jax.grad(lambda x: nb.jax_kernel(plain, enable_backward=True, fuse=False)(x)[0].sum())
    assert targets_of(square, x, platform="cuda") == {"numbridge_launch"}
    # The kernel itself needs nothing.
    forward = nb.jax_kernel(powers)
    assert targets_of(lambda x: forward(x, 1.0, 3)[0], x, platform="cuda") == {"numbridge_launch"}


@pytest.fixture
def launched(monkeypatch):
    """How many launches Python made: of every derivative, since JAX has the CPU alone here."""
    counts = []

    def counted(*arguments):
        counts.append(arguments)
        measured_calls.launch_measured(*arguments[:3], arguments[3])
        counts[-1] = None  # what XLA lends goes back

    def chosen(call, on_cpu):
        return primitive._measured_runner(call) if isinstance(call.kernel, Derivative) else None

    measured_calls.register_measured()
    monkeypatch.setattr(primitive, "fused", chosen)
    monkeypatch.setitem(callback._functions, (TARGET, "cpu"), counted)
    jax.clear_caches()
    yield counts
    jax.clear_caches()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", MEASURED, ids=name_of)
def test_gradients_to_second_order(launched, case):
    kernel, dim, *values = case
    with jax.enable_x64(True):
        run, given = as_function(kernel, dim, values)
        check_grads(run, given, order=2, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4, eps=1e-5)
    assert len(launched) > 3


def expected(x, a, n):
    for _ in range(n):
        x = a * x * x
    return x


@pytest.mark.parametrize("traced", [False, True])
def test_numbers_and_batches_of_them(launched, traced):
    f = nb.jax_kernel(powers, enable_backward=True)
    x, a = jnp.linspace(0.5, 1.0, 12).reshape(3, 4), jnp.array([0.5, 1.0, 1.5], jnp.float32)

    def both(function):
        def gradients(x, a):
            return jax.grad(lambda x, a: (function(x, a) ** 2).sum(), (0, 1))(x, a)

        mapped = jax.vmap(jax.vmap(gradients, (0, None)), (None, 0))
        return (jax.jit(mapped) if traced else mapped)(x, a)

    for found, wanted in zip(both(lambda x, a: f(x, a, 2)[0]), both(lambda x, a: expected(x, a, 2)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert launched


def test_vectors(launched):
    f = nb.jax_kernel(turned, enable_backward=True)
    x, by = jnp.array([[0.1, 0.2, 0.3], [0.3, -0.2, 0.1]]), jnp.array([0.2, 0.1, -0.3])

    def plainly(x, by):
        for _ in range(3):
            x = jnp.cross(x, by) + (x * x).sum(-1, keepdims=True) * by
        return x

    def gradients(function):
        return jax.jit(jax.grad(lambda x, by: (function(x, by) ** 2).sum(), (0, 1)))(x, by)

    for found, wanted in zip(gradients(lambda x, by: f(x, by)[0]), gradients(plainly), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-7)
    assert launched


def test_over_emulated_devices(launched, monkeypatch):
    """XLA's buffers are copied to a device and back, where the adjoint is measured and gets its memory."""

    def there(inputs, outputs, attributes, context):
        device = nb.get_device("cuda:1")
        given = [nb.array(x.numpy(), dtype=x.dtype, device=device) for x in inputs]
        made = [nb.full(y.shape, 7, dtype=y.dtype, device=device) for y in outputs]
        measured_calls.launch_measured(given, made, attributes, callback.CallContext(device, 0))
        for y, result in zip(outputs, made, strict=True):
            y.numpy()[...] = result.numpy()
        launched.append(None)

    monkeypatch.setitem(callback._functions, (TARGET, "cpu"), there)
    f, x = nb.jax_kernel(powers, enable_backward=True), jnp.linspace(0.5, 1.0, 12).reshape(3, 4)
    with emulated_devices():
        found = jax.vmap(jax.grad(lambda x: f(x, 1.1, 2)[0].sum()))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.grad(lambda x: expected(x, 1.1, 2).sum()))(x), rtol=1e-5)
    assert launched


factor = 2.0


@nb.kernel
def scaled_powers(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i]
    for _ in range(2):
        y[i] = factor * y[i] * y[i]


def test_a_kernel_that_has_become_another_one_is_not_run(launched, monkeypatch):
    gradient, x = (
        jax.jit(jax.grad(lambda x: nb.jax_kernel(scaled_powers, enable_backward=True)(x)[0].sum())),
        jnp.ones(3),
    )
    np.testing.assert_allclose(gradient(x), 4 * 2.0**3)
    monkeypatch.setitem(globals(), "factor", 3.0)
    with pytest.raises((ValueError, RuntimeError), match="what it reads from outside itself has changed"):
        jax.block_until_ready(gradient(x))


def test_a_program_from_elsewhere_needs_its_kernel(launched):
    words = np.zeros(64, np.int64)
    with pytest.raises(nb.KernelError, match="no kernel that computes the same has been declared in this process"):
        measured_calls.launch_measured([], [], {"kernel": "unknown_here\nadjoint x y", "words": words}, None)
