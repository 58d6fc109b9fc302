"""Needs a GPU: launches a kernel on CuPy's arrays, exchanges arrays with CuPy, and orders work on two streams.

Without a GPU it ends with an error that says so.
"""

from __future__ import annotations

import numpy as np

import numbridge as nb

N = 1000


@nb.kernel
def saxpy(x: nb.array[float], y: nb.array[float], a: float):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


def main() -> None:
    """Launch on CuPy's arrays and on numbridge's, and compare."""
    device = nb.get_device("cuda:0")
    import cupy

    with cupy.cuda.Device(0):
        x, y = cupy.arange(N, dtype=cupy.float32), cupy.ones(N, dtype=cupy.float32)
    nb.launch(saxpy, dim=N, inputs=[x, y, 2.0], device=device)
    wanted = 2.0 * np.arange(N, dtype=np.float32) + 1.0
    assert np.array_equal(y.get(), wanted)

    # Both ways share memory.
    mine = nb.from_cupy(y)
    assert nb.to_cupy(mine).data.ptr == y.data.ptr

    # A launch runs on CuPy's current stream; work on another stream waits for it.
    with cupy.cuda.Stream(non_blocking=True) as stream:
        nb.launch(saxpy, dim=N, inputs=[x, y, 0.0])
        nb.stream_from_cupy(stream)
    assert np.array_equal(y.get(), wanted)
    print(f"{device}: y = {y[:4]} ...")


if __name__ == "__main__":
    main()
