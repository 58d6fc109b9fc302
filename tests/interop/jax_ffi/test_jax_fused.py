"""Pointwise kernels as operations of XLA: the same bits as the compiled handler, what is fused, what is refused."""

from __future__ import annotations

import functools
import math
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxpr_as_fun

import numbridge as nb
import pointwise_programs
from numbridge.jax_ffi import fused

N = 20


@nb.kernel
def add(a: nb.array[float], b: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    if i < out.shape[0]:
        out[i] = a[i] + b[i]


@nb.kernel
def axpy(a: float, x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = a * x[i] + out[i]


@nb.kernel
def scale(x: nb.array[float], a: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = a * x[i]


def is_fused(f, *arguments):
    return "numbridge_fused" in jax.jit(f).lower(*arguments).as_text()


def assert_same_bits(got, want):
    for a, b in zip(map(np.asarray, got), map(np.asarray, want), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        same = a == b
        if a.dtype.kind == "f":
            # Of what is no number, which one it is depends on the order of operands, which compilers choose.
            same = (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")) | (np.isnan(a) & np.isnan(b))
        assert same.all(), (a[~same], b[~same])


def floats(count=N, seed=0, dtype="float32"):
    return jnp.asarray(pointwise_programs.values(dtype, count, np.random.default_rng(seed)))


# --------------------------------------------------------------------------------------------------------------------
# The same bits


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_random_programs(data):
    def pick(n):
        return data.draw(st.integers(0, n - 1))

    integers = pick(3) == 0
    kinds = pointwise_programs.INTEGERS if integers else pointwise_programs.FLOATS
    text = pointwise_programs.Writer(pick, integers=integers).program()
    kernel = pointwise_programs.made(text, (kinds[pick(len(kinds))], kinds[pick(len(kinds))]))
    rng = np.random.default_rng(pick(1000))
    with jax.enable_x64(True):
        x, y, z = (jnp.asarray(pointwise_programs.values(kinds[pick(len(kinds))], N, rng)) for _ in range(3))
        a = pointwise_programs.values(kinds[pick(len(kinds))], 1, rng)[0]
        run = functools.partial(nb.jax_kernel, kernel, 3, in_out_argnames=["z"])
        way = (lambda f: f, jax.jit, lambda f: jax.jit(f, static_argnums=(2, 3)))[pick(3)]
        compiled, default = way(run(fuse=False)), way(run())
        try:
            want = compiled(x, y, a, 5, z)
        except nb.KernelError:
            return  # types that Numba does not mix, such as a shift by a float
        assert_same_bits(default(x, y, a, 5, z), want)


FORMULAS = (
    "x[i] / 3.0",
    "(x[i] / y[i]) / 0.7",
    "x[i] / (y[i] / 0.3)",
    "x[i] + 0.0",
    "(x[i] + 0.1) + 0.2",
    "(x[i] * 0.1) * 0.2",
    "x[i] / math.sqrt(y[i])",
    "min(x[i], y[i])",
    "max(x[i], y[i])",
    "x[i] if x[i] > y[i] else y[i]",
    "abs(x[i])",
    "-x[i]",
    "0.0 - x[i]",
    "np.float32(np.float64(x[i]) / 3.0)",
    "x[i] * y[i]",
    "x[i] ** 2",
    "np.float32(0.1) + np.float64(x[i])",
    "math.copysign(1.0, x[i]) if False else x[i] - y[i]",
    "1.0 if math.isnan(x[i]) else (2.0 if math.isinf(x[i]) else 3.0)",
    "i / (x[i] - 1.0)",
    "np.floor(x[i]) + np.ceil(y[i])",
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("formula", FORMULAS)
def test_what_xla_would_rewrite_stays(formula):
    text = f"def generated(x, y, a, n, z, out, both):\n    i = nb.tid()\n    out[i] = {formula}\n    both[i] = out[i]\n"
    kernel = pointwise_programs.made(text + "    z[i] = 1.0\n", ("float32", "float32"))
    run = functools.partial(nb.jax_kernel, kernel, 3, in_out_argnames=["z"])
    arguments = (floats(47), floats(47, 1), 1.0, 5, floats(47, 2))
    assert is_fused(run(), *arguments)
    assert_same_bits(jax.jit(run())(*arguments), jax.jit(run(fuse=False))(*arguments))


@pytest.mark.parametrize("way", [lambda f: f, jax.jit, lambda f: jax.jit(f, static_argnums=(1, 2))])
@pytest.mark.parametrize("low", [3, -1, 2.5, True])
def test_numbers_guards_and_arrays_in_place(way, low):
    x, changed = jnp.arange(-N, N, dtype=jnp.int32), jnp.arange(2 * N, dtype=jnp.int32)

    @nb.kernel
    def below(x, low, n, changed, out: nb.array[nb.int32]):
        i = nb.tid()
        if i >= n:
            return
        changed[i] += 1
        if x[i] < low:
            out[i] = i
            return
        out[i] = x[i] + 1

    run = functools.partial(nb.jax_kernel, below, 2, in_out_argnames=["changed"])
    assert is_fused(lambda x, changed: run()(x, low, 30, changed), x, changed)
    assert_same_bits(way(run())(x, low, 30, changed), way(run(fuse=False))(x, low, 30, changed))


def test_wide_types_without_x64():
    @nb.kernel
    def mixed(x: nb.array[nb.int32], y: nb.array[float], out: nb.array[float], high: nb.array[nb.int32]):
        i = nb.tid()
        out[i] = x[i] / y[i]  # float64 in Numba
        high[i] = (x[i] + x[i]) if x[i] + x[i] > 2147483647 else i  # int64

    x, y = jnp.array([1, 2147483647, -2147483648, 16777217], jnp.int32), jnp.array([3.0, 0.7, 1e-30, 1.0])
    assert not jax.config.jax_enable_x64
    assert is_fused(nb.jax_kernel(mixed, 2), x, y)
    got = jax.jit(nb.jax_kernel(mixed, 2))(x, y)
    assert_same_bits(got, nb.jax_kernel(mixed, 2, fuse=False)(x, y))
    assert got[1].tolist() == [0, -2, 2, 3]


@nb.kernel
def outer(x: nb.array[float], y: nb.array[float], first: nb.array2d[float], out: nb.array2d[float]):
    i, j = nb.tid()
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = (x[i] - y[j]) / first[0, -1] + i


def test_what_is_read_along_some_axes_or_at_one_place():
    x, y, first = jnp.arange(3.0), jnp.arange(4.0), jnp.full((2, 2), 3.0)
    f = functools.partial(nb.jax_kernel(outer), launch_dims=(3, 4))
    assert is_fused(f, x, y, first)
    want = (x[:, None] - y) / 3 + jnp.arange(3.0)[:, None]
    np.testing.assert_allclose(f(x, y, first)[0], want, rtol=1e-6)
    many = jax.vmap(f, (0, None, 1))(jnp.stack([x, x + 1]), y, jnp.stack([first, 2 * first], 1))
    np.testing.assert_allclose(many[0][1], (x[:, None] + 1 - y) / 6 + jnp.arange(3.0)[:, None], rtol=1e-6)


def test_functions_and_derivatives_by_hand():
    @nb.func
    def halved(v):
        return v / 2.0

    @nb.func_grad(halved)
    def adj_halved(v, g):
        return 100.0 * g

    @nb.kernel
    def uses(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = halved(x[i]) - 1.0

    f = nb.jax_kernel(uses, enable_backward=True)
    assert is_fused(f, floats())
    assert jax.jit(f)(jnp.arange(3.0))[0].tolist() == [-1.0, -0.5, 0.0]
    assert jax.grad(lambda x: f(x)[0].sum())(jnp.arange(3.0)).tolist() == [100.0] * 3


# --------------------------------------------------------------------------------------------------------------------
# What is fused


def test_small_calls_with_certain_results_are_fused():
    x = jnp.arange(16.0)
    assert is_fused(nb.jax_kernel(add), x, x) and not is_fused(nb.jax_kernel(add, fuse=False), x, x)
    assert is_fused(functools.partial(nb.jax_kernel(add, fuse=False), fuse=True), x, x)
    assert not is_fused(functools.partial(nb.jax_kernel(add), fuse=False), x, x)
    most, more = jnp.ones(fused.MOST_OPERATIONS - 1), jnp.ones(fused.MOST_OPERATIONS)
    assert is_fused(nb.jax_kernel(add), most, most) and not is_fused(nb.jax_kernel(add), more, more)
    assert is_fused(nb.jax_kernel(add, fuse=True), more, more)
    assert not is_fused(jax.vmap(nb.jax_kernel(add)), jnp.ones((10, 100)), jnp.ones((10, 100)))
    assert not is_fused(nb.jax_kernel(add, has_side_effect=True), x, x)


def test_what_xla_computes_otherwise_is_fused_on_demand():
    @nb.kernel
    def wave(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = math.sin(x[i]) * math.exp(-x[i]) + math.asinh(x[i]) - math.atan2(1.0, x[i])

    x = jnp.linspace(0, 3, 16)
    run = functools.partial(nb.jax_kernel, axpy, in_out_argnames=["out"])
    for make, arguments in ((run, (0.5, x, x)), (functools.partial(nb.jax_kernel, wave), (x,))):
        assert not is_fused(make(), *arguments) and is_fused(make(fuse=True), *arguments)
        np.testing.assert_allclose(make(fuse=True)(*arguments)[0], make(fuse=False)(*arguments)[0], rtol=1e-6)
    made = [nb.jax_kernel(wave, enable_backward=True, fuse=fuse) for fuse in (True, False)]
    tangents = [jax.jvp(lambda x, f=f: f(x)[0], (x,), (jnp.ones_like(x),))[1] for f in made]
    np.testing.assert_allclose(*tangents, rtol=2e-6)


def test_numbers_alone_are_computed_by_the_handler():
    @nb.kernel
    def tiny(x: nb.array[float], a: float, out: nb.array[float]):
        i = nb.tid()
        out[i] = a * 1e-20 if x[i] > 0 else x[i]

    # XLA's compiler would multiply before the program runs, where the product is a denormal number and not zero.
    f = functools.partial(nb.jax_kernel(tiny), jnp.ones(3), 1e-20)
    assert not is_fused(f) and jax.jit(f)()[0].tolist() == [0.0] * 3

    @nb.kernel
    def widened(x: nb.array[nb.int32], a: float, out: nb.array[nb.int32]):
        i = nb.tid()
        out[i] = 1 if x[i] < a else 2  # in float64

    # So would it convert, where what is denormal in float32 is none.
    x = jnp.zeros(3, jnp.int32)
    for a, want in ((1e-40, False), (1e-37, True)):

        def g(x, a=a):
            return nb.jax_kernel(widened)(x, a)

        assert is_fused(g, x) == want and jax.jit(g)(x)[0].tolist() == [1 if want else 2] * 3
        assert is_fused(nb.jax_kernel(widened), x, a)
        assert_same_bits(nb.jax_kernel(widened)(x, a), nb.jax_kernel(widened, fuse=False)(x, a))


def test_other_platforms_keep_the_handler():
    x = jnp.ones(4)

    def on_cuda(f):
        return jax.jit(f).trace(x, x).lower(lowering_platforms=("cuda",)).as_text()

    assert "@numbridge_launch" in on_cuda(nb.jax_kernel(add)) and "numbridge_fused" not in on_cuda(nb.jax_kernel(add))
    text = on_cuda(nb.jax_kernel(add, fuse=True))
    assert "@numbridge_launch" not in text and "numbridge_fused" in text and "optimization_barrier" not in text


def test_several_kernels():
    def both(x: nb.array[float], out: nb.array[float]):
        half = nb.zeros(x.shape)
        nb.launch(scale, x.shape, [x, 0.5], [half])
        nb.launch(add, x.shape, [half, x], [out])

    x = jnp.arange(8.0)
    fused_text = jax.jit(nb.jax_callable(both)).lower(x).as_text()
    assert "@numbridge_launch" not in fused_text
    assert "numbridge_fused" not in jax.jit(nb.jax_callable(both, fuse=False)).lower(x).as_text()
    for mode in (nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE):
        assert (jax.jit(nb.jax_callable(both, graph_mode=mode))(x)[0] == 1.5 * x).all()
    with pytest.raises(nb.NumbridgeValueError, match=r"fuse=True is for GraphMode\.JAX"):
        nb.jax_callable(both, graph_mode=nb.GraphMode.NONE, fuse=True)

    def jumps(x: nb.array[float], out: nb.array[float]):
        nb.launch(summed, x.shape, [x], [out])

    with pytest.raises(nb.KernelUnsupportedError, match=r"kernel 'summed'.*fuse=True.*a loop"):
        nb.jax_callable(jumps, fuse=True)(x)


# --------------------------------------------------------------------------------------------------------------------
# Refusals


@nb.kernel
def summed(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    total = 0.0
    for k in range(3):
        total += x[k]
    out[i] = total


@nb.kernel
def counted(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    nb.atomic_add(out, i, x[i])


@nb.kernel
def shifted(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i - 1]


@nb.kernel
def reversed_(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[out.shape[0] - 1 - i] = x[i]


@nb.kernel
def truncated(x: nb.array[float], out: nb.array[nb.int32]):
    i = nb.tid()
    out[i] = int(x[i])


@nb.kernel
def checked(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    if x[i] < 0:
        raise ValueError
    out[i] = x[i]


@nb.kernel
def printing(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    print(i)
    out[i] = x[i]


@nb.kernel
def halves(x: nb.array[nb.int32], out: nb.array[nb.int32]):
    i = nb.tid()
    out[i] = x[i] // 2


@nb.kernel
def half_floats(x: nb.array[nb.float16], out: nb.array[nb.float16]):
    i = nb.tid()
    out[i] = x[i]


@nb.kernel
def of_vectors(x: nb.array[nb.vec3], out: nb.array[nb.vec3]):
    i = nb.tid()
    out[i] = x[i]


REFUSED = [
    (summed, jnp.ones(4), r"a loop is more than one operation"),
    (counted, jnp.ones(4), r"an atomic operation is more than one operation"),
    (shifted, jnp.ones(4), r"x is read at an index that is computed"),
    (reversed_, jnp.ones(4), r"out is used at another place than the thread's own element"),
    (truncated, jnp.ones(4), r"float32 is converted to int64, which XLA defines otherwise"),
    (checked, jnp.ones(4), r"the kernel raises an exception"),
    (printing, jnp.ones(4), r"printing prints; take that out"),
    (halves, jnp.ones(4, jnp.int32), r"cannot be fused: XLA has no operation that surely computes the same"),
    (half_floats, jnp.ones(4, jnp.float16), r"out is of 16-bit floats"),
    (of_vectors, jnp.ones((4, 3)), r"only truth values, integers, float32 and float64 can be fused"),
]


@pytest.mark.parametrize(("kernel", "x", "message"), REFUSED, ids=lambda value: getattr(value, "name", None))
def test_what_is_not_pointwise_is_refused(kernel, x, message):
    said = rf"kernel '{kernel.name}' under JAX cannot be fused with XLA's operations \(fuse=True\); leave out fuse=True"
    with pytest.raises(nb.KernelUnsupportedError, match=said) as caught:
        nb.jax_kernel(kernel, fuse=True)(x)
    assert re.search(message, str(caught.value))
    if kernel is not printing:
        assert re.search(r"test_jax_fused\.py:\d+:\d+", str(caught.value)) or kernel in (half_floats, of_vectors)
        assert not is_fused(nb.jax_kernel(kernel), x)


def test_shapes_that_are_not_the_launchs():
    f, x = nb.jax_kernel(add, fuse=True), jnp.ones(6)
    with pytest.raises(
        nb.KernelUnsupportedError, match=r"axis 0 of argument 'b' has 7 element\(s\), and the launch 6; make"
    ):
        f(x, jnp.ones(7))
    with pytest.raises(nb.KernelUnsupportedError, match=r"axis 0 of argument 'a' has 6 element\(s\), and the launch 4"):
        f(x, x, launch_dims=4)
    assert nb.jax_kernel(add)(x, jnp.ones(7))[0].tolist() == [2.0] * 6
    assert nb.jax_kernel(add)(x, x, launch_dims=4, output_dims=6)[0].tolist() == [2.0] * 4 + [0.0] * 2
    g = functools.partial(nb.jax_kernel(outer, fuse=True), launch_dims=(3, 4))
    with pytest.raises(
        nb.NumbridgeValueError,
        match=r"argument 'first': its shape is \(2, 0\), and a launch over \(3, 4\) takes first\[0, -1\], so",
    ):
        g(jnp.ones(3), jnp.ones(4), jnp.ones((2, 0)))


def test_wrong_options():
    with pytest.raises(nb.NumbridgeTypeError, match=r"kernel 'add': fuse is 1; it must be True, False or None"):
        nb.jax_kernel(add, fuse=1)
    with pytest.raises(nb.NumbridgeValueError, match=r"kernel 'add': fuse=True .* leave out fuse or has_side_effect"):
        nb.jax_kernel(add, fuse=True, has_side_effect=True)
    with pytest.raises(nb.NumbridgeTypeError, match=r"fuse is 'yes'"):
        nb.jax_kernel(add)(jnp.ones(3), jnp.ones(3), fuse="yes")


def test_an_output_that_is_read_first():
    @nb.kernel
    def half_stored(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = out[i] + x[i]

    # It starts as zeros, which is a sum to both.
    assert_same_bits(nb.jax_kernel(half_stored)(floats()), nb.jax_kernel(half_stored, fuse=False)(floats()))


# --------------------------------------------------------------------------------------------------------------------
# Transformations


@pytest.mark.parametrize("method", ["broadcast_all", "expand_dims", "sequential"])
@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (1, None), (1, 0)])
def test_batches(method, axes):
    shapes = {0: (3, 5), 1: (5, 3), None: (5,)}
    a, b = (floats(math.prod(shapes[axis]), seed).reshape(shapes[axis]) for seed, axis in enumerate(axes))
    f, g = (nb.jax_kernel(add, vmap_method=method, fuse=fuse) for fuse in (None, False))
    assert is_fused(jax.vmap(f, axes), a, b)
    assert_same_bits(jax.jit(jax.vmap(f, axes))(a, b), jax.vmap(g, axes)(a, b))


def test_batches_of_batches_numbers_and_arrays_in_place():
    x, y, s = floats(12).reshape(3, 4), floats(24, 1).reshape(2, 3, 4), jnp.arange(2.0)

    @nb.kernel
    def taken(a: float, x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = (out[i] - x[i]) / a

    f, g = (nb.jax_kernel(taken, in_out_argnames=["out"], fuse=fuse) for fuse in (None, False))
    two = [jax.vmap(jax.vmap(h, (None, 0, 0)), (0, None, 0)) for h in (f, g)]
    assert is_fused(two[0], s, x, y)
    assert_same_bits(two[0](s, x, y), two[1](s, x, y))
    mapped = [jax.vmap(h, (None, 0, None)) for h in (f, g)]
    assert_same_bits(mapped[0](2.0, x, x[0]), mapped[1](2.0, x, x[0]))


@pytest.mark.parametrize("fuse", [None, True])
def test_derivatives(fuse):
    @nb.kernel
    def ratio(x: nb.array[float], y: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = x[i] / y[i] if x[i] > 1.0 else min(x[i], y[i])

    x, y = jnp.array([0.5, 2.0, 3.0]), jnp.array([0.25, 4.0, 5.0])
    f, g = (nb.jax_kernel(ratio, enable_backward=True, fuse=way) for way in (fuse, False))

    def loss(h):
        return lambda x, y: (h(x, y)[0] ** 2).sum()

    for transform in (
        lambda h: jax.grad(loss(h), (0, 1))(x, y),
        lambda h: jax.jvp(lambda x, y: h(x, y)[0], (x, y), (y, x)),
        lambda h: (jax.hessian(loss(h))(x, y), jax.jacfwd(loss(h))(x, y)),
        lambda h: jax.jit(jax.grad(jax.checkpoint(loss(h))))(x, y),
        lambda h: jax.vmap(jax.grad(loss(h)))(jnp.stack([x, y]), jnp.stack([y, x])),
    ):
        for got, want in zip(jax.tree.leaves(transform(f)), jax.tree.leaves(transform(g)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    # A tangent by one argument is a product, by both it is a sum of products.
    one = jax.jit(lambda x: jax.jvp(lambda x: f(x, y)[0], (x,), (x,))).lower(x).as_text()
    both = jax.jit(lambda x: jax.jvp(lambda x: f(x, x)[0], (x,), (x,))).lower(x).as_text()
    assert "@numbridge_launch" not in one and ("@numbridge_launch" in both) == (fuse is None)


def test_control_flow_and_step_by_step():
    f = nb.jax_kernel(add)
    x = jnp.arange(4.0)
    total, _ = jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c, x)[0], None), x, length=3))(x)
    assert (total == 4 * x).all()
    with jax.disable_jit():
        assert (f(x, x)[0] == 2 * x).all()


def test_donated_arrays_are_used_in_place():
    @nb.kernel
    def grown(x: nb.array[float]):
        i = nb.tid()
        x[i] += 1.0

    f = jax.jit(nb.jax_kernel(grown, in_out_argnames=["x"]), donate_argnums=0)
    x = jnp.arange(16.0)
    where = x.unsafe_buffer_pointer()
    (out,) = f(x)
    assert out.tolist() == list(range(1, 17)) and out.unsafe_buffer_pointer() == where and x.is_deleted()
    kept = jnp.arange(16.0)
    assert nb.jax_kernel(grown, in_out_argnames=["x"])(kept)[0][0] == 1 and kept[0] == 0


def test_programs_that_are_exported_need_no_handler():
    x = jnp.arange(4.0)
    made = jax.export.export(jax.jit(nb.jax_kernel(add)))(x, x)
    assert (jax.export.deserialize(made.serialize()).call(x, x)[0] == 2 * x).all()
    (rows,) = jax.export.symbolic_shape("rows")
    shaped = jax.ShapeDtypeStruct((rows,), jnp.float32)
    checks = [jax.export.DisabledSafetyCheck.custom_call("numbridge_launch")]
    open_ended = jax.export.export(jax.jit(nb.jax_kernel(add)), disabled_checks=checks)(shaped, shaped)
    assert (open_ended.call(x, x)[0] == 2 * x).all() and "@numbridge_launch" in open_ended.mlir_module()
    with pytest.raises(nb.KernelUnsupportedError, match="because its shapes are symbolic dimensions"):
        jax.export.export(jax.jit(nb.jax_kernel(add, fuse=True)))(shaped, shaped)
    both = jax.export.export(jax.jit(nb.jax_kernel(add)), platforms=("cpu", "cuda"), disabled_checks=checks)(x, x)
    assert (both.call(x, x)[0] == 2 * x).all()


shift = 1.0


def test_a_program_runs_what_it_was_traced_with():
    @nb.kernel
    def shifts(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = x[i] - shift

    global shift  # noqa: PLW0603
    f, x = nb.jax_kernel(shifts), jnp.zeros(3)
    jaxpr = jax.make_jaxpr(f)(x)
    again = jax.jit(jaxpr_as_fun(jaxpr))
    shift = 5.0
    try:
        assert again(x)[0].tolist() == [-1.0] * 3
        assert jax.vmap(jaxpr_as_fun(jaxpr))(jnp.zeros((2, 3)))[0].tolist() == [[-1.0] * 3] * 2
        assert jax.jit(lambda x: f(x)[0])(x).tolist() == [-5.0] * 3
    finally:
        shift = 1.0


def test_a_second_process_reads_no_source(run_python, tmp_path, cache_without_kernels, monkeypatch):
    monkeypatch.setenv("NUMBRIDGE_CACHE_DIR", cache_without_kernels)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport jax, jax.numpy as jnp, numbridge as nb\n"
        "@nb.kernel\ndef add(a: nb.array[float], b: nb.array[float], out: nb.array[float]):\n"
        "    i = nb.tid()\n    out[i] = a[i] + b[i]\n"
        "f = jax.jit(nb.jax_kernel(add))\nx = jnp.ones(4)\n"
        "assert 'numbridge_fused' in f.lower(x, x).as_text() and f(x, x)[0].tolist() == [2.0] * 4\n"
        "print('numba' in sys.modules)\n"
    )
    ran = [run_python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')").strip() for _ in range(2)]
    assert ran == ["True", "False"]
