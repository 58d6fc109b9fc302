"""Checked indices on the CPU: an index that an array has not ends the launch, after it was written down.

`kernels.bounds` says where and what it was. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from numbridge.kernels.cpu_backend.bounds import AXIS, EXTENT, INDEX, SITE
from numbridge.kernels.element_types.numba_elements import NumbaElement

__all__ = ["check_index", "checked", "having"]

_WORD = ir.IntType(64)


@intrinsic
def checked(typing_context: Any, array: Any, index: Any, axis: Any, site: Any) -> Any:
    """Return an index that was found to be one of an array's, or an element's, from `axis` on; others are not checked."""
    if not isinstance(axis, types.IntegerLiteral):
        return None  # Numba comes back with the literal
    kinds = list(index) if isinstance(index, types.BaseTuple) else [index]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape = _extents(context, builder, array, arguments[0])
        values = cgutils.unpack_tuple(builder, arguments[1]) if kinds != [index] else [arguments[1]]
        for k, (kind, value) in enumerate(zip(kinds, values, strict=True), axis.literal_value):
            if isinstance(kind, types.Integer) and k < len(shape):
                _check(context, builder, kind, value, shape[k], arguments[3], ir.Constant(_WORD, k))
        return arguments[1]

    return types.unliteral(index)(array, index, axis, site), generate


@intrinsic
def having(typing_context: Any, array: Any, index: Any, axis: Any, site: Any) -> Any:
    """Return an array, or an element, that was found to have an index along an axis; what is neither is not checked."""
    if not isinstance(axis, types.IntegerLiteral):
        return None  # Numba comes back with the literal
    number = axis.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape = _extents(context, builder, array, arguments[0])
        if isinstance(index, types.Integer) and number < len(shape):
            along = ir.Constant(_WORD, number)
            _check(context, builder, types.unliteral(index), arguments[1], shape[number], arguments[3], along)
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return array(array, index, axis, site), generate


@intrinsic
def check_index(typing_context: Any, extent: Any, index: Any, axis: Any, site: Any) -> Any:
    """Check that an index is one of an axis, whose extent is known."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        length, number = (context.cast(builder, arguments[k], (extent, index, axis)[k], types.int64) for k in (0, 2))
        _check(context, builder, types.unliteral(index), arguments[1], length, arguments[3], number)
        return context.get_dummy_value()

    return types.none(extent, index, axis, site), generate


def _extents(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Array):
        return cgutils.unpack_tuple(builder, context.make_array(kind)(context, builder, value).shape, kind.ndim)
    return [ir.Constant(_WORD, extent) for extent in kind.element.extents] if isinstance(kind, NumbaElement) else []


def _check(context: Any, builder: Any, kind: Any, value: Any, extent: Any, site: Any, axis: Any) -> None:
    wide = context.cast(builder, value, kind, types.int64 if kind.signed else types.uint64)
    # Seen as unsigned, a negative number is beyond every extent.
    outside = builder.icmp_unsigned(">=", wide, extent)
    if kind.signed:
        last = builder.icmp_unsigned(">=", builder.add(wide, extent), extent)
        outside = builder.and_(outside, last)
    with builder.if_then(outside, likely=False):
        _write_down(builder, site, axis, wide, extent)
        context.call_conv.return_user_exc(builder, IndexError, ("an index is out of range",))


def _write_down(builder: Any, site: Any, axis: Any, index: Any, extent: Any) -> None:
    """Keep what is wrong, if no other thread was first."""
    name = "numbridge_bounds"
    known = builder.module.globals.get(name)
    place = known if known is not None else ir.GlobalVariable(builder.module, ir.ArrayType(_WORD, 4), name)
    words = builder.bitcast(place, _WORD.as_pointer())
    free = builder.cmpxchg(words, ir.Constant(_WORD, 0), site, "monotonic")
    with builder.if_then(builder.extract_value(free, 1)):
        for offset, word in ((AXIS, axis), (INDEX, index), (EXTENT, extent)):
            builder.store(word, builder.gep(words, [ir.Constant(_WORD, offset)]))
    assert SITE == 0
