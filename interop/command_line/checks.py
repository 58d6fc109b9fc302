"""The self test: each framework into a kernel, gradients, JAX, threads, CUDA if there; every result is compared.

A check returns what it saw, or raises. What cannot be checked here, because something is not installed, says so.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import numbridge as nb
from numbridge.bridges.bridge import FRAMEWORKS
from numbridge.bridges.installed import absent
from numbridge.command_line import cache_files
from numbridge.command_line.sample_kernels import add, saxpy, square
from numbridge.kernels.cuda_backend import cuda_driver

__all__ = ["Check", "Outcome", "checks", "run"]

_N = 1000


@dataclass(frozen=True)
class Outcome:
    """How a check went.

    Attributes
    ----------
    name : str
        What was checked.
    state : str
        ``"passed"``, ``"failed"`` or ``"skipped"``.
    detail : str
        What was seen, what is wrong, or what is missing.
    seconds : float
        How long it took.
    """

    name: str
    state: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class Check:
    """Something to check; `missing` says why it cannot be."""

    name: str
    run: Callable[[], str]
    missing: str | None = None


class WrongResultError(AssertionError):
    """A result is not what it must be."""


def run(check: Check) -> Outcome:
    """Run one check."""
    if check.missing is not None:
        return Outcome(check.name, "skipped", check.missing, 0.0)
    start = time.perf_counter()
    try:
        state, detail = "passed", check.run()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the outcome, and the next check runs
        state, detail = "failed", f"{type(error).__name__}: {error}"
    return Outcome(check.name, state, detail, time.perf_counter() - start)


def checks() -> list[Check]:
    """Return what can be checked, in order."""
    frameworks = [
        Check(f"a kernel on {name} tensors", functools.partial(_framework, name), absent(name)) for name in FRAMEWORKS
    ]
    torch, paddle, jax = (absent(name) for name in ("torch", "paddle", "jax"))
    return [
        Check("compiled code is kept", _cache),
        *frameworks,
        Check("a large launch on all threads", _threads),
        Check("read-only memory is refused", _refusal),
        Check("gradients by nb.Tape", _tape),
        Check("gradients by torch", _torch, torch),
        Check("gradients by paddle", _paddle, paddle),
        Check("a kernel inside jax.jit", _jit, jax),
        Check("gradients by jax.grad", _grad, jax),
        *_cuda(),
    ]


def _equal(found: Any, wanted: Any, what: str) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape or not np.array_equal(found, wanted):
        raise WrongResultError(f"{what}: wanted {wanted.ravel()[:4]}, got {found.ravel()[:4]}")


def _cache() -> str:
    found = cache_files.contents()
    return f"{cache_files.described(found['folder'])}, {found['files']} files"


def _framework(name: str) -> str:
    given = np.arange(_N, dtype=np.float32)
    device = "cuda" if name == "cupy" else "cpu"
    x, y = (nb.convert(nb.array(given, device=device), name) for _ in range(2))
    # JAX arrays are immutable: they go in, and NumPy takes the result.
    out = y if name != "jax" else given.copy()
    nb.launch(saxpy, _N, [x, out, 2.0])
    _equal(nb.asarray(out).numpy(), 3 * given, "2 x + x")
    if nb.explain(x).ptr != nb.explain(nb.convert(nb.asarray(x), name)).ptr:
        raise WrongResultError("a conversion there and back did not share memory")
    return "in place, and shared both ways" if name != "jax" else "read in place, and shared both ways"


def _threads() -> str:
    n = 1 << 21
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    nb.launch(saxpy, n, [x, y, 2.0])
    _equal(y, 2 * x + 1, "2 x + 1")
    return f"{n} threads"


def _refusal() -> str:
    y = np.ones(_N, np.float32)
    y.flags.writeable = False
    try:
        nb.launch(saxpy, _N, [np.ones(_N, np.float32), y, 2.0])
    except nb.BufferAccessError as error:
        _equal(y, np.ones(_N, np.float32), "what was refused")
        return str(error).partition(";")[0]
    raise WrongResultError("a kernel wrote to a read-only array")


def _tape() -> str:
    x, y = nb.array([1.0, 2.0, 3.0], requires_grad=True, device="cpu"), nb.zeros(3, device="cpu")
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
    tape.backward(grads={y: [1.0, 1.0, 1.0]})
    _equal(x.grad.numpy(), [2, 4, 6], "d(x * x)/dx")
    return "d(x * x)/dx = 2 x"


@functools.cache
def _torch_square() -> Any:
    return nb.torch_op(square, outputs=["y"], name="numbridge_check::square")


def _torch() -> str:
    x = nb.convert(nb.array([1.0, 2.0, 3.0], device="cpu"), "torch").clone().requires_grad_()
    _torch_square()(x).sum().backward()
    _equal(x.grad.numpy(), [2, 4, 6], "d(x * x)/dx")
    return "torch_op and backward()"


def _paddle() -> str:
    x = nb.convert(nb.array([1.0, 2.0, 3.0], device="cpu"), "paddle").clone()
    x.stop_gradient = False
    nb.paddle_op(square, outputs=["y"])(x).sum().backward()
    _equal(x.grad.numpy(), [2, 4, 6], "d(x * x)/dx")
    return "paddle_op and backward()"


def _jit() -> str:
    import jax

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        x = jax.numpy.arange(6.0)
        (out,) = jax.jit(jax.vmap(nb.jax_kernel(add)))(x.reshape(2, 3), x.reshape(2, 3))
    _equal(out, 2 * np.arange(6.0).reshape(2, 3), "x + x")
    return "with jax.vmap"


def _grad() -> str:
    import jax

    f = nb.jax_kernel(square, enable_backward=True)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        first = jax.grad(lambda x: f(x)[0].sum())(jax.numpy.arange(3.0))
        second = jax.hessian(lambda x: f(x)[0].sum())(jax.numpy.arange(3.0))
    _equal(first, [0, 2, 4], "d(x * x)/dx")
    _equal(second, 2 * np.eye(3), "the Hessian of the sum of x * x")
    return "first and second order"


def _cuda() -> Iterator[Check]:
    missing = cuda_driver.missing_parts()
    if missing or not cuda_driver.driver_count():
        why = ", ".join(missing or ["a CUDA device"])
        yield Check("a kernel on CUDA", lambda: "", f"missing: {why}; see `python -m numbridge info`")
        return
    for device in nb.get_devices():
        if device.is_cuda:
            yield Check(f"a kernel on {device}", functools.partial(_on_cuda, device.name))


def _on_cuda(device: str) -> str:
    given = np.arange(_N, dtype=np.float32)
    x, y = (nb.array(given, device=device) for _ in range(2))
    nb.launch(saxpy, _N, [x, y, 2.0])
    _equal(y.numpy(), 3 * given, "2 x + x")
    return "launched, and copied back"
