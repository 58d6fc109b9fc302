"""Python functions that XLA calls: buffers, attributes, context, errors, and memory that must be given back."""

from __future__ import annotations

import gc
import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import numbridge as nb
from numbridge.jax_ffi import callback

a12 = jnp.arange(12, dtype=jnp.float32)
failures = (jax.errors.JaxRuntimeError, ValueError)


@nb.kernel
def scale(x: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * s


def call(function, *results, name=None, **options):
    name = name or f"test_{function.__name__}_{id(function)}"
    nb.register_ffi_callback(name, function)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    return jax.ffi.ffi_call(name, shapes, **options)


def test_kernels_are_launched_on_the_buffers():
    def function(inputs, outputs, attrs, ctx):
        nb.launch(scale, dim=inputs[0].shape, inputs=[inputs[0], attrs["scale"]], outputs=[outputs[0]])
        nb.launch(scale, dim=6, inputs=[inputs[1].reshape(-1), 10.0], outputs=[outputs[1].reshape(-1)])

    f = call(function, ((12,), jnp.float32), ((3, 2), jnp.float32))
    for run in (f, jax.jit(lambda *x: f(*x, scale=2.0))):
        given = {"scale": 2.0} if run is f else {}
        one, two = run(a12, a12[:6].reshape(3, 2), **given)
        assert (one == 2 * a12).all() and (two == 10 * a12[:6].reshape(3, 2)).all()


def test_buffers_speak_every_protocol():
    seen = {}

    def function(inputs, outputs, attrs, ctx):
        x, out = inputs[0], outputs[0]
        seen["shape"], seen["dtype"], seen["device"] = x.shape, x.dtype, str(x.device)
        seen["interface"] = x.__array_interface__["data"], x.ptr
        seen["dlpack"] = float(np.from_dlpack(x).sum())
        seen["writeable"] = np.asarray(x).flags.writeable, np.asarray(out).flags.writeable
        torch.from_dlpack(out).fill_(7)

    assert (call(function, ((12,), jnp.float32))(a12)[0] == 7).all()
    assert seen["shape"] == (12,) and seen["dtype"] == np.float32 and seen["device"] == "cpu"
    assert seen["interface"][0] == (seen["interface"][1], True)
    assert seen["dlpack"] == 66 and seen["writeable"] == (False, True)


def test_attributes_and_context():
    seen = {}

    def function(inputs, outputs, attrs, ctx):
        seen.update(attrs)
        seen["ctx"] = ctx
        outputs[0].zero_()

    f = call(function, ((), jnp.float32))
    f(
        number=3,
        real=2.5,
        truth=True,
        text="hello",
        several=np.array([1, 2], np.int32),
        small=np.float32(0.5),
        nested={"a": 1},
    )
    ctx, several = seen.pop("ctx"), seen.pop("several")
    assert seen == {"number": 3, "real": 2.5, "truth": True, "text": "hello", "small": 0.5, "nested": {"a": 1}}
    assert type(seen["truth"]) is bool and type(seen["number"]) is int
    assert several.dtype == np.int32 and several.tolist() == [1, 2]
    assert ctx.device == "cpu" and ctx.stream is None


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float8_e4m3fn", "float32", "complex64"]
)
def test_dtypes(dtype):
    def function(inputs, outputs, attrs, ctx):
        outputs[0].assign(inputs[0])

    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    (out,) = call(function, ((2, 3), dtype))(x)
    assert out.dtype == dtype and (out == x).all()


def test_an_exception_becomes_an_error_with_the_traceback():
    def function(inputs, outputs, attrs, ctx):
        raise KeyError("the one that is missing")

    with pytest.raises(failures) as caught:
        jax.block_until_ready(call(function, ((), jnp.float32))())
    assert "Python function of 'test_function_" in str(caught.value)
    assert "KeyError: 'the one that is missing'" in str(caught.value)
    assert "test_jax_callback.py" in str(caught.value) and "raise KeyError" in str(caught.value)


def test_inputs_are_read_only():
    def function(inputs, outputs, attrs, ctx):
        nb.launch(scale, 12, [inputs[0], 1.0], [inputs[0]])

    with pytest.raises(failures, match=r"BufferAccessError: .*parameter 'out'.*read-only"):
        jax.block_until_ready(call(function, ((12,), jnp.float32))(a12))
    assert (a12 == jnp.arange(12)).all()


def test_types_without_counterpart():
    def function(inputs, outputs, attrs, ctx):
        raise AssertionError("not called")

    four = jnp.arange(4)
    with pytest.raises(
        failures, match=r"inputs\[1\] is int4\[4\], which has no counterpart .*; convert it with astype"
    ):
        jax.block_until_ready(call(function, ((), jnp.float32))(four, four.astype(jnp.int4)))
    with pytest.raises(failures, match=r"outputs\[0\] is float8_e3m4\[2\], which has no counterpart"):
        jax.block_until_ready(call(function, ((2,), jnp.float8_e3m4))(four))


@pytest.mark.parametrize("keep", [lambda x: x, lambda x: x[1:], lambda x: x.numpy(), np.asarray, torch.from_dlpack])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_what_is_kept_beyond_the_call_is_found(keep):
    kept = []

    def function(inputs, outputs, attrs, ctx):
        kept.append(keep(outputs[0]))

    with pytest.raises(failures, match=r"was kept beyond it, and its memory is XLA's again; keep a copy"):
        jax.block_until_ready(call(function, ((12,), jnp.float32))())
    kept.clear()
    gc.collect()


def test_a_cycle_is_no_view_that_was_kept():
    def function(inputs, outputs, attrs, ctx):
        cycle = [outputs[0]]
        cycle.append(cycle)
        outputs[0].fill_(1)

    assert (call(function, ((3,), jnp.float32))()[0] == 1).all()


def test_a_cycle_is_no_view_that_was_kept_while_another_thread_collects(monkeypatch):
    """A collection that is asked for meanwhile does nothing."""
    collecting, tried = threading.Event(), threading.Event()

    class Slow:
        def __del__(self):
            collecting.set()
            tried.wait(60)

    def collect():
        garbage = Slow()
        garbage.cycle = garbage
        del garbage
        gc.collect()

    def function(inputs, outputs, attrs, ctx):
        cycle = [outputs[0]]
        cycle.append(cycle)
        outputs[0].fill_(1)
        threads[0].start()
        assert collecting.wait(60)

    def pause(seconds):
        tried.set()
        time.sleep(seconds)

    threads = [threading.Thread(target=collect)]
    monkeypatch.setattr(callback, "time", SimpleNamespace(sleep=pause))
    gc.disable()
    try:
        assert (call(function, ((3,), jnp.float32))()[0] == 1).all()
    finally:
        gc.enable()
        tried.set()
        threads[0].join()


def test_registering_again_replaces_the_function():
    def fill(value):
        return lambda inputs, outputs, attrs, ctx: outputs[0].fill_(value)

    f = call(fill(1), ((), jnp.float32), name="test_replaced")
    assert f()[0] == 1
    nb.register_ffi_callback("test_replaced", fill(2))
    assert f()[0] == 2


def test_vmap_is_jaxs_own():
    def function(inputs, outputs, attrs, ctx):
        outputs[0].assign(inputs[0])

    f = call(function, ((4,), jnp.float32), vmap_method="sequential")
    assert (jax.vmap(f)(a12.reshape(3, 4))[0] == a12.reshape(3, 4)).all()


def test_calls_do_not_grow(growth):
    def function(inputs, outputs, attrs, ctx):
        outputs[0].assign(inputs[0])

    f = jax.jit(call(function, ((12,), jnp.float32)))
    assert growth(lambda: jax.block_until_ready(f(a12)), 3000) < 1 << 20


@pytest.mark.parametrize(
    ("name", "func", "message"),
    [
        ("x", 3, "func is 3; it must be callable"),
        (3, print, "name is 3"),
        (
            "x",
            lambda inputs, outputs, attrs: None,
            r"parameters are \(inputs, outputs, attrs\); it is called with four",
        ),
        (
            "x",
            lambda *arguments, then: None,
            r"parameters are \(\*arguments, then\); .* as func\(inputs, outputs, attrs, ctx\)",
        ),
    ],
)
def test_what_cannot_be_registered(name, func, message):
    with pytest.raises(nb.NumbridgeTypeError, match=message):
        nb.register_ffi_callback(name, func)


@pytest.mark.parametrize(("text", "shown"), [("a\ud800b", r"a\ud800b"), ("a\0b", r"a\0b"), ("ä€", "ä€")])
def test_what_an_exception_says_arrives_whole(text, shown):
    def function(inputs, outputs, attrs, ctx):
        raise ValueError(text + " and the rest")

    with pytest.raises(failures) as caught:
        jax.block_until_ready(call(function, ((), jnp.float32))())
    assert f"ValueError: {shown} and the rest" in str(caught.value)


def test_a_name_that_xla_has_is_refused():
    jnp.linalg.det(jnp.eye(2)).block_until_ready()
    for _ in range(2):
        # Also once more: the name is not remembered.
        with pytest.raises(
            nb.NumbridgeValueError, match=r"name is 'lapack_sgetrf_ffi', which XLA refuses.*choose another one"
        ):
            nb.register_ffi_callback("lapack_sgetrf_ffi", print)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("numbridge_launch", "name is 'numbridge_launch', which is numbridge's own target for kernels"),
        ("numbridge_plan", "name is 'numbridge_plan', which is numbridge's own target for kernels"),
        ("", "name is ''; it must be a string of at least one character"),
        ("a\0b", r"name is 'a\\x00b'; it must be a string"),
        ("\ud800", r"name is '\\ud800'; it must be a string"),
    ],
)
def test_names_that_cannot_be_targets(name, message):
    with pytest.raises(nb.NumbridgeValueError, match=message):
        nb.register_ffi_callback(name, print)
