"""Checks of kernels on eight host devices, run by `test_jax_devices` in a process of their own: ``eight_devices.py shardy``.

Prints ``ok NAME`` after each check that holds, and the traceback of each that does not.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from functools import partial

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numba import cuda

import numbridge as nb
from compiled_calls import jax_callable, jax_kernel
from numbridge.jax_ffi.targets import PLAN_TARGET, TARGET

COLLECTIVES = ("all-gather", "all-to-all", "all-reduce", "collective-permute", "dynamic-slice")


@nb.kernel
def double(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = 2.0 * x[i]


@nb.kernel
def difference(x: nb.array2d[float], y: nb.array2d[float], out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = x[i, j] - y[i, j] / 3.0 + i


@nb.kernel
def add2(a: nb.array2d[float], b: nb.array2d[float], s: float, out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = a[i, j] + s * b[i, j]


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
def lookup(table: nb.array[float], indices: nb.array[int], out: nb.array[float]):
    i = nb.tid()
    out[i] = table[indices[i]]


@nb.kernel
def sums(x: nb.array2d[float], n: int, out: nb.array[float]):
    i = nb.tid()
    s = 0.0
    for k in range(n):
        s += x[i, k]
    out[i] = s


@nb.kernel
def differences(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    if i > 0:
        out[i] = x[i] - x[i - 1]


@nb.kernel
def numbered(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] + i


@nb.kernel
def row_sums(m: nb.array2d[float], sums: nb.array[float]):
    i, j = nb.tid()
    nb.atomic_add(sums, i, m[i, j])


@nb.kernel
def column_of_rows(m: nb.array2d[float], out: nb.array[float]):
    i = nb.tid()
    for k in range(m.shape[1]):
        out[i + 0] += m[i + 0, k]


@nb.kernel
def sums_of_blocks(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    total = cuda.shared.array(1, nb.float32)
    total[0] = 0.0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, x[i])
    cuda.syncthreads()
    out[i] = total[0]


@nb.kernel
def behind_an_ellipsis(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[..., i] = 2.0 * x[i]


@nb.kernel
def weighed(x: nb.array2d[float], w: nb.array[float], out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = x[i, j] * w[j] + w[j] * w[j]


LINE = Mesh(np.array(jax.devices()), "x")
GRID = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))


@nb.kernel
def running(x: nb.array2d[float], out: nb.array2d[float]):
    i = nb.tid()
    out[0, i] = x[0, i]
    for t in range(1, x.shape[0]):
        out[t, i] = out[t - 1, i] * x[t, i] + x[t, i]


def values(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def put(x, *spec, mesh=GRID):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def moved(f, *arguments):
    """Return which collectives a jitted function's program has."""
    text = f.lower(*arguments).compile().as_text()
    return [name for name in COLLECTIVES if f"{name}(" in text or f"{name}-start(" in text]


def check_elementwise_launches_follow_their_arguments():
    f = jax.jit(lambda x: jax_kernel(double)(x)[0])
    x = values(40)
    for spec in ((("x", "y"),), ("x",), ("y",), ()):
        given = put(x, *spec)
        out = f(given)
        np.testing.assert_array_equal(out, 2 * x)
        assert moved(f, given) == []
        assert out.sharding.is_equivalent_to(given.sharding, 1)


def check_two_dimensions_and_a_traced_number():
    f = jax.jit(lambda a, b, s: jax_kernel(add2)(a, b, s)[0])
    a, b = values(8, 6), values(8, 6)
    for spec in (("x", "y"), ("x",), (None, "y"), (("x", "y"),)):
        given = (put(a, *spec), put(b, *spec), put(np.float32(3)))
        np.testing.assert_allclose(f(*given), a + 3 * b, rtol=1e-6)
        assert moved(f, *given) == []


def check_arguments_that_are_cut_differently():
    f = jax.jit(lambda a, b: jax_kernel(add2)(a, b, 1.0)[0])
    a, b = values(8, 8), values(8, 8)
    for one, two in ((("x",), (None, "x")), (("x", "y"), ()), ((), ("y", "x"))):
        np.testing.assert_allclose(f(put(a, *one), put(b, *two)), a + b, rtol=1e-6)


def check_a_matrix_product_is_cut_along_rows_and_columns():
    f = jax.jit(lambda a, b: jax_kernel(matmul)(a, b, launch_dims=(8, 4))[0])
    a, b = values(8, 8), values(8, 4)
    for one, two, free in (
        (("x",), (), True),
        (("x",), (None, "y"), True),
        ((), (None, "x"), True),
        ((None, "x"), (), False),
    ):
        given = put(a, *one), put(b, *two)
        np.testing.assert_allclose(f(*given), a @ b, rtol=1e-4, atol=1e-5)
        assert (moved(f, *given) == []) == free


def check_dims_that_functions_say():
    def product_dims(a, b):
        return a.shape[0], b.shape[1]

    a, b = values(8, 8), values(8, 4)
    one = jax_kernel(matmul, launch_dims=product_dims, output_dims=product_dims)
    given = put(a, "x"), put(b)
    f = jax.jit(lambda a, b: one(a, b)[0])
    # Within `shard_map` the functions see shards.
    inside = jax.shard_map(lambda a, b: one(a, b)[0], mesh=GRID, in_specs=(P("x"), P()), out_specs=P("x"))
    for run in (f, jax.jit(inside)):
        np.testing.assert_allclose(run(*given), a @ b, rtol=1e-4, atol=1e-5)
        assert moved(run, *given) == []
    found, *_ = typed(lambda a, b: one(a, b)[0], [(a, "x", None), (b, None, None)])
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-5)


def check_a_table_is_whole_everywhere():
    f = jax.jit(lambda t, i: jax_kernel(lookup, launch_dims=16)(t, i)[0])
    table, indices = values(64), np.random.default_rng(0).integers(0, 64, 16).astype(np.int32)
    for one, two, free in (((), ("x",), True), (("x",), ("x",), False), (("x",), (), False)):
        given = put(table, *one), put(indices, *two)
        np.testing.assert_array_equal(f(*given), table[indices])
        assert (moved(f, *given) == []) == free


def check_kernels_that_look_around_see_everything():
    x = values(16)
    for kernel, want in ((differences, np.append(0, np.diff(x))), (numbered, x + np.arange(16))):
        f = jax.jit(lambda x, kernel=kernel: jax_kernel(kernel)(x)[0])
        np.testing.assert_allclose(f(put(x, "x")), want, rtol=1e-5, atol=1e-6)


def check_threads_that_work_together_and_places_that_are_no_axes():
    x = values(16)
    for kernel, want in ((sums_of_blocks, np.full(16, x.sum())), (behind_an_ellipsis, 2 * x)):
        f = jax.jit(lambda x, kernel=kernel: jax_kernel(kernel)(x)[0], out_shardings=NamedSharding(GRID, P("x")))
        np.testing.assert_allclose(f(put(x, "x")), want, rtol=1e-5, atol=1e-6)


def check_shards_of_different_extents():
    def cut(x, *spec):
        return jax.lax.with_sharding_constraint(x, NamedSharding(LINE, P(*spec)))

    def total(x, w, cut):
        return (cut(jax_kernel(weighed, enable_backward=True)(cut(jnp.cos(x)), w)[0]) ** 2).sum()

    for rows in (3, 10):
        x, w = values(rows, 5), values(5)
        found = jax.jit(jax.grad(partial(total, cut=lambda x: cut(x, "x")), argnums=(0, 1)))(x, w)
        wanted = jax.grad(lambda x, w: ((jnp.cos(x) * w + w * w) ** 2).sum(), argnums=(0, 1))(x, w)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        table, indices = values(rows), np.arange(rows, dtype=np.int32)[::-1].copy()
        whole = NamedSharding(LINE, P())  # newer JAX returns no shards of different extents
        f = jax.jit(lambda t, i: cut(jax_kernel(lookup)(t, cut(i + 0, "x"))[0], "x"), out_shardings=whole)
        np.testing.assert_array_equal(f(table, indices), table[indices])


def check_atomics_along_rows():
    f = jax.jit(lambda m, s: jax_kernel(row_sums, in_out_argnames=["sums"])(m, s)[0])
    m = values(8, 6)
    for spec, free in ((("x",), True), ((None, "y"), False)):
        given = put(m, *spec), put(np.ones(8, np.float32), *spec[:1])
        np.testing.assert_allclose(f(*given), m.sum(1) + 1, rtol=1e-5)
        assert (moved(f, *given) == []) == free


def check_a_rule_of_the_users():
    m = values(8, 6)
    plain = jax.jit(lambda m: jax_kernel(column_of_rows, launch_dims=8)(m)[0])
    ruled = jax.jit(lambda m: jax_kernel(column_of_rows, launch_dims=8, sharding_rule="i k -> i")(m)[0])
    for f, free in ((plain, False), (ruled, True)):
        np.testing.assert_allclose(f(put(m, "x")), m.sum(1), rtol=1e-5)
        assert (moved(f, put(m, "x")) == []) == free
    np.testing.assert_allclose(ruled(put(m, None, "y")), m.sum(1), rtol=1e-5)


def check_batches_are_cut():
    f = jax.jit(jax.vmap(partial(jax_kernel(lookup), launch_dims=5), in_axes=(None, 0)))
    table, indices = values(64), np.random.default_rng(0).integers(0, 64, (16, 5)).astype(np.int32)
    given = put(table), put(indices, ("x", "y"))
    (out,) = f(*given)
    np.testing.assert_array_equal(out, table[indices])
    assert moved(f, *given) == []
    g = jax.jit(jax.vmap(jax.vmap(jax_kernel(differences))))
    x = values(4, 2, 9)
    np.testing.assert_allclose(g(put(x, "x", "y"))[0][..., 1:], np.diff(x), rtol=1e-5, atol=1e-6)
    assert moved(g, put(x, "x", "y")) == []


def check_donated_shards_are_used_in_place():
    f = jax.jit(jax_kernel(row_sums, in_out_argnames=["sums"]), donate_argnums=1)
    # Memory that JAX shares with NumPy cannot be donated, so these zeros are made where they lie.
    zeros = jax.jit(lambda: jnp.zeros(8), out_shardings=NamedSharding(GRID, P("x")))
    m, sums = put(values(8, 6), "x"), zeros()
    jax.block_until_ready((m, sums))
    if not jax.config.jax_use_shardy_partitioner:
        return  # the old partitioner copies what it has cut
    where = {s.device: s.data.unsafe_buffer_pointer() for s in sums.addressable_shards}
    (out,) = f(m, sums)
    np.testing.assert_allclose(out, m.sum(1), rtol=1e-5)
    assert {s.device: s.data.unsafe_buffer_pointer() for s in out.addressable_shards} == where


def check_shard_map():
    a, b = values(8, 8), values(8, 4)
    one = jax_kernel(matmul, launch_dims=(2, 4))
    for check in (True, False):
        f = jax.jit(
            jax.shard_map(
                lambda a, b: one(a, b)[0], mesh=GRID, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=check
            )
        )
        np.testing.assert_allclose(f(put(a, "x"), put(b)), a @ b, rtol=1e-4, atol=1e-5)
        assert moved(f, put(a, "x"), put(b)) == []
    if not jax.config.jax_use_shardy_partitioner:
        return  # the old partitioner ends the process on any custom call where only some axes are manual
    partly = jax.shard_map(
        lambda x: jax_kernel(double)(x)[0], mesh=GRID, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
    )
    np.testing.assert_array_equal(jax.jit(partly)(put(a[:, 0], "x")), 2 * a[:, 0])


def check_pmap():
    x = values(8, 5)
    np.testing.assert_array_equal(jax.pmap(jax_kernel(double))(x)[0], 2 * x)


@nb.kernel
def added(a: nb.array[float], s: float, total: nb.array[float]):
    i = nb.tid()
    total[i] += s * a[i]


def check_arguments_on_different_devices_are_named():
    a, total = (jax.device_put(values(4), device) for device in jax.devices()[3:5])

    def launched(a: nb.array[float], s: float, total: nb.array[float]):
        nb.launch(added, a.shape, [a, s], [total])

    def refused(run, name):
        message = rf"argument a of {name} with .* device ids \[3\].* argument total of {name} with .* ids \[4\]"
        with pytest.raises(ValueError, match=message):
            run(a, 2.0, total)

    one = jax_kernel(added, in_out_argnames=["total"], enable_backward=True)
    refused(one, "added")
    refused(lambda a, s, total: jax.grad(lambda a: one(a, s, total)[0].sum())(a), "added")
    for mode in nb.GraphMode:
        refused(nb.jax_callable(launched, in_out_argnames=["total"], graph_mode=mode), "launched")

    x, direction = jax.device_put(values(4), jax.devices()[3]), jax.device_put(values(4), jax.devices()[4])
    with pytest.raises(ValueError, match=r"argument a of numbridge_derivative .* argument tangent_of_a of"):
        jax.jvp(lambda x: one(x, 2.0, x)[0], (x,), (direction,))


def check_explicit_axes():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        x = jax.device_put(values(16), P("x"))
        out = jax.jit(lambda x: jax_kernel(double)(x + 1)[0])(x)
        np.testing.assert_allclose(out, 2 * (values(16) + 1), rtol=1e-6)


@nb.kernel
def squares(x: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = s * x[i] * x[i]


EXPLICIT = jax.make_mesh((4, 2), ("x", "y"))
MIXED = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto))


def typed(run, given, mesh=EXPLICIT):
    """Return what a jitted function makes of values whose types say how they are cut, and how its result's type says it is."""
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, NamedSharding(mesh, P(*spec))) for x, *spec in given]
        f = jax.jit(run)
        result = f(*placed)
        return np.asarray(result), jax.typeof(result).sharding.spec, moved(f, *placed)


def check_types_of_explicit_axes():
    x = values(16)
    for fuse in (None, False):
        f = nb.jax_kernel(squares, fuse=fuse)
        for mesh in (EXPLICIT, MIXED):
            found, spec, moves = typed(lambda x, s, f=f: f(x, s)[0] + x, [(x, "x"), (np.float32(2),)], mesh)
            np.testing.assert_allclose(found, 2 * x * x + x, rtol=1e-5)
            assert spec == P("x") and moves == []
    a, b = values(8, 8), values(8, 4)
    run = jax_kernel(matmul, launch_dims=(8, 4))
    for one, two, cut in (
        (("x",), (None, "y"), P("x", "y")),
        (("x",), (None, "x"), P("x", None)),
        ((None, "x"), (), P(None, None)),
    ):
        found, spec, _ = typed(lambda a, b: run(a, b)[0], [(a, *one), (b, *two)])
        np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-5)
        assert spec == cut, spec


def check_derivatives_with_explicit_axes():
    x, a, b = values(16), values(8, 8), values(8, 4)
    for fuse in (None, False):
        f = nb.jax_kernel(squares, fuse=fuse, enable_backward=True)

        def slope(x, f=f):
            return jax.grad(lambda x: f(x, 2.0)[0].sum())(x)

        for run in (slope, lambda x, slope=slope: jax.jvp(slope, (x,), (x,))[1]):
            found, spec, moves = typed(run, [(x, "x")])
            np.testing.assert_allclose(found, 4 * x, rtol=1e-5)
            assert spec == P("x") and moves == []
    product = jax_kernel(matmul, launch_dims=(8, 4), enable_backward=True)
    wanted = np.ones((8, 4), np.float32) @ b.T, a.T @ np.ones((8, 4), np.float32)
    for place in (0, 1):
        run = jax.grad(lambda a, b: product(a, b)[0].sum(), argnums=place)
        found, spec, _ = typed(run, [(a, "x"), (b, None, "y")])
        np.testing.assert_allclose(found, wanted[place], rtol=1e-4, atol=1e-4)
        assert spec == (P("x", None), P(None, "y"))[place]


def check_loops_and_batches_with_explicit_axes():
    x = values(16)

    def repeated(x):
        return jax.lax.scan(lambda c, _: (jax_kernel(squares)(c, 0.5)[0], None), x, None, length=2)[0]

    found, spec, moves = typed(repeated, [(x, "x")])
    np.testing.assert_allclose(found, 0.5 * (0.5 * x * x) ** 2, rtol=1e-5)
    assert spec == P("x") and moves == []
    rows = np.stack([x + k for k in range(8)])
    for method in ("broadcast_all", "sequential", "sequential_unrolled"):
        f = jax_kernel(squares, vmap_method=method, enable_backward=True)
        for cut in (("x", "y"), (None, "x"), ("x",)):
            if method == "sequential_unrolled" and not jax.config.jax_use_shardy_partitioner:
                continue  # the old partitioner ends the process where it infers what no axes say, with axes of every type
            found, spec, _ = typed(jax.vmap(lambda x, f=f: f(x, 2.0)[0]), [(rows, *cut)])
            np.testing.assert_allclose(found, 2 * rows * rows, rtol=1e-5)
            assert spec == P(*cut, *[None] * (2 - len(cut)))
            found, *_ = typed(jax.vmap(jax.grad(lambda x, f=f: f(x, 2.0)[0].sum())), [(rows, *cut)])
            np.testing.assert_allclose(found, 4 * rows, rtol=1e-5)


def check_callables_with_explicit_axes():
    def function(x: nb.array[float], out: nb.array[float]):
        half = nb.zeros(x.shape)
        nb.launch(double, x.shape, [x], [half])
        nb.launch(double, x.shape, [half], [out])

    x = values(16)
    for mode in (nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE):
        f = jax_callable(function, graph_mode=mode, enable_backward=True)
        found, spec, moves = typed(lambda x, f=f: f(x)[0], [(x, "x")])
        np.testing.assert_allclose(found, 4 * x, rtol=1e-6)
        assert spec == P("x") and moves == []
        found, *_ = typed(jax.grad(lambda x, f=f: f(x)[0].sum()), [(x, "x")])
        assert found.tolist() == [4.0] * 16


def check_fused_calls_are_cut_by_xla():
    whole, x, y = values(16, 6), put(values(16, 6), "x"), put(values(16, 6), "x")
    run = nb.jax_kernel(difference)
    f = jax.jit(lambda x, y: run(x, y)[0])
    # A slice of the numbers of the shards, from which thread indices are counted.
    assert "numbridge_fused" in f.lower(x, y).as_text() and moved(f, x, y) in ([], ["dynamic-slice"])
    wanted = whole - whole / 3.0 + np.arange(16, dtype=np.float32)[:, None]
    np.testing.assert_allclose(f(x, y), wanted, rtol=1e-6)
    for check in (True, False):
        mapped = jax.shard_map(f, mesh=GRID, in_specs=(P("x"), P("x")), out_specs=P("x"), check_vma=check)
        rows = np.tile(np.arange(4, dtype=np.float32), 4)[:, None]
        np.testing.assert_allclose(jax.jit(mapped)(x, y), whole - whole / 3.0 + rows, rtol=1e-6)
    partly = jax.shard_map(
        lambda x: nb.jax_kernel(double)(x)[0], mesh=GRID, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
    )
    np.testing.assert_array_equal(jax.jit(partly)(put(whole[:, 0], "x")), 2 * whole[:, 0])
    np.testing.assert_array_equal(jax.pmap(nb.jax_kernel(double))(whole[:8])[0], 2 * whole[:8])
    slope = jax.jit(jax.grad(lambda x: nb.jax_kernel(difference, enable_backward=True)(x, x)[0].sum()))
    np.testing.assert_allclose(slope(x), np.full((16, 6), 2 / 3), rtol=1e-6)


def check_callables_are_cut():
    def function(x: nb.array[float], out: nb.array[float]):
        half = nb.zeros(x.shape)
        nb.launch(double, x.shape, [x], [half])
        nb.launch(double, x.shape, [half], [out])

    f = jax.jit(jax_callable(function))
    np.testing.assert_array_equal(f(put(values(16), "x"))[0], 4 * values(16))
    assert moved(f, put(values(16), "x")) == []


def check_plans_are_for_one_device_each():
    """What the partitioner cuts stays apart; each shard by itself, and a program for one device, have one plan."""

    def function(x: nb.array[float], out: nb.array[float]):
        once = nb.zeros(x.shape)
        nb.launch(double, x.shape, [x], [once])
        nb.launch(double, x.shape, [once], [out])

    f = jax_callable(function, graph_mode=nb.GraphMode.NUMBRIDGE)
    mesh = Mesh(np.array(jax.devices()), ("i",))
    x = values(16)
    cut = put(x, "i", mesh=mesh)
    run = jax.jit(lambda x: f(x)[0])
    shards = jax.jit(jax.shard_map(lambda x: f(x)[0], mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    for program, value, plans in ((run, cut, 0), (shards, cut, 1), (run, x, 1)):
        text = program.lower(value).compile().as_text()
        assert text.count(f'custom_call_target="{PLAN_TARGET}"') == plans, text
        assert not any(name in text for name in COLLECTIVES)
        np.testing.assert_allclose(program(value), 4 * np.asarray(x))
    np.testing.assert_allclose(jax.pmap(lambda x: f(x)[0])(x.reshape(8, 2)), 4 * np.asarray(x).reshape(8, 2))


def check_plans_beside_operations_of_jax():
    def function(x: nb.array[float], out: nb.array[float]):
        once, more = nb.zeros(x.shape), nb.zeros(x.shape)
        nb.launch(double, x.shape, [x], [once])
        nb.launch(double, x.shape, [once], [more])
        out[:1] = jnp.asarray(x)[:1] + jnp.asarray(more)[:1]
        out[1:] = more[1:]

    f = jax_callable(function, graph_mode=nb.GraphMode.NUMBRIDGE)
    mesh = Mesh(np.array(jax.devices()), ("i",))
    run = jax.jit(jax.shard_map(lambda x: f(x)[0], mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    x = values(16)
    np.testing.assert_allclose(run(x), np.where(np.arange(16) % 2, 4, 5) * x)


def check_gradients_follow_their_arguments():
    one = jax_kernel(add2, enable_backward=True)
    a, b = values(8, 6), values(8, 6)
    f = jax.jit(jax.grad(lambda a, b, s: (one(a, b, s)[0] ** 2).sum(), (0, 1)))
    g = jax.jit(lambda a, b, s: jax.vjp(lambda a, b: one(a, b, s)[0], a, b)[1](a))
    tangents = jax.jit(lambda a, b: jax.jvp(lambda a, b: one(a, b, 3.0)[0], (a, b), (b, a))[1])
    for spec in (("x", "y"), ("x",), (None, "y"), (("x", "y"),)):
        given = (put(a, *spec), put(b, *spec))
        by_a, by_b = f(*given, 3.0)
        np.testing.assert_allclose(by_a, 2 * (a + 3 * b), rtol=1e-5)
        np.testing.assert_allclose(by_b, 6 * (a + 3 * b), rtol=1e-5)
        np.testing.assert_allclose(g(*given, 3.0)[1], 3 * a, rtol=1e-5)
        np.testing.assert_allclose(tangents(*given), b + 3 * a, rtol=1e-5)
        assert moved(f, *given, 3.0) == moved(g, *given, 3.0) == moved(tangents, *given) == []
        assert by_a.sharding.is_equivalent_to(given[0].sharding, 2)


def check_gradients_of_what_is_whole_are_summed():
    one = jax_kernel(matmul, launch_dims=(8, 4), enable_backward=True)
    a, b, c = values(8, 8), values(8, 4), values(8, 4)
    f = jax.jit(lambda a, b, c: jax.vjp(lambda a, b: one(a, b)[0], a, b)[1](c))
    for one_spec, two, three in (
        (("x",), (), ("x",)),
        (("x",), (None, "y"), ("x", "y")),
        ((), (None, "x"), (None, "x")),
    ):
        given = put(a, *one_spec), put(b, *two), put(c, *three)
        by_a, by_b = f(*given)
        np.testing.assert_allclose(by_a, c @ b.T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(by_b, a.T @ c, rtol=1e-4, atol=1e-5)
        assert moved(f, *given) == ["all-reduce"]
    g = jax.jit(jax.grad(lambda t, i: jax_kernel(lookup, launch_dims=16, enable_backward=True)(t, i)[0].sum()))
    table, indices = values(64), np.random.default_rng(0).integers(0, 64, 16).astype(np.int32)
    np.testing.assert_array_equal(g(put(table), put(indices, "x")), np.bincount(indices, minlength=64))
    assert moved(g, put(table), put(indices, "x")) == ["all-reduce"]
    h = jax.jit(jax.grad(lambda s, a, b: jax_kernel(add2, enable_backward=True)(a, b, s)[0].sum()))
    x = values(8, 6)
    for spec in (("x", "y"), (), (None, "y")):
        np.testing.assert_allclose(h(np.float32(2), put(x, *spec), put(x, *spec)), x.sum(), rtol=1e-5)


def check_gradients_by_a_rule_and_of_batches():
    m = values(8, 6)
    ruled = jax_kernel(column_of_rows, launch_dims=8, sharding_rule="i k -> i", enable_backward=True)
    f = jax.jit(jax.grad(lambda m: (ruled(m)[0] ** 2).sum()))
    np.testing.assert_allclose(f(put(m, "x")), np.broadcast_to(2 * m.sum(1)[:, None], m.shape), rtol=1e-5)
    assert moved(f, put(m, "x")) == []
    table, indices = values(64), np.random.default_rng(0).integers(0, 64, (16, 5)).astype(np.int32)
    one = partial(jax_kernel(lookup, enable_backward=True), launch_dims=5)
    g = jax.jit(jax.grad(lambda t, i: jax.vmap(one, in_axes=(None, 0))(t, i)[0].sum()))
    np.testing.assert_array_equal(
        g(put(table), put(indices, ("x", "y"))), np.bincount(indices.ravel(), minlength=64).astype(np.float32)
    )
    h = jax.jit(jax.vmap(jax.grad(lambda x: (jax_kernel(differences, enable_backward=True)(x)[0] ** 2).sum())))
    x = values(8, 9)
    wanted = jax.vmap(jax.grad(lambda x: (jnp.diff(x) ** 2).sum()))(x)
    np.testing.assert_allclose(h(put(x, ("x", "y"))), wanted, rtol=1e-4, atol=1e-5)
    assert moved(h, put(x, ("x", "y"))) == []


def check_kernels_that_look_around_have_whole_gradients():
    x = values(16)
    f = jax.jit(jax.grad(lambda x: (jax_kernel(differences, enable_backward=True)(x)[0] ** 2).sum()))
    wanted = jax.grad(lambda x: (jnp.diff(x) ** 2).sum())(x)
    np.testing.assert_allclose(f(put(x, "x")), wanted, rtol=1e-4, atol=1e-5)


def check_gradients_that_take_results_as_they_are():
    def steps(x):
        rows = [x[0]]
        for t in range(1, 4):
            rows.append(rows[-1] * x[t] + x[t])
        return jnp.stack(rows)

    x = values(4, 16)
    wanted = jax.grad(lambda x: (steps(x) ** 2).sum())(x)
    for rule in (None, "t i -> t i; i"):
        one = jax_kernel(running, launch_dims=16, output_dims=(4, 16), sharding_rule=rule, enable_backward=True)
        f = jax.jit(jax.grad(lambda x, one=one: (one(x)[0] ** 2).sum()))
        for spec in ((None, "x"), (None, ("x", "y")), ()):
            given = put(x, *spec)
            np.testing.assert_allclose(f(given), wanted, rtol=1e-4, atol=1e-4)
            assert moved(f, given) == []
        # A rule that says that a thread needs no more than its shard of the steps is wrong.
        if rule is None:
            np.testing.assert_allclose(f(put(x, "x")), wanted, rtol=1e-4, atol=1e-4)
    many = values(8, 4, 16)
    g = jax.jit(jax.vmap(jax.grad(lambda x: (one(x)[0] ** 2).sum())))
    np.testing.assert_allclose(
        g(put(many, "x", None, "y")), jax.vmap(jax.grad(lambda x: (steps(x) ** 2).sum()))(many), rtol=1e-4, atol=1e-4
    )


def check_gradients_in_shard_map():
    a, b = values(8, 8), values(8, 4)
    one = jax_kernel(matmul, launch_dims=(2, 4), enable_backward=True)

    def total(a, b):
        local = jax.shard_map(
            lambda a, b: jax.lax.psum((one(a, b)[0] ** 2).sum(), "x"), mesh=GRID, in_specs=(P("x"), P()), out_specs=P()
        )
        return local(a, b)

    wanted = jax.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1))(a, b)
    for got, right in zip(jax.jit(jax.grad(total, (0, 1)))(put(a, "x"), put(b)), wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-3, atol=1e-4)
    inside = jax.shard_map(
        lambda a, b: jax.grad(lambda b: jax.lax.psum((one(a, b)[0] ** 2).sum(), "x"))(b),
        mesh=GRID,
        in_specs=(P("x"), P()),
        out_specs=P(),
    )
    np.testing.assert_allclose(jax.jit(inside)(put(a, "x"), put(b)), wanted[1], rtol=1e-3, atol=1e-4)


def check_side_effects_of_each_shard():
    one = jax_kernel(double, has_side_effect=True)
    f = jax.jit(jax.shard_map(lambda x: one(x)[0], mesh=LINE, in_specs=P("x"), out_specs=P("x")))
    np.testing.assert_array_equal(f(put(values(16), "x", mesh=LINE)), 2 * values(16))


def check_exports():
    checks = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]
    made = jax.export.export(jax.jit(jax_kernel(double)), disabled_checks=checks)(jnp.zeros(16))
    np.testing.assert_array_equal(made.call(values(16))[0], 2 * values(16))


def check_integers_that_only_a_call_knows():
    f = jax_kernel(sums)
    whole = put(np.arange(48.0, dtype=np.float32).reshape(16, 3), "x", None, mesh=LINE)
    cut = jax.jit(lambda x, n: f(x, n, launch_dims=16)[0])
    inside = jax.shard_map(
        lambda x, n: f(x, n[0], launch_dims=2)[0], mesh=LINE, in_specs=(P("x"), P("x")), out_specs=P("x")
    )
    each = jax.pmap(lambda x, n: f(x, n, launch_dims=2)[0])
    one_more = np.arange(8) == 5
    for run, two, four, rows in (
        (cut, 2, 4, 2),
        (jax.jit(inside), np.full(8, 2), 2 + 2 * one_more, 2),
        (lambda x, n: each(x.reshape(8, 2, 3), n).reshape(16), np.full(8, 2), 2 + 2 * one_more, 2),
    ):
        np.testing.assert_array_equal(run(whole, two), np.asarray(whole)[:, :2].sum(1))
        message = rf"'x': its shape is \({rows}, 3\), and a launch over \({rows},\) takes x\[i, k\] with k = 3"
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
            jax.block_until_ready(run(whole, four))
        np.testing.assert_array_equal(run(whole, two), np.asarray(whole)[:, :2].sum(1))
    assert "all-gather" not in cut.lower(whole, 2).compile().as_text()


def check_rules_that_do_not_fit_are_refused():
    def call(rule, kernel=add2, **options):
        f = jax_kernel(kernel, sharding_rule=rule, **options)
        jax.jit(lambda a: f(a, a, 1.0)).lower(jnp.zeros((8, 6)))

    wrong = {
        "i j": 'has no "->"',
        "i j, i j -> i j, i": "names 2 output(s), and there are 1",
        "i j -> i j": "names 1 array input(s), and there are 2",
        "i, i j -> i j": "gives 'a' 1 axes, and it has 2",
        "j i, i j -> i j": "gives 'j' to axes of",
        "i j, i j -> i j; i": "names 1 launch dimension(s), and there are 2",
    }
    for rule, message in wrong.items():
        with pytest.raises(nb.NumbridgeValueError, match=re.escape(message)):
            call(rule)


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    jax.config.update("jax_use_shardy_partitioner", sys.argv[1] == "shardy")
    for name, check in CHECKS.items():
        try:
            check()
        except Exception:  # noqa: BLE001 - the next check runs all the same
            print(f"failed {name}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"ok {name}", flush=True)
