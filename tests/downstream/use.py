"""A program of somebody who has installed the sample package; it fails where something is not as it must be."""

import sys

import sample_kernels

import numbridge

HEAVY = {"numba", "llvmlite", "torch", "jax", "rich", "typer"}
assert not HEAVY & set(sys.modules), HEAVY & set(sys.modules)
print(numbridge.__file__)
print(sample_kernels.__file__)

import jax  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

spike, wanted = np.array([0, 0, 4, 0, 0], np.float32), [0, 1, 2, 1, 0]
assert sample_kernels.smooth(spike, 0.25).tolist() == wanted
assert sample_kernels.smooth(torch.from_numpy(spike), 0.25).tolist() == wanted

t = torch.tensor(spike, requires_grad=True)
sample_kernels.torch_smooth(t, 0.25)[1].backward()
assert t.grad is not None and t.grad.tolist() == [0.25, 0.5, 0.25, 0, 0]

x = jax.numpy.asarray(spike)
assert jax.jit(sample_kernels.jax_smooth)(x, 0.25).tolist() == wanted
gradient = jax.grad(lambda x: sample_kernels.jax_smooth(x, 0.25)[1])(x)
assert gradient.tolist() == [0.25, 0.5, 0.25, 0, 0]
rows = jax.vmap(sample_kernels.jax_smooth, (0, None))(jax.numpy.stack([x, 2 * x]), 0.25)
assert rows.tolist() == [wanted, [2 * value for value in wanted]]
