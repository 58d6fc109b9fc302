"""Tensors of every framework straight into kernels: mixed, shared, refused, kept alive."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch
import tvm_ffi

import numbridge as nb


@nb.kernel
def saxpy(x, y, a):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


@nb.kernel
def total(x, out):
    nb.atomic_add(out, 0, x[nb.tid()])


@nb.kernel
def five(a, b, c, d, e):
    i = nb.tid()
    e[i] = a[i] + b[i] + c[i] + d[i]


MAKERS = {
    "numbridge": nb.array,
    "numpy": lambda values: values.copy(),
    "torch": lambda values: torch.from_numpy(values.copy()),
    "paddle": paddle.to_tensor,
    "jax": jnp.asarray,
    "tvm_ffi": lambda values: tvm_ffi.from_dlpack(torch.from_numpy(values.copy())),
    "memoryview": lambda values: memoryview(values.copy()),
    "descriptor": lambda values: nb.from_torch(torch.from_numpy(values.copy()), return_ctype=True),
    "parameter": lambda values: torch.nn.Parameter(torch.from_numpy(values.copy())),
}
WRITABLE = ("numbridge", "numpy", "torch", "paddle", "tvm_ffi", "memoryview", "descriptor")


def values_of(x):
    return np.asarray(nb.asarray(x).numpy())


@pytest.mark.parametrize("name", MAKERS)
def test_every_kind_is_read(name):
    values = np.arange(10, dtype=np.float32)
    out = np.zeros(1, np.float32)
    with torch.no_grad():  # a torch parameter requires grad
        nb.launch(total, 10, [MAKERS[name](values)], [out])
    assert out[0] == 45


@pytest.mark.parametrize("name", WRITABLE)
def test_every_writable_kind_is_written(name):
    values = np.arange(10, dtype=np.float32)
    y = MAKERS[name](np.ones(10, np.float32))
    nb.launch(saxpy, 10, [values, y, 2.0])
    assert (values_of(y) == 2 * values + 1).all()


def test_five_frameworks_in_one_launch():
    ones = np.ones(10, np.float32)
    out = torch.zeros(10)
    nb.launch(five, 10, [jnp.asarray(ones), paddle.to_tensor(ones), ones, nb.array(ones)], [out])
    assert (out == 4).all()


def refused(text, run, *untouched, error=nb.NumbridgeError):
    before = [values_of(x).copy() for x in untouched]
    with pytest.raises(error, match=text):
        run()
    for x, copy in zip(untouched, before, strict=True):
        assert (values_of(x) == copy).all()


def test_jax_arrays_are_not_written():
    x, y = np.ones(4, np.float32), jnp.zeros(4)
    refused("'saxpy', parameter 'y'.*immutable", lambda: nb.launch(saxpy, 4, [x, y, 1.0]), y)


def test_torch_tensors_handed_on_from_jax_are_not_written():
    x = jnp.zeros(4)
    shared = nb.convert(x, "torch")
    for target in (shared, shared[:], shared.view(2, 2)[0]):
        run = saxpy.forall(target.shape[0])
        refused("'y'", lambda target=target, run=run: run(np.ones(4, np.float32), target, 1.0), x)


def test_expanded_torch_tensors_are_not_written():
    base = torch.zeros(1)
    refused("'y'.*expanded view", lambda: nb.launch(saxpy, 4, [torch.ones(4), base.expand(4), 1.0]), base)


def test_odd_torch_tensors_are_refused_by_name():
    out = np.zeros(1, np.float32)
    cases = {
        "conj": (torch.ones(4, dtype=torch.complex64).conj(), "resolve_conj"),
        "negative": (torch.ones(4, dtype=torch.complex64).conj().imag, "resolve_neg"),
        "sparse": (torch.ones(4).to_sparse(), "sparse"),
        "meta": (torch.ones(4, device="meta"), "meta"),
    }
    for tensor, text in cases.values():
        refused(f"'x'.*{text}", lambda tensor=tensor: nb.launch(total, 4, [tensor, out]), out)
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(4)
    refused("'x'.*", lambda: nb.launch(total, 4, [fake, out]), out)
    seen = []

    def inner(x):
        with pytest.raises(nb.NumbridgeError, match="'x'"):
            nb.launch(total, 4, [x, out])
        seen.append(True)
        return x * 2

    torch.func.vmap(inner)(torch.ones(3, 4))
    assert seen and out[0] == 0


def test_dtypes_of_torch_that_numbridge_does_not_have_are_named():
    strange = torch.empty(3, dtype=torch.float8_e4m3fnuz)
    with pytest.raises(
        nb.ConversionError, match=r"'x': got a 1-d array of dtype torch\.float8_e4m3fnuz with shape \(3,\)"
    ):
        nb.launch(total, 3, [strange, np.zeros(1)])


def test_a_tensor_that_requires_grad_is_read_and_not_written():
    leaf = torch.ones(4, requires_grad=True)
    out = torch.zeros(4)
    with torch.no_grad():
        nb.launch(saxpy, 4, [leaf, out, 2.0])
    assert (out == 2).all()
    refused("'y'.*grad", lambda: nb.launch(saxpy, 4, [out, leaf, 2.0]), leaf)
    refused("'y'.*grad", lambda: nb.launch(saxpy, 4, [out, leaf * 1, 2.0]))
    with torch.no_grad():
        nb.launch(saxpy, 4, [out, leaf, 2.0])
    assert (leaf == 5).all()
    trained = paddle.ones([4])
    trained.stop_gradient = False
    refused("'y'.*grad", lambda: nb.launch(saxpy, 4, [out, trained, 2.0]), trained)
    with paddle.no_grad():
        nb.launch(saxpy, 4, [out, trained, 2.0])
    assert (values_of(trained) == 5).all()


def test_a_write_counts_the_version_up_so_that_autograd_notices():
    weight = torch.ones(4, requires_grad=True)
    x = torch.ones(4)
    loss = (weight * x).sum()
    version = x._version
    nb.launch(saxpy, 4, [torch.ones(4), x, 1.0])
    assert x._version == version + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_annotation_without_a_rank_is_one_dimensional():
    @nb.kernel
    def annotated(x: nb.array(dtype=float), y: nb.array[float], z: nb.array2d[float], free: nb.array):
        i = nb.tid()
        y[i] = x[i] + z[i, 0]

    x, y, z = torch.ones(4), torch.zeros(4), torch.ones(4, 1)
    nb.launch(annotated, 4, [x, y, z, np.zeros((1, 2, 3), np.int8)])
    assert (y == 2).all()
    refused("'x': wanted array1d.*got a 2-d array", lambda: nb.launch(annotated, 4, [z, y, z, x]), y)
    refused("'x': wanted elements of float32", lambda: nb.launch(annotated, 4, [x.double(), y, z, x]), y)


def test_layouts_of_torch():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    for view in (base[:, ::2], base.t(), base[1:3, 2:], base[2], base.reshape(2, 2, 6)[:, 1], base[:0]):
        flat = np.zeros(1, np.float32)

        @nb.kernel
        def sum2(x, out):
            i, j = nb.tid()
            nb.atomic_add(out, 0, x[i, j])

        if view.ndim == 2:
            nb.launch(sum2, tuple(view.shape), [view, flat])
        else:
            nb.launch(total, view.shape[0], [view, flat])
        assert flat[0] == view.sum().item()


def test_scalar_tensors_for_scalar_parameters_are_refused():
    @nb.kernel
    def scaled(x, s: float):
        x[nb.tid()] *= s

    refused("'s'.*wanted a scalar float32", lambda: nb.launch(scaled, 1, [np.ones(1, np.float32), torch.tensor(2.0)]))


def test_jax_tracers_are_refused():
    out = np.zeros(1, np.float32)

    def traced(x):
        with pytest.raises(nb.NumbridgeError, match="'x'"):
            nb.launch(total, 4, [x, out])
        return x

    jax.jit(traced)(jnp.ones(4))


def test_deleted_jax_arrays_are_refused():
    x = jnp.arange(4.0) + 1
    x.delete()
    refused("'x'", lambda: nb.launch(total, 4, [x, np.zeros(1, np.float32)]))


@pytest.mark.parametrize("name", ["numpy", "torch", "paddle", "jax", "tvm_ffi", "numbridge"])
def test_no_reference_is_kept_or_lost(name):
    x = MAKERS[name](np.ones(4, np.float32))
    out = np.zeros(1, np.float32)
    run = total.forall(4)
    run(x, out)
    gc.collect()
    before = sys.getrefcount(x)
    for _ in range(100_000):
        run(x, out)
    assert sys.getrefcount(x) == before


def test_arguments_made_for_the_launch_live_until_its_end():
    out = np.zeros(1, np.float64)
    for _ in range(50):
        nb.launch(total, 100_000, [paddle.ones([100_000], dtype="float64"), out])
        nb.launch(total, 100_000, [torch.ones(100_000, dtype=torch.float64), out])
    assert out[0] == 50 * 2 * 100_000


def test_launches_do_not_keep_their_arguments():
    x = torch.ones(10)
    gone = weakref.ref(x)
    nb.launch(total, 10, [x, np.zeros(1, np.float32)])
    del x
    gc.collect()
    assert gone() is None


def test_threads_mix_frameworks():
    def work(make, results, k):
        y = make(np.zeros(5000, np.float32))
        for _ in range(200):
            nb.launch(saxpy, 5000, [make(np.ones(5000, np.float32)), y, 1.0])
        results[k] = bool((values_of(y) == 200).all())

    makers = [MAKERS[name] for name in ("torch", "numpy", "paddle", "numbridge")] * 2
    results = [False] * len(makers)
    threads = [threading.Thread(target=work, args=(make, results, k)) for k, make in enumerate(makers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results)
