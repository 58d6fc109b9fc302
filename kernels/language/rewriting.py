"""A kernel's syntax trees and those of its device functions, rewritten for one floating type and one back end.

Thread indices become parameters, float literals take the kernel's floating type, atomics and local arrays become calls that the
back end supplies, and every other global lands in a namespace. For CUDA, what numba.cuda offers stays what it is. Nothing is
compiled here, and no types are inferred.
"""

from __future__ import annotations

import ast
import copy
import enum
import inspect
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeGuard

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.cpu_backend.active_range import EVERYWHERE, ActiveRange, read_indices
from numbridge.kernels.cpu_backend.blocks.source import ASKED, CREW, THREAD, as_coroutine
from numbridge.kernels.cpu_backend.bounds import first_site
from numbridge.kernels.cpu_backend.interior import Interior, with_interior
from numbridge.kernels.cpu_backend.loop_order import loop_order
from numbridge.kernels.element_types.elements import Element, ElementType, scalar_in_memory
from numbridge.kernels.errors import KernelError, KernelUnsupportedError
from numbridge.kernels.language.cache_hints import LOADS, STORES, hint_of
from numbridge.kernels.language.complex_values import may_have_complex
from numbridge.kernels.language.dependencies import MISSING, is_from_library
from numbridge.kernels.language.dynamic_memory import is_dynamic
from numbridge.kernels.language.element_stores import PartLoader, StoreRewriter
from numbridge.kernels.language.indexing import apart_places, own_axis
from numbridge.kernels.language.inner_gradients import Gradient, Passed, grad
from numbridge.kernels.language.intrinsics import Intrinsic, intrinsic_of
from numbridge.kernels.language.kernel_syntax import may_raise
from numbridge.kernels.language.parsing import parsed_expression
from numbridge.kernels.language.returned_memory import check_returned_memory
from numbridge.kernels.language.source import (
    ARRAYS_OF_NUMPY,
    NOTHING,
    FunctionSource,
    Program,
    index_uses,
    memory_arguments,
)
from numbridge.kernels.language.static_names import Static, known_by
from numbridge.kernels.language.written_out import refusal_of
from numbridge.kernels.native.table_layout import WARP_SIZE
from numbridge.kernels.parameter_types import ArrayType, ParameterType

__all__ = [
    "CUDA_FUNCTION",
    "CUDA_MODULE",
    "GIVEN",
    "GRADIENT",
    "HALVES",
    "LIBDEVICE",
    "Rewritten",
    "Site",
    "Target",
    "rewrite",
]

Target = Literal["cpu", "cuda"]
# The name of the module numba.cuda in text for CUDA; the back end supplies it.
CUDA_MODULE = "_nb_cuda"
# How the names of its functions of numbers begin in text for the CPU; the back end supplies them too.
CUDA_FUNCTION = "_nb_cuda_"
# Of these, how those of libdevice begin
LIBDEVICE = f"{CUDA_FUNCTION}libdevice_"
# And those of `cuda.fp16` and `cuda.bf16`, which text for CUDA calls so, too
HALVES = (f"{CUDA_FUNCTION}fp16_", f"{CUDA_FUNCTION}bf16_")
_ATOMICS = {name: name.rstrip("_") for name in ("add", "sub", "min", "max", "nanmin", "nanmax", "exch", "cas")}
_ATOMICS |= {name: name.rstrip("_") for name in ("and_", "or_", "xor", "inc", "dec")}
_AXES = 3
_POINTER = 8  # bytes, of which an alignment on CUDA must be a multiple
_SHORT = {"blockDim": "b", "gridDim": "g"}
GIVEN = "_nb_given"
"""The name of what a device function that makes shared memory has been given, which tells what it is compiled for."""
GRADIENT = "_nb_grad"
"""What a call of a gradient becomes: its order, the function, and the arguments. No back end has it, only `adjoint.build`."""
_SHORT_IN_BLOCKS = _SHORT | {"threadIdx": "t", "blockIdx": "k"}
# What a thread needs no other for, although it is about its block.
_WITHOUT_WAITING = frozenset({"cg", "shared", "shared.array", "laneid", "warpsize", "lanemask_lt"})

# What takes the place of functions of arrays in text that is compiled, and of methods of the same names
_OF_ARRAYS: dict[Any, str] = {
    **dict.fromkeys((np.max, np.amax), "_nb_max_of"),
    **dict.fromkeys((np.min, np.amin), "_nb_min_of"),
    np.nanmax: "_nb_nanmax_of",
    np.nanmin: "_nb_nanmin_of",
    np.count_nonzero: "_nb_count_nonzero_of",
    np.dot: "_nb_dot_of",
    np.vdot: "_nb_vdot_of",
}
_METHODS = {"max": "_nb_max_of", "min": "_nb_min_of", "dot": "_nb_dot_of"}
# How NumPy lets the arguments of `np.clip` be named
_LIMITS: dict[str | None, str] = {"a": "a", "a_min": "a_min", "a_max": "a_max", "min": "a_min", "max": "a_max"}

# Python's functions that kernels do not have, most since they make what there is no memory for, and what to do instead
_TEXT = "kernels make no text; print(...) takes text and numbers apart"
_MEMORY = "kernels have no memory for that; take a tuple, a loop, or cuda.local.array for something to write into"
_NOT_THERE = {
    **dict.fromkeys(("str", "repr", "ascii", "format", "bin", "hex", "oct", "chr"), _TEXT),
    **dict.fromkeys(("list", "dict", "set", "frozenset", "sorted", "bytes", "bytearray"), _MEMORY),
    "hash": "kernels hash nothing; write the arithmetic, as in (31 * a + b) % n",
    "reversed": "count down in a loop, as in range(n - 1, -1, -1)",
    "any": "write conditions with `or`, or a generator, any(... for ... in ...)",
    "all": "write conditions with `and`, or a generator, all(... for ... in ...)",
}

# What rounds to 16 bits; kernels compute with the float32 of it.
_ROUNDED: dict[Any, str] = {
    scalars.float16: f"{CUDA_FUNCTION}fp16_double2half",
    scalars.bfloat16: f"{CUDA_FUNCTION}bf16_double2bfloat16",
}

_DTYPES: dict[Any, Any] = {float: np.float64, int: np.int64, bool: np.bool_, complex: np.complex128}
# Functions that change nothing
_OF_NUMBERS = (int, float, bool, abs, min, max, round, len)
# Python's functions whose arguments are looked at before the kernel runs
_ONE_BY_ONE = (range, enumerate, zip, print, len)

_OF_ML_DTYPES = tuple(row.numpy.type for row in scalars.ALL if row.numpy.type.__module__ == "ml_dtypes")

# Where an index is checked, and of which array.
Site = tuple[FunctionSource, ast.AST, str]


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A kernel and its device functions as syntax trees, rewritten for one floating type.

    What is compiled is the text of these trees; whoever needs the program itself, such as the derivatives, reads the
    same trees, whose nodes have the positions of the original source.

    Attributes
    ----------
    program : Program
        Where the functions come from.
    trees : dict of int to ast.FunctionDef
        The functions, by the identity of their `FunctionSource`, callee before caller.
    names : dict of int to str
        What each is called in the text, by the same identity.
    hidden : tuple of str
        The kernel's leading parameters: thread indices, then the block and grid dimensions that are used, and the thread's
        place, if whoever runs it tells that.
    namespace : dict
        The globals of the text, without what the back end adds.
    sites : tuple of (FunctionSource, ast.AST, str)
        Where indices are checked, and of which array.
    in_blocks : bool
        For the CPU: whether the threads of a block work together.
    active : ActiveRange
        For the CPU: for which indices there is anything to do, if parameters were given and the kernel says so; else all.
    inside : (ast.FunctionDef, Interior) or None
        A simpler body for threads inside of a row, if parameters were given and `elements` are rewritten.
    may_raise : bool
        Whether something in the program may end its launch.
    order : tuple of int
        Which thread index each number in the trees stands for, as in ``_nb_i0`` and ``_nb_b0``: see `loop_order`. Their own, but
        for the CPU, if parameters were given.
    """

    program: Program
    trees: dict[int, ast.FunctionDef]
    names: dict[int, str]
    hidden: tuple[str, ...]
    namespace: dict[str, Any]
    sites: tuple[Site, ...] = ()
    in_blocks: bool = False
    active: ActiveRange = EVERYWHERE
    inside: tuple[ast.FunctionDef, Interior] | None = None
    may_raise: bool = False
    order: tuple[int, ...] = ()

    def printing(self) -> str | None:
        """Return the name of a function that prints, which most programs of it do not say; None if there is none."""
        for part in self.program.sources:
            for node in ast.walk(self.trees[id(part)]):
                if isinstance(node, ast.Name) and node.id == "_nb_print":
                    return part.name
        return None


def rewrite(
    source: FunctionSource,
    weak_float: str,
    target: Target = "cpu",
    *,
    gradients: bool = False,
    elements: bool = False,
    check_bounds: bool = False,
    blocks: bool = False,
    apart: bool = False,
    has_complex: bool = False,
    parameters: Sequence[ParameterType] | None = None,
) -> Rewritten:
    """Return a kernel's syntax trees for one floating type.

    Parameters
    ----------
    source : FunctionSource
        The kernel.
    weak_float : {'float32', 'float64'}
        What float literals, Python floats in globals, and ``float(x)`` become.
    target : {'cpu', 'cuda'}
        For which back end. Trees for CUDA name the module numba.cuda as `CUDA_MODULE`.
    gradients : bool
        Whether the derivatives by hand of device functions are rewritten too.
    elements : bool
        Whether stores into what may be a vector or a matrix replace it; else they stay as they are written.
    check_bounds : bool
        Whether an index that an array has not ends the kernel.
    blocks : bool
        Whether the body of a kernel whose threads work together becomes a coroutine, for the CPU to compile. Derivatives are
        made of the body as it is.
    apart : bool
        Whether the body does all that a thread does, and nothing of it is taken out for several threads. It loads no more of
        vectors and matrices than it uses, unless indices are checked.
    has_complex : bool
        Whether an argument has complex numbers. There, and where the program makes complex numbers itself, division becomes
        one that takes them; not for derivatives, which have none.
    parameters : sequence of ParameterType, optional
        For the CPU: the types of the kernel's parameters, if whoever runs it goes by which indices are active. Loops over the
        grid are taken out of its body then.

    Raises
    ------
    KernelError
        If something cannot be rewritten; what has no counterpart is named, with its place.
    """
    program = Program(source, gradients=gradients)
    in_blocks = target == "cpu" and source.works_in_blocks
    how = {"elements": elements, "check_bounds": check_bounds, "in_blocks": in_blocks, "in_crew": in_blocks and blocks}
    how["has_complex"] = elements and (has_complex or may_have_complex(program))
    # Products of vectors and matrices are what they are.
    how["of_rows"] = elements and parameters is not None and all(p.element is None for p in parameters)
    in_loops = parameters is not None and target == "cpu" and not (in_blocks or apart)
    order = loop_order(source, parameters) if parameters is not None and in_loops else tuple(range(source.index_rank))
    told = _told_axes(program, order[-1:]) if in_loops else frozenset()
    writer = _Writer(program, weak_float, target, order=order, told=told, **how)
    writer.ranks = {p.name: p.ndim for p in parameters or () if isinstance(p, ArrayType)}
    writer.values = frozenset(
        p.name for p in parameters or () if not isinstance(p, ArrayType) and p.element is not None
    )
    trees = {id(part): writer.tree(part) for part in program.sources}
    if apart and elements and not check_bounds:
        trees = {key: PartLoader(tree).visit(tree) for key, tree in trees.items()}
    raises = bool(writer.sites) or any(may_raise(node) for part in program.sources for node in part.nodes)
    active, inside = EVERYWHERE, None
    if parameters is not None and in_loops:
        taken = {*writer.namespace, *writer.names.values()}
        tree = trees[id(source)]
        reading = read_indices(tree, source.index_rank, parameters, taken, may_raise=raises)
        active = reading.active()
        if elements and reading.index and not any(isinstance(node, ast.For | ast.While) for node in ast.walk(tree)):
            inside = with_interior(tree, reading)
    facts = writer.names, writer.hidden, writer.namespace, tuple(writer.sites), in_blocks
    return Rewritten(program, trees, *facts, active, inside, raises, order)


def _told_axes(program: Program, last: Sequence[int]) -> frozenset[int]:
    """Return the axes along which the loops over threads tell each its block, and its place there, which it need not divide for.

    The innermost loop runs block by block for that. Where only the number of the block is asked for, blocks may well be of one
    thread each.
    """
    found = {place for part in program.sources for place in apart_places(part)}
    return frozenset(axis for _, axis in found if axis not in last or ("threadIdx", axis) in found)


class _Writer:
    """What the functions of one program share: names, namespace, hidden parameters."""

    def __init__(
        self,
        program: Program,
        weak_float: str,
        target: Target,
        *,
        elements: bool,
        check_bounds: bool,
        in_blocks: bool,
        in_crew: bool,
        has_complex: bool,
        of_rows: bool,
        order: tuple[int, ...],
        told: frozenset[int],
    ) -> None:
        self.program = program
        self._order = order
        # The axes along which a thread is told its block, and its place there.
        self.told = told
        self.has_complex = has_complex
        # Whether products of matrices, as they are written, may be those of rows
        self.of_rows = of_rows
        self.check_bounds = check_bounds
        self.in_blocks = in_blocks
        # Whether the body is a coroutine, which is told its crew, and its place in the block and the grid.
        self.in_crew = in_crew
        uses = [found.operation for part in program.sources for _, found in part.block_uses()] if in_blocks else []
        self.in_grid = "cg" in uses
        # How many places of the source have static shared memory.
        self.places = 0
        # How many dimensions those of the kernel's parameters have that are known
        self.ranks: Mapping[str, int] = {}
        # Which of these are vectors or matrices, passed by value
        self.values: frozenset[str] = frozenset()
        self.sites: list[Site] = []
        self.elements = elements
        self.weak_float = weak_float
        self.target = target
        self.namespace: dict[str, Any] = {}
        self._taken = {name for part in program.sources for name in part.locals}
        self.names: dict[int, str] = {}
        for part in program.sources:
            self.names[id(part)] = self._free(re.sub(r"\W", "_", part.name))
        self.hidden = self._hidden()
        self._uses_hidden = self._find_users()
        self.waiting = self._find_waiting() if in_crew else set()

    def _free(self, preferred: str) -> str:
        name, number = preferred, 1
        while name in self._taken:
            number += 1
            name = f"{preferred}_{number}"
        self._taken.add(name)
        return name

    def axis(self, index: int) -> int:
        """Return which of the loops over threads runs along a thread index, and so what number it has in the text."""
        return self._order.index(index) if index < len(self._order) else index

    def _hidden(self) -> tuple[str, ...]:
        rank = self.program.root.index_rank
        needed: set[str] = set()
        for part in self.program.sources if self.target == "cpu" else ():
            for node, kind, count in index_uses(part):
                if kind == "gridsize":
                    needed |= {f"_nb_{letter}{self.axis(k)}" for letter in "bg" for k in range(count)}
                elif kind == "axis":
                    static = part.resolve(node)
                    found = intrinsic_of(static.value) if static is not None else None
                    letters = _SHORT_IN_BLOCKS if self.in_crew else _SHORT
                    letter = letters.get(found.operation, "b") if found is not None else "b"
                    needed.add(f"_nb_{letter}{self.axis(count - 1)}")
        needed |= {f"_nb_{letter}{self.axis(axis)}" for axis in self.told for letter in "bkt"}
        if self.in_blocks and not self.in_crew:
            needed |= {f"_nb_b{k}" for k in range(_AXES)}  # how many threads there are to share work
        crew = (CREW, THREAD) if self.in_crew else ()
        return (*crew, *(f"_nb_i{k}" for k in range(rank)), *sorted(needed))

    def _find_users(self) -> set[int]:
        users: set[int] = set()
        for part in self.program.sources:  # callee before caller
            calls = any(id(callee) in users for _, callee in self.program.calls(part))
            blocks = self.in_crew and (any(True for _ in part.block_uses()) or self._waits_unseen(part))
            if part is self.program.root or calls or blocks or any(True for _ in index_uses(part)):
                users.add(id(part))
        return users

    def _waits_unseen(self, part: FunctionSource) -> bool:
        """Tell whether a function waits for all blocks, or asks memory for what others do."""
        return any(part.asks_memory(node) or (self.in_grid and part.is_grid_sync(node)) for node in part.nodes)

    def _find_waiting(self) -> set[int]:
        """Return the functions, by identity, in which a thread may wait for others."""
        waiting: set[int] = set()
        seen: set[int] = set()
        backwards = []
        for part in self.program.sources:  # callee before caller, but for functions that come back to themselves
            calls = list(self.program.calls(part))
            waits = any(found.operation not in _WITHOUT_WAITING for _, found in part.block_uses())
            if waits or self._waits_unseen(part) or any(id(callee) in waiting for _, callee in calls):
                waiting.add(id(part))
            backwards += [(part, node, callee) for node, callee in calls if id(callee) not in seen]
            seen.add(id(part))
        for part, node, callee in backwards:
            if {id(part), id(callee)} & waiting:
                text = f"{callee.name} comes back to itself, which what waits for other threads cannot on the CPU; write a loop"
                raise part.error(node, text, KernelUnsupportedError)
        return waiting

    def hidden_of(self, source: FunctionSource) -> tuple[str, ...]:
        """Return the hidden parameters that a function takes: all or none."""
        return self.hidden if id(source) in self._uses_hidden else ()

    def claim(self, preferred: str, value: Any) -> str:
        """Return the name under which a value stands in the namespace."""
        if isinstance(value, np.ndarray):
            value = self.program.root.frozen(value)
        for name, known in self.namespace.items():
            if known is value:
                return name
        name = preferred if preferred.startswith("_nb_") else self._free(preferred)
        self.namespace[name] = value
        return name

    def literal(self, value: Any) -> ast.expr | None:
        """Return a number, string or tuple of such as an expression of the kernel's floating type, or None."""
        if type(value) in (bool, int, str) or value is None:
            return ast.Constant(value)
        if isinstance(value, int) and isinstance(value, enum.Enum):  # a number in Python, and none of Numba's
            return ast.Constant(int(value))
        if type(value) is float or type(value) is complex:
            return self.weak(value)
        if type(value) is tuple:
            parts = [self.literal(part) for part in value]
            if all(part is not None for part in parts):
                return ast.Tuple([part for part in parts if part is not None], ast.Load())
        if isinstance(value, Element):
            return self._element(value)
        return None

    def _element(self, value: Element) -> ast.expr:
        """Return an element as a call of its type."""
        kind = type(value)
        parts = [self.literal(part) for part in value.numpy().reshape(-1).tolist()]
        name = ast.Name(self.claim(kind.__name__, kind), ast.Load())
        return ast.Call(name, [part for part in parts if part is not None], [])

    def weak(self, value: float | complex) -> ast.expr:
        """Return a number of the kernel's floating type as an expression."""
        if self.weak_float == "float64" and np.isfinite(value):
            return ast.Constant(value)
        kind = self.weak_type(type(value))
        # repr of inf and nan is no literal, so these are spelled as strings of a global.
        if not np.isfinite(value):
            return ast.Name(self.claim(f"constant_{'inf' if np.isinf(value) else 'nan'}", kind(value)), ast.Load())
        return ast.Call(ast.Name(self.claim(f"_nb_{kind.__name__}", kind), ast.Load()), [ast.Constant(value)], [])

    def weak_type(self, kind: type) -> Any:
        """Return the NumPy type that Python's `float` or `complex` stands for."""
        wide = self.weak_float == "float64"
        if kind is complex:
            return np.complex128 if wide else np.complex64
        return np.float64 if wide else np.float32

    def tree(self, source: FunctionSource) -> ast.FunctionDef:
        """Return one function's syntax tree."""
        if source.role == "func" and source.kept is None:
            check_returned_memory(source, self.program)
        tree = copy.deepcopy(source.tree)
        weak = self.weak_float
        if source.kept is not None:
            self.weak_float = "float64"  # as in Numba, which compiles it by itself elsewhere
        body = _Rewriter(self, source).rewrite(tree)
        self.weak_float = weak
        body.name = self.names[id(source)]
        body.args.args = [*(ast.arg(name) for name in self.hidden_of(source)), *body.args.posonlyargs, *body.args.args]
        body.args.posonlyargs = []
        # Who waits must be part of the coroutine.
        inner = id(source) in self.waiting and source is not self.program.root
        body.decorator_list = [ast.Name("_nb_in_place" if inner else "_nb_device", ast.Load())]
        if self.in_crew and source is self.program.root:
            body.body = as_coroutine(body.body)
        return ast.fix_missing_locations(body)


class _Rewriter(ast.NodeTransformer):
    """Rewrites one function."""

    def __init__(self, writer: _Writer, source: FunctionSource) -> None:
        self.writer = writer
        self.source = source
        self._stores = StoreRewriter(self._is_array) if writer.elements else None
        # Whether shared memory is made that is another for arguments of other types
        self._gives = False
        # The nodes that may come to run several times
        self._in_loops: set[int] = set()

    def _is_array(self, name: str) -> bool:
        """Tell whether a name is one that is only ever indexed to write to an array."""
        if name not in self.source.locals:
            return True
        if name in self.source.parameters:
            is_value = name in self.writer.values or name in self.source.rebound
            return self.source.role == "kernel" and not is_value
        return name in self.source.memory

    def rewrite(self, tree: ast.FunctionDef) -> ast.FunctionDef:
        """Return the function with its body, and the defaults of its parameters, rewritten."""
        loops = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While))
        self._in_loops = {id(node) for loop in loops for node in ast.walk(loop)}
        tree.body = list(self._visited(tree.body))
        if self._gives:
            arguments = (*tree.args.posonlyargs, *tree.args.args, *filter(None, [tree.args.vararg]))
            given = ast.Tuple([ast.Name(argument.arg, ast.Load()) for argument in arguments], ast.Load())
            tree.body.insert(0, ast.Assign([ast.Name(GIVEN, ast.Store())], given))
        # Of a kernel, whose launches pass every argument, the source has none.
        values = (self.source.function.__defaults__ or ()) if tree.args.defaults else ()
        pairs = zip(tree.args.defaults, values, strict=True)
        tree.args.defaults = [ast.copy_location(self._default(*pair), pair[0]) for pair in pairs]
        return tree

    def _default(self, node: ast.expr, value: Any) -> ast.expr:
        """Return the value that a parameter has by default, which is that of the time when Python made the function."""
        callee = self.writer.program.callee(value)
        if callee is not None:
            return self._function(node, callee)
        # But nb.static, which stands here as a name that is none, is evaluated when the kernel is launched.
        if any(isinstance(part, ast.Name) and not part.id.isidentifier() for part in ast.walk(node)):
            literal: ast.expr | None = None
        elif isinstance(value, np.generic):
            literal = ast.Name(self.writer.claim("default", value), ast.Load())
        else:
            literal = self.writer.literal(value)
            if literal is None:
                self._check_default(node, value)
        made: ast.expr = self.visit(node) if literal is None else literal
        return made

    def _check_default(self, node: ast.expr, value: Any) -> None:
        """Refuse a default that its expression does not tell now, or may not tell later: Python keeps that of the definition."""
        if isinstance(node, ast.Tuple) and type(value) is tuple and len(value) == len(node.elts):
            for part, item in zip(node.elts, value, strict=True):
                self._check_default(part, item)
            return
        if isinstance(value, np.ndarray):
            problem = "is an array"
        elif isinstance(node, ast.Name | ast.Attribute) and not self._still_is(node, value):
            problem = "is not what its name stands for now"
        else:
            return
        what = f"the default {ast.unparse(node)} of {self.source.name} {problem}"
        text = "and a compiled function has no defaults but numbers, vectors and functions"
        way = (
            "pass it as an argument, or make the function in one that takes it, and read it in the body under that name"
        )
        raise self.source.error(node, f"{what}, {text}; {way}")

    def _still_is(self, node: ast.Name | ast.Attribute, value: Any) -> bool:
        """Tell whether a name or an attribute stands for a value now."""
        try:
            now = self.source.resolve(node)
        except KernelError:
            return False
        if now is None or now.value is value:
            return now is not None
        return self.writer.literal(now.value) is not None and bool(now.value == value)

    def visit(self, node: ast.AST) -> Any:
        """Rewrite a node; what takes its place is at the same position of the source."""
        made = super().visit(node)
        for part in made if isinstance(made, list) else [made]:
            if part is not node and isinstance(part, ast.expr | ast.stmt) and not hasattr(part, "lineno"):
                ast.copy_location(part, node)
        return made

    def _visited(self, body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for statement in body:
            found = self.visit(statement)
            yield from found if isinstance(found, list) else [found]

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Drop a statement that only gives a function a local name; let stores into elements replace them."""
        if self.source.is_alias(node):
            return ast.Pass()
        made = self._made(node)
        if made:
            return made
        self.generic_visit(node)
        hinted = self._hinted(node)
        if hinted is not None:
            return hinted
        return node if self._stores is None else self._stores.assign(node)

    def _hinted(self, node: ast.Assign) -> ast.stmt | None:
        """Return a call that stores with a hint for the cache, on CUDA, or None for any other assignment."""
        match node.targets:
            case [ast.Subscript(array, index) as target] if self.writer.target == "cuda" and hint_of(target):
                arguments = [array, index, node.value]
                return ast.Expr(ast.Call(ast.Name(f"_nb_{hint_of(target)}", ast.Load()), arguments, []))
        return None

    def _made(self, node: ast.Assign) -> list[ast.stmt]:
        """Return statements that make memory of the thread for an array of NumPy's, if that is what is assigned to a name."""
        match node:
            case ast.Assign([ast.Name(target)], ast.Call() as call):
                static = self.source.resolve(call.func)
            case _:
                return []
        makes = None if static is None else known_by(static.value, ARRAYS_OF_NUMPY)
        if makes is None:
            return []
        shape, dtype = self.writer.program.shape(self.source, call), self._dtype_of(call)
        extents = shape if type(shape) is tuple else (shape,)
        if dtype is None or not all(type(extent) is int and extent >= 0 for extent in extents):
            return []
        if id(call) in self._in_loops:
            begin = "" if makes == NOTHING else f", and assign {target}[:] = {makes} in it"
            raise self.source.error(
                node,
                f"{ast.unparse(call.func)} in a loop would make an array in each trip; make it before the loop{begin}",
            )
        memory = self._memory(Intrinsic("local_array", "cuda.local.array"), shape, dtype, without_size=False)
        made: list[ast.stmt] = [ast.Assign([ast.Name(target, ast.Store())], memory)]
        if makes != NOTHING:
            everything: list[ast.expr] = [ast.Slice() for _ in extents]
            place = ast.Tuple(everything, ast.Load()) if len(everything) > 1 else everything[0]
            whole = ast.Subscript(ast.Name(target, ast.Load()), place, ast.Store())
            made.append(ast.Assign([whole], parsed_expression(makes)))
        return made

    def _dtype_of(self, call: ast.Call) -> ast.expr | None:
        """Return the dtype of an array of NumPy's that a call makes, if it is plain."""
        given = memory_arguments(call)
        if len(call.args) > 2 or not given.keys() <= {"shape", "dtype"}:
            return None
        static = None if "dtype" not in given else self.source.resolve(given["dtype"])
        if "dtype" in given and static is None:
            return None
        kind = np.float64 if static is None else static.value
        kind = _DTYPES.get(kind, kind) if isinstance(kind, type) else None
        if kind is None or not issubclass(kind, np.number | np.bool_) or kind in _OF_ML_DTYPES:
            return None
        return ast.Name(self.writer.claim(f"_nb_{kind.__name__}", kind), ast.Load())

    def visit_While(self, node: ast.While) -> Any:
        """Refuse, on the CPU, to wait for what others store with loads that need not look again."""
        if self.writer.target == "cpu":
            names = (part for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Name))
            changed = {name.id for name in names if isinstance(name.ctx, ast.Store)}
            for part in ast.walk(node.test):
                read = {name.id for name in ast.walk(part) if isinstance(name, ast.Name)} if hint_of(part) else set()
                if hint_of(part) and not read & changed:
                    text = f"a loop that waits by cuda.{hint_of(part)}, which is a plain load on the CPU, may never end there"
                    raise self.source.error(
                        part, f"{text}; ask by cuda.atomic.add(array, index, 0)", KernelUnsupportedError
                    )
        return self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """Let stores into elements replace them, and divisions take complex numbers."""
        self.generic_visit(node)
        if self._stores is None:
            return node
        divides = self.writer.has_complex and isinstance(node.op, ast.Div)
        return self._stores.augment(node, "_nb_divide_in_place" if divides else None)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Let divisions take complex numbers, and write a thread's index as what it is."""
        if isinstance(node.op, ast.Pow | ast.LShift):
            self._refuse_wide(node)
        own = self._own_index(node)
        if own is not None:
            return own
        self.generic_visit(node)
        if self.writer.of_rows and isinstance(node.op, ast.MatMult):
            return ast.Call(ast.Name("_nb_matmul_of", ast.Load()), [node.left, node.right], [])
        if not (self.writer.has_complex and isinstance(node.op, ast.Div)):
            return node
        return ast.Call(ast.Name("_nb_divide", ast.Load()), [node.left, node.right], [])

    def _refuse_wide(self, node: ast.BinOp) -> None:
        """Refuse a constant power or shift that no integer of 64 bits holds: compiled code would go on with its last bits."""
        left, right = self.source.fold(node.left), self.source.fold(node.right)
        is_power = isinstance(node.op, ast.Pow)
        if type(left) is not int or type(right) is not int or right < 0 or left in ((0, 1, -1) if is_power else (0,)):
            return
        # Which is not computed where it would be endless
        made = None if right > 64 else left**right if is_power else left << right
        if made is None or not -(2**63) <= made < 2**64:
            raise self.source.error(
                node,
                f"{ast.unparse(node)} does not fit into 64 bits; write it with floating-point numbers, as in 2.0 ** 70",
            )

    def _own_index(self, node: ast.BinOp) -> ast.expr | None:
        """Return the thread's index for ``blockIdx.x * blockDim.x + threadIdx.x`` on the CPU, which need not divide for it."""
        if self.writer.target != "cpu" or self.writer.in_crew:
            return None
        axis = own_axis(self.source, node)
        if axis is None:
            return None
        self._check_axis(node, axis, f"cuda.threadIdx.{'xyz'[axis]}")
        return ast.Name(f"_nb_i{self.writer.axis(axis)}", ast.Load())

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Drop the annotation of a local variable."""
        if node.value is None:
            return ast.Pass()
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assert(self, node: ast.Assert) -> Any:
        """Say what an assertion does, for CUDA: numba-cuda 0.30 does not know how Python 3.14 compiles the statement."""
        self.generic_visit(node)
        if self.writer.target == "cpu" or sys.flags.optimize:
            return node
        error = ast.Call(ast.Name("AssertionError", ast.Load()), [] if node.msg is None else [node.msg], [])
        return ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Raise(error)], [])

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Let the index be checked."""
        written = copy.deepcopy(node)
        if hint_of(node):
            self._check_whole(node)
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and self._stays_constant(written.value, node.slice):
            # A tuple may be indexed by a constant alone, so that it is the array that comes out of the check.
            if self._is_checked(written.value, [node.slice]) and not isinstance(node.value, ast.Tuple):
                node.value = _call("_nb_having", node.value, node.slice, 0, self._site(node, written.value))
            return node
        if isinstance(node.ctx, ast.Load) and self._may_cut_an_element(node.slice, written.value):
            if self._is_checked(written.value, node.slice.elts):
                site = self._site(node, written.value)
                for axis, part in enumerate(node.slice.elts):
                    if not isinstance(part, ast.Slice):
                        node.value = _call("_nb_having", node.value, part, axis, site)
            return node
        node.slice = self._checked(node, written.value, node.value, node.slice)
        if self.writer.target == "cuda" and hint_of(node) in LOADS:
            return ast.Call(ast.Name(f"_nb_{hint_of(node)}", ast.Load()), [node.value, node.slice], [])
        return node

    def _check_whole(self, node: ast.Subscript) -> None:
        """Refuse a row where numba.cuda loads or stores one element, as far as the source tells how many indices there are."""
        rank = self.writer.ranks.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if rank is None or not self._is_parameter(node.value):
            return
        count = len(node.slice.elts) if isinstance(node.slice, ast.Tuple) else self.source.index_count(node.slice)
        if count not in (None, rank):
            array = ast.unparse(node.value)
            raise self.source.error(
                node, f"cuda.{hint_of(node)} needs {rank} indices of {array}, one for each dimension"
            )

    def _checked(self, node: ast.AST, written: ast.expr, array: ast.expr, index: ast.expr) -> ast.expr:
        """Return an index that is checked, where that is wanted; `written` is the array as it is in the source."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        if not self._is_checked(written, parts) or isinstance(index, ast.Slice):
            return index
        site = self._site(node, written)
        made = [
            part if isinstance(part, ast.Slice) else _call("_nb_checked", copy.deepcopy(array), part, axis, site)
            for axis, part in enumerate(parts)
        ]
        return ast.Tuple(made, ast.Load()) if isinstance(index, ast.Tuple) else made[0]

    def _is_checked(self, written: ast.expr, parts: list[ast.expr]) -> bool:
        whole = not any(isinstance(part, ast.Constant) and type(part.value) is not int for part in parts)
        return self.writer.check_bounds and whole and all(self._may_repeat(part) for part in ast.walk(written))

    def _may_repeat(self, part: ast.AST) -> bool:
        """Tell whether a part of an expression may be evaluated twice: it changes nothing."""
        if isinstance(part, ast.Call):
            found = self.source.resolve(part.func)
            known = None if found is None else intrinsic_of(found.value)
            if known is not None:
                return known.kind in ("tid", "grid", "gridsize")
            value = None if found is None else found.value
            return any(value is f for f in _OF_NUMBERS) or (isinstance(value, type) and issubclass(value, np.generic))
        return not isinstance(part, ast.NamedExpr)

    def _site(self, node: ast.AST, written: ast.expr) -> int:
        """Return the number of a place where an index is checked."""
        self.writer.sites.append((self.source, node, ast.unparse(written)))
        return first_site(self.writer.program.root) + len(self.writer.sites) - 1

    def _stays_constant(self, written: ast.expr, index: ast.expr) -> bool:
        """Tell whether an index may be one of a tuple's, and is a constant, which it must stay then."""
        return _is_constant(index) and not self._is_parameter(written)

    def _may_cut_an_element(self, index: ast.expr, written: ast.expr) -> TypeGuard[ast.Tuple]:
        """Tell whether an index may be slices of a matrix beside constants, which these must stay then."""
        if not isinstance(index, ast.Tuple) or not any(isinstance(part, ast.Slice) for part in index.elts):
            return False
        may_be = not self._is_parameter(written) or ast.unparse(written) in self.writer.values
        return may_be and all(isinstance(part, ast.Slice) or _is_constant(part) for part in index.elts)

    def _is_parameter(self, node: ast.expr) -> bool:
        return self.source.role == "kernel" and isinstance(node, ast.Name) and node.id in self.source.parameters

    def visit_Constant(self, node: ast.Constant) -> Any:
        """Give a float literal the kernel's floating type."""
        return self.writer.literal(node.value) if type(node.value) in (float, complex) else node

    def visit_Name(self, node: ast.Name) -> Any:
        """Replace a global by what it stands for."""
        return self._static(node) if isinstance(node.ctx, ast.Load) else node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """Replace an attribute chain by what it stands for."""
        return self._static(node) if isinstance(node.ctx, ast.Load) else self.generic_visit(node)

    def _static(self, node: Any) -> Any:
        static = self.source.resolve(node)
        if static is None:
            return self.generic_visit(node) if isinstance(node, ast.Attribute) else node
        if static.value is grad or isinstance(static.value, Gradient):
            raise self.source.error(
                node,
                "the gradient of a function is called where it stands, nb.grad(f)(x), or by a name that is given it once",
            )
        found = intrinsic_of(static.value)
        if found is not None:
            return self._index(node, found)
        literal = self.writer.literal(static.value)
        if literal is not None:
            return literal
        if isinstance(static.value, list | set | frozenset):
            name, kind = static.path[-1] if static.path else static.root, type(static.value).__name__
            raise self.source.error(
                node, f"{name} is a {kind}, which kernels cannot read; make it a tuple, or pass an array"
            )
        if static.value is float or static.value is complex:
            kind = self.writer.weak_type(static.value)
            return ast.Name(self.writer.claim(f"_nb_{kind.__name__}", kind), ast.Load())
        if static.value is math.cbrt:  # which Numba has by NumPy's name only
            return ast.Name(self.writer.claim("cbrt", np.cbrt), ast.Load())
        callee = self.writer.program.callee(static.value)
        if callee is not None:
            return self._function(node, callee)
        # By its own name, which a variable of the kernel may stand for: `largest = max`.
        return ast.Name(static.root, ast.Load()) if static.builtin and not static.path else self._chain(static)

    def _function(self, node: Any, callee: FunctionSource) -> ast.expr:
        """Return a device function as a value; whoever calls it by another name passes it what is written there."""
        if callee.role == "kernel":
            message = f"{callee.name} is a kernel, which only a launch can run; decorate it with @nb.func"
            raise self.source.error(node, message)
        if self.writer.hidden_of(callee):
            raise self.source.error(
                node,
                f"{callee.name} asks for its thread, and so cannot be passed on; call it here, or let it take the index",
            )
        return ast.Name(self.writer.names[id(callee)], ast.Load())

    def _chain(self, static: Static) -> ast.expr:
        """Return a reference to an object: through its module where that is how it was reached, else by itself."""
        root, own = static.root_value, static.path[-1] if static.path else static.root
        if not (static.through_modules and static.path and isinstance(root, ModuleType)):
            return ast.Name(self.writer.claim(own, static.value), ast.Load())
        if not is_from_library(root):
            # The text does not say what it is, so it stands in the namespace, too.
            self.writer.claim(own, static.value)
        result: ast.expr = ast.Name(self.writer.claim(static.root, root), ast.Load())
        for attribute in static.path:
            result = ast.Attribute(result, attribute, ast.Load())
        return result

    def _index(self, node: Any, found: Intrinsic) -> ast.expr:
        if found.of_halves:
            return self._number_function(found)
        if self.writer.target == "cuda" and found.kind in ("axis", "function", "block", "cuda"):
            return self._cuda(node, found)
        if found.kind == "atomic":
            return self._atomic_function(node, found)
        if found.kind == "function":
            return self._number_function(found)
        if found.kind == "block" and found.operation in ("laneid", "warpsize"):
            text = f"{THREAD} % {WARP_SIZE}" if found.operation == "laneid" else str(WARP_SIZE)
            return parsed_expression(text)
        if found.kind != "axis":
            if found.kind == "cuda":
                raise self._unsupported(node, found)
            if found.name in ("cuda.threadIdx", "cuda.blockIdx", "cuda.blockDim", "cuda.gridDim"):
                raise self.source.error(node, f"{found.name} is no number; write {found.name}.x, .y or .z")
            raise self.source.error(node, f"{found.name} must be called here")
        if found.operation in ("blockIdx", "gridDim"):
            self._check_axis(node, found.axis, found.name)
        if self.writer.in_crew or found.axis in self.writer.told:
            return ast.Name(f"_nb_{_SHORT_IN_BLOCKS[found.operation]}{self.writer.axis(found.axis)}", ast.Load())
        i, b, g = (f"_nb_{letter}{self.writer.axis(found.axis)}" for letter in "ibg")
        text = {"threadIdx": f"{i} % {b}", "blockIdx": f"{i} // {b}", "blockDim": b, "gridDim": g}[found.operation]
        return parsed_expression(text)

    def _check_axis(self, node: Any, axis: int, what: str) -> None:
        """Refuse the place in a grid along an axis that two indices share: a thread of the CPU knows that of the first."""
        if axis == _AXES - 1 and self.writer.program.root.index_rank > _AXES and not self.writer.in_crew:
            text = f"{what} of a kernel with four thread indices, whose last two share that axis; use the indices"
            raise self.source.error(node, text, KernelUnsupportedError)

    def _cuda(self, node: Any, found: Intrinsic) -> ast.expr:
        """Return a reference to an operation of numba.cuda by its full path, which is how numba.cuda recognises it."""
        path = found.name.split(".")[1:]
        value: Any = sys.modules["numba.cuda"]
        for attribute in path:
            value = getattr(value, attribute, MISSING)
        if found.kind != "axis" and intrinsic_of(value) != found:
            # An object whose name is not where it lies: it was reached somehow, and that way serves.
            static = self.source.resolve(node)
            assert static is not None
            return self._chain(static)
        result: ast.expr = ast.Name(CUDA_MODULE, ast.Load())
        for attribute in path:
            result = ast.Attribute(result, attribute, ast.Load())
        return result

    def _unsupported(self, node: Any, found: Intrinsic) -> Exception:
        text = f"{found.name} exists only on CUDA; launch this kernel on CUDA arrays, or leave it out"
        if found.name.removeprefix("cuda.") in (*LOADS, *STORES):
            text = (
                f"the CPU knows {found.name} by that name only: call it so, and by no variable that it is assigned to"
            )
        return self.source.error(node, text, KernelUnsupportedError)

    def visit_Call(self, node: ast.Call) -> Any:
        """Rewrite the operations of kernels; pass the hidden parameters on to device functions that use them."""
        static = self.source.resolve(node.func)
        found = intrinsic_of(static.value) if static is not None else None
        self._check_starred(node, static, found)
        if found is not None:
            return self._operation(node, found)
        if self.writer.in_grid and self.source.is_grid_sync(node):
            return _of_block("grid_sync", [])
        if static is not None and static.builtin and static.value is print:
            return self._print(node)
        if static is not None and static.builtin and (instead := _NOT_THERE.get(getattr(static.value, "__name__", ""))):
            raise self.source.error(node, f"{static.value.__name__}(...) cannot be called in a kernel: {instead}")
        if static is not None and (static.value is min or static.value is max) and node.keywords:
            given, name = ", ".join(str(keyword.arg) for keyword in node.keywords), static.value.__name__
            raise self.source.error(node, f"{name} in a kernel takes numbers by position, and {given} came by name")
        if static is not None and len(node.args) == 1 and not node.keywords:
            rounds = known_by(static.value, _ROUNDED)
            if rounds is not None:
                return ast.Call(ast.Name(rounds, ast.Load()), [self.visit(node.args[0])], [])
        if static is not None and static.value is float and _is_text(node.args):
            return self._spelled(node)
        if static is not None and static.value is complex and len(node.args) == 2:
            # NumPy's types take one number.
            made = ast.Call(ast.Name("complex", ast.Load()), [self.visit(part) for part in node.args], [])
            return ast.Call(self._static(node.func), [made], [])
        if static is not None and static.value is math.log and len(node.args) == 2:
            return self._logarithm(node)
        callee = self.writer.program.callee(static.value) if static is not None else None
        if (
            static is not None
            and callee is None
            and (getattr(static.value, "__module__", None) == "math" or isinstance(static.value, np.ufunc))
        ):
            self._check_count(node, static.value)
        if static is not None and static.builtin and static.value is enumerate:
            # Numba takes the first number by its place only.
            node.args += [keyword.value for keyword in node.keywords if keyword.arg == "start"]
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "start"]
        if static is not None and isinstance(static.value, Gradient):
            return self._gradient(node, static.value)
        if static is not None and callee is not None and (refusal := refusal_of(node, static.value)):
            raise self.source.error(node, refusal)
        if callee is None:
            return self._of_array(node, static) or self._of_numbers(node, static) or self.generic_visit(node)
        hidden = [ast.Name(name, ast.Load()) for name in self.writer.hidden_of(callee)]
        node.func = ast.Name(self.writer.names[id(callee)], ast.Load())
        node.args = [*hidden, *(self.visit(argument) for argument in node.args)]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        return node

    def _check_starred(self, node: ast.Call, static: Static | None, found: Intrinsic | None) -> None:
        """Refuse starred tuples where arguments are looked at one by one, and beside functions, of which Numba makes tuples."""
        starred = next((argument for argument in node.args if isinstance(argument, ast.Starred)), None)
        if starred is None or self.source.kept is not None:
            return
        if found is not None or (static is not None and any(static.value is known for known in _ONE_BY_ONE)):
            name = found.name if found is not None else ast.unparse(node.func)
            raise self.source.error(starred, f"{name} takes its arguments one by one; write the elements out")
        for argument in node.args:
            passed = self.source.resolve(argument)
            if passed is not None and callable(passed.value):
                text = f"{ast.unparse(argument)} is a function, beside which nothing can be starred; write the elements out"
                raise self.source.error(starred, text)

    def _of_array(self, node: ast.Call, static: Static | None) -> ast.expr | None:
        """Return a call of what takes the place of one of NumPy's functions of arrays; None for any other call."""
        if not self.writer.elements or node.keywords:
            return None
        arguments, name = node.args, None
        if static is not None:
            name = known_by(static.value, _OF_ARRAYS)
        elif isinstance(node.func, ast.Attribute):
            name = _METHODS.get(node.func.attr)
            arguments = [node.func.value, *arguments]
        if name is None or len(arguments) != (2 if "dot" in name else 1):
            return None
        return ast.Call(ast.Name(name, ast.Load()), [self.visit(argument) for argument in arguments], [])

    def _of_numbers(self, node: ast.Call, static: Static | None) -> ast.expr | None:
        """Return what `np.clip` and `np.where` do with numbers, since Numba's take arrays; None for any other call."""
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if static is not None and static.value is np.where:
            if len(node.args) != 3 or node.keywords or starred:
                raise self.source.error(node, "np.where in a kernel takes a condition and two numbers, by position")
            condition, chosen, other = map(self.visit, node.args)
            return ast.IfExp(condition, chosen, other)
        has_memory = len(node.args) > 3 or any(keyword.arg == "out" for keyword in node.keywords)
        if static is None or static.value is not np.clip or has_memory:
            return None
        given = dict(zip(("a", "a_min", "a_max"), node.args, strict=False))
        given |= {_LIMITS.get(keyword.arg, ""): keyword.value for keyword in node.keywords}
        limits = {name: limit for name, limit in given.items() if name != "a" and self.source.fold(limit) is not None}
        # Fewer if one has two names, or none
        if len(given.keys() & {*_LIMITS.values()}) != len(node.args) + len(node.keywords) or not limits or starred:
            message = "np.clip(a, a_min, a_max) in a kernel takes a number and its limits, of which one may be None"
            raise self.source.error(node, message)
        # As in NumPy: NaN stays NaN, and the upper limit is what comes where the two are the wrong way round.
        made: ast.expr = self.visit(given["a"])
        for name, function in (("a_min", np.maximum), ("a_max", np.minimum)):
            if name in limits:
                taken = ast.Name(self.writer.claim(function.__name__, function), ast.Load())
                made = ast.Call(taken, [made, self.visit(limits[name])], [])
        return made

    def _gradient(self, node: ast.Call, gradient: Gradient) -> ast.expr:
        """Return a call of the gradient of a function."""
        callee, found = self.writer.program.callee(gradient), intrinsic_of(gradient.innermost)
        hidden = [] if callee is None else [ast.Name(name, ast.Load()) for name in self.writer.hidden_of(callee)]
        if found is not None and found.kind != "function":
            raise self.source.error(node, f"{found.name} has no gradient; nb.grad takes functions of numbers")
        if found is not None:
            function = self._number_function(found)
        elif callee is not None:
            function = ast.Name(self.writer.names[id(callee)], ast.Load())
        elif isinstance(gradient.innermost, Passed):
            function = ast.Name(gradient.innermost.name, ast.Load())
        else:
            named = gradient.innermost
            function = ast.Name(self.writer.claim(named.__name__, named), ast.Load())
        arguments = [*hidden, *(self.visit(argument) for argument in node.args)]
        made = ast.Call(
            ast.Name(GRADIENT, ast.Load()), [ast.Constant(gradient.order), function, *arguments], node.keywords
        )
        made.keywords = [self.visit(keyword) for keyword in node.keywords]
        return made

    def _check_count(self, node: ast.Call, function: Any) -> None:
        """Refuse a call of a function of Python's or NumPy's with fewer or more arguments than it takes in a kernel."""
        if node.keywords and not isinstance(function, np.ufunc):
            raise self.source.error(node, f"math.{function.__name__} takes its arguments by position")
        counts = range(2, 3) if function is math.hypot else _counts(function)
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if counts and not starred and not node.keywords and len(node.args) not in counts:
            module = "np" if isinstance(function, np.ufunc) else "math"
            way = "; call it again with what it gives, or nb.length of a vector" if function is math.hypot else ""
            text = f"{module}.{function.__name__} takes {counts[0]} argument(s), and {len(node.args)} are given{way}"
            raise self.source.error(node, text)

    def _logarithm(self, node: ast.Call) -> ast.expr:
        """Return a logarithm to a base, which Numba's does not take, as Python computes it."""
        number, base = node.args
        constant = self.source.fold(base)
        if type(constant) in (int, float) and constant > 0:
            divisor = self.writer.weak(math.log(constant))
        else:
            divisor = ast.Call(self.visit(copy.deepcopy(node.func)), [self.visit(base)], [])
        return ast.BinOp(ast.Call(self.visit(node.func), [self.visit(number)], []), ast.Div(), divisor)

    def _spelled(self, node: ast.Call) -> ast.expr:
        """Return the number that a string spells, as in ``float("inf")``."""
        text = ast.literal_eval(node.args[0])
        try:
            return self.writer.weak(float(text))
        except ValueError:
            message = f"float({text!r}): the string spells no number; write one, or float('inf')"
            raise self.source.error(node, message) from None

    def _operation(self, node: ast.Call, found: Intrinsic) -> ast.expr:
        if found.kind == "tid":
            return _tuple([f"_nb_i{self.writer.axis(k)}" for k in range(self.source.unpacked(node) or 1)])
        if found.kind in ("grid", "gridsize"):
            count = self.source.fold(node.args[0] if node.args else node.keywords[0].value)
            if found.kind == "gridsize" and self.writer.target == "cuda":
                return parsed_expression(f"{CUDA_MODULE}.gridsize({count})")
            if found.kind == "gridsize":
                self._check_axis(node, count - 1, found.name)
            form = "_nb_i{0}" if found.kind == "grid" else "_nb_b{0} * _nb_g{0}"
            return _tuple([form.format(self.writer.axis(k)) for k in range(count)])
        if found.kind == "atomic":
            return self._atomic(node, found)
        if found.kind == "local_array":
            return self._local_array(node, found)
        if found.operation in ("laneid", "warpsize") or found.kind == "axis":
            raise self.source.error(node, f"{found.name} is a number, and is called here; leave the brackets out")
        if self.writer.target == "cuda" and not found.of_halves:
            if found.name == "cuda.shared.array" and (self._element(node) is not None or self._has_shape(node)):
                return self._local_array(node, found)
            rewritten: Any = self.generic_visit(node)
            made: ast.expr = rewritten
            return made
        if found.kind == "block":
            return self._in_block(node, found)
        if found.name == "cuda.const.array_like" and len(node.args) == 1 and not node.keywords:
            # Global arrays are constants of the code anyway.
            array: ast.expr = self.visit(node.args[0])
            return array
        if found.kind == "function":
            if node.keywords:
                raise self.source.error(node, f"{found.name} takes its arguments by position")
            arguments = [self.visit(argument) for argument in node.args]
            return ast.Call(self._number_function(found), arguments, [])
        raise self._unsupported(node, found)

    def _in_block(self, node: ast.Call, found: Intrinsic) -> ast.expr:
        """Return a call that works with the other threads of the block."""
        if found.operation == "shared.array":
            return self._local_array(node, found)
        if found.operation == "cg":
            return ast.Constant(0)  # there is one grid, which says nothing
        if node.keywords:
            raise self.source.error(node, f"{found.name} takes its arguments by position")
        arguments = [self.visit(argument) for argument in node.args]
        if found.operation == "syncwarp" and not arguments:
            arguments = [ast.Constant((1 << WARP_SIZE) - 1)]
        return _of_block(found.operation, arguments)

    def _number_function(self, found: Intrinsic) -> ast.expr:
        # NumPy's has a derivative.
        cbrt = found.operation == "cbrt"
        return ast.Name(self.writer.claim("_nb_cbrt", np.cbrt) if cbrt else CUDA_FUNCTION + found.operation, ast.Load())

    def _atomic_function(self, node: Any, found: Intrinsic) -> ast.expr:
        """Return an atomic operation as a value: a function of an array, one index or tuple, and a value."""
        if found.from_cuda and self.writer.target == "cuda":
            return self._cuda(node, found)
        operation = _ATOMICS.get(found.operation)
        if operation is None:
            raise self._unsupported(node, Intrinsic("cuda", found.name))
        return ast.Name(f"_nb_atomic_{operation}", ast.Load())

    def _print(self, node: ast.Call) -> ast.expr:
        """Return a call that prints; on the CPU, strings become a template, and numbers follow it."""
        if node.keywords:
            raise self.source.error(node, "print in a kernel takes no keywords; each call prints one line")
        node.args = [self.visit(argument) for argument in node.args]
        if self.writer.target == "cuda":
            return node
        strings = [isinstance(argument, ast.Constant) and type(argument.value) is str for argument in node.args]
        pieces = [
            getattr(argument, "value", None) if string else None
            for argument, string in zip(node.args, strings, strict=True)
        ]
        values = [argument for argument, string in zip(node.args, strings, strict=True) if not string]
        numbers = ast.Call(ast.Name("_nb_numbers", ast.Load()), [ast.Tuple(values, ast.Load())], [])
        template = ast.Call(ast.Name("_nb_text", ast.Load()), [ast.Constant(json.dumps(pieces))], [])
        return ast.Call(ast.Name("_nb_print", ast.Load()), [template, numbers], [])

    def _atomic(self, node: ast.Call, found: Intrinsic) -> ast.expr:
        if node.keywords:
            raise self.source.error(node, f"{found.name} takes its arguments by position")
        match node.args:
            case [_, ast.Tuple([alone]), *_] if found.from_cuda:  # which numba.cuda does not take
                node.args[1] = alone
        if found.from_cuda and self.writer.target == "cuda":
            return ast.Call(self._cuda(node.func, found), [self.visit(argument) for argument in node.args], [])
        operation = "cas" if found.operation == "compare_and_swap" else _ATOMICS.get(found.operation)
        if operation is None:
            raise self._unsupported(node, Intrinsic("cuda", found.name))
        values = 2 if operation == "cas" else 1
        arguments = [self.visit(argument) for argument in node.args]
        if found.operation == "compare_and_swap" and len(arguments) == 3:
            arguments.insert(1, ast.Constant(0))
        if len(arguments) < values + 2 or (found.from_cuda and len(arguments) != values + 2):
            wanted = "array, index, compare, value" if values == 2 else "array, index, value"
            raise self.source.error(node, f"{found.name}({wanted}) got {len(node.args)} argument(s)")
        index = arguments[1:-values]
        place = index[0] if len(index) == 1 else ast.Tuple(index, ast.Load())
        place = self._checked(node, node.args[0], arguments[0], place)
        made = ast.Call(
            ast.Name(f"_nb_atomic_{operation}", ast.Load()), [arguments[0], place, *arguments[-values:]], []
        )
        return _of_block(ASKED, [made]) if self.writer.in_crew and self.source.asks_memory(node) else made

    def _element(self, node: ast.Call) -> ElementType | None:
        """Return the element type that local or shared memory is asked for, if it is one."""
        given = memory_arguments(node).get("dtype")
        static = None if given is None else self.source.resolve(given)
        return static.value if static is not None and isinstance(static.value, ElementType) else None

    def _has_shape(self, node: ast.Call) -> bool:
        """Tell whether the shape that memory is asked for is known here, whatever it is written with."""
        shape = self.writer.program.shape(self.source, node)
        return "dtype" in memory_arguments(node) and all(
            type(extent) is int for extent in (shape if type(shape) is tuple else (shape,))
        )

    def _local_array(self, node: ast.Call, found: Intrinsic) -> ast.expr:
        """Return a call that makes memory; that of elements is made of scalars."""
        given, element = memory_arguments(node), self._element(node)
        shape = self.writer.program.shape(self.source, node)
        extents = shape if isinstance(shape, tuple) else (shape,)
        if "dtype" not in given or not all(type(extent) is int and extent >= 0 for extent in extents):
            raise self.source.error(node, f"{found.name}(shape, dtype) needs a constant shape and a dtype")
        self._check_memory(node, found, given["dtype"])
        dtype = self.visit(given["dtype"])
        # Dynamic shared memory, of extent 0, has one dimension.
        without_size = is_dynamic(found.name, shape)
        alignment = self._alignment(node, found)
        if element is None:
            return self._memory(found, shape, dtype, without_size=without_size, alignment=alignment)
        scalar = scalar_in_memory(element)
        self.writer.namespace[f"_nb_{scalar.__name__}"] = scalar
        numbers = ast.Name(f"_nb_{scalar.__name__}", ast.Load())
        size = 0 if without_size else (*extents, element.count)
        memory = self._memory(found, size, numbers, without_size=without_size, alignment=alignment)
        return ast.Call(ast.Name("_nb_elements", ast.Load()), [memory, dtype], [])

    def _check_memory(self, node: ast.Call, found: Intrinsic, dtype: ast.expr) -> None:
        """Refuse memory of those dtypes that ml_dtypes has made."""
        static = self.source.resolve(dtype)
        if static is not None and any(static.value is kind for kind in _OF_ML_DTYPES):
            name = static.value.__name__
            raise self.source.error(
                node, f"{found.name} of {name}: such numbers lie in arguments only; use float32 here"
            )

    def _alignment(self, node: ast.Call, found: Intrinsic) -> int | None:
        """Return to how many bytes memory is aligned at least, if the source says so."""
        given = memory_arguments(node)
        if len(node.args) > 3 or not given.keys() <= {"shape", "dtype", "alignment"}:
            raise self.source.error(node, f"{found.name}(shape, dtype, alignment=None) takes nothing else")
        if "alignment" not in given:
            return None
        bytes_ = self.source.fold(given["alignment"])
        if bytes_ is None:
            return None
        if type(bytes_) is not int or bytes_ <= 0 or bytes_ & (bytes_ - 1) or bytes_ % _POINTER:
            text = f"the alignment of {found.name} must be a constant, a power of two from {_POINTER} on"
            raise self.source.error(given["alignment"], text)
        return bytes_

    def _memory(
        self, found: Intrinsic, shape: Any, dtype: ast.expr, *, without_size: bool, alignment: int | None = None
    ) -> ast.expr:
        """Return a call that makes memory of numbers. On the CPU nothing depends on where it begins."""
        size = parsed_expression(repr(shape))
        if self.writer.target == "cuda":
            maker = parsed_expression(f"{CUDA_MODULE}.{found.name.removeprefix('cuda.')}")
            return ast.Call(maker, [size, dtype, *([ast.Constant(alignment)] if alignment else [])], [])
        if found.kind == "local_array":
            return ast.Call(ast.Name("_nb_local_array", ast.Load()), [size, dtype], [])
        crew = ast.Name(CREW, ast.Load())
        if without_size:
            return ast.Call(ast.Name("_nb_dynamic", ast.Load()), [crew, dtype], [])
        place = ast.Constant(self.writer.places)
        self.writer.places += 1
        self._gives = self.source is not self.writer.program.root
        given = ast.Name(GIVEN, ast.Load()) if self._gives else ast.Tuple([], ast.Load())
        return ast.Call(ast.Name("_nb_shared", ast.Load()), [crew, place, given, size, dtype], [])


def _counts(function: Any) -> range:
    """Return how many arguments a function takes; nothing where that is not one number, or not known."""
    if isinstance(function, np.ufunc):  # behind numbers may come arrays for what it gives
        return range(function.nin, function.nin + function.nout + 1)
    try:
        signature = inspect.signature(function)
    except ValueError:  # Python does not say
        return range(0)
    wanted = [parameter for parameter in signature.parameters.values() if parameter.default is parameter.empty]
    fixed = len(wanted) == len(signature.parameters) and all(p.kind is not p.VAR_POSITIONAL for p in wanted)
    return range(len(wanted), len(wanted) + 1) if fixed else range(0)


def _is_text(arguments: list[ast.expr]) -> bool:
    """Tell whether a call is given one string."""
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and type(arguments[0].value) is str


def _of_block(operation: str, arguments: list[ast.expr]) -> ast.expr:
    crew: list[ast.expr] = [ast.Name(CREW, ast.Load()), ast.Name(THREAD, ast.Load())]
    return ast.Call(ast.Name(f"_nb_block_{operation}", ast.Load()), [*crew, *arguments], [])


def _is_constant(index: ast.expr) -> bool:
    """Tell whether an index is written as a number."""
    bare = index.operand if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) else index
    return isinstance(bare, ast.Constant)


def _call(name: str, array: ast.expr, index: ast.expr, *numbers: int) -> ast.expr:
    arguments = [array, index, *(ast.Constant(number) for number in numbers)]
    for node in ast.walk(array):
        if hasattr(node, "ctx"):
            node.ctx = ast.Load()
    return ast.Call(ast.Name(name, ast.Load()), arguments, [])


def _tuple(expressions: list[str]) -> ast.expr:
    text = expressions[0] if len(expressions) == 1 else f"({', '.join(expressions)})"
    return parsed_expression(text)
