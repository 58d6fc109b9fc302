"""Derivatives of kernels under JAX: every kernel of the adjoint tests to second order, and every transformation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import numbridge as nb
from adjoint_cases import CASES, name_of
from compiled_calls import as_function, jax_kernel


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


# The derivatives of all cases, of both orders, are checked elsewhere (test_reverse.py, test_forward.py, test_derive.py): that JAX
# asks for the right ones, a fourth of them show, half of which for those of second order.
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("case", "order"), [pytest.param(case, 2 - k // 4 % 2, id=name_of(case)) for k, case in enumerate(CASES)]
)
def test_check_grads(case, order):
    kernel, dim, *values = case
    run, given = as_function(kernel, dim, values)
    check_grads(run, given, order=order, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4, eps=1e-5)


# Transformations, against functions of jax.numpy


@nb.kernel
def blend(x: nb.array, w: nb.array, a: nb.float64, n: int, y: nb.array, z: nb.array):
    i = nb.tid()
    s = x[i]
    for _k in range(n):
        s = s * w[i] + nb.sin(a * s)
    y[i] = s
    z[i] = x[i] * x[i] * a


def blend_jax(x, w, a, n):
    s = x
    for _ in range(n):
        s = s * w + jnp.sin(a * s)
    return s, x * x * a


f = jax_kernel(blend, 2, enable_backward=True)
x0, w0 = np.linspace(0.2, 0.9, 5), np.linspace(-0.5, 0.7, 5)


def loss(function):
    def run(x, w, a):
        y, z = function(x, w, a, 3)
        return (jnp.tanh(y) * z).sum()

    return run


def same(transform, *arguments, of=loss, tolerance=1e-9):
    """Check that a transformation gives for the kernel what it gives for the function of jax.numpy; return that."""
    got, wanted = transform(of(f))(*arguments), transform(of(blend_jax))(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, wanted)
    got = jax.jit(transform(of(f)))(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, wanted)


ALL = (0, 1, 2)
ONES = (np.ones(5), np.full(5, 0.5), 0.3)
TRANSFORMATIONS = {
    "grad": lambda g: jax.grad(g, ALL),
    "value_and_grad": lambda g: jax.value_and_grad(g, ALL),
    "vjp": lambda g: lambda *a: jax.vjp(g, *a)[1](0.7),
    "jvp": lambda g: lambda *a: jax.jvp(g, a, ONES),
    "jvp of one": lambda g: lambda x, w, a: jax.jvp(lambda w: g(x, w, a), (w,), (ONES[1],)),
    "linearize": lambda g: lambda *a: jax.linearize(g, *a)[1](*ONES),
    "linear_transpose": lambda g: lambda *a: jax.linear_transpose(jax.linearize(g, *a)[1], *a)(0.7),
    "jacfwd": lambda g: jax.jacfwd(g, ALL),
    "jacrev": lambda g: jax.jacrev(g, ALL),
    "hessian": lambda g: jax.hessian(g, ALL),
    "jacfwd of jacfwd": lambda g: jax.jacfwd(jax.jacfwd(g, ALL), ALL),
    "jacrev of jacrev": lambda g: jax.jacrev(jax.jacrev(g, ALL), ALL),
    "jacrev of jacfwd": lambda g: jax.jacrev(jax.jacfwd(g, ALL), ALL),
    "grad of grad": lambda g: jax.grad(lambda *a: sum((p**2).sum() for p in jax.grad(g, (0, 1))(*a)), ALL),
    "third derivative": lambda g: jax.jacfwd(jax.hessian(g)),
    "remat": lambda g: jax.grad(jax.checkpoint(g), ALL),
    "remat of the second": lambda g: jax.hessian(jax.checkpoint(g), ALL),
    "custom batch of gradients": lambda g: lambda x, w, a: jax.lax.map(lambda b: jax.grad(g)(x, w, b), jnp.arange(3.0)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformations(name):
    same(TRANSFORMATIONS[name], x0, w0, 0.8)


METHODS = ["broadcast_all", "expand_dims", "sequential", "sequential_unrolled", "legacy_vectorized"]
BATCHES = {
    "all": ((4, 5), (4, 5), (4,), (0, 0, 0)),
    "inputs": ((4, 5), (5,), (), (0, None, None)),
    "weights": ((5,), (5, 4), (), (None, 1, None)),
    "number": ((5,), (5,), (4,), (None, None, 0)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", BATCHES)
def test_batches(method, batch):
    *shapes, axes = BATCHES[batch]
    arguments = [np.random.default_rng(k).uniform(0.2, 0.9, shape) for k, shape in enumerate(shapes)]

    def of(function):
        def call(x, w, a, n):
            return function(x, w, a, n, vmap_method=method) if function is f else function(x, w, a, n)

        return loss(call)

    def both(g):
        gradients = jax.vmap(jax.grad(g, ALL), axes)
        whole = jax.grad(lambda *a: jnp.sin(jax.vmap(g, axes)(*a)).sum(), ALL)
        tangents = jax.jvp(jax.vmap(g, axes), arguments, [np.full(shape, 0.7) for shape in shapes])
        return lambda *a: (gradients(*a), whole(*a), tangents)

    same(both, *arguments, of=lambda function: of(function) if function is f else loss(function))


def test_nested_batches():
    x, w, a = np.random.default_rng(0).uniform(0.2, 0.9, (3, 2, 5)), w0, np.array([0.3, 0.8])

    def nested(g):
        inner = jax.vmap(jax.vmap(g, (0, None, 0)), (0, None, None))
        return lambda *given: (
            jax.grad(lambda *b: (inner(*b) ** 2).sum(), ALL)(*given),
            jax.vmap(jax.vmap(jax.hessian(g), (0, None, 0)), (0, None, None))(*given),
        )

    same(nested, x, w, a)


def test_scan_and_while():
    def scanned(g):
        def run(x, w, a):
            return jax.lax.scan(lambda c, b: (jnp.tanh(jax.grad(g)(c, w, b)), g(c, w, a)), x, jnp.linspace(0.1, 1, 4))

        def total(x, w, a):
            last, all_of_them = jax.lax.scan(
                lambda c, b: (c - 0.1 * g(c, w, b), g(c, w, a)), x, jnp.linspace(0.1, 1, 4)
            )
            return last.sum() + all_of_them.sum()

        def steps(x, w, a):
            return jax.lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] - 0.1 * g(s[0], w, a), s[1] + 1), (x, 0))[0]

        return lambda *b: (
            run(*b),
            jax.grad(total, ALL)(*b),
            jax.grad(jax.checkpoint(total), ALL)(*b),
            jax.jvp(steps, b, ONES),
        )

    same(scanned, x0, w0, 0.8)


def test_cond_and_switch():
    def chosen(g):
        return lambda x, w, a: jax.grad(
            lambda x, a: (
                jax.lax.cond(a > 0.5, lambda: g(x, w, a), lambda: g(w, x, a)) + jax.lax.switch(1, [g] * 2, x, w, a)
            ),
            (0, 1),
        )(x, a)

    same(chosen, x0, w0, 0.8)


# What goes in and out


def test_integer_arguments_get_float0():
    @nb.kernel
    def gather(
        x: nb.array[nb.float64], index: nb.array[nb.int64], n: int, y: nb.array[nb.float64], k: nb.array[nb.int64]
    ):
        i = nb.tid()
        y[i] = x[index[i]] * x[index[i]] * n
        k[i] = index[i]

    g = jax_kernel(gather, 2, launch_dims=4, enable_backward=True)
    x, index = jnp.arange(1.0, 4.0), jnp.array([0, 2, 2, 1])
    (_, k), pull = jax.vjp(g, x, index, 3)
    by_x, by_index, by_n = pull((jnp.ones(4), np.zeros(4, jax.dtypes.float0)))
    np.testing.assert_array_equal(by_x, [6.0, 12.0, 36.0])
    assert by_index.dtype == by_n.dtype == jax.dtypes.float0 and by_index.shape == (4,)
    assert (k == index).all()
    _, tangents = jax.jvp(lambda x: g(x, index, 3), (x,), (jnp.ones(3),))
    assert tangents[1].dtype == jax.dtypes.float0
    np.testing.assert_array_equal(tangents[0], 6 * x[index])
    np.testing.assert_array_equal(jax.grad(lambda x: g(x, index, 3)[0].sum(), allow_int=True)(x), by_x)


def test_unused_outputs_and_zero_cotangents():
    same(lambda g: jax.grad(g, ALL), x0, w0, 0.8, of=lambda function: lambda *a: function(*a, 3)[0].sum())
    same(lambda g: jax.grad(g, ALL), x0, w0, 0.8, of=lambda function: lambda *a: function(*a, 3)[1].sum())
    _, pull = jax.vjp(lambda x: f(x, w0, 0.8, 3), x0)
    assert (pull((jnp.zeros(5), jnp.zeros(5)))[0] == 0).all()
    grad = jax.grad(lambda x: (0.0 * f(x, w0, 0.8, 3)[0]).sum() + jax.lax.stop_gradient(f(x, w0, 0.8, 3)[1]).sum())
    assert (grad(x0) == 0).all()


@nb.kernel
def relax(
    state: nb.array[nb.float64], source: nb.array[nb.float64], seen: nb.array[nb.int32], total: nb.array[nb.float64]
):
    i = nb.tid()
    state[i] = state[i] * state[i] + source[i]
    seen[i] += 1
    nb.atomic_add(total, 0, state[i] * source[i])


def test_in_out_arguments_of_several_dtypes():
    g = jax_kernel(
        relax, 3, launch_dims=3, in_out_argnames=["state", "seen"], output_dims={"total": 1}, enable_backward=True
    )
    state, source, seen = jnp.array([0.2, 0.5, 0.9]), jnp.array([1.0, 0.3, -0.4]), jnp.zeros(3, jnp.int32)

    def run(state, source):
        for _ in range(2):
            state, _, total = g(state, source, seen)
        return state, total

    def wanted(state, source):
        for _ in range(2):
            state = state * state + source
            total = (state * source).sum()[None]
        return state, total

    for got, right in zip(run(state, source), wanted(state, source), strict=True):
        np.testing.assert_allclose(got, right)
    check_grads(run, (state, source), order=2, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4, eps=1e-5)
    for transform in (jax.jacrev, jax.jacfwd, jax.hessian):
        got, right = transform(run, (0, 1))(state, source), transform(wanted, (0, 1))(state, source)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, right)
    donated = jax.jit(lambda s, c: jax.grad(lambda s: sum(map(jnp.sum, run(s, c))))(s), donate_argnums=0)
    np.testing.assert_allclose(
        donated(jnp.array(state), source), jax.grad(lambda s: sum(map(jnp.sum, wanted(s, source))))(state)
    )
    assert (state == jnp.array([0.2, 0.5, 0.9])).all()


IN_OUT_BATCHES = {
    "state": ((4, 3), (3,), (0, None)),
    "source": ((3,), (4, 3), (None, 0)),
    "both": ((4, 3), (3, 4), (0, 1)),
}


@pytest.mark.one_in(2, first=1)
@pytest.mark.parametrize("method", ["broadcast_all", "sequential"])
@pytest.mark.parametrize("batch", IN_OUT_BATCHES)
def test_batches_of_in_out_arguments(method, batch):
    g = jax_kernel(
        relax, 3, method, 3, in_out_argnames=["state", "seen"], output_dims={"total": 1}, enable_backward=True
    )
    *shapes, axes = IN_OUT_BATCHES[batch]
    given = [jnp.asarray(np.random.default_rng(k).uniform(0.2, 0.9, shape)) for k, shape in enumerate(shapes)]

    def ours(state, source):
        state, _, total = g(state, source, jnp.zeros(3, jnp.int32))
        return (jnp.sin(state) * total).sum()

    def right(state, source):
        state = state * state + source
        return (jnp.sin(state) * (state * source).sum()).sum()

    def both(h):
        def whole(*arguments):
            return (jax.vmap(h, axes)(*arguments) ** 2).sum()

        return lambda *a: (jax.vmap(jax.grad(h, (0, 1)), axes)(*a), jax.grad(whole, (0, 1))(*a), jax.hessian(whole)(*a))

    got, wanted = jax.jit(both(ours))(*given), both(right)(*given)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), got, wanted)


@nb.kernel
def scatter(x: nb.array[nb.float32], out: nb.array2d[nb.float32]):
    i = nb.tid()
    if i > 0:
        out[i, 1] = x[i] * x[i - 1] * out[i, 0] + x[i]


def test_outputs_start_as_zeros_and_may_stay_so():
    g = jax_kernel(scatter, launch_dims=4, output_dims=(4, 3), enable_backward=True)
    x = jnp.arange(1, 5, dtype=jnp.float32)
    jacobian = jax.jacrev(lambda x: g(x)[0])(x)
    wanted = np.zeros((4, 3, 4), np.float32)
    wanted[range(1, 4), 1, range(1, 4)] = 1
    np.testing.assert_array_equal(jacobian, wanted)
    np.testing.assert_array_equal(jax.jacfwd(lambda x: g(x)[0])(x), wanted)
    assert jacobian.dtype == jnp.float32


def test_an_argument_that_is_its_own_cotangent():
    def run(x):
        (y, _), pull = jax.vjp(lambda x: f(x, w0, 0.8, 3), x)
        return pull((x, x))[0], y, pull((y, x))[0]

    def right(x):
        (y, _), pull = jax.vjp(lambda x: blend_jax(x, w0, 0.8, 3), x)
        return pull((x, x))[0], y, pull((y, x))[0]

    for got, wanted in zip(jax.jit(run)(x0), right(x0), strict=True):
        np.testing.assert_allclose(got, wanted)
    x = jnp.array([0.2, 0.5, 0.9])
    g = jax_kernel(
        relax, 3, launch_dims=3, in_out_argnames=["state", "seen"], output_dims={"total": 1}, enable_backward=True
    )
    pulled = jax.jit(lambda x: jax.vjp(lambda s, c: g(s, c, jnp.zeros(3, jnp.int32))[0], x, x)[1](x))(x)
    np.testing.assert_allclose(pulled[0], 2 * x * x)
    np.testing.assert_allclose(pulled[1], x)


def test_static_numbers_of_every_kind():
    for a in (np.float32(0.5), np.float64(0.5), 0.5, jnp.float32(0.5)):
        got = jax.grad(lambda x, a=a: f(x, w0, a, 2)[1].sum())(x0)
        np.testing.assert_allclose(got, x0, rtol=1e-6)
    by_a = jax.grad(lambda a: f(x0, w0, a, 2)[1].sum())(jnp.float32(0.5))
    assert by_a.dtype == jnp.float32 and np.isclose(by_a, (x0 * x0).sum())


def test_no_threads_and_empty_batches():
    empty = jnp.zeros(0)
    assert jax.grad(lambda x: f(x, x, 1.0, 2)[0].sum())(empty).shape == (0,)
    assert jax.vmap(jax.grad(lambda x: f(x, w0, 1.0, 2)[0].sum()))(jnp.zeros((0, 5))).shape == (0, 5)


def test_outside_of_a_program():
    with jax.disable_jit():
        np.testing.assert_allclose(jax.grad(loss(f))(x0, w0, 0.8), jax.grad(loss(blend_jax))(x0, w0, 0.8))
    seen = jax_kernel(blend, 2, enable_backward=True, has_side_effect=True)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(jax.hessian(loss(seen)), (0, None, None)))(x0[None], w0, 0.8)[0],
        jax.hessian(loss(blend_jax))(x0, w0, 0.8),
    )


def test_eager_gradients_do_not_grow(growth):
    gradient, x, numbers = jax.grad(loss(f), (0, 2)), jnp.asarray(x0), iter(range(10_000))
    assert growth(lambda: gradient(x, w0, float(next(numbers))), 1000) < 1 << 20


# Refusals


def test_a_kernel_is_not_linear():
    message = (
        r"'blend' under JAX is not linear as far as JAX knows, so it cannot be transposed; transpose its jax\.jvp, or"
    )
    with pytest.raises(nb.KernelUnsupportedError, match=message):
        jax.linear_transpose(lambda x: f(x, w0, 0.8, 3), x0)((x0, x0))


def test_a_derivative_is_linear_in_one_direction_at_a_time():
    def once(x, v):
        return jax.jvp(lambda x: f(x, w0, 0.8, 3)[0], (x,), (v,))[1]

    def twice(v, w):
        return jax.jvp(lambda x: once(x, v), (x0,), (w,))[1]

    for wanted, got in zip(
        jax.linear_transpose(lambda v: twice(v, x0), x0)(x0),
        jax.linear_transpose(lambda w: twice(x0, w), x0)(x0),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted)
    for run, count in ((twice, 2), (lambda x: once(x, x0), 1)):
        with pytest.raises(nb.KernelUnsupportedError, match=r"'blend' under JAX, derivative: it is linear .* at once"):
            jax.linear_transpose(run, *[x0] * count)(x0)


def test_refusals_at_trace_time():
    @nb.kernel
    def exchanged(x: nb.array[nb.float32], y: nb.array[nb.float32]):
        i = nb.tid()
        nb.atomic_max(y, 0, x[i])

    g = jax_kernel(exchanged, launch_dims=4, output_dims=1, enable_backward=True)
    x = jnp.ones(4, jnp.float32)
    with pytest.raises(nb.KernelUnsupportedError, match=r"atomic_max[\s\S]*nb\.atomic_max\(y, 0, x\[i\]\)|atomic"):
        jax.jit(jax.grad(lambda x: g(x)[0].sum())).trace(x)
    with pytest.raises(nb.KernelUnsupportedError, match="atomic"):
        jax.jit(lambda x: jax.jvp(g, (x,), (x,))).lower(x)

    @nb.kernel(enable_backward=False)
    def off(x: nb.array[nb.float32], y: nb.array[nb.float32]):
        i = nb.tid()
        y[i] = x[i]

    with pytest.raises(nb.KernelError, match="declared with enable_backward=False"):
        jax.grad(lambda x: jax_kernel(off, enable_backward=True)(x)[0].sum())(x)


def test_a_derivative_by_hand_comes_before_jax_has_traced_one():
    @nb.func
    def third_power(x):
        return x * x * x

    @nb.kernel
    def powers(x: nb.array1d[float], y: nb.array1d[float]):
        i = nb.tid()
        y[i] = third_power(x[i])

    f = nb.jax_kernel(powers, enable_backward=True)
    x = jnp.ones(3, jnp.float32)
    f(x)
    assert np.allclose(jax.grad(lambda x: f(x)[0].sum())(x), 3)
    with pytest.raises(nb.KernelError, match="third_power has been differentiated by JAX, which keeps the derivative"):
        nb.func_grad(third_power)(lambda x, cotangent: 0.0)
    assert np.allclose(jax.grad(lambda x: f(x)[0].sum())(x), 3)
