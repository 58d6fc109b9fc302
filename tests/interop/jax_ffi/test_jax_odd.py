"""Odd arguments of JAX functions made of kernels: each is refused with its name, and no error comes out of our insides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import numbridge as nb

ones = jnp.ones(3)


@nb.kernel
def scale(x: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * s


@nb.kernel
def scale_whole(x: nb.array[float], s: int, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * s


def function(x: nb.array[float], s: float, out: nb.array[float]):
    nb.launch(scale, x.shape, [x, s], [out])


def made_kernel(**options):
    return nb.jax_kernel(scale, **options)(ones, 2.0)


def called_kernel(**options):
    return nb.jax_kernel(scale)(ones, 2.0, **options)


def made_callable(**options):
    return nb.jax_callable(function, **options)(ones, 2.0)


def called_callable(**options):
    return nb.jax_callable(function)(ones, 2.0, **options)


everywhere = pytest.mark.parametrize("run", [made_kernel, called_kernel, made_callable, called_callable])
ODD_DIMS = [
    (1.5, TypeError, r"wanted an int or a tuple of ints, got 1\.5"),
    ("3", TypeError, "wanted an int or a tuple of ints, got '3'"),
    ((3, "a"), TypeError, r"wanted an int or a tuple of ints, got \(3, 'a'\)"),
    ({3}, TypeError, r"wanted an int or a tuple of ints, got \{3\}"),
    ([[3]], TypeError, r"wanted an int or a tuple of ints, got \[\[3\]\]"),
    (slice(3), TypeError, "wanted an int or a tuple of ints, got slice"),
    (np.array([3, 4]), TypeError, "dimensions are ints, or tuples of ints, that are known when JAX traces the call"),
    (-1, ValueError, "-1 has a negative extent"),
    (10**400, ValueError, r"100000*\.\.\. is more than 64 bits can count"),
    ((10**5000,), ValueError, "an integer of too many digits is more than 64 bits can count"),
    ((2**40, 2**40), ValueError, r"\(1099511627776, 1099511627776\) is more than 64 bits can count"),
]


@everywhere
@pytest.mark.parametrize(("dims", "kind", "message"), ODD_DIMS)
def test_odd_output_dims(run, dims, kind, message):
    for given, where in ((dims, "output_dims"), ({"out": dims}, r"output_dims\['out'\]")):
        with pytest.raises(nb.NumbridgeError, match=f"{where}: {message}") as caught:
            run(output_dims=given)
        assert isinstance(caught.value, kind)


@pytest.mark.parametrize("run", [made_kernel, called_kernel])
@pytest.mark.parametrize(("dims", "kind", "message"), [*ODD_DIMS, ({"out": 3}, TypeError, "wanted an int")])
def test_odd_launch_dims(run, dims, kind, message):
    with pytest.raises(nb.NumbridgeError, match=f"kernel 'scale': launch_dims: {message}") as caught:
        run(launch_dims=dims)
    assert isinstance(caught.value, kind)


@everywhere
@pytest.mark.parametrize("method", [3, "x", ["sequential"], b"sequential", np.array([1, 2]), np.array("sequential")])
def test_odd_vmap_methods(run, method):
    with pytest.raises(nb.NumbridgeValueError, match=r"'.*': vmap_method is .*; it must be one of broadcast_all, "):
        run(vmap_method=method)


@pytest.mark.parametrize("run", [made_kernel, called_kernel, made_callable])
@pytest.mark.parametrize("fuse", [1, 0, "x", [True], np.True_, np.array([True, False])])
def test_odd_fuse(run, fuse):
    with pytest.raises(nb.NumbridgeTypeError, match=r"'.*': fuse is .*; it must be True, False or None"):
        run(fuse=fuse)


def test_what_equals_a_flag_is_none_after_calls_with_flags():
    f = nb.jax_kernel(scale)
    f(ones, 2.0, fuse=True)
    with pytest.raises(nb.NumbridgeTypeError, match="fuse is 1; it must be True, False or None"):
        f(ones, 2.0, fuse=1)


@pytest.mark.parametrize("run", [made_kernel, made_callable])
@pytest.mark.parametrize("names", [3, 1.5, True, object()])
def test_odd_in_out_argnames(run, names):
    with pytest.raises(nb.NumbridgeTypeError, match=r"in_out_argnames is .*; pass a list of names, of x, s, out"):
        run(in_out_argnames=names)


@pytest.mark.parametrize("names", [["y"], [3], [None], [["x"]]])
def test_in_out_argnames_that_are_none(names):
    with pytest.raises(nb.NumbridgeValueError, match=r"in_out_argnames names .*, and the parameters are x, s, out"):
        made_kernel(in_out_argnames=names)


@pytest.mark.parametrize(
    ("rule", "kind", "message"),
    [
        (3, TypeError, 'sharding_rule is 3; it must be a string such as "i k, k j -> i j"'),
        (["i"], TypeError, r"sharding_rule is \['i'\]; it must be a string"),
        (b"i -> i", TypeError, r"sharding_rule is b'i -> i'; it must be a string"),
        ("i", ValueError, 'has no "->"'),
        ("i i -> i", ValueError, "names an axis twice in 'i i'"),
        ("i -> i->i", ValueError, "names an axis 'i->i'; names are such as i and rows"),
        ("i -> i; i; i", ValueError, "names an axis 'i;'"),
    ],
)
def test_odd_sharding_rules(rule, kind, message):
    with pytest.raises(nb.NumbridgeError, match=message) as caught:
        made_kernel(sharding_rule=rule)
    assert isinstance(caught.value, kind)


@pytest.mark.parametrize("wrap", ["eager", "jit"])
@pytest.mark.parametrize("number", [10**400, -(10**400), 10**5000], ids=["large", "negative", "unspeakable"])
def test_integers_that_nothing_holds(wrap, number):
    def run(f):
        return f(ones, number) if wrap == "eager" else jax.jit(lambda x: f(x, number))(ones)

    bits = number.bit_length()
    with pytest.raises(
        nb.NumbridgeValueError, match=f"argument 's': an integer of {bits} bits does not fit into float32"
    ):
        run(nb.jax_kernel(scale))
    with pytest.raises(
        nb.NumbridgeValueError, match=f"argument 's': an integer of {bits} bits does not fit into int32"
    ):
        run(nb.jax_kernel(scale_whole))
    for mode in (nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE):
        with pytest.raises(nb.NumbridgeValueError, match="does not fit into float32"):
            run(nb.jax_callable(function, graph_mode=mode))


@pytest.mark.parametrize("mode", list(nb.GraphMode))
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("3", "wanted a JAX array or a number, got str; convert it with jnp.asarray"),
        (None, "wanted a JAX array or a number, got NoneType"),
        (np.array(["a"]), "JAX has no dtype '<U1'; convert the array with astype"),
        (np.array([object()]), r"JAX has no dtype '\|O'"),
        (np.ma.array([1.0], mask=[True]), r"JAX has no masked arrays; pass x.filled\(value\)"),
    ],
)
def test_what_a_callable_does_not_take(mode, argument, message):
    f = nb.jax_callable(function, graph_mode=mode)
    assert f(ones, 2.0)[0].tolist() == [2.0] * 3
    for run in (f, jax.jit(lambda s: f(s, 2.0)) if argument is None else lambda s: f(s, 2.0)):
        arguments = (ones, argument) if run is f else (argument,)
        with pytest.raises(nb.NumbridgeTypeError, match=f"function 'function' under JAX, argument '[xs]': {message}"):
            run(*arguments)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (np.longdouble(3), r"use x.astype\('float32'\)"),
        (np.clongdouble(3), r"use x.astype\('complex64'\)"),
        (ml_dtypes.int4(3), r"use x.astype\('int8'\)"),
        (np.str_("3"), "pass a number, or an array of numbers"),
        (np.timedelta64(3, "s"), "pass a number, or an array of numbers"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_numbers_of_other_types(number, hint):
    for what, f in (("kernel 'scale'", nb.jax_kernel(scale)), ("function 'function'", nb.jax_callable(function))):
        message = f"^{what} under JAX, argument 's': dtype .* is not a scalar type; .*; {hint}"
        for run in (f, jax.jit(lambda x, f=f: f(x, number))):
            with pytest.raises(nb.ConversionError, match=message):
                run(*(ones, number) if run is f else (ones,))


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, 2**63])
def test_odd_graph_cache_max(value):
    message = r"function 'function': graph_cache_max is .*; it must be an int of at least 0, or None"
    with pytest.raises(nb.NumbridgeValueError, match=message):
        nb.jax_callable(function, graph_mode=nb.GraphMode.NUMBRIDGE, graph_cache_max=value)
    f = nb.jax_callable(function, graph_mode=nb.GraphMode.NUMBRIDGE)
    with pytest.raises(nb.NumbridgeValueError, match=message):
        f.graph_cache_max = value
    assert f.graph_cache_max == 32


def test_a_callable_without_parameters_to_be_read():
    with pytest.raises(nb.NumbridgeTypeError, match="jax_callable: <class 'type'> does not say its parameters"):
        nb.jax_callable(type)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("fuse", [None, False])
def test_arrays_in_the_hosts_memory_space(wrap, fuse):
    host = jax.device_put(ones, ones.sharding.with_memory_kind("pinned_host"))
    functions = [
        nb.jax_kernel(scale, fuse=fuse),
        *(nb.jax_callable(function, graph_mode=mode) for mode in nb.GraphMode),
    ]
    for f in functions:
        with pytest.raises(
            nb.NumbridgeTypeError, match=r"argument 'x': it is in JAX's memory space for the host.*move it"
        ):
            wrap(f)(host, 2.0)
        assert wrap(f)(jax.device_put(host, jax.memory.Space.Device), 2.0)[0].tolist() == [2.0] * 3


@pytest.mark.parametrize("mode", [nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE])
@pytest.mark.parametrize("wrap", [nb.jax_kernel, nb.jax_callable])
def test_functions_of_jax_within_a_callable(mode, wrap):
    inner = wrap(scale if wrap is nb.jax_kernel else function)

    def outer(x: nb.array[float], out: nb.array[float]):
        inner(x, 2.0)

    message = r"under JAX, argument 'x': got <traced array 'x': float32\[3\]>, .*or call a Python function"
    with pytest.raises(nb.NumbridgeTypeError, match=message):
        nb.jax_callable(outer, graph_mode=mode)(ones)

    def plain(x: nb.array[float], out: nb.array[float]):
        function(x, 2.0, out)

    assert nb.jax_callable(plain, graph_mode=mode)(ones)[0].tolist() == [2.0] * 3
