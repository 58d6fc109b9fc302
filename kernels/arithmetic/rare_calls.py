"""Calls that few numbers need, in loops that LLVM vectorises all the same.

LLVM vectorises no loop with a call, unless it is told of a function that does the same to many numbers at once. Those that it is
told of here call the plain function for one number after another, and only for those for which the call stands in the source:
where none needs it, a vector passes one test. A branch for each number would keep LLVM busy for half a minute, most of it with
registers, where there are a hundred such calls, as in four stages of a double pendulum.

Vectors of other widths do pass a branch for each number: LLVM is told of a function for more numbers than any vector has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir

from numbridge.kernels.arithmetic.llvm_numbers import Real

__all__ = ["else_called"]

_DOUBLE, _BIT, _WORD = ir.DoubleType(), ir.IntType(1), ir.IntType(64)
_WIDTHS, _MANY = (2, 4, 8), 4096


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
    return Real(builder, _phi(builder, {before: usual.value, there: called}))


def _rarely_called(module: Any, function: Callable[..., Real], count: int) -> Any:
    """Return a function of a module, which LLVM does not build into the loops that call it."""
    symbol = f"_nb_rarely_{function.__name__}"
    if symbol in module.globals:
        return module.globals[symbol]
    # An internal one could lose arguments, which LLVM has been told of.
    made = _function(module, symbol, ir.FunctionType(_DOUBLE, [_DOUBLE] * count), "linkonce_odr")
    for attribute in ("cold", "optnone"):  # what is not optimised is compiled sooner
        made.attributes.add(attribute)
    # A function of many numbers has to be in the module, of whatever type.
    variants = {width: _of_vectors(made, width) for width in _WIDTHS} | {_MANY: made}
    known = (f"_ZGV_LLVM_M{width}{'v' * count}_{symbol}({variant.name})" for width, variant in variants.items())
    set.add(made.attributes, f'"vector-function-abi-variant"="{",".join(known)}"')
    builder = ir.IRBuilder(made.append_basic_block("entry"))
    builder.ret(function(*(Real(builder, argument) for argument in made.args)).value)
    return made


def _of_vectors(plain: Any, width: int) -> Any:
    """Return a function of vectors that calls one of numbers where a mask says so; elsewhere its result is 0."""
    vector, mask = ir.VectorType(_DOUBLE, width), ir.VectorType(_BIT, width)
    kind = ir.FunctionType(vector, [*[vector] * len(plain.args), mask])
    # One that could be left out would be, since nothing calls it until loops become vectors.
    made = _function(plain.module, f"{plain.name}_{width}", kind, "weak_odr")
    *arguments, chosen = made.args
    entry, loop, call, after, end = map(made.append_basic_block, ("entry", "loop", "call", "after", "end"))
    builder, bits, zeros = ir.IRBuilder(entry), ir.IntType(width), ir.Constant(vector, [0.0] * width)
    builder.cbranch(builder.icmp_unsigned("!=", builder.bitcast(chosen, bits), bits(0)), loop, end)
    builder.position_at_end(loop)
    place, before = builder.phi(_WORD), builder.phi(vector)
    builder.cbranch(builder.extract_element(chosen, place), call, after)
    builder.position_at_end(call)
    number = builder.call(plain, [builder.extract_element(argument, place) for argument in arguments])
    changed = builder.insert_element(before, number, place)
    builder.branch(after)
    builder.position_at_end(after)
    found = _phi(builder, {loop: before, call: changed})
    following = builder.add(place, _WORD(1))
    for phi, first, later in ((place, _WORD(0), following), (before, zeros, found)):
        phi.add_incoming(first, entry)
        phi.add_incoming(later, after)
    builder.cbranch(builder.icmp_unsigned("<", following, _WORD(width)), loop, end)
    builder.position_at_end(end)
    builder.ret(_phi(builder, {entry: zeros, after: found}))
    return made


def _function(module: Any, symbol: str, kind: Any, linkage: str) -> Any:
    """Return a new function that only computes, and stays one."""
    made = ir.Function(module, kind, symbol)
    made.linkage = linkage
    for attribute in ("noinline", "nounwind", "readnone"):
        made.attributes.add(attribute)
    set.add(made.attributes, "willreturn")  # llvmlite's own `add` knows no such attribute
    return made


def _phi(builder: Any, values: Mapping[Any, Any]) -> Any:
    """Return the value that comes with the block before."""
    made = builder.phi(next(iter(values.values())).type)
    for block, value in values.items():
        made.add_incoming(value, block)
    return made
