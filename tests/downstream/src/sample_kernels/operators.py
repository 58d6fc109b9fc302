"""What is made of the kernels. Operators are made when they are first asked for, so that no framework is imported before."""

import functools
from typing import Any

import numbridge as nb
from sample_kernels.kernels import smooth_kernel

__all__ = ["jax_smooth", "smooth", "torch_smooth"]


def smooth(x: Any, weight: float) -> Any:
    """Return a smoothed copy of an array of any framework, as an array of that framework."""
    given = nb.asarray(x)
    out = nb.empty_like(given)
    nb.launch(smooth_kernel, given.shape, [given, weight], [out])
    return nb.convert(out, x.__class__)


@functools.cache
def _torch_operator() -> nb.TorchOp:
    return nb.torch_op(smooth_kernel, outputs="out", name="sample_kernels::smooth")


def torch_smooth(x: Any, weight: float) -> Any:
    """Return a smoothed tensor, through which PyTorch differentiates."""
    return _torch_operator()(x, weight)


@functools.cache
def _jax_function() -> Any:
    return nb.jax_kernel(smooth_kernel, enable_backward=True)


def jax_smooth(x: Any, weight: float) -> Any:
    """Return a smoothed array inside `jax.jit`, `jax.vmap` and `jax.grad`."""
    (out,) = _jax_function()(x, weight)
    return out
