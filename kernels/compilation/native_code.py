"""Native functions as LLVM code, without Numba's analysis of bytecode, which takes most of the first launch on a machine.

Native functions are Python that reads like C: numbers, loads and stores, calls of each other. `typed_text` types and builds
most of that; here is what a person writes and a generator does not: returns and loop exits anywhere, ``and`` and ``or`` that
stop early, several names at once. Nothing in them raises. A function with anything else in it is left to Numba. Importing this
module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import sigutils
from numba.core.callconv import create_error_model
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.registry import CPUDispatcher, cpu_target

from numbridge.kernels.compilation.masked_loads import optimized
from numbridge.kernels.compilation.resolved_calls import resolved_once
from numbridge.kernels.compilation.typed_text import Expression, Frame, Step, Text, UnknownError
from numbridge.kernels.language.parsing import parsed

__all__ = ["Exported", "native_library", "typed_exports"]

_Condition = Callable[[Frame], Any]


@dataclass(frozen=True)
class Exported:
    """A native function that is typed, and how C knows it."""

    text: _NativeText
    kinds: Sequence[Any]
    result: Any

    def declare(self, context: Any, module: Any, symbol: str) -> Any:
        """Add the function to a module, without what it does."""
        result = ir.VoidType() if self.result == types.void else context.get_value_type(self.result)
        kind = ir.FunctionType(result, [context.get_value_type(kind) for kind in self.kinds])
        function = ir.Function(module, kind, symbol)
        function.attributes.add("nounwind")
        return function

    def define(self, context: Any, function: Any) -> None:
        """Add what the function does."""
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        value = self.text.call(context, builder, function.args)
        if self.result == types.void:
            builder.ret_void()
        else:
            builder.ret(context.cast(builder, value, self.text.result, self.result))


def typed_exports(exports: Mapping[str, tuple[Any, str]]) -> dict[str, Exported] | None:
    """Return functions that Numba need not analyse, or None if there is one that only Numba can compile.

    Parameters
    ----------
    exports : mapping
        Symbol -> (function, Numba signature).
    """
    found = {}
    with resolved_once(cpu_target.typing_context):
        cpu_target.typing_context.refresh()
        for symbol, (function, signature) in exports.items():
            kinds, result = sigutils.normalize_signature(signature)
            try:
                found[symbol] = Exported(_texts(function, kinds), kinds, result)
            except (UnknownError, NumbaError):
                return None
    return found


def native_library(exports: Mapping[str, Exported]) -> Any:
    """Compile native functions into one library of Numba's, each under its symbol.

    Together, so that what several of them call is compiled once. Each may ask for the address of another by its symbol.
    """
    context = cpu_target.target_context
    # Dividing by zero gives what NumPy gives: nothing in native functions raises.
    context = context.subtarget(error_model=create_error_model("numpy", context), enable_nrt=False)
    library = _NativeLibrary(context.codegen(), "numbridge")
    library.enable_object_caching()
    module = library.create_ir_module("numbridge")
    # Declared first: who asks for an address must find the function and not a name outside.
    functions = [export.declare(context, module, symbol) for symbol, export in exports.items()]
    with global_compiler_lock, context.push_code_library(library):
        for function, export in zip(functions, exports.values(), strict=True):
            export.define(context, function)
        library.add_ir_module(module)
        library.finalize()
    return library


class _NativeLibrary(JITCodeLibrary):
    """A library of Numba's for which LLVM's passes run once.

    Numba has them run twice, and before that over each function, to find counts of references that cancel each other. In native
    functions none are counted.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        optimized(self, self._optimize_once)

    def _optimize_once(self) -> None:
        passes, how = self._codegen._module_pass_manager()
        passes.run(self._final_module, how)


@functools.cache
def _texts(function: Any, kinds: tuple[Any, ...]) -> _NativeText:
    """Return a function, read for some types of arguments."""
    if not isinstance(function, CPUDispatcher) or not function.targetoptions.get("no_rewrites"):
        raise UnknownError
    python = function.py_func
    tree = parsed(textwrap.dedent(inspect.getsource(python))).body[0]
    names = python.__globals__ | dict(inspect.getclosurevars(python).nonlocals)
    if not isinstance(tree, ast.FunctionDef) or len(tree.args.args) != len(kinds) or tree.args.defaults:
        raise UnknownError
    text = _NativeText(tree, kinds, names, f"{python.__module__}.{python.__qualname__}")
    text.is_inlined = bool(function.targetoptions.get("forceinline"))
    text.read()
    return text


@dataclass
class _NativeFrame(Frame):
    """A function whose code is being built, and where its loops go on."""

    again: list[Any] = field(default_factory=list)


class _NativeText(Text):
    """A native function's text while it is read."""

    is_inlined = False

    def __init__(self, tree: ast.FunctionDef, kinds: Sequence[Any], names: dict[str, Any], name: str) -> None:
        super().__init__(tree, kinds, names)
        self.symbol = f"{name}({', '.join(map(str, kinds))})"
        self._returns: list[Any] = []
        stores = [part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
        several = {name for name, count in Counter([*stores, *self._parameters]).items() if count > 1}
        # What is assigned together with others has a place in memory.
        self._constant -= several | set(_assigned_together(tree))

    def read(self) -> None:
        """Type everything."""
        super().read()
        kinds = {types.unliteral(kind) for kind in self._returns}
        if len(kinds) > 1:
            unified = self._context.unify_types(*kinds)
            if not isinstance(unified, types.Number):
                raise UnknownError
            kinds = {unified}
        self.result = next(iter(kinds), types.none)
        if self.result != types.none and not _ends(self.tree.body):
            raise UnknownError

    def call(self, context: Any, builder: Any, arguments: Sequence[Any]) -> Any:
        """Build a call of the function, which is added to the module if it is not there."""
        function = builder.module.globals.get(self.symbol) or self.define(context, builder.module)
        value = builder.call(function, arguments)
        return context.get_dummy_value() if self.result == types.none else value

    def define(self, context: Any, module: Any) -> Any:
        """Add the function to a module."""
        result = ir.VoidType() if self.result == types.none else context.get_value_type(self.result)
        kind = ir.FunctionType(result, [context.get_value_type(kind) for kind in self.kinds])
        function = ir.Function(module, kind, self.symbol)
        function.linkage = "internal"
        function.attributes.add("nounwind")
        if self.is_inlined:
            function.attributes.add("alwaysinline")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        frame = _NativeFrame(context, builder, dict(zip(self._parameters, function.args, strict=True)), {})
        self._begin(frame)
        _run(self._steps, frame)
        if not builder.block.is_terminated:
            builder.ret_void() if self.result == types.none else builder.unreachable()
        return function

    # Statements

    def _statement(self, node: ast.stmt) -> list[Step]:
        match node:
            case ast.Expr(ast.Constant()):
                return []
            case ast.Assign([ast.Tuple(targets)], value):
                return [self._assign_several([_name_of(target) for target in targets], value)]
            case ast.Assign([_, _, *_] as targets, value):
                made = self._expression(value)
                return [self._assign(_name_of(target), made) for target in targets]
            case ast.Return(value):
                return [self._return(value)]
            case ast.Break():
                return [lambda frame: frame.builder.branch(frame.leave[-1])]
            case ast.Continue():
                return [lambda frame: frame.builder.branch(frame.again[-1])]
        return super()._statement(node)

    def _assign_several(self, names: Sequence[str], value: ast.expr) -> Step:
        if isinstance(value, ast.Tuple):
            parts = [self._expression(part) for part in value.elts]
            kinds = [part.type for part in parts]
        else:
            whole = self._expression(value)
            parts, kinds = [], list(whole.type) if isinstance(whole.type, types.BaseTuple) else []
        if len(kinds) != len(names):
            raise UnknownError
        declared = [self._declared(name, kind) for name, kind in zip(names, kinds, strict=True)]

        def build(frame: Frame) -> None:
            if parts:
                values = [part.build(frame) for part in parts]
            else:
                made = whole.build(frame)
                values = [frame.builder.extract_value(made, k) for k in range(len(names))]
            for name, one, kind, wanted in zip(names, values, kinds, declared, strict=True):
                frame.builder.store(frame.cast(one, kind, wanted), frame.places[name])

        return build

    def _return(self, value: ast.expr | None) -> Step:
        if value is None:
            return lambda frame: frame.builder.ret_void()
        made = self._expression(value)
        self._returns.append(made.type)

        def build(frame: Frame) -> None:
            frame.builder.ret(frame.cast(made.build(frame), made.type, self.result))

        return build

    def _if(self, node: ast.If) -> Step:
        condition = self._condition(node.test)
        then, orelse = self._block(node.body), self._block(node.orelse)

        def build(frame: Frame) -> None:
            with frame.builder.if_else(condition(frame)) as (yes, no):
                with yes:
                    _run(then, frame)
                with no:
                    _run(orelse, frame)

        return build

    def _while(self, node: ast.While) -> Step:
        if node.orelse:
            raise UnknownError
        condition, steps = self._condition(node.test), self._block(node.body)

        def build(frame: Frame) -> None:
            builder = frame.builder
            head, inside, after = (builder.append_basic_block(f"loop.{name}") for name in ("head", "inside", "after"))
            builder.branch(head)
            builder.position_at_end(head)
            builder.cbranch(condition(frame), inside, after)
            builder.position_at_end(inside)
            _run_loop(steps, frame, head, after)

        return build

    def _for(self, name: str, bounds: Sequence[ast.expr], body: Sequence[ast.stmt]) -> Step:
        found = [self._expression(bound) for bound in bounds]
        step = found[2].number if len(found) == 3 else 1
        if not step or any(types.unliteral(bound.type) != types.int64 for bound in found):
            raise UnknownError
        start = found[0] if len(found) > 1 else self._number(0)
        stop = found[0] if len(found) == 1 else found[1]
        if self._declared(name, types.int64) != types.int64:
            raise UnknownError
        constant = name in self._constant
        steps = self._block(body)
        word = ir.IntType(64)

        def build(frame: Frame) -> None:
            builder = frame.builder
            first, last = (frame.cast(b.build(frame), b.type, types.int64) for b in (start, stop))
            before = builder.block
            head, inside, latch, after = (
                builder.append_basic_block(f"loop.{part}") for part in ("head", "inside", "next", "after")
            )
            builder.branch(head)
            builder.position_at_end(head)
            counter = builder.phi(word)
            counter.add_incoming(first, before)
            builder.cbranch(builder.icmp_signed("<" if step > 0 else ">", counter, last), inside, after)
            builder.position_at_end(latch)
            counter.add_incoming(builder.add(counter, word(step), flags=("nsw",)), latch)
            builder.branch(head)
            builder.position_at_end(inside)
            if constant:
                frame.values[name] = counter
            else:
                builder.store(counter, frame.places[name])
            _run_loop(steps, frame, latch, after)

        return build

    # Expressions

    def _expression(self, node: ast.expr) -> Expression:
        match node:
            case ast.Constant(str() as value):
                return Expression(types.literal(value), lambda frame: frame.context.get_dummy_value())
            case ast.BoolOp() | ast.UnaryOp(ast.Not()):
                return Expression(types.boolean, self._condition(node, strict=True))
            case ast.Compare(_, [_, _, *_]):
                return Expression(types.boolean, self._condition(node))
        return super()._expression(node)

    def _condition(self, node: ast.expr, *, strict: bool = False) -> _Condition:
        """Return what builds a condition; a `strict` one is a value too, so that its parts must be conditions."""
        match node:
            case ast.BoolOp(op, parts):
                conditions = [self._condition(part, strict=strict) for part in parts]
                return lambda frame: _stopping_early(frame, conditions, isinstance(op, ast.And))
            case ast.UnaryOp(ast.Not(), operand):
                condition = self._condition(operand)
                return lambda frame: frame.builder.not_(condition(frame))
            case ast.Compare(left, [_, _, *_] as ops, right):
                if not all(isinstance(part, ast.Name | ast.Constant | ast.Attribute) for part in right[:-1]):
                    raise UnknownError
                pairs = zip([left, *right], ops, right, strict=False)
                conditions = [self._condition(ast.copy_location(ast.Compare(a, [op], [b]), node)) for a, op, b in pairs]
                return lambda frame: _stopping_early(frame, conditions, True)
        if strict and self._expression(node).type != types.boolean:
            raise UnknownError
        return super()._condition(node)

    def _global(self, value: Any) -> Expression:
        return self._number(value) if isinstance(value, bool | int) else super()._global(value)

    def _chosen(self, frame: Frame, condition: _Condition, sides: Sequence[Expression], kind: Any) -> Any:
        """Build the one of two values that a condition says, and not the other."""
        builder = frame.builder
        then, orelse, after = (builder.append_basic_block(f"choice.{name}") for name in ("then", "else", "after"))
        builder.cbranch(condition(frame), then, orelse)
        made = []
        for block, side in zip((then, orelse), sides, strict=True):
            builder.position_at_end(block)
            made.append((frame.cast(side.build(frame), side.type, kind), builder.block))
            builder.branch(after)
        builder.position_at_end(after)
        value = builder.phi(frame.context.get_value_type(kind))
        for one, block in made:
            value.add_incoming(one, block)
        return value

    def _resolved(self, function: Any, arguments: Sequence[Expression]) -> Expression:
        if function is min or function is max:
            return self._extreme("<" if function is min else ">", arguments)
        if isinstance(function, CPUDispatcher) and function.targetoptions.get("no_rewrites"):
            callee = _texts(function, tuple(types.unliteral(a.type) for a in arguments))

            def build(frame: Frame) -> Any:
                values = [
                    frame.cast(a.build(frame), a.type, kind) for a, kind in zip(arguments, callee.kinds, strict=True)
                ]
                return callee.call(frame.context, frame.builder, values)

            return Expression(callee.result, build)
        return super()._resolved(function, arguments)

    def _signature(self, kind: Any, arguments: tuple[Any, ...]) -> Any:
        return _numba_signature(kind, arguments)

    def _extreme(self, comparison: str, arguments: Sequence[Expression]) -> Expression:
        """Return the least or the greatest of some integers; Numba's own would have to be able to raise."""
        if any(types.unliteral(a.type) != types.int64 for a in arguments):
            raise UnknownError

        def build(frame: Frame) -> Any:
            values = [frame.cast(a.build(frame), a.type, types.int64) for a in arguments]
            builder, found = frame.builder, values[0]
            for value in values[1:]:
                found = builder.select(builder.icmp_signed(comparison, value, found), value, found)
            return found

        return Expression(types.int64, build)


@functools.cache
def _numba_signature(kind: Any, arguments: tuple[Any, ...]) -> Any:
    """Return what Numba makes of a call; native functions make the same ones over and over."""
    return cpu_target.typing_context.resolve_function_type(kind, arguments, {})


def _assigned_together(tree: ast.AST) -> Iterator[str]:
    for part in ast.walk(tree):
        match part:
            case ast.Assign([ast.Name()]):
                pass
            case ast.Assign(targets):
                for target in targets:
                    yield from (inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name))


def _name_of(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise UnknownError
    return node.id


def _ends(body: Sequence[ast.stmt]) -> bool:
    """Tell whether nothing goes on after a block."""
    match body[-1]:
        case ast.Return():
            return True
        case ast.If(_, then, orelse):
            return bool(orelse) and _ends(then) and _ends(orelse)
        case ast.While(ast.Constant(True)) as loop:
            return not any(isinstance(part, ast.Break) for part in ast.walk(loop))
    return False


def _run(steps: Sequence[Step], frame: Frame) -> None:
    """Build a block's statements, as far as they are reached."""
    for step in steps:
        if frame.builder.block.is_terminated:
            return
        step(frame)


def _run_loop(steps: Sequence[Step], frame: Any, again: Any, after: Any) -> None:
    """Build the body of a loop; what follows comes after it."""
    frame.leave.append(after)
    frame.again.append(again)
    _run(steps, frame)
    frame.leave.pop()
    frame.again.pop()
    if not frame.builder.block.is_terminated:
        frame.builder.branch(again)
    frame.builder.position_at_end(after)


def _stopping_early(frame: Frame, conditions: Sequence[_Condition], all_of: bool) -> Any:
    """Build conditions of which each is looked at only if those before it do not decide."""
    builder, decided = frame.builder, []
    after = builder.append_basic_block("decided")
    for condition in conditions[:-1]:
        value, following = condition(frame), builder.append_basic_block("and" if all_of else "or")
        decided.append((ir.Constant(ir.IntType(1), not all_of), builder.block))
        builder.cbranch(value, *((following, after) if all_of else (after, following)))
        builder.position_at_end(following)
    decided.append((conditions[-1](frame), builder.block))
    builder.branch(after)
    builder.position_at_end(after)
    result = builder.phi(ir.IntType(1))
    for value, block in decided:
        result.add_incoming(value, block)
    return result
