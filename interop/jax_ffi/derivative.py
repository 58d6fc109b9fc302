"""Derivatives of a call, decided purely: which kernel computes one, and where each of its parameters comes from.

A call computes f(x). Two families of derivatives are closed under differentiation and transposition, to every order:

- *push*: D^n f(x)[v1, ..., vn], linear in each direction v; its kernel is the n-fold tangent of the call's;
- *pull*: the gradient by x of <c, D^n f(x)[v1, ..., vn]>, linear in the cotangents c and in each v; its kernel is the adjoint
  of the n-fold tangent.

A derivative by x adds a direction. Since D^n f(x) is symmetric, the transpose of a push in a direction is the pull without it,
that of a pull in a direction is the same pull with the given cotangent in its place, and that of a pull in its cotangents is
the push with one direction more. Makes no JAX values.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.identity import check_current
from numbridge.jax_ffi.plan import Call, Slot, buffer_scalar, by_reference
from numbridge.jax_ffi.signature import Dims, is_symbolic
from numbridge.kernels.adjoint.derive import Derivative, derived, lasting_outputs
from numbridge.kernels.adjoint.narrow_adjoints import adjoint_scalar
from numbridge.kernels.adjoint.prefixes import ADJOINT, primal_of
from numbridge.kernels.errors import KernelUnsupportedError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.language.indexing import indexing_of, loaded_names
from numbridge.kernels.parameter_types import ArrayType, ParameterType
from numbridge.kernels.scalars import Scalar, scalar_of

__all__ = ["Form", "Planned", "floating_operands", "floating_results", "operand_types", "planned", "results_to_keep"]

_CALLS = 1024
Spread = tuple[tuple[bool, ...] | None, ...]


@dataclass(frozen=True)
class Form:
    """One derivative of a call.

    Its operands are those of the call, then results that it has left, then the tangents of each direction, then the cotangents.

    Attributes
    ----------
    call : Call
        What is differentiated, without batch axes.
    left : tuple of int
        The results of the call that are operands, so that a gradient need not compute them again. They say nothing that the
        call's own operands do not: derivatives of the form go through those.
    directions : tuple of tuple of int
        For each direction, the operands that have a tangent in it; the others' are zero.
    given : tuple of int, or None
        For a pull, the results that have a cotangent; None makes it a push.
    wanted : tuple of int
        For a pull, the operands whose gradient it returns. A push returns the tangents of all floating results.
    batch, spread : tuple
        As in `Call`, for all operands of the form.
    """

    call: Call
    left: tuple[int, ...]
    directions: tuple[tuple[int, ...], ...]
    given: tuple[int, ...] | None
    wanted: tuple[int, ...]
    batch: Dims
    spread: Spread

    @property
    def sources(self) -> list[tuple[str, int]]:
        """For each operand one of ``("primal" or "tangent", operand)`` and ``("left" or "cotangent", result)``."""
        primals = [("primal", k) for k in range(self.call.operands)]
        left = [("left", k) for k in self.left]
        tangents = [("tangent", k) for direction in self.directions for k in direction]
        return primals + left + tangents + [("cotangent", k) for k in self.given or ()]

    @property
    def shapes(self) -> tuple[Dims, ...]:
        """Shape of each operand, without batch axes."""
        of_result = ("left", "cotangent")
        return tuple(self.call.results[k][0] if kind in of_result else self.call.shapes[k] for kind, k in self.sources)

    @property
    def taken_over(self) -> frozenset[int]:
        """The operands whose memory a result of the derivative's call may take over."""
        aliases = self.call.aliases
        taken = (kind == "cotangent" or (kind != "left" and of in aliases) for kind, of in self.sources)
        return frozenset(k for k, is_taken in enumerate(taken) if is_taken)

    @property
    def results(self) -> tuple[tuple[Dims, Any], ...]:
        """Shape, without batch axes, and dtype of each result."""
        if self.given is None:
            return tuple(self.call.results[k] for k in floating_results(self.call))
        types = operand_types(self.call)
        return tuple((self.call.shapes[k], types[k].scalar.numpy) for k in self.wanted)

    def bare(self) -> Form:
        """Return the form without the results that the call has left."""
        kept = (flags for flags, (kind, _) in zip(self.spread, self.sources, strict=True) if kind != "left")
        return replace(self, left=(), spread=tuple(kept))


@dataclass(frozen=True)
class Planned:
    """How a form is computed: by a call, some of the form's operands, and some of the call's results.

    Attributes
    ----------
    call : Call
        What runs.
    operands : tuple of int
        The form's operands that it takes.
    chosen : tuple of int
        Its results that are the form's.
    """

    call: Call
    operands: tuple[int, ...]
    chosen: tuple[int, ...]


def floating_results(call: Call) -> tuple[int, ...]:
    """Return the results of a call that have a derivative."""
    return tuple(k for k, (_, dtype) in enumerate(call.results) if scalar_of(dtype).is_inexact)


def floating_operands(call: Call) -> tuple[int, ...]:
    """Return the operands of a call by which there are derivatives."""
    return tuple(k for k, kind in operand_types(call).items() if _has_gradient(kind))


def _has_gradient(kind: ParameterType) -> bool:
    """Tell whether there are derivatives by what a parameter is: by complex numbers only in arrays."""
    return kind.scalar.is_inexact if isinstance(kind, ArrayType) else kind.scalar.is_float


def _operand_of(slot: Slot) -> int | None:
    """Return the operand that a parameter starts from."""
    if slot.kind == nb.RESULT:
        return slot.alias if slot.alias >= 0 else None
    return slot.index if slot.kind in (nb.OPERAND, nb.TRACED) else None


def operand_types(call: Call) -> dict[int, ParameterType]:
    """Return the type of the parameter that each operand is passed for."""
    pairs = ((_operand_of(slot), kind) for slot, kind in zip(call.slots, call.types, strict=True))
    return {k: kind for k, kind in pairs if k is not None}


@functools.lru_cache(maxsize=_CALLS)
def results_to_keep(call: Call) -> tuple[int, ...]:
    """Return the results that spare a gradient storing to them again: those that it reads as the call leaves them."""
    results = {
        kind.name: slot.index for kind, slot in zip(call.types, call.slots, strict=True) if slot.kind == nb.RESULT
    }
    if loaded_names(call.kernel.source).isdisjoint(results):
        return ()
    _seal(call)
    return tuple(sorted(results[name] for name in lasting_outputs(call.kernel, results, call.types, call.weak)))


@functools.lru_cache(maxsize=_CALLS)
def planned(form: Form) -> Planned:
    """Return how a derivative is computed.

    Raises
    ------
    NumbridgeError
        If the kernel has no such derivative; the message shows where in its source, and what to do.
    """
    _seal(form.call)
    if form.left and form.given is not None and not form.directions:
        with contextlib.suppress(KernelUnsupportedError):
            return _Planner(form).planned()
    without = tuple(k for k, (kind, _) in enumerate(form.sources) if kind != "left")
    return replace(_Planner(form.bare()).planned(), operands=without)


def _seal(call: Call) -> None:
    """Refuse to differentiate what has changed since a call was traced, or changes from now on: JAX keeps what it traces."""
    check_current(call.kernel, call.types, call.weak, call.key)
    call.kernel.source.seal_derivatives()


@dataclass
class _Planner:
    form: Form
    slots: list[Slot] = field(default_factory=list)
    results: list[tuple[Dims, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        call = self.form.call
        self.call = call
        self.base = {kind.name: slot for kind, slot in zip(call.types, call.slots, strict=True)}
        # Written arrays carry derivatives even if nobody asks for theirs.
        self.written = [kind.name for kind in call.types if self._carries(kind)]
        # Where a tangent comes from, by the name of its parameter; one that is not here starts as zeros.
        self.tangents: dict[str, int] = {}
        self.kernel: Kernel = call.kernel
        self.types = call.types
        # What stands for a result of the call: after n tangents, its n-fold tangent.
        self.ends = {slot.index: name for name, slot in self.base.items() if slot.kind == nb.RESULT}
        # Where results come from that the call has left, by the name of their parameter.
        self.left = {self.ends[k]: call.operands + n for n, k in enumerate(self.form.left)}
        place = call.operands + len(self.left)
        for direction in self.form.directions:
            self._differentiate({self._parameter(k): place + n for n, k in enumerate(direction)})
            place += len(direction)
        self.cotangents = {self.ends[k]: place + n for n, k in enumerate(self.form.given or ())}

    def _carries(self, kind: ParameterType) -> bool:
        return isinstance(kind, ArrayType) and _has_gradient(kind) and self.base[kind.name].kind == nb.RESULT

    def _parameter(self, operand: int) -> str:
        return next(name for name, slot in self.base.items() if _operand_of(slot) == operand)

    def _differentiate(self, moved: dict[str, int]) -> None:
        """Take one more tangent, by some of the call's parameters."""
        names = [p.name for p in self.kernel.parameters if p.name in moved or p.name in self.written]
        self.kernel = made = derived(self.kernel, "tangent", tuple(names))
        self.tangents |= {f"{made.prefix}{name}": operand for name, operand in moved.items()}
        self.written += [f"{made.prefix}{name}" for name in self.written]
        self.ends = {k: f"{made.prefix}{name}" for k, name in self.ends.items() if name in self.written}

    def planned(self) -> Planned:
        """Return the call, and which results to take."""
        if self.form.given is None:
            self._type()
            chosen = self._push()
        else:
            wanted = [self._parameter(k) for k in self.form.wanted]
            inner = self.kernel
            self._reverse(inner, wanted)
            chosen = self._pull(inner, wanted)
        return Planned(self._call(), tuple(range(len(self.form.sources))), chosen)

    def _reverse(self, inner: Kernel, wanted: Sequence[str]) -> None:
        """Take the adjoint, which reads cotangents and stores gradients if it can, and otherwise changes and adds to them."""
        names = tuple(p.name for p in inner.parameters if p.name in wanted or p.name in self.written)
        kept = tuple(name for name in names if name in self.cotangents and name not in wanted)
        fresh = tuple(name for name in names if name in wanted and self._is_own(name))
        ways = list(dict.fromkeys([(kept, fresh), (kept, ()), ((), ())]))
        for way in ways:
            # What it changes lies in memory that the call has for itself.
            kept, fresh = way
            self.kernel = derived(inner, "adjoint", names, kept, (), fresh, restores=False, left=tuple(self.left))
            try:
                self._type()
            except KernelUnsupportedError:
                if way == ways[-1]:
                    raise
            else:
                return

    def _is_own(self, name: str) -> bool:
        """Tell whether each thread of the call loads its element of an array that is no result, and no other."""
        call = self.call
        # A rule of the user's may cut up the launch and leave the array whole.
        if self.form.directions or call.options.sharding_rule is not None or any(map(is_symbolic, call.dims)):
            return False
        own = self.base[name].kind != nb.RESULT and name in indexing_of(call.kernel).loaded
        return own and self._shape(name) == call.dims

    def _type(self) -> None:
        """Find the types of all parameters, which makes the derivative's text."""

        def typed(kernel: Kernel) -> tuple[ParameterType, ...]:
            if isinstance(kernel, Derivative):
                return kernel.typed(typed(kernel.base), self.call.weak)
            return self.call.types

        self.types = typed(self.kernel)

    def _call(self) -> Call:
        form, call = self.form, self.call
        return replace(
            call,
            kernel=self.kernel,
            key=targets.enter(self.kernel, self.types, call.weak, by_reference(self.types, self.slots)),
            types=self.types,
            slots=tuple(self.slots),
            results=tuple(self.results),
            shapes=form.shapes,
            casts=self._casts(),
            batch=form.batch,
            spread=form.spread,
            options=replace(call.options, has_side_effect=False),
        )

    def _casts(self) -> tuple[Any, ...]:
        """Return what each operand is converted to: 16-bit cotangents, which are added up in float32."""
        pairs = zip(self.types, self.slots, strict=True)
        wide = {_operand_of(slot): kind.scalar for kind, slot in pairs if kind.name.startswith(ADJOINT)}
        narrow = {
            place for name, place in self.cotangents.items() if adjoint_scalar(self._scalar(name)) != self._scalar(name)
        }
        return tuple(wide[k].numpy if k in narrow and k in wide else None for k in range(len(self.form.shapes)))

    def _scalar(self, name: str) -> Scalar:
        """Return the scalars of a parameter."""
        return next(kind.scalar for kind in self.types if kind.name == name)

    # Slots

    def _shape(self, name: str) -> Dims:
        """Return the shape of a parameter, which is that of what it is derived from."""
        while name not in self.base:
            name = primal_of(name)
        slot = self.base[name]
        if slot.kind == nb.RESULT:
            return self.call.results[slot.index][0]
        return self.call.shapes[slot.index]

    def _result(self, kind: ParameterType, alias: int = -1, *, fill: bool = True) -> Slot:
        self.results.append((self._shape(kind.name), buffer_scalar(kind).numpy))
        return Slot(nb.RESULT, len(self.results) - 1, alias, fill and alias < 0)

    def _source(self, name: str) -> int | None:
        """Return the operand from which an array of the kernel, or a tangent of one, starts; None stands for zeros."""
        return _operand_of(self.base[name]) if name in self.base else self.tangents.get(name)

    def _covered(self, name: str) -> bool:
        """Tell whether every element is stored: where that of a result is, those of its tangents are."""
        while name not in self.base:
            name = primal_of(name)
        slot = self.base[name]
        return slot.kind == nb.RESULT and slot.alias < 0 and not slot.fill

    def _push(self) -> tuple[int, ...]:
        for kind in self.types:
            self.slots.append(self._forward_slot(kind))
        places = {kind.name: slot.index for kind, slot in zip(self.types, self.slots, strict=True)}
        return tuple(places[self.ends[k]] for k in floating_results(self.call))

    def _forward_slot(self, kind: ParameterType) -> Slot:
        name, source = kind.name, self._source(kind.name)
        own = self.base.get(name)
        if own is not None and own.kind in (nb.STATIC, nb.PACKED):
            return own
        if name in self.written or (own is not None and own.kind == nb.RESULT):
            return self._result(kind, -1 if source is None else source, fill=not self._covered(name))
        assert source is not None
        return Slot(nb.OPERAND if isinstance(kind, ArrayType) else nb.TRACED, source)

    def _pull(self, inner: Kernel, wanted: Sequence[str]) -> tuple[int, ...]:
        assert isinstance(self.kernel, Derivative)
        plan = self.kernel.plan(self.types[: len(inner.parameters)], self.call.weak)
        count = len(inner.parameters)
        for kind in self.types[:count]:
            used = kind.name in plan.reads or kind.name in plan.writes
            self.slots.append(self._primal_slot(kind, used=used))
        for kind in self.types[count:]:
            self.slots.append(self._adjoint_slot(kind, wanted))
        places = {kind.name: slot.index for kind, slot in zip(self.types, self.slots, strict=True)}
        return tuple(places[f"{ADJOINT}{name}"] for name in wanted)

    def _primal_slot(self, kind: ParameterType, *, used: bool) -> Slot:
        """Return where an argument of the kernel comes from, as it was before the launch, or as that has left it."""
        name, source = kind.name, self._source(kind.name)
        if name in self.left:
            return Slot(nb.OPERAND, self.left[name])
        own = self.base.get(name)
        if own is not None and own.kind in (nb.STATIC, nb.PACKED):
            return own
        if not isinstance(kind, ArrayType):
            assert source is not None
            return Slot(nb.TRACED, source)
        if kind.written:
            return self._result(kind, -1 if source is None else source)
        if source is None and not used and adjoint_scalar(kind.scalar) == kind.scalar:
            # Nothing reads it, so anything of its shape and type will do.
            source = self.cotangents.get(name)
        return Slot(nb.OPERAND, source) if source is not None else self._result(kind, fill=used)

    def _adjoint_slot(self, kind: ParameterType, wanted: Sequence[str]) -> Slot:
        name = primal_of(kind.name)
        cotangent = self.cotangents.get(name)
        if cotangent is not None and name not in wanted and isinstance(kind, ArrayType) and not kind.written:
            return Slot(nb.OPERAND, cotangent)
        assert isinstance(self.kernel, Derivative)
        return self._result(kind, -1 if cotangent is None else cotangent, fill=name not in self.kernel.fresh)
