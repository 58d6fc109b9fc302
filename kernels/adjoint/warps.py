"""The reverse of lanes that exchange numbers: what a lane gave, it gets back from all lanes that took it.

A lane takes its own number where the lane that it names is beyond the warp (PTX ISA, "shfl.sync") or is not there, which the CPU
defines so and CUDA does not define.
"""

from __future__ import annotations

from collections.abc import Iterator

from numbridge.kernels.adjoint.emit import meeting
from numbridge.kernels.adjoint.ir import Meet
from numbridge.kernels.cpu_backend.blocks.source import THREAD
from numbridge.kernels.native.table_layout import WARP_SIZE

__all__ = ["BACK", "lanes_back"]

BACK = "_nb_back"
"""The name of what comes back to a lane."""
_LANE, _THERE, _OTHER, _MOVED, _TOOK = "_nb_lane", "_nb_there", "_nb_other", "_nb_moved", "_nb_took"


def lanes_back(op: Meet, adjoint: str, zero: str) -> Iterator[str]:
    """Yield lines that give a lane what its number, given to an exchange, gets back.

    Parameters
    ----------
    op : Meet
        The exchange: a mask of lanes, a number, and which lane's number each takes.
    adjoint : str
        The adjoint of what this lane took.
    zero : str
        Zero of its type.
    """
    yield f"{_TOOK} = {adjoint}"
    adjoint = _TOOK
    mask, which = op.arguments[0].name, op.arguments[2].name
    yield f"{_LANE} = {THREAD} % {WARP_SIZE}"
    yield f"{_THERE} = {meeting('ballot_sync', mask, '1')}"
    yield f"{_OTHER} = {which} & {WARP_SIZE - 1}"
    if op.operation == "shfl_xor_sync":
        yield f"{_MOVED} = {meeting(op.operation, mask, adjoint, _OTHER)}"
        yield f"{BACK} = {_MOVED} if ({_THERE} >> ({_LANE} ^ {_OTHER})) & 1 else {adjoint}"
    elif op.operation == "shfl_sync":
        yield f"{_OTHER} = {_OTHER} if ({_THERE} >> {_OTHER}) & 1 else {_LANE}"
        yield f"{BACK} = {zero}"
        yield f"for _nb_from in range({WARP_SIZE}):"
        yield f"    {_MOVED} = {meeting('shfl_sync', mask, adjoint, '_nb_from')}"
        yield f"    _nb_taken = {meeting('shfl_sync', mask, _OTHER, '_nb_from')}"
        yield f"    if ({_THERE} >> _nb_from) & 1 and _nb_taken == {_LANE}:"
        yield f"        {BACK} += {_MOVED}"
    else:
        up = op.operation == "shfl_up_sync"
        yield f"{_MOVED} = {meeting('shfl_down_sync' if up else 'shfl_up_sync', mask, adjoint, _OTHER)}"
        # Who took from this lane, and from whom this one took.
        taker, giver = (f"{_LANE} {sign} {_OTHER}" for sign in ("+-" if up else "-+"))
        yield f"{BACK} = {_MOVED} if {_is_there(taker)} else {zero}"
        yield f"if not ({_is_there(giver)}):"
        yield f"    {BACK} += {adjoint}"


def _is_there(lane: str) -> str:
    return f"0 <= {lane} < {WARP_SIZE} and ({_THERE} >> ({lane})) & 1"
