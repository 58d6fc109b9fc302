"""The mathematical functions that kernels call on the CPU: `float_math` of float32, `double_math` of float64, else Numba's own.

Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import types
from numba.core import config
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from numbridge.kernels.arithmetic import double_math
from numbridge.kernels.arithmetic.called_code import code_of
from numbridge.kernels.arithmetic.float_math import FUNCTIONS, evaluate

__all__ = ["calls_chosen", "is_few_instructions", "is_library_call", "replacement", "substituted"]

_ALL = FUNCTIONS | double_math.FUNCTIONS
_NUMPY_NAMES = {"pow": "power"} | {name: f"arc{name[1:]}" for name in _ALL if name[0] == "a"}


def _typed(typing_context: Any, name: str, plain: Any, arguments: tuple[Any, ...], *, alone: bool) -> Any:
    """Return the signature of a call, and what generates its code.

    Numba tells calls apart by what arguments are converted to, such as halves to float32, and keeps one code for each of these.
    """
    found = _own(name, arguments, alone=alone)
    if found is not None:
        return found
    kind = typing_context.resolve_value_type(plain)
    resolved = typing_context.resolve_function_type(kind, arguments, {})
    if resolved is None:
        return None

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return code_of(context, kind, resolved.args)(builder, values)

    return _own(name, resolved.args, alone=alone) or (resolved.return_type(*resolved.args), generate)


def _own(name: str, arguments: tuple[Any, ...], *, alone: bool) -> Any:
    """Return the signature of a call that is arithmetic, and what generates its code; None where a library is called."""
    kinds = {types.unliteral(kind) for kind in arguments}
    if name in FUNCTIONS and kinds == {types.float32}:
        return types.float32(*arguments), functools.partial(_generate, evaluate, name)
    doubles = double_math.FUNCTIONS.keys() - (double_math.SLOW_ALONE if alone else ())
    if name in doubles and kinds == {types.float64}:
        return types.float64(*arguments), functools.partial(_generate, double_math.evaluate, name)
    return None


def _generate(append: Any, name: str, context: Any, builder: Any, signature: Any, values: Any) -> Any:
    return append(name, builder, values)


def _function(name: str, plain: Any, *, alone: bool) -> Any:
    """Return a function for kernels that takes the place of `plain`, an object that Numba knows.

    With `alone`, it is for code that LLVM does not vectorise.
    """

    def one(typing_context: Any, x: Any) -> Any:
        return _typed(typing_context, name, plain, (x,), alone=alone)

    def two(typing_context: Any, x: Any, y: Any) -> Any:
        return _typed(typing_context, name, plain, (x, y), alone=alone)

    taken = one if _ALL[name].__code__.co_argcount == 1 else two
    taken.__name__ = name  # as messages call it
    return intrinsic(taken)


def _fused() -> bool:
    """Tell whether the CPU multiplies and adds with one rounding; a library would have to do it otherwise."""
    is_x86 = "x86" in llvm.get_process_triple()
    if config.CPU_FEATURES is not None:  # those that code is compiled for, whatever this CPU has
        return not is_x86 or "+fma" in config.CPU_FEATURES.split(",")
    features = llvm.get_host_cpu_features()
    return bool(features.get("fma", True)) and (not is_x86 or "fma" in features)


@functools.cache
def _replacements(*, alone: bool) -> dict[Any, Any]:
    """Return the function that takes the place of each that Numba knows."""
    found: dict[Any, Any] = {}
    if _fused():
        for name in _ALL:
            found |= {plain: _function(name, plain, alone=alone) for plain in _spellings(name)}
    return found


@functools.cache
def _by_identity(*, alone: bool) -> dict[int, Any]:
    """Return the replacements by the identities of what they replace: a user's globals may have no hash, or one that raises."""
    return {id(plain): new for plain, new in _replacements(alone=alone).items()}


def _spellings(name: str) -> list[Any]:
    """Return the objects by which Numba knows a function."""
    named = [getattr(np, _NUMPY_NAMES.get(name, name), None)]
    named += [getattr(math, name)] * (name != "cbrt")  # which Numba knows by NumPy's name alone
    return [plain for plain in named if plain is not None] + [operator.pow] * (name == "pow")


@functools.cache
def _arithmetic(kind: Any) -> frozenset[Any]:
    """Return the functions that need no library for a type of numbers."""
    own = {types.float32: FUNCTIONS, types.float64: double_math.FUNCTIONS}.get(kind, {})
    return frozenset(_replacements(alone=False)[plain] for name in own for plain in _spellings(name))


@functools.cache
def _module(original: ModuleType, *, alone: bool) -> ModuleType:
    """Return a module that has what `original` has, with the replacements in their places."""
    made = ModuleType(original.__name__)
    for name, value in vars(original).items():
        new = _by_identity(alone=alone).get(id(value))
        if new is not None:
            setattr(made, name, new)
    made.__dict__["__getattr__"] = functools.partial(getattr, original)
    return made


def substituted(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the globals of a text for `calls_chosen`: with `float_math`, and what it stands for under other names."""
    found = dict(namespace)
    for name, value in namespace.items():
        new = replacement(value, alone=False)
        if new is not value:
            found |= {name: new, f"{_LIBRARY}{name}": value, f"{_ALONE}{name}": replacement(value, alone=True)}
    for prefix, alone in (("", False), (_ALONE, True)):
        found[f"{prefix}{_POWER}"] = replacement(operator.pow, alone=alone)
    return found


def replacement(value: Any, *, alone: bool) -> Any:
    """Return what kernels call in the place of a function or a module, which may be itself."""
    if value is math or value is np:
        return _module(value, alone=alone)
    return _by_identity(alone=alone).get(id(value), value)


def is_library_call(function: Any, kinds: Sequence[Any]) -> bool:
    """Tell whether a call of numbers goes to a library, which takes one number at a time."""
    if isinstance(function, type):
        return False
    if function in _replacements(alone=False).values():
        known = cpu_target.typing_context
        signature = known.resolve_function_type(known.resolve_value_type(function), tuple(kinds), {})
        found = set(signature.args) if signature is not None else set()
        return len(found) != 1 or function not in _arithmetic(*found)
    return _is_mathematical(function) and not is_few_instructions(function)


def is_few_instructions(function: Any) -> bool:
    """Tell whether a call of numbers takes a few instructions, which LLVM vectorises."""
    return _is_mathematical(function) and function.__name__ in _INSTRUCTIONS


def _is_mathematical(function: Any) -> bool:
    return getattr(function, "__module__", None) == "math" or isinstance(function, np.ufunc)


_INSTRUCTIONS = frozenset(
    (
        *("sqrt", "fabs", "absolute", "abs", "floor", "ceil", "trunc", "rint", "copysign"),
        *("isnan", "isinf", "isfinite", "minimum", "maximum", "fmin", "fmax", "square", "sign"),
        *("negative", "positive", "reciprocal", "radians", "degrees", "add", "subtract", "multiply"),
        *("divide", "true_divide", "bitwise_and", "bitwise_or", "bitwise_xor", "invert"),
        *("logical_and", "logical_or", "logical_not", "equal", "not_equal"),
        *("greater", "greater_equal", "less", "less_equal"),
    )
)


_POWER, _LIBRARY, _ALONE = "_nb_power", "_nb_library_", "_nb_alone_"
_ATOMIC_ADD, _ATOMIC = "_nb_add", "_nb_atomic_"
_FEW = 4  # loops of so few trips are unrolled


def _is_loop(node: ast.AST) -> bool:
    """Tell whether a statement is a loop that LLVM does not unroll."""
    match node:
        case ast.For(iter=ast.Call(ast.Name("range"), [ast.Constant(int() as trips)])):
            return trips > _FEW
    return isinstance(node, ast.For | ast.While)


def _has_loop(node: ast.AST) -> bool:
    return any(_is_loop(part) for part in ast.walk(node))


def _is_independent(loop: ast.AST, *, fastmath: bool) -> bool:
    """Tell whether no iteration of a loop waits for the one before, as far as its variables show.

    With `fastmath`, what is only added to does not count: LLVM may sum in any order.
    """
    body = getattr(loop, "body", [])
    if isinstance(loop, ast.While) or any(_has_loop(statement) for statement in body):
        return False
    if any(isinstance(part, ast.Break | ast.Continue | ast.Return) for part in ast.walk(loop)):
        return False
    names = [part for statement in body for part in ast.walk(statement) if isinstance(part, ast.Name)]
    assigned = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    summed = _only_summed(body) if fastmath else set()
    return not (assigned - summed) & _read_first(body)


def _is_scattered(body: Sequence[ast.AST]) -> bool:
    """Tell whether LLVM cannot vectorise a body, as its threads may meet: it is atomic, or finds indices in memory."""
    parts = [part for statement in body for part in ast.walk(statement)]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    if any(name == _ATOMIC_ADD or name.startswith(_ATOMIC) for name in names):
        return True
    read: set[str] = set()
    for part in parts:
        match part:
            case ast.Assign([ast.Name(name)], value) if _reads_memory(value, read):
                read.add(name)
    return any(isinstance(part, ast.Subscript) and _reads_memory(part.slice, read) for part in parts)


def _reads_memory(node: ast.AST, read: set[str]) -> bool:
    """Tell whether an expression has an element of an array, or one of the names of what was read."""
    if not read.isdisjoint(_loaded(node)):
        return True
    elements = [part for part in ast.walk(node) if isinstance(part, ast.Subscript)]
    return any(not (isinstance(part.value, ast.Attribute) and part.value.attr == "shape") for part in elements)


def _only_summed(body: Sequence[ast.stmt]) -> set[str]:
    parts = [part for statement in body for part in ast.walk(statement)]
    targets = {
        part.target.id for part in parts if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
    }
    stored = {
        part.targets[0].id for part in parts if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name)
    }
    return targets - stored - set().union(*(_loaded(statement) for statement in body))


def _read_first(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that are read where a block has not surely assigned them yet."""
    found: set[str] = set()
    known: set[str] = set()
    for statement in body:
        match statement:
            case ast.Assign([ast.Name(name)], value):
                found |= _loaded(value) - known
                known.add(name)
            case ast.AugAssign(ast.Name(name), _, value):
                found |= (_loaded(value) | {name}) - known
            case ast.If(test, body, orelse):
                found |= (_loaded(test) | _read_first(body) | _read_first(orelse)) - known
            case _:
                found |= _loaded(statement) - known
    return found


def _loaded(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


@dataclass
class _Chooser(ast.NodeTransformer):
    """Makes the calls of one function those of a library, but where the loop around them is vectorised."""

    names: Mapping[str, Any]
    functions: Collection[str]
    vectorised: bool
    alone: bool
    fastmath: bool
    lanes: bool
    scalar_calls: set[str] = field(default_factory=set)
    alone_calls: set[str] = field(default_factory=set)

    def visit(self, node: ast.AST) -> Any:
        if not _is_loop(node):
            return super().visit(node)
        outside = self.vectorised, self.alone
        self.vectorised = self.lanes or _is_independent(node, fastmath=self.fastmath)
        self.alone = not self.lanes and _is_scattered([node])
        made = self.generic_visit(node)
        self.vectorised, self.alone = outside
        return made

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        root: Any = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return node
        if root.id in self.functions:
            self.scalar_calls |= set() if self.vectorised else {root.id}
            self.alone_calls |= {root.id} if self.alone else set()
        elif not self.vectorised or self._writes(node):
            root.id = f"{_LIBRARY}{root.id}" if f"{_LIBRARY}{root.id}" in self.names else root.id
        elif self.alone:
            root.id = f"{_ALONE}{root.id}" if f"{_ALONE}{root.id}" in self.names else root.id
        return node

    def _writes(self, node: ast.Call) -> bool:
        """Tell whether one of NumPy's functions is given an array for its results, too."""
        path: list[str] = []
        function: Any = node.func
        while isinstance(function, ast.Attribute):
            path.insert(0, function.attr)
            function = function.value
        plain = self.names.get(f"{_LIBRARY}{function.id}")
        for attribute in path:
            plain = getattr(plain, attribute, None)
        return isinstance(plain, np.ufunc) and len(node.args) > plain.nin

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            # Numba multiplies for these.
            case ast.BinOp(op=ast.Pow(), right=ast.Constant(int()) | ast.UnaryOp(operand=ast.Constant(int()))):
                return node
            case ast.BinOp(left, ast.Pow(), right) if self.vectorised:
                power = f"{_ALONE}{_POWER}" if self.alone else _POWER
                made = ast.Call(ast.Name(power, ast.Load()), [left, right], [])
                return ast.fix_missing_locations(ast.copy_location(made, node))
        return node


def calls_chosen(tree: ast.Module, names: Mapping[str, Any], *, fastmath: bool, lanes: bool = False) -> ast.Module:
    """Return a text in which each call is of the function that is faster there.

    `float_math` and `double_math` are arithmetic, which LLVM vectorises: several times as fast as a library's functions. Where
    nothing is vectorised, in a loop that waits for each result, a library answers sooner. Of float64 it also does so for a few
    functions in threads that wait for nothing, but meet in memory.

    Parameters
    ----------
    tree : ast.Module
        A text of functions, callee before caller, and of those with the loops over thread ids, whose names begin with
        ``_nb_``; changed in place.
    names : mapping
        Its globals, of `substituted`.
    fastmath : bool
        Whether LLVM may reassociate floating-point arithmetic.
    lanes : bool
        Whether threads run together, which vectorises everything; a thread alone must compute the same.
    """
    functions = [part for part in tree.body if isinstance(part, ast.FunctionDef)]
    bodies = {function.name: function for function in functions if not function.name.startswith("_nb_")}
    drivers = [function for function in functions if function.name not in bodies]
    entries = {name for function in drivers for name in _loaded(function)} & set(bodies)
    looping = any(_has_loop(function) for function in bodies.values())
    scalar = entries if looping else set()
    scattered: set[str] = set()
    for name, function in reversed(bodies.items()):
        vectorised = lanes or (name not in scalar and not _has_loop(function))
        alone = not lanes and (name in scattered or _is_scattered(function.body))
        chooser = _Chooser(names, bodies, vectorised, alone, fastmath, lanes)
        chooser.visit(function)
        scalar |= chooser.scalar_calls
        scattered |= chooser.alone_calls
    return tree
