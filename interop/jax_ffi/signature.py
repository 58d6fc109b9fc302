"""What a kernel or an annotated function looks like to JAX: inputs, in-out arguments and outputs, checked when it is wrapped.

Pure values; imports no JAX. Inputs stand before outputs; an in-out argument is an input whose memory becomes an output.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numbridge.kernels.annotations import ScalarAnnotation
from numbridge.kernels.errors import NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.kernel import Parameter
from numbridge.operators.element_dims import outer_dims

__all__ = [
    "VMAP_METHODS",
    "Dims",
    "NamedDims",
    "Signature",
    "as_dims",
    "check_fuse",
    "check_vmap_method",
    "frozen_dims",
    "signature",
]

VMAP_METHODS = ("broadcast_all", "expand_dims", "sequential", "sequential_unrolled", "legacy_vectorized")
Dims = tuple[Any, ...]
_MAX_COUNT = 2**63 - 1
_SHOWN = 60


@dataclass(frozen=True)
class NamedDims:
    """A shape for each of some names."""

    items: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Signature:
    """How parameters become inputs and outputs.

    Attributes
    ----------
    what : str
        What messages call the wrapped thing, such as ``"kernel 'saxpy'"``.
    inputs : tuple of Parameter
        What a call passes, in-out arguments included.
    in_out : tuple of str
        Those inputs that are also outputs.
    outputs : tuple of Parameter
        What is returned: in-out arguments in their order, then the rest.
    """

    what: str
    inputs: tuple[Parameter, ...]
    in_out: tuple[str, ...]
    outputs: tuple[Parameter, ...]

    @property
    def pure(self) -> tuple[Parameter, ...]:
        """The outputs that are no inputs."""
        return self.outputs[len(self.in_out) :]

    def check_count(self, arguments: Sequence[Any]) -> None:
        """Refuse a call with too many or too few arguments."""
        if len(arguments) != len(self.inputs):
            names = ", ".join(parameter.name for parameter in self.inputs)
            outputs = ", ".join(parameter.name for parameter in self.pure) or "no other outputs"
            raise NumbridgeTypeError(
                f"{self.what} under JAX takes {len(self.inputs)} argument(s) ({names}), got {len(arguments)}; the outputs "
                f"({outputs}) are returned, not passed (num_outputs={len(self.outputs)})"
                f"{self._more_outputs(self.inputs[len(arguments) :])}"
            )

    def ordered(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of a call in order, of which some are passed by name.

        Raises
        ------
        NumbridgeTypeError
            If a name is none of the inputs, or is passed twice, or an input is missing.
        """
        names = [parameter.name for parameter in self.inputs]
        outputs = [parameter.name for parameter in self.pure]
        for name in named:
            if name in outputs:
                raise NumbridgeTypeError(
                    f"{self.what} under JAX, argument {name!r}: it is an output, which is returned, not passed "
                    f"(num_outputs={len(self.outputs)}); pass {', '.join(names) or 'nothing'}"
                )
            if name not in names:
                raise NumbridgeTypeError(
                    f"{self.what} under JAX has no input or option {name!r}; its inputs are {', '.join(names) or 'none'}"
                )
            if name in names[: len(arguments)]:
                raise NumbridgeTypeError(
                    f"{self.what} under JAX, argument {name!r}: it is passed by position and by name; pass it once"
                )
        if len(arguments) > len(names):
            self.check_count(arguments)
        missing = [name for name in names[len(arguments) :] if name not in named]
        if missing:
            raise NumbridgeTypeError(
                f"{self.what} under JAX: no argument is passed for {', '.join(map(repr, missing))}"
            )
        return (*arguments, *(named[name] for name in names[len(arguments) :]))

    def shown(self, options: Sequence[str]) -> inspect.Signature:
        """Return what `inspect.signature` says of the function: inputs, then options, which are passed by name and are None else.

        `jax.jit` reads from it which input has a name among `static_argnames`.
        """
        names = [parameter.name for parameter in self.inputs]
        # A name that an option has stands for the option; such an input goes by position, and so do those before it.
        by_position = max((place + 1 for place, name in enumerate(names) if name in options), default=0)
        first, then = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        shown = [inspect.Parameter(name, first if place < by_position else then) for place, name in enumerate(names)]
        taken = [option for option in options if option not in names]
        shown += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in taken]
        return inspect.Signature(shown)

    def _more_outputs(self, missing: Sequence[Parameter]) -> str:
        """Return what to do if arguments that were not passed were meant for outputs."""
        may_be = all(p.name not in self.in_out and not isinstance(p.annotation, ScalarAnnotation) for p in missing)
        if not may_be or not 0 < len(missing) < len(self.inputs):
            return ""
        names = ", ".join(parameter.name for parameter in missing)
        return f"; to have {names} returned too, pass num_outputs={len(self.outputs) + len(missing)}"

    def output_dims(self, dims: Any, default: Dims | None) -> tuple[Dims, ...]:
        """Return the shape of each output that is no input, without the dimensions of its elements.

        Parameters
        ----------
        dims : None, int, tuple or NamedDims
            One shape for all, or a shape for each name; with the dimensions of elements or without.
        default : tuple or None
            What None stands for.
        """
        names = [parameter.name for parameter in self.pure]
        if isinstance(dims, NamedDims):
            named = self._named_dims(dict(dims.items), names)
            return tuple(outer_dims(p, shape) for p, shape in zip(self.pure, named, strict=True))
        shape = default if dims is None else as_dims(dims, f"{self.what}: output_dims")
        if shape is None and names:
            raise NumbridgeValueError(
                f"{self.what} under JAX: the shape of output {names[0]!r} cannot be inferred, because no input is an array; "
                "pass launch_dims or output_dims"
            )
        if dims is None:
            return tuple(shape or () for _ in names)
        return tuple(outer_dims(parameter, shape or ()) for parameter in self.pure)

    def _named_dims(self, dims: Mapping[str, Any], names: list[str]) -> list[Dims]:
        for name in dims:
            if name in self.in_out:
                raise NumbridgeValueError(
                    f"{self.what}: output_dims names {name!r}, an in-out argument, which keeps its shape; leave it out"
                )
            if name not in names:
                raise NumbridgeValueError(
                    f"{self.what}: output_dims names {name!r}, and the outputs are {', '.join(names)}"
                )
        missing = [name for name in names if name not in dims]
        if missing:
            raise NumbridgeValueError(f"{self.what}: output_dims has no entry for {', '.join(map(repr, missing))}")
        return [as_dims(dims[name], f"{self.what}: output_dims[{name!r}]") for name in names]


def signature(
    what: str, parameters: Sequence[Parameter], num_outputs: Any, in_out_argnames: Sequence[str] | None
) -> Signature:
    """Return how parameters become inputs and outputs.

    Raises
    ------
    NumbridgeError
        If outputs and in-out arguments contradict each other; the message names the argument.
    """
    names = [parameter.name for parameter in parameters]
    in_out = _in_out(what, names, in_out_argnames)
    try:
        count = operator.index(num_outputs)
    except TypeError:
        raise NumbridgeTypeError(f"{what}: num_outputs is {num_outputs!r}; it must be an int") from None
    if not max(1, len(in_out)) <= count:
        raise NumbridgeValueError(
            f"{what}: num_outputs={count} must be at least 1 and count the {len(in_out)} in-out argument(s) "
            f"({', '.join(in_out) or 'none'}) too"
        )
    first = len(names) - (count - len(in_out))
    if first < 0:
        raise NumbridgeValueError(
            f"{what}: num_outputs={count}, and there are only {len(names)} parameters ({', '.join(names)})"
        )
    for name in in_out:
        if names.index(name) >= first:
            raise NumbridgeValueError(
                f"{what}: {name!r} is an output twice: it is in in_out_argnames and among the last {len(names) - first} "
                "parameters, which are outputs; inputs and in-out arguments come first"
            )
    order = [name for name in names[:first] if name in in_out]
    outputs = [parameters[names.index(name)] for name in order] + list(parameters[first:])
    return Signature(what, tuple(parameters[:first]), tuple(order), tuple(outputs))


def _in_out(what: str, names: list[str], given: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(given, str):
        raise NumbridgeTypeError(f"{what}: in_out_argnames is the string {given!r}; pass a list of names, [{given!r}]")
    try:
        found = tuple(() if given is None else given)
    except TypeError:
        raise NumbridgeTypeError(
            f"{what}: in_out_argnames is {given!r}; pass a list of names, of {', '.join(names)}"
        ) from None
    for name in found:
        if name not in names:
            raise NumbridgeValueError(
                f"{what}: in_out_argnames names {name!r}, and the parameters are {', '.join(names)}"
            )
        if found.count(name) > 1:
            raise NumbridgeValueError(f"{what}: in_out_argnames names {name!r} twice; an output is named once")
    return found


def check_vmap_method(what: str, method: Any) -> str:
    """Return how a call transforms under `jax.vmap`, checked."""
    if not isinstance(method, str) or method not in VMAP_METHODS:
        raise NumbridgeValueError(f"{what}: vmap_method is {method!r}; it must be one of {', '.join(VMAP_METHODS)}")
    return str(method)


def check_fuse(what: str, given: Any, *, has_side_effect: bool) -> bool | None:
    """Return whether calls become operations of XLA, checked."""
    if given is not None and not isinstance(given, bool):
        raise NumbridgeTypeError(f"{what}: fuse is {given!r}; it must be True, False or None")
    if given and has_side_effect:
        raise NumbridgeValueError(
            f"{what}: fuse=True makes it operations of XLA, which drops those whose results nobody uses; leave out fuse or "
            "has_side_effect"
        )
    return given


def as_dims(dims: Any, what: str) -> Dims:
    """Return dimensions given as an int or a sequence of ints (or of `jax.export`'s symbolic dimensions) as a tuple."""
    made = tuple(_extent(part, dims, what) for part in (dims if isinstance(dims, tuple | list) else (dims,)))
    known = [extent for extent in made if not is_symbolic(extent)]
    # Nothing has more elements, or bytes, than XLA can count.
    if max((math.prod(known) if 0 not in known else 0, *known), default=0) > _MAX_COUNT:
        raise NumbridgeValueError(f"{what}: {_short(dims)} is more than 64 bits can count")
    return made


def _extent(part: Any, dims: Any, what: str) -> Any:
    if is_symbolic(part):
        return part
    try:
        extent = operator.index(part)
    except TypeError as error:
        if not hasattr(part, "dtype"):
            raise NumbridgeTypeError(f"{what}: wanted an int or a tuple of ints, got {_short(dims)}") from None
        raise NumbridgeTypeError(
            f"{what}: dimensions are ints, or tuples of ints, that are known when JAX traces the call, such as x.shape; got "
            f"{dims!r}"
        ) from error
    if extent < 0:
        raise NumbridgeValueError(f"{what}: {_short(dims)} has a negative extent")
    return extent


def _short(dims: Any) -> str:
    """Return dimensions as a message shows them; Python does not write down integers of thousands of digits."""
    try:
        text = repr(dims)
    except ValueError:
        return "an integer of too many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def is_symbolic(extent: Any) -> bool:
    """Tell whether an extent is one of `jax.export`'s symbolic dimensions."""
    if isinstance(extent, int) or not type(extent).__module__.startswith("jax"):
        return False
    import jax.export

    return bool(jax.export.is_symbolic_dim(extent))


def is_shorter(extent: Any, least: Any) -> bool | None:
    """Tell whether an extent is less than another; None where symbolic dimensions do not tell."""
    if not (is_symbolic(extent) or is_symbolic(least)):
        return bool(extent < least)
    import jax.errors

    try:
        return bool(extent < least)
    except jax.errors.InconclusiveDimensionOperation:
        return None


def frozen_dims(dims: Any, what: str, *, named: bool = False) -> Any:
    """Return dimensions as given by a user, checked, in a form that can be hashed.

    Parameters
    ----------
    dims : object
        What was given; None stays None.
    what : str
        What messages call it, such as ``"kernel 'saxpy': launch_dims"``.
    named : bool
        Whether it may be a mapping from names to dimensions.

    Raises
    ------
    NumbridgeError
        If these are no dimensions; the message says what was given.
    """
    if dims is None or isinstance(dims, NamedDims):
        return dims
    if named and isinstance(dims, Mapping):
        return NamedDims(tuple((name, as_dims(value, f"{what}[{name!r}]")) for name, value in dims.items()))
    return as_dims(dims, what)
