"""A kernel's source: parsing, static names, thread indices and written parameters.

Everything here works on `ast` alone: nothing is compiled, and no types are inferred. Names are resolved by object, so
that an alias of `nb.tid` is `nb.tid`. Globals are looked up anew on every request, because they may be rebound between
two launches; only the parsed tree is kept. The order of the file is the order of the work: parse and refuse, resolve,
walk the device functions, then the questions (indices, dependencies, writes). The text that is compiled is made in
`emission`.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any, ClassVar, Literal

import numpy as np

from numbridge.kernels.errors import (
    KernelError,
    KernelUnsupportedError,
    source_excerpt,
)
from numbridge.kernels.intrinsics import Intrinsic, axis_of, intrinsic_of

__all__ = [
    "MISSING",
    "Dependency",
    "FunctionSource",
    "Program",
    "Sourced",
    "Static",
    "index_uses",
    "is_cuda_dispatcher",
    "is_dispatcher",
]

Role = Literal["kernel", "func"]

RESERVED = "_nb_"
_BLOCK_KINDS = frozenset({"axis", "gridsize", "block"})
MAX_RANK = 4
_WHAT = {"kernel": "a kernel", "func": "a device function"}
_LIBRARIES = frozenset({"builtins", "math", "cmath", "operator", "numpy", "numba", "numbridge", "ml_dtypes"})


# --------------------------------------------------------------------------------------------------------------------
# What the module hands out


@dataclass(frozen=True, eq=False)
class Dependency:
    """A global or closure value that a kernel read.

    Attributes
    ----------
    container : Mapping or CellType
        A module's dictionary, a class's, or a closure cell.
    name : str or None
        The key in the dictionary; None for a cell.
    value : object
        What was found there.
    """

    container: Any
    name: str | None
    value: Any

    def holds(self) -> bool:
        """Return whether the same object is still there."""
        if self.name is not None:
            return self.container.get(self.name, MISSING) is self.value
        try:
            return self.container.cell_contents is self.value
        except ValueError:
            return False


@dataclass(frozen=True, eq=False)
class Static:
    """What a name or an attribute chain stands for before the kernel runs.

    Attributes
    ----------
    value : object
        The object.
    root, root_value, path
        The first name of the chain, what it stands for, and the attributes that follow.
    through_modules : bool
        Whether every attribute but the last was taken from a module.
    builtin : bool
        Whether the root is one of Python's built-in names.
    reached : tuple of Dependency
        The values that were read on the way.
    """

    value: Any
    root: str
    root_value: Any
    path: tuple[str, ...]
    through_modules: bool
    builtin: bool
    reached: tuple[Dependency, ...]


class _Missing(enum.Enum):
    MISSING = enum.auto()


MISSING = _Missing.MISSING


# --------------------------------------------------------------------------------------------------------------------
# What may be written in a kernel

_REFUSED: dict[str, tuple[str, str]] = {
    "Yield": ("yield", "store results in an array"),
    "YieldFrom": ("yield", "store results in an array"),
    "AsyncFunctionDef": ("async", "write an ordinary function"),
    "AsyncFor": ("async", "write an ordinary loop"),
    "AsyncWith": ("async", "write an ordinary function"),
    "Await": ("await", "write an ordinary function"),
    "Try": ("try", "test the condition with if"),
    "TryStar": ("try", "test the condition with if"),
    "With": ("with", "call what it does directly"),
    "Lambda": ("a lambda", "write a function decorated with @nb.func"),
    "FunctionDef": ("a nested function", "define it outside, decorated with @nb.func"),
    "ClassDef": ("a class", "define it outside"),
    "Global": ("global", "pass an array and store into it"),
    "Nonlocal": ("nonlocal", "pass an array and store into it"),
    "Delete": ("del", "leave it out: local variables end with the thread"),
    "Starred": ("a starred expression", "write the elements out"),
    "JoinedStr": ("an f-string", "use a plain string"),
    "TemplateStr": ("a template string", "use a plain string"),
    "Import": ("import", "import at the top of the module"),
    "ImportFrom": ("import", "import at the top of the module"),
    "ListComp": ("a comprehension", "write a for loop"),
    "SetComp": ("a comprehension", "write a for loop"),
    "DictComp": ("a comprehension", "write a for loop"),
    "GeneratorExp": ("a generator expression", "write a for loop"),
    "List": ("a list", "use a tuple, or cuda.local.array for something to write into"),
    "Set": ("a set", "use a tuple"),
    "Dict": ("a dict", "use a tuple"),
    "Match": ("match", "use if and elif"),
}
_ALLOWED = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Expr, ast.Return, ast.Pass),
    *(ast.Break, ast.Continue, ast.Raise, ast.Assert, ast.BoolOp, ast.NamedExpr, ast.BinOp, ast.UnaryOp, ast.IfExp),
    *(ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.Attribute, ast.Subscript, ast.Name, ast.Tuple, ast.Slice),
)


def _position(node: ast.AST) -> tuple[int, int, int, int]:
    located: Any = node
    return located.lineno, located.col_offset, located.end_lineno, located.end_col_offset


def _fence(source: FunctionSource) -> None:
    """Refuse, at the first place where it stands, what no target can run."""
    _fence_parameters(source)
    for node in source.nodes:
        if not isinstance(node, _ALLOWED):
            _refuse_syntax(source, node)
        elif isinstance(node, ast.Name) and node.id.startswith(RESERVED):
            raise source.error(
                node, f"the name {node.id!r} is reserved: generated names start with {RESERVED}; rename it"
            )
        elif isinstance(node, ast.keyword) and node.arg is None:
            raise source.error(node, "a double-starred argument cannot be used in a kernel; write the arguments out")
        elif isinstance(node, ast.Return) and source.role == "kernel" and not _returns_nothing(node):
            raise source.error(node, "a kernel returns nothing; store the result in an array")


def _refuse_syntax(source: FunctionSource, node: ast.AST) -> None:
    kind = type(node).__name__
    what, instead = _REFUSED.get(kind, (f"this syntax ({kind})", "write it with simpler statements"))
    message = f"{what} cannot be used in {_WHAT[source.role]}; {instead}"
    raise source.error(node, message, KernelUnsupportedError)


def _returns_nothing(node: ast.Return) -> bool:
    return node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)


def _fence_parameters(source: FunctionSource) -> None:
    arguments, what = source.tree.args, _WHAT[source.role]
    for starred, spelling in ((arguments.vararg, "*"), (arguments.kwarg, "**")):
        if starred is not None:
            raise source.error(
                starred, f"{spelling}{starred.arg}: {what} takes a fixed number of parameters; name them"
            )
    for argument in arguments.kwonlyargs:
        raise source.error(argument, f"{argument.arg!r} is keyword-only: {what} takes its parameters by position")
    for argument in (*arguments.posonlyargs, *arguments.args):
        if argument.arg.startswith(RESERVED):
            raise source.error(
                argument, f"the parameter {argument.arg!r} is reserved: generated names start with {RESERVED}"
            )
    if arguments.defaults and source.role == "kernel":
        message = "a kernel's parameters have no default values; pass the value at the launch"
        raise source.error(arguments.defaults[0], message)


# --------------------------------------------------------------------------------------------------------------------
# Parsing and static resolution


def _parse(function: FunctionType) -> tuple[ast.FunctionDef, int, list[str]]:
    """Return the definition with absolute positions, its first line number and its source lines."""
    code = function.__code__
    where = f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
    if code.co_name == "<lambda>":
        raise KernelError(f"{where} is a lambda; write a def, so that its source can be read")
    try:
        # The code object, not the function: a __wrapped__ attribute would lead to another function's source.
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        message = f"the source of {where} cannot be read; it must be in a file or a notebook cell"
        raise KernelError(message) from None
    definition = _definition(lines)
    if isinstance(definition, ast.AsyncFunctionDef):
        raise KernelUnsupportedError(f"{where} is async; write an ordinary function")
    if definition is None or not _matches(definition, code):
        raise KernelError(f"the source of {where} has changed since it was loaded; import it again")
    indented = lines[0][:1].isspace()
    ast.increment_lineno(definition, first - 1 - indented)
    return definition, first, lines


def _definition(lines: list[str]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    # A wrapper statement instead of a dedent keeps columns and multi-line strings as they are in the file.
    text = "".join(lines)
    try:
        tree = ast.parse("if True:\n" + text if lines[0][:1].isspace() else text)
    except SyntaxError:
        return None
    outer: Any = tree.body[0] if tree.body else None
    inner = outer.body[0] if isinstance(outer, ast.If) else outer
    return inner if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _matches(definition: ast.FunctionDef, code: CodeType) -> bool:
    arguments = definition.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    count = code.co_argcount + code.co_kwonlyargcount
    return definition.name == code.co_name and tuple(names) == code.co_varnames[:count]


def _strip(definition: ast.FunctionDef) -> None:
    """Drop what says nothing about the computation: decorators, annotations, the docstring."""
    definition.decorator_list, definition.returns = [], None
    for node in ast.walk(definition):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.copy_location(ast.Constant(None), node.annotation)
    first = definition.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        definition.body = definition.body[1:] or [ast.copy_location(ast.Pass(), first)]


class FunctionSource:
    """The parsed source of one function, and the questions that the back ends ask about it.

    Parameters
    ----------
    function : FunctionType
        The Python function.
    role : {'kernel', 'func'}
        Whether it is launched, or called by kernels.
    name : str, optional
        What to call it in generated code; by default the function's name.

    Raises
    ------
    KernelError
        If the source cannot be read or holds something that no target can run; the message shows where.
    """

    def __init__(self, function: FunctionType, role: Role, name: str | None = None) -> None:
        self.function = function
        self.role: Role = role
        self.name = function.__name__ if name is None else name
        # A device function's derivative by hand, which `nb.func_grad` enters here.
        self.gradient: FunctionSource | None = None
        self.filename = function.__code__.co_filename
        self.tree, self._first, self._lines = _parse(function)
        _strip(self.tree)
        arguments = self.tree.args
        self.parameters = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))
        self.nodes = _in_order(self.tree.body)
        _fence(self)
        stored = [n.id for n in self.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.locals = frozenset({*self.parameters, *stored})
        once = {name for name in stored if stored.count(name) == 1} - {*self.parameters}
        self._aliases = _single_aliases(self.nodes, self.locals, once)
        self._unpacked = _unpacked_calls(self.nodes)

    def __repr__(self) -> str:
        """Return the function's name and where it is."""
        return f"<source of {self.name}, {self.filename}:{self.tree.lineno}>"

    def error(self, node: Any, message: str, kind: type[KernelError] = KernelError) -> KernelError:
        """Return an error whose message ends in file:line:column, the source line and a caret."""
        return kind(f"{message}\n  {self.excerpt(node)}")

    def excerpt(self, node: Any) -> str:
        """Return file:line:column of a node, the source line and a caret."""
        text = self._lines[node.lineno - self._first]
        column = len(text.encode()[: node.col_offset].decode(errors="replace"))
        return source_excerpt(self.filename, node.lineno, column, text)

    @property
    def index_rank(self) -> int:
        """How many thread indices the function uses, with the device functions that it calls; 0 if none."""
        return _index_rank(Program(self))

    @property
    def asks_for_block(self) -> bool:
        """Whether the kernel asks for its place in a block or a grid, or works with the other threads of its block."""
        return any(
            intrinsic is not None and intrinsic.kind in _BLOCK_KINDS
            for part in Program(self).sources
            for node in part.nodes
            if _is_load(node)
            for intrinsic in (_intrinsic(part, node),)
        )

    @functools.cached_property
    def memory(self) -> frozenset[str]:
        """The local variables that are only ever local or shared memory of a thread or block."""
        made: dict[str, bool] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                called = _intrinsic(self, node.value.func) if isinstance(node.value, ast.Call) else None
                fits = called is not None and called.name in ("cuda.local.array", "cuda.shared.array")
                made[node.targets[0].id] = made.get(node.targets[0].id, True) and fits
        return frozenset(name for name, fits in made.items() if fits)

    def written(
        self, ranks: Mapping[str, int] | None = None, records: Mapping[str, np.dtype[Any]] | None = None
    ) -> frozenset[str]:
        """Return the parameters that the function may write.

        Parameters
        ----------
        ranks : mapping of str to int, optional
            How many dimensions each array parameter has. With it, an element of an array is known not to be a view.
            Without it, ``u = a[i]; u += 1`` counts as arithmetic on an element, which it is unless `a` has more dimensions.
        records : mapping of str to numpy.dtype, optional
            The structured dtypes of those that have records, which stay memory: ``r = a[i]; r.x = 1`` writes to `a`.
        """
        return _Writes(self, ranks, records or {}).run()

    def dependencies(self) -> tuple[Dependency, ...]:
        """Return every global and closure value that the function and its device functions read.

        Modules, built-in names and what belongs to NumPy, Numba, numbridge and the mathematical modules are left out.
        """
        found: dict[tuple[int, str | None], Dependency] = {}
        for source in Program(self).sources:
            for dependency in source.read():
                found.setdefault((id(dependency.container), dependency.name), dependency)
        return tuple(found.values())

    def unpacked(self, call: ast.Call) -> int | None:
        """Return into how many names the result of a call is unpacked, or None if it is not."""
        return self._unpacked.get(_position(call))

    def is_alias(self, statement: ast.Assign) -> bool:
        """Return whether an assignment only gives a function, class or module a local name."""
        target = statement.targets[0]
        return isinstance(target, ast.Name) and self._local_alias(target.id) is not None

    def resolve(self, node: ast.AST) -> Static | None:
        """Return what a name or attribute chain stands for, or None if only the running kernel knows.

        Raises
        ------
        KernelError
            If a name is not defined or a module lacks the attribute.
        """
        if isinstance(node, ast.Name):
            return self._local_alias(node.id) if node.id in self.locals else self._global(node)
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            return None if base is None else self._member(base, node)
        return None

    def fold(self, node: ast.AST) -> Any:
        """Return the value of a constant expression of numbers and tuples, or `MISSING`."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            values = tuple(self.fold(element) for element in node.elts)
            return MISSING if any(value is MISSING for value in values) else values
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            return self._fold_operation(node)
        static = self.resolve(node)
        return MISSING if static is None else static.value

    def read(self) -> Iterator[Dependency]:
        """Yield the global and closure values that this function reads, in source order."""
        inner: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner and isinstance(node.ctx, ast.Load):
                static = self.resolve(node)
                if static is not None:
                    inner.update(id(child) for child in ast.walk(node))
                    yield from static.reached

    def _fold_operation(self, node: ast.BinOp | ast.UnaryOp) -> Any:
        parts = (node.operand,) if isinstance(node, ast.UnaryOp) else (node.left, node.right)
        values = tuple(self.fold(part) for part in parts)
        apply = _FOLDED.get(type(node.op))
        if apply is None or not all(type(value) in (int, float) for value in values):
            return MISSING
        try:
            return apply(*values)
        except ArithmeticError:
            return MISSING

    def _local_alias(self, name: str) -> Static | None:
        chain = self._aliases.get(name)
        static = None if chain is None else self.resolve(chain)
        return static if static is not None and (callable(static.value) or _is_module(static.value)) else None

    def _global(self, node: ast.Name) -> Static:
        name, cells = (
            node.id,
            dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True)),
        )
        if name in cells:
            return self._root(name, self._contents(cells[name], node), cells[name], None)
        if name in self.function.__globals__:
            return self._root(name, self.function.__globals__[name], self.function.__globals__, name)
        value = getattr(builtins, name, MISSING)
        if value is MISSING:
            raise self.error(node, f"the name {name!r} is not defined")
        return Static(value, name, value, (), True, True, ())

    def _contents(self, cell: CellType, node: ast.Name) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            raise self.error(node, f"the name {node.id!r} has no value yet in the enclosing function") from None

    def _root(self, name: str, value: Any, container: Any, key: str | None) -> Static:
        reached = () if _of_library(value) else (Dependency(container, key, value),)
        return Static(value, name, value, (), True, False, reached)

    def _member(self, base: Static, node: ast.Attribute) -> Static | None:
        value: Any = axis_of(base.value, node.attr)
        if value is None:
            if not _has_static_members(base.value, node.attr):
                return None
            value = getattr(base.value, node.attr, MISSING)
            if value is MISSING:
                name = getattr(base.value, "__name__", repr(base.value))
                raise self.error(node, f"{name} has no attribute {node.attr!r}")
        return Static(
            value,
            base.root,
            base.root_value,
            (*base.path, node.attr),
            base.through_modules and _is_module(base.value),
            base.builtin,
            (*base.reached, *_member_dependency(base.value, node.attr)),
        )


_FOLDED: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def _in_order(body: list[ast.stmt]) -> list[Any]:
    nodes = [n for statement in body for n in ast.walk(statement) if hasattr(n, "lineno")]
    # Parents before children that start at the same place: the longer node first.
    return sorted(nodes, key=lambda n: (n.lineno, n.col_offset, -n.end_lineno, -n.end_col_offset))


def _single_aliases(nodes: list[Any], local: frozenset[str], once: set[str]) -> dict[str, ast.expr]:
    """Return what each local name stands for that is assigned once, from a global name or an attribute chain of one."""
    aliases: dict[str, ast.expr] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Name | ast.Attribute):
            target, root = node.targets[0], _chain_root(node.value)
            # Aliases of aliases count too, but only of earlier ones: two that name each other would never end.
            if isinstance(target, ast.Name) and target.id in once and (root not in local or root in aliases):
                aliases[target.id] = node.value
    return aliases


def _chain_root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _unpacked_calls(nodes: list[Any]) -> dict[tuple[int, int, int, int], int]:
    found: dict[tuple[int, int, int, int], int] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                if isinstance(target, ast.Tuple):
                    found[_position(node.value)] = len(target.elts)
    return found


def _is_module(value: Any) -> bool:
    return isinstance(value, ModuleType)


def _has_static_members(value: Any, attribute: str) -> bool:
    if isinstance(value, ModuleType | type | np.ufunc):
        return True
    return isinstance(value, tuple) and attribute in getattr(value, "_fields", ())


def _root_package(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name.split(".")[0] if isinstance(name, str) else ""


def _of_library(value: Any) -> bool:
    """Return whether a value is a module, or a named object of a library, which no user rebinds."""
    if isinstance(value, ModuleType):
        return True
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if _root_package(value) not in _LIBRARIES or not isinstance(name, str):
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _member_dependency(owner: Any, attribute: str) -> tuple[Dependency, ...]:
    if _root_package(owner) in _LIBRARIES:
        return ()
    holders = (owner,) if isinstance(owner, ModuleType) else getattr(owner, "__mro__", ())
    for holder in holders:
        values = vars(holder)
        if attribute in values:
            return () if _of_library(values[attribute]) else (Dependency(values, attribute, values[attribute]),)
    return ()


class Sourced:
    """Base of kernels and device functions: holds a Python function and, once asked for, its source."""

    role: ClassVar[Role]
    function: Any  # a FunctionType, which a type checker would take for a method here
    name: str

    def __reduce__(self) -> str:
        """Pickle and copy by name, as Python does its own functions."""
        name: str = self.function.__qualname__
        return name

    @functools.cached_property
    def source(self) -> FunctionSource:
        """The parsed source."""
        return FunctionSource(self.function, self.role, self.name)


# --------------------------------------------------------------------------------------------------------------------
# The device functions that a kernel reaches


def _instance_of(value: Any, module: str, name: str) -> bool:
    """Return whether a value is an instance of a class whose module something else has imported."""
    owner = getattr(sys.modules.get(module), name, None)
    return isinstance(owner, type) and isinstance(value, owner)


def is_cuda_dispatcher(value: Any) -> bool:
    """Return whether a value is what `@cuda.jit` makes."""
    return _instance_of(value, "numba.cuda.dispatcher", "CUDADispatcher")


def is_dispatcher(value: Any) -> bool:
    return _instance_of(value, "numba.core.dispatcher", "Dispatcher") and not is_cuda_dispatcher(value)


class Program:
    """A function and every device function that it reaches, callee before caller.

    Device functions are those that numbridge emits as text: `@nb.func` and `@cuda.jit(device=True)`. Functions
    compiled by `numba.njit` stay Numba's. With `gradients`, the derivatives by hand of those functions are among them.
    """

    def __init__(self, root: FunctionSource, *, gradients: bool = False) -> None:
        self.root = root
        self._gradients = gradients
        self.sources: list[FunctionSource] = []
        self._known: dict[int, FunctionSource] = {id(root.function): root}
        self._opaque: dict[int, FunctionSource | None] = {}
        self._visit(root, set())

    def callee(self, value: Any) -> FunctionSource | None:
        """Return the source of a device function, or None for anything else."""
        if isinstance(value, Sourced):
            return self._known.setdefault(id(value.function), value.source)
        if is_cuda_dispatcher(value):
            if id(value.py_func) not in self._known:
                self._known[id(value.py_func)] = FunctionSource(value.py_func, "func")
            return self._known[id(value.py_func)]
        return None

    def compiled(self, value: Any) -> FunctionSource | None:
        """Return the source of an njit function as far as it can be read, or None."""
        if not is_dispatcher(value):
            return None
        if id(value) not in self._opaque:
            try:
                self._opaque[id(value)] = FunctionSource(value.py_func, "func")
            except KernelError:
                self._opaque[id(value)] = None
        return self._opaque[id(value)]

    def calls(self, source: FunctionSource) -> Iterator[tuple[ast.Call, FunctionSource]]:
        """Yield the calls of device functions in one source."""
        for node in source.nodes:
            static = source.resolve(node.func) if isinstance(node, ast.Call) else None
            if static is None:
                continue
            if isinstance(static.value, Sourced) and static.value.role == "kernel":
                message = f"{static.value.name} is a kernel, which only a launch can run; decorate it with @nb.func"
                raise source.error(node, message)
            callee = self.callee(static.value)
            if callee is not None:
                yield node, callee

    def compiled_functions(self) -> Iterator[Any]:
        """Yield the njit functions that the program refers to, without repeats."""
        seen: set[int] = set()
        for source in self.sources:
            for node in source.nodes:
                static = source.resolve(node) if _is_load(node) else None
                if static is not None and is_dispatcher(static.value) and id(static.value) not in seen:
                    seen.add(id(static.value))
                    yield static.value

    def _visit(self, source: FunctionSource, seen: set[int]) -> None:
        seen.add(id(source))
        for _, callee in self.calls(source):
            if id(callee) not in seen:
                self._visit(callee, seen)
        if self._gradients and source.gradient is not None and id(source.gradient) not in seen:
            self._visit(source.gradient, seen)
        self.sources.append(source)


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)


# --------------------------------------------------------------------------------------------------------------------
# Thread indices


def _index_rank(program: Program) -> int:
    rank, first = 0, None
    axes = 0
    for source in reversed(program.sources):
        for node, kind, count in index_uses(source):
            axes = max(axes, count)
            if kind not in ("tid", "grid"):
                continue
            if first is not None and count != rank:
                place = f"{first[0].filename}:{first[1].lineno}"
                message = (
                    f"the thread index has {count} dimension(s) here and {rank} at {place}; use one rank throughout"
                )
                raise source.error(node, message)
            rank, first = count, first or (source, node)
    return max(rank, axes)


def index_uses(source: FunctionSource) -> Iterator[tuple[Any, str, int]]:
    """Yield each use of a thread index: the node, its kind, and how many axes it needs."""
    for node in source.nodes:
        if isinstance(node, ast.Call):
            intrinsic = _intrinsic(source, node.func)
            if intrinsic is not None and intrinsic.kind in ("tid", "grid", "gridsize"):
                yield node, intrinsic.kind, _call_rank(source, node, intrinsic)
        elif _is_load(node):
            intrinsic = _intrinsic(source, node)
            if intrinsic is not None and intrinsic.kind == "axis":
                yield node, "axis", intrinsic.axis + 1


def _intrinsic(source: FunctionSource, node: ast.AST) -> Intrinsic | None:
    static = source.resolve(node)
    return None if static is None else intrinsic_of(static.value)


def _call_rank(source: FunctionSource, node: ast.Call, intrinsic: Intrinsic) -> int:
    if intrinsic.kind == "tid":
        if node.args or node.keywords:
            raise source.error(node, "nb.tid() takes no arguments; write i = nb.tid() or i, j = nb.tid()")
        rank = source.unpacked(node) or 1
        if rank > MAX_RANK:
            raise source.error(node, f"a thread has up to {MAX_RANK} indices, and nb.tid() is unpacked into {rank}")
        return rank
    arguments = [*node.args, *(k.value for k in node.keywords)]
    count = source.fold(arguments[0]) if len(arguments) == 1 else MISSING
    if type(count) is not int or not 1 <= count <= 3:
        raise source.error(node, f"{intrinsic.name}(n) needs n to be 1, 2 or 3, written as a constant")
    return count


# --------------------------------------------------------------------------------------------------------------------
# Which parameters are written

_UNKNOWN_RANK = 99
_DEEPEST = 4


@dataclass(frozen=True)
class _Alias:
    """A value that may be a parameter's memory: its array, a view of it, or `nested` tuples around one.

    `taken` counts the dimensions that subscripts removed from `rank`, which is the parameter's own where None. Where the
    parameter has records, this is a field of numbers if `record` is false.
    """

    parameter: str
    taken: int = 0
    rank: int | None = None
    nested: int = 0
    record: bool = True


# What a variable may hold: aliases; None for something that keeps dimensions when used as an index (a slice, None, an
# ellipsis); and an int n for a tuple that takes n dimensions when used as an index. No int stands for one dimension.
_Value = frozenset["_Alias | int | None"]
_NOTHING: _Value = frozenset()
_FREE: _Value = frozenset({None})

_METADATA = frozenset({"shape", "strides", "ndim", "size", "dtype", "itemsize", "nbytes", "flags"})
_SAME_RANK = frozenset(
    {"transpose", "swapaxes", "view", "conj", "conjugate", "asarray", "asanyarray", "ascontiguousarray"}
    | {"asfortranarray", "flip", "flipud", "fliplr", "real", "imag", "moveaxis", "rollaxis", "rot90"}
)
_VIEW_METHODS = frozenset(
    {"reshape", "ravel", "view", "transpose", "swapaxes", "squeeze", "diagonal", "getfield", "conj", "conjugate"}
    | {"__getitem__", "astype", "newbyteorder"}
)
_MUTATING_METHODS = frozenset(
    {"fill", "sort", "partition", "put", "itemset", "byteswap", "resize", "setfield", "setflags"}
)
_READING_METHODS = frozenset(name for name in dir(np.ndarray) if not name.startswith("_")) | {"index", "count"}
_NUMPY_WRITES_FIRST = frozenset(
    {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis", "shuffle", "setitem"}
)
_NUMPY_FRESH = frozenset(
    {"all", "allclose", "amax", "amin", "any", "append", "arange", "argmax", "argmin", "argsort", "around", "array"}
    | {"array_equal", "average", "bincount", "clip", "concatenate", "convolve", "copy", "corrcoef", "correlate"}
    | {"count_nonzero", "cov", "cross", "cumprod", "cumsum", "delete", "diff", "digitize", "dot", "dstack", "empty"}
    | {"empty_like", "eye", "full", "full_like", "histogram", "hstack", "identity", "inner", "insert", "interp"}
    | {"isclose", "kron", "linspace", "max", "mean", "median", "min", "nanargmax", "nanargmin", "nancumprod"}
    | {"nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "ndim"}
    | {"nonzero", "ones", "ones_like", "outer", "percentile", "prod", "ptp", "quantile", "repeat", "roll", "round"}
    | {"searchsorted", "shape", "size", "sort", "stack", "std", "sum", "take", "tile", "trace", "unique", "var"}
    | {"vdot", "vstack", "where", "zeros", "zeros_like"}
)
_BUILTINS_READ = frozenset(
    {"len", "abs", "round", "pow", "divmod", "sum", "print", "isinstance", "hash", "any", "all", "ord"}
    | {"chr", "callable", "id", "repr", "hasattr"}
)
_BUILTINS_REACH = frozenset({"exec", "eval", "vars", "locals", "globals"})
_NUMBA_READ = frozenset({"literal_unroll", "literally", "prange"})


@dataclass(frozen=True)
class _Arguments:
    """What a call passes, and the call's syntax."""

    call: ast.Call
    positional: tuple[_Value, ...]
    named: Mapping[str, _Value]

    def all(self) -> _Value:
        return _NOTHING.union(*self.positional, *self.named.values())

    def first(self) -> _Value:
        return self.positional[0] if self.positional else _NOTHING

    def rest(self) -> _Arguments:
        return _Arguments(self.call, self.positional[1:], self.named)


class _Writes:
    """The alias analysis of a function and everything that it calls, to a fixpoint.

    Device functions are analysed anew for each combination of what their arguments may alias, so that the answer is
    always in terms of the outermost function's parameters.
    """

    def __init__(
        self, root: FunctionSource, ranks: Mapping[str, int] | None, records: Mapping[str, np.dtype[Any]]
    ) -> None:
        self.ranks = ranks
        self._fields = {name: dict(_fields(dtype)) for name, dtype in records.items()}
        self.program = Program(root)
        self._written: set[str] = set()
        self._returns: dict[tuple[int, tuple[_Value, ...]], _Value] = {}
        self._active: set[tuple[int, tuple[_Value, ...]]] = set()

    def run(self) -> frozenset[str]:
        """Return the parameters that may be written."""
        root = self.program.root
        start = tuple(frozenset({_Alias(name)}) for name in root.parameters)
        before = None
        while before != (before := (dict(self._returns), set(self._written))):
            self._active.clear()
            self.analyse(root, start)
        return frozenset(self._written)

    def analyse(self, source: FunctionSource, arguments: tuple[_Value, ...]) -> _Value:
        """Record what a function writes, given its arguments, and return what its result may alias."""
        key = (id(source), arguments)
        if key not in self._active:
            self._active.add(key)
            self._returns[key] = _BodyWrites(self, source, arguments).run()
        return self._returns.get(key, _NOTHING)

    def write(self, value: _Value) -> None:
        """Record a store into whatever a value may alias."""
        self._written.update(alias.parameter for alias in _aliases(value))

    def is_view(self, alias: _Alias) -> bool:
        """Return whether an alias may still be memory, and not a number or an element."""
        if alias.record and alias.parameter in self._fields:
            return True
        return alias.taken < self._rank(alias) or (alias.taken <= 0 and alias.parameter not in self._fields)

    def _rank(self, alias: _Alias) -> int:
        if alias.rank is not None:
            return alias.rank
        return _UNKNOWN_RANK if self.ranks is None else self.ranks.get(alias.parameter, _UNKNOWN_RANK)

    def field(self, alias: _Alias, name: str) -> _Value:
        """Return what a field of records, or an attribute of something else, may alias."""
        fields = self._fields.get(alias.parameter)
        if alias.nested or fields is None or not alias.record or name not in fields:
            return frozenset(_unwrapped(alias, keep=False)) if alias.nested else frozenset({alias})
        inner = fields[name]
        if inner is None:
            return frozenset({_Alias(alias.parameter, 0, _UNKNOWN_RANK)})
        is_record, rank = inner
        view = _Alias(alias.parameter, 0, max(self._rank(alias) - alias.taken, 0) + rank, record=is_record)
        return frozenset({view} if self.is_view(view) else ())

    def augments(self, alias: _Alias) -> bool:
        """Return whether an augmented assignment to a variable that holds this alias works in place."""
        if alias.nested:
            return False
        if alias.rank is None and self.ranks is None:
            return alias.taken <= 0
        if alias.rank is None and self.ranks is not None and alias.parameter not in self.ranks:
            return False
        return self.is_view(alias)

    def elements(self, value: _Value, taken: int | None = 1, *, sliced: bool = False) -> _Value:
        """Return what a subscript of a value, or a loop over it, may alias; `taken` is None where unknown."""
        found: set[_Alias | int | None] = set()
        for alias in _aliases(value):
            if alias.nested:
                found.update(_unwrapped(alias, keep=sliced or taken is None))
            elif taken is None:
                found.add(_Alias(alias.parameter, 0, _UNKNOWN_RANK))
            else:
                view = replace(alias, taken=min(max(alias.taken + taken, -8), 32))
                found.update({view} if self.is_view(view) else ())
        return frozenset(found)


def _fields(dtype: np.dtype[Any]) -> Iterator[tuple[str, tuple[bool, int] | None]]:
    """Yield the names of the fields of records, and of fields within these: whether they hold fields, and dimensions.

    There is None for a name of fields that differ in that.
    """
    found: dict[str, set[tuple[bool, int]]] = {}
    waiting = [dtype]
    while waiting:
        for name, (kind, *_) in (waiting.pop().fields or {}).items():
            found.setdefault(name, set()).add((kind.base.fields is not None, len(kind.shape)))
            waiting.append(kind.base)
    for name, kinds in found.items():
        yield name, kinds.pop() if len(kinds) == 1 else None


def _aliases(value: _Value) -> Iterator[_Alias]:
    return (item for item in value if isinstance(item, _Alias))


def _counts(value: _Value) -> list[int]:
    return [item for item in value if isinstance(item, int)]


def _unwrapped(alias: _Alias, *, keep: bool) -> Iterator[_Alias]:
    yield replace(alias, nested=alias.nested - 1)
    if keep or alias.nested == _DEEPEST:
        yield alias


def _wrapped(value: _Value) -> _Value:
    """Return what a tuple around a value may alias."""
    inner = (replace(a, nested=min(a.nested + 1, _DEEPEST)) for a in _aliases(value))
    return frozenset(inner) | (_FREE & value)


def _of_rank(value: _Value, rank: int) -> _Value:
    return frozenset(replace(a, taken=0, rank=rank) for a in _aliases(value))


def _join(*values: _Value) -> _Value:
    """Return what may be any of several values."""
    counted = [value if _counts(value) else value | {1} for value in values]
    return _NOTHING.union(*counted)


class _BodyWrites:
    """One function's body under given arguments. The order of statements is ignored, which errs on the safe side."""

    def __init__(self, writes: _Writes, source: FunctionSource, arguments: tuple[_Value, ...]) -> None:
        self._all = writes
        self._source = source
        self._variables: dict[str, _Value] = {
            name: _join(value) for name, value in zip(source.parameters, arguments, strict=True)
        }
        self._returned: list[_Value] = []

    def run(self) -> _Value:
        """Analyse until no variable may hold anything new; return what the result may alias."""
        before = None
        while before != (before := dict(self._variables)):
            self._returned.clear()
            for node in self._source.nodes:
                if isinstance(node, ast.stmt):
                    self._statement(node)
        return _join(*self._returned) if self._returned else _NOTHING

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                value = self._value(node.value)
                for target in node.targets:
                    self._bind(target, value, node.value)
            case ast.AnnAssign(value=ast.expr() as assigned):
                self._bind(node.target, self._value(assigned), assigned)
            case ast.AugAssign():
                self._augment(node.target, self._value(node.value))
            case ast.For():
                self._bind(node.target, self._all.elements(self._value(node.iter)))
            case ast.Return(value=ast.expr() as returned):
                self._returned.append(self._value(returned))
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._value(child)

    def _bind(self, target: ast.expr, value: _Value, syntax: ast.expr | None = None) -> None:
        if isinstance(target, ast.Name):
            held = self._variables.get(target.id)
            self._variables[target.id] = _join(value) if held is None else _join(held, value)
        elif isinstance(target, ast.Tuple):
            parts = syntax.elts if isinstance(syntax, ast.Tuple) and len(syntax.elts) == len(target.elts) else None
            for position, element in enumerate(target.elts):
                part = self._all.elements(value) if parts is None else self._value(parts[position])
                self._bind(element, part, None if parts is None else parts[position])
        else:
            self._store(target)

    def _augment(self, target: ast.expr, value: _Value) -> None:
        if not isinstance(target, ast.Name):
            self._store(target)
            return
        held = self._variables.get(target.id, _NOTHING)
        self._all.write(frozenset(alias for alias in _aliases(held) if self._all.augments(alias)))
        self._bind(target, frozenset(alias for alias in _aliases(value) if alias.nested))

    def _store(self, target: ast.expr) -> None:
        """Record a store through a subscript or an attribute, at any depth: ``a[i].x[j] = v`` writes `a`."""
        node: ast.expr = target
        while isinstance(node, ast.Subscript | ast.Attribute):
            if isinstance(node, ast.Subscript):
                self._value(node.slice)
            node = node.value
        self._all.write(self._value(node))

    def _value(self, node: ast.expr) -> _Value:
        """Return what an expression may alias, and record what it writes."""
        match node:
            case ast.Name() | ast.Attribute():
                return self._named(node)
            case ast.Constant():
                return _FREE if node.value in (None, ...) else _NOTHING
            case ast.Tuple():
                return self._tuple(node)
            case ast.Subscript():
                name = self._source.fold(node.slice)
                if isinstance(name, str):
                    owner = self._value(node.value)
                    return _NOTHING.union(*(self._all.field(alias, name) for alias in _aliases(owner)))
                taken = self._taken(node.slice)
                return self._all.elements(self._value(node.value), taken, sliced=isinstance(node.slice, ast.Slice))
            case ast.Call():
                return self._call(node)
            case ast.NamedExpr():
                value = self._value(node.value)
                self._bind(node.target, value, node.value)
                return value
            case ast.IfExp():
                self._value(node.test)
                return _join(self._value(node.body), self._value(node.orelse))
            case ast.BoolOp():
                return _join(*(self._value(part) for part in node.values))
        held = [self._value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if isinstance(node, ast.Slice):
            return _FREE
        # Tuples keep their elements when concatenated; arithmetic on arrays makes new ones.
        return frozenset(alias for value in held for alias in _aliases(value) if alias.nested)

    def _named(self, node: ast.Name | ast.Attribute) -> _Value:
        static = self._source.resolve(node)
        if static is not None:
            return _FREE if _dimensions_taken(static.value) != 1 else _NOTHING
        if isinstance(node, ast.Name):
            return self._variables.get(node.id, _NOTHING)
        value = self._value(node.value)
        if node.attr in _METADATA:
            return _NOTHING
        if node.attr == "flat":
            return _of_rank(value, 1)
        return _NOTHING.union(*(self._all.field(alias, node.attr) for alias in _aliases(value)))

    def _tuple(self, node: ast.Tuple) -> _Value:
        parts = [self._value(element) for element in node.elts]
        count = sum(min(_counts(part), default=1) for part in parts)
        return _NOTHING.union(*(_wrapped(part) for part in parts)) | {count}

    def _taken(self, index: ast.expr) -> int | None:
        """Return how many dimensions a subscript removes, or None where that is not known."""
        total = 0
        for part in index.elts if isinstance(index, ast.Tuple) else (index,):
            value = self._value(part)
            fixed = MISSING if isinstance(part, ast.Slice) else self._source.fold(part)
            if fixed is not MISSING:
                total += _dimensions_taken(fixed)
            elif isinstance(part, ast.Slice):
                continue
            elif None in value:
                return None
            else:
                total += min(_counts(value), default=1)
        return total

    def _call(self, node: ast.Call) -> _Value:
        positional = tuple(self._value(argument) for argument in node.args)
        named = {str(k.arg): self._value(k.value) for k in node.keywords}
        arguments = _Arguments(node, positional, named)
        static = self._source.resolve(node.func)
        if static is not None:
            return self._static_call(static.value, arguments)
        if isinstance(node.func, ast.Attribute):
            return self._method(self._value(node.func.value), node.func.attr, arguments)
        # What is called may be a method that a variable holds, and so know its array.
        return self._unknown(_Arguments(node, (self._value(node.func), *positional), named))

    def _static_call(self, function: Any, arguments: _Arguments) -> _Value:
        intrinsic = intrinsic_of(function)
        if intrinsic is not None:
            return self._intrinsic_call(intrinsic, arguments)
        source = self._all.program.callee(function) or self._all.program.compiled(function)
        if source is not None:
            return self._all.analyse(source, _bound(source, arguments))
        if isinstance(function, type):
            return self._construct(function, arguments)
        if isinstance(function, np.ufunc) or _instance_of(function, "numba.np.ufunc.dufunc", "DUFunc"):
            return self._ufunc(function, arguments)
        if any(self._is_function(argument) for argument in arguments.call.args):
            return self._unknown(arguments)
        by_library = {"numpy": self._numpy, "builtins": self._builtin, "operator": self._operator, "numba": self._numba}
        library = _root_package(function)
        if library in by_library:
            return by_library[library](function, arguments)
        return _NOTHING if library in _LIBRARIES and not is_dispatcher(function) else self._unknown(arguments)

    def _is_function(self, node: ast.expr) -> bool:
        """Return whether an argument is a function of the user's, which whatever takes it may call."""
        static = self._source.resolve(node) if isinstance(node, ast.Name | ast.Attribute) else None
        return static is not None and (isinstance(static.value, Sourced) or is_dispatcher(static.value))

    def _intrinsic_call(self, intrinsic: Intrinsic, arguments: _Arguments) -> _Value:
        if intrinsic.kind == "grid":
            return frozenset({_call_rank(self._source, arguments.call, intrinsic)})
        if intrinsic.kind == "atomic":
            self._all.write(arguments.first())
        elif intrinsic.kind == "cuda":
            return self._unknown(arguments)
        return _NOTHING

    def _unknown(self, arguments: _Arguments) -> _Value:
        """Assume that a function writes every array that it is given, and may return any of them."""
        everything = arguments.all()
        self._all.write(everything)
        return _of_rank(everything, _UNKNOWN_RANK) | frozenset(
            _Alias(a.parameter, 0, _UNKNOWN_RANK) for a in _aliases(everything)
        )

    def _construct(self, kind: type, arguments: _Arguments) -> _Value:
        if issubclass(kind, slice):
            return _FREE
        if kind in (zip, enumerate):
            return _NOTHING.union(*(_wrapped(_wrapped(self._all.elements(v))) for v in arguments.positional))
        if kind in (reversed, tuple):
            return _wrapped(self._all.elements(arguments.all()))
        if issubclass(kind, tuple):
            return _wrapped(arguments.all())
        if _root_package(kind) not in _LIBRARIES or kind in (map, filter):
            return self._unknown(arguments)
        if kind in (int, float, bool, complex, str, range) or issubclass(kind, np.generic):
            return _NOTHING
        # Iterators such as numpy.nditer hand out views; numbridge's elements are values.
        return _NOTHING if _root_package(kind) == "numbridge" else _of_rank(arguments.all(), _UNKNOWN_RANK)

    def _ufunc(self, function: Any, arguments: _Arguments) -> _Value:
        outputs = _NOTHING.union(*arguments.positional[function.nin :], arguments.named.get("out", _NOTHING))
        self._all.write(outputs)
        return outputs

    def _numpy(self, function: Any, arguments: _Arguments) -> _Value:
        name = getattr(function, "__name__", "")
        if isinstance(function, MethodDescriptorType):
            return self._method(arguments.first(), name, arguments.rest())
        if isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, np.ufunc):
            # Of a ufunc's methods, `at` works in place; the others take an output after their operand.
            self._all.write(arguments.first() if name == "at" else arguments.rest().all())
            return _NOTHING
        if name in _NUMPY_WRITES_FIRST:
            self._all.write(arguments.first().union(*arguments.named.values()))
            return _NOTHING
        output = arguments.named.get("out", _NOTHING) | _NOTHING.union(*arguments.positional[_out_position(function) :])
        self._all.write(output)
        if _is_fresh(function, arguments):
            return output
        views = arguments.all()
        if name in _SAME_RANK:
            return views
        return _of_rank(views, 1 if name == "ravel" else _UNKNOWN_RANK)

    def _builtin(self, function: Any, arguments: _Arguments) -> _Value:
        name = function.__name__
        if name in _BUILTINS_READ:
            return _NOTHING
        if name in ("iter", "sorted"):
            return _wrapped(self._all.elements(arguments.first()))
        if name == "next":
            return self._all.elements(arguments.first())
        if name in ("min", "max"):
            return arguments.all() if len(arguments.positional) > 1 else self._all.elements(arguments.first())
        if name in _BUILTINS_REACH:
            return self._unknown(_Arguments(arguments.call, tuple(self._variables.values()), {}))
        return arguments.first() if name == "getattr" else self._unknown(arguments)

    def _operator(self, function: Any, arguments: _Arguments) -> _Value:
        name = function.__name__
        if name in ("setitem", "delitem") or (
            name.startswith("i") and hasattr(operator, f"__{name}__") and name != "inv"
        ):
            self._all.write(arguments.first())
        return arguments.first() | _of_rank(arguments.first(), _UNKNOWN_RANK)

    def _numba(self, function: Any, arguments: _Arguments) -> _Value:
        name = getattr(function, "__name__", None)
        if name in _NUMBA_READ:
            return arguments.all()
        # An instance of a Numba type is a cast.
        return _NOTHING if name is None else self._unknown(arguments)

    def _method(self, owner: _Value, name: str, arguments: _Arguments) -> _Value:
        self._all.write(arguments.named.get("out", _NOTHING))
        if name in _MUTATING_METHODS:
            self._all.write(owner)
            return _NOTHING
        if name in _VIEW_METHODS:
            return self._view(owner, name, arguments)
        if name in _READING_METHODS:
            # The output of a reduction comes after its operand.
            self._all.write(arguments.rest().all())
            return _NOTHING
        self._all.write(owner)
        return _of_rank(owner, _UNKNOWN_RANK) | self._unknown(arguments)

    def _view(self, owner: _Value, name: str, arguments: _Arguments) -> _Value:
        if name == "astype" and len(arguments.positional) < 2 and "copy" not in arguments.named:
            return _NOTHING
        if name in _SAME_RANK:
            return owner
        if name == "ravel":
            return _of_rank(owner, 1)
        shape = arguments.call.args
        if name == "reshape" and len(shape) > 1:
            return _of_rank(owner, len(shape))
        if name == "reshape" and len(shape) == 1 and isinstance(shape[0], ast.Tuple):
            return _of_rank(owner, len(shape[0].elts))
        flat = name == "reshape" and len(shape) == 1 and type(self._source.fold(shape[0])) is int
        return _of_rank(owner, 1 if flat else _UNKNOWN_RANK)


def _bound(source: FunctionSource, arguments: _Arguments) -> tuple[_Value, ...]:
    given = dict(zip(source.parameters, arguments.positional, strict=False)) | dict(arguments.named)
    return tuple(given.get(name, _NOTHING) for name in source.parameters)


def _dimensions_taken(value: Any) -> int:
    """Return how many dimensions a known index removes."""
    if value is None:
        return -1
    if value is Ellipsis or isinstance(value, slice):
        return 0
    if isinstance(value, tuple):
        return sum(_dimensions_taken(part) for part in value)
    return value.ndim if isinstance(value, np.ndarray) and value.dtype == np.bool_ else 1


def _is_fresh(function: Any, arguments: _Arguments) -> bool:
    """Return whether a NumPy function makes a new array rather than, perhaps, a view of an argument."""
    if function.__module__ is not None and function.__module__.startswith(
        ("numpy.linalg", "numpy.random", "numpy.fft")
    ):
        return True
    return function.__name__ in _NUMPY_FRESH and "copy" not in arguments.named


@functools.cache
def _out_position(function: Any) -> int:
    """Return at which position a NumPy function takes `out`, or a position past every argument."""
    past = 1 << 16
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return past
    positional = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    return positional.index("out") if "out" in positional else past
