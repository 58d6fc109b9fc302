"""Python functions that launch several kernels, as JAX functions: traced, or called each time."""

from __future__ import annotations

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import numbridge as nb
from block_dim_cases import TILE, factors, places, places2, products
from compiled_calls import jax_callable

a10 = jnp.arange(10, dtype=jnp.float32)
modes = pytest.mark.parametrize("mode", list(nb.GraphMode))
jitted = pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
failures = (jax.errors.JaxRuntimeError, ValueError, nb.NumbridgeError)


@nb.kernel
def scale(x: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * s


@nb.kernel
def scale2(x: nb.array2d[float], s: float, out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = x[i, j] * s


@nb.kernel
def accumulate(x: nb.array[float], total: nb.array[float]):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i])


@nb.kernel
def increase(x: nb.array[float]):
    i = nb.tid()
    x[i] += 1.0


def two(a: nb.array[float], b: nb.array2d[float], s: float, c: nb.array[float], d: nb.array2d[float]):
    nb.launch(scale, dim=a.shape, inputs=[a, s], outputs=[c])
    nb.launch(scale2, dim=b.shape, inputs=[b, s], outputs=[d])


def chained(a: nb.array[float], out: nb.array[float]):
    once, twice = nb.zeros(a.shape, dtype=a.dtype), nb.empty_like(a)
    nb.launch(scale, a.shape, [a, 2.0], [once])
    scale.forall(a.shape)(once, 3.0, twice)
    nb.launch(increase, a.shape, [twice])
    scale[1, 10](twice, 0.5, out)


@modes
@jitted
def test_several_kernels(mode, wrap):
    f = jax_callable(two, num_outputs=2, graph_mode=mode)
    b = a10.reshape(5, 2)

    def run(a, b):
        return f(a, b, 2.0, output_dims={"c": a.shape, "d": b.shape})

    c, d = wrap(run)(a10, b)
    assert isinstance(c, jax.Array) and (c == 2 * a10).all() and (d == 2 * b).all()
    c, d = wrap(functools.partial(jax_callable(two, 2, mode, output_dims={"c": 10, "d": (5, 2)})))(
        a10, b, jnp.float32(3)
    )
    assert (c == 3 * a10).all() and (d == 3 * b).all()


@modes
@jitted
def test_temporaries(mode, wrap):
    (out,) = wrap(jax_callable(chained, graph_mode=mode))(a10)
    assert (out == (6 * a10 + 1) / 2).all()


@modes
@jitted
def test_in_out_arguments(mode, wrap):
    def function(x: nb.array[float], state: nb.array[float], out: nb.array[float]):
        nb.launch(increase, state.shape, [state])
        nb.launch(accumulate, x.shape, [x], [state])
        nb.launch(scale, state.shape, [state, 10.0], [out])

    f = jax_callable(function, num_outputs=2, graph_mode=mode, in_out_argnames=["state"], output_dims=3)
    start = jnp.ones(3)
    state, out = wrap(f)(a10, start)
    assert state.tolist() == [47, 2, 2] and out.tolist() == [470, 20, 20] and start.tolist() == [1, 1, 1]


@modes
@jitted
def test_views_fills_and_copies(mode, wrap):
    def function(x: nb.array[float], out: nb.array2d[float]):
        nb.launch(scale, 5, [x[::2], 1.0], [out[0]])
        nb.launch(scale, 10, [x, 2.0], [out[1:].reshape(-1)])
        part = nb.full((5,), 7.0)
        nb.copy(out[1], part)
        out[2, :2].fill_(3)
        held = nb.clone(out[0])
        out[0].zero_()
        nb.copy(out[0], held, dest_offset=1, src_offset=2, count=3)

    (out,) = wrap(jax_callable(function, graph_mode=mode, output_dims=(3, 5)))(a10)
    want = np.array([[0, 4, 6, 8, 0], [7] * 5, [3, 3, 14, 16, 18]], np.float32)
    np.testing.assert_array_equal(out, want)


@modes
def test_rows_in_turn_and_numbers_that_are_traced(mode):
    def function(x: nb.array2d[float], s: float, out: nb.array2d[float]):
        for row, result in zip(x, out, strict=True):
            nb.launch(scale, 5, [row, 2.0], [result])
        out[1, 1:3].fill_(s)
        out[0, :2].assign([5.0, 6.0])

    (out,) = jax.jit(jax_callable(function, graph_mode=mode))(a10.reshape(2, 5), 0.5)
    np.testing.assert_array_equal(out, np.array([[5, 6, 4, 6, 8], [10, 0.5, 0.5, 16, 18]], np.float32))


@modes
@jitted
def test_what_is_not_written_is_zero(mode, wrap):
    def function(x: nb.array[float], out: nb.array[float], spare: nb.array2d[int]):
        nb.launch(scale, 3, [x, 1.0], [out])
        nb.launch(accumulate, x.shape, [x], [nb.empty(1)])

    for _ in range(3):
        out, spare = wrap(jax_callable(function, 2, mode, output_dims={"out": 10, "spare": (2, 2)}))(a10)
        assert out.tolist() == [0, 1, 2] + [0] * 7 and spare.tolist() == [[0, 0], [0, 0]] and spare.dtype == jnp.int32
        jnp.full(10, 7.0).block_until_ready()


@modes
@pytest.mark.parametrize("method", ["broadcast_all", "expand_dims", "sequential"])
def test_vmap(mode, method):
    f = jax_callable(two, 2, mode, vmap_method=method, output_dims={"c": 10, "d": (5, 2)})
    a, b, s = jnp.stack([a10, a10 + 1, a10 * 2]), a10.reshape(5, 2), jnp.arange(3.0)
    c, d = jax.jit(jax.vmap(f, in_axes=(0, None, 0)))(a, b, s)
    np.testing.assert_allclose(c, a * s[:, None])
    np.testing.assert_allclose(d, b * s[:, None, None])
    c, d = jax.vmap(jax.vmap(f, in_axes=(0, None, None)), in_axes=(None, None, 0))(a, b, s)
    np.testing.assert_allclose(c, a * s[:, None, None])
    np.testing.assert_allclose(d, jnp.broadcast_to((b * s[:, None, None])[:, None], (3, 3, 5, 2)))


@modes
def test_numbers(mode):
    seen = []

    def function(x: nb.array[float], k: int, s, flag: bool, out: nb.array[float]):
        seen.append((k, s, flag))
        nb.launch(scale, x.shape, [x, s * k], [out])

    f = jax_callable(function, graph_mode=mode)
    assert (f(a10, 3, 0.5, True)[0] == 1.5 * a10).all()
    assert seen[-1] == (3, 0.5, True) and type(seen[-1][0]) is int and type(seen[-1][2]) is bool
    assert (f(a10, np.int32(4), np.float32(0.25), False)[0] == a10).all()
    assert seen[-1] == (4, 0.25, False) and type(seen[-1][1]) is np.float32
    assert (jax.jit(f)(a10, 2, 0.5, True)[0] == a10).all()
    if mode is nb.GraphMode.NONE:
        assert seen[-1] == (2, 0.5, True) and seen[-1][0].dtype == np.int32


def test_the_function_is_traced_once_for_each_shape():
    seen = []

    def function(x: nb.array[float], out: nb.array[float]):
        seen.append(x.shape)
        nb.launch(scale, x.shape, [x, 1.0], [out])

    f = jax_callable(function)
    for x in (a10, a10, a10[:3], a10):
        f(x)
    assert seen == [(10,), (3,)]
    g = jax.jit(jax_callable(function, graph_mode=nb.GraphMode.NONE))
    seen.clear()
    for _ in range(3):
        jax.block_until_ready(g(a10))
    assert seen == [(10,)] * 3


def test_a_traced_function_has_no_python_left_in_it():
    text = jax.jit(jax_callable(chained)).lower(a10).as_text()
    assert text.count("custom_call @numbridge_launch") == 4 and "callback" not in text and "numbridge_call" not in text


def test_values_may_be_looked_at_in_mode_none_alone():
    def function(x: nb.array[float], out: nb.array[float]):
        nb.launch(scale, x.shape, [x, float(x.numpy().max())], [out])

    assert (jax.jit(jax_callable(function, graph_mode=nb.GraphMode.NONE))(a10)[0] == 9 * a10).all()
    with pytest.raises(
        nb.BufferAccessError, match=r"<traced array 'x': float32\[10\]> has no memory: .*GraphMode\.NONE"
    ):
        jax_callable(function)(a10)
    for look in (np.asarray, float, torch.from_dlpack, lambda x: x.item(), bool):
        with pytest.raises((nb.BufferAccessError, TypeError), match=r"has no memory"):
            jax_callable(_two_arguments(lambda x, out, look=look: look(x)))(a10)


def test_arrays_from_outside_are_constants():
    outside = np.arange(10, dtype=np.float32)

    @nb.kernel
    def add(x: nb.array[float], y: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = x[i] + y[i]

    for constant in (outside, torch.from_numpy(outside), nb.array(outside), jnp.asarray(outside)):

        def function(x: nb.array[float], out: nb.array[float], constant=constant):
            nb.launch(add, 10, [x, constant], [out])

        assert (jax.jit(jax_callable(_two_arguments(function)))(a10)[0] == 2 * a10).all()


def _two_arguments(function):
    def wrapped(x: nb.array[float], out: nb.array[float]):
        function(x, out)

    return wrapped


@nb.kernel
def swap(a: nb.array[float], b: nb.array[float]):
    i = nb.tid()
    t = a[i]
    a[i] = b[i]
    b[i] = t


WRONG = {
    "input": (
        lambda x, out: nb.launch(increase, 10, [x]),
        r"parameter 'x': the kernel writes to it, and <traced array 'x'.*in_out",
    ),
    "fill input": (
        lambda x, out: x.fill_(1),
        r"<traced array 'x': float32\[10\]> is an input of the function .*in_out_argnames",
    ),
    "outside": (
        lambda x, out: nb.launch(scale, 10, [x, 1.0], [np.zeros(10, np.float32)]),
        r"parameter 'out': .*a ndarray from outside the traced function would be written only once",
    ),
    "twice": (
        lambda x, out: nb.launch(swap, 5, [out[:5], out[5:]]),
        r"'b': .* is passed for two parameters that the kernel writes",
    ),
    "returned": (lambda x, out: 3, r"function '<lambda>' returned 3; it must write its outputs by launching kernels"),
    "count": (
        lambda x, out: nb.launch(scale, 10, [x], [out]),
        r"kernel 'scale' takes 3 arguments \(x, s, out\), got 2",
    ),
    "dtype": (
        lambda x, out: nb.launch(scale, 10, [x, 1.0], [nb.zeros(10, int)]),
        r"'out': wanted array1d\[float32\], got int32",
    ),
    "index": (lambda x, out: x[np.array([1])], r"is indexed with array\(\[1\]\); a view takes ints"),
    "beyond": (lambda x, out: nb.launch(scale, 1, [x, 1.0], [out[10]]), r"index 10 is out of range for axis 0"),
    "before": (lambda x, out: x[-11], r"index -11 is out of range for axis 0 with extent 10"),
    "truth": (lambda x, out: x[True], r"an index of type bool would copy"),
    "shape": (lambda x, out: out.assign(x[:1]), r"assign got values of shape \(1,\) for <traced array 'out'"),
    "too large": (
        lambda x, out: nb.zeros(10, nb.uint8).fill_(300),
        r"fill_: <traced array .*uint8\[10\]> does not take these values: Python integer 300 out of bounds",
    ),
    "not numbers": (lambda x, out: out.assign(["a"] * 10), r"assign: <traced array 'out'.* does not take these values"),
    "overrun": (lambda x, out: nb.launch(scale, 10, [x[1:], 1.0], [out]), r"'x': its shape is \(9,\), .* takes x\[i\]"),
    "nothing": (lambda x, out: nb.launch(reads, 10, [x]), r"kernel 'reads' writes to none of its arguments"),
}


@nb.kernel
def reads(x: nb.array[float]):
    i = nb.tid()
    x[i]


@pytest.mark.parametrize("case", WRONG)
def test_what_a_traced_function_may_not_do(case):
    function, message = WRONG[case]
    function.__annotations__.update(x=nb.array(dtype=float), out=nb.array(dtype=float))
    with pytest.raises(nb.NumbridgeError, match=message):
        jax_callable(function)(a10)


@pytest.mark.parametrize("mode", [nb.GraphMode.NONE, nb.GraphMode.JAX])
def test_arguments_are_checked(mode):
    f = jax_callable(two, 2, mode)
    for arguments, message in (
        ((a10, a10, 1.0), r"function 'two' under JAX, argument 'b': wanted array2d\[float32\]"),
        ((a10.astype(int), a10.reshape(5, 2), 1.0), r"argument 'a': wanted array1d\[float32\], got int32\[10\]"),
        ((a10, a10.reshape(5, 2), a10), r"argument 's': wanted a scalar float32, got float32\[10\]"),
        ((a10, [1.0], 1.0), r"argument 'b': wanted a JAX array or a number, got list"),
        ((a10,), r"takes 3 argument\(s\) \(a, b, s\), got 1"),
        (
            (a10, a10.reshape(5, 2), 1.0),
            r"output 'd': it is annotated as array2d\[float32\].*shape \(10,\); pass output_dims",
        ),
    ):
        with pytest.raises(nb.NumbridgeError, match=message):
            f(*arguments)


@modes
@pytest.mark.parametrize("has_side_effect", [False, True])
def test_side_effects(mode, has_side_effect):
    f = jax_callable(chained, graph_mode=mode, has_side_effect=has_side_effect)

    @jax.jit
    def unused(x):
        f(x)
        return x + 1

    assert ("custom-call" in unused.lower(a10).compile().as_text()) == has_side_effect
    assert (unused(a10) == a10 + 1).all()


def test_errors_of_a_called_function_are_errors_of_xla():
    def function(x: nb.array[float], out: nb.array[float]):
        raise RuntimeError("what went wrong")

    with pytest.raises(failures, match=r"RuntimeError: what went wrong"):
        jax.block_until_ready(jax_callable(function, graph_mode=nb.GraphMode.NONE)(a10))

    def returns(x: nb.array[float], out: nb.array[float]):
        return x

    with pytest.raises(failures, match=r"function 'returns' returned array\("):
        jax.block_until_ready(jax_callable(returns, graph_mode=nb.GraphMode.NONE)(a10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph_mode": "jax"}, r"graph_mode is 'jax'; it must be a GraphMode"),
        ({"enable_backward": True, "graph_mode": nb.GraphMode.NONE}, "in GraphMode.NONE Python runs it each time"),
        ({"num_outputs": 9}, r"function 'two': num_outputs=9, and there are only 5 parameters"),
        ({"vmap_method": "x"}, r"vmap_method is 'x'"),
    ],
)
def test_contradictions_are_refused_when_a_function_is_wrapped(options, message):
    with pytest.raises(nb.NumbridgeError, match=message):
        jax_callable(two, **options)


def test_only_functions_of_positions_are_wrapped():
    with pytest.raises(nb.NumbridgeTypeError, match=r"jax_callable: wanted a function, got 3"):
        jax_callable(3)
    with pytest.raises(nb.NumbridgeTypeError, match=r"parameter 'rest' cannot be passed by position"):
        jax_callable(lambda *rest: None)
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"'factor' cannot be passed by position; let the partial bind the first"
    ):
        jax_callable(functools.partial(halves, factor=0.5))


class Halves:
    """An object that is called, with attributes named as those of a JaxCallable are."""

    def __init__(self, factor):
        self.factor = factor
        self._func, self._calls, self._options, self._signature, self._lock = 1, 2, 3, 4, 5

    def __call__(self, x: nb.array[int], out: nb.array[float]):
        self.method(x, out)

    def method(self, x: nb.array[int], out: nb.array[float]):
        halves(self.factor, x, out)

    @classmethod
    def of_class(cls, x: nb.array[int], out: nb.array[float]):
        halves(0.5, x, out)


@nb.kernel
def scale_ints(x: nb.array[int], factor: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = float(x[i]) * factor


def halves(factor: float, x: nb.array[int], out: nb.array[float]):
    nb.launch(scale_ints, x.shape, [x, factor], [out])


def signed_in_text(x, out):
    halves(0.5, x, out)


signed_in_text.__annotations__ = {"x": "nb.array[int]", "out": "nb.array[float]"}
signed_in_text.__signature__ = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=text)
        for name, text in signed_in_text.__annotations__.items()
    ]
)
CALLED = {
    "partial": functools.partial(halves, 0.5),
    "partial of a partial": functools.partial(functools.partial(halves), 0.5),
    "partial of a method": functools.partial(Halves(0.5).method),
    "partial of an object": functools.partial(Halves(0.5)),
    "object": Halves(0.5),
    "method": Halves(0.5).method,
    "method of a class": Halves.of_class,
    "wrapped": functools.wraps(Halves.of_class)(lambda *arguments: halves(0.5, *arguments)),
    "signature": signed_in_text,
}


@modes
@pytest.mark.parametrize("form", CALLED)
def test_annotations_are_those_of_what_is_called(mode, form):
    """Without them the output would have the dtype of the input, and lose the halves."""
    f = nb.jax_callable(CALLED[form], graph_mode=mode)
    (out,) = f(jnp.arange(3))
    assert out.dtype == jnp.float32 and out.tolist() == [0.0, 0.5, 1.0]
    assert next(iter(inspect.signature(f).parameters)) == "x"


def test_annotations_that_cannot_be_evaluated():
    def function(x: nowhere[float], out: nb.array[float]):  # noqa: F821
        out.fill_(1)

    for given in (function, functools.partial(function)):
        with pytest.raises(
            nb.NumbridgeTypeError,
            match=r"its annotations cannot be evaluated: NameError: name 'nowhere' is not defined",
        ):
            jax_callable(given)
    signed = functools.partial(function)
    signed.__signature__ = inspect.signature(function)
    with pytest.raises(nb.NumbridgeTypeError, match=r"'x' of function 'partial'.*nowhere"):
        jax_callable(signed)


@modes
def test_attributes_of_a_function_are_its_own(mode):
    def function(x: nb.array[float], out: nb.array[float]):
        nb.launch(scale, x.shape, [x, 2.0], [out])

    function._calls = function._func = function._signature = function._made = function.source = None
    assert (nb.jax_callable(function, graph_mode=mode)(a10)[0] == 2 * a10).all()


FACTOR = 2.0


@nb.kernel
def uses_factor(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * FACTOR


def launches(x: nb.array[float], out: nb.array[float]):
    nb.launch(uses_factor, x.shape, [x], [out])


def around(inner, given, mode):
    """Return a function that calls another one with what is traced, or with a constant, which goes another way."""

    def calls(x: nb.array[float], out: nb.array[float]):
        x = jnp.asarray(x)
        out.assign(inner(x)[0] if given == "traced" else inner(jnp.ones(10))[0] * x)

    return nb.jax_callable(calls, graph_mode=mode)


# In mode NONE a function may not wait for what JAX computes.
WAYS = [("", nb.GraphMode.NONE)] + [
    (way, mode)
    for way in ("", "traced", "constant", "constant traced")
    for mode in (nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE)
]


@pytest.mark.parametrize("first", ["launch", "kernel"])
@pytest.mark.parametrize(("way", "mode"), WAYS)
def test_an_eager_call_sees_new_globals(way, mode, first, monkeypatch):
    functions = [nb.jax_kernel(uses_factor) if first == "kernel" else nb.jax_callable(launches, graph_mode=mode)]
    for given in way.split():
        functions.append(around(functions[-1], given, mode))
    for factor in (2.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        # The outer ones come last, when the inner ones have been traced and say nothing of their kernels any more.
        assert [f(a10)[0].tolist() for f in functions] == [(factor * a10).tolist()] * len(functions)


@pytest.mark.parametrize("way", ["traced", "constant"])
def test_a_called_function_within_a_traced_one_sees_new_globals(way, monkeypatch):
    f = around(nb.jax_callable(launches, graph_mode=nb.GraphMode.NONE), way, nb.GraphMode.JAX)
    for factor in (2.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert f(a10)[0].tolist() == (factor * a10).tolist()


def test_scan_and_jit_inside():
    f = jax_callable(chained)
    x, _ = jax.lax.scan(lambda c, _: (f(c)[0], None), a10, None, length=2)
    once = (6 * a10 + 1) / 2
    np.testing.assert_allclose(x, (6 * once + 1) / 2)


def test_eager_calls_do_not_grow(growth):
    f = jax_callable(chained)
    assert growth(lambda: f(a10), 3000) < 1 << 20


@nb.kernel
def blend(x: nb.array[float], w: nb.array[float], a: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = nb.sin(x[i]) * w[i] + a * out[i]


@nb.kernel
def squares(x: nb.array[float], total: nb.array[float]):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i] * x[i])


def network(x: nb.array[float], w: nb.array2d[float], a: float, state: nb.array[float], loss: nb.array[float]):
    hidden = nb.empty_like(x)
    nb.copy(hidden, x)
    for layer in range(3):
        nb.launch(blend, x.shape, [hidden, w[layer], a, state])
        nb.copy(hidden, state)
        hidden[:1].fill_(0.5)
    nb.launch(squares, 4, [hidden[::2]], [loss])


def network_jax(x, w, a, state):
    hidden = x
    for layer in range(3):
        state = jnp.sin(hidden) * w[layer] + a * state
        hidden = state.at[0].set(0.5)
    return state, (hidden[::2] ** 2).sum()[None]


@pytest.mark.parametrize("mode", [nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE])
def test_derivatives(mode):
    f = jax_callable(network, 2, mode, in_out_argnames=["state"], output_dims=1, enable_backward=True)
    random = np.random.default_rng(0)
    given = [jnp.asarray(random.uniform(0.2, 0.9, shape), jnp.float32) for shape in ((8,), (3, 8), (), (8,))]

    def loss(function):
        return lambda *arguments: sum(jnp.sin(part).sum() for part in function(*arguments))

    def compare(transform):
        for wrap in (jax.jit, lambda g: g):
            got, wanted = wrap(transform(loss(f)))(*given), transform(loss(network_jax))(*given)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, wanted)

    every = (0, 1, 2, 3)
    compare(lambda g: jax.value_and_grad(g, every))
    compare(lambda g: lambda *a: jax.jvp(g, a, a))
    compare(lambda g: jax.hessian(g, (0, 2)))
    compare(lambda g: lambda x, w, a, s: jax.vmap(jax.grad(g, (0, 1)), (None, None, 0, None))(x, w, jnp.ones(3) * a, s))
    compare(lambda g: jax.grad(jax.checkpoint(g), every))


def test_derivatives_are_asked_for():
    f = jax_callable(network, 2, in_out_argnames=["state"], output_dims=1)
    with pytest.raises(nb.KernelUnsupportedError, match="wrapped without derivatives; pass enable_backward=True"):
        jax.grad(lambda x: f(x, jnp.ones((3, 8)), 0.5, x)[1].sum())(jnp.ones(8))


def test_blocks_of_a_given_shape():
    def both(a: nb.array2d[float], b: nb.array2d[float], c: nb.array2d[float], d: nb.array2d[float]):
        nb.launch(products, c.shape, [a, b], [c], block_dim=(TILE, TILE))
        products[(2, 4), (TILE, TILE)](a, b, d)

    a, b = factors()
    for result in jax_callable(both, num_outputs=2, output_dims=(8, 16))(a, b):
        assert np.allclose(result, a @ b, atol=1e-5)

    def seen(out: nb.array(dtype=nb.int32, ndim=3)):
        places2[(4, 3), (2, 8)](out)

    (out,) = jax_callable(seen, output_dims=(8, 24, 8))()
    assert np.array_equal(out, places((8, 24), (2, 8)))
    (grown,) = jax_callable(nothing)(a[0])
    assert not np.asarray(grown).any()


def nothing(x: nb.array[float], out: nb.array[float]):
    scale[0, 0](x, 2.0, out)
    scale[4, 0](x, 2.0, out)


def signed(x: nb.array[float], s: float, out: nb.array[float]):
    nb.launch(scale, x.shape, [x, math.copysign(2.0, s)], [out])


@modes
def test_eager_numbers_that_are_equal_and_differ(mode):
    f = jax_callable(signed, graph_mode=mode)
    for s, sign in [(0.0, 2.0), (-0.0, -2.0), (np.float32(0), 2.0), (np.float32(-0.0), -2.0), (0.0, 2.0)]:
        assert f(a10, s)[0].tolist() == (sign * a10).tolist(), s
    seen = []

    def kind(x: nb.array[float], s, out: nb.array[float]):
        seen.append(type(s))
        nb.launch(scale, x.shape, [x, float(s)], [out])

    g = jax_callable(kind, graph_mode=mode)
    for s in (1, True, 1.0, np.int64(1), np.float32(1)):
        g(a10, s)
    assert seen == [int, bool, float, np.int64, np.float32]


def test_eager_nan_is_traced_once():
    seen = []

    def function(x: nb.array[float], s: float, out: nb.array[float]):
        seen.append(s)
        nb.launch(scale, x.shape, [x, s], [out])

    f = jax_callable(function)
    for _ in range(3):
        # Each is an object of its own, which equals nothing and has a hash of its own.
        assert jnp.isnan(f(a10, float("nan"))[0]).all()
    assert len(seen) == 1


@modes
def test_inputs_by_name(mode):
    f = jax_callable(signed, graph_mode=mode)
    assert str(inspect.signature(f)) == "(x, s, *, output_dims=None, vmap_method=None)"
    assert f(a10, s=-1.0)[0].tolist() == f(s=-1.0, x=a10)[0].tolist() == (-2 * a10).tolist()
    assert jax.jit(f, static_argnames="s")(a10, s=-1.0)[0].tolist() == (-2 * a10).tolist()
    assert jax.jit(f, static_argnames="s")(a10, -1.0)[0].tolist() == (-2 * a10).tolist()
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"function 'signed' under JAX has no input or option 'y'; its inputs are x, s"
    ):
        f(a10, y=1.0)
