"""Adjoints that are launched by hand, with ``launch(..., adjoint=True)``: adjoints side by side with the arguments.

An adjoint that is passed for what the kernel only stores is its caller's, such as the gradient that an autograd engine hands to
a backward function and to others: it is read, and holds afterwards what it held. The adjoint of what is stored is zero in
truth, so the generator is asked for one that does not write it down, or is given a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from numbridge.kernels.adjoint.derive import check_floats, derived
from numbridge.kernels.adjoint.overlap import on_memory
from numbridge.kernels.arguments import check_count
from numbridge.kernels.cuda_backend.argument_streams import argument_stream
from numbridge.kernels.cuda_backend.cuda_driver import devices
from numbridge.kernels.cuda_backend.launch_memory import LaunchMemory
from numbridge.kernels.element_types.element_arguments import element_flags, full_shape
from numbridge.kernels.errors import KernelUnsupportedError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.kernel import Kernel, Parameter
from numbridge.kernels.language.tuple_parameters import is_record, leaves
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.numpy_arrays import array_of_record
from numbridge.kernels.readers import Description, describe
from numbridge.kernels.variant import variants_of

if TYPE_CHECKING:
    from numbridge.kernels.adjoint.derive import Derivative

    _Way: TypeAlias = tuple[Derivative, tuple[str, ...]]

__all__ = ["adjoint_of", "filled", "with_copies"]

_MOST = 64


def adjoint_of(
    kernel: Kernel,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    adj_inputs: Sequence[Any],
    adj_outputs: Sequence[Any],
    stream: int | None = None,
) -> tuple[Derivative, list[Any], list[int]]:
    """Return a kernel's adjoint, its arguments, and the places of those that it changes though they are the caller's.

    The adjoints are given side by side with the kernel's arguments. None stands for the argument's own gradient, if it is an
    array that says it has one, and otherwise for no gradient. The `stream` of the launch, if one was asked for, waits for what
    was done to these.
    """
    arguments: Sequence[Any] = [*inputs, *outputs]
    given = [*filled("adj_inputs", adj_inputs, inputs), *filled("adj_outputs", adj_outputs, outputs)]
    check_count(kernel, arguments)
    flat, taken = kernel.flattened(arguments)
    if flat is not kernel:
        given = [
            adjoint for pair in zip(kernel.parameters, arguments, given, strict=True) for adjoint in _beside(*pair)
        ]
        kernel, arguments = flat, taken
    passed: list[str] = []
    wanted: list[str] = []
    adjoints: list[Any] = []
    for parameter, argument, adjoint in zip(kernel.parameters, arguments, given, strict=True):
        if adjoint is not None:
            passed.append(parameter.name)
        used = _own(argument, stream) if adjoint is None else adjoint
        if used is not None:
            wanted.append(parameter.name)
            adjoints.append(used)
    if not wanted:
        raise NumbridgeValueError(
            f"the adjoint of kernel {kernel.name!r} was launched without an adjoint; give some in adj_inputs and adj_outputs, or "
            "pass arrays of numbridge with requires_grad=True, whose own gradients are taken"
        )
    derivative, changed = _known(kernel, tuple(wanted), tuple(passed), arguments)
    places = [len(arguments) + wanted.index(name) for name in changed] if changed else []
    return derivative, [*arguments, *adjoints], places


def _beside(parameter: Parameter, argument: Any, adjoint: Any) -> Iterable[Any]:
    """Return the adjoints of what an argument holds: one that is a tuple has a tuple of them, built in the same way, or None."""
    if argument is None:
        if adjoint is None:
            return ()
        raise NumbridgeTypeError(
            f"the adjoint of parameter {parameter.name!r}: the argument is None, which has no gradient; pass None"
        )
    if not isinstance(argument, tuple):
        return (array_of_record(adjoint) if is_record(adjoint) else adjoint,)
    if adjoint is None:
        return (None for _ in leaves(argument))
    if not isinstance(adjoint, tuple | list) or len(adjoint) != len(argument):
        raise NumbridgeTypeError(
            f"the adjoint of parameter {parameter.name!r}, a tuple, is a tuple of {len(argument)} adjoints, in which None stands "
            f"for none, got {type(adjoint).__name__}"
        )
    pairs = zip(argument, adjoint, strict=True)
    return (leaf for one, other in pairs for leaf in _beside(parameter, one, other))


def _own(argument: Any, stream: int | None) -> Any:
    """Return an argument's own gradient, to which a launch adds where none is passed; None if it has none."""
    ask = getattr(type(argument), "__launch_gradient__", None)
    gradient = None if ask is None else ask(argument)
    if gradient is not None and stream is not None and (found := describe(gradient)).is_on_cuda:
        # It may be zeros that were made just now, of which who orders the streams cannot know.
        devices().order(found.device_id, argument_stream(gradient, found.device_id), stream)
    return gradient


def _known(kernel: Kernel, wanted: tuple[str, ...], passed: tuple[str, ...], arguments: Sequence[Any]) -> _Way:
    """Return how adjoints are launched that are given in this way, looked up where such arguments were seen before."""
    plain = derived(kernel, "adjoint", wanted)
    found = [*map(describe, arguments)]
    # What arguments look like tells their types, but for numbers, whose values must fit.
    key = (passed, *[d.look if d.is_array else type(a) for a, d in zip(arguments, found, strict=True)])
    read, known = plain.ways
    if not all(dependency.holds() for dependency in read):
        known.clear()
    way: _Way | None = known.get(key)
    if way is None:
        way = _sparing(kernel, plain, passed, arguments, found)
        if not known or len(known) >= _MOST:
            known = {}
            plain.ways = plain.dependencies(), known
        known[key] = way
    return way


def _sparing(
    kernel: Kernel,
    plain: Derivative,
    passed: tuple[str, ...],
    arguments: Sequence[Any],
    found: Sequence[Description],
) -> _Way:
    """Return the adjoint that leaves those that are `passed` for what is only stored, and which of them it changes still."""
    names, written = [parameter.name for parameter in kernel.parameters], kernel.source.written()
    if written.isdisjoint(plain.wanted):
        raise NumbridgeValueError(
            f"the adjoint of kernel {kernel.name!r} was launched without an adjoint of what it writes "
            f"({', '.join(name for name in names if name in written) or 'nothing'}), so every gradient would be zero; give it in "
            "adj_outputs"
        )
    variants: Any = variants_of(plain)
    types = variants.base_types(kernel, arguments, found)
    check_floats(plain, types[0])
    spent = tuple(sorted(plain.plan(*types).spent.intersection(passed))) if passed else ()
    if not spent:
        return plain, ()
    sparing: Derivative = kernel.adjoint(plain.wanted, kept=spent)
    try:
        sparing.plan(*types)
    except KernelUnsupportedError:
        return plain, spent
    return sparing, ()


def with_copies(name: str, run: Callable[..., None], places: Sequence[int], stream: int | None) -> Callable[..., None]:
    """Return a launcher that passes copies of the arguments at some places, on the stream that `run` was told or theirs."""

    def launched(*arguments: Any) -> None:
        given = list(arguments)
        with contextlib.ExitStack() as stack:
            for place in places:
                found = describe(arguments[place])
                given[place] = stack.enter_context(_copy(name, arguments[place], found, stream))
            run(*given)

    return launched


@contextlib.contextmanager
def _copy(name: str, argument: Any, found: Description, stream: int | None) -> Iterator[Any]:
    """Give a copy of an array for as long as its device works with it."""
    if found.is_on_cuda:
        queue = argument_stream(argument, found.device_id) if stream is None else stream
        with LaunchMemory(name, found.device_id, queue, is_ordered=stream is not None) as memory:
            yield memory.copy_of(argument, found)
        return
    values = np.array(on_memory(found), order="C")
    assert found.scalar is not None
    where = (values.ctypes.data, found.scalar.tag, dl.CPU, 0)
    yield machine().new_record(values, *where, full_shape(found), None, element_flags(found.element))


def filled(what: str, adjoints: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Return a list of adjoints as it is, or one of None for one that was left out; raises if it is too short or too long."""
    if adjoints and len(adjoints) != len(arguments):
        raise NumbridgeValueError(
            f"{what} has {len(adjoints)} entries for {len(arguments)} arguments; give one for each, None for the argument's own "
            "gradient or, if it has none, for no gradient"
        )
    return list(adjoints) or [None] * len(arguments)
