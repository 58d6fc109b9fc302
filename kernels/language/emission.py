"""The text that a back end compiles: a kernel's rewritten trees as Python source, and where each of its lines comes from.

Beside the text stands its namespace, with a fingerprint that is equal in every process. What is rewritten is said in
`rewriting`. Nothing is compiled here, and no types are inferred.
"""

from __future__ import annotations

import ast
import enum
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from numbridge.kernels.cpu_backend.active_range import EVERYWHERE, ActiveRange
from numbridge.kernels.cpu_backend.interior import Interior
from numbridge.kernels.cpu_backend.range_source import Private
from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.language.dependencies import is_from_library, of_library
from numbridge.kernels.language.kernel_syntax import check_assignments
from numbridge.kernels.language.njit_functions import declared
from numbridge.kernels.language.parsing import parsed
from numbridge.kernels.language.rewriting import Site, Target, rewrite
from numbridge.kernels.language.source import FunctionSource, Program, Sourced
from numbridge.kernels.language.static_names import instance_of, is_cuda_dispatcher, is_dispatcher
from numbridge.kernels.language.tuple_parameters import is_named_tuple
from numbridge.kernels.parameter_types import ParameterType

__all__ = ["Emitted", "describe_namespace", "emit"]


@dataclass(frozen=True)
class Emitted:
    """Source text for a back end to compile, and what it needs to run.

    Attributes
    ----------
    text : str
        Python source: the device functions, callee before caller, then the kernel's body as a function.
    entry : str
        The name of that last function.
    hidden : tuple of str
        Its leading parameters: thread indices, then the block and grid dimensions that are used.
    namespace : mapping
        The globals of the text. The back end adds `_nb_device`, `_nb_atomic_*` and `_nb_local_array`.
    fingerprint : bytes
        Determines the compiled code together with the text; equal in every process for equal programs.
    may_raise : bool
        Whether a `raise` or an `assert` can be reached.
    has_loop : bool
        Whether a thread may take long: a loop anywhere, a call into a function of Numba's, which may have one, or waiting.
    asks_for_block : bool
        Whether it asks for its place in a block or a grid, or works with the other threads of its block.
    sums : tuple of (str, str)
        For derivatives: parameters that the function does not take, and the component to which the sum of what the
        threads return is added; see `range_source`.
    private : Private or None
        For derivatives: another function of the text, for threads that share no elements with others.
    grows : bool
        For derivatives on the CPU: whether there are stacks that grow, for which there may be no memory, which raises.
    repeatable : bool
        Whether the same arithmetic must give the same bits here as in another kernel, so that neither may be reassociated or
        fused; on CUDA.
    parts : tuple of (FunctionSource, ast.FunctionDef)
        The functions of the text in its order, as they were rewritten; none for derivatives.
    sites : tuple of (FunctionSource, ast.AST, str)
        Where indices are checked, and of which array.
    in_blocks : bool
        For the CPU: whether the threads of a block work together.
    active : ActiveRange
        For the CPU: for which indices there is anything to do, if the kernel says so; else all.
    interior : Interior or None
        For the CPU: another function of the text, for threads inside of a row.
    order : tuple of int
        For the CPU: which thread index each number in the text stands for, as in ``_nb_i0``: see `loop_order`.
    checks_races : bool
        For the CPU: whether what its threads do to elements is noted: see `kernels.cpu_backend.races`.
    """

    text: str
    entry: str
    hidden: tuple[str, ...]
    namespace: Mapping[str, Any]
    fingerprint: bytes
    may_raise: bool
    has_loop: bool
    asks_for_block: bool = False
    sums: tuple[tuple[str, str], ...] = ()
    private: Private | None = None
    grows: bool = False
    repeatable: bool = False
    parts: tuple[tuple[FunctionSource, ast.FunctionDef], ...] = field(default=(), compare=False, repr=False)
    sites: tuple[Site, ...] = field(default=(), compare=False, repr=False)
    in_blocks: bool = False
    active: ActiveRange = EVERYWHERE
    interior: Interior | None = None
    order: tuple[int, ...] = ()
    checks_races: bool = False

    @property
    def generated(self) -> bool:
        """Whether no user wrote the text, so that every name in it has one type."""
        return not self.parts

    def origin(self, line: int) -> str | None:
        """Return where a line of the text comes from: ``file:line:column``, the source line and a caret.

        Parameters
        ----------
        line : int
            One-based.

        Returns
        -------
        str or None
            None for a line that no statement of the user's became.
        """
        first = 1
        for source, tree in self.parts:
            text = _part_text(source, tree)
            made = parsed(text).body[0]
            for new, old in zip(_statements(made), _statements(tree), strict=True):
                # A statement's body has lines of its own.
                if first - 1 + new.lineno <= line <= first - 1 + _own_end(new) and hasattr(old, "lineno"):
                    return source.excerpt(old)
            first += text.count("\n") + 1 + _GAP
        return None


def emit(
    source: FunctionSource,
    weak_float: str,
    target: Target = "cpu",
    *,
    gradients: bool = False,
    check_bounds: bool = False,
    check_races: bool = False,
    has_complex: bool = False,
    parameters: Sequence[ParameterType] | None = None,
) -> Emitted:
    """Return the text of a kernel for one floating type.

    Parameters
    ----------
    source : FunctionSource
        The kernel.
    weak_float : {'float32', 'float64'}
        What float literals, Python floats in globals, and ``float(x)`` become.
    target : {'cpu', 'cuda'}
        For which back end. The text for CUDA names the module numba.cuda as `CUDA_MODULE`.
    gradients : bool
        Whether the derivatives by hand of device functions are written too.
    check_bounds : bool
        Whether an index that an array has not ends the kernel; on the CPU.
    check_races : bool
        Whether what its threads do to elements is noted; on the CPU.
    has_complex : bool
        Whether an argument has complex numbers.
    parameters : sequence of ParameterType, optional
        As for `rewrite`.

    Raises
    ------
    KernelError
        If something cannot be emitted; what exists only on CUDA is named, with its place.
    """
    checks, races = (wanted and target == "cpu" for wanted in (check_bounds, check_races))
    rewritten = rewrite(
        source,
        weak_float,
        target,
        gradients=gradients,
        elements=True,
        check_bounds=checks,
        blocks=True,
        apart=races,
        has_complex=has_complex,
        parameters=parameters,
    )
    program = rewritten.program
    for part in program.sources:
        check_assignments(part)
    parts = [(part, rewritten.trees[id(part)]) for part in program.sources]
    if rewritten.inside is not None:
        parts.insert(-1, (source, rewritten.inside[0]))
    walked = [node for part in program.sources for node in ast.walk(rewritten.trees[id(part)])]
    return Emitted(
        ("\n" * (_GAP + 1)).join(_part_text(*part) for part in parts),
        rewritten.names[id(source)],
        rewritten.hidden,
        rewritten.namespace,
        describe_namespace(rewritten.namespace, program),
        rewritten.may_raise,
        any(isinstance(node, ast.For | ast.While) for node in walked)
        or any(True for _ in program.compiled_functions())
        or rewritten.in_blocks
        or races,
        source.asks_for_block,
        parts=tuple(parts),
        sites=rewritten.sites,
        in_blocks=rewritten.in_blocks,
        active=rewritten.active,
        interior=None if rewritten.inside is None else rewritten.inside[1],
        order=rewritten.order,
        checks_races=races,
    )


_GAP = 2  # empty lines between two functions


def _part_text(source: FunctionSource, tree: ast.FunctionDef) -> str:
    return f"# {source.name}, {source.filename}:{source.tree.lineno}\n{ast.unparse(tree)}"


def _statements(tree: Any) -> Iterator[ast.stmt]:
    """Yield the statements of a function in their order, which parsing its text again does not change."""
    for block in ("body", "orelse"):
        for statement in getattr(tree, block, ()):
            yield statement
            yield from _statements(statement)


def _own_end(statement: ast.stmt) -> int:
    """Return a statement's last line without the statements in it."""
    body = getattr(statement, "body", None)
    end = body[0].lineno - 1 if body else statement.end_lineno
    return max(statement.lineno, end or 0)


def describe_namespace(namespace: dict[str, Any], program: Program) -> bytes:
    """Return what determines the values of a text's globals; equal in every process for equal programs."""
    values = [f"{name} = {_describe(value, program)}" for name, value in sorted(namespace.items())]
    # A function whose source is among the text is no value there.
    types = [f"{source.name}: {source.declared}" for source in program.sources if source.kept is not None]
    return "\n".join([*values, *types]).encode()


def _describe(value: Any, program: Program) -> str:
    """Return text that determines what a value compiles to.

    It is the same in every process where the value is made of something that can be read, or is a library's own.
    """
    if isinstance(value, np.ndarray):
        return f"array {value.dtype!r} {value.shape} {np.ascontiguousarray(value).tobytes().hex()}"
    if isinstance(value, np.generic):
        return f"{value.dtype!r} {value.tobytes().hex()}"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if is_dispatcher(value):
        return " ".join(_describe_function(value, program, set()))
    if instance_of(value, "numba.cuda.compiler", "ExternFunction"):
        from numbridge.kernels.cuda_backend.linked_code import describe_linked

        return describe_linked(value)
    if isinstance(value, tuple):
        return f"({', '.join(_describe(part, program) for part in value)})"
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name} = {_describe(value.value, program)}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    memory = None if name else getattr(value, "__cuda_array_interface__", None)
    if memory is not None:
        # Compiled code holds the address: an array that looks the same, here or in another process, is another one.
        return f"memory {memory['data']} {memory['shape']} {memory.get('strides')} {memory['typestr']}"
    if is_named_tuple(value):
        return f"named tuple {value.__name__}{value._fields}"
    if isinstance(value, ElementType) or _is_exception(value) or of_library(value):
        return f"{value.__module__}.{name}"
    if not name and is_from_library(type(value)):
        return f"{type(value).__qualname__} {value!s}"
    return f"{type(value).__qualname__} {_only_here(value)}"


def _is_exception(value: Any) -> bool:
    """Tell whether a value is a class of exceptions, which code knows by its name and looks up when it raises one."""
    return isinstance(value, type) and issubclass(value, BaseException)


# Kept, so that nothing else gets the id of one.
_named_here: dict[int, tuple[Any, str]] = {}


def _only_here(value: Any) -> str:
    """Return a name for an object that only this process can know, such as a function of `numba.vectorize`.

    What code it becomes, its own name does not say: others have that too, here or in another process, or before it was edited.
    """
    return _named_here.setdefault(id(value), (value, uuid.uuid4().hex))[1]


def _describe_function(value: Any, program: Program, seen: set[int]) -> Iterator[str]:
    """Describe a function that Numba compiles by itself: its source and whatever that reads."""
    if id(value) in seen:
        return
    seen.add(id(value))
    source, found = program.compiled(value), declared(value)
    options = [
        *sorted((key, str(option)) for key, option in value.targetoptions.items()),
        *map(str, (*found.signatures, *found.variables)),
        *(_describe(default, program) for default in value.py_func.__defaults__ or ()),
    ]
    if source is None:
        yield f"njit {options} {_only_here(value)}"
        return
    yield f"njit {options} {ast.dump(source.tree)}"
    if not all(dependency.is_unchanged() for dependency in source.kept or ()):
        yield f"with values of its own {_only_here(value)}"
    for dependency in source.read():
        inner = dependency.value
        if is_dispatcher(inner):
            yield from _describe_function(inner, program, seen)
        elif not isinstance(inner, Sourced) and not is_cuda_dispatcher(inner):
            yield f"{dependency.name} = {_describe(inner, program)}"
