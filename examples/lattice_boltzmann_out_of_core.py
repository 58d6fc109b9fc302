"""The flow past a cylinder of `lattice_boltzmann.py` in a domain that is larger than what the device may use.

The domain stays in the memory of the host. Slabs of its columns, with one column of their neighbours on each side, go through two
sets of buffers, each with a thread, and on a GPU a stream, of its own: while one is computed, the other is copied. On a GPU the
host side of a buffer is pinned. The kernel is that of the other file, and on the CPU every number is the same to the last bit.

    python lattice_boltzmann_out_of_core.py [--device cuda:0] [--budget KIB] [--diameter CELLS] [--steps COUNT]
"""

from __future__ import annotations

import argparse
import queue
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from lattice_boltzmann import LATTICE, Channel, ends, make_step, run

import numbridge as nb

SLOTS = 2


@dataclass
class Buffer:
    """Memory of the host that is copied from and to, and the device's copy of it, which is the same memory on the CPU."""

    host: nb.Array
    device: nb.Array

    @classmethod
    def of(cls, shape: tuple[int, ...], device: nb.Device) -> Buffer:
        """Return a buffer of zeros."""
        if device.is_cpu:
            host = nb.zeros(shape, device="cpu")
            return cls(host, host)
        return cls(nb.zeros(shape, device="cpu", pinned=True), nb.zeros(shape, device=device))

    def fill(self, values: np.ndarray) -> None:
        """Copy values to the device; a GPU does so after this returns."""
        np.copyto(nb.to_numpy(self.host)[..., : values.shape[-1]], values)
        if self.host is not self.device:
            nb.copy(self.device, self.host)

    def columns(self, count: int) -> nb.Array:
        """Return the first columns, on the device."""
        return self.device[..., :count]


class Slot:
    """The buffers of one slab in flight."""

    def __init__(self, height: int, width: int, device: nb.Device) -> None:
        self._f, self._new = (Buffer.of((9, height, width), device) for _ in range(2))
        self._distance, self._force = Buffer.of((height, width), device), Buffer.of((2,), device)
        self._stream = None if device.is_cpu else nb.Stream(device)

    def visit(
        self, step: nb.Kernel, f: np.ndarray, distance: np.ndarray, new: np.ndarray, first: int, last: int
    ) -> np.ndarray:
        """Compute the columns from `first` to before `last` of `new`, and return the force on what is solid in them."""
        around, count = slice(first - 1, last + 1), last - first + 2
        with nb.ScopedStream(self._stream):
            self._f.fill(f[:, :, around])
            self._distance.fill(distance[:, around])
            self._new.device.zero_()
            self._force.device.zero_()
            arrays = [buffer.columns(count) for buffer in (self._f, self._distance, self._new)]
            nb.launch(step, (f.shape[1] - 2, count - 2), [*arrays, self._force.device])
            for buffer in (self._new, self._force) if self._stream is not None else ():
                nb.copy(buffer.host, buffer.device)
        if self._stream is not None:
            nb.synchronize(self._stream.device)
        new[:, :, first:last] = nb.to_numpy(self._new.host)[:, :, 1 : count - 1]
        return nb.to_numpy(self._force.host).copy()


def width_within(budget: int, height: int) -> int:
    """Return how many columns a slab may have, for the buffers to fit into `budget` bytes."""
    of_a_column = height * (9 + 9 + 1) * np.dtype(np.float32).itemsize
    width = budget // (SLOTS * of_a_column) - 2
    if width < 1:
        raise ValueError(f"a budget of {budget} bytes holds no column of {height} cells in {SLOTS} sets of buffers")
    return width


def slabs(channel: Channel, budget: int) -> list[tuple[int, int]]:
    """Return the first column and that after the last of each slab; they are about equally wide."""
    height, length = channel.inside
    count = -(-length // width_within(budget, height + 2))
    edges = np.linspace(1, length + 1, count + 1).astype(int)
    return [(int(first), int(last)) for first, last in pairwise(edges)]


def run_out_of_core(channel: Channel, steps: int, force: np.ndarray, budget: int, device: nb.Device) -> np.ndarray:
    """Run an open channel from rest through buffers of at most `budget` bytes; fill the forces, and return the populations."""
    f, new, distance, step = channel.rest(), channel.rest(), channel.distance(), make_step(channel.viscosity)
    parts, inflow = slabs(channel, budget), ends.forall(channel.inside[0])
    width = max(last - first for first, last in parts) + 2
    free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
    for _ in range(SLOTS):
        free.put(Slot(f.shape[1], width, device))

    def visit(part: tuple[int, int]) -> np.ndarray:
        slot = free.get()
        try:
            return slot.visit(step, f, distance, new, *part)
        finally:
            free.put(slot)

    with ThreadPoolExecutor(SLOTS) as pool:
        for k in range(steps):
            inflow(f, LATTICE, channel.speed_at(k), f[:, :, 0], f[:, :, -1])
            force[k] = sum(pool.map(visit, parts))
            f, new = new, f
    return f


def main() -> None:
    """Compare with a run in the device's memory: on the CPU bit by bit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", type=int, default=256, help="of the device, in KiB")
    parser.add_argument("--diameter", type=int, default=10, help="of the cylinder, in cells")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    # Small slabs take less than the 5 ms after which Python's threads otherwise take turns.
    sys.setswitchinterval(1e-4)
    channel, device, budget = Channel(options.diameter), nb.get_device(options.device), options.budget << 10
    domain, forces = 2 * channel.rest().nbytes + channel.distance().nbytes, np.zeros((options.steps, 2), np.float32)
    parts = slabs(channel, budget)
    print(
        f"a domain of {domain >> 10} KiB through {budget >> 10} KiB: {len(parts)} slabs, of {parts[0][1] - 1} columns at first"
    )
    assert domain > budget
    start = time.perf_counter()
    found = run_out_of_core(channel, options.steps, forces, budget, device)
    middle = time.perf_counter()
    given = channel.rest(), channel.rest(), channel.distance(), np.zeros_like(forces)
    *arrays, in_core = (nb.array(a, device=device) for a in given)
    wanted = run(channel, options.steps, *arrays, in_core).numpy()
    end = time.perf_counter()
    # Beyond its ends the channel holds what the last step wrote there. The ends are the host's work, which rounds unlike a GPU.
    np.testing.assert_allclose(found[:, :, 1:-1], wanted[:, :, 1:-1], rtol=0, atol=0 if device.is_cpu else 1e-5)
    # Sums of forces are taken in another order.
    np.testing.assert_allclose(forces, in_core.numpy(), rtol=1e-4, atol=1e-6 if device.is_cpu else 1e-3)
    print(f"{options.steps} steps, the same: {middle - start:.2f} s; in core {end - middle:.2f} s")


if __name__ == "__main__":
    main()
