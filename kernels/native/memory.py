"""Raw memory and C calls for the functions that Numba compiles: loads, stores, stack blocks, symbols, indirect calls.

Addresses are plain ``int64``. This is the only place that builds LLVM IR for memory; everything above it is Python
that reads like C. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_LLVM = {
    types.int8: I8,
    types.uint8: I8,
    types.int16: I16,
    types.uint16: I16,
    types.int32: I32,
    types.uint32: I32,
    types.int64: I64,
    types.uint64: I64,
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
}

# Native functions never touch Numba's runtime: they own no Numba memory, and run before it is initialised. Only compiled code
# calls them, so what Python and C would call them through is left out, and there are no array expressions to rewrite.
_options = {
    "_nrt": False,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "no_rewrites": True,
    # Numba would take what is not said here from who calls the function first, for everybody after that.
    "fastmath": False,
}
native = njit(**_options, forceinline=False)
# For what every launch runs through: LLVM does not inline large functions by itself.
inlined = njit(forceinline=True, **_options)


def _pointer(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, offset), kind.as_pointer())


def _loader(kind: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(_pointer(builder, arguments[0], arguments[1], _LLVM[kind]))

        return kind(types.int64, types.int64), generate

    return load


def _storer(kind: Any) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, offset: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[2], _pointer(builder, arguments[0], arguments[1], _LLVM[kind]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind), generate

    return store


load_i8, load_u8, load_i16, load_u16 = (_loader(k) for k in (types.int8, types.uint8, types.int16, types.uint16))
load_i32, load_u32, load_i64 = (_loader(k) for k in (types.int32, types.uint32, types.int64))
load_f32, load_f64 = _loader(types.float32), _loader(types.float64)
store_i8, store_i16 = _storer(types.int8), _storer(types.int16)
store_i32, store_u32, store_i64 = (_storer(k) for k in (types.int32, types.uint32, types.int64))
store_f32, store_f64 = _storer(types.float32), _storer(types.float64)


@intrinsic
def exchange_i64(typing_context: Any, address: Any, offset: Any, value: Any) -> Any:
    """Store a word and return what was there, in one step for all threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("xchg", _pointer(builder, arguments[0], arguments[1], I64), arguments[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def replace_i64(typing_context: Any, address: Any, offset: Any, expected: Any, value: Any) -> Any:
    """Store a word if what is there is as expected, in one step for all threads; return what was there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer(builder, arguments[0], arguments[1], I64)
        found = builder.cmpxchg(place, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(found, 0)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def stack(typing_context: Any, size: Any) -> Any:
    """Return the address of `size` bytes on the stack, 16-byte aligned, for the rest of the function."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = builder.alloca(I8, size=arguments[0])
        block.align = 16
        return builder.ptrtoint(block, I64)

    return types.int64(types.int64), generate


@intrinsic
def text(typing_context: Any, literal: Any) -> Any:
    """Return the address of a constant C string."""
    if not isinstance(literal, types.StringLiteral):
        return None
    value = literal.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(context.insert_const_string(builder.module, value), I64)

    return types.int64(literal), generate


def symbol(name: str) -> Any:
    """Return a compiled function that gives the address of the process-wide symbol `name`."""

    @intrinsic
    def address(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            module = builder.module
            known = module.globals.get(name)
            return builder.ptrtoint(known if known is not None else ir.GlobalVariable(module, I8, name), I64)

        return types.int64(), generate

    return address


def function_symbol(name: str) -> Any:
    """Return a compiled function that gives the address of the native function named `name`."""

    @intrinsic
    def address(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [I64])
            return builder.ptrtoint(cgutils.get_or_insert_function(builder.module, kind, name), I64)

        return types.int64(), generate

    return address


def external(name: str, result: Any, *arguments: Any) -> Any:
    """Return a C function of the process, callable from compiled code."""
    return types.ExternalFunction(name, result(*arguments))


def indirect(result: Any, count: int) -> Any:
    """Return ``call(address, *arguments)`` for a C function pointer that takes `count` 64-bit arguments."""
    names = [f"a{k}" for k in range(count)]
    parameters = [types.int64] * (count + 1)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType() if result == types.void else _LLVM[result], [I64] * count)
        value = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value() if result == types.void else value

    # An intrinsic's arity is that of its Python function, so the function is made for the arity.
    namespace: dict[str, Any] = {"answer": (result(*parameters), generate)}
    exec(f"def call(typing_context, address, {', '.join(names)}): return answer", namespace)
    return intrinsic(namespace["call"])
