"""Divisions within what Numba makes of an operation on the CPU: infinities and NaN there, as in the kernel itself.

Of ``x ** -1`` Numba makes a function, and compiles it with Python's errors whatever its caller has: at zero it raised,
and ended a launch that CUDA and NumPy finish. The remainder of the least integer by -1, of which the code for NumPy's functions
alone does not take care, ended the process. So did divisors such as ``w * 4`` that overflow to zero: LLVM knows of signed
integers that they do not overflow, hence that ``w`` is zero if this is. What else differs there from NumPy and Python is put
right, too. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.ir import instructions
from numba import types
from numba.core import targetconfig
from numba.core.compiler import Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np.ufunc_db import get_ufunc_info

from numbridge.kernels.arithmetic.float_divisions import (
    any_exponent,
    expm1,
    in_all_digits,
    of_operation,
    spacing,
    zero_powers,
)
from numbridge.kernels.arithmetic.replaced_code import (
    INTEGER_LOOPS,
    INTEGER_OPERATIONS,
    Change,
    Generate,
    always,
    has_both_signs,
    loops_replaced,
    replaced,
)

__all__ = ["divided_as_kernels"]

# What was compiled so, apart from what Numba keeps for everybody under the same keys.
_compiled: dict[Any, Any] = {}


@contextmanager
def divided_as_kernels() -> Iterator[None]:
    """Let what Numba compiles for an operation have the error model of its caller, for which Numba has no option."""
    context = cpu_target.target_context
    owner = type(context)
    with global_compiler_lock:
        original, kept = owner._compile_subroutine_no_cache, context.cached_internal_func

        def compile_subroutine(
            self: Any, builder: Any, impl: Any, sig: Any, locals: Any = None, flags: Any = None
        ) -> Any:
            if flags is None and not self.error_model.raise_on_fp_zero_division:
                flags = _flags(nrt=_may_allocate())
            return original(self, builder, impl, sig, locals=locals, flags=flags)

        owner._compile_subroutine_no_cache, context.cached_internal_func = compile_subroutine, _compiled
        try:
            with (
                replaced(context, _OPERATIONS),
                loops_replaced(get_ufunc_info, _LOOPS),
                # What is asked for outside of a function that Numba compiles has no caller.
                targetconfig.ConfigStack().enter(_flags(nrt=False)),
            ):
                yield
        finally:
            owner._compile_subroutine_no_cache, context.cached_internal_func = original, kept


def _flags(*, nrt: bool) -> Flags:
    """Return Numba's flags for a function with NumPy's errors, which may allocate or not."""
    flags = Flags()
    flags.error_model = "numpy"
    flags.nrt = nrt
    return flags


def _may_allocate() -> bool:
    """Tell whether the function that is compiled may allocate."""
    stack = targetconfig.ConfigStack()
    return bool(stack and stack.top().is_set("nrt") and stack.top().nrt)


def _settled(generate: Generate) -> Generate:
    """Return code for divisions that takes the divisor for one number.

    What has overflowed is no number to LLVM, and may be another in each place: not zero where that is asked, and zero where it
    divides.
    """

    def settled(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number, divisor = values
        return generate(context, builder, signature, (number, _frozen(builder, divisor)))

    return settled


def _frozen(builder: Any, value: Any) -> Any:
    """Return a number that is the same wherever it is used.

    Nor may a branch on it tell LLVM that nothing has overflowed, so the products that it is made of wrap around. Of sums it need
    not be said: whether one is zero is seen from its summands, also where it wraps around.
    """
    if isinstance(value, ir.Constant):
        return value
    _let_wrap(builder.function, value)
    instruction = ir.Instruction(builder.block, value.type, "freeze", [value])  # for which llvmlite has no method
    builder._insert(instruction)
    return instruction


def _let_wrap(function: Any, value: Any) -> None:
    """Let the products wrap around that a value of a function is made of, as far as its code is there."""
    stored: dict[int, list[Any]] | None = None
    known, ahead = {id(value)}, [value]
    while ahead:
        part = ahead.pop()
        if not isinstance(part, ir.Instruction):
            continue
        if part.opname in ("mul", "shl"):
            part.flags = []
        found = part.operands
        if isinstance(part, instructions.LoadInstr):
            stored = _stored(function) if stored is None else stored
            found = stored.get(id(part.operands[0]), [])
        for operand in found:
            if id(operand) not in known:
                known.add(id(operand))
                ahead.append(operand)


def _stored(function: Any) -> dict[int, list[Any]]:
    """Return what is stored at each place, by the identity of the pointer."""
    found: dict[int, list[Any]] = {}
    for block in function.blocks:
        for instruction in block.instructions:
            if isinstance(instruction, instructions.StoreInstr):
                value, place = instruction.operands
                found.setdefault(id(place), []).append(value)
    return found


def _counted(generate: Generate) -> Generate:
    """Return code for ``range(start, stop, step)`` that can count its trips: it divides what lies between by the step."""

    def counted(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        start, stop, step = values
        if not isinstance(step, ir.Constant):
            step = _frozen(builder, step)
            between = builder.sub(_frozen(builder, stop), _frozen(builder, start))
            least = ir.Constant(between.type, -1 << (between.type.width - 1))
            downwards = builder.icmp_signed("==", step, step.type(-1))
            too_many = builder.and_(builder.icmp_signed("==", between, least), downwards)
            # Of so many trips nobody sees the last one.
            stop = builder.select(too_many, builder.add(stop, stop.type(1)), stop)
        return generate(context, builder, signature, [start, stop, step])

    return counted


def _with_step(generate: Generate) -> Generate:
    """Return code for slices whose step is one number, which is not zero if it was not when it was looked at."""

    def sliced(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if len(values) > 2:
            values = [*values[:2], _frozen(builder, values[2])]
        return generate(context, builder, signature, values)

    return sliced


def _of_neighbours(generate: Generate) -> Generate:
    """Return code for remainders of sums that divides where it must: most are indices next to the end, as in ``(i + 1) % n``."""

    def remainder(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = signature.return_type
        number, divisor = (
            context.cast(builder, value, given, kind) for value, given in zip(values, signature.args, strict=True)
        )
        is_sum = isinstance(number, ir.Instruction) and number.opname in ("add", "sub")
        if not kind.signed or not is_sum or isinstance(divisor, ir.Constant) or has_both_signs(signature.args):
            return generate(context, builder, signature, values)
        number, divisor = _frozen(builder, number), _frozen(builder, divisor)
        zero = number.type(0)
        is_less = builder.icmp_unsigned("<", number, divisor)
        moved = builder.select(
            builder.icmp_signed("<", number, zero), builder.add(number, divisor), builder.sub(number, divisor)
        )
        is_near = builder.or_(is_less, builder.icmp_unsigned("<", moved, divisor))
        is_near = builder.and_(is_near, builder.icmp_signed(">", divisor, zero))
        with builder.if_else(is_near, likely=True) as (near, far):
            with near:
                found, after_near = builder.select(is_less, number, moved), builder.block
            with far:
                divided, after_far = generate(context, builder, kind(kind, kind), (number, divisor)), builder.block
        result = builder.phi(found.type)
        result.add_incoming(found, after_near)
        result.add_incoming(divided, after_far)
        return result

    return remainder


def _then_settled(change: Change) -> Change:
    return lambda generate: _settled(change(generate))


def _remainder(generate: Generate) -> Generate:
    return _of_neighbours(_then_settled(INTEGER_OPERATIONS[operator.mod, *_INTEGERS])(generate))


_COMPLEX = (types.Complex, types.Complex)
_INTEGERS = (types.Integer, types.Integer)
_OPERATIONS: dict[tuple[Any, ...], Change] = {
    (round, types.Float, types.Integer): in_all_digits,
    **INTEGER_OPERATIONS,
    **{
        (operation, *_INTEGERS): _then_settled(INTEGER_OPERATIONS[operation, *_INTEGERS])
        for operation in (operator.floordiv, operator.ifloordiv, divmod)
    },
    **dict.fromkeys(((operation, *_INTEGERS) for operation in (operator.mod, operator.imod)), _remainder),
    **{(range, kind, kind, kind): _counted for kind in (types.int32, types.int64, types.uint64)},
    (slice, types.VarArg(types.Any)): _with_step,
    **{(operation, *_COMPLEX): zero_powers for operation in (operator.pow, operator.ipow, pow)},
}
_QUOTIENTS: dict[Any, dict[str, Change]] = {
    function: {"BHILQ": _settled}
    | {letters: _then_settled(change) for letters, change in INTEGER_LOOPS[function].items()}
    for function in (np.remainder, np.floor_divide, np.divmod, np.fmod)
}
_LOOPS: dict[Any, dict[str, Change]] = INTEGER_LOOPS | {
    np.remainder: _QUOTIENTS[np.remainder] | {"fd": always(of_operation(operator.mod))},
    np.floor_divide: _QUOTIENTS[np.floor_divide] | {"fd": always(of_operation(operator.floordiv))},
    np.divmod: _QUOTIENTS[np.divmod] | {"fd": always(of_operation(divmod))},
    np.fmod: _QUOTIENTS[np.fmod],
    np.power: INTEGER_LOOPS[np.power] | {"FD": always(of_operation(operator.pow))},
    np.spacing: {"fd": always(spacing)},
    np.expm1: {"FD": always(expm1)},
    np.ldexp: {"fd": any_exponent},
}
