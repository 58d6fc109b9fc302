"""The flow past a cylinder of `lattice_boltzmann.py` inside JAX: in a compiled loop, differentiated, and on several devices.

The kernels are those of that file. A step is a function of JAX arrays, so `jax.grad` gives the derivative of what the flow does
by the speed of the inflow. On several devices each has a part of the channel's length, with one column of its neighbours on
each side, which they exchange before each step.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from lattice_boltzmann import LATTICE, Channel, ends, make_step

import numbridge as nb

CHANNEL = Channel(diameter=8, length=12)
State = tuple[jax.Array, jax.Array]
Columns = tuple[jax.Array, jax.Array]


def make_advance(
    channel: Channel, length: int, exchange: Callable[[jax.Array, Columns], Columns]
) -> Callable[[State, jax.Array, jax.Array], State]:
    """Return one step on a part of the channel: from populations, distances and the inflow's speed to populations and force.

    `exchange` returns the columns on both sides, given the populations and the columns beyond the channel's own ends.
    """
    height = channel.inside[0]
    shape = (9, height + 2, length + 2)
    step = nb.jax_kernel(
        make_step(channel.viscosity),
        num_outputs=2,
        launch_dims=(height, length),
        output_dims={"new": shape, "force": 2},
        enable_backward=True,
    )
    inflow = nb.jax_kernel(ends, num_outputs=2, launch_dims=height, output_dims=shape[:2], enable_backward=True)

    def advance(state: State, distance: jax.Array, speed: jax.Array) -> State:
        f, _ = state
        left, right = exchange(f, inflow(f, jnp.asarray(LATTICE), speed))
        return step(f.at[:, :, 0].set(left).at[:, :, -1].set(right), distance)

    return advance


def whole(channel: Channel, steps: int) -> Callable[[jax.Array], State]:
    """Return the run of a whole channel on one device, as a function of the inflow's speed."""
    advance = make_advance(channel, channel.inside[1], lambda _, columns: columns)
    start = jnp.asarray(channel.rest()), jnp.zeros(2)
    distance = jnp.asarray(channel.distance())
    return lambda speed: jax.lax.fori_loop(0, steps, lambda _, state: advance(state, distance, speed), start)


def energy(f: jax.Array) -> jax.Array:
    """Return the mean kinetic energy of a cell."""
    inside = f[:, 1:-1, 1:-1]
    ux, uy = (jnp.tensordot(along, inside, 1) for along in LATTICE[:2])
    return (ux**2 + uy**2).mean() / 2


def check_derivative() -> None:
    """The derivative of the mean energy by the inflow's speed is what a difference says."""
    run = whole(CHANNEL, 20)
    value, slope = jax.jit(jax.value_and_grad(lambda speed: energy(run(speed)[0])))(CHANNEL.speed)
    above, below = (jax.jit(lambda speed: energy(run(speed)[0]))(CHANNEL.speed * (1 + e)) for e in (0.01, -0.01))
    difference = (above - below) / (0.02 * CHANNEL.speed)
    print(
        f"mean energy {value:.3e}, its derivative by the inflow's speed {slope:.4e}, by a difference {difference:.4e}"
    )
    np.testing.assert_allclose(slope, difference, rtol=2e-3)


def from_neighbours(count: int, f: jax.Array, outside: Columns) -> Columns:
    """Return the columns on both sides: the neighbours', or at the channel's ends those beyond."""
    here = jax.lax.axis_index("x")
    forth = jax.lax.ppermute(f[:, :, -2], "x", list(pairwise(range(count))))
    back = jax.lax.ppermute(f[:, :, 1], "x", [(b, a) for a, b in pairwise(range(count))])
    return jnp.where(here == 0, outside[0], forth), jnp.where(here == count - 1, outside[1], back)


def cut(columns: np.ndarray, count: int) -> np.ndarray:
    """Return the parts of an array, one after the other, each with a column of its neighbours on both sides."""
    each = (columns.shape[-1] - 2) // count
    return np.concatenate([columns[..., k * each : (k + 1) * each + 2] for k in range(count)], axis=-1)


def on_devices(channel: Channel, steps: int) -> Callable[[jax.Array], State]:
    """Return the run of a channel of which each device has a part; populations come back in parts, as `cut` leaves them."""
    count = jax.device_count()
    mesh, parts = Mesh(np.array(jax.devices()), "x"), P(None, None, "x")
    advance = make_advance(channel, channel.inside[1] // count, partial(from_neighbours, count))

    @partial(jax.shard_map, mesh=mesh, in_specs=(parts, P(None, "x"), P()), out_specs=(parts, P()))
    def run(f: jax.Array, distance: jax.Array, speed: jax.Array) -> State:
        start = f, jax.lax.pcast(jnp.zeros(2), "x", to="varying")
        f, force = jax.lax.fori_loop(0, steps, lambda _, state: advance(state, distance, speed), start)
        return f, jax.lax.psum(force, "x")

    return partial(run, cut(channel.rest(), count), cut(channel.distance(), count))


def check_devices() -> None:
    """Many devices compute what one does, and exchange columns only."""
    steps, count = 300, jax.device_count()
    f, force = jax.jit(whole(CHANNEL, steps))(CHANNEL.speed)
    run = jax.jit(on_devices(CHANNEL, steps))
    parts, same_force = run(CHANNEL.speed)
    np.testing.assert_array_equal(
        np.asarray(parts).reshape(*f.shape[:2], count, -1)[:, 1:-1, :, 1:-1].reshape(9, *CHANNEL.inside),
        f[:, 1:-1, 1:-1],
    )
    np.testing.assert_allclose(same_force, force, rtol=1e-4, atol=1e-6)
    assert "all-gather" not in run.lower(CHANNEL.speed).compile().as_text()
    print(f"{steps} steps on {count} devices: the same flow; drag and lift {CHANNEL.coefficients(force).round(3)}")


def check_derivative_on_devices() -> None:
    """The derivative of the drag goes back through the exchange between devices."""
    runs = whole(CHANNEL, 20), on_devices(CHANNEL, 20)
    slope, same = (
        jax.jit(jax.grad(lambda speed, run: run(speed)[1][0]), static_argnums=1)(CHANNEL.speed, r) for r in runs
    )
    np.testing.assert_allclose(same, slope, rtol=1e-4)
    print(
        f"derivative of the drag force by the inflow's speed: {slope:.4f}, on {jax.device_count()} devices {same:.4f}"
    )


def main() -> None:
    """Differentiate by the inflow's speed, then cut the channel up, then both."""
    check_derivative()
    check_devices()
    check_derivative_on_devices()


if __name__ == "__main__":
    main()
