"""Warp's kernels for the comparison. It may be imported only where Warp is installed."""

# No `from __future__ import annotations`: Warp takes the annotations as they are.

from typing import Any

import warp as wp

__all__ = ["jax_add", "launch"]

# Otherwise it writes to standard output, in between the results.
wp.config.log_level = wp.LOG_ERROR


@wp.kernel
def empty_of_one(a: wp.array(dtype=float)):
    pass


@wp.kernel
def empty_of_five(
    a: wp.array(dtype=float),
    b: wp.array(dtype=float),
    c: wp.array(dtype=float),
    d: wp.array(dtype=float),
    e: wp.array(dtype=float),
):
    pass


@wp.kernel
def saxpy(x: wp.array(dtype=float), y: wp.array(dtype=float), a: float):
    i = wp.tid()
    y[i] = a * x[i] + y[i]


@wp.kernel
def add(x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + y[i]


_KERNELS = {"empty_of_one": empty_of_one, "empty_of_five": empty_of_five, "saxpy": saxpy}


def launch(kernel: str, dim: int, arguments: list[Any], device: str = "cpu") -> None:
    """Launch one of the kernels."""
    wp.launch(_KERNELS[kernel], dim, arguments, device=device)


def jax_add() -> Any:
    """Return `add` as a function of JAX arrays."""
    return wp.jax_kernel(add)
