"""``print`` in kernels on the CPU: numbers are written to the stack, from where `native.printing` hands them to Python.

Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbridge.kernels.arithmetic.narrow_floats import NarrowFloat
from numbridge.kernels.cpu_backend.printing import KINDS, NAMED, WORDS
from numbridge.kernels.element_types.numba_elements import NumbaElement

__all__ = ["numbers"]


def _kind(kind: Any) -> str:
    """Return the name of a number's kind."""
    match kind:
        case types.Boolean():
            return "bool"
        case types.Integer():
            return "int" if kind.signed else "uint"
        case types.Float():
            return "float64" if kind == types.float64 else "float32"
        case types.Complex():
            return str(kind.name)
    raise TypingError(f"print takes numbers, vectors, matrices and plain strings, and this is {kind}")


def _parts(context: Any, builder: Any, kind: Any, value: Any) -> list[tuple[int, list[Any]]]:
    """Return the kind and the words of a number, or of an element and of each of its components."""
    if isinstance(kind, NumbaElement):
        # The number of its type would be that of this process, and other processes run this code, too.
        name = context.insert_const_string(builder.module, kind.element.__name__)
        whole: list[tuple[int, list[Any]]] = [(NAMED + kind.element.count, [name])]
        for k in range(kind.element.count):
            whole += _parts(context, builder, kind.dtype, builder.extract_value(value, k))
        return whole
    if isinstance(kind, NarrowFloat):
        kind, value = types.float32, context.cast(builder, value, kind, types.float32)
    name = _kind(kind)
    if name in ("bool", "int", "uint"):
        wide = types.int64 if name == "int" else types.uint64
        words = [context.cast(builder, value, kind, wide)]
    elif isinstance(kind, types.Complex):
        made = context.make_complex(builder, kind, value)
        words = [context.cast(builder, part, kind.underlying_float, types.float64) for part in (made.real, made.imag)]
    else:
        words = [context.cast(builder, value, kind, types.float64)]
    return [(KINDS[name], words)]


def _count(kind: Any) -> int:
    if isinstance(kind, NumbaElement):
        return 1 + int(kind.element.count)
    return 1 if _kind(kind) else 0


@intrinsic
def numbers(typing_context: Any, values: Any) -> Any:
    """Write to the stack how many numbers there are in a tuple, and these; return the address."""
    if not isinstance(values, types.BaseTuple):
        return None
    total = sum(_count(types.unliteral(kind)) for kind in values)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        block = cgutils.alloca_once(builder, word, size=1 + WORDS * total)
        builder.store(ir.Constant(word, total), block)
        place = 1
        for k, kind in enumerate(values):
            value = builder.extract_value(arguments[0], k)
            for number, words in _parts(context, builder, types.unliteral(kind), value):
                for offset, part in enumerate((ir.Constant(word, number), *words)):
                    target = builder.gep(block, [ir.Constant(word, place + offset)])
                    builder.store(part, builder.bitcast(target, part.type.as_pointer()))
                place += WORDS
        return builder.ptrtoint(block, word)

    return types.int64(values), generate
