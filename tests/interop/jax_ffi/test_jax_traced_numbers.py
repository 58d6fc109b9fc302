"""Integers that a trace does not know: arrays that they make too short are refused when a call runs, before it writes."""

from __future__ import annotations

import functools
import operator
import textwrap
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from numba import cuda

import numbridge as nb
from call_frames import OPTIONS, Made, scale
from compiled_calls import jax_callable, jax_kernel
from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as wl
from numbridge.jax_ffi.plan import Number
from numbridge.jax_ffi.targets import TARGET
from numbridge.kernels import scalars
from numbridge.kernels.extent_checks import Launched
from numbridge.kernels.language.reaches import reaches_of
from numbridge.kernels.parameter_types import ScalarType
from written_kernels import made

CHECKS = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]
failures = (jax.errors.JaxRuntimeError, ValueError)
x4, x8 = jnp.arange(4.0), jnp.arange(8.0)


@nb.kernel
def firsts(x: nb.array[float], n: int, y: nb.array[float]):
    i = nb.tid()
    if i < n:
        y[i] = x[i]


@nb.kernel
def shifted(x: nb.array[float], n: int, y: nb.array[float]):
    i = nb.tid()
    y[i + n] = 2.0 * x[i]


@nb.kernel
def totals(x: nb.array2d[float], n: int, y: nb.array[float]):
    i = nb.tid()
    s = 0.0
    for k in range(n):
        s += x[i, k]
    y[i] = s


@nb.kernel
def filled(y: nb.array[float], n: int):
    i = nb.tid()
    if i < n:
        y[i] = y[i] + 1.0


first4 = jax_kernel(firsts, launch_dims=8, output_dims=4)
# Of x, four elements are there, and y has six: with n = 2 all is stored, and with 3 one is stored beyond its end.
shift = partial(jax_kernel, shifted, output_dims=6)


def test_the_message():
    run = jax.jit(lambda x, n: first4(x, n)[0])
    assert run(x8 + 1, 3).tolist() == [1, 2, 3, 0]
    assert run(x8 + 1, -3).tolist() == [0, 0, 0, 0]
    with pytest.raises(failures) as caught:
        run(x8, 5).block_until_ready()
    first, *place = str(caught.value).splitlines()
    assert first.removeprefix("INVALID_ARGUMENT: ") == (
        "numbridge: kernel 'firsts' under JAX, parameter 'y': its shape is (4,), and a launch over (8,) takes y[i] with i = 4, "
        "so axis 0 must have 5 elements or more: pass a longer array, or end the loop or the guard around it earlier; an output "
        "gets the extents of output_dims"
    )
    assert "test_jax_traced_numbers.py" in place[0] and place[1].strip() == "y[i] = x[i]" and place[2].strip() == "^"


def test_an_eager_call_raises_numbridges_own_error():
    f = shift()
    for n in (2, np.int32(2), jnp.int32(2), jnp.arange(3)[2]):
        assert f(x4 + 1, n)[0].tolist() == [0, 0, 2, 4, 6, 8]
    for n in (3, np.int16(3), jnp.int32(3)):
        with pytest.raises(nb.NumbridgeValueError) as caught:
            f(x4, n)[0].block_until_ready()
        assert str(caught.value).startswith(
            "kernel 'shifted' under JAX, parameter 'y': its shape is (6,), and a launch over (4,) takes y[i + n] with i + n = 6, "
            "so axis 0 must have 7 elements or more; kernels do not broadcast: expand it, or pass launch_dims; an output gets "
            "the extents of output_dims\n"
        )


def two_launches(mode):
    """Return a function of two launches, of which the second one may overrun its output."""

    def both(x: nb.array[float], n: int, out: nb.array[float]):
        once = nb.zeros(6)
        nb.launch(shifted, 4, [x, 0], [once])
        nb.launch(shifted, 4, [once, n], [out])

    return lambda x, n: jax_callable(both, output_dims=6, graph_mode=mode)(x, n)[0] / 2


def scanned(x, n):
    return jax.lax.scan(lambda _, m: (plain(x, m), None), jnp.zeros(6), jnp.array([0, 1, n]))[0]


def nested(x, n):
    f = jax.vmap(jax.vmap(plain, (None, 0)), (0, None))
    return f(jnp.stack([x, x]), jnp.array([1, n, 0]))[1, 1]


def of_a_callable(mode):
    return lambda x, n: jax.vmap(two_launches(mode), (None, 0))(x, jnp.array([0, n]))[1]


def plain(x, n):
    return shift()(x, n)[0]


def tangent(x, n):
    f = shift(enable_backward=True)
    return jax.jvp(lambda x: f(x, n)[0], (jnp.ones(4),), (x,))[1]


def one_by_one(x, n):
    f = shift(vmap_method="sequential")
    return jax.vmap(lambda x, n: f(x, n)[0], (None, 0))(x, jnp.array([0, n]))[1]


ROADS = {
    "a jit": plain,
    "a batch of numbers": lambda x, n: jax.vmap(plain, (None, 0))(x, jnp.array([1, 0, n]))[2],
    "a batch of arrays": lambda x, n: jax.vmap(plain, (0, None))(jnp.stack([x + 1, x]), n)[1],
    "a batch of both": lambda x, n: jax.vmap(plain)(jnp.stack([x, x + 1]), jnp.array([n, 1]))[0],
    "a batch in a batch": nested,
    "a batch, one by one": one_by_one,
    "a loop of JAX's": scanned,
    "a branch of JAX's": lambda x, n: jax.lax.cond(n >= 0, plain, lambda x, n: jnp.ones(6), x, n),
    "a tangent": tangent,
    "traced launches": two_launches(nb.GraphMode.JAX),
    "replayed launches": two_launches(nb.GraphMode.NUMBRIDGE),
    "a batch of traced launches": of_a_callable(nb.GraphMode.JAX),
    "a batch of replayed launches": of_a_callable(nb.GraphMode.NUMBRIDGE),
}


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS)
def test_each_road(road):
    run = jax.jit(road)
    for n, wanted in ((1, [0, 0, 2, 4, 6, 0]), (2, [0, 0, 0, 2, 4, 6]), (0, [0, 2, 4, 6, 0, 0])):
        assert run(x4, n).tolist() == wanted
    with pytest.raises(
        failures, match=r"'shifted' under JAX, parameter 'y': its shape is \(6,\).* with i \+ n = 6, so axis"
    ):
        run(x4, 3).block_until_ready()
    assert run(x4, 2).tolist() == [0, 0, 0, 2, 4, 6]


@pytest.mark.parametrize("mode", [nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE])
def test_an_eager_call_of_a_function_that_launches_kernels(mode):
    f = two_launches(mode)
    assert f(x4, jnp.int32(2)).tolist() == [0, 0, 0, 2, 4, 6]
    with pytest.raises(nb.NumbridgeValueError, match=r"^kernel 'shifted' under JAX, parameter 'y'.* with i \+ n = 6"):
        f(x4, jnp.int32(3)).block_until_ready()


def test_gradients_whose_kernel_does_not_run():
    f = shift(enable_backward=True)
    pull = jax.jit(lambda n, y: jax.vjp(lambda x: f(x, n)[0], jnp.ones(4))[1](y)[0])
    y6 = jnp.arange(6.0)
    assert "adjoint" in pull.lower(2, y6).as_text() and "tangent" not in pull.lower(2, y6).as_text()
    assert pull(2, y6).tolist() == [4, 6, 8, 10]
    with pytest.raises(
        failures, match=r"the adjoint of kernel 'shifted' under JAX, parameter 'y': its shape is \(6,\)"
    ):
        pull(3, y6).block_until_ready()
    batch = jax.jit(jax.vmap(pull, (0, None)))
    assert batch(jnp.array([2, 0]), y6).tolist() == [[4, 6, 8, 10], [0, 2, 4, 6]]
    with pytest.raises(
        failures, match=r"the adjoint of kernel 'shifted' under JAX, parameter 'y': its shape is \(6,\)"
    ):
        batch(jnp.array([2, 3]), y6).block_until_ready()
    # d/dx of the sum of (2x)**3 is 24 x**2, whose derivative along x is 48 x**2.
    second = jax.jit(lambda x, n: jax.jvp(jax.grad(lambda x: (f(x, n)[0] ** 3).sum()), (x,), (x,))[1])
    assert second(x4, 2).tolist() == [0, 48, 192, 432]
    with pytest.raises(failures, match="'shifted' under JAX, parameter 'y': its shape is"):
        second(x4, 3).block_until_ready()


def test_arrays_that_a_kernel_changes():
    run = jax.jit(lambda y, n: jax_kernel(filled, launch_dims=8, in_out_argnames=["y"])(y, n)[0])
    y = jnp.ones(4)
    assert run(y, 3).tolist() == [2, 2, 2, 1]
    with pytest.raises(failures, match=r"parameter 'y': its shape is \(4,\)"):
        run(y, 5).block_until_ready()
    assert y.tolist() == [1] * 4
    given_up = jax.jit(run, donate_argnums=0)
    with pytest.raises(failures, match=r"parameter 'y': its shape is \(4,\)"):
        given_up(y, 5).block_until_ready()


def test_programs_that_were_exported(run_python, tmp_path):
    path = tmp_path / "program"
    made = path.with_suffix(".py")
    made.write_text(textwrap.dedent(EXPORTED))
    for what in ("make", "use"):
        printed = run_python(
            f"import runpy, sys\nsys.argv[1:] = [{what!r}, {str(path)!r}]\nrunpy.run_path({str(made)!r})"
        )
    assert printed == (
        "[0.0, 1.0, 2.0, 0.0]\nkernel 'firsts' under JAX, parameter 'y': its shape is (4,), and a launch over (6,)\n"
        "[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]\nthe adjoint of kernel 'firsts' under JAX, parameter 'y': its shape is (4,)\n"
    )


EXPORTED = """
    import sys
    import jax, jax.export
    import jax.numpy as jnp
    import numbridge as nb

    @nb.kernel
    def firsts(x: nb.array[float], n: int, y: nb.array[float]):
        i = nb.tid()
        if i < n:
            y[i] = x[i]

    f = nb.jax_kernel(firsts, output_dims=4, enable_backward=True)

    def pulled(x, n):
        return jax.vjp(lambda x: f(x, n)[0], x)[1](jnp.ones(4))[0]

    if sys.argv[1] == "make":
        x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("a"), jnp.float32)
        n = jax.ShapeDtypeStruct((), jnp.int32)
        checks = [jax.export.DisabledSafetyCheck.custom_call("numbridge_launch")]
        for k, run in enumerate((lambda x, n: f(x, n)[0], pulled)):
            made = jax.export.export(jax.jit(run), disabled_checks=checks)(x, n)
            open(f"{sys.argv[2]}{k}", "wb").write(made.serialize())
    else:
        for k in range(2):
            loaded = jax.export.deserialize(open(f"{sys.argv[2]}{k}", "rb").read())
            print(loaded.call(jnp.arange(6.0), 3).tolist())
            try:
                loaded.call(jnp.arange(6.0), 5).block_until_ready()
            except Exception as error:
                said = str(error).partition("numbridge: ")[2]
                print(said.partition(" takes" if k == 0 else ", and a launch")[0])
"""


def test_symbolic_dims():
    f = jax_kernel(totals, launch_dims=None, output_dims=None)
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("a, b"), jnp.float32)
    run = jax.jit(lambda x, n: jax_kernel(totals, launch_dims=(x.shape[0],), output_dims=(x.shape[0],))(x, n)[0])
    loaded = jax.export.export(run, disabled_checks=CHECKS)(rows, jax.ShapeDtypeStruct((), jnp.int32))
    for shape in ((2, 3), (3, 5)):
        x = jnp.arange(float(shape[0] * shape[1])).reshape(shape)
        for n in (shape[1], 1, -1):
            assert loaded.call(x, n).tolist() == np.asarray(x)[:, : max(n, 0)].sum(1).tolist()
        with pytest.raises(
            failures, match=rf"'x': its shape is \({shape[0]}, {shape[1]}\).* x\[i, k\] with k = {shape[1]}"
        ):
            loaded.call(x, shape[1] + 1).block_until_ready()
    assert f.kernel is totals


def test_a_global_that_changes():
    kernel, function = made("def k(x, n, y):\n    i = nb.tid()\n    y[i + n + M] = x[i]\n", M=0)
    f = jax_kernel(kernel, output_dims=6)
    before = jax.jit(lambda x, n: f(x, n)[0])
    assert before(x4, 2).tolist() == [0, 0, 0, 1, 2, 3]
    function.__globals__["M"] = 1
    after = jax.jit(lambda x, n: f(x, n)[0])
    assert after(x4, 1).tolist() == before(x4, 2).tolist() == [0, 0, 0, 1, 2, 3]
    for run, most in ((before, 2), (after, 1)):
        with pytest.raises(failures, match=r"takes y\[i \+ n \+ M\] with i \+ n \+ M = 6, so axis 0 must have 7"):
            run(x4, most + 1).block_until_ready()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_integers_of_all_widths(dtype):
    kernel, _ = made("def k(x, n, y):\n    i = nb.tid()\n    if i < n:\n        y[i] = x[i]\n")
    with jax.enable_x64(dtype == "int64"):
        x, run = jnp.arange(8.0), jax.jit(lambda x, n: jax_kernel(kernel, output_dims=4)(x, n)[0])
        for n in (-128, -1, 0, 3, 4):
            assert run(x, jnp.asarray(n, dtype)).tolist() == [*range(max(n, 0)), *[0] * (4 - max(n, 0))]
        for n in (5, 8, 100, np.iinfo(dtype).max):
            with pytest.raises(failures, match=rf"takes y\[i\] with i = {min(n, 8) - 1}, so"):
                run(x, jnp.asarray(n, dtype)).block_until_ready()


def test_what_is_no_size():
    kernel, _ = made("def k(x, n, y):\n    i = nb.tid()\n    if i < n:\n        y[i] = x[i]\n")
    for n in (np.uint8(3), np.float32(2.5), np.bool_(True)):
        x, y = np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
        call = Made(kernel, [x, np.array(n)], [y], options=replace(OPTIONS, output_dims=4))
        assert call.words[wl.WORD_UNKNOWN // 8] == wl.BLOCKS_BIT
        assert call.run() == 0 and y.tolist() == [x[i] if i < n else 0 for i in range(4)]


@pytest.mark.parametrize(
    "body",
    [
        "if i <= x.shape[0] // n:\n    y[5] = 1.0",
        "for k in range(x.shape[0] // n + 1):\n    y[5] = 1.0",
    ],
)
def test_compiled_code_that_is_not_sure_asks_python(body, monkeypatch):
    lines = "".join(f"    {line}\n" for line in ["i = nb.tid()", *body.splitlines()])
    kernel, _ = made(f"def k(x, n, y):\n{lines}")
    asked, too_short = [], targets._too_short
    monkeypatch.setattr(targets, "_too_short", lambda *call: asked.append(too_short(*call)) or asked[-1])
    f = jax.jit(lambda x, n: jax_kernel(kernel, output_dims=4)(x, n)[0])
    assert f(x4, -1).tolist() == [0] * 4 and asked == [None]
    with pytest.raises(failures, match="parameter 'y'"):
        f(x4, 3).block_until_ready()


@pytest.mark.parametrize(("index", "n"), [("i + n", 2**63 - 1), ("i + n * n", 2**32), ("i - n * n * n", 2**21 + 1)])
def test_what_64_bits_do_not_hold_does_not_come_back_into_an_array(index, n):
    kernel, _ = made(f"def k(x, n, y):\n    i = nb.tid()\n    y[i] = x[{index}]\n")
    with jax.enable_x64(True):
        f = jax.jit(lambda x, n: jax_kernel(kernel, output_dims=4)(x, n)[0])
        with pytest.raises(failures, match="parameter 'x': its shape"):
            f(x4, n).block_until_ready()


def test_bits_that_stand_for_several_numbers(monkeypatch):
    monkeypatch.setattr(wl, "NUMBER_BITS", 2)
    kernel, _ = made("def k(x, n, m, l, y):\n    i = nb.tid()\n    y[i + n + m] = l * x[i]\n")
    f = jax_kernel(kernel, output_dims=6)
    for run in (jax.jit(lambda x, n: f(x, n, 1, 1)[0]), jax.jit(lambda x, m: f(x, 1, m, jnp.int32(1))[0])):
        assert run(x4, 1).tolist() == [0, 0, 0, 1, 2, 3]
        with pytest.raises(failures, match=r"with i \+ n \+ m = 6"):
            run(x4, 2).block_until_ready()
    names = ["x", "n", "m", "l"]
    bits = targets.number_bits([ScalarType(name, scalars.by_name("int8")) for name in names], {"x", "l"})
    assert bits == 0b11
    monkeypatch.undo()
    many = [ScalarType(str(k), scalars.by_name("int8")) for k in range(200)]
    assert 0 < targets.number_bits(many, [p.name for p in many]) < wl.BLOCKS_BIT


@nb.kernel
def tiled(x: nb.array[float], y: nb.array[float]):
    tile = cuda.shared.array(32, np.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i]
    cuda.syncthreads()
    y[i] = tile[t]


@nb.kernel
def strided(x: nb.array[float], n: int, y: nb.array[float]):
    for k in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[k] = x[k]


def test_blocks():
    x = jnp.arange(64.0)
    assert jax.jit(jax_kernel(tiled, block_dim=32))(x)[0].tolist() == x.tolist()
    with pytest.raises(
        failures, match=r"'tile': its shape is \(32,\), and a launch over \(64,\) in blocks of \(64,\) takes"
    ):
        jax.jit(jax_kernel(tiled, block_dim=64))(x)[0].block_until_ready()
    f = jax_kernel(strided, launch_dims=32, output_dims=60, block_dim=32)
    assert jax.jit(lambda x: f(x, 60)[0])(x).tolist() == x[:60].tolist()
    for n, dims in ((61, 32), (64, 64)):
        with pytest.raises(
            failures, match=rf"over \({dims},\) takes y\[k\] with k = {n - 1}, so axis 0 must have {n} elements"
        ):
            jax.jit(lambda x, n=n, dims=dims: f(x, n, launch_dims=dims)[0])(x).block_until_ready()
    # Of a block, only half the threads run, and so they do not make all trips.
    half = jax.jit(lambda x: f(x, 20, launch_dims=16, output_dims=16)[0])
    assert half(x).tolist() == x[:16].tolist()


def test_derivatives_with_one_text_and_other_reaches():
    """What has no derivative is not in a derivative's text, but a derivative refuses what its kernel would."""
    head = "def k(x: nb.array[float], n: int, y: nb.array[float], z: nb.array[int]):\n    i = nb.tid()\n"
    for index, most in (("i + n", 2), ("i + 2 * n", 1), ("i", 9)):
        kernel, _ = made(f"{head}    y[i] = x[i] * x[i]\n    z[{index}] = i\n")
        f = jax_kernel(kernel, num_outputs=2, output_dims={"y": 4, "z": 6}, enable_backward=True)
        pull = jax.jit(lambda n, f=f: jax.vjp(lambda x: f(x, n)[0], x4)[1](jnp.ones(4))[0])
        assert pull(most).tolist() == [0, 2, 4, 6]
        if most < 9:
            with pytest.raises(failures, match="the adjoint of kernel 'k' under JAX, parameter 'z': its shape is"):
                pull(most + 1).block_until_ready()


# --------------------------------------------------------------------------------------------------------------------
# Frames that are made by hand, whose buffers have other memory around them


def test_what_a_trace_knows_is_not_asked_again():
    options = replace(OPTIONS, launch_dims=4, output_dims=6)
    x, y = np.ones(4, np.float32), np.zeros(6, np.float32)
    known = Made(shifted, [x, Number(int, 2)], [y], options=options)
    traced = Made(shifted, [x, np.array(2, np.int32)], [y], options=options)
    packed = Made(shifted, [x, Number(int, None, packed=True)], [y], [np.zeros(4, np.uint32), x], options=options)
    assert [int(call.words[wl.WORD_UNKNOWN // 8]) ^ wl.BLOCKS_BIT for call in (known, traced, packed)] == [0, 2, 2]
    other = Made(
        scale, [np.ones((2, 3), np.float32), Number(float, 1.0), np.array(2, np.int32)], [np.ones((2, 3), np.float32)]
    )
    codes = [targets.room().codes.get(call.call.key) for call in (traced, other)]
    assert [code[wl.CODE_DECIDES // 8] for code in codes] == [2, 0]
    assert codes[0][wl.CODE_REACH_COUNT // 8] > 0 == codes[1][wl.CODE_REACH_COUNT // 8]


def test_an_element_of_a_batch_is_refused_before_any_runs():
    memory = np.full((5, 6), -7, np.float32)
    call = Made(
        shifted,
        [np.ones(4, np.float32), np.array(0, np.int32)],
        [np.zeros(6, np.float32)],
        options=replace(OPTIONS, launch_dims=4, output_dims=6),
        WORD_LEVELS=1,
    )
    for numbers, is_short in (([0, 1, 2], False), ([2, 3, 0], True), ([0, 1, -7], True), ([3], True), ([2], False)):
        memory[:] = -7
        call.errors.clear()
        call.frame.args.args = call._buffers([np.ones((1, 4), np.float32), np.array(numbers, np.int32)])
        call.frame.rets.rets = call._buffers([memory[1:4]])
        assert call.run() == (77 if is_short else 0)
        assert (memory[[0, 4]] == -7).all()
        if is_short:
            ((code, said),) = call.errors
            assert (
                code == xla.INVALID_ARGUMENT
                and "parameter 'y': its shape is (6,), and a launch over (4,) takes" in said
            )
            assert not memory[1:4].any()
        else:
            wanted = [[2.0 if n <= k < n + 4 else 0.0 for k in range(6)] for n in np.broadcast_to(numbers, 3)]
            assert memory[1:4].tolist() == wanted


BODIES = (
    "if i < n:\n    y[i, 0] = 2.0 * x[0, i]",
    "if i >= n or j >= x.shape[0]:\n    return\ny[i, j] = m",
    "for k in range(n):\n    y[i, j] += x[i, k] * x[k, j]",
    "for k in range(m, n, 2):\n    y[i, j] += x[i, k + j]",
    "if 0 < i < x.shape[0] - 1 and 0 < j:\n    y[i, j] = x[i - 1, j + n]",
    "y[i, j] = x[(i * n + j) // 5, min(i, m)]",
    "if n > m:\n    for k in range(x.size):\n        y[0, k - i] = 1",
    "y[n - m, i - n] = 1\nif i < x.shape[0] - j:\n    y[i, j] = 1",
    "if j < y.size // 4 and i < x.shape[1] * n - m:\n    y[j, i] = x[j, i]",
    "a = cuda.threadIdx.x\nif cuda.blockIdx.x < n:\n    y[a + m, j] = 2 * j",
)
WIDTHS = ("int8", "int16", "int32", "int64")
BLOCK = 2


def in_python(function, dims, arguments):
    """Run all threads in plain Python; tell whether one takes an element that an array does not have."""
    space = dict(function.__globals__)
    try:
        for i, j in np.ndindex(*dims):
            place = {"threadIdx": SimpleNamespace(x=i % BLOCK), "blockIdx": SimpleNamespace(x=i // BLOCK)}
            function.__globals__.update(nb=SimpleNamespace(tid=lambda i=i, j=j: (i, j)), cuda=SimpleNamespace(**place))
            function(*arguments)
    except IndexError:
        return True
    finally:
        function.__globals__.update(space)
    return False


class Guarded:
    """Arrays that lie in the middle of memory of which the rest is watched."""

    def __init__(self):
        self.memories = []

    def array(self, values):
        memory = np.full(values.size + 256, -7, values.dtype)
        inside = memory[128 : 128 + values.size].reshape(values.shape)
        inside[...] = values
        self.memories.append((memory, values.size))
        return inside

    def is_untouched(self):
        return all((m[:128] == -7).all() and (m[128 + size :] == -7).all() for m, size in self.memories)


@functools.cache
def program(number):
    lines = "".join(f"    {line}" for line in BODIES[number].splitlines(True))
    return made(f"def k(x, y, n, m):\n    i, j = nb.tid()\n{lines}\n", cuda=cuda)


small = st.integers(1, 5)


@settings(max_examples=400, deadline=None)
@given(
    st.integers(0, len(BODIES) - 1),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.tuples(small, small, small, small),
    st.lists(st.tuples(st.integers(-2, 6), st.integers(-1, 5)), min_size=1, max_size=3),
    st.sampled_from(["one", "batch", "n is batched", "all is batched"]),
)
def test_random_calls_against_plain_python(number, dims, extents, numbers, form):
    kernel, function = program(number)
    kinds = WIDTHS[number % 4], WIDTHS[number % 3]
    batch = 1 if form == "one" else len(numbers)
    per = len(numbers) if form in ("n is batched", "all is batched") else 1
    numbers = (numbers if per > 1 or batch == 1 else numbers[:1] * batch)[:batch]
    xs = np.arange(1.0, 1 + batch * extents[0] * extents[1], dtype=np.float32).reshape(batch, *extents[:2])
    xs = xs if form in ("batch", "all is batched") else xs[:1]
    ys = np.zeros((batch, *extents[2:]), np.float32)
    ns, ms = (np.array(of, kind)[:per] for of, kind in zip(zip(*numbers, strict=True), kinds, strict=True))
    ms = ms if form == "all is batched" else ms[:1]
    reaches, wanted, is_short, overruns = reaches_of(kernel), ys.copy(), False, False
    for k in range(batch):
        x, n, m = xs[k % len(xs)], int(ns[k % len(ns)]), int(ms[k % len(ms)])
        counts = {"dim": dims, "blockDim": (BLOCK, 1, 1), "gridDim": (-(-dims[0] // BLOCK), dims[1], 1)}
        launch = Launched(counts, {"x": x.shape, "y": ys[k].shape}, {"n": n, "m": m})
        is_short |= 0 not in dims and any(reach.missing(launch, operator.lt) for reach in reaches)
        overruns |= in_python(function, dims, [x.copy(), wanted[k], n, m])
    event(f"{form}: short {is_short}, overruns {overruns}")
    assert overruns or not is_short
    if overruns and not is_short:
        return  # nobody is sure of that
    memory = Guarded()
    arrays = [memory.array(a) for a in (xs, ys, ns, ms)]
    out = memory.array(ys - 3)
    single = [a[0, ...] if form == "one" else a for a in (*arrays, out)]
    options = replace(OPTIONS, launch_dims=dims, block_dim=BLOCK)
    inputs = [xs[0], ys[0], np.array(0, kinds[0]), np.array(0, kinds[1])]
    try:
        call = Made(kernel, inputs, [ys[0]], [*single[:4]], ["y"], options, WORD_LEVELS=int(form != "one"))
    except nb.NumbridgeValueError:
        event("refused when it is traced")
        assert is_short
        return
    call.frame.rets.rets = call._buffers([single[4]])
    assert call.run() == (77 if is_short else 0), call.errors
    assert memory.is_untouched()
    if is_short:
        assert "'k' under JAX, parameter '" in call.errors[0][1]
        assert np.array_equal(out, ys)
    else:
        assert np.array_equal(out, wanted) and np.array_equal(arrays[1], ys)
