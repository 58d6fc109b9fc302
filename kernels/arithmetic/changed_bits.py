"""Whether a store changes any bit of what is held: what the intrinsic of that name does on the CPU and on CUDA."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

__all__ = ["differs"]


def differs(typing_context: Any, held: Any, new: Any) -> Any:
    """Tell whether storing a number where another is held changes any bit."""
    kind = types.unliteral(held)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def bits(value: Any) -> Any:
            width = {ir.HalfType: 16, ir.FloatType: 32, ir.DoubleType: 64}.get(type(value.type))
            return value if width is None else builder.bitcast(value, ir.IntType(width))

        stored = context.cast(builder, arguments[1], signature.args[1], kind)
        return builder.icmp_unsigned("!=", bits(arguments[0]), bits(stored))

    return types.boolean(kind, types.unliteral(new)), generate
