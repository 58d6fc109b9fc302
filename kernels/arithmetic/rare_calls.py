"""Calls of the C library that few numbers need, in loops that LLVM vectorises all the same.

LLVM vectorises no loop with a call, unless it is told of a function that does the same to many numbers at once. It is told of one
for more numbers than any vector has. So it calls the plain function, for one number after another, and only for those for which
the call stands in the source; the others pass as many branches.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbridge.kernels.arithmetic.llvm_numbers import Real

__all__ = ["else_from_library"]

_DOUBLE = ir.DoubleType()
_MANY = 4096


def else_from_library(usual: Real, is_rare: Any, name: str, x: Real) -> Real:
    """Return a number, or what the C library has instead.

    Parameters
    ----------
    usual : Real
        The number.
    is_rare : llvmlite.ir.Value
        Whether the C library is asked; it seldom is.
    name : str
        Which of its functions.
    x : Real
        The argument.
    """
    builder, before = usual.builder, usual.builder.block
    with builder.if_then(is_rare, likely=False):
        called = builder.call(_rarely_called(builder.module, name), [x.value])
        there = builder.block
    result = builder.phi(_DOUBLE)
    result.add_incoming(usual.value, before)
    result.add_incoming(called, there)
    return Real(builder, result)


def _rarely_called(module: Any, name: str) -> Any:
    """Return a function that calls one of the C library, and reads and writes nothing as far as LLVM knows."""
    symbol = f"_nb_rarely_{name}"
    if symbol in module.globals:
        return module.globals[symbol]
    kind = ir.FunctionType(_DOUBLE, [_DOUBLE])
    function = ir.Function(module, kind, symbol)
    function.linkage = "internal"
    for attribute in ("cold", "noinline", "nounwind", "readnone"):
        function.attributes.add(attribute)
    # llvmlite's own `add` knows no others. A function of many numbers has to be in the module, of whatever type.
    set.add(function.attributes, "willreturn")
    set.add(function.attributes, f'"vector-function-abi-variant"="_ZGV_LLVM_M{_MANY}v_{symbol}({symbol})"')
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    library = module.globals.get(name) or ir.Function(module, kind, name)
    builder.ret(builder.call(library, function.args))
    return function
