"""`jax_kernel` and `jax_callable` for tests of the compiled handler: small pointwise kernels, too, are called and not fused."""

from __future__ import annotations

import functools

import numbridge as nb

jax_kernel = functools.partial(nb.jax_kernel, fuse=False)
jax_callable = functools.partial(nb.jax_callable, fuse=False)
