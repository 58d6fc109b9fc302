"""Kernels whose blocks have a shape: what threads see of theirs, and a product of matrices in tiles."""

import numpy as np
from numba import cuda

import numbridge as nb

TILE = 4


@nb.kernel
def places2(out: nb.array(dtype=nb.int32, ndim=3)):
    i, j = nb.tid()
    out[i, j, 0] = cuda.threadIdx.x
    out[i, j, 1] = cuda.threadIdx.y
    out[i, j, 2] = cuda.blockIdx.x
    out[i, j, 3] = cuda.blockIdx.y
    out[i, j, 4] = cuda.blockDim.x
    out[i, j, 5] = cuda.blockDim.y
    out[i, j, 6] = cuda.gridDim.x
    out[i, j, 7] = cuda.gridDim.y


@nb.kernel
def places3(out: nb.array(dtype=nb.int32, ndim=4)):
    i, j, k = cuda.grid(3)
    cuda.syncthreads()
    here = out[i, j, k]
    here[0], here[1], here[2] = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    here[3], here[4], here[5] = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    here[6], here[7], here[8] = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z
    here[9], here[10], here[11] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z


def places(dims, block):
    """Return what such a kernel is to store: thread, block, and the dimensions of blocks and of the grid."""
    block = (*block, *[1] * (len(dims) - len(block)))
    found = [i % b for i, b in zip(np.indices(dims), block, strict=True)]
    found += [i // b for i, b in zip(np.indices(dims), block, strict=True)]
    found += [np.full(dims, b) for b in block]
    found += [np.full(dims, -(-n // b)) for n, b in zip(dims, block, strict=True)]
    return np.stack(found, -1)


@nb.kernel
def products(a: nb.array2d[float], b: nb.array2d[float], c: nb.array2d[float]):
    """Multiply matrices in tiles of TILE x TILE; their extents are multiples of it."""
    tile_a = cuda.shared.array((TILE, TILE), np.float32)
    tile_b = cuda.shared.array((TILE, TILE), np.float32)
    row, column = cuda.grid(2)
    y, x = cuda.threadIdx.x, cuda.threadIdx.y
    total = 0.0
    for k in range(a.shape[1] // TILE):
        tile_a[y, x] = a[row, k * TILE + x]
        tile_b[y, x] = b[k * TILE + y, column]
        cuda.syncthreads()
        for j in range(TILE):
            total += tile_a[y, j] * tile_b[j, x]
        cuda.syncthreads()
    c[row, column] = total


def factors():
    random = np.random.default_rng(5)
    return (random.normal(size=shape).astype(np.float32) for shape in ((8, 12), (12, 16)))


def product_dims(a, b):
    return a.shape[0], b.shape[1]
