"""Calls that few numbers need, in loops that LLVM vectorises all the same.

LLVM vectorises no loop with a call, unless it is told of a function that does the same to many numbers at once. It is told of one
for more numbers than any vector has. So it calls the plain function, for one number after another, and only for those for which
the call stands in the source; the others pass as many branches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from numbridge.kernels.arithmetic.llvm_numbers import Real

__all__ = ["else_called"]

_DOUBLE = ir.DoubleType()
_MANY = 4096


def else_called(usual: Real, is_rare: Any, function: Callable[..., Real], *arguments: Real) -> Real:
    """Return a number, or what a function has instead.

    Parameters
    ----------
    usual : Real
        The number.
    is_rare : llvmlite.ir.Value
        Whether the function is called; it seldom is.
    function : callable
        Builds the result from the arguments.
    *arguments : Real
        The arguments.
    """
    builder, before = usual.builder, usual.builder.block
    with builder.if_then(is_rare, likely=False):
        called = builder.call(_rarely_called(builder.module, function, len(arguments)), [x.value for x in arguments])
        there = builder.block
    result = builder.phi(_DOUBLE)
    result.add_incoming(usual.value, before)
    result.add_incoming(called, there)
    return Real(builder, result)


def _rarely_called(module: Any, function: Callable[..., Real], count: int) -> Any:
    """Return a function of a module, which LLVM does not build into the loops that call it."""
    symbol = f"_nb_rarely_{function.__name__}"
    if symbol in module.globals:
        return module.globals[symbol]
    made = ir.Function(module, ir.FunctionType(_DOUBLE, [_DOUBLE] * count), symbol)
    made.linkage = "linkonce_odr"  # an internal one could lose arguments, which LLVM has been told of
    # What is not optimised is compiled sooner.
    for attribute in ("cold", "noinline", "nounwind", "optnone", "readnone"):
        made.attributes.add(attribute)
    # llvmlite's own `add` knows no others. A function of many numbers has to be in the module, of whatever type.
    set.add(made.attributes, "willreturn")
    set.add(made.attributes, f'"vector-function-abi-variant"="_ZGV_LLVM_M{_MANY}{"v" * count}_{symbol}({symbol})"')
    builder = ir.IRBuilder(made.append_basic_block("entry"))
    builder.ret(function(*(Real(builder, argument) for argument in made.args)).value)
    return made
