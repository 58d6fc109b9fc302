"""Launches one kernel on arrays of every framework directly, without a conversion: NumPy, PyTorch, Paddle, JAX, and all at once.

The device is that of the arrays. CuPy's are in `cupy_arrays.py`, which needs a GPU.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import paddle
import torch

import numbridge as nb

N = 1000


@nb.kernel
def saxpy(x: nb.array[float], y: nb.array[float], a: float):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


def on_numpy() -> np.ndarray:
    """Launch on NumPy's arrays, which lie on the CPU."""
    x, y = np.arange(N, dtype=np.float32), np.ones(N, np.float32)
    nb.launch(saxpy, dim=N, inputs=[x, y, 2.0], device="cpu")
    return y


def on_torch() -> np.ndarray:
    """Launch on torch's tensors, on the GPU where torch has one."""
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    x = torch.arange(N, dtype=torch.float32, device=device)
    y = torch.ones(N, dtype=torch.float32, device=device)
    nb.launch(saxpy, dim=N, inputs=[x, y, 2.0], device=device)
    return y.cpu().numpy()


def on_paddle() -> np.ndarray:
    """Launch on Paddle's tensors, wherever they are."""
    x, y = paddle.arange(N, dtype="float32"), paddle.ones([N])
    nb.launch(saxpy, dim=N, inputs=[x, y, 2.0])
    return y.numpy()


def on_jax() -> np.ndarray:
    """Read a JAX array, and write into one of NumPy's: a JAX array is immutable, and a launch that would write it is refused."""
    x, y = jnp.arange(N, dtype=jnp.float32), np.ones(N, np.float32)
    try:
        nb.launch(saxpy, dim=N, inputs=[x, jnp.ones(N), 2.0])
    except nb.BufferAccessError as error:
        print(f"refused: {error}")
    nb.launch(saxpy, dim=N, inputs=[x, y, 2.0])
    return y


def on_all() -> np.ndarray:
    """Read a tensor of Paddle's and write one of torch's, by the fast form of a launch."""
    y = torch.ones(N)
    saxpy.forall(N)(paddle.arange(N, dtype="float32"), y, 2.0)
    return y.numpy()


def main() -> None:
    """Check that every launch gives the same."""
    for run in (on_numpy, on_torch, on_paddle, on_jax, on_all):
        found = run()
        assert np.array_equal(found, 2.0 * np.arange(N, dtype=np.float32) + 1.0)
        print(f"{run.__name__}: y = {found[:4]} ...")


if __name__ == "__main__":
    main()
