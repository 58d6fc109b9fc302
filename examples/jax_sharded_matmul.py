"""Multiplies matrices, each device some rows: the first one is cut along its rows, the second one is whole on each device.

Alone, on eight devices that JAX makes of this machine's cores: ``python jax_sharded_matmul.py``. On several processes,
each with a number of its own: ``python jax_sharded_matmul.py localhost:1234 2 0`` and ``... 2 1``.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import numbridge as nb

K, COLUMNS, ROWS_OF_EACH = 4, 6, 8


@nb.kernel
def matmul(a: nb.array2d[float], b: nb.array2d[float], c: nb.array2d[float]):
    i, j = nb.tid()
    rows = a.shape[0]
    columns = b.shape[1]
    if i < rows and j < columns:
        total = nb.float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


def start() -> None:
    """Join the other processes, if the command line names them."""
    if len(sys.argv) > 1:
        address, count, rank = sys.argv[1:4]
        jax.distributed.initialize(address, int(count), int(rank))


def say(*words: object) -> None:
    """Print on the first process only."""
    if jax.process_index() == 0:
        print(*words, flush=True)


def gathered(x: jax.Array) -> np.ndarray:
    """Return all of an array that is spread over processes."""
    return np.asarray(process_allgather(x, tiled=True))


def spread(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Return an array of which each process has its own shards."""
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def main() -> None:
    """Multiply in both ways, gather and compare."""
    start()
    devices = jax.device_count()
    say(f"running on {devices} device(s) of {jax.process_count()} process(es)")
    mesh, rows = Mesh(np.array(jax.devices()), "x"), ROWS_OF_EACH * devices
    a = np.arange(rows * K, dtype=np.float32).reshape(rows, K)
    b = np.arange(K * COLUMNS, dtype=np.float32).reshape(K, COLUMNS)
    cut, whole = spread(a, NamedSharding(mesh, P("x", None))), spread(b, NamedSharding(mesh, P(None, None)))

    # In shard_map the kernel sees one shard, so the launch has the shard's rows.
    one = nb.jax_kernel(matmul, launch_dims=(rows // devices, COLUMNS))
    in_specs = (P("x", None), P(None, None))
    product = jax.jit(jax.shard_map(lambda a, b: one(a, b)[0], mesh=mesh, in_specs=in_specs, out_specs=P("x", None)))(
        cut, whole
    )
    say("product:", product.shape, "of which each device has", product.addressable_shards[0].data.shape)

    # Left to itself JAX cuts the whole launch up along the rows that are there, and moves nothing.
    everything = nb.jax_kernel(matmul, launch_dims=(rows, COLUMNS))
    run = jax.jit(lambda a, b: everything(a, b)[0])
    same = run(cut, whole)
    say("moved between devices:", "all-gather" in run.lower(cut, whole).compile().as_text())

    np.testing.assert_allclose(gathered(product), a @ b, rtol=1e-5)
    np.testing.assert_allclose(gathered(same), a @ b, rtol=1e-5)
    assert same.sharding.is_equivalent_to(product.sharding, 2)
    say("all right")


if __name__ == "__main__":
    main()
