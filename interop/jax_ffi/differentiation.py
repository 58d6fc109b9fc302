"""How calls are differentiated: a second JAX primitive, which stands for one derivative of a call, and its rules.

What a derivative is, and that these rules are closed, is said in `derivative`. A rule only decides which form comes next; the
kernel of a form is generated and compiled when the form runs or is lowered, and for a pull, which exists only because somebody
asked for a gradient, when it is made. So what has no derivative is refused before anything runs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.derivative import (
    Form,
    Spread,
    floating_operands,
    floating_results,
    operand_types,
    planned,
    results_to_keep,
)
from numbridge.jax_ffi.plan import Call
from numbridge.kernels.element_types.elements import has_gradient
from numbridge.kernels.errors import KernelUnsupportedError
from numbridge.kernels.parameter_types import ArrayType
from numbridge.kernels.scalars import COMPLEX

__all__ = ["differentiate", "pull_jvp", "pull_transpose"]

# A value, and whether it has the extent of each batch axis.
Spreading = tuple[Any, tuple[bool, ...]]
Group = Mapping[int, Spreading]


@dataclass(frozen=True)
class Point:
    """A form taken apart: the operands of the call, results that it has left, and what the derivative is linear in.

    The latter are by operand or result.
    """

    call: Call
    primals: tuple[Any, ...]
    spread: Spread
    left: Group
    directions: tuple[Group, ...]
    cotangents: Group | None
    wanted: tuple[int, ...]
    batch: tuple[Any, ...]

    def groups(self) -> list[Group]:
        """Return everything that the derivative is linear in."""
        return [*self.directions, *([] if self.cotangents is None else [self.cotangents])]

    def with_group(self, place: int, group: Group) -> Point:
        """Return the same with another group in one place."""
        if place == len(self.directions):
            return replace(self, cotangents=group)
        return replace(self, directions=(*self.directions[:place], group, *self.directions[place + 1 :]))

    def along(self, direction: Group) -> Point:
        """Return the derivative by the point itself."""
        return replace(self, directions=(*self.directions, direction))

    def form(self) -> Form:
        """Return the form."""
        groups = [dict(sorted(group.items())) for group in self.groups()]
        spread = (*self.spread, *(flags for group in (self.left, *groups) for _, flags in group.values()))
        names = [tuple(group) for group in groups]
        given = None if self.cotangents is None else names[-1]
        directions = tuple(names[: len(self.directions)])
        return Form(self.call, tuple(self.left), directions, given, self.wanted, self.batch, spread)

    def operands(self) -> list[Any]:
        """Return the form's operands."""
        groups = [self.left, *(dict(sorted(group.items())) for group in self.groups())]
        return [*self.primals, *(value for group in groups for value, _ in group.values())]

    def bind(self) -> list[Any]:
        """Add the derivative to the program."""
        from numbridge.jax_ffi.primitive import bind_form

        form = self.form()
        if form.given is not None:
            planned(form)
        return list(bind_form(form, self.operands()))


def taken_apart(form: Form, operands: Sequence[Any]) -> Point:
    """Return a form and its operands as groups."""
    count = form.call.operands
    values = iter(zip(operands[count:], form.spread[count:], strict=True))

    def group(names: Sequence[int]) -> Group:
        found = {}
        for k in names:
            value, flags = next(values)
            assert flags is not None
            found[k] = (value, flags)
        return found

    left = group(form.left)
    directions = tuple(group(direction) for direction in form.directions)
    cotangents = None if form.given is None else group(form.given)
    primals, spread = tuple(operands[:count]), form.spread[:count]
    return Point(form.call, primals, spread, left, directions, cotangents, form.wanted, form.batch)


def _is_zero(value: Any) -> bool:
    from jax.interpreters import ad

    return isinstance(value, ad.Zero)


def differentiate(call: Call, primals: Sequence[Any], tangents: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Return the tangents of a call's results.

    Raises
    ------
    KernelUnsupportedError
        If derivatives were not asked for.
    """
    import jax
    from jax.interpreters import ad

    if not call.options.enable_backward:
        raise KernelUnsupportedError(
            f"{call.signature.what} under JAX was wrapped without derivatives; pass enable_backward=True, or "
            "jax.lax.stop_gradient(x) for its arguments"
        )
    one = replace(call, batch=(), spread=tuple(None if flags is None else () for flags in call.spread))
    direction = _direction(one, call.spread, tangents)
    made = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    if direction:
        _check_results(call)
        whole = (True,) * len(call.batch)
        left = {k: (results[k], whole) for k in results_to_keep(one)}
        point = Point(one, tuple(primals), call.spread, left, (direction,), None, (), call.batch)
        for k, tangent in zip(floating_results(call), point.bind(), strict=True):
            made[k] = tangent
    return made


def _check_results(call: Call) -> None:
    """Refuse results that have floating parts and get no tangent: records, which are bytes to JAX."""
    for slot, kind in zip(call.slots, call.types, strict=True):
        element = kind.element
        if slot.kind != nb.RESULT:
            continue
        if element is not None and element.fields is not None and has_gradient(element, kind.scalar):
            raise KernelUnsupportedError(
                f"{call.signature.what} under JAX, result {kind.name!r}: it has records, which are bytes to JAX and carry no "
                "gradient; give each field an array of its own, or use jax.lax.stop_gradient(x) for the arguments"
            )


def _direction(call: Call, spread: Spread, tangents: Sequence[Any]) -> dict[int, Spreading]:
    """Return the tangents that are not zero, by operand."""
    for k, kind in operand_types(call).items():
        if kind.scalar.code == COMPLEX and not isinstance(kind, ArrayType) and not _is_zero(tangents[k]):
            raise KernelUnsupportedError(
                f"{call.signature.what} under JAX, argument {kind.name!r}: it is {kind.scalar.name} by value, and only arrays of "
                "complex numbers have a derivative; pass an array of one element, or jax.lax.stop_gradient(x)"
            )
    found = {}
    for k in floating_operands(call):
        flags = spread[k]
        if not _is_zero(tangents[k]) and flags is not None:
            found[k] = (tangents[k], flags)
    return found


def pull_jvp(form: Form, primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Return the tangents of a form's results: one term for the point, and one for each group that it is linear in."""
    point, moved = taken_apart(form, primals), taken_apart(form, tangents)
    terms = []
    direction = _direction(form.call, form.spread, moved.primals)
    if direction:
        terms.append(point.along(direction).bind())
    for place, group in enumerate(moved.groups()):
        kept = {k: pair for k, pair in group.items() if not _is_zero(pair[0])}
        if kept:
            terms.append(point.with_group(place, kept).bind())
    return [functools.reduce(operator.add, parts) for parts in zip(*terms, strict=True)]


def pull_transpose(form: Form, cotangents: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Return the cotangents of the operands of one group, which a form is linear in; None for the others."""
    from jax.interpreters import ad

    point = taken_apart(form, operands)
    undefined = [any(ad.is_undefined_primal(value) for value, _ in group.values()) for group in point.groups()]
    if undefined.count(True) != 1 or any(map(ad.is_undefined_primal, point.primals)):
        raise KernelUnsupportedError(
            f"{form.call.signature.what} under JAX, derivative: it is linear in the tangents of one direction, and in the "
            "cotangents, but not in several of these at once, nor in the arguments; transpose it by one of them"
        )
    place = undefined.index(True)
    group = point.groups()[place]
    whole = (True,) * len(form.batch)
    names = floating_results(form.call) if form.given is None else form.wanted
    given = {k: (_conjugate(value), whole) for k, value in zip(names, cotangents, strict=True) if not _is_zero(value)}
    made: dict[int, Any] = {}
    if given:
        following = _transposed(point, place, given)
        made = dict(zip(_results_of(following), map(_conjugate, following.bind()), strict=True))
    return [None] * (form.call.operands + len(form.left)) + [
        _summed(made[k], flags) if k in made and names is group else None
        for names in point.groups()
        for k, (_, flags) in names.items()
    ]


def _conjugate(value: Any) -> Any:
    """Return what JAX calls a cotangent of complex numbers, given ours, and the reverse: it pairs them without conjugation."""
    import jax.numpy as jnp

    return jnp.conj(value) if jnp.issubdtype(value.dtype, jnp.complexfloating) else value


def _transposed(point: Point, place: int, given: Group) -> Point:
    """Return the derivative that carries cotangents of the results back to one group."""
    group = tuple(point.groups()[place])
    if place == len(point.directions):
        return replace(point.along(given), cotangents=None, wanted=())
    if point.cotangents is not None:
        return replace(point.with_group(place, given), wanted=group)
    directions = (*point.directions[:place], *point.directions[place + 1 :])
    return replace(point, directions=directions, cotangents=given, wanted=group)


def _results_of(point: Point) -> tuple[int, ...]:
    return floating_results(point.call) if point.cotangents is None else point.wanted


def _summed(value: Any, flags: tuple[bool, ...]) -> Any:
    """Return the sum over the batch axes that an operand does not have."""
    import jax.numpy as jnp

    axes = tuple(axis for axis, flag in enumerate(flags) if not flag)
    return jnp.sum(value, axis=axes, keepdims=True) if axes else value
