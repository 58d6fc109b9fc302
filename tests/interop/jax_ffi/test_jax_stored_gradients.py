"""Gradients under JAX that are stored, and cotangents that are only read: where each thread has an element of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from numbridge.jax_ffi import primitive
from numbridge.jax_ffi import words_layout as wl
from numbridge.jax_ffi.targets import TARGET

N = 4096
CHECKS = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]


@nb.kernel
def weighted(x: nb.array[nb.float32], w: nb.array[nb.float32], y: nb.array[nb.float32]):
    i = nb.tid()
    y[i] = x[i] * w[i] * w[i]


@nb.kernel
def chosen(x: nb.array[nb.float32], w: nb.array[nb.float32], y: nb.array[nb.float32]):
    i = nb.tid()
    y[i] = x[i] if i > 2 else w[i]


@nb.kernel
def twice_written(x: nb.array[nb.float32], w: nb.array[nb.float32], y: nb.array[nb.float32]):
    i = nb.tid()
    y[i] = x[i] * w[i]
    y[i] = y[i] * x[i]


@nb.kernel
def gathered(x: nb.array[nb.float32], w: nb.array[nb.float32], y: nb.array[nb.float32]):
    i = nb.tid()
    y[i] = x[i] * w[(i * 7) % w.shape[0]]


def places(n=N):
    return jnp.arange(n, dtype=jnp.float32) / n + 1


CASES = {
    "plain": (weighted, lambda x, w: x * w**2, N, ("x", "w"), ("y",)),
    "longer": (weighted, lambda x, w: x * w[:N] ** 2, N + 3, ("x",), ("y",)),
    "conditional": (chosen, lambda x, w: jnp.concatenate([w[:3], x[3:]]), N, (), ("y",)),
    "written twice": (twice_written, lambda x, w: x * w * x, N, ("x", "w"), ()),
    "gathered": (gathered, lambda x, w: x * w[(jnp.arange(N) * 7) % N], N, ("x",), ("y",)),
}


@pytest.fixture
def derived(monkeypatch):
    """Return the calls of derivatives that are planned."""
    found, planned = [], primitive.planned

    def noted(form):
        plan = planned(form)
        found.append(plan.call)
        return plan

    monkeypatch.setattr(primitive, "planned", noted)
    return found


def gradients(function, *values):
    """Return gradients that are right whatever the memory of results held."""
    back = jax.jit(jax.grad(lambda *v: (function(*v) * places()).sum(), argnums=(0, 1)))
    found = back(*values)
    for _ in range(5):
        jax.block_until_ready([jnp.full(v.shape, jnp.nan) for v in values])
        assert all(map(np.array_equal, back(*values), found))
    return found


@pytest.mark.parametrize("case", CASES)
def test_gradients(case, derived):
    kernel, same, extent, fresh, kept = CASES[case]
    f = nb.jax_kernel(kernel, enable_backward=True, launch_dims=N)
    values = places(), places(extent)
    for ours, theirs in zip(gradients(lambda x, w: f(x, w)[0], *values), gradients(same, *values), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    (call,) = derived
    if case == "written twice":
        # What is read after it was written changes its adjoint; nothing is kept, and then nothing is stored.
        fresh = ()
    assert (call.kernel.fresh, call.kernel.kept) == (fresh, kept)
    fills = {t.name: s.fill for t, s in zip(call.types, call.slots, strict=True) if s.kind == wl.RESULT}
    assert {name: fills[f"_nb_adj_{name}"] for name in ("x", "w")} == {name: name not in fresh for name in ("x", "w")}


def test_batches_and_what_is_not_batched():
    f = nb.jax_kernel(weighted, enable_backward=True)
    x, w = jnp.stack([places(), 2 * places()]), places()
    grad = jax.jit(jax.grad(lambda x, w: jax.vmap(lambda x: f(x, w)[0])(x).sum(), argnums=(0, 1)))
    by_x, by_w = grad(x, w)
    np.testing.assert_allclose(by_x, jnp.stack([w**2] * 2), rtol=1e-6)
    np.testing.assert_allclose(by_w, 2 * w * x.sum(0), rtol=1e-5)


def test_a_rule_of_the_users_keeps_to_zeros(derived):
    f = nb.jax_kernel(weighted, enable_backward=True, sharding_rule="i, i -> i")
    by_x, by_w = gradients(lambda x, w: f(x, w)[0], places(), places())
    np.testing.assert_allclose(by_x, places() ** 3, rtol=1e-6)
    np.testing.assert_allclose(by_w, 2 * places() ** 3, rtol=1e-5)
    assert derived[0].kernel.fresh == () and derived[0].kernel.kept == ("y",)


def test_second_derivatives():
    f = nb.jax_kernel(weighted, enable_backward=True)
    x, w = places(8), places(8) + 1
    found = jax.hessian(lambda x, w: f(x, w)[0].sum(), argnums=(0, 1))(x, w)
    np.testing.assert_allclose(found[1][1], jnp.diag(2 * x), rtol=1e-5)
    np.testing.assert_allclose(found[0][1], jnp.diag(2 * w), rtol=1e-5)


def test_an_exported_program_has_such_gradients():
    f = nb.jax_kernel(weighted, enable_backward=True)
    grad = jax.jit(jax.grad(lambda x, w: f(x, w)[0].sum(), argnums=(0, 1)))
    exported = jax.export.export(grad, disabled_checks=CHECKS)
    program = jax.export.deserialize(exported(places(), places()).serialize())
    by_x, by_w = program.call(places(), places())
    np.testing.assert_allclose(by_x, places() ** 2, rtol=1e-6)
    np.testing.assert_allclose(by_w, 2 * places() ** 2, rtol=1e-5)
