"""The kernels. They are ordinary functions of a module, and are compiled where they are first launched."""

import numbridge as nb

__all__ = ["sign_kernel", "smooth_kernel"]


@nb.func
def clamped(i: int, n: int) -> int:
    return min(max(i, 0), n - 1)


@nb.kernel
def smooth_kernel(x: nb.array[float], weight: float, out: nb.array[float]) -> None:
    i = nb.tid()
    n = x.shape[0]
    out[i] = x[i] + weight * (x[clamped(i - 1, n)] - 2.0 * x[i] + x[clamped(i + 1, n)])


@nb.kernel
def sign_kernel(x: nb.array2d[nb.float64], out: nb.array[nb.int64]) -> None:
    i = nb.tid()
    out[i] = nb.int64(1 if x[i, 0] > 0.0 else 0)
