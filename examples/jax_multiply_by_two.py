"""Multiplies a sharded array by two, each device its own shard, with a kernel inside `jax.shard_map`.

Alone, on eight devices that JAX makes of this machine's cores: ``python jax_multiply_by_two.py``. On several processes,
each with a number of its own: ``python jax_multiply_by_two.py localhost:1234 2 0`` and ``... 2 1``.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import numbridge as nb


@nb.kernel
def multiply_by_two(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * 2.0


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


def main() -> None:
    """Multiply, gather and compare."""
    start()
    say(f"running on {jax.device_count()} device(s) of {jax.process_count()} process(es)")
    mesh = Mesh(np.array(jax.devices()), "x")
    sharding = NamedSharding(mesh, P("x"))

    # Each device gets a piece of its own; together the pieces are one array.
    whole = np.arange(5 * jax.device_count(), dtype=np.float32)
    places = sharding.addressable_devices_indices_map(whole.shape)
    pieces = [jax.device_put(whole[index], device) for device, index in places.items()]
    x = jax.make_array_from_single_device_arrays(whole.shape, sharding, pieces)
    say("input: ", gathered(x))

    double = nb.jax_kernel(multiply_by_two)

    # In here x is one shard, of five elements.
    sharded = jax.jit(jax.shard_map(lambda x: double(x)[0], mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    out = sharded(x)
    say("output:", gathered(out))

    # Without shard_map JAX cuts the call up by itself, because the kernel only looks at its own element.
    same = jax.jit(lambda x: double(x)[0])(x)
    np.testing.assert_array_equal(gathered(out), 2 * whole)
    np.testing.assert_array_equal(gathered(same), 2 * whole)
    np.testing.assert_array_equal(gathered(jnp.abs(out)), 2 * whole)
    say("all right")


if __name__ == "__main__":
    main()
