"""Functions and lambdas within functions: each is taken out, and is given at its calls what it uses of the function around it.

So it sees what a variable holds when it is called, and not what it held when the function was defined, as in Python. So are loops
that are an expression, as in ``sum(x[k] for k in range(n))``. Works on `ast` and on the code that Python has made of the same
source; compiles nothing.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import TypeGuard

from numbridge.kernels.errors import KernelError
from numbridge.kernels.language.generators import GENERATOR, as_loop
from numbridge.kernels.language.loaded_source import (
    LAMBDA,
    as_definition,
    has_columns,
    place_of_expression,
    runs_within,
)
from numbridge.kernels.language.static_expressions import static

__all__ = ["Nested", "take_out"]

_LEFT_OUT = (
    "Python leaves this out, since it never runs, as in `if False:`, or in an assert with python -O; leave it out, too"
)
_Refuse = Callable[[ast.AST, str], KernelError]


@dataclass(frozen=True)
class Nested:
    """A function that was taken out of another one.

    Attributes
    ----------
    definition : ast.FunctionDef
        Its definition, at its place in the file.
    function : function
        Its code, with the variables of functions around the outermost one; those that it uses of that one have no value.
    captured : tuple of str
        The latter, which it takes as parameters before its own.
    """

    definition: ast.FunctionDef
    function: FunctionType
    captured: tuple[str, ...]


def take_out(
    tree: ast.FunctionDef,
    function: FunctionType,
    captured: Collection[str],
    around: Mapping[str, tuple[str, ...]],
    aliases: Mapping[str, ast.expr],
    reached: Callable[[ast.expr], object],
    refuse: _Refuse,
) -> dict[str, Nested]:
    """Take the functions out of a function, pass them what they use at each call, and return them by name.

    Parameters
    ----------
    tree : ast.FunctionDef
        The function; changed in place.
    function : function
        The same, as Python made it.
    captured : collection of str
        What it uses of functions around it, if it was taken out itself.
    around : mapping of str to tuple of str
        The functions that were taken out beside it or around it, and what they capture.
    aliases : mapping of str to ast.expr
        Its variables that are other names of what is known before a kernel runs, ``here = cuda.threadIdx``, in the order in which
        they are assigned. They are assigned anew where they are used, since such things cannot be passed.
    reached : callable
        Returns what is called. Functions in the argument of `static` are Python's.
    refuse : callable
        Makes an error of a node and a message.

    Raises
    ------
    KernelError
        If a function is decorated, defined more than once, passed on though it captures variables, or has defaults that are not
        written out.
    """
    code = function.__code__
    # What is local here hides a function around it.
    own = {*code.co_varnames, *code.co_cellvars}
    around = {name: uses for name, uses in around.items() if name not in own}
    taker = _Taker(code, {*captured, *around}, reached, refuse)
    tree.body = [taker.visit(statement) for statement in tree.body]
    variables = {*own, *captured}
    codes = {name: part for name, (_, part) in taker.found.items()}
    uses = _captures(codes, variables - codes.keys() - aliases.keys(), around)
    for name, (node, part) in taker.found.items():
        hidden = sorted({*uses[name]} & {*part.co_varnames, *part.co_cellvars})
        if hidden:
            what = "this calls a function" if name in taker.unnamed else f"the function {name!r} calls one"
            text = f"{what} that uses {hidden[0]!r} of {tree.name}, and has a variable of that name"
            raise refuse(node, f"{text}; rename one of the two")
        _assign_aliases(node, part, aliases)
    found = {
        name: Nested(node, _with_cells(function, part, _defaults(node, refuse)), uses[name])
        for name, (node, part) in taker.found.items()
    }
    _check_stores(tree, found, refuse)
    _pass_at_calls(tree, {**around, **uses}, refuse)
    return found


class _Taker(ast.NodeTransformer):
    """Removes what defines functions."""

    def __init__(
        self, code: CodeType, taken: Collection[str], reached: Callable[[ast.expr], object], refuse: _Refuse
    ) -> None:
        self._code, self._reached, self._refuse = code, reached, refuse
        self._taken = {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names, *taken}
        self.found: dict[str, tuple[ast.FunctionDef, CodeType]] = {}
        self.unnamed: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.Pass:
        """Take a definition out."""
        if node.decorator_list:
            raise self._refuse(
                node, f"the function {node.name!r} within a function is decorated; leave the decorator out"
            )
        codes = [c for c in self._codes(node.name) if c.co_firstlineno == node.lineno]
        self._enter(node.name, node, codes)
        return ast.copy_location(ast.Pass(), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Take a lambda out that is given a name."""
        match node:
            case ast.Assign([ast.Name(name)], ast.Lambda() as value):
                self._enter(name, as_definition(value, name), self._of_lambda(value))
                return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Take a loop out that is an expression; leave what is evaluated before the kernel is compiled as it is."""
        called = self._reached(node.func)
        if called is static:
            return node
        # What a generator goes through first Python evaluates outside of it.
        outermost = [a.generators[0] for a in node.args if isinstance(a, ast.GeneratorExp)]
        for part in outermost:
            part.iter = self.visit(part.iter)
        found = as_loop(node, called, self._taken)
        if found is not None:
            generator, made, given = found
            self._check_is_pure(generator)
            made.name = self._free(f"{made.name}_of_generator")
            self._enter(made.name, made, self._of_generator(generator))
            function = ast.copy_location(ast.Name(made.name, ast.Load()), node.func)
            return ast.copy_location(ast.Call(function, [self.visit(argument) for argument in given], []), node)
        return self.generic_visit(node)

    def _check_is_pure(self, generator: ast.GeneratorExp) -> None:
        for part in (part for part in ast.walk(generator) if isinstance(part, ast.NamedExpr)):
            name = part.target.id
            raise self._refuse(
                part, f"{name!r} is assigned in a generator, and is a variable outside of it; write a for loop"
            )

    def visit_Lambda(self, node: ast.Lambda) -> ast.Name:
        """Take a lambda out that has no name, and give it one."""
        name = self._free("lambda")
        self._enter(name, as_definition(node, name), self._of_lambda(node))
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _free(self, kind: str) -> str:
        name = f"{kind}_{len(self.found) + 1}"
        while name in self._taken:
            name += "_"
        self.unnamed.add(name)
        return name

    def _codes(self, name: str) -> Iterator[CodeType]:
        return (part for part in self._code.co_consts if isinstance(part, CodeType) and part.co_name == name)

    def _of_lambda(self, node: ast.Lambda) -> list[CodeType]:
        codes = [code for code in self._codes(LAMBDA) if code.co_firstlineno == node.lineno]
        body = node.body
        place = body.lineno, body.col_offset, body.end_lineno, body.end_col_offset
        return codes if len(codes) == 1 else [code for code in codes if place_of_expression(code) == place]

    def _of_generator(self, node: ast.GeneratorExp) -> list[CodeType]:
        """Return the code of a generator, as if it made for itself what it goes through first, which Python passes to it."""
        outer = {*self._code.co_varnames, *self._code.co_cellvars, *self._code.co_freevars, *self.found}
        used = {part.id for part in ast.walk(node.generators[0].iter) if isinstance(part, ast.Name)} & outer
        begins = [code for code in self._codes(GENERATOR) if code.co_firstlineno == node.lineno]
        # Python that was told to keep no columns says nothing more than the line.
        found = [code for code in begins if runs_within(code, node.elt)] if any(map(has_columns, begins)) else begins
        if not found:
            raise self._refuse(node, _LEFT_OUT)
        for code in found:
            hidden = used & {*code.co_varnames, *code.co_cellvars}
            if hidden:
                text = f"{min(hidden)!r} names what is gone through here, and each part of it; give one another name"
                raise self._refuse(node, text)
        return [code.replace(co_freevars=(*code.co_freevars, *sorted(used - {*code.co_freevars}))) for code in found]

    def _enter(self, name: str, node: ast.FunctionDef, codes: list[CodeType]) -> None:
        if name in self.found:
            raise self._refuse(node, f"the function {name!r} is defined more than once; give each a name of its own")
        if not codes and not any(_begins_at(node.lineno, part) for part in self._code.co_consts):
            raise self._refuse(node, _LEFT_OUT)
        if len(codes) != 1:
            raise self._refuse(
                node, "this function cannot be told from others on its line; write it on a line of its own"
            )
        self.found[name] = node, codes[0]


def _begins_at(line: int, constant: object) -> bool:
    return isinstance(constant, CodeType) and constant.co_firstlineno == line


def _captures(
    codes: Mapping[str, CodeType], variables: Collection[str], around: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the variables that each function uses, itself or by the functions that it calls."""
    uses = {name: {*code.co_freevars} & {*variables} for name, code in codes.items()}
    changed = True
    while changed:
        changed = False
        for name, code in codes.items():
            called = (uses.get(free, around.get(free, ())) for free in code.co_freevars)
            more = set().union(*called) - uses[name]
            uses[name] |= more
            changed = changed or bool(more)
    return {name: tuple(sorted(found)) for name, found in uses.items()}


def _assign_aliases(node: ast.FunctionDef, code: CodeType, aliases: Mapping[str, ast.expr]) -> None:
    """Begin a function with the aliases that it uses of the function around it, and those that these are made of."""
    needed = {*code.co_freevars} & aliases.keys()
    for name, value in reversed([*aliases.items()]):
        if name in needed:
            needed |= {part.id for part in ast.walk(value) if isinstance(part, ast.Name)} & aliases.keys()
    first = node.body[0]
    made = [
        ast.Assign([ast.Name(name, ast.Store())], copy.deepcopy(aliases[name])) for name in aliases if name in needed
    ]
    for part in (part for statement in made for part in ast.walk(statement)):
        ast.copy_location(part, first)
    node.body = [*made, *node.body]


def _with_cells(function: FunctionType, code: CodeType, defaults: tuple[object, ...]) -> FunctionType:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells.get(name) or CellType() for name in code.co_freevars)
    return FunctionType(code, function.__globals__, code.co_name, defaults or None, closure)


def _defaults(node: ast.FunctionDef, refuse: _Refuse) -> tuple[object, ...]:
    values = []
    for default in (*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)):
        try:
            values.append(ast.literal_eval(default))
        except ValueError:
            text = f"the default {ast.unparse(default)} of a function within a function is not written out; pass it at the call"
            raise refuse(default, text) from None
    return tuple(values)


def _check_stores(tree: ast.FunctionDef, found: Collection[str], refuse: _Refuse) -> None:
    for node in ast.walk(tree):
        name = node.arg if isinstance(node, ast.arg) else node.id if _is_store(node) else None
        if name in found:
            raise refuse(node, f"{name!r} is a function within {tree.name}, too; give each a name of its own")


def _is_store(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)


def _pass_at_calls(tree: ast.FunctionDef, uses: Mapping[str, tuple[str, ...]], refuse: _Refuse) -> None:
    called = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in uses:
            called.add(id(node.func))
            _check_order(node, uses[node.func.id], refuse)
            given = [ast.copy_location(ast.Name(name, ast.Load()), node.func) for name in uses[node.func.id]]
            node.args = [*given, *node.args]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and uses.get(node.id) and id(node) not in called:
            text = f"{node.id!r} uses {uses[node.id][0]!r} of {tree.name}, so it can be called here and not passed on"
            raise refuse(node, f"{text}; give it that as an argument")


def _check_order(call: ast.Call, captured: Collection[str], refuse: _Refuse) -> None:
    """Refuse to assign, in the arguments of a call, what is passed before these."""
    for part in (part for argument in (*call.args, *call.keywords) for part in ast.walk(argument)):
        if isinstance(part, ast.NamedExpr) and part.target.id in captured:
            text = f"{part.target.id!r} is assigned here, and used by the function that is called"
            raise refuse(part, f"{text}; assign it in a statement before")
