"""Text as LLVM code, without Numba's analysis of bytecode: what its author knows need not be found out.

In such text every name has one type, which its first assignment shows, and control flow is a handful of statements.
So one walk types it and another builds its code. What an operation means, its types and its machine code are Numba's, or
numba.cuda's, as everywhere; text with anything else in it is not known here, and left to them. Importing this module imports
Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import ast
import builtins
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, funcdesc, typing
from numba.core.cpu_options import FastMathOptions
from numba.core.fastmathpass import FastFloatBinOpVisitor, FastFloatCallVisitor
from numba.core.registry import cpu_target

__all__ = ["Expression", "Frame", "Step", "Text", "UnknownError", "assigned_once", "looping"]

_BINARY: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.MatMult: operator.matmul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_UNARY: dict[type[ast.AST], Any] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}


def _is_counted(name: str) -> bool:
    """Tell whether a parameter is a thread's index, its block or its place there."""
    return name.startswith("_nb_i") or (name[:5] in ("_nb_k", "_nb_t") and name[5:].isdigit())


class UnknownError(Exception):
    """The text has something that is not known here."""


@dataclass(frozen=True)
class Expression:
    """A type, and what builds the value; `number` is that of a constant in the text, or the object of a global name."""

    type: Any
    build: Callable[[Frame], Any]
    number: Any = None


Step = Callable[["Frame"], None]


@dataclass
class Frame:
    """A function whose code is being built.

    Attributes
    ----------
    values, places : dict
        What names hold, and where names that change lie.
    leave : list
        Where the loops around the code end, the innermost last.
    lane
        Which of the threads that run together the code is for; None if for all of them.
    near : dict
        Where the lane's own values of names lie that every lane has one of, if that is for the lane alone.
    active, mask
        Where it says which lanes are still in the loop, and whether this one is; None if all are.
    """

    context: Any
    builder: Any
    values: dict[str, Any]
    places: dict[str, Any]
    leave: list[Any] = field(default_factory=list)
    lane: Any = None
    near: dict[str, Any] = field(default_factory=dict)
    active: Any = None
    mask: Any = None

    def cast(self, value: Any, kind: Any, wanted: Any) -> Any:
        """Convert a value."""
        return value if kind == wanted else self.context.cast(self.builder, value, kind, wanted)


class Text:
    """A function's text while it is read."""

    def __init__(
        self,
        tree: ast.FunctionDef,
        kinds: Sequence[Any],
        names: Mapping[str, Any],
        *,
        fastmath: bool = False,
        typing_context: Any = None,
        nonnegative: Collection[str] = (),
    ) -> None:
        self.fastmath = FastMathOptions(fastmath)
        self.tree = tree
        self.kinds = kinds
        self.symbol = f"numbridge.{tree.name}"
        self.result: Any = types.none
        self.wide: set[int] = set()
        self._globals = names
        starred = [tree.args.vararg] if tree.args.vararg else []
        self._parameters = [argument.arg for argument in (*tree.args.args, *starred)]
        self._types: dict[str, Any] = dict(zip(self._parameters, kinds, strict=True))
        self._constant = assigned_once(tree, self._parameters)
        self._context = cpu_target.typing_context if typing_context is None else typing_context
        self._nonnegative = {name for name in self._types if name in self._constant and _is_counted(name)}
        self._nonnegative |= self._constant & {*nonnegative}
        self._returned: Expression | None = None
        self._steps: list[Step] = []

    @property
    def kinds_of_names(self) -> Mapping[str, Any]:
        """The types of all names, once the text is read."""
        return self._types

    @property
    def constant(self) -> Set[str]:
        """Names that are assigned in one place, and used only after it, within the same block."""
        return self._constant

    @property
    def nonnegative(self) -> Set[str]:
        """Integers that are known not to be negative, once the text is read."""
        return self._nonnegative

    def object_of(self, node: ast.expr) -> Any:
        """Return the object that a name, or a name of a module, stands for."""
        return self._object(node)

    def read(self) -> None:
        """Type everything."""
        self._steps = self._block(self.tree.body)

    def define(self, context: Any, module: Any) -> Any:
        """Add the function to a module."""
        convention = context.call_conv
        function = ir.Function(module, convention.get_function_type(self.result, self.kinds), self.symbol)
        function.linkage = "internal"
        convention.decorate_function(function, self._parameters, self.kinds)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        packer = context.get_arg_packer(self.kinds)
        values = packer.from_arguments(builder, convention.get_arguments(function))
        value = self.build(context, builder, values)
        convention.return_value(builder, context.get_return_value(builder, self.result, value))
        if self.fastmath:
            for visitor in (FastFloatBinOpVisitor, FastFloatCallVisitor):
                visitor(self.fastmath.flags).visit_Function(function)
        return function

    def build(self, context: Any, builder: Any, arguments: Sequence[Any]) -> Any:
        """Build what the function does where the builder is, and return its result."""
        frame = Frame(context, builder, dict(zip(self._parameters, arguments, strict=True)), {})
        self._begin(frame)
        for step in self._steps:
            step(frame)
        return context.get_dummy_value() if self._returned is None else self._returned.build(frame)

    def _begin(self, frame: Frame) -> None:
        """Make all places, and a block for what follows: what needs memory of its own asks for it in the first one."""
        for name, kind in self._types.items():
            self._make_place(frame, name, kind)
        body = frame.builder.append_basic_block("body")
        frame.builder.branch(body)
        frame.builder.position_at_end(body)

    def _make_place(self, frame: Frame, name: str, kind: Any) -> None:
        """Give a name that is assigned more than once memory of its own."""
        if name not in self._constant:
            frame.places[name] = cgutils.alloca_once(frame.builder, frame.context.get_value_type(kind), name=name)
            if name in frame.values:
                frame.builder.store(frame.values[name], frame.places[name])

    # Statements

    def _block(self, body: Sequence[ast.stmt]) -> list[Step]:
        return [step for statement in body for step in self._statement(statement)]

    def _statement(self, node: ast.stmt) -> list[Step]:
        match node:
            case ast.Assign(targets=[ast.Name(name)]):
                value = self._expression(node.value)
                if (
                    name in self._constant
                    and types.unliteral(value.type) == types.int64
                    and self._counts_up(node.value)
                ):
                    self._nonnegative.add(name)
                return [self._assign(name, value)]
            case ast.Assign(targets=[ast.Subscript() as target]):
                return [self._store(target, self._expression(node.value))]
            case ast.AugAssign(ast.Name(name)):
                return [self._assign(name, self._binary(node, node.op, self._name(name), node.value))]
            case ast.AugAssign(ast.Subscript() as target):
                held = self._element(target)
                return [self._store(target, self._binary(node, node.op, held, node.value))]
            case ast.If():
                return [self._if(node)]
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), bounds)):
                return [self._for(name, bounds, node.body)]
            case ast.While():
                return [self._while(node)]
            case ast.Expr(ast.Call() as call):
                value = self._call(call)
                return [lambda frame: (value.build(frame), None)[1]]
            case ast.Pass():
                return []
            case ast.Return(ast.expr() as value) if node is self.tree.body[-1]:
                self._returned = self._expression(value)
                self.result = self._returned.type
                return []
        raise UnknownError

    def _counts_up(self, node: ast.expr) -> bool:
        """Tell whether an integer is never negative: a thread's index, a loop's counter, an extent, or made of such."""
        match node:
            case ast.Name(name):
                return name in self._nonnegative
            case ast.Constant(int() as number):
                return number >= 0
            case ast.Subscript(ast.Attribute(_, "shape")):
                return True
            case ast.BinOp(left, ast.Add() | ast.Mult() | ast.FloorDiv() | ast.Mod(), right):
                return self._counts_up(left) and self._counts_up(right)
        return False

    def _assign(self, name: str, value: Expression) -> Step:
        kind = self._declared(name, value.type)
        constant = name in self._constant

        def build(frame: Frame) -> None:
            made = frame.cast(value.build(frame), value.type, kind)
            if constant:
                frame.values[name] = made
            else:
                frame.builder.store(made, frame.places[name])

        return build

    def _declared(self, name: str, kind: Any) -> Any:
        """Return the type of a name that is assigned something of a type."""
        known = self._types.setdefault(name, types.unliteral(kind))
        if known != types.unliteral(kind):
            raise UnknownError
        return known

    def _store(self, target: ast.Subscript, value: Expression) -> Step:
        array, index = self._expression(target.value), self._index(target.slice)
        call = self._resolved(operator.setitem, [array, index, value])
        return lambda frame: (call.build(frame), None)[1]

    def _condition(self, node: ast.expr) -> Callable[[Frame], Any]:
        test = self._expression(node)
        return lambda frame: frame.context.is_true(frame.builder, test.type, test.build(frame))

    def _if(self, node: ast.If) -> Step:
        condition = self._condition(node.test)
        then, orelse = self._block(node.body), self._block(node.orelse)
        leaves = len(node.body) == 1 and isinstance(node.body[0], ast.Break)
        if leaves:
            raise UnknownError

        def build(frame: Frame) -> None:
            with frame.builder.if_else(condition(frame)) as (yes, no):
                for side, steps in ((yes, then), (no, orelse)):
                    with side:
                        for step in steps:
                            step(frame)

        return build

    def _loop_body(self, body: Sequence[ast.stmt]) -> list[Step]:
        """Return the steps of a loop's body, which may leave the loop at its own level."""
        steps: list[Step] = []
        for statement in body:
            match statement:
                case ast.If(body=[ast.Break()], orelse=[]):
                    steps.append(self._break(statement))
                case _:
                    steps += self._statement(statement)
        return steps

    def _break(self, node: ast.If) -> Step:
        condition = self._condition(node.test)

        def build(frame: Frame) -> None:
            stay = frame.builder.append_basic_block("stay")
            frame.builder.cbranch(condition(frame), frame.leave[-1], stay)
            frame.builder.position_at_end(stay)

        return build

    def _while(self, node: ast.While) -> Step:
        condition = self._condition(node.test)
        steps = self._loop_body(node.body)

        def build(frame: Frame) -> None:
            with looping(frame) as (inside, after):
                frame.builder.cbranch(condition(frame), inside, after)
                frame.builder.position_at_end(inside)
                for step in steps:
                    step(frame)

        return build

    def _range(self, bounds: Sequence[ast.expr]) -> tuple[Expression, Expression, int]:
        """Return where a loop begins to count, where it stops, and by how much it counts."""
        found = [self._expression(bound) for bound in bounds]
        step = found[2].number if len(found) == 3 else 1
        if not step or any(types.unliteral(bound.type) != types.int64 for bound in found):
            raise UnknownError
        start = found[0] if len(found) > 1 else self._number(0)
        return start, found[0] if len(found) == 1 else found[1], step

    def _for(self, name: str, bounds: Sequence[ast.expr], body: Sequence[ast.stmt]) -> Step:
        start, stop, step = self._range(bounds)
        counted = self._declared(name, types.int64)
        assert counted == types.int64
        constant = name in self._constant
        first_number, bound = start.number, stop.number
        if constant and (first_number is not None and first_number >= 0 if step > 0 else bound in (-1, 0)):
            self._nonnegative.add(name)
        steps = self._loop_body(body)
        word = ir.IntType(64)

        def build(frame: Frame) -> None:
            builder = frame.builder
            first, last = (frame.cast(b.build(frame), b.type, types.int64) for b in (start, stop))
            before = builder.block
            with looping(frame, short=self._is_short(name)) as (inside, after):
                counter = builder.phi(word)
                counter.add_incoming(first, before)
                builder.cbranch(builder.icmp_signed("<" if step > 0 else ">", counter, last), inside, after)
                builder.position_at_end(inside)
                if constant:
                    frame.values[name] = counter
                else:
                    builder.store(counter, frame.places[name])
                for inner in steps:
                    inner(frame)
                following = builder.add(counter, word(step), flags=("nsw",))
                counter.add_incoming(following, builder.block)

        return build

    def _is_short(self, name: str) -> bool:
        """Tell whether a loop with a counter makes few trips, for which it is to be left as it is."""
        return False

    # Expressions

    def _expression(self, node: ast.expr) -> Expression:
        match node:
            case ast.Constant(value) if value is Ellipsis:
                return Expression(types.ellipsis, lambda frame: frame.context.get_dummy_value())
            case ast.Constant(bool() | int() | float() as value):
                return self._number(value)
            case ast.Name(name):
                return self._name(name)
            case ast.Attribute(ast.Name(name), attribute) if name in self._types:
                return self._part(self._name(name), attribute)
            case ast.Attribute():
                return self._global(self._object(node))
            case ast.Tuple(parts):
                return self._tuple([self._expression(part) for part in parts])
            case ast.Subscript(ast.Attribute(ast.Name() as array, "shape"), ast.Constant(int() as axis)):
                return self._extent(self._expression(array), axis)
            case ast.Subscript():
                return self._element(node)
            case ast.BinOp():
                return self._binary(node, node.op, self._expression(node.left), node.right)
            case ast.Compare(left, [op], [right]):
                return self._binary(node, op, self._expression(left), right)
            case ast.BoolOp(op, parts):
                return self._decided([self._condition(part) for part in parts], isinstance(op, ast.And))
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
                return self._number(-value)
            case ast.UnaryOp():
                return self._noted(node, self._resolved(_UNARY[type(node.op)], [self._expression(node.operand)]))
            case ast.IfExp():
                return self._choice(node)
            case ast.Call():
                return self._noted(node, self._call(node))
        raise UnknownError

    def _noted(self, node: Any, made: Expression) -> Expression:
        if made.type == types.float64:
            self.wide.add(node.lineno)
        return made

    def _number(self, value: Any) -> Expression:
        kind = types.literal(value) if isinstance(value, bool | int) else types.float64
        return Expression(kind, lambda frame: _constant(frame, kind, value), value)

    def _name(self, name: str) -> Expression:
        kind = self._types.get(name)
        if kind is None:
            return self._global(self._object(ast.Name(name)))
        if name in self._constant:
            return Expression(kind, lambda frame: frame.values[name])
        return Expression(kind, lambda frame: frame.builder.load(frame.places[name]))

    def _object(self, node: ast.expr) -> Any:
        """Return the object that a name, or a name of a module, stands for."""
        match node:
            case ast.Name(name) if name in self._globals:
                return self._globals[name]
            case ast.Name(name) if hasattr(builtins, name) and name not in self._types:
                return getattr(builtins, name)
            case ast.Attribute():
                return getattr(self._object(node.value), node.attr)
        raise UnknownError

    def _type_of(self, value: Any) -> Any:
        """Return the type of what is no number of the function's own."""
        try:
            return self._context.resolve_value_type(value)
        except ValueError:
            # It may have been made since the context last looked.
            self._context.refresh()
            return self._context.resolve_value_type(value)

    def _global(self, value: Any) -> Expression:
        kind = self._type_of(value)
        if not isinstance(kind, types.Array | types.Number | types.Boolean | types.BaseTuple):
            return Expression(kind, lambda frame: frame.context.get_dummy_value(), value)
        known = value if isinstance(value, tuple) else None
        return Expression(kind, lambda frame: frame.context.get_constant_generic(frame.builder, kind, value), known)

    def _tuple(self, parts: Sequence[Expression], *, literal: bool = False) -> Expression:
        kind = types.Tuple.from_types([p.type if literal else types.unliteral(p.type) for p in parts])
        wanted = list(kind)

        def build(frame: Frame) -> Any:
            values = [frame.cast(part.build(frame), part.type, to) for part, to in zip(parts, wanted, strict=True)]
            return frame.context.make_tuple(frame.builder, kind, values)

        return Expression(kind, build)

    def _part(self, owner: Expression, attribute: str) -> Expression:
        """Return a field of a record, or a part of an element."""
        kind = types.unliteral(owner.type)
        found = self._context.resolve_getattr(kind, attribute)
        if found is None or isinstance(found, types.Callable | types.Module):
            raise UnknownError

        def build(frame: Frame) -> Any:
            read = frame.context.get_getattr(kind, attribute)
            return read(frame.context, frame.builder, kind, owner.build(frame), attribute)

        return Expression(found, build)

    def _extent(self, array: Expression, axis: int) -> Expression:
        kind = array.type
        if not isinstance(kind, types.Array):
            raise UnknownError

        def build(frame: Frame) -> Any:
            view = frame.context.make_array(kind)(frame.context, frame.builder, array.build(frame))
            return frame.builder.extract_value(view.shape, axis)

        return Expression(types.int64, build)

    def _decided(self, conditions: Sequence[Callable[[Frame], Any]], all_of: bool) -> Expression:
        """Return whether conditions hold, all or any of them; each is looked at, whatever the others say."""

        def build(frame: Frame) -> Any:
            joined = frame.builder.and_ if all_of else frame.builder.or_
            return functools.reduce(joined, [condition(frame) for condition in conditions])

        return Expression(types.boolean, build)

    def _element(self, node: ast.Subscript) -> Expression:
        match self._expression(node.value), node.slice:
            case Expression(number=tuple() as parts), ast.Constant(int() as place):
                return self._global(parts[place])
            case Expression(types.BaseTuple() as kind) as parts, ast.Constant(int() as place):
                return Expression(kind[place], lambda frame: frame.builder.extract_value(parts.build(frame), place))
        return self._resolved(operator.getitem, [self._expression(node.value), self._index(node.slice)])

    def _index(self, node: ast.expr) -> Expression:
        """Return an index; what is never negative is unsigned, so that it is not asked whether it counts from the end."""
        match node:
            case ast.Name(name) if name in self._nonnegative:
                return Expression(types.uint64, self._name(name).build)
            case ast.Tuple(parts):
                return self._tuple([self._index(part) for part in parts])
        return self._expression(node)

    def _binary(self, node: Any, op: ast.AST, left: Expression, right_node: ast.expr) -> Expression:
        right = self._expression(right_node)
        if type(op) not in _BINARY:
            raise UnknownError
        return self._noted(node, self._resolved(_BINARY[type(op)], [left, right]))

    def _choice(self, node: ast.IfExp) -> Expression:
        condition = self._condition(node.test)
        sides = [self._expression(side) for side in (node.body, node.orelse)]
        kind = self._context.unify_types(*(types.unliteral(side.type) for side in sides))
        if not isinstance(kind, types.Number | types.Boolean):
            raise UnknownError

        return Expression(kind, lambda frame: self._chosen(frame, condition, sides, kind))

    def _chosen(self, frame: Frame, condition: Callable[[Frame], Any], sides: Sequence[Expression], kind: Any) -> Any:
        """Build the one of two values that a condition says, both of which may be computed."""
        then, orelse = (frame.cast(side.build(frame), side.type, kind) for side in sides)
        return frame.builder.select(condition(frame), then, orelse)

    def _call(self, node: ast.Call) -> Expression:
        if node.keywords:
            raise UnknownError
        function = self._object(node.func)
        match node.args:
            case [ast.Constant(value)] if isinstance(function, type) and issubclass(function, np.generic):
                number = function(value)
                kind = self._type_of(number)
                return Expression(kind, lambda frame: frame.context.get_constant_generic(frame.builder, kind, number))
        match node:
            case ast.Call(ast.Name("_nb_local_array"), [ast.Tuple(extents), dtype]):
                shape = self._tuple([self._expression(extent) for extent in extents], literal=True)
                return self._resolved(function, [shape, self._expression(dtype)])
            case ast.Call(ast.Name("_nb_shared"), [*place, ast.Tuple(extents), dtype]):
                shape = self._tuple([self._expression(extent) for extent in extents], literal=True)
                return self._resolved(function, [*map(self._expression, place), shape, self._expression(dtype)])
            case ast.Call(ast.Name("_nb_add" | "_nb_add_private"), [array, index, added]):
                parts = [self._expression(array), self._index(index), self._expression(added)]
                return self._resolved(function, parts)
        return self._resolved(function, [self._expression(argument) for argument in node.args])

    def _resolved(self, function: Any, arguments: Sequence[Expression]) -> Expression:
        """Return what an operation gives, as Numba resolves it."""
        if isinstance(function, types.ExternalFunction):
            return _external(function, arguments)
        kind = self._type_of(function)
        signature = self._signature(kind, tuple(a.type for a in arguments))
        if signature is None or signature.recvr is not None:
            raise UnknownError
        # A function is the same one for the CPU and for CUDA, and answers for that which asked last.
        asked = kind.get_impl_key(signature) if isinstance(kind, types.Function) else kind

        def build(frame: Frame) -> Any:
            implementation = frame.context.get_function(asked, signature)
            return implementation(frame.builder, _arguments(frame, signature, arguments))

        return Expression(signature.return_type, build)

    def _signature(self, kind: Any, arguments: tuple[Any, ...]) -> Any:
        return self._context.resolve_function_type(kind, arguments, {})


def _external(function: Any, arguments: Sequence[Expression]) -> Expression:
    """Return what a C function gives."""
    wanted, result = function.sig.args, function.sig.return_type
    if len(wanted) != len(arguments):
        raise UnknownError

    def build(frame: Frame) -> Any:
        values = [frame.cast(a.build(frame), a.type, kind) for a, kind in zip(arguments, wanted, strict=True)]
        described = funcdesc.ExternalFunctionDescriptor(function.symbol, result, wanted)
        declared = frame.context.declare_external_function(frame.builder.module, described)
        return frame.context.call_external_function(frame.builder, declared, wanted, values)

    return Expression(result, build)


def _arguments(frame: Frame, signature: Any, arguments: Sequence[Expression]) -> list[Any]:
    """Return the values that an implementation takes: converted, defaults filled in, the rest as a tuple."""

    def given(position: int, parameter: Any, argument: Expression) -> Any:
        return frame.cast(argument.build(frame), argument.type, signature.args[position])

    def default(position: int, parameter: Any, value: Any) -> Any:
        return frame.context.get_constant_generic(frame.builder, signature.args[position], value)

    def rest(position: int, parameter: Any, values: Sequence[Expression]) -> Any:
        kinds = signature.args[position]
        made = [frame.cast(v.build(frame), v.type, kind) for v, kind in zip(values, kinds, strict=True)]
        return cgutils.make_anonymous_struct(frame.builder, made)

    if signature.pysig is None:
        return [given(k, None, argument) for k, argument in enumerate(arguments)]
    folded: list[Any] = typing.fold_arguments(signature.pysig, arguments, {}, given, default, rest)
    return folded


def _constant(frame: Frame, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Literal):
        return frame.context.get_constant(kind.literal_type, value)
    return frame.context.get_constant(kind, value)


@contextmanager
def looping(frame: Frame, *, rolled: bool = False, short: bool = False) -> Iterator[tuple[Any, Any]]:
    """Build a loop: what is built in the context comes first in each trip, and goes to one of the two blocks.

    The trips of a loop that is `rolled` become vectors where that is possible, and are written out only then; those of one that
    is `short` neither.
    """
    builder = frame.builder
    head, inside, after = (builder.append_basic_block(f"loop.{name}") for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    frame.leave.append(after)
    yield inside, after
    frame.leave.pop()
    again = builder.branch(head)
    if rolled:
        again.set_metadata("llvm.loop", _vectors_first(builder.module))
    elif short:
        again.set_metadata("llvm.loop", _as_it_is(builder.module))
    builder.position_at_end(after)


def _vectors_first(module: Any) -> Any:
    """Return what tells LLVM not to write the trips of a loop out before it has tried to make vectors of them."""
    then = module.add_metadata(["llvm.loop.unroll.full"])
    return _asked(
        module,
        module.add_metadata(["llvm.loop.unroll.disable"]),
        module.add_metadata(["llvm.loop.vectorize.followup_vectorized", then]),
    )


def _as_it_is(module: Any) -> Any:
    """Return what tells LLVM to make no vectors of the trips of a loop, and not to write them out."""
    return _asked(
        module,
        module.add_metadata(["llvm.loop.unroll.disable"]),
        module.add_metadata(["llvm.loop.vectorize.enable", ir.Constant(ir.IntType(1), 0)]),
    )


def _asked(module: Any, *asked: Any) -> Any:
    # What names a loop names itself first.
    loop = ir.MDValue(module, (), str(len(module.metadata)))
    loop.operands = (loop, *asked)
    return loop


def assigned_once(tree: ast.FunctionDef, parameters: Sequence[str]) -> set[str]:
    """Return the names that are assigned in one place, and used only after it, within the same block."""
    stores = dict.fromkeys(parameters, 1)
    fine: dict[str, bool] = {}
    open_names = [set(parameters)]

    def use(node: ast.AST) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                fine[inner.id] = fine.get(inner.id, True) and any(inner.id in names for names in open_names)

    def store(name: str) -> None:
        stores[name] = stores.get(name, 0) + 1
        open_names[-1].add(name)

    def block(body: Sequence[ast.stmt], first: str | None = None) -> None:
        open_names.append(set())
        if first is not None:
            store(first)
        for statement in body:
            match statement:
                case ast.If() | ast.While():
                    use(statement.test)
                    block(statement.body)
                    block(statement.orelse)
                case ast.For(ast.Name(name)):
                    use(statement.iter)
                    block(statement.body, name)
                case ast.AugAssign(ast.Name(name)):
                    use(statement.value)
                    stores[name] = 2
                case ast.Assign(targets=[ast.Name(name)]):
                    use(statement.value)
                    store(name)
                case _:
                    use(statement)
        open_names.pop()

    block(tree.body)
    return {name for name, count in stores.items() if count == 1 and fine.get(name, True)}
