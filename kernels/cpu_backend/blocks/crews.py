"""The compiled functions that run the threads of a block on the CPU, and what is said when a block ends its launch."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from numbridge.kernels.errors import KernelError
from numbridge.kernels.machine import compile_functions, machine
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.object_cache import Compiled, compiled_or_stored, digest, load, machine_fingerprint

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = ["ended_in_block", "load_crews"]


def _compile() -> Compiled:
    from numbridge.kernels.native import crew

    return compile_functions({symbol: (getattr(crew, name), kind) for symbol, (name, kind) in crew.EXPORTS.items()})


@functools.cache
def load_crews() -> None:
    """Load the functions that code for blocks calls; once per process."""
    compiled, _ = compiled_or_stored(digest("crew", machine_fingerprint()), _compile)
    load(compiled)


def ended_in_block(kernels: Iterable[Kernel]) -> KernelError | None:
    """Return the error of a launch of one of some kernels that a block itself has ended, or None.

    A block ends a launch if its threads waited for each other in vain, or if there is no memory for them.
    """
    waiting = [kernel.name for kernel in kernels if kernel.source.works_in_blocks]
    if not waiting:
        return None
    name = f"kernel {' or '.join(map(repr, waiting))}"
    state = machine().state
    block, thread, mask, lacking = (
        int(state[at // 8]) for at in (nb.STATE_STUCK, nb.STATE_STUCK_THREAD, nb.STATE_STUCK_MASK, nb.STATE_LACKING)
    )
    state[nb.STATE_STUCK // 8] = state[nb.STATE_LACKING // 8] = 0
    if lacking:
        return KernelError(
            f"{name}: there is no memory for {lacking} bytes, which one of its blocks needs as shared memory or for what its "
            "threads keep where they wait. Launch it with less shared memory or smaller blocks"
        )
    if not block:
        return None
    if not mask:
        return KernelError(
            f"{name}: in block {block - 1}, thread {thread} waits for all blocks of the grid, and others of its block wait for "
            "the block. On a GPU this would wait for ever. Let every thread of a block come to the same barrier; the arrays that "
            "the kernel writes may be partly written"
        )
    return KernelError(
        f"{name}: in block {block - 1}, thread {thread} waits for lanes {mask:#010x} of its "
        "warp, and not all of these come to a warp operation with the same mask: some wait for the whole block, or for other "
        "lanes. On a GPU this would wait for ever. Let every lane that a mask names call the operation; the arrays that the "
        "kernel writes may be partly written"
    )
