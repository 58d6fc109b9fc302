"""Kernels that check for data races on the CPU: code that notes what each thread does, put in while Numba builds a kernel's text.

Numba builds the functions of such a text by a builder of instructions that puts a call of `native.accesses` before each load,
store and atomic operation whose address is not that of a variable. Functions that Numba compiles by themselves, those of NumPy
and of `numba.njit`, are compiled as ever: what they do is not noted. `kernels.cpu_backend.races` says what was found. Importing
this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, lowering
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typed_passes import NativeLowering
from numba.extending import intrinsic

from numbridge.kernels.cpu_backend import races
from numbridge.kernels.native import access_layout as at
from numbridge.kernels.native.memory import external
from numbridge.kernels.parameter_types import ArrayType, ParameterType

__all__ = ["NAMES", "NotingBuilder", "noting", "run_checked"]

_I32, _I64, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
_SIZES: dict[Any, int] = {ir.HalfType: 2, ir.FloatType: 4}
_MOST_LINES = (1 << at.LINE_BITS) - 1
# A value of more numbers than this, such as a large record, is noted byte by byte in a loop.
_MOST_PARTS = 64


class NotingBuilder(ir.IRBuilder):
    """A builder of instructions that has what they do to memory noted."""

    def __init__(self, block: Any, lower: Any, *, by_turns: bool) -> None:
        super().__init__(block)
        self._lower, self._by_turns = lower, by_turns
        self._own: Any = None

    def load(self, ptr: Any, *given: Any, **named: Any) -> Any:
        """Note a load, and build it."""
        self._note(ptr, ptr.type.pointee, at.READS)
        return super().load(ptr, *given, **named)

    def store(self, value: Any, ptr: Any, *given: Any, **named: Any) -> Any:
        """Note a store, and build it."""
        self._note(ptr, value.type, at.CHANGES, value)
        return super().store(value, ptr, *given, **named)

    def load_atomic(self, ptr: Any, *given: Any, **named: Any) -> Any:
        """Note an atomic operation, and build a load."""
        self._note(ptr, ptr.type.pointee, at.CHANGES_ATOMICALLY)
        return super().load_atomic(ptr, *given, **named)

    def atomic_rmw(self, op: Any, ptr: Any, *given: Any, **named: Any) -> Any:
        """Note an atomic operation, and build it."""
        self._note(ptr, ptr.type.pointee, at.CHANGES_ATOMICALLY)
        return super().atomic_rmw(op, ptr, *given, **named)

    def cmpxchg(self, ptr: Any, *given: Any, **named: Any) -> Any:
        """Note an atomic operation, and build it."""
        self._note(ptr, ptr.type.pointee, at.CHANGES_ATOMICALLY)
        return super().cmpxchg(ptr, *given, **named)

    def fence(self, *given: Any, **named: Any) -> Any:
        """Take what was done for ordered with what comes, and build a fence."""
        self._call("numbridge_races_forget")
        return super().fence(*given, **named)

    def begin_coroutine(self) -> None:
        """Keep in this function which thread it is."""
        state = self.module.globals.get("numbridge_races") or ir.GlobalVariable(self.module, _I64, "numbridge_races")
        self._own = super().load(self.gep(state, [_I64(at.CHECK_THREAD)]))

    def resume_coroutine(self, waited: int, group: Any) -> None:
        """Say that this thread goes on, after it has waited for something; with which lanes, stands at an address."""
        self._call("numbridge_races_resume", self._own, _I64(waited), super().load(group))

    def watch_shared(self, address: Any, size: Any, dtype: Any) -> None:
        """Have shared memory watched."""
        end, number = self.add(address, size), _number(self._lower.context, dtype)
        given = (address, end, _I64(at.IN_SHARED_MEMORY), _I64(number), _I64(0))
        self._call("numbridge_races_watch", *given, result=_I64)

    def _note(self, pointer: Any, kind: Any, did: int, value: Any = None) -> None:
        if _is_variable(pointer):
            return
        line = _I64(min(self._lower.loc.line, _MOST_LINES))
        if _count(kind) <= _MOST_PARTS:
            for place, part in self._parts(pointer, kind, value):
                bits = _I64(0) if part is None else self._bits(part)
                size = _size(place.type.pointee)
                self._call("numbridge_races_touch", self.ptrtoint(place, _I64), _I64(size), _I64(did), line, bits)
        else:
            # Which of its bytes a store changes is not told: each is taken for changed.
            size = self._lower.context.get_abi_sizeof(kind)
            with cgutils.for_range(self, _I64(size)) as loop:
                address = self.add(self.ptrtoint(pointer, _I64), loop.index)
                self._call("numbridge_races_touch", address, _I64(0), _I64(did), line, _I64(-1))
        if did == at.CHANGES_ATOMICALLY and self._by_turns:
            self._call("numbridge_races_forget")

    def _parts(self, pointer: Any, kind: Any, value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield where the numbers of a value lie, and these, if the value is known."""
        if not isinstance(kind, ir.types.Aggregate):
            yield pointer if pointer.type.pointee == kind else self.bitcast(pointer, kind.as_pointer()), value
            return
        for k, element in enumerate(kind.elements):
            part = None if value is None else self.extract_value(value, k)
            yield from self._parts(self.gep(pointer, [_I32(0), _I32(k)]), element, part)

    def _bits(self, value: Any) -> Any:
        kind = value.type
        if isinstance(kind, ir.PointerType):
            return self.ptrtoint(value, _I64)
        bits = value if isinstance(kind, ir.IntType) else self.bitcast(value, ir.IntType(8 * _size(kind)))
        return self.zext(bits, _I64) if bits.type.width < _I64.width else bits

    def _call(self, name: str, *arguments: Any, result: Any = _VOID) -> None:
        kind = ir.FunctionType(result, [_I64] * len(arguments))
        self.call(cgutils.get_or_insert_function(self.module, kind, name), arguments)


def _is_variable(pointer: Any) -> bool:
    """Tell whether a pointer is to a variable of the function or a constant, whose address no other thread has."""
    while isinstance(pointer, ir.instructions.GEPInstr | ir.instructions.CastInstr) and isinstance(
        pointer.operands[0].type, ir.PointerType
    ):
        pointer = pointer.operands[0]
    return isinstance(pointer, ir.instructions.AllocaInstr | ir.GlobalVariable)


def _count(kind: Any) -> int:
    """Return how many numbers a value is."""
    return sum(map(_count, kind.elements)) if isinstance(kind, ir.types.Aggregate) else 1


def _size(kind: Any) -> int:
    """Return the bytes of a number."""
    if isinstance(kind, ir.IntType):
        return max(int(kind.width) // 8, 1)
    return _SIZES.get(type(kind), 8)


def _number(context: Any, dtype: Any) -> int:
    """Return the bytes of each number of an element: 1 for records, and 0 for those whose fields overlap."""
    if isinstance(dtype, types.Record):
        ends = 0
        for offset, size in sorted(
            (field.offset, context.get_abi_sizeof(context.get_data_type(field.type))) for field in dtype.fields.values()
        ):
            if offset < ends:
                return 0
            ends = offset + size
        return 1
    kind = context.get_data_type(dtype)
    while isinstance(kind, ir.types.Aggregate):
        kind = kind.elements[0] if isinstance(kind, ir.BaseStructType) else kind.element
    return _size(kind)


@contextmanager
def noting(filename: str, *, by_turns: bool) -> Iterator[None]:
    """Have what functions of a generated file do to memory noted, while Numba compiles them.

    Parameters
    ----------
    filename : str
        The file.
    by_turns : bool
        Whether atomic operations order what threads do, as those of locks and queues.
    """

    class Lower(lowering.Lower):
        def setup_function(self, fndesc: Any) -> None:
            super().setup_function(fndesc)
            if self.func_ir.loc.filename == filename:
                self.builder = NotingBuilder(self.entry_block, self, by_turns=by_turns)
                self.call_helper = self.call_conv.init_call_helper(self.builder)

    with global_compiler_lock:
        before = NativeLowering.lowering_class
        NativeLowering.lowering_class = property(lambda _: Lower)
        try:
            yield
        finally:
            NativeLowering.lowering_class = before


@intrinsic
def _watch(typing_context: Any, array: Any, parameter: Any) -> Any:
    """Have the memory of an array watched."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, arguments[0])
        shape, strides = (cgutils.unpack_tuple(builder, given, array.ndim) for given in (view.shape, view.strides))
        low = builder.ptrtoint(view.data, _I64)
        high = builder.add(low, view.itemsize)
        for extent, stride in zip(shape, strides, strict=True):
            reach = builder.mul(builder.sub(extent, _I64(1)), stride)
            is_up = builder.icmp_signed(">", stride, _I64(0))
            high = builder.select(is_up, builder.add(high, reach), high)
            low = builder.select(is_up, low, builder.add(low, reach))
        number = _number(context, array.dtype)
        with builder.if_then(builder.icmp_signed(">", view.nitems, _I64(0))):
            kind = ir.FunctionType(_I64, [_I64] * 5)
            function = cgutils.get_or_insert_function(builder.module, kind, "numbridge_races_watch")
            row = builder.call(function, [low, high, arguments[1], _I64(number), _I64(array.ndim)])
            with builder.if_then(builder.icmp_signed("!=", row, _I64(0))):
                for first, values in ((at.ROW_SHAPE, shape), (at.ROW_STRIDES, strides)):
                    for k, value in enumerate(values[: at.ROW_MOST_DIMS], first):
                        place = builder.inttoptr(builder.add(row, _I64(8 * k)), _I64.as_pointer())
                        builder.store(value, place)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


_begin = external("numbridge_races_begin", types.int64, *[types.int64] * 3)
_end = external("numbridge_races_end", types.int64, types.int64)
# What the loops around a body call that checks.
NAMES: dict[str, Any] = {
    "_nb_next_thread": external("numbridge_races_thread", types.void),
    "_nb_next_block": external("numbridge_races_block", types.void, *[types.int64] * 3),
    "_nb_thread_of_block": external("numbridge_races_of_block", types.void, types.int64),
}


def run_checked(run: Any, symbol: str, names: Mapping[str, Any], parameters: Sequence[ParameterType], rank: int) -> Any:
    """Return the function that runs a launch and checks it: all of its threads, in the call for the first of them.

    Parameters
    ----------
    run : object
        What Numba's code calls for a range of threads.
    symbol : str
        What the native function is called.
    names : mapping
        The globals of the generated text.
    parameters : sequence of ParameterType
        The kernel's.
    rank : int
        How many thread indices it has.
    """
    arrays = [k for k, parameter in enumerate(parameters) if isinstance(parameter, ArrayType)]
    lines = [
        "def run_checked(block, geometry, first, last):",
        "    if first != 0:",
        "        return 0",
        f"    total = begin({races.place_of(symbol)}, geometry, {rank})",
        "    failed = 1",
        "    if total >= 0:",
        *(f"        watch(_nb_argument_{k}(block), {k})" for k in arrays),
        "        failed = run(block, geometry, 0, total)",
        "    return end(failed)",
    ]
    own = {"run": run, "begin": _begin, "end": _end, "watch": _watch}
    own |= {f"_nb_argument_{k}": names[f"_nb_argument_{k}"] for k in arrays}
    exec("\n".join(lines), own)
    return own["run_checked"]
