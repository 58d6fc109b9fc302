"""Which launches of a JAX program run as one plan, and in which of the plan's buffers their results lie.

A *group* is a number of launches, one after the other, with nothing of XLA's between them. Its operands are what comes from
elsewhere; its results are buffers, which launches share that do not need them at the same time. This module decides from a jaxpr
alone, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.call_words import words
from numbridge.jax_ffi.identity import spelled
from numbridge.jax_ffi.plan import Call
from numbridge.jax_ffi.signature import is_symbolic
from numbridge.kernels.object_cache import digest

__all__ = ["LAUNCH", "Group", "group_words", "grouped"]

LAUNCH = "numbridge_launch"
_FIXED, _MINIMUM = 1 << 62, 2


@dataclass(frozen=True)
class Step:
    """One launch of a group: its call, and where its operands and results are, an operand k as k, a result k as -1 - k."""

    call: Call
    operands: tuple[int, ...]
    results: tuple[int, ...]


@dataclass
class Group:
    """Launches that run as one.

    Attributes
    ----------
    steps : list of Step
        The launches.
    operands : list
        The jaxpr's variables and literals that come from elsewhere.
    buffers : list of tuple
        Shape and dtype of each result.
    made : list of tuple
        The variables that others need, and the result in which each is.
    aliases : dict
        Which operand's memory which result takes over.
    """

    steps: list[Step] = field(default_factory=list)
    operands: list[Any] = field(default_factory=list)
    buffers: list[tuple[tuple[int, ...], Any]] = field(default_factory=list)
    made: list[tuple[Any, int]] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)

    @property
    def has_side_effect(self) -> bool:
        """Whether it must run even if nobody needs its results."""
        return any(step.call.options.has_side_effect for step in self.steps)


def grouped(jaxpr: Any) -> list[Group | list[Any]]:
    """Return a jaxpr's equations in an order in which they can be evaluated, with groups of launches in the place of these.

    Anything else, and a launch by itself, stands in lists of equations.
    """
    equations, zeros = list(jaxpr.eqns), _zeros(jaxpr.eqns)
    runs = _runs(equations) if any(e.effects and not _may_join(e) for e in equations) else _levels(equations)
    needed = {id(v) for v in jaxpr.outvars}
    found: list[Group | list[Any]] = []
    for joined, run in reversed(runs):
        found.append(_Planner(run, frozenset(needed), zeros).group() if joined and len(run) >= _MINIMUM else run)
        needed |= {id(v) for e in run for v in e.invars}
    return found[::-1]


def _may_join(equation: Any) -> bool:
    """Tell whether an equation is a launch whose extents are known."""
    if equation.primitive.name != LAUNCH:
        return False
    call = equation.params["call"]
    shapes = (call.dims, call.batch, *(shape for shape, _ in call.results))
    return not any(is_symbolic(extent) for shape in shapes for extent in shape)


def _runs(equations: Sequence[Any]) -> list[tuple[bool, list[Any]]]:
    """Return neighbours that are launches, and that are not, in their order."""
    runs: list[tuple[bool, list[Any]]] = []
    for equation in equations:
        if not runs or runs[-1][0] != _may_join(equation):
            runs.append((_may_join(equation), []))
        runs[-1][1].append(equation)
    return runs


def _levels(equations: Sequence[Any]) -> list[tuple[bool, list[Any]]]:
    """Return the same with as few runs as the data between them allows."""
    levels: dict[int, int] = {}
    runs: dict[int, list[Any]] = {}
    for equation in equations:
        joined = _may_join(equation)
        # Launches have odd levels, everything else even ones; a level depends on lower ones, and on itself in order.
        level = max((levels.get(id(v), 0) for v in equation.invars), default=0)
        level += (level % 2) != joined
        runs.setdefault(level, []).append(equation)
        levels |= {id(v): level for v in equation.outvars}
    return [(bool(level % 2), runs[level]) for level in sorted(runs)]


def _zeros(equations: Sequence[Any]) -> set[int]:
    """Return the variables that are zeros."""
    return {
        id(e.outvars[0])
        for e in equations
        # All bits: -0.0 is no zero to start from.
        if e.primitive.name == "broadcast_in_dim" and not any(np.asarray(getattr(e.invars[0], "val", 1)).tobytes())
    }


class _Planner:
    """Decides the buffers of one group."""

    def __init__(self, equations: Sequence[Any], needed: Collection[int], zeros: Collection[int]) -> None:
        self._equations, self._needed = equations, needed
        self._calls = [_without_zeros(e, zeros) for e in equations]
        self._last: dict[int, int] = {}
        for k, (_, invars) in enumerate(self._calls):
            self._last |= {id(v): k for v in invars}
        self._last |= {id(v): _FIXED for e in equations for v in e.outvars if id(v) in needed}
        self._group = Group()
        self._places: dict[int, int] = {}
        self._free: list[int] = []

    def group(self) -> Group:
        """Return the group."""
        for k, (equation, (call, invars)) in enumerate(zip(self._equations, self._calls, strict=True)):
            self._step(k, equation, call, invars)
        outputs = [v for e in self._equations for v in e.outvars if id(v) in self._needed]
        self._group.made = [(v, -1 - self._places[id(v)]) for v in outputs]
        return self._group

    def _step(self, k: int, equation: Any, call: Call, invars: Sequence[Any]) -> None:
        operands = [self._operand(v) for v in invars]
        taken_over = {result: operand for operand, result in call.aliases.items()}
        results = []
        for index, variable in enumerate(equation.outvars):
            place = self._in_place(k, invars, taken_over.get(index))
            kind = (tuple(variable.aval.shape), variable.aval.dtype)
            if place is None:
                place = self._buffer(kind)
            elif place >= 0:
                # An operand of the group whose memory the result takes over: only a buffer of its own can.
                self._group.aliases[place] = len(self._group.buffers)
                self._group.buffers.append(kind)
                place = -len(self._group.buffers)
            results.append(place)
            self._places[id(variable)] = place
        self._group.steps.append(Step(call, tuple(operands), tuple(results)))
        ended = {self._places[id(v)] for v in (*invars, *equation.outvars) if self._last.get(id(v), k) <= k}
        self._free.extend(sorted(p for p in ended if p < 0 and not self._is_alive(p, k)))

    def _is_alive(self, place: int, k: int) -> bool:
        """Tell whether something in a result is needed after a step."""
        return place in self._free or any(
            at == place and self._last.get(variable, -1) > k for variable, at in self._places.items()
        )

    def _operand(self, variable: Any) -> int:
        if id(variable) not in self._places:
            self._places[id(variable)] = len(self._group.operands)
            self._group.operands.append(variable)
        return self._places[id(variable)]

    def _in_place(self, k: int, invars: Sequence[Any], operand: int | None) -> int | None:
        """Return the place of an operand that nobody reads after this step, which a result may therefore take over."""
        if operand is None:
            return None
        variable = invars[operand]
        is_last = self._last[id(variable)] == k and sum(v is variable for v in invars) == 1
        return self._places[id(variable)] if is_last and not hasattr(variable, "val") else None

    def _buffer(self, kind: tuple[tuple[int, ...], Any]) -> int:
        """Return the place of a result that nobody needs now."""
        for place in self._free:
            if self._group.buffers[-1 - place] == kind:
                self._free.remove(place)
                return place
        self._group.buffers.append(kind)
        return -len(self._group.buffers)


def _without_zeros(equation: Any, zeros: Collection[int]) -> tuple[Call, list[Any]]:
    """Return a launch's call and operands, in which a result that starts from zeros has no operand for these."""
    call: Call = equation.params["call"]
    dropped = {operand for operand in call.aliases if id(equation.invars[operand]) in zeros}
    kept = [k for k in range(call.operands) if k not in dropped]
    places = {old: new for new, old in enumerate(kept)}
    slots = tuple(
        replace(slot, alias=places.get(slot.alias, -1), fill=slot.fill or slot.alias in dropped)
        if slot.kind == nb.RESULT
        else slot
        if slot.kind in (nb.STATIC, nb.PACKED)
        else replace(slot, index=places[slot.index])
        for slot in call.slots
    )
    changed = replace(
        call,
        slots=slots,
        shapes=tuple(call.shapes[k] for k in kept),
        casts=tuple(call.casts[k] for k in kept),
        spread=tuple(call.spread[k] for k in kept),
    )
    return changed, [equation.invars[k] for k in kept]


# --------------------------------------------------------------------------------------------------------------------
# Words


def group_words(group: Group, capacity: int) -> tuple[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return what the plan's call site says: the kernels' names, and its words.

    Parameters
    ----------
    group : Group
        The launches.
    capacity : int
        How many graphs to keep for each device; -1 for all.
    """
    names = [spelled(step.call.kernel) for step in group.steps]
    starts = np.cumsum([0, *(len(name.encode()) for name in names)])
    steps = [
        _step_words(step, int(start), len(name.encode()))
        for step, start, name in zip(group.steps, starts, names, strict=False)
    ]
    body = np.concatenate(steps)
    head: Mapping[int, int] = {
        0: nb.PLAN_MAGIC,
        nb.PLAN_LENGTH: nb.PLAN_STEPS // 8 + len(body),
        nb.PLAN_OPERANDS: len(group.operands),
        nb.PLAN_RESULTS: len(group.buffers),
        nb.PLAN_CAPACITY: capacity,
        nb.PLAN_COUNT: len(steps),
    }
    made = np.concatenate([np.zeros(nb.PLAN_STEPS // 8, np.int64), body])
    for offset, value in head.items():
        made[offset // 8] = value
    name = bytes.fromhex(digest("numbridge plan 1", made.tobytes()))
    made[nb.PLAN_KEY // 8], made[nb.PLAN_KEY_HIGH // 8] = np.frombuffer(name[:16], np.int64)
    return "".join(names), made


def _step_words(step: Step, name: int, name_size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    call, places = words(step.call), [*step.operands, *step.results]
    start = nb.STEP_PLACES + 8 * len(places)
    head = [start + 8 * len(call), len(step.operands), len(step.results), name, name_size, start, len(call), *places]
    return np.concatenate([np.array(head, np.int64), call])
