"""Runs a grid of a kernel's PTX over host memory, and says which access went wrong.

Threads run one after another, unless a barrier makes them wait for each other: then each has a thread of the operating system.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterable, Sequence

import llvmlite.binding as llvm
import numpy as np

from ptx_emulator.functions import CONTEXT, translate
from ptx_emulator.program import Function, Program, parse

_lock = threading.Lock()
_libc = ctypes.CDLL(None)
_libc.pthread_barrier_wait.argtypes = [ctypes.c_void_p]
_Thread = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_Print = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
# Runs the threads of a block, one after another.
_LOOP = """
define void @nb_block(ptr %ctx, ptr %parameters, i64 %count) {{
  br label %next
next:
  %k = phi i64 [ 0, %0 ], [ %k1, %next ]
  %nx_at = getelementptr i64, ptr %ctx, i64 {ntid_x}
  %nx = load i64, ptr %nx_at
  %ny_at = getelementptr i64, ptr %ctx, i64 {ntid_y}
  %ny = load i64, ptr %ny_at
  %x = urem i64 %k, %nx
  %rest = udiv i64 %k, %nx
  %y = urem i64 %rest, %ny
  %z = udiv i64 %rest, %ny
  store i64 %x, ptr %ctx
  %y_at = getelementptr i64, ptr %ctx, i64 1
  store i64 %y, ptr %y_at
  %z_at = getelementptr i64, ptr %ctx, i64 2
  store i64 %z, ptr %z_at
  call void @"{kernel}"(ptr %ctx, ptr %parameters)
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %count
  br i1 %more, label %next, label %end
end:
  ret void
}}
"""


class BadAccessError(Exception):
    """A kernel accessed memory that is not its own, or not aligned, or that it may not write."""


class Machine:
    """A kernel, ready to run."""

    def __init__(self, text: str, kernel: str) -> None:
        self.program: Program = parse(text)
        self.kernel: Function = self.program.kernel(kernel)
        places = {f"ntid_{axis}": CONTEXT.index(f"ntid.{axis}") for axis in "xy"}
        source = translate(self.program) + _LOOP.format(kernel=kernel, **places)
        self._engine = _compiled(source)
        self._block = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
            self._engine.get_function_address("nb_block")
        )
        self._thread = _Thread(self._engine.get_function_address(kernel))
        words = {
            statement.text.split()[0] for f in self.program.functions for statement in f.body or [] if statement.text
        }
        self._meets = any(word.startswith(("bar.", "barrier.")) for word in words)
        self._meets_everywhere = any(
            "cudaCGSynchronize" in s.text for f in self.program.functions for s in f.body or []
        )

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

        Raises
        ------
        BadAccessError
            If the kernel touches anything else, or an address that is not a multiple of the size of the access.
        """
        with _lock:
            ranges = np.array([*memory, *self._variables()], np.int64).reshape(-1, 3)
            fault = np.zeros(4, np.int64)
            packed = np.frombuffer(self.pack(parameters) + bytes(16), np.uint8).copy()
            context = np.zeros(len(CONTEXT), np.int64)
            shown = _Print(functools.partial(_show, show))
            for name, value in {
                **dict(zip(("ntid.x", "ntid.y", "ntid.z"), block, strict=True)),
                **dict(zip(("nctaid.x", "nctaid.y", "nctaid.z"), grid, strict=True)),
                "ranges": ranges.ctypes.data,
                "count": len(ranges),
                "fault": fault.ctypes.data,
                "wait": ctypes.cast(_libc.pthread_barrier_wait, ctypes.c_void_p).value,
                "print": ctypes.cast(shown, ctypes.c_void_p).value,
            }.items():
                context[CONTEXT.index(name)] = value
            self._run_blocks(context, packed, grid, block)
            if fault[0]:
                raise BadAccessError(self._fault(fault, ranges))

    def _run_blocks(self, context: np.ndarray, packed: np.ndarray, grid: Sequence[int], block: Sequence[int]) -> None:
        places = list(itertools.product(*(range(n) for n in reversed(grid))))
        threads = math.prod(block)
        if self._meets_everywhere:
            if self._meets and len(places) > 1:
                raise NotImplementedError("barriers of blocks and of the grid in one kernel")
            self._run_together(context, packed, block, places)
            return
        for place in places:
            if self._meets:
                self._run_together(context, packed, block, [place])
            else:
                context[3:6] = place[::-1]
                self._block(context.ctypes.data, packed.ctypes.data, threads)

    def _run_together(self, context: np.ndarray, packed: np.ndarray, block: Sequence[int], places: list) -> None:
        count = math.prod(block) * len(places)
        barrier = np.zeros(8, np.int64)
        _libc.pthread_barrier_init(ctypes.c_void_p(barrier.ctypes.data), None, ctypes.c_uint(count))
        started = []
        for place in places:
            for index in itertools.product(*(range(n) for n in reversed(block))):
                own = context.copy()
                own[:3], own[3:6] = index[::-1], place[::-1]
                own[CONTEXT.index("block")] = own[CONTEXT.index("grid")] = barrier.ctypes.data
                started.append((threading.Thread(target=self._thread, args=(own.ctypes.data, packed.ctypes.data)), own))
        for thread, _ in started:
            thread.start()
        for thread, _ in started:
            thread.join()

    def _variables(self) -> Iterable[tuple[int, int, bool]]:
        for variable in self.program.variables:
            begin = self._engine.get_global_value_address(variable.name)
            yield begin, begin + variable.room, variable.space != "const"

    def _fault(self, fault: np.ndarray, ranges: np.ndarray) -> str:
        line, address, size, write = (int(word) for word in fault)
        text = self.program.text.splitlines()[line - 1].strip()
        what = "writes" if write else "reads"
        near = ", ".join(f"{begin:#x} to {end:#x}{'' if free else ' (read only)'}" for begin, end, free in ranges)
        return f"PTX line {line}, {text!r}, {what} {size} bytes at {address:#x}; the kernel's memory is {near}"


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
