"""Functions of JAX for tests of the compiled handler: small pointwise kernels, too, are called and not fused."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

import numbridge as nb

jax_kernel = functools.partial(nb.jax_kernel, fuse=False)
jax_callable = functools.partial(nb.jax_callable, fuse=False)


def as_function(kernel, dim, values):
    """Return a kernel as a function of its floating arguments, in-out arguments for what it writes, and these."""
    names = [parameter.name for parameter in kernel.parameters]
    ranks = {name: value.ndim for name, value in zip(names, values, strict=True) if isinstance(value, np.ndarray)}
    written = kernel.source.written(ranks)
    order = [name for name in names if name in written]
    f = jax_kernel(kernel, len(order), launch_dims=dim, in_out_argnames=order, enable_backward=True)
    floats = [k for k, value in enumerate(values) if np.asarray(value).dtype.kind == "f"]

    def run(*given):
        arguments = [value if not isinstance(value, np.ndarray) else jnp.asarray(value) for value in values]
        for k, value in zip(floats, given, strict=True):
            arguments[k] = value
        return f(*arguments)

    return run, tuple(jnp.asarray(values[k]) for k in floats)
