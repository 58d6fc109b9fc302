"""The CPU back end: generated source becomes native code, with the arguments read out of the launch's block.

Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from inspect import isfunction
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from numbridge.kernels.arithmetic import complex_division, cpu_cuda_functions, row_functions
from numbridge.kernels.arithmetic.cpu_divisions import divided_as_kernels
from numbridge.kernels.arithmetic.cpu_math import calls_chosen, substituted
from numbridge.kernels.arithmetic.narrow_floats import NarrowFloat, narrow_float
from numbridge.kernels.compilation.compile_errors import not_compiled
from numbridge.kernels.compilation.declared_calls import Copies, copied_on_the_cpu, declared_calls
from numbridge.kernels.compilation.generated_code import Typed, typed
from numbridge.kernels.compilation.inlining import inlined
from numbridge.kernels.compilation.integer_rules import check_integers
from numbridge.kernels.compilation.masked_loads import keep_loads_in_place
from numbridge.kernels.compilation.resolved_calls import resolved_once
from numbridge.kernels.compilation.unfinished_calls import linked_calls
from numbridge.kernels.cpu_backend import cpu_atomics, cpu_copies, cpu_intrinsics, cpu_printing, cpu_races
from numbridge.kernels.cpu_backend.blocks import coroutines
from numbridge.kernels.cpu_backend.blocks.loops import in_loops
from numbridge.kernels.cpu_backend.blocks.source import CREW, BlockSource
from numbridge.kernels.cpu_backend.cpu_bounds import check_index, checked, having
from numbridge.kernels.cpu_backend.cpu_races import noting, run_checked
from numbridge.kernels.cpu_backend.cpu_stack import STACK
from numbridge.kernels.cpu_backend.interior import INSIDE
from numbridge.kernels.cpu_backend.lane_masks import Together, in_lanes
from numbridge.kernels.cpu_backend.lanes import FEW, MOST, has_stack
from numbridge.kernels.cpu_backend.races import Races
from numbridge.kernels.cpu_backend.range_source import RUN, WORK, LaneSource
from numbridge.kernels.cpu_backend.row_source import across, lane_name
from numbridge.kernels.cpu_backend.stack_runs import with_runs
from numbridge.kernels.cpu_backend.totals import PRIVATE, total_array
from numbridge.kernels.element_types import numba_element_memory, numba_element_stores, numba_elements
from numbridge.kernels.element_types.component_range import check_components
from numbridge.kernels.element_types.numba_records import numba_record, with_own_records
from numbridge.kernels.element_types.record_fields import field
from numbridge.kernels.errors import KernelError
from numbridge.kernels.language.parsing import parsed
from numbridge.kernels.language.rewriting import CUDA_FUNCTION, HALVES, LIBDEVICE
from numbridge.kernels.machine import compile_functions
from numbridge.kernels.native.memory import load_i64
from numbridge.kernels.native.memory import text as literal_text
from numbridge.kernels.native.printing import show
from numbridge.kernels.object_cache import Compiled, keep_text
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType, block_offsets

__all__ = ["compile_run", "numba_type"]


def numba_type(parameter: ParameterType) -> Any:
    """Return the Numba type of a parameter; arrays that the kernel does not write are read-only to Numba too."""
    if parameter.element is not None and parameter.element.fields is not None:
        written = isinstance(parameter, ArrayType) and parameter.written
        dtype = numba_record(parameter.element, written=written)
    elif parameter.element is not None:
        dtype = numba_elements.numba_element(parameter.element)
    else:
        dtype = narrow_float(parameter.scalar) or getattr(types, parameter.scalar.numba or "", None)
    if dtype is None or (isinstance(parameter, ScalarType) and isinstance(dtype, NarrowFloat)):
        raise KernelError(
            f"parameter {parameter.name!r} is a scalar of {parameter.scalar.name}, which kernels take in arrays only; annotate "
            "float and convert it to float32"
        )
    if isinstance(parameter, ArrayType):
        layout = "C" if parameter.contiguous else "A"
        return types.Array(dtype, parameter.ndim, layout, readonly=parameter.is_read_only)
    return dtype


def _argument(kind: Any, offset: int) -> Any:
    """Return a compiled function that loads one argument out of a block."""

    @intrinsic
    def load(typing_context: Any, block: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = builder.add(arguments[0], ir.Constant(ir.IntType(64), offset))
            if isinstance(kind, types.Array):
                return builder.load(builder.inttoptr(address, context.get_value_type(kind).as_pointer()))
            pointer = builder.inttoptr(address, context.get_data_type(kind).as_pointer())
            return context.unpack_value(builder, kind, pointer)

        return kind(types.int64), generate

    return load


@divided_as_kernels()
@resolved_once(cpu_target.typing_context)
def compile_run(
    symbol: str,
    text: str,
    filename: str,
    namespace: Mapping[str, Any],
    parameters: Sequence[ParameterType],
    *,
    entry: str,
    origin: Callable[[int], str | None],
    fastmath: bool,
    generated: bool = False,
    lanes: LaneSource | None = None,
    in_blocks: bool = False,
    block: BlockSource | None = None,
    races: Races | None = None,
) -> Compiled:
    """Compile the generated source of a variant to object code.

    Parameters
    ----------
    symbol : str
        What the native function is called in the process.
    text, filename : str
        The generated source, and the file in which it lies, for a person to read.
    namespace : mapping
        What the source refers to.
    parameters : sequence of ParameterType
        The types to compile for.
    entry : str
        The name of the kernel's body, which is looked through for float64 arithmetic.
    origin : callable
        Returns where a line of the generated source comes from, for messages, or None.
    fastmath : bool
        Whether LLVM may reassociate floating-point arithmetic.
    generated : bool
        Whether every name in the text has one type. It is compiled without Numba's analysis then, which is slow where
        functions are long.
    lanes : LaneSource, optional
        What to make bodies of that run several threads at once, if that is possible and worth it.
    in_blocks : bool
        Whether threads wait for others of their block. They compute the same whether or not they are coroutines.
    block : BlockSource, optional
        What to make a function of that runs a whole block without coroutines, if that is possible.
    races : Races, optional
        How to check for data races, if that is wanted.

    Raises
    ------
    KernelError
        If Numba cannot compile the source: what is wrong, where, and Numba's own message.
    """
    keep_loads_in_place()
    more = lanes or block
    names = _names({**more.namespace, **namespace} if more else namespace, parameters, fastmath=fastmath)
    names |= _of_libdevice(text) | _of_halves(text) | _of_vectors(text)
    cpu_target.typing_context.refresh()
    loops = None
    if block is not None:
        kinds = [*map(numba_type, parameters), *(types.boolean for _ in block.told)]
        loops = in_loops(block, kinds, names, fastmath=fastmath)
    if loops is not None and block is not None:
        text, generated = block.around(loops.text, loops.parameters), True
        keep_text(Path(filename).name, text, anew=True)
    together = _together(lanes, parameters, names, fastmath=fastmath) if lanes else {}
    if lanes and together:
        widths = {name: [lanes_of.takes for lanes_of in made] for name, made in together.items()}
        named = [(name, takes.width, lane_name(name, takes)) for name, found in widths.items() for takes in found]
        shown = "" if generated else lanes.text.replace(f"def {entry}(", f"def {named[0][-1]}(") + "\n\n\n"
        heads = (f"# {lanes_of} is {name} for {width} threads at once.\n" for name, width, lanes_of in named)
        text = lanes.around(f"{''.join(heads)}{shown}", widths)
        keep_text(Path(filename).name, text, anew=True)
    tree = with_runs(parsed(text), alone=True)
    tree = inlined(calls_chosen(tree, names, fastmath=fastmath, lanes=bool(together or in_blocks)))
    exec(compile(tree, filename, "exec"), names)
    names |= {lane_name(name, takes): part.call for name, made in together.items() for part, takes in made}
    if loops is not None:
        names |= loops.put
    found = _typed(tree, parameters, names, fastmath=fastmath) if generated else []
    large = any(isinstance(p, ArrayType) and p.has_large_elements for p in parameters)
    try:
        with (
            _vectors_within_threads() if large and not together else nullcontext(),
            declared_calls(cpu_target.typing_context, copied_on_the_cpu, everything=False) as copies,
            linked_calls(cpu_target.target_context, lambda: _overloads(names, copies), in_process=True) as called,
            noting(filename, by_turns=races.by_turns) if races else nullcontext(),
        ):
            if not generated:
                _put_loop(tree, names)
            run = _run_function(names[RUN])
            if races:
                run = run_checked(names["_nb_device"](run), symbol, names, parameters, races.rank)
            compiled = compile_functions({symbol: (run, "int64(int64, int64, int64, int64)")})
    # AttributeError is for `row += 1` on a read-only row, NotImplementedError for types that Numba has a name for and no code.
    except (NumbaError, AttributeError, NotImplementedError) as error:
        raise not_compiled(error, entry, parameters, filename, origin) from None
    # Calls with more or fewer arguments than there is code for, or what is wrong in that code
    except (TypeError, ValueError, LookupError, AssertionError) as error:
        raise not_compiled(error, entry, parameters, filename, origin) from error
    if called & {*compiled.externals}:
        raise KernelError(f"kernel {entry!r} calls device functions that call each other; write a loop")
    described = {name: list(_described(copies.called(value))) for name, value in names.items() if _is_compiled(value)}
    everything = [overload for overloads in described.values() for overload in overloads]
    _check_writes(everything, entry)
    check_components(everything, entry, origin)
    check_integers(everything, entry, origin)
    at_once = max((part.takes.width for made in together.values() for part in made), default=1)
    wide = _wide_lines(described, text, filename, {line for function in found for line in function.wide})
    facts = {"wide": wide, "together": at_once}
    if loops is not None and block is not None:
        facts = {"wide": wide if block.wide is None else block.wide, "together": loops.width, "in_loops": True}
        facts["adds"] = bool(block.told)
    return Compiled(compiled.objects, compiled.names, compiled.externals, facts)


@contextmanager
def _vectors_within_threads() -> Iterator[None]:
    """Let LLVM make vectors of what one thread computes, which pays for the rows of matrices.

    Numba has it switched off. Where LLVM could make vectors of neighbouring threads instead, it would find less to do.
    """
    with global_compiler_lock:
        before, config.SLP_VECTORIZE = config.SLP_VECTORIZE, 1
        try:
            yield
        finally:
            config.SLP_VECTORIZE = before


def _names(namespace: Mapping[str, Any], parameters: Sequence[ParameterType], *, fastmath: bool) -> dict[str, Any]:
    """Return the globals of a text, with all that generated text may refer to."""
    names = with_own_records(substituted(namespace))
    options = {"_nrt": False, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    names["_nb_device"] = njit(fastmath=fastmath, **options)
    names["_nb_inlined"] = njit(fastmath=fastmath, forceinline=True, **options)
    names |= cpu_intrinsics.NAMES | cpu_atomics.NAMES | numba_element_memory.component_atomics(cpu_atomics)
    names |= numba_element_memory.NAMES | numba_element_stores.NAMES | complex_division.NAMES | row_functions.NAMES
    numba_elements.declare()
    names |= {f"{CUDA_FUNCTION}{name}": function for name, function in cpu_cuda_functions.NAMES.items()}
    names |= {"_nb_load": load_i64, "_nb_field": field, "_nb_checked": checked, "_nb_check_index": check_index}
    names["_nb_having"] = having
    names |= {"_nb_print": show, "_nb_numbers": cpu_printing.numbers, "_nb_text": literal_text}
    names |= STACK | coroutines.NAMES | cpu_copies.NAMES | cpu_races.NAMES
    for k, (parameter, offset) in enumerate(zip(parameters, block_offsets(parameters), strict=False)):
        names[f"_nb_argument_{k}"] = _argument(numba_type(parameter), offset)
    return names


def _of_libdevice(text: str) -> dict[str, Any]:
    """Return what a text calls of libdevice, under the names that it has there."""
    called = set(re.findall(rf"\b{LIBDEVICE}(\w+)", text))
    if not called:
        return {}
    # Hundreds of functions, which most kernels need not wait for
    from numbridge.kernels.arithmetic import cpu_libdevice

    return {f"{LIBDEVICE}{name}": cpu_libdevice.function(name) for name in called}


def _of_halves(text: str) -> dict[str, Any]:
    """Return what a text calls of `cuda.fp16` and `cuda.bf16`, under the names that it has there."""
    called = set(re.findall(rf"\b(?:{'|'.join(HALVES)})\w+", text))
    if not called:
        return {}
    from numbridge.kernels.arithmetic import cpu_halves

    return {name: cpu_halves.function(name.removeprefix(CUDA_FUNCTION)) for name in called}


def _of_vectors(text: str) -> dict[str, Any]:
    """Return the constructors of numba.cuda's vectors that a text calls, under the names that they have there."""
    called = set(re.findall(rf"\b{CUDA_FUNCTION}(u?(?:int|float)\d+x\d)\b", text))
    if not called:
        return {}
    from numbridge.kernels.arithmetic import cpu_vectors

    return {f"{CUDA_FUNCTION}{name}": cpu_vectors.NAMES[name] for name in called}


def _together(
    lanes: LaneSource, parameters: Sequence[ParameterType], names: dict[str, Any], *, fastmath: bool
) -> dict[str, list[Together]]:
    """Return what runs several threads at once in the place of each body; nothing unless all bodies can.

    What runs many, or wants memory, has another one that runs a few: rows of threads seldom end with as many.
    """
    tree = calls_chosen(with_runs(parsed(lanes.text)), names, fastmath=fastmath, lanes=True)
    found = {}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            kinds = _kinds(function, parameters)
            few: dict[str, Any] = {"fastmath": fastmath, "always": lanes.always, "most": FEW}
            # What has a stack is long, and what moves that does so for few as well as for many.
            most = FEW if has_stack(function) else MOST
            made = in_lanes(function, kinds, lanes.along, names, **{**few, "most": most})
            if made is None:
                return {}
            found[function.name] = [made]
            if made.takes.width > FEW or made.takes.memory:
                fewer = in_lanes(function, kinds, lanes.along, names, **few)
                found[function.name] += [fewer] if fewer else []
            if len(lanes.along) > 1:
                index, known = _dividing(function, lanes.along)
                apart = in_lanes(function, kinds, frozenset({index}), names, nonnegative=known, **few)
                found |= {function.name: [apart]} if apart else {}
    return found


def _dividing(function: ast.FunctionDef, along: frozenset[str]) -> tuple[str, set[str]]:
    """Let a function divide for a thread's block and its place there; return the index, and what is known not to be negative."""
    function.name = across(function.name)
    index, place = sorted(along)
    block, size = (f"_nb_{letter}{place[5:]}" for letter in "kb")
    for argument in function.args.args:
        if argument.arg in (block, place):
            argument.arg += "_told"
    made = f"{block} = {index} // {size}\n{place} = {index} - {block} * {size}"
    function.body[:0] = parsed(made).body
    return index, {block, place}


def _kinds(function: ast.FunctionDef, parameters: Sequence[ParameterType]) -> list[Any]:
    """Return the Numba types of a generated function's parameters."""
    names = [argument.arg for argument in function.args.args]
    if names[:1] == [CREW]:
        # The kernel's come last, and the gradient of a scalar has a name of its own there.
        hidden = len(names) - len(parameters)
        return [types.int64] * hidden + [numba_type(p) for p in parameters]
    kinds = {p.name: numba_type(p) for p in parameters} | {PRIVATE: types.boolean}
    found = []
    for name in names:
        array = total_array(name)
        found.append(cpu_atomics.total_type(kinds[array]) if array else kinds.get(name, types.int64))
    return found


def _typed(
    module: ast.Module, parameters: Sequence[ParameterType], names: dict[str, Any], *, fastmath: bool
) -> list[Typed]:
    """Put functions that need no analysis in the place of those that Numba would compile, and return them."""
    found = []
    for tree in module.body:
        if isinstance(tree, ast.FunctionDef) and isfunction(getattr(names[tree.name], "py_func", names[tree.name])):
            function = typed(tree, _kinds(tree, parameters), names, fastmath=fastmath and tree.name not in (RUN, WORK))
            if function is not None:
                found.append(function)
                names[tree.name] = function.call
    return found


def _put_loop(module: ast.Module, names: dict[str, Any]) -> None:
    """Put a loop around the body that needs no analysis in the place of the one that Numba would compile."""
    loops = {tree.name: tree for tree in module.body if isinstance(tree, ast.FunctionDef) and tree.name in (RUN, WORK)}
    work = loops.get(WORK, loops[RUN])
    function = typed(work, _kinds(work, ()), names, fastmath=False)
    if function is not None:
        # What ends a thread of a block is said to its crew, and no call of a body comes back with it.
        names[RUN] = function.ended if work.name == WORK else function.call
    elif work.name == WORK:
        # By itself, or what is wrong with it would be told as what is wrong with the call.
        names[WORK].compile((types.int64,) * 4)


def _run_function(run: Any) -> Any:
    """Return a function for Numba to compile, whether or not `run` is one."""
    if hasattr(run, "py_func") or isfunction(run):
        return run

    def call(block: Any, geometry: Any, first: Any, last: Any) -> Any:
        return run(block, geometry, first, last)

    return call


def _overloads(names: Mapping[str, Any], copies: Copies) -> Iterator[Any]:
    """Yield what Numba compiled of the generated functions, and of those that they call."""
    for value in (*names.values(), *copies.all):
        if _is_compiled(value):
            yield from value.overloads.values()


def _is_compiled(value: Any) -> bool:
    return getattr(value, "py_func", None) is not None


def _described(dispatcher: Any) -> Iterator[Any]:
    """Yield what Numba compiled of a function, with the types that it found.

    What it has loaded from its own cache (``njit(cache=True)``) does not tell them, and is compiled once more without it.
    """
    for overload in dispatcher.overloads.values():
        if hasattr(overload.type_annotation, "blocks"):
            yield overload
            continue
        anew, types_given = copied_on_the_cpu(dispatcher), overload.signature.args
        anew.compile(types_given)
        yield anew.overloads[types_given]


def _check_writes(described: Iterable[Any], entry: str) -> None:
    """Refuse a kernel that writes to an array in a way that neither its source nor Numba's read-only types showed."""
    found = [violation for overload in described for violation in cpu_intrinsics.readonly_violations(overload)]
    if found:
        raise KernelError(
            f"kernel {entry!r} writes to an array that it seemed only to read: {'; '.join(found)}. Store to the array "
            "parameter itself, as in x[i] = value"
        )


def _wide_lines(described: Mapping[str, Sequence[Any]], text: str, filename: str, known: set[int]) -> tuple[str, ...]:
    """Return the source lines of the kernel and its device functions on which float64 arithmetic happens."""
    found = set(known)
    # Another body for some threads has the same lines.
    shared = (
        overload for name, overloads in described.items() if not name.startswith(INSIDE) for overload in overloads
    )
    for overload in shared:
        for expression, signature in overload.type_annotation.calltypes.items():
            is_here = expression.loc.filename == filename  # and not in that of a function of `numba.njit`
            if is_here and signature is not None and signature.return_type in (types.float64, types.complex128):
                found.add(expression.loc.line)
    lines = text.splitlines()
    return tuple(lines[number - 1].strip() for number in sorted(found) if 0 < number <= len(lines))
