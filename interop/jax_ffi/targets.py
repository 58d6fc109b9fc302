"""The handler as JAX knows it: compiled or loaded, given its native table, registered under one name for every kernel.

A call site names its kernel by a key; the table here says where that kernel's code is in this process. Code that is asked for
and not there (an exported program in a new process) is compiled from the kernels that `declare` has seen, and never from
anything else: what a program contains is not executed.
"""

from __future__ import annotations

import functools
import importlib
import operator
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numbridge.bridges.installed import needed
from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.frame_launches import launches_of, slots_of
from numbridge.jax_ffi.frames import Buffer, Frame, error_in
from numbridge.jax_ffi.header import installed_version
from numbridge.jax_ffi.identity import Key, identity_of, is_current, key_of, root_of, steps_from, untraced_reaches
from numbridge.kernels import scalars
from numbridge.kernels.adjoint.derive import Derivative
from numbridge.kernels.adjoint.measured import StackMemoryError
from numbridge.kernels.cpu_backend.endings import ended_by
from numbridge.kernels.cpu_backend.raised import raised_by, says
from numbridge.kernels.cpu_backend.threads import native_lock, start_threads
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.errors import KernelError, NumbridgeError
from numbridge.kernels.extent_checks import atoms_of, extent_rows, refused
from numbridge.kernels.kernel import Kernel, Parameter
from numbridge.kernels.language.launch_sizes import Along, Number
from numbridge.kernels.language.reaches import Demand
from numbridge.kernels.machine import compile_functions
from numbridge.kernels.object_cache import Compiled, add_symbol, compiled_or_stored, digest, load, machine_fingerprint
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType, is_signed
from numbridge.kernels.variant import Variant, variants_of
from numbridge.operators.element_dims import element_of, records_of, value_of
from numbridge.storage.memory import native

__all__ = [
    "PLAN_TARGET",
    "TARGET",
    "WEAK",
    "declare",
    "declared_kernel",
    "enter",
    "enter_cpu",
    "enter_cuda",
    "graphs_of",
    "number_bits",
    "register",
    "register_plans",
    "room",
    "types_of",
]

TARGET, PLAN_TARGET = "numbridge_launch", "numbridge_plan"
WEAK = ("float32", "float64")
_FIRST_SLOTS = 256
_NAMES = {code: name for name, code in xla.DATA_TYPES}
_declared: dict[str, list[Kernel]] = {}
# Of code for the CPU, what it asks that no trace tells, with the globals as they were when it was compiled
_reaches: dict[Key, tuple[tuple[ParameterType, ...], Sequence[Demand]]] = {}
_DRIVER_FUNCTIONS = {
    nb.ROOM_COPY: "cuMemcpyDtoDAsync_v2",
    nb.ROOM_FILL: "cuMemsetD8Async",
    nb.ROOM_IS_CAPTURING: "cuStreamIsCapturing",
    nb.ROOM_STREAM_CREATE: "cuStreamCreate",
    nb.ROOM_STREAM_DESTROY: "cuStreamDestroy_v2",
    nb.ROOM_CAPTURE_BEGIN: "cuStreamBeginCapture_v2",
    nb.ROOM_CAPTURE_END: "cuStreamEndCapture",
    nb.ROOM_INSTANTIATE: "cuGraphInstantiateWithFlags",
    nb.ROOM_EXEC_UPDATE: "cuGraphExecUpdate_v2",
    nb.ROOM_EXEC_DESTROY: "cuGraphExecDestroy",
    nb.ROOM_GRAPH_DESTROY: "cuGraphDestroy",
    nb.ROOM_GRAPH_LAUNCH: "cuGraphLaunch",
    nb.ROOM_KERNEL_LOAD: "cuKernelGetFunction",
}


class Room:
    """The native state that the handlers work on, and the handlers."""

    def __init__(self) -> None:
        self.state = np.zeros(nb.ROOM_SIZE // 8 + 1, np.int64)
        self.codes = _Codes(self.state, nb.ROOM_TABLE)
        self.cuda_codes = _Codes(self.state, nb.ROOM_CUDA_TABLE)
        self.graphs = _Codes(self.state, nb.ROOM_GRAPHS)
        self.state[nb.ROOM_REPORT // 8] = id(report)
        self.state[nb.ROOM_MAJOR // 8], self.state[nb.ROOM_MINOR // 8] = installed_version()
        native()
        start_threads()
        add_symbol("numbridge_xla_room", self.state.ctypes.data)
        key = digest("xla", machine_fingerprint(), *_own_sources())
        compiled, _ = compiled_or_stored(key, lambda: _compile("compiled"))
        self.handler = load(compiled)["numbridge_xla_handle"]

    def _use_driver(self) -> None:
        driver = cuda_driver.devices().driver
        for offset, function in _DRIVER_FUNCTIONS.items():
            self.state[offset // 8] = driver.address(function)

    @functools.cached_property
    def cuda_handler(self) -> int:
        """The handler for CUDA; needs the driver."""
        self._use_driver()
        key = digest("xla on cuda", machine_fingerprint(), *_own_sources())
        compiled, _ = compiled_or_stored(key, lambda: _compile("cuda_compiled"))
        return load(compiled)["numbridge_xla_handle_cuda"]

    @functools.cached_property
    def plan_handler(self) -> int:
        """The handler of plans on the CPU."""
        key = digest("xla plans", machine_fingerprint(), *_own_sources())
        compiled, _ = compiled_or_stored(key, lambda: _compile("compiled_plan"))
        return load(compiled)["numbridge_xla_plan"]

    @functools.cached_property
    def cuda_plans(self) -> dict[str, int]:
        """The handler of plans on CUDA, and the function that destroys their graphs; needs the driver."""
        self._use_driver()
        key = digest("xla plans on cuda", machine_fingerprint(), *_own_sources())
        compiled, _ = compiled_or_stored(key, lambda: _compile("cuda_graphs"))
        return load(compiled)


class _Codes:
    """Kernels' native code by key, in a table that handlers read while it grows; what is entered stays."""

    def __init__(self, state: Any, place: int) -> None:
        self._lock = threading.RLock()
        self._state, self._place = state, place
        # Handlers may be reading an old table while a new one takes its place.
        self._tables: list[Any] = []
        self._codes: dict[Key, Any] = {}
        self._kept: list[Any] = []
        self._new_table(_FIRST_SLOTS)

    def enter(self, key: Key, code: Any, *kept: Any) -> None:
        """Let the handler find code by its key; `kept` lives as long."""
        with self._lock:
            if key in self._codes:
                return
            code[nb.CODE_KEY // 8], code[nb.CODE_KEY_HIGH // 8] = key
            self._codes[key] = code
            self._kept.extend(kept)
            table = self._tables[-1]
            slots = int(table[nb.INDEX_MASK // 8]) + 1
            if 2 * len(self._codes) > slots:
                self._new_table(4 * slots)
            else:
                _put(table, code)

    def get(self, key: Key) -> Any:
        """Return the code of a key, or None."""
        return self._codes.get(key)

    def _new_table(self, slots: int) -> None:
        table = np.zeros(nb.INDEX_SLOTS // 8 + slots, np.int64)
        table[nb.INDEX_MASK // 8] = slots - 1
        for code in self._codes.values():
            _put(table, code)
        self._tables.append(table)
        self._state[self._place // 8] = table.ctypes.data


def _put(table: Any, code: Any) -> None:
    slots, mask = table[nb.INDEX_SLOTS // 8 :], int(table[nb.INDEX_MASK // 8])
    slot = int(code[nb.CODE_KEY // 8]) & mask
    while slots[slot]:
        slot = (slot + 1) & mask
    slots[slot] = code.ctypes.data


def _filled(size: int, fields: Mapping[int, int]) -> Any:
    made = np.zeros(size // 8, np.int64)
    for offset, value in fields.items():
        made[offset // 8] = value
    return made


def _code(variant: Variant, reaches: Sequence[Demand]) -> tuple[Any, Any]:
    """Return the native code of a variant for the CPU, and what it points to."""
    rows = extent_rows(reaches, variant.parameters, [p.name for p in variant.parameters if is_signed(p)])
    decides = atoms_of(reaches)
    numbers = {atom.parameter for atom in decides if isinstance(atom, Number)}
    has_blocks = any(isinstance(atom, Along) and atom.kind != "dim" for atom in decides)
    fields = {
        nb.CODE_RUN: variant.address,
        nb.CODE_BLOCK_SIZE: variant.block_size,
        nb.CODE_SERIAL_BELOW: variant.serial_below,
        nb.CODE_GRAIN: variant.grain,
        nb.CODE_REACHES: rows.ctypes.data,
        nb.CODE_REACH_COUNT: len(rows),
        nb.CODE_DECIDES: number_bits(variant.parameters, numbers) | has_blocks * nb.BLOCKS_BIT,
    }
    return _filled(nb.CODE_SIZE, fields), rows


def number_bits(parameters: Sequence[ParameterType], names: Collection[str]) -> int:
    """Return the bits of those signed integers that have some names; see `words_layout`."""
    places = (k % nb.NUMBER_BITS for k, p in enumerate(parameters) if is_signed(p) and p.name in names)
    return functools.reduce(operator.or_, (1 << place for place in places), 0)


def _cuda_code(kernel: Kernel, variant: Variant) -> tuple[Any, Any]:
    """Return the native code of a variant for CUDA, and what it points to."""
    places = np.array(variant.places, np.int64)
    fields = {
        nb.CODE_LAUNCH: variant.launch_function,
        nb.CODE_HANDLE: variant.address,
        nb.CODE_CUDA_BLOCK: variant.block_size,
        nb.CODE_PLACES: places.ctypes.data,
        nb.CODE_PLACE_COUNT: len(places),
        nb.CODE_DIM_COUNT: variant.dims,
        nb.CODE_RANK: kernel.source.index_rank,
        nb.CODE_FIRST: int(kernel.source.asks_for_block),
        nb.CODE_LEVELS: variant.levels,
        nb.CODE_ARRAYS: sum(isinstance(parameter, ArrayType) for parameter in variant.parameters),
        nb.CODE_TOGETHER: variant.together,
    }
    return _filled(nb.CODE_CUDA_SIZE, fields), places


def _own_sources() -> Iterator[bytes]:
    folder = Path(__file__).parent
    names = (
        "compiled",
        "compiled_plan",
        "cuda_compiled",
        "cuda_graphs",
        "call_frame_layout",
        "words_layout",
    )
    return ((folder / f"{name}.py").read_bytes() for name in names)


def _compile(name: str) -> Compiled:
    """Compile what one of the modules of compiled code exports."""
    module = importlib.import_module(f"numbridge.jax_ffi.{name}")
    return compile_functions(
        {name: (getattr(module, function), kind) for name, (function, kind) in module.EXPORTS.items()}
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
def _register() -> None:
    jax = needed("jax")

    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(room().handler), platform="cpu")
    if cuda_driver.driver_count():
        for ordinal in range(cuda_driver.devices().count):
            cuda_driver.devices().prepare(ordinal)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(room().cuda_handler), platform="CUDA")


def register() -> None:
    """Register the handlers with JAX, once per process: that for the CPU, and where there is CUDA, that for it."""
    with _starting:
        _register()


@functools.cache
def _register_plans() -> None:
    import jax

    jax.ffi.register_ffi_target(PLAN_TARGET, jax.ffi.pycapsule(room().plan_handler), platform="cpu")
    if cuda_driver.driver_count():
        handler = room().cuda_plans["numbridge_xla_plan_cuda"]
        jax.ffi.register_ffi_target(PLAN_TARGET, jax.ffi.pycapsule(handler), platform="CUDA")


def register_plans() -> None:
    """Do what `register` does, for plans."""
    with _starting:
        _register()
        _register_plans()


def graphs_of(words: Any) -> Any:
    """Return the native state of the graphs of a plan, which is made if it is not there; see `words_layout`."""
    key = int(words[nb.PLAN_KEY // 8]), int(words[nb.PLAN_KEY_HIGH // 8])
    with _starting:
        found = room().graphs.get(key)
        if found is None:
            capacity = int(words[nb.PLAN_CAPACITY // 8])
            found = _filled(nb.GRAPHS_SIZE, {nb.GRAPHS_LOCK: native_lock(), nb.GRAPHS_CAPACITY: capacity})
            room().graphs.enter(key, found)
    return found


def declare(kernel: Kernel) -> None:
    """Let programs that were exported elsewhere find a kernel by its name and what it computes."""
    known = _declared.setdefault(kernel.name, [])
    if not any(kernel is other for other in known):
        known.append(kernel)


def enter(
    kernel: Kernel,
    parameters: tuple[ParameterType, ...],
    weak: str,
    by_reference: Collection[str] = (),
    levels: int = 0,
) -> Key:
    """Compile a kernel for parameter types, let the handler find it, and return its key.

    It is compiled for where JAX runs what nobody places elsewhere; other code is compiled when the handler asks for it.

    Parameters
    ----------
    kernel, parameters, weak
        The kernel, its types and its floating type.
    by_reference : collection of str
        The scalars that are data of the program, which on CUDA lie in device memory.
    levels : int
        How many axes the batch has; on CUDA there is code for each number.

    Raises
    ------
    KernelError
        If it does not compile for these types.
    """
    import jax

    declare(root_of(kernel))
    if jax.default_backend() == "gpu":
        try:
            return enter_cuda(kernel, parameters, weak, by_reference, levels)
        except StackMemoryError:
            # It must be measured there, and is launched from Python: see `measured_calls`.
            return key_of(kernel, parameters, weak)
    return enter_cpu(kernel, parameters, weak)


def enter_cpu(kernel: Kernel, parameters: tuple[ParameterType, ...], weak: str) -> Key:
    """Do what `enter` does, for the CPU."""
    variant = variants_of(kernel).variant_of(parameters, weak)
    key = identity_of(kernel, parameters, weak, variant)
    # Another kernel may have the same text, and so the same code: messages show the one that was traced last.
    _, reaches = _reaches[key] = parameters, untraced_reaches(kernel)
    if room().codes.get(key) is None:
        room().codes.enter(key, *_code(variant, reaches))
    return key


def enter_cuda(
    kernel: Kernel,
    parameters: tuple[ParameterType, ...],
    weak: str,
    by_reference: Collection[str] = (),
    levels: int = 0,
) -> Key:
    """Do what `enter` does, for CUDA."""
    variant = variants_of(kernel).by_reference(parameters, weak, frozenset(by_reference), levels)
    low, high = key = identity_of(kernel, parameters, weak, variant)
    mask = sum(1 << k for k, parameter in enumerate(parameters) if parameter.name in by_reference)
    room().cuda_codes.enter((low ^ levels, high ^ mask), *_cuda_code(kernel, variant))
    return key


def types_of(kernel: Kernel, rows: Sequence[tuple[scalars.Scalar, int | None]], weak: str) -> tuple[ParameterType, ...]:
    """Return parameter types from scalar types and ranks, where a scalar's rank is None; XLA's buffers are contiguous.

    Which arrays hold vectors or matrices is what the kernel's annotations say.
    """
    if isinstance(kernel, Derivative):
        return kernel.typed(types_of(kernel.base, rows[: len(kernel.base.parameters)], weak), weak)
    names = [parameter.name for parameter in kernel.parameters]
    written = kernel.source.written(
        {name: rank for name, (_, rank) in zip(names, rows, strict=True) if rank is not None},
        records_of(kernel.parameters),
    )
    return tuple(
        ScalarType(p.name, row, value_of(p))
        if rank is None
        else ArrayType(p.name, _component(row, p), rank, True, p.name in written, element_of(p))
        for p, (row, rank) in zip(kernel.parameters, rows, strict=True)
    )


def _component(row: scalars.Scalar, parameter: Parameter) -> scalars.Scalar:
    """Return the scalar of an array's type: records are bytes to JAX, and words to their kernel."""
    element = element_of(parameter)
    return row if element is None or element.fields is None else element.scalar


def report(address: int, outcome: int) -> int:
    """Return the address of the XLA error for a call that did not run, or 0 if it is to be tried again.

    That is so if code that was missing is there now, and if no array is too short.
    """
    frame = Frame(address)
    if outcome & 0xFF == nb.UNKNOWN_PLAN:
        graphs_of(frame.attributes["words"])
        return 0
    if outcome & 0xFF in (nb.UNKNOWN_KERNEL, nb.UNKNOWN_ON_CUDA) and _find(frame, outcome & 0xFF):
        return 0
    if outcome & 0xFF == nb.TOO_SHORT:
        refusal = _too_short(frame, outcome >> 8)
        return 0 if refusal is None else error_in(frame, f"numbridge: {_where(frame)}, {refusal}")
    code = xla.INTERNAL if outcome & 0xFF in (nb.RAISED, nb.DRIVER_REFUSED) else xla.INVALID_ARGUMENT
    return error_in(frame, _explain(frame, outcome & 0xFF, outcome >> 8), code)


def _find(frame: Frame, outcome: int) -> bool:
    """Compile the kernel that a call site names, if it was declared in this process."""
    words = frame.attributes["words"]
    for kernel, types, weak in _declared_as(frame.attributes["kernel"], words):
        try:
            if outcome == nb.UNKNOWN_ON_CUDA:
                key = enter_cuda(kernel, types, weak, _references(kernel, words), int(words[nb.WORD_LEVELS // 8]))
            else:
                key = enter_cpu(kernel, types, weak)
        except NumbridgeError:
            continue
        if key == _key(words):
            return True
    return False


def _declared_as(spelled: str, words: Any) -> Iterator[tuple[Kernel, tuple[ParameterType, ...], str]]:
    """Yield kernels that have been declared in this process and may be what a call site names, with types and floating type."""
    name, *steps = spelled.split("\n")
    rows, weak = _rows(words), WEAK[int(words[nb.WORD_WEAK // 8])]
    for declared in _declared.get(name, ()):
        kernel = steps_from(declared, steps)
        if kernel is None or len(rows) != len(kernel.parameters):
            continue
        try:
            types = types_of(kernel, rows, weak)
        except NumbridgeError:
            # Another kernel of that name, which these types do not fit: the call site's own was compiled with them.
            continue
        yield kernel, types, weak


def _key(words: Any) -> Key:
    return int(words[nb.WORD_KEY // 8]), int(words[nb.WORD_KEY_HIGH // 8])


def declared_kernel(spelled: str, words: Any) -> tuple[Kernel, tuple[ParameterType, ...]]:
    """Return the kernel that a call site names, which must have been declared in this process, and its types.

    Raises
    ------
    KernelError
        If no kernel that computes the same has been declared, or it has become another one since.
    """
    for kernel, types, weak in _declared_as(spelled, words):
        if is_current(kernel, types, weak, _key(words)):
            return kernel, types
    raise KernelError(_undeclared(spelled.partition("\n")[0]))


def _undeclared(name: str) -> str:
    return (
        "this program was made elsewhere, and no kernel that computes the same has been declared in this process, or what it "
        f"reads from outside itself has changed; define it as it was and call nb.jax_kernel({name}) before the program runs"
    )


def _too_short(frame: Frame, element: int) -> str | None:
    """Return which array is too short for a call, from an element of its batch on, or None."""
    words = frame.attributes["words"]
    parameters, reaches = _reaches[_key(words)]
    launches = launches_of(frame, words, parameters, element)
    refusals = (refused(reaches, launch, is_followed=True) for launch in launches)
    return next((refusal for refusal in refusals if refusal is not None), None)


def _references(kernel: Kernel, words: Any) -> list[str]:
    kinds = slots_of(words)[:, nb.SLOT_KIND // 8]
    return [p.name for p, kind in zip(kernel.parameters, kinds, strict=True) if kind in (nb.TRACED, nb.PACKED)]


def _rows(words: Any) -> list[tuple[scalars.Scalar, int | None]]:
    rows: list[tuple[scalars.Scalar, int | None]] = []
    for slot in slots_of(words):
        row = scalars.by_name(_NAMES[int(slot[nb.SLOT_TYPE // 8])])
        is_array = slot[nb.SLOT_KIND // 8] in (nb.OPERAND, nb.RESULT)
        rows.append((row, int(slot[nb.SLOT_NDIM // 8]) & nb.RANK_MASK if is_array else None))
    return rows


def _where(frame: Frame) -> str:
    """Return what messages call a call site."""
    name, *steps = str(frame.attributes.get("kernel")).split("\n")
    derived = "".join(f"the {step.partition(' ')[0]} of " for step in reversed(steps))
    return f"{derived}kernel {name!r} under JAX"


def _explain(frame: Frame, outcome: int, place: int) -> str:
    attributes = frame.attributes
    if outcome == nb.DRIVER_REFUSED and int(attributes["words"][0]) == nb.PLAN_MAGIC:
        name, said = cuda_driver.driver().describe(place)
        return f"numbridge: a graph of {_listed(attributes)} under JAX: the CUDA driver refused it: {name} ({place}): {said}"
    where, (name, *steps) = _where(frame), str(attributes.get("kernel")).split("\n")
    if outcome == nb.WRONG_WORDS:
        return f"numbridge: this call of {TARGET} carries no words of this version; export the program again"
    if outcome == nb.DRIVER_REFUSED:
        name, said = cuda_driver.driver().describe(place)
        return (
            f"numbridge: {where}: the CUDA driver refused the launch, or reports what an earlier one did: {name} ({place}): "
            f"{said}"
        )
    if outcome in (nb.UNKNOWN_KERNEL, nb.UNKNOWN_ON_CUDA):
        return f"numbridge: {where}: {_undeclared(name)}"
    if outcome == nb.RAISED:
        declared = () if steps else _declared.get(name, ())
        cause = raised_by(declared)
        found = ended_by(declared)
        if found is not None:
            return f"numbridge: {where}: {found}"
        return (
            f"numbridge: {where} raised an exception in one of its threads{says(cause)}. On the CPU a `raise` or `assert` in a "
            "kernel ends its launch"
        )
    if outcome == nb.WRONG_COUNT:
        passed = f"{len(frame.inputs)} operands and {len(frame.outputs)} results"
        return f"numbridge: {where}: XLA passed {passed}, which it does not take"
    return f"numbridge: {where}: {_wrong_buffer(frame, attributes['words'], outcome, place)}"


def _listed(attributes: Mapping[str, Any]) -> str:
    """Return the names of the kernels of a plan."""
    words, names, found = attributes["words"], attributes["kernel"].encode(), list[str]()
    step = nb.PLAN_STEPS // 8
    for _ in range(int(words[nb.PLAN_COUNT // 8])):
        start = int(words[step + nb.STEP_NAME // 8])
        spelled = names[start : start + int(words[step + nb.STEP_NAME_SIZE // 8])].decode()
        found.append(repr(spelled.partition("\n")[0]))
        step += int(words[step + nb.STEP_SIZE // 8]) // 8
    return f"kernels {', '.join(found)}"


def _wrong_buffer(frame: Frame, words: Any, outcome: int, place: int) -> str:
    slot = slots_of(words)[place]
    buffers = frame.outputs if slot[nb.SLOT_KIND // 8] == nb.RESULT else frame.inputs
    index = 0 if slot[nb.SLOT_KIND // 8] == nb.PACKED else int(slot[nb.SLOT_INDEX // 8])
    found: Buffer | str = buffers[index] if index < len(buffers) else "nothing"
    wanted = _NAMES.get(int(slot[nb.SLOT_TYPE // 8]), "?")
    levels, ranks = int(words[nb.WORD_LEVELS // 8]), int(slot[nb.SLOT_NDIM // 8])
    ndim = (ranks & nb.RANK_MASK) + (ranks >> nb.INNER_SHIFT)
    what = {nb.WRONG_TYPE: "element type", nb.WRONG_RANK: "rank", nb.WRONG_DIMS: "batch extents"}.get(outcome, "buffer")
    return (
        f"parameter {place}: wrong {what}: wanted {wanted} of {ndim} dimensions behind {levels} batch axes, got {found}"
    )
