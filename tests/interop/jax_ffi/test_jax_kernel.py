"""Kernels as JAX functions: inputs and outputs, dimensions, numbers, in-out arguments, and what is refused at trace time."""

from __future__ import annotations

import functools
import gc
import inspect
import re
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from block_dim_cases import TILE, factors, places, places2, products
from compiled_calls import jax_kernel

a16 = jnp.arange(16, dtype=jnp.float32)


@nb.kernel
def triple(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = 3.0 * x[i]


@nb.kernel
def add(a: nb.array[int], b: nb.array[int], out: nb.array[int]):
    i = nb.tid()
    out[i] = a[i] + b[i]


@nb.kernel
def sincos(angle: nb.array[float], sin_out: nb.array[float], cos_out: nb.array[float]):
    i = nb.tid()
    sin_out[i] = nb.sin(angle[i])
    cos_out[i] = nb.cos(angle[i])


@nb.kernel
def count(out: nb.array[int]):
    i = nb.tid()
    out[i] = i


@nb.kernel
def scale(x: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * s


@nb.kernel
def scale_any(x, s, out):
    i = nb.tid()
    out[i] = x[i] * s


@nb.kernel
def matmul(a: nb.array2d[float], b: nb.array2d[float], c: nb.array2d[float]):
    i, j = nb.tid()
    n = a.shape[0]
    m = b.shape[1]
    if i < n and j < m:
        s = nb.float32(0)
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        c[i, j] = s


@nb.kernel
def head_and_tail(a: nb.array[float], b: nb.array[float], c: nb.array[float]):
    i = nb.tid()
    b[i] = a[i]
    c[0] = a[a.shape[0] - 1]


@nb.kernel
def row_sums(m: nb.array2d[float], sums: nb.array1d[float]):
    i, j = nb.tid()
    nb.atomic_add(sums, i, m[i, j])


@nb.kernel
def some(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    if x[i] > 0:
        out[i] = x[i]


def test_one_input_and_one_output():
    f = jax_kernel(triple)
    for run in (f, jax.jit(f), jax.jit(jax.jit(f))):
        (out,) = run(a16)
        assert isinstance(out, jax.Array) and out.dtype == jnp.float32
        assert (out == 3 * a16).all()


def test_several_outputs():
    f = jax_kernel(sincos, num_outputs=2)
    s, c = jax.jit(f)(a16)
    np.testing.assert_allclose(s, np.sin(a16), rtol=1e-6)
    np.testing.assert_allclose(c, np.cos(a16), rtol=1e-6)


def test_no_inputs():
    f = jax_kernel(count)
    assert f(launch_dims=4)[0].tolist() == [0, 1, 2, 3]
    assert jax.jit(lambda: f(launch_dims=(3,)))()[0].tolist() == [0, 1, 2]
    assert jax_kernel(count, launch_dims=2)()[0].tolist() == [0, 1]


def test_launch_dims_of_each_call():
    f = jax_kernel(matmul)

    @jax.jit
    def run(a, b):
        return f(a, b, launch_dims=(3, 4))[0], f(b.T, a.T, launch_dims=[4, 3])[0]

    a, b = jnp.arange(6.0).reshape(3, 2), jnp.arange(8.0).reshape(2, 4)
    one, two = run(a, b)
    np.testing.assert_allclose(one, a @ b)
    np.testing.assert_allclose(two, (a @ b).T)
    np.testing.assert_allclose(jax_kernel(matmul, launch_dims=(3, 4))(a, b)[0], a @ b)


def test_output_dims():
    f = jax_kernel(head_and_tail, num_outputs=2)
    b, c = f(a16)
    assert b.shape == c.shape == (16,)
    b, c = f(a16, output_dims=20)
    assert b.shape == c.shape == (20,) and (b[:16] == a16).all() and not b[16:].any()
    b, c = jax.jit(lambda x: f(x, output_dims={"b": 16, "c": (1,)}))(a16)
    assert b.shape == (16,) and c.tolist() == [15]
    b, c = f(a16, launch_dims=3, output_dims={"c": 2, "b": [5]})
    assert b.tolist() == [0, 1, 2, 0, 0] and c.tolist() == [15, 0]
    assert jax_kernel(head_and_tail, 2, output_dims={"b": 16, "c": 1})(a16)[1].shape == (1,)


def test_what_is_not_stored_is_zero():
    f = jax_kernel(some)
    x = jnp.array([-1.0, 2, -3, 4] * 100)
    for run in (f, jax.jit(f)):
        for _ in range(5):
            assert (run(x)[0] == jnp.maximum(x, 0)).all()
            jnp.full(400, 7.0).block_until_ready()  # leaves memory behind that is not zero


def test_an_empty_launch():
    assert jax_kernel(triple)(jnp.zeros(0))[0].shape == (0,)
    assert jax_kernel(triple)(a16, launch_dims=0, output_dims=3)[0].tolist() == [0, 0, 0]


def test_in_out_arguments():
    f = jax_kernel(row_sums, in_out_argnames=["sums"])
    m, start = jnp.arange(12.0).reshape(3, 4), jnp.ones(3)
    for run in (f, jax.jit(f)):
        (sums,) = run(m, start)
        assert sums.tolist() == [7, 23, 39] and start.tolist() == [1, 1, 1]


def test_a_donated_argument_is_used_in_place():
    f = jax.jit(jax_kernel(row_sums, in_out_argnames=["sums"]), donate_argnums=1)
    m, start = jnp.ones((300, 4)), jnp.zeros(300)
    where = start.unsafe_buffer_pointer()
    (sums,) = f(m, start)
    assert sums.unsafe_buffer_pointer() == where and start.is_deleted() and (sums == 4).all()


@nb.kernel
def mixed(x: nb.array[float], state: nb.array[float], k: int, out: nb.array[float], last: nb.array[int]):
    i = nb.tid()
    state[i] += x[i]
    out[i] = state[i] * k
    last[i] = k


def test_in_out_arguments_come_first_among_the_outputs():
    f = jax_kernel(mixed, num_outputs=3, in_out_argnames=["state"])
    state, out, last = jax.jit(f)(a16, a16, jnp.int32(3))
    assert (state == 2 * a16).all() and (out == 6 * a16).all() and (last == 3).all()
    assert [x.dtype for x in f(a16, a16, 3)] == [jnp.float32, jnp.float32, jnp.int32]


def test_numbers():
    f = jax_kernel(scale)
    want = (2.5 * a16).tolist()
    assert f(a16, 2.5)[0].tolist() == want
    assert f(a16, np.float64(2.5))[0].tolist() == want
    assert f(a16, jnp.float32(2.5))[0].tolist() == want
    assert f(a16, 2)[0].tolist() == (2 * a16).tolist()
    assert jax.jit(f)(a16, 2.5)[0].tolist() == want
    assert jax.jit(f)(a16, jnp.int32(2))[0].tolist() == (2 * a16).tolist()
    assert jax.jit(f, static_argnums=1)(a16, 2.5)[0].tolist() == want
    assert jax.jit(lambda x: f(x, 2.5))(a16)[0].tolist() == want


def test_traced_integers_that_may_not_fit_are_refused():
    f = jax_kernel(mixed, num_outputs=3, in_out_argnames=["state"])
    for run in (f, jax.jit(f)):
        with pytest.raises(
            nb.NumbridgeTypeError, match=r"'k': wanted int32, got uint32\[\], .* use x.astype\('int32'\)"
        ):
            run(a16, a16, jnp.uint32(3_000_000_000))
        assert (run(a16, a16, jnp.int8(-3))[2] == -3).all()
        with jax.enable_x64(True):
            with pytest.raises(nb.NumbridgeTypeError, match="'k': wanted int32, got int64"):
                run(a16, a16, jnp.int64(3))
            # Python's own integers and loops' indices are of no particular width.
            assert (run(a16, a16, 3)[2] == 3).all()
            assert jax.lax.fori_loop(2, 5, lambda k, x, run=run: run(x, x, k)[1], a16).shape == a16.shape


def test_a_static_number_is_an_attribute_and_compiles_no_kernel():
    f = jax_kernel(scale)
    programs = [jax.jit(lambda x, s=s: f(x, s)).lower(a16) for s in (2.0, 3.0)]
    texts = [program.as_text() for program in programs]
    words = [re.search(r"words = dense<([^>]*)>", text).group(1) for text in texts]
    assert all("custom_call @numbridge_launch(%arg0)" in text and 'kernel = "scale"' in text for text in texts)
    assert words[0] != words[1] and words[0].split(",")[:20] == words[1].split(",")[:20]


def test_a_new_number_in_an_eager_call_compiles_nothing(caplog):
    f = jax_kernel(scale)
    f(a16, 1.0)
    with jax.log_compiles():
        for k in range(20):
            assert np.asarray(f(a16, float(k))[0])[1] == k
        assert "Compiling" not in caplog.text
        f(np.ones(17, np.float32), 1.0)
        assert "Compiling" in caplog.text


def test_unannotated_parameters_take_what_comes():
    f = jax_kernel(scale_any)
    assert f(a16, 2.0)[0].dtype == jnp.float32
    assert f(jnp.arange(3), 2)[0].tolist() == [0, 2, 4]
    assert f(jnp.arange(3), 2)[0].dtype == jnp.int32
    assert jax.jit(f)(a16, 0.5)[0].tolist() == (a16 / 2).tolist()
    assert f(a16.astype(jnp.int8), jnp.int8(2))[0].dtype == jnp.int8


@pytest.fixture
def wide():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def test_a_python_float_follows_the_arrays(wide):
    f, third = jax_kernel(scale_any), 1 / 3
    for run in (f, jax.jit(f, static_argnums=1), jax.jit(f)):
        for dtype in (jnp.float64, jnp.float32, jnp.float64):
            (out,) = run(jnp.ones(3, dtype), third)
            assert out.dtype == dtype and out[0] == dtype(third)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint16",
        "int32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ],
)
def test_dtypes(wide, dtype):
    @nb.kernel
    def copy(x, out):
        i = nb.tid()
        out[i] = x[i]

    x = jnp.arange(5).astype(dtype)
    (out,) = jax.jit(jax_kernel(copy))(x)
    assert out.dtype == dtype and (out == x).all()


def test_transposed_arrays_arrive_in_c_order():
    @nb.kernel
    def flat(x: nb.array2d[float], out: nb.array2d[float]):
        i, j = nb.tid()
        out[i, j] = x[i, j] + 10 * j

    x = jnp.arange(6.0).reshape(2, 3)
    (out,) = jax.jit(lambda x: jax_kernel(flat)((x * 2).T))(x)
    assert (out == (2 * x).T + 10 * jnp.arange(2)).all()


def test_arrays_of_numpy():
    assert (jax_kernel(triple)(np.arange(4, dtype=np.float32))[0] == 3 * jnp.arange(4)).all()


def test_large_launches_run_on_all_threads():
    f = jax_kernel(triple)
    x = jnp.arange(1 << 20, dtype=jnp.float32)
    assert (f(x)[0] == 3 * x).all()
    batch = x.reshape(1 << 10, 1 << 10)
    assert (jax.vmap(f)(batch)[0] == 3 * batch).all()
    assert (jax.vmap(f)(batch[:, :7])[0] == 3 * batch[:, :7]).all()


def test_a_raising_kernel_is_an_error():
    @nb.kernel
    def positive(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        assert x[i] > 0
        out[i] = x[i]

    f = jax.jit(jax_kernel(positive))
    f(a16 + 1)
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=r"kernel 'positive' under JAX raised an exception"
    ):
        jax.block_until_ready(f(-a16))


def test_side_effects():
    f = jax_kernel(triple)
    g = jax_kernel(triple, has_side_effect=True)

    def unused(h):
        return jax.jit(lambda x: (h(x), x + 1)[1]).lower(a16).compile().as_text()

    assert "numbridge_launch" not in unused(f) and "numbridge_launch" in unused(g)
    assert (g(a16)[0] == 3 * a16).all()


def test_globals_are_those_of_the_trace_and_an_eager_call_sees_new_ones():
    f = jax_kernel(uses_factor)
    jitted = jax.jit(f)
    try:
        assert f(a16)[0][1] == 2 and jitted(a16)[0][1] == 2
        globals()["FACTOR"] = 5
        assert f(a16)[0][1] == 5 and jitted(a16)[0][1] == 2
        assert jax.jit(lambda x: f(x)[0] + 0)(a16)[1] == 5
    finally:
        globals()["FACTOR"] = 2


FACTOR = 2


@nb.kernel
def uses_factor(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * FACTOR


def test_attributes_of_a_function_are_its_own():
    def double(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = helper(x[i])

    def helper(v):
        return 2.0 * v

    for function in (double, helper):
        for name in (
            "source",
            "file",
            "structures",
            "_boxed",
            "_calls",
            "_signature",
            "_options",
            "_lock",
            "is_current",
        ):
            setattr(function, name, None)
    helper = nb.func(helper)
    kernel = nb.kernel(double)
    assert (nb.jax_kernel(kernel)(a16)[0] == 2 * a16).all()
    out = np.zeros(16, np.float32)
    nb.launch(kernel, 16, [np.ones(16, np.float32)], [out])
    assert (out == 2).all()


def test_control_flow():
    f = jax_kernel(triple)
    assert (jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: f(y)[0], x))(a16) == 27 * a16).all()
    assert (jax.lax.scan(lambda c, _: (f(c)[0], None), a16, None, length=2)[0] == 9 * a16).all()
    assert (jax.jit(lambda p, x: jax.lax.cond(p, lambda y: f(y)[0], lambda y: y, x))(True, a16) == 3 * a16).all()
    assert jax.eval_shape(f, a16)[0].shape == (16,)
    assert (jax.checkpoint(lambda x: f(x)[0])(a16) == 3 * a16).all()
    with jax.disable_jit():
        assert (f(a16)[0] == 3 * a16).all()


def test_there_is_no_derivative_unless_it_was_asked_for():
    f = jax_kernel(triple)
    with pytest.raises(
        nb.KernelUnsupportedError, match="'triple' under JAX was wrapped without derivatives; pass enable_backward=True"
    ):
        jax.grad(lambda x: f(x)[0].sum())(a16)
    assert (jax.grad(lambda x: (f(jax.lax.stop_gradient(x))[0] * x).sum())(a16) == 3 * a16).all()


@nb.kernel
def reads_scalar(x: nb.array[float], k: nb.int8, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] + k


@nb.kernel
def untyped(a, b, out):
    i = nb.tid()
    out[i] = a[i] + b[i]


@nb.kernel
def two_results(x: nb.array[float], up: nb.array[float], down: nb.array[float]):
    i = nb.tid()
    up[i], down[i] = x[i] + 1, x[i] - 1


@nb.kernel
def reads_double(x: nb.array[nb.float64], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i]


@nb.kernel
def writes_input(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    x[i] = 1
    out[i] = x[i]


CALLS = {
    "dtype": (
        lambda x: jax_kernel(triple)(x.astype(int)),
        r"argument 'x': wanted array1d\[float32\], got int32\[16\]; use x.as",
    ),
    "rank": (
        lambda x: jax_kernel(triple)(x.reshape(4, 4)),
        r"argument 'x': wanted array1d\[float32\], of 1 .*float32\[4, 4\]",
    ),
    "count": (
        lambda x: jax_kernel(triple)(x, x),
        r"takes 1 argument\(s\) \(x\), got 2; the outputs \(out\) are returned, not passed \(num_outputs=1\)(\n|$)",
    ),
    "count of outputs": (
        lambda x: jax_kernel(two_results)(x + 0),
        r"takes 2 .*\(x, up\), got 1; .*\(num_outputs=1\); to have up returned too, pass num_outputs=2(\n|$)",
    ),
    "64 bits": (
        lambda x: jax_kernel(reads_double)(x + 0),
        r"'x': wanted array1d\[float64\], got float32.*'jax_enable_x64', True\) before, and use x.astype\('float64'\)",
    ),
    "tensor": (
        lambda x: jax_kernel(triple)(nb.ones(16)),
        r"'x': wanted a JAX array or a number, got Array; .*or share its memory by nb.convert\(x, 'jax'\)",
    ),
    "scalar": (lambda x: jax_kernel(scale)(x, x), r"argument 's': wanted a scalar float32, got float32\[16\]"),
    "array": (lambda x: jax_kernel(triple)(2.0), r"argument 'x': wanted array1d\[float32\], got .*; pass an array"),
    "lossy": (
        lambda x: jax_kernel(reads_scalar)(x, x[0]),
        r"argument 'k': wanted int8, got float32\[\], which would lose",
    ),
    "lossy number": (
        lambda x: jax_kernel(reads_scalar)(x, 1.5),
        r"argument 'k': wanted int8, got a float.*would lose",
    ),
    "too large": (
        lambda x: jax_kernel(reads_scalar)(x, 300),
        r"argument 'k': 300 does not fit into int8 \(-128 to 127\)",
    ),
    "object": (
        lambda x: jax_kernel(triple)([1.0]),
        r"argument 'x': wanted a JAX array or a number, got list; .*asarray",
    ),
    "no dims": (
        lambda x: jax_kernel(count)(),
        r"kernel 'count' under JAX: no launch dimensions: .*pass launch_dims",
    ),
    "dims rank": (
        lambda x: jax_kernel(triple)(x, launch_dims=(4, 4)),
        r"dim of kernel 'triple': \(4, 4\) has 2 dimension",
    ),
    "inferred rank": (
        lambda x: jax_kernel(untyped)(x.reshape(4, 4), x),
        r"argument 'a': its shape \(4, 4\) .*pass launch_dims",
    ),
    "negative dims": (lambda x: jax_kernel(triple)(x, launch_dims=-1), r"launch_dims: -1 has a negative extent"),
    "odd dims": (
        lambda x: jax_kernel(triple)(x, launch_dims="4"),
        r"launch_dims: wanted an int or a tuple of ints, got '4'",
    ),
    "too many threads": (
        lambda x: jax_kernel(matmul)(x, x, launch_dims=(1 << 40, 1 << 40)),
        r"launch_dims: \(1099511627776, 1099511627776\) is more than 64 bits can count",
    ),
    "grid": (
        lambda x: jax_kernel(count)(launch_dims=1 << 64, output_dims=1),
        r"launch_dims: 18446744073709551616 is more than 64 bits can count",
    ),
    "output rank": (
        lambda x: jax_kernel(triple)(x, output_dims=(4, 4)),
        r"output 'out': it is annotated as array1d\[float32\]",
    ),
    "output name": (
        lambda x: jax_kernel(triple)(x, output_dims={"y": 4}),
        r"output_dims names 'y', and the outputs are out",
    ),
    "output missing": (
        lambda x: jax_kernel(sincos, 2)(x, output_dims={"sin_out": 4}),
        r"has no entry for 'cos_out'",
    ),
    "output in-out": (
        lambda x: jax_kernel(row_sums, in_out_argnames=["sums"])(x.reshape(4, 4), x[:4], output_dims={"sums": 4}),
        r"output_dims names 'sums', an in-out argument",
    ),
    "output dtype": (
        lambda x: jax_kernel(untyped)(x, x.astype(int)),
        r"output 'out': its dtype cannot be inferred, because the arguments have 2 different dtypes \(float32, int32\)",
    ),
    "written": (
        lambda x: jax_kernel(writes_input)(x + 0),
        r"argument 'x': the kernel writes to it, .*in_out_argnames",
    ),
    "never written": (lambda x: jax_kernel(triple, 2)(), r"no launch dimensions"),
    "read output": (lambda x: jax_kernel(scale, 3)(launch_dims=4), r"output 's': an output must be an array"),
    "never": (lambda x: jax_kernel(triple, 2)(launch_dims=4), r"output 'x': the kernel never writes to it"),
    "never changes": (
        lambda x: jax_kernel(triple, 2, in_out_argnames=["x"])(x + 0),
        r"argument 'x': in_out_argnames names it, and the kernel never writes to it; leave it out there, and of num_outputs=2",
    ),
    "method": (
        lambda x: jax_kernel(triple)(x, vmap_method="all"),
        r"vmap_method is 'all'; it must be one of broadcast_all",
    ),
    "key": (
        lambda x: jax_kernel(untyped)(jax.random.key(0), x),
        r"argument 'a': .*key<fry>.* is not a scalar type.*; pass the numbers of the keys, jax.random.key_data\(x\)",
    ),
    "half a byte": (
        lambda x: jax_kernel(untyped)(x, x.astype(jnp.uint4)),
        r"argument 'b': .*uint4.* is not a scalar type.*; use x.astype\('uint8'\)",
    ),
    "four bits of a float": (
        lambda x: jax_kernel(untyped)(x.astype(jnp.float4_e2m1fn), x),
        r"argument 'a': .*float4.* is not a scalar type.*; use x.astype\('float32'\)",
    ),
    "records": (
        lambda x: jax_kernel(untyped)(np.zeros(4, [("a", "f4"), ("b", "i4")]), x),
        r"argument 'a': JAX has no records .*pass records.view\(np.uint8\)",
    ),
    "byte order": (
        lambda x: jax_kernel(triple)(np.zeros(4, ">f4")),
        r"argument 'x': JAX has no dtype '>f4'; convert",
    ),
    "text": (lambda x: jax_kernel(untyped)(x, "four"), r"argument 'b': wanted a JAX array or a number, got str"),
    "unhashable": (
        lambda x: jax_kernel(triple)(x, launch_dims=np.arange(3)),
        r"dimensions are ints, or tuples of ints, that are known when JAX traces the call, .* got array",
    ),
    "in-out number": (
        lambda x: jax_kernel(row_sums, in_out_argnames=["sums"])(x.reshape(4, 4), 1.0),
        r"argument 'sums': an in-out argument must be an array",
    ),
    "wide": (
        lambda x: jax_kernel(wide_output)(x + 0),
        r"output 'out': JAX would narrow float64; set jax.config.update\('jax_enable_x64', True\)",
    ),
}


@nb.kernel
def wide_output(x: nb.array[float], out: nb.array[nb.float64]):
    i = nb.tid()
    out[i] = x[i]


@pytest.mark.parametrize("case", CALLS)
def test_what_is_wrong_is_said_when_it_is_traced(case):
    call, message = CALLS[case]
    with pytest.raises(nb.NumbridgeError, match=message):
        call(a16)
    with pytest.raises(nb.NumbridgeError, match=message):
        jax.eval_shape(call, a16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_outputs": 0}, r"kernel 'mixed': num_outputs=0 must be at least 1"),
        ({"num_outputs": 6}, r"num_outputs=6, and there are only 5 parameters \(x, state, k, out, last\)"),
        ({"num_outputs": "2"}, r"num_outputs is '2'; it must be an int"),
        ({"in_out_argnames": ["y"]}, r"in_out_argnames names 'y', and the parameters are x, state"),
        ({"in_out_argnames": "state"}, r"in_out_argnames is the string 'state'; pass a list of names"),
        (
            {"in_out_argnames": ["x", "x"], "num_outputs": 2},
            r"in_out_argnames names 'x' twice; an output is named once",
        ),
        (
            {"in_out_argnames": ["x", "state"]},
            r"num_outputs=1 must be at least 1 and count the 2 in-out argument\(s\) \(x, state\)",
        ),
        (
            {"in_out_argnames": ["out"], "num_outputs": 3},
            r"'out' is an output twice: it is in in_out_argnames and among the last 2",
        ),
        ({"vmap_method": None}, r"vmap_method is None; it must be one of"),
        ({"block_dim": 0}, r"block_dim of kernel 'mixed': wanted an int from 1 to 1024, got 0"),
        (
            {"block_dim": 1.5},
            r"block_dim of kernel 'mixed': wanted an int from 1 to 1024, or a tuple of up to 3 ints, got 1.5",
        ),
        ({"sharding_rule": "i"}, r"sharding_rule 'i' has no \"->\"; write such as \"i k, k j -> i j\""),
    ],
)
def test_contradictions_are_refused_when_a_kernel_is_wrapped(options, message):
    with pytest.raises(nb.NumbridgeError, match=message):
        jax_kernel(mixed, **options)


def test_only_kernels_are_wrapped():
    with pytest.raises(nb.NumbridgeTypeError, match=r"jax_kernel: wanted a kernel, got .*decorate"):
        jax_kernel(lambda x: x)


def test_a_function_of_jax_looks_like_its_kernel():
    f = jax_kernel(triple)
    assert f.__name__ == "triple" and f.kernel is triple
    assert repr(f) == "<JAX function of <kernel triple(x: array1d[float32], out: array1d[float32])>>"


def test_eager_calls_do_not_grow(growth):
    f, g = jax_kernel(triple), jax_kernel(scale)
    numbers = iter(range(100_000))
    assert growth(lambda: (f(a16), g(a16, float(next(numbers)))), 10_000) < 2 << 20


def test_calls_with_ever_new_dims_do_not_grow():
    f = jax_kernel(triple)
    for n in range(300):
        f(a16, launch_dims=n % 17, output_dims=16 + n)
    assert len(f._calls) <= 256
    gc.collect()


def test_blocks_are_those_that_are_asked_for():
    from numba import cuda

    @nb.kernel
    def blocks(out: nb.array2d[int]):
        i = cuda.grid(1)
        out[i, 0] = cuda.blockDim.x
        out[i, 1] = cuda.gridDim.x
        out[i, 2] = cuda.blockIdx.x

    (out,) = jax_kernel(blocks, launch_dims=10, output_dims=(10, 3), block_dim=4)()
    assert out.tolist() == [[4, 3, k // 4] for k in range(10)]
    (out,) = jax_kernel(blocks, launch_dims=10, output_dims=(10, 3))()
    assert out.tolist() == [[256, 1, 0]] * 10


def test_blocks_of_a_given_shape():
    (out,) = jax_kernel(places2, launch_dims=(7, 21), output_dims=(7, 21, 8), block_dim=(2, 8))()
    assert np.array_equal(out, places((7, 21), (2, 8)))
    product = jax_kernel(
        products, launch_dims=(8, 16), output_dims=(8, 16), block_dim=(TILE, TILE), enable_backward=True
    )
    a, b = factors()
    assert np.allclose(jax.jit(product)(a, b)[0], a @ b, atol=1e-5)
    found = jax.grad(lambda a, b: jnp.square(product(a, b)[0]).sum(), (0, 1))(a, b)
    expected = jax.grad(lambda a, b: jnp.square(a @ b).sum(), (0, 1))(a, b)
    assert all(np.allclose(*pair, rtol=1e-4, atol=1e-3) for pair in zip(found, expected, strict=True))
    many = np.stack([a, 2 * a, -a])
    assert np.allclose(jax.vmap(product, (0, None))(many, b)[0], many @ b, atol=1e-5)
    tangent = jax.jvp(lambda a: product(a, b)[0], (a,), (2 * a,))[1]
    assert np.allclose(tangent, 2 * a @ b, atol=1e-5)


def test_blocks_that_a_launch_does_not_have():
    f = jax_kernel(places2, launch_dims=(7, 21), output_dims=(7, 21, 8), block_dim=(2, 8, 1))
    with pytest.raises(nb.NumbridgeValueError, match=r"'places2': .*1 to 2 ints, since the launch has 2 dimension"):
        f()
    for block_dim in ((1, 2, 3, 4), (0, 8), (64, 32), ()):
        with pytest.raises(nb.NumbridgeValueError, match="block_dim of kernel 'places2': wanted"):
            jax_kernel(places2, block_dim=block_dim)


def test_partial_application():
    f = functools.partial(jax_kernel(triple), launch_dims=2, output_dims=2)
    assert jax.jit(f)(a16)[0].tolist() == [0, 3]


def test_the_warm_path_needs_no_numba(run_python, tmp_path):
    code = """
        import sys
        import jax.numpy as jnp, jax
        import numbridge as nb

        @nb.kernel
        def triple(x: nb.array[float], out: nb.array[float]):
            i = nb.tid()
            out[i] = 3.0 * x[i]

        f = jax.jit(jax.vmap(nb.jax_kernel(triple, fuse=False)))
        print(f(jnp.ones((2, 3)))[0].tolist(), "numba" in sys.modules)
    """
    path = tmp_path / "warm.py"
    path.write_text(textwrap.dedent(code))
    run = f"import runpy; runpy.run_path({str(path)!r})"
    run_python(run)
    assert run_python(run) == "[[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]] False\n"


@nb.kernel
def shift_into(x: nb.array[float], state: nb.array[float]):
    i = nb.tid()
    state[i] = x[(i + 1) % x.shape[0]]


def test_what_is_read_and_changed_at_once_is_copied_first():
    """The same array as an input and as an in-out argument: the kernel must not see its own writes through the input."""
    f = jax_kernel(shift_into, in_out_argnames=["state"])
    x = jnp.arange(1000.0)
    want = jnp.roll(x, -1)
    assert (jax.jit(lambda x: f(x, x)[0])(x) == want).all()
    assert (jax.jit(lambda x: f(x + 1, x + 1)[0], donate_argnums=0)(x + 0) == want + 1).all()
    assert (jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: f(y, y)[0], x))(x) == jnp.roll(x, -3)).all()
    state, kept = jax.jit(lambda x: (f(2 * x, x)[0], x + 1))(x)
    assert (state == 2 * want).all() and (kept == x + 1).all()


def test_calls_run_without_the_gil():
    """A kernel that takes a while does not stop Python: another thread counts meanwhile."""

    @nb.kernel
    def slow(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        total = nb.float32(0)
        for _ in range(3_000_000):
            total = total * nb.float32(0.5) + x[i]
        out[i] = total

    f = jax.jit(jax_kernel(slow))
    jax.block_until_ready(f(jnp.ones(20)))
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    jax.block_until_ready(f(jnp.ones(20)))
    during = counted[0] - before
    done.set()
    thread.join()
    assert during > 1000


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_inputs_by_name(wrap):
    f = wrap(jax_kernel(scale))
    expected = (2 * a16).tolist()
    assert (
        f(a16, s=2.0)[0].tolist() == f(s=2.0, x=a16)[0].tolist() == f(x=a16, s=jnp.float32(2))[0].tolist() == expected
    )
    assert jax.vmap(f, in_axes=(0,))(a16.reshape(2, 8), s=jnp.array([1.0, 2.0]))[0].shape == (2, 8)


def test_the_signature_names_inputs():
    f = jax_kernel(scale)
    assert str(inspect.signature(f)) == "(x, s, *, launch_dims=None, output_dims=None, vmap_method=None, fuse=None)"
    jitted = jax.jit(f, static_argnames="s")
    # A JAX value would be an operand of the program.
    assert "%arg1" not in jitted.lower(a16, 2.0).as_text() + jitted.lower(a16, s=2.0).as_text()
    assert jitted(a16, s=2.0)[0].tolist() == jitted(a16, 2.0)[0].tolist() == (2 * a16).tolist()
    gradient = jax.grad(lambda x: jax_kernel(scale, enable_backward=True)(x=x, s=2.0)[0].sum())(a16)
    assert gradient.tolist() == [2.0] * 16


def test_an_input_with_the_name_of_an_option_goes_by_position():
    @nb.kernel
    def odd(x: nb.array[float], fuse: float, s: float, out: nb.array[float]):
        i = nb.tid()
        out[i] = x[i] * fuse + s

    f = jax_kernel(odd)
    assert str(inspect.signature(f)) == "(x, fuse, /, s, *, launch_dims=None, output_dims=None, vmap_method=None)"
    assert f(a16, 2.0, s=1.0)[0].tolist() == (2 * a16 + 1).tolist()
    assert f(a16, 2.0, 1.0, fuse=False)[0].tolist() == (2 * a16 + 1).tolist()


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((a16,), {"t": 2.0}, "kernel 'scale' under JAX has no input or option 't'; its inputs are x, s"),
        ((a16, 1.0), {"s": 2.0}, "argument 's': it is passed by position and by name; pass it once"),
        (
            (a16,),
            {"s": 2.0, "out": a16},
            r"argument 'out': it is an output, which is returned, not passed \(num_outputs=1\)",
        ),
        ((), {"s": 2.0}, "kernel 'scale' under JAX: no argument is passed for 'x'"),
    ],
)
def test_wrong_names(arguments, named, message):
    with pytest.raises(nb.NumbridgeTypeError, match=message):
        jax_kernel(scale)(*arguments, **named)


def test_what_would_be_narrowed_is_refused_after_calls_with_64_bits():
    f, x = jax_kernel(wide_output), jnp.arange(4.0, dtype=jnp.float32)
    with jax.enable_x64(True):
        assert f(x)[0].dtype == jax.jit(f)(x)[0].dtype == np.float64
    for call in (f, jax.jit(f)):
        with pytest.raises(nb.ConversionError, match="JAX would narrow float64"):
            call(x)
