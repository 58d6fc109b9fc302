"""Runs a grid of a kernel's PTX over host memory, and says which access went wrong.

Threads run one after another, unless some wait for others: then `scheduling` runs a block's by turns.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import llvmlite.binding as llvm
import numpy as np

from ptx_emulator.functions import CONTEXT, translate
from ptx_emulator.program import Function, Program, parse
from ptx_emulator.races import Races
from ptx_emulator.scheduling import Scheduler

_lock = threading.Lock()
_Print = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class BadAccessError(Exception):
    """A kernel accessed memory that is not its own, or not aligned, or that it may not write."""


class Machine:
    """A kernel, ready to run."""

    def __init__(self, text: str, kernel: str) -> None:
        self.program: Program = parse(text)
        self.kernel: Function = self.program.kernel(kernel)
        source, self._meetings = translate(self.program, kernel)
        self._engine = _compiled(source)
        self._block = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
            self._engine.get_function_address("nb_block")
        )
        self._scopes = {meeting.scope for meeting in self._meetings} - {"thread"}

    def pack(self, parameters: Sequence[bytes]) -> bytes:
        """Return a kernel's parameters as they lie in its parameter memory."""
        packed = bytearray()
        for variable, data in zip(self.kernel.parameters, parameters, strict=True):
            packed += b"\0" * (-len(packed) % variable.align) + data[: variable.size].ljust(variable.size, b"\0")
        return bytes(packed)

    def run(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        parameters: Sequence[bytes],
        memory: Iterable[tuple[int, int, bool]],
        show: Callable[[str], None] = print,
        shared: int = 0,
        races: bool = False,
    ) -> None:
        """Run the kernel.

        Parameters
        ----------
        grid, block : sequence of int
            How many blocks, and threads of a block, there are along x, y and z.
        parameters : sequence of bytes
            What each parameter holds.
        memory : iterable of (int, int, bool)
            Begin and end of the memory that the kernel may touch, and whether it may write there.
        show : callable
            Gets what the kernel prints.
        shared : int
            The bytes of dynamic shared memory.
        races : bool
            Whether accesses of the threads of a block are compared; not those of blocks that run at once.

        Raises
        ------
        BadAccessError
            If the kernel touches anything else, or an address that is not a multiple of the size of the access.
        MeetingError
            If threads wait for each other for ever, or meet in a way that PTX does not define.
        RaceError
            If races are looked for, and threads of a block touch one place in an order that nothing tells, one writing there.
        """
        with _lock:
            ranges = np.array([*memory, *self._variables(shared)], np.int64).reshape(-1, 3)
            fault = np.zeros(4, np.int64)
            packed = np.frombuffer(self.pack(parameters) + bytes(16), np.uint8).copy()
            context = np.zeros(len(CONTEXT), np.int64)
            showing = functools.partial(_show, show)
            shown = _Print(showing)
            for name, value in {
                **dict(zip(("ntid.x", "ntid.y", "ntid.z"), block, strict=True)),
                **dict(zip(("nctaid.x", "nctaid.y", "nctaid.z"), grid, strict=True)),
                "dynamic_smem_size": shared,
                "ranges": ranges.ctypes.data,
                "count": len(ranges),
                "fault": fault.ctypes.data,
                "parameters": packed.ctypes.data,
                "print": ctypes.cast(shown, ctypes.c_void_p).value,
            }.items():
                context[CONTEXT.index(name)] = value
            try:
                self._run_blocks(context, grid, block, shared, showing, Races(self._line) if races else None)
            finally:
                # Whatever else has gone wrong, it began with this.
                if fault[0]:
                    raise BadAccessError(self._fault(fault, ranges))

    def _run_blocks(
        self,
        context: np.ndarray,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        show: Callable[[int, int], int],
        races: Races | None,
    ) -> None:
        places = list(itertools.product(*(range(n) for n in reversed(grid))))
        if "grid" in self._scopes and len(places) > 1 and any(v.space == "shared" for v in self.program.variables):
            raise NotImplementedError("shared memory of blocks that run at once, up to a barrier of the grid")
        at_once = "grid" in self._scopes and len(places) > 1
        races = None if at_once else races
        if races is not None:
            for name, value in races.words.items():
                context[CONTEXT.index(name)] = value
        for together in [places] if at_once else [[place] for place in places]:
            self._forget_shared(shared)
            if self._scopes:
                scheduler = Scheduler(self._meetings, self._line, show, races)
                scheduler.run(self._engine.get_function_address("nb_fiber"), _contexts(context, block, together))
            else:
                context[3:6] = together[0][::-1]
                self._block(context.ctypes.data, math.prod(block))
                if races is not None:
                    races.compare()

    def _forget_shared(self, shared: int) -> None:
        """Fill shared memory with NaN, or -1: a block finds nothing of the one before it."""
        for begin, end, _ in self._variables(shared, "shared"):
            ctypes.memset(begin, 0xFF, end - begin)

    def _variables(self, shared: int, *spaces: str) -> Iterable[tuple[int, int, bool]]:
        """Yield where variables lie, of all spaces if none is named; dynamic shared memory ends with what the launch gave it."""
        for variable in self.program.variables:
            if not spaces or variable.space in spaces:
                begin = self._engine.get_global_value_address(variable.name)
                yield begin, begin + (variable.size or shared), variable.space != "const"

    def _line(self, number: int) -> str:
        return self.program.text.splitlines()[number - 1].strip()

    def _fault(self, fault: np.ndarray, ranges: np.ndarray) -> str:
        line, address, size, write = (int(word) for word in fault)
        what = "writes" if write else "reads"
        near = ", ".join(f"{begin:#x} to {end:#x}{'' if free else ' (read only)'}" for begin, end, free in ranges)
        return (
            f"PTX line {line}, {self._line(line)!r}, {what} {size} bytes at {address:#x}; the kernel's memory is {near}"
        )


def _contexts(
    context: np.ndarray, block: Sequence[int], places: Sequence[tuple[int, ...]]
) -> Iterator[tuple[np.ndarray, tuple[int, ...], int]]:
    """Yield the context of each thread of some blocks, with its block's place and its own in the block."""
    for place in places:
        for k, index in enumerate(itertools.product(*(range(n) for n in reversed(block)))):
            own = context.copy()
            own[:3], own[3:6] = index[::-1], place[::-1]
            yield own, place[::-1], k


@functools.lru_cache(512)
def machine(text: str, kernel: str) -> Machine:
    """Return the machine for a kernel of a PTX text."""
    return Machine(text, kernel)


def _compiled(source: str) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(source)
    module.verify()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1
    )
    module.triple = llvm.get_process_triple()
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=1))
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return engine


def _show(show: Callable[[str], None], text: int, values: int) -> int:
    """Print as the device's printf does: `values` are laid out one after another, each at a multiple of its size."""
    show(_formatted(ctypes.string_at(text).decode(), values))
    return 0


def _formatted(text: str, at: int) -> str:
    def value(found: re.Match[str]) -> str:
        nonlocal at
        if found[0] == "%%":
            return "%"
        kind = found[0][-1]
        if kind in "feEgG":
            size, c = 8, ctypes.c_double
        elif kind in "s" or "ll" in found[0] or "l" in found[0] or kind == "p":
            size, c = 8, ctypes.c_int64 if kind != "u" else ctypes.c_uint64
        else:
            size, c = 4, ctypes.c_int32 if kind != "u" else ctypes.c_uint32
        at += -at % size
        got = c.from_address(at).value
        at += size
        if kind == "s":
            return ctypes.string_at(got).decode()
        return found[0].replace("l", "").replace("u", "d") % got

    return re.sub(r"%[-+ #0]*\d*(?:\.\d+)?(?:ll|l|h)?[a-zA-Z%]", value, text)
