"""A kernel's source: parsing, static names, the device functions that it reaches, and thread indices.

Everything here works on `ast` alone: nothing is compiled, and no types are inferred. Names are resolved by object, so
that an alias of `nb.tid` is `nb.tid`. Globals are looked up anew on every request, because they may be rebound between
two launches; only the parsed tree is kept. The order of the file is the order of the work: parse and refuse, resolve,
walk the device functions, then the indices. The text that is compiled is made in `rewriting` and `emission`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import difflib
import enum
import functools
import math
import operator
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from numbridge.kernels.errors import KernelError, KernelUnsupportedError, NumbridgeTypeError, source_excerpt
from numbridge.kernels.language import intrinsics
from numbridge.kernels.language.cache_hints import with_plain_accesses
from numbridge.kernels.language.dependencies import (
    MISSING,
    Dependency,
    is_module,
    is_same,
    is_settled,
    member_dependency,
)
from numbridge.kernels.language.inner_gradients import Gradient, Passed, grad
from numbridge.kernels.language.intrinsics import Intrinsic, axis_of, intrinsic_of
from numbridge.kernels.language.kernel_syntax import check_syntax
from numbridge.kernels.language.loaded_source import LAMBDA, file_of, is_of, lambda_of, lines_of
from numbridge.kernels.language.match_statements import as_conditions
from numbridge.kernels.language.named_expressions import assign_before
from numbridge.kernels.language.nested_functions import Nested, take_out
from numbridge.kernels.language.njit_functions import Conversions, Declared, conversions_on_cuda, declared, kept_values
from numbridge.kernels.language.parsing import parsed, parsed_expression
from numbridge.kernels.language.static_expressions import Scope, replace_static_calls
from numbridge.kernels.language.static_names import (
    Static,
    has_static_members,
    import_member,
    is_cuda_dispatcher,
    is_dispatcher,
    known_by,
)
from numbridge.kernels.language.tuple_parameters import Spread, Structure, spread_parameters
from numbridge.kernels.language.written_out import SUPPLIED, WRITTEN_OUT

__all__ = [
    "ARRAYS_OF_NUMPY",
    "NOTHING",
    "FunctionSource",
    "Program",
    "Sourced",
    "call_rank",
    "given_by_name",
    "index_uses",
    "memory_arguments",
    "reads_what_it_did",
]

Role = Literal["kernel", "func"]
_Found = TypeVar("_Found")
_BLOCK_KINDS = frozenset({"axis", "gridsize", "block"})
# Atomic operations that leave an element as it is if their value is zero.
_WITH_ZERO = frozenset({"add", "sub", "or_", "xor"})
MAX_RANK = 4
# What NumPy's arrays that a function makes for itself begin with, in memory of the thread
NOTHING = ""
ARRAYS_OF_NUMPY: dict[Any, str] = {np.zeros: "0", np.ones: "1", np.empty: NOTHING}


# --------------------------------------------------------------------------------------------------------------------
# Parsing and static resolution


def _parse(function: FunctionType, role: Role, file: list[str] | None) -> tuple[ast.FunctionDef, int, list[str]]:
    """Return the definition with absolute positions, its first line number and its source lines."""
    code = function.__code__
    where = f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
    is_lambda = code.co_name == LAMBDA
    if is_lambda and role == "kernel":
        raise KernelError(f"{where} is a lambda, and a kernel has statements; write a def")
    file = file_of(function) if file is None else file
    read = lines_of(code, file)
    if read is None:
        raise KernelError(
            f"the source of {where} cannot be read; it must be in a file or a notebook cell. {_remedy(code.co_filename)}"
        )
    lines, first = read
    if is_lambda and file is not None:
        lines, first = file, 1
    definition = lambda_of(code, lines) if is_lambda else _definition(lines)
    if isinstance(definition, ast.AsyncFunctionDef):
        raise KernelUnsupportedError(f"{where} is async; write an ordinary function")
    if is_lambda and definition is None:
        raise KernelError(f"{where} is a lambda that cannot be told from others on its line; write a def")
    if definition is None or not is_of(definition, code, file):
        raise KernelError(f"the source of {where} has changed since it was loaded; import it again")
    if not is_lambda:
        indented = lines[0][:1].isspace()
        ast.increment_lineno(definition, first - 1 - indented)
    return definition, first, lines


def _remedy(filename: str) -> str:
    """Return what to do where a file of this name has no source: it is none, or was not brought along."""
    prompt = "Python's own prompt keeps no source before Python 3.13; IPython's does"
    if filename in ("<stdin>", "<console>"):
        is_new = sys.version_info >= (3, 13) and filename == "<stdin>"
        return "What Python reads from standard input keeps no source; write a file" if is_new else prompt
    if not filename.startswith("<"):
        return "That file is not there: bring the .py along with the compiled code, which has no text"
    command = "What follows `python -c` keeps its source from Python 3.13 on. " if filename == "<string>" else ""
    return (
        f"{command}What exec makes of a text must be compiled under a name of its own, compile(text, name, 'exec'), under which "
        "it is entered before: linecache.cache[name] = len(text), None, text.splitlines(True), name"
    )


def _definition(lines: list[str]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    # A wrapper statement instead of a dedent keeps columns and multi-line strings as they are in the file.
    text = "".join(lines)
    try:
        tree = parsed("if True:\n" + text if lines[0][:1].isspace() else text)
    except SyntaxError:
        return None
    outer: Any = tree.body[0] if tree.body else None
    inner = outer.body[0] if isinstance(outer, ast.If) else outer
    return inner if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) else None


_DIM3 = {"threadIdx", "blockIdx", "blockDim", "gridDim"}


class _Separately(ast.NodeTransformer):
    """Makes one assignment each of ``block, thread = cuda.blockIdx, cuda.threadIdx``: these are no values of a tuple."""

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Return the assignments that stand for one."""
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                named = {target.id for target in targets if isinstance(target, ast.Name)}
                read = {n.id for value in values for n in ast.walk(value) if isinstance(n, ast.Name)}
                together = len(targets) == len(values) == len(named) and not named & read
                if together and any(getattr(value, "attr", getattr(value, "id", "")) in _DIM3 for value in values):
                    pairs = zip(targets, values, strict=True)
                    return [ast.copy_location(ast.Assign([target], value), node) for target, value in pairs]
        return node


def _loop_over_tuples(definition: ast.FunctionDef) -> None:
    """Make tuples of the lists that loops go through, which numba.cuda allows: nothing else can be done with these."""
    for node in ast.walk(definition):
        if isinstance(node, ast.For):
            node.iter = _as_tuple(node.iter)
            if isinstance(node.iter, ast.Call):
                node.iter.args = [_as_tuple(argument) for argument in node.iter.args]


def _as_tuple(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Tuple(node.elts, ast.Load()), node) if isinstance(node, ast.List) else node


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


def _unbox(definition: ast.FunctionDef, boxed: Sequence[str]) -> list[str]:
    """Take numbers out of parameters that are arrays without dimensions, and return the variables that hold them."""
    if not boxed:
        return []
    nodes = [node for statement in definition.body for node in ast.walk(statement)]
    taken, first = {node.id for node in nodes if isinstance(node, ast.Name)}, definition.body[0]
    names = {}
    for name in boxed:
        names[name] = f"{name}_number"
        while names[name] in taken:
            names[name] += "_"
    for node in nodes:
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    loads = parsed("".join(f"{made} = {name}[()]\n" for name, made in names.items())).body
    for node in (node for load in loads for node in ast.walk(load)):
        ast.copy_location(node, first)
    definition.body = [*loads, *definition.body]
    return [*names.values()]


def _convert(definition: ast.FunctionDef, function: FunctionType, conversions: Conversions) -> dict[str, type]:
    """Convert numbers where a function begins and where it returns, and return what the names stand for that do so."""
    arguments, code, named = definition.args, function.__code__, {}
    taken = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}

    def converted(kind: type, value: ast.expr) -> ast.expr:
        name = f"as_{kind.__name__}"
        while name in taken:
            name += "_"
        named[name] = kind
        call = ast.Call(ast.Name(name, ast.Load()), [value], [])
        ast.copy_location(call.func, value)
        return ast.copy_location(call, value)

    for node in ast.walk(definition):
        if isinstance(node, ast.Return) and node.value is not None and conversions.result is not None:
            node.value = converted(conversions.result, node.value)
    begun: list[ast.stmt] = []
    for argument, kind in zip((*arguments.posonlyargs, *arguments.args), conversions.parameters, strict=False):
        if kind is not None:
            given = ast.copy_location(ast.Name(argument.arg, ast.Load()), argument)
            target = ast.copy_location(ast.Name(argument.arg, ast.Store()), argument)
            begun.append(ast.copy_location(ast.Assign([target], converted(kind, given)), argument))
    definition.body = [*begun, *definition.body]
    return named


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
    boxed : sequence of str
        Parameters that come as arrays without dimensions, in place of the numbers that the source takes.
    file : list of str, optional
        The lines of its file, if they have been read.
    structures : mapping of str to Structure, optional
        How parameters are built that are tuples, in whose place come their elements.
    within : FunctionSource and Nested, optional
        The source that it was taken out of, if it is a function within a function, and what was.
    conversions : Conversions, optional
        What the numbers are converted to that it takes and returns.

    Raises
    ------
    KernelError
        If the source cannot be read or holds something that no target can run; the message shows where.
    """

    def __init__(
        self,
        function: FunctionType,
        role: Role,
        name: str | None = None,
        boxed: Sequence[str] = (),
        file: list[str] | None = None,
        structures: Mapping[str, Structure] | None = None,
        within: tuple[FunctionSource, Nested] | None = None,
        conversions: Conversions | None = None,
    ) -> None:
        self.function = function
        self.role: Role = role
        self.name = function.__name__ if name is None else name
        # A device function's derivative by hand, which `nb.func_grad` enters here.
        self.gradient: FunctionSource | None = None
        self.is_sealed = False
        # For an njit function, what it read when it was first looked at: Numba keeps that in its compiled code.
        self.kept: tuple[Dependency, ...] | None = None
        # And what its decorator was told of its types.
        self.declared = Declared((), ())
        self._frozen: dict[int, tuple[Any, Any]] = {}
        self._read: tuple[Dependency, ...] | None = None
        self._known: dict[Hashable, tuple[tuple[Dependency, ...], Any]] = {}
        self.filename = function.__code__.co_filename
        if within is None:
            self.tree, self._first, self._lines = _parse(function, role, file)
        else:
            # A copy: two threads may ask for the source at once.
            self.tree = copy.deepcopy(within[1].definition)
            self._first, self._lines = within[0]._first, within[0]._lines
        _strip(self.tree)
        if role == "kernel":
            self.tree.args.defaults = []  # a launch passes every argument
        _loop_over_tuples(self.tree)
        as_conditions(self.tree, self.error)
        captured = () if within is None else within[1].captured
        outer = {*function.__code__.co_varnames, *function.__code__.co_cellvars, *captured}
        assign_before(self.tree, lambda called: Scope(function).reached(called, outer))
        _Separately().visit(self.tree)
        # The functions that are defined within this one, or beside it.
        self._nested: dict[str, _NestedFunction] = {} if within is None else dict(within[0]._nested)
        self._take_functions_out(captured)
        # What stands for the tuples among the parameters, and for the classes that are named where one is made again.
        self.spread: Mapping[str, Spread] = {}
        self._classes: Mapping[str, type] = {}
        if structures:
            self.spread, self._classes = spread_parameters(self.tree, function, structures, self.error)
        # What messages call the parameters that stand for what tuples hold
        self.labels = {leaf.name: leaf.label for spread in self.spread.values() for leaf in spread.leaves()}
        if conversions is not None:
            self._classes = {**self._classes, **_convert(self.tree, function, conversions)}
        unboxed = _unbox(self.tree, boxed)
        code, arguments = function.__code__, self.tree.args
        local = frozenset({*code.co_varnames, *code.co_cellvars, *unboxed, *captured})
        self._statics = replace_static_calls(self.tree, function, local, self.error)
        scope = Scope(function)
        with_plain_accesses(self.tree, lambda called: scope.reached(called, local), self.error)
        self.parameters = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))
        self.nodes = _in_order(self.tree.body)
        check_syntax(self)
        stored = _stored(self.nodes)
        # What is given beyond these, as a tuple
        self.rest = None if arguments.vararg is None else arguments.vararg.arg
        self.locals = frozenset({*self.parameters, *stored} | ({self.rest} if self.rest else set()))
        # Parameters that another value is assigned to
        self.rebound = frozenset(self.parameters) & {*stored}
        once = {name for name in stored if stored.count(name) == 1} - {*self.parameters}
        # What a device function is given, and is still when it is used.
        self.given = frozenset(self.parameters) - self.rebound if role == "func" else frozenset()
        self._aliases = _single_aliases(self.nodes, self.locals - self.given, once)
        self._constants = _single_values(self.nodes, once)
        self._unpacked = _unpacked_calls(self.nodes)

    def __repr__(self) -> str:
        """Return the function's name and where it is."""
        return f"<source of {self.name}, {self.filename}:{self.tree.lineno}>"

    def _take_functions_out(self, captured: tuple[str, ...]) -> None:
        """Make device functions of those that are defined within this one, and parameters of what it uses of one around it."""
        code, nodes = self.function.__code__, _in_order(self.tree.body)
        # Python may have left out those that never run.
        kinds = ast.FunctionDef | ast.Lambda | ast.GeneratorExp
        if not self._nested and not any(isinstance(node, kinds) for node in nodes):
            return  # as almost all
        local, stored = {*code.co_varnames, *code.co_cellvars, *captured}, _stored(nodes)
        aliases = _single_aliases(nodes, frozenset(local), {name for name in stored if stored.count(name) == 1})
        around = {name: function.captured for name, function in self._nested.items()}
        scope = Scope(self.function)

        def reached(called: ast.expr) -> object:
            return scope.reached(called, local)

        for name, nested in take_out(self.tree, self.function, captured, around, aliases, reached, self.error).items():
            self._nested[name] = _NestedFunction(self, nested)
        first = self.tree.args.posonlyargs or self.tree.args.args
        first[:0] = [ast.copy_location(ast.arg(name), self.tree) for name in captured]

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
        return self.threads.index_rank

    @property
    def asks_for_block(self) -> bool:
        """Whether the kernel asks for its place in a block or a grid, or works with the other threads of its block."""
        return self.threads.asks_for_block

    @property
    def works_in_blocks(self) -> bool:
        """Whether the kernel, or a device function that it calls, works with the other threads of its block."""
        return self.threads.works_in_blocks

    @property
    def threads(self) -> Threads:
        """What the program asks of threads: the three properties above."""
        known = self._known.get("threads")
        # Every launch asks that a compiled one does not answer; most programs read nothing that changes.
        if known is not None and not known[0]:
            held: Threads = known[1]
            return held
        return self.found("threads", lambda: _threads_of(Program(self)), Dependency.names_same)

    def found(self, what: Hashable, find: Callable[[], _Found], holds: Callable[[Dependency], bool]) -> _Found:
        """Return what is to be found in this program, looked for once as long as all that the program reads holds.

        Launches of new extents ask, and a large program takes long to read.
        """
        known = self._known.get(what)
        if known is None or not all(map(holds, known[0])):
            if self._read is None or not all(dependency.holds() for dependency in self._read):
                self._read = self.dependencies()
            known = self._known[what] = self._read, find()
        answer: _Found = known[1]
        return answer

    def block_uses(self) -> Iterator[tuple[ast.AST, Intrinsic]]:
        """Yield where this function itself works with the other threads of its block, and what it does."""
        for node in self.nodes:
            found = _intrinsic(self, node) if _is_load(node) else None
            if found is not None and found.kind == "block":
                yield node, found

    def asks_memory(self, node: ast.AST) -> bool:
        """Tell whether a node is an atomic operation that changes nothing, and only asks what an element holds.

        That is how a thread waits for another in a loop of its own, ``while cuda.atomic.add(done, i, 0) == 0:``, since an element
        that is only loaded may be kept in a register.
        """
        if not isinstance(node, ast.Call) or len(node.args) < 3 or not isinstance(node.args[-1], ast.Constant):
            return False
        found = _intrinsic(self, node.func)
        if found is None or found.kind != "atomic":
            return False
        if found.operation in ("cas", "compare_and_swap"):
            return ast.dump(node.args[-1]) == ast.dump(node.args[-2])
        return found.operation in _WITH_ZERO and node.args[-1].value == 0

    def is_grid_sync(self, node: ast.AST) -> bool:
        """Tell whether a node is a call of the method by which threads wait for all blocks, if they have their grid."""
        match node:
            case ast.Call(ast.Attribute(attr="sync") as method, [], []):
                return self.resolve(method) is None
        return False

    @functools.cached_property
    def memory(self) -> frozenset[str]:
        """The local variables that are only ever local or shared memory of a thread or block."""
        made: dict[str, bool] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                static = self.resolve(node.value.func) if isinstance(node.value, ast.Call) else None
                called = None if static is None else intrinsic_of(static.value)
                fits = called is not None and called.name in ("cuda.local.array", "cuda.shared.array")
                # Those of NumPy's, which a thread makes for itself
                fits |= static is not None and known_by(static.value, ARRAYS_OF_NUMPY) is not None
                made[node.targets[0].id] = made.get(node.targets[0].id, True) and fits
        return frozenset(name for name, fits in made.items() if fits)

    def written(
        self, ranks: Mapping[str, int | None] | None = None, records: Mapping[str, np.dtype[Any]] | None = None
    ) -> frozenset[str]:
        """Return the parameters that the function may write.

        Parameters
        ----------
        ranks : mapping of str to int or None, optional
            How many dimensions each array parameter has. With it, an element of an array is known not to be a view.
            Without it, or where it is None, ``u = a[i]; u += 1`` counts as arithmetic on an element, which it is unless
            `a` has more dimensions.
        records : mapping of str to numpy.dtype, optional
            The structured dtypes of those that have records, which stay memory: ``r = a[i]; r.x = 1`` writes to `a`.
        """
        # That module reads sources, and so cannot be imported by this one.
        from numbridge.kernels.language.written_parameters import written_parameters

        what = ("written", None if ranks is None else tuple(ranks.items()), tuple((records or {}).items()))
        return self.found(what, lambda: written_parameters(self, ranks, records or {}), Dependency.is_unchanged)

    def beside(self, written: Collection[str]) -> frozenset[str]:
        """Return the parameters that came in a tuple with one that is written, and are not written themselves."""
        tuples = (frozenset(leaf.name for leaf in spread.leaves()) for spread in self.spread.values())
        return frozenset[str]().union(*(names - {*written} for names in tuples if not names.isdisjoint(written)))

    def dependencies(self, *, by_hand: bool = False) -> tuple[Dependency, ...]:
        """Return every global and closure value that the function and its device functions read.

        Modules, built-in names and what belongs to NumPy, Numba, numbridge and the mathematical modules are left out. With
        `by_hand`, what `nb.func_grad` has entered for device functions is among them, or that there is nothing yet; and always in
        a program that calls gradients, which is compiled with what they read.
        """
        program = Program(self)
        if program.differentiates:
            return Program(self, gradients=True).dependencies(by_hand=True)
        return program.dependencies(by_hand=by_hand)

    @property
    def differentiates(self) -> bool:
        """Whether the program calls the gradient of a function, `nb.grad`."""
        return self.found("differentiates", lambda: Program(self).differentiates, Dependency.names_same)

    def seal_derivatives(self) -> None:
        """Let no derivative by hand be entered any more for device functions that are reached: somebody keeps what there is."""
        for source in Program(self).sources:
            source.is_sealed = True

    def unpacked(self, call: ast.Call) -> int | None:
        """Return into how many names the result of a call is unpacked, or None if it is not."""
        return self._unpacked.get(_position(call))

    def index_count(self, index: ast.expr) -> int | None:
        """Return of how many dimensions an index takes one element, or None if the source does not tell."""
        if isinstance(index, ast.Name) and index.id in self.locals:
            value = self._constants.get(index.id)
            return None if value is None else self.index_count(value)
        if isinstance(index, ast.Call):
            static = self.resolve(index.func)
            found = None if static is None else intrinsic_of(static.value)
            return call_rank(self, index, found) if found is not None and found.kind in ("tid", "grid") else None
        of_tuples = any(isinstance(part, ast.Tuple) for part in ast.walk(index))
        return 1 if isinstance(index, ast.BinOp | ast.UnaryOp | ast.Constant) and not of_tuples else None

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
        return self._gradient(node) if isinstance(node, ast.Call) else None

    def fold(self, node: ast.AST) -> Any:
        """Return the value of a constant expression of numbers and tuples, or `MISSING`.

        A variable that is assigned once, such an expression, is one too.
        """
        return self._folded(node, {})

    def _folded(self, node: ast.AST, known: dict[str, Any]) -> Any:
        """Return what `fold` does; `known` has the variables met before, without which a chain of them is walked 2ⁿ times."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._constants:
            if node.id not in known:
                known[node.id] = self._folded(self._constants[node.id], known)
            return known[node.id]
        if isinstance(node, ast.Tuple):
            values = tuple(self._folded(element, known) for element in node.elts)
            return MISSING if any(value is MISSING for value in values) else values
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            return self._fold_operation(node, known)
        static = self.resolve(node)
        return MISSING if static is None else _plain(static.value)

    def value_of(self, node: ast.expr) -> ast.expr:
        """Return the expression that a variable is assigned, if it is assigned once and all in it is known by then."""
        while isinstance(node, ast.Name) and node.id in self._constants:
            node = self._constants[node.id]
        return node

    def read(self) -> Iterator[Dependency]:
        """Yield the global and closure values that this function reads, in source order."""
        inner: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner and isinstance(node.ctx, ast.Load):
                static = self.resolve(node)
                if static is not None:
                    inner.update(id(child) for child in ast.walk(node))
                    yield from static.reached

    def frozen(self, array: Any) -> Any:
        """Return what a global array holds, as a copy that is the same one as long as the elements are.

        Its elements are constants of compiled code, and `Dependency` notices when they change.
        """
        held, copy = self._frozen.get(id(array), (None, None))
        if held is not array or not is_same(array, copy):
            copy = array.copy()
            self._frozen[id(array)] = array, copy
        return copy

    def _fold_operation(self, node: ast.BinOp | ast.UnaryOp, known: dict[str, Any]) -> Any:
        parts = (node.operand,) if isinstance(node, ast.UnaryOp) else (node.left, node.right)
        values = tuple(self._folded(part, known) for part in parts)
        apply = _FOLDED.get(type(node.op))
        if apply is None or not all(type(value) in (int, float) for value in values):
            return MISSING
        try:
            return apply(*values)
        except ArithmeticError:
            return MISSING

    def _gradient(self, node: ast.Call) -> Static | None:
        """Return what ``nb.grad(f)`` stands for, or None for any other call."""
        called = self.resolve(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else None
        if called is None or called.value is not grad:
            return None
        function = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if isinstance(function, ast.Name) and function.id in self.given:
            passed = grad(Passed(function.id))
            return Static(passed, "gradient", passed, (), False, False, called.reached)
        given = None if function is None else self.resolve(function)
        if given is None:
            raise self.error(
                node,
                "nb.grad(f) takes one function, which is known before the kernel runs; name one that is decorated with @nb.func",
            )
        try:
            made = grad(given.value)
        except NumbridgeTypeError as error:
            raise self.error(node, str(error)) from None
        return Static(made, "gradient", made, (), False, False, (*called.reached, *given.reached))

    def _local_alias(self, name: str) -> Static | None:
        chain = self._aliases.get(name)
        static = None if chain is None else self.resolve(chain)
        if static is None or not (
            callable(static.value) or isinstance(static.value, Sourced) or is_module(static.value)
        ):
            return None
        return static

    def _global(self, node: ast.Name) -> Static:
        if node.id in self._statics:
            value, reached = self._statics[node.id].current()
            return Static(value, "static", value, (), True, False, reached)
        if node.id in self._nested:
            function = self._nested[node.id]
            return Static(function, node.id, function, (), True, False, ())
        if node.id in self._classes:
            kind = self._classes[node.id]
            return Static(kind, kind.__name__, kind, (), True, False, ())
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
            code = self.function.__code__
            names = {*self.function.__globals__, *vars(builtins), *code.co_varnames, *code.co_freevars}
            raise self.error(node, f"the name {name!r} is not defined{_meant(name, names)}")
        return Static(value, name, value, (), True, True, ())

    def _contents(self, cell: CellType, node: ast.Name) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            raise self.error(node, f"the name {node.id!r} has no value yet in the enclosing function") from None

    def _root(self, name: str, value: Any, container: Any, key: str | None) -> Static:
        reached = () if is_settled(name, value) else (Dependency(container, key, value),)
        return Static(value, name, value, (), True, False, reached)

    def _member(self, base: Static, node: ast.Attribute) -> Static | None:
        value: Any = axis_of(base.value, node.attr)
        if value is None:
            if not has_static_members(base.value, node.attr):
                return None
            import_member(base.value, node.attr)
            value = getattr(base.value, node.attr, MISSING)
            if value is MISSING:
                name = getattr(base.value, "__name__", repr(base.value))
                raise self.error(node, f"{name} has no attribute {node.attr!r}{_instead(base.value, name, node.attr)}")
        return Static(
            value,
            base.root,
            base.root_value,
            (*base.path, node.attr),
            base.through_modules and is_module(base.value),
            base.builtin,
            (*base.reached, *member_dependency(base.value, node.attr)),
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


def _plain(value: Any, kinds: type | tuple[type, ...] = np.signedinteger) -> Any:
    """Return a value with Python's integers for NumPy's of some kinds, and for members of an enumeration, also in tuples.

    What is unsigned is another number as an index, where it wraps around, but the same as an extent.
    """
    if type(value) is tuple:
        return tuple(_plain(part, kinds) for part in value)
    is_integer = isinstance(value, kinds) or (isinstance(value, int) and isinstance(value, enum.Enum))
    return int(value) if is_integer else value


def memory_arguments(node: ast.Call) -> dict[str | None, ast.expr]:
    """Return what a call that makes local or shared memory is given, by name."""
    return given_by_name(("shape", "dtype", "alignment"), node)


def given_by_name(names: Iterable[str], call: ast.Call) -> dict[str | None, ast.expr]:
    """Return what a call gives to parameters of these names; None is the name of what two stars give."""
    return dict(zip(names, call.args, strict=False)) | {keyword.arg: keyword.value for keyword in call.keywords}


def _in_order(body: list[ast.stmt]) -> list[Any]:
    nodes = [n for statement in body for n in ast.walk(statement) if hasattr(n, "lineno")]
    # Parents before children that start at the same place: the longer node first.
    return sorted(nodes, key=lambda n: (n.lineno, n.col_offset, -n.end_lineno, -n.end_col_offset))


def _stored(nodes: list[Any]) -> list[str]:
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def _single_aliases(nodes: list[Any], local: frozenset[str], once: set[str]) -> dict[str, ast.expr]:
    """Return what local names may stand for that are assigned once: a global name, an attribute chain of one, a gradient."""
    aliases: dict[str, ast.expr] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, roots = node.targets[0], _chain_roots(node.value)
            # Aliases of aliases count too, but only of earlier ones: two that name each other would never end.
            if roots and isinstance(target, ast.Name) and target.id in once and not roots & local - aliases.keys():
                aliases[target.id] = node.value
    return aliases


def _single_values(nodes: list[Any], once: set[str]) -> dict[str, ast.expr]:
    """Return what each local name is assigned that is assigned once, from earlier such names and what is no variable."""
    values: dict[str, ast.expr] = {}
    for node in nodes:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Name) and target.id in once:
            names = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
            if names.isdisjoint(once - values.keys()):
                values[target.id] = node.value
    return values


def _chain_roots(node: ast.expr) -> set[str]:
    """Return the first name of an attribute chain, with that of its argument if it is called with one; else nothing."""
    if isinstance(node, ast.Call):
        roots = [_chain_roots(part) for part in (node.func, *node.args, *(k.value for k in node.keywords))]
        return set().union(*roots) if len(roots) == 2 and all(roots) else set()
    while isinstance(node, ast.Attribute):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _unpacked_calls(nodes: list[Any]) -> dict[tuple[int, int, int, int], int]:
    found: dict[tuple[int, int, int, int], int] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                if isinstance(target, ast.Tuple):
                    found[_position(node.value)] = len(target.elts)
    return found


def _position(node: ast.AST) -> tuple[int, int, int, int]:
    located: Any = node
    return located.lineno, located.col_offset, located.end_lineno, located.end_col_offset


class Sourced:
    """Base of kernels and device functions: holds a Python function and, once asked for, its source."""

    role: ClassVar[Role]
    function: Any  # a FunctionType, which a type checker would take for a method here
    name: str
    # The lines of its file, where these were read before its source is asked for
    file: list[str] | None = None

    def __reduce__(self) -> str:
        """Pickle and copy by name, as Python does its own functions."""
        name: str = self.function.__qualname__
        return name

    @functools.cached_property
    def source(self) -> FunctionSource:
        """The parsed source."""
        return FunctionSource(self.function, self.role, self.name, file=self.file)


class _NestedFunction(Sourced):
    """A device function that is defined within another function."""

    role: ClassVar[Role] = "func"

    def __init__(self, around: FunctionSource, nested: Nested) -> None:
        self._around, self._nested = around, nested
        self.function, self.name, self.captured = nested.function, nested.definition.name, nested.captured

    @functools.cached_property
    def source(self) -> FunctionSource:
        """The parsed source."""
        return FunctionSource(self.function, self.role, self.name, within=(self._around, self._nested))


# What other kernel languages have functions for and Python has an expression for.
_EXPRESSIONS = {
    **{
        f"atomic_{name.rstrip('_')}": f"cuda.atomic.{name}"
        for name in ("inc", "dec", "and_", "or_", "xor", "nanmax", "nanmin")
    },
    "block_dim": "cuda.blockDim.x",
    "clamp": "min(max(x, low), high)",
    "diag": "the matrix out, as in nb.mat22(v[0], 0.0, 0.0, v[1])",
    "identity": "the matrix out, as in nb.mat22(1.0, 0.0, 0.0, 1.0)",
    "lerp": "a * (1.0 - t) + b * t",
    "mod": "math.fmod(x, y)",
    "ndrange": "one loop over range(...) in another",
    "printf": "print(...)",
    **dict.fromkeys(
        ("rand_init", "randf", "randi", "randn"), "xoroshiro128p_uniform_float32(states, i) of numba.cuda.random"
    ),
    "rsqrt": "1.0 / nb.sqrt(x)",
    "select": "if_true if condition else if_false",
    "sign": "math.copysign(1.0, x)",
    "where": "a if condition else b",
}


def _meant(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return which of some names may have been meant, or nothing."""
    near = difflib.get_close_matches(name, names, 1, cutoff=0.75)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _instead(found: Any, module: str, name: str) -> str:
    """Return how to write what other kernel languages have in their own module, or nothing."""
    if module != "numbridge":
        known = name in intrinsics.__all__ and name not in ("Intrinsic", "axis_of", "intrinsic_of")
        return f"; numbridge has nb.{name}" if known else _meant(name, dir(found), f"{module}.")
    own = [name] * hasattr(builtins, name) + [f"math.{name}"] * hasattr(math, name)
    if own:
        call = "(...)" if callable(getattr(builtins, name, None) or getattr(math, name)) else ""
        return f"; write {own[0]}{call}, which kernels take from Python"
    if name.startswith("tile_"):
        return (
            "; threads of a block share cuda.shared.array(shape, dtype), and wait for each other in cuda.syncthreads()"
        )
    return f"; write {_EXPRESSIONS[name]}" if name in _EXPRESSIONS else _meant(name, dir(found), "nb.")


# --------------------------------------------------------------------------------------------------------------------
# The device functions that a kernel reaches


class Program:
    """A function and every device function that it reaches, callee before caller.

    Device functions are those that numbridge emits as text: `@nb.func` and `@cuda.jit(device=True)`. Functions
    compiled by `numba.njit` stay Numba's. With `gradients`, the derivatives by hand of those functions are among them, and
    functions compiled by `numba.njit`.
    """

    def __init__(self, root: FunctionSource, *, gradients: bool = False) -> None:
        self.root = root
        self._gradients = gradients
        self.sources: list[FunctionSource] = []
        self._known: dict[int, FunctionSource] = {id(root.function): root}
        self._visit(root, set())

    def callee(self, value: Any) -> FunctionSource | None:
        """Return the source of a device function, or of the one that a gradient is of, or None for anything else."""
        if isinstance(value, Gradient):
            return self.callee(value.innermost)
        if isinstance(value, Sourced):
            return self._known.setdefault(id(value.function), value.source)
        if is_cuda_dispatcher(value):
            if id(value.py_func) not in self._known:
                found = FunctionSource(value.py_func, "func", conversions=conversions_on_cuda(value))
                self._known[id(value.py_func)] = found
            return self._known[id(value.py_func)]
        supplied = _written_out_source(value, SUPPLIED)
        # What Numba compiles by itself it also calls by itself; only a derivative is made of its source.
        if supplied is not None or not self._gradients:
            return supplied
        return _njit_source(value) if is_dispatcher(value) else _written_out_source(value, WRITTEN_OUT)

    def compiled(self, value: Any, *, starred: bool = False) -> FunctionSource | None:
        """Return the source of an njit function as far as it can be read, or None.

        Who goes by what calls give to which parameter is not told of functions with `starred` arguments.
        """
        if not is_dispatcher(value):
            return None
        try:
            found = _njit_source(value)
        except KernelError:
            return None
        is_starred = found.rest is not None or any(isinstance(node, ast.Starred) for node in found.nodes)
        return None if is_starred and not starred else found

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

    def fold(self, source: FunctionSource, node: ast.expr, within: tuple[FunctionSource, ...] = ()) -> Any:
        """Return what `FunctionSource.fold` does, where a parameter for which all calls give one constant is that constant."""
        value = source.fold(node)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & source.given
        if value is not MISSING or not names or source in within:
            return value
        given = {name: self._constant_given(source, name, (*within, source)) for name in names}
        return MISSING if MISSING in given.values() else source.fold(_Constants(given).visit(copy.deepcopy(node)))

    def shape(self, source: FunctionSource, call: ast.Call) -> Any:
        """Return the shape that a call which makes local or shared memory is given, or `MISSING` if it is no constant."""
        given = memory_arguments(call).get("shape")
        return MISSING if given is None else _plain(self.fold(source, given), np.integer)

    def _constant_given(self, source: FunctionSource, name: str, within: tuple[FunctionSource, ...]) -> Any:
        place, found = source.parameters.index(name), []
        for part in self.sources:
            if any(passed is source for passed in self.passed(part)):
                return MISSING
            for call in (call for call, callee in self.calls(part) if callee is source):
                if any(isinstance(argument, ast.Starred) for argument in call.args[: place + 1]):
                    return MISSING
                by_name = (keyword.value for keyword in call.keywords if keyword.arg == name)
                argument = call.args[place] if place < len(call.args) else next(by_name, None)
                found.append(MISSING if argument is None else self.fold(part, argument, within))
        return found[0] if found and all(_is_of_integers(value) and value == found[0] for value in found) else MISSING

    def dependencies(self, *, by_hand: bool) -> tuple[Dependency, ...]:
        """Return what `FunctionSource.dependencies` does."""
        found: dict[tuple[int, Any], Dependency] = {}
        for source in self.sources:
            derivative = [Dependency(vars(source), "gradient", source.gradient)] if source.role == "func" else []
            for dependency in (*source.read(), *(derivative if by_hand else ())):
                # Those that have no place are each their own.
                place = dependency if dependency.container is None else dependency.container
                found.setdefault((id(place), dependency.name), dependency)
        return tuple(found.values())

    @property
    def differentiates(self) -> bool:
        """Whether a function calls the gradient of one."""
        return any(
            static is not None and isinstance(static.value, Gradient)
            for source in self.sources
            for node in source.nodes
            for static in (source.resolve(node.func) if isinstance(node, ast.Call) else None,)
        )

    @property
    def reads_njit(self) -> bool:
        """Whether a function is among the sources that runs as Numba's own compiled code where no derivative is made."""
        return any(source.kept is not None for source in self.sources)

    def check_kept(self) -> None:
        """Refuse to make a derivative of what an njit function reads now, if that is not what its compiled code has.

        Raises
        ------
        KernelError
            If a global has changed since the function was first looked at.
        """
        for source in self.sources:
            for dependency in source.kept or ():
                if not dependency.is_unchanged():
                    raise source.error(
                        source.tree,
                        f"{source.name} is compiled by Numba, which keeps the value that {dependency} had then, and it has "
                        "changed since; decorate the function with @nb.func, or pass the value as an argument",
                    )

    def compiled_functions(self) -> Iterator[Any]:
        """Yield the njit functions that the program refers to, without repeats."""
        seen: set[int] = set()
        for source in self.sources:
            for node in source.nodes:
                static = source.resolve(node) if _is_load(node) else None
                if static is not None and is_dispatcher(static.value) and id(static.value) not in seen:
                    seen.add(id(static.value))
                    yield static.value

    def compiled_sources(self) -> Iterator[FunctionSource | None]:
        """Yield the sources of the njit functions that run in the program, or None for one whose source cannot be read."""
        waiting = list(self.compiled_functions())
        seen = {id(function) for function in waiting}
        while waiting:
            source = self.compiled(waiting.pop())
            yield source
            for dependency in () if source is None else source.read():
                if is_dispatcher(dependency.value) and id(dependency.value) not in seen:
                    seen.add(id(dependency.value))
                    waiting.append(dependency.value)

    def passed(self, source: FunctionSource) -> Iterator[FunctionSource]:
        """Yield the device functions that one source names without calling them, to pass them on or as a parameter's default."""
        called = {id(node.func) for node in source.nodes if isinstance(node, ast.Call)}
        found = [source.resolve(node) for node in source.nodes if _is_load(node) and id(node) not in called]
        named = [static.value for static in found if static is not None]
        for value in (*named, *(source.function.__defaults__ or ())):
            callee = self.callee(value)
            if callee is not None and callee.role == "func":
                yield callee

    def _visit(self, source: FunctionSource, seen: set[int]) -> None:
        seen.add(id(source))
        for callee in [*(callee for _, callee in self.calls(source)), *self.passed(source)]:
            if id(callee) not in seen:
                self._visit(callee, seen)
        if self._gradients and source.gradient is not None and id(source.gradient) not in seen:
            self._visit(source.gradient, seen)
        self.sources.append(source)


def _is_of_integers(value: Any) -> bool:
    return all(map(_is_of_integers, value)) if type(value) is tuple else type(value) is int


class _Constants(ast.NodeTransformer):
    """Writes constants for names."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what stands for a name."""
        if node.id not in self._values:
            return node
        return ast.copy_location(parsed_expression(repr(self._values[node.id])), node)


_NJIT: WeakKeyDictionary[Any, FunctionSource] = WeakKeyDictionary()


def _njit_source(dispatcher: Any) -> FunctionSource:
    """Return the source of an njit function, which remembers what it read when it was first asked for."""
    found = _NJIT.get(dispatcher)
    if found is None:
        found = _NJIT[dispatcher] = FunctionSource(dispatcher.py_func, "func")
        # What was compiled before this has other values, perhaps.
        found.kept = (*found.read(), *kept_values(dispatcher))
        found.declared = declared(dispatcher)
    return found


def reads_what_it_did(dispatcher: Any) -> bool:
    """Tell whether an njit function reads now what it did when it was first asked for, and what its compiled code had then."""
    try:
        kept = _njit_source(dispatcher).kept or ()
    except KernelError:
        kept = (*kept_values(dispatcher),)
    return all(dependency.is_unchanged() for dependency in kept)


def _written_out_source(value: Any, functions: Mapping[Any, Any]) -> FunctionSource | None:
    """Return the source that stands for one of NumPy's or Python's functions, or None."""
    found = known_by(value, functions) if callable(value) else None
    return None if found is None else _source_of(found)


@functools.cache
def _source_of(function: FunctionType) -> FunctionSource:
    return FunctionSource(function, "func")


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)


# --------------------------------------------------------------------------------------------------------------------
# Thread indices


class Threads(NamedTuple):
    """What a program asks of threads (see the properties of `FunctionSource`)."""

    index_rank: int
    asks_for_block: bool
    works_in_blocks: bool


def _threads_of(program: Program) -> Threads:
    kinds = {
        intrinsic.kind
        for source in program.sources
        for node in source.nodes
        if _is_load(node)
        for intrinsic in (_intrinsic(source, node),)
        if intrinsic is not None
    }
    asks = any(source.asks_memory(node) for source in program.sources for node in source.nodes)
    works_in_blocks = "block" in kinds or asks
    # Threads of a block that work together are numbered, whether or not they ask for their numbers.
    rank = _index_rank(program) or int(works_in_blocks)
    return Threads(rank, not kinds.isdisjoint(_BLOCK_KINDS), works_in_blocks)


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
                yield node, intrinsic.kind, call_rank(source, node, intrinsic)
        elif _is_load(node):
            intrinsic = _intrinsic(source, node)
            if intrinsic is not None and intrinsic.kind == "axis":
                yield node, "axis", intrinsic.axis + 1


def _intrinsic(source: FunctionSource, node: ast.AST) -> Intrinsic | None:
    static = source.resolve(node)
    return None if static is None else intrinsic_of(static.value)


def call_rank(source: FunctionSource, node: ast.Call, intrinsic: Intrinsic) -> int:
    """Return how many axes a call that asks for a thread index needs."""
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
