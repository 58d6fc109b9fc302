"""The handler as JAX knows it: compiled or loaded, given its native table, registered under one name for every kernel.

A call site names its kernel by a key; the table here says where that kernel's code is in this process. Code that is asked for
and not there (an exported program in a new process) is compiled from the kernels that `declare` has seen, and never from
anything else: what a program contains is not executed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.frames import Buffer, Frame, error_in
from numbridge.jax_ffi.header import installed_version
from numbridge.jax_ffi.identity import Key, identity_of, steps_from
from numbridge.kernels import scalars
from numbridge.kernels.adjoint.derive import Derivative
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.machine import compile_functions
from numbridge.kernels.object_cache import Compiled, add_symbol, compiled_or_stored, digest, load, machine_fingerprint
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType, block_offsets
from numbridge.kernels.threads import start_threads
from numbridge.kernels.variant import GRAIN, GRAIN_WITH_LOOP, SERIAL_BELOW, SERIAL_BELOW_WITH_LOOP, Variant, variants_of
from numbridge.memory import native

__all__ = ["TARGET", "WEAK", "declare", "enter", "register", "types_of"]

TARGET = "numbridge_launch"
WEAK = ("float32", "float64")
_FIRST_SLOTS = 256
_NAMES = {code: name for name, code in xla.DATA_TYPES}
_declared: dict[str, list[Kernel]] = {}


class Room:
    """The native state that the handler works on, and the handler."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Handlers may be reading an old table while a new one takes its place.
        self._tables: list[Any] = []
        self._codes: dict[Key, Any] = {}
        self.state = np.zeros(nb.ROOM_SIZE // 8 + 1, np.int64)
        self._new_table(_FIRST_SLOTS)
        self.state[nb.ROOM_REPORT // 8] = id(report)
        self.state[nb.ROOM_MAJOR // 8], self.state[nb.ROOM_MINOR // 8] = installed_version()
        native()
        start_threads()
        add_symbol("numbridge_xla_room", self.state.ctypes.data)
        compiled, _ = compiled_or_stored(digest("xla", machine_fingerprint(), *_own_sources()), _compile)
        self.handler = load(compiled)["numbridge_xla_handle"]

    def enter(self, key: Key, variant: Variant) -> None:
        """Let the handler find a variant by its key; what is entered stays."""
        with self._lock:
            if key in self._codes:
                return
            self._codes[key] = _code(key, variant)
            table = self._tables[-1]
            slots = int(table[nb.INDEX_MASK // 8]) + 1
            if 2 * len(self._codes) > slots:
                self._new_table(4 * slots)
            else:
                _put(table, self._codes[key])

    def _new_table(self, slots: int) -> None:
        table = np.zeros(nb.INDEX_SLOTS // 8 + slots, np.int64)
        table[nb.INDEX_MASK // 8] = slots - 1
        for code in self._codes.values():
            _put(table, code)
        self._tables.append(table)
        self.state[nb.ROOM_TABLE // 8] = table.ctypes.data


def _put(table: Any, code: Any) -> None:
    slots, mask = table[nb.INDEX_SLOTS // 8 :], int(table[nb.INDEX_MASK // 8])
    slot = int(code[nb.CODE_KEY // 8]) & mask
    while slots[slot]:
        slot = (slot + 1) & mask
    slots[slot] = code.ctypes.data


def _code(key: Key, variant: Variant) -> Any:
    code = np.zeros(nb.CODE_SIZE // 8, np.int64)
    fields = {
        nb.CODE_KEY: key[0],
        nb.CODE_KEY_HIGH: key[1],
        nb.CODE_RUN: variant.address,
        nb.CODE_BLOCK_SIZE: max(block_offsets(variant.parameters)[-1], 16),
        nb.CODE_SERIAL_BELOW: SERIAL_BELOW_WITH_LOOP if variant.has_loop else SERIAL_BELOW,
        nb.CODE_GRAIN: GRAIN_WITH_LOOP if variant.has_loop else GRAIN,
    }
    for offset, value in fields.items():
        code[offset // 8] = value
    return code


def _own_sources() -> Iterator[bytes]:
    folder = Path(__file__).parent
    return ((folder / f"{name}.py").read_bytes() for name in ("compiled", "call_frame_layout", "words_layout"))


def _compile() -> Compiled:
    from numbridge.jax_ffi import compiled

    return compile_functions(
        {name: (getattr(compiled, function), kind) for name, (function, kind) in compiled.EXPORTS.items()}
    )


_starting = threading.RLock()


@functools.cache
def _start() -> Room:
    return Room()


def room() -> Room:
    """Return this process's handler and its state, loading or compiling them on first use."""
    with _starting:
        return _start()


@functools.cache
def _register(platform: str) -> None:
    import jax

    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(room().handler), platform=platform)


def register(platform: str = "cpu") -> None:
    """Register the handler with JAX, once per process and platform."""
    with _starting:
        _register(platform)


def declare(kernel: Kernel) -> None:
    """Let programs that were exported elsewhere find a kernel by its name and what it computes."""
    known = _declared.setdefault(kernel.name, [])
    if not any(kernel is other for other in known):
        known.append(kernel)


def enter(kernel: Kernel, parameters: tuple[ParameterType, ...], weak: str) -> Key:
    """Compile a kernel for parameter types, let the handler find it, and return its key.

    Raises
    ------
    KernelError
        If it does not compile for these types.
    """
    variant = variants_of(kernel).variant_of(parameters, weak)
    key = identity_of(kernel, variant)
    room().enter(key, variant)
    return key


def types_of(kernel: Kernel, rows: Sequence[tuple[scalars.Scalar, int | None]], weak: str) -> tuple[ParameterType, ...]:
    """Return parameter types from element types and ranks, where a scalar's rank is None; XLA's buffers are contiguous."""
    if isinstance(kernel, Derivative):
        return kernel.typed(types_of(kernel.base, rows[: len(kernel.base.parameters)], weak), weak)
    names = [parameter.name for parameter in kernel.parameters]
    written = kernel.source.written(
        {name: rank for name, (_, rank) in zip(names, rows, strict=True) if rank is not None}
    )
    return tuple(
        ScalarType(name, row) if rank is None else ArrayType(name, row, rank, True, name in written)
        for name, (row, rank) in zip(names, rows, strict=True)
    )


def report(address: int, outcome: int) -> int:
    """Return the address of the XLA error for a call that did not run, or 0 if code that was missing is there now."""
    frame = Frame(address)
    if outcome & 0xFF == nb.UNKNOWN_KERNEL and _find(frame):
        return 0
    code = xla.INTERNAL if outcome & 0xFF == nb.RAISED else xla.INVALID_ARGUMENT
    return error_in(frame, _explain(frame, outcome & 0xFF, outcome >> 8), code)


def _find(frame: Frame) -> bool:
    """Compile the kernel that a call site names, if it was declared in this process."""
    (name, *steps), words = frame.attributes["kernel"].split("\n"), frame.attributes["words"]
    for declared in _declared.get(name, ()):
        rows, weak = _rows(words), WEAK[int(words[nb.WORD_WEAK // 8])]
        kernel = steps_from(declared, steps)
        if kernel is not None and len(rows) == len(kernel.parameters):
            key = enter(kernel, types_of(kernel, rows, weak), weak)
            if key == (words[nb.WORD_KEY // 8], words[nb.WORD_KEY_HIGH // 8]):
                return True
    return False


def _rows(words: Any) -> list[tuple[scalars.Scalar, int | None]]:
    slots = words[nb.WORD_PARAMETERS // 8 :].reshape(-1, nb.SLOT_SIZE // 8)
    rows: list[tuple[scalars.Scalar, int | None]] = []
    for slot in slots:
        row = scalars.by_name(_NAMES[int(slot[nb.SLOT_TYPE // 8])])
        is_array = slot[nb.SLOT_KIND // 8] in (nb.OPERAND, nb.RESULT)
        rows.append((row, int(slot[nb.SLOT_NDIM // 8]) if is_array else None))
    return rows


def _explain(frame: Frame, outcome: int, place: int) -> str:
    attributes = frame.attributes
    name, *steps = str(attributes.get("kernel")).split("\n")
    derived = "".join(f"the {step.partition(' ')[0]} of " for step in reversed(steps))
    where = f"{derived}kernel {name!r} under JAX"
    if outcome == nb.WRONG_WORDS:
        return f"numbridge: this call of {TARGET} carries no words of this version; export the program again"
    if outcome == nb.UNKNOWN_KERNEL:
        return (
            f"numbridge: {where}: this program was made elsewhere, and no kernel that computes the same has been declared in "
            f"this process; define it as it was and call nb.jax_kernel({name}) before the program runs"
        )
    if outcome == nb.RAISED:
        return (
            f"numbridge: {where} raised an exception in one of its threads. On the CPU a `raise` or `assert` in a kernel ends "
            "its launch"
        )
    if outcome == nb.WRONG_COUNT:
        passed = f"{len(frame.inputs)} operands and {len(frame.outputs)} results"
        return f"numbridge: {where}: XLA passed {passed}, which it does not take"
    return f"numbridge: {where}: {_wrong_buffer(frame, attributes['words'], outcome, place)}"


def _wrong_buffer(frame: Frame, words: Any, outcome: int, place: int) -> str:
    slot = words[nb.WORD_PARAMETERS // 8 :].reshape(-1, nb.SLOT_SIZE // 8)[place]
    buffers = frame.outputs if slot[nb.SLOT_KIND // 8] == nb.RESULT else frame.inputs
    index = 0 if slot[nb.SLOT_KIND // 8] == nb.PACKED else int(slot[nb.SLOT_INDEX // 8])
    found: Buffer | str = buffers[index] if index < len(buffers) else "nothing"
    wanted = _NAMES.get(int(slot[nb.SLOT_TYPE // 8]), "?")
    levels, ndim = int(words[nb.WORD_LEVELS // 8]), int(slot[nb.SLOT_NDIM // 8])
    what = {nb.WRONG_TYPE: "element type", nb.WRONG_RANK: "rank", nb.WRONG_DIMS: "batch extents"}.get(outcome, "buffer")
    return (
        f"parameter {place}: wrong {what}: wanted {wanted} of {ndim} dimensions behind {levels} batch axes, got {found}"
    )
