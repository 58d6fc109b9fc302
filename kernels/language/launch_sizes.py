"""Integers that a launch decides, so that all its threads share them: extents, numbers by value, and what is made of these.

A `Size` is a polynomial, so that equal ones look alike, and many are seen to be no less than others before anything is launched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

__all__ = [
    "ONE",
    "ZERO",
    "Along",
    "Atom",
    "Choice",
    "Extent",
    "Known",
    "Number",
    "Quotient",
    "Size",
    "Total",
    "are_positive",
    "larger",
    "quotient",
    "smaller",
]


class Known(Protocol):
    """What a launch knows of itself, or a trace of one, where extents may be symbolic; None for what it does not."""

    def along(self, kind: str, axis: int) -> Any:
        """Return how many there are along an axis: see `Along`."""

    def shape(self, parameter: str) -> Any:
        """Return the extents of an array, without those of vectors and matrices."""

    def number(self, parameter: str) -> Any:
        """Return an integer that is passed by value."""

    def choose(self, of: Callable[..., Any], left: Any, right: Any) -> Any:
        """Return the `min` or the `max` of two integers."""


@dataclass(frozen=True)
class Along:
    """How many there are along an axis: one at least, or nothing is launched.

    Attributes
    ----------
    kind : {'dim', 'blockDim', 'gridDim', 'shared'}
        Threads of the launch, threads of a block, or blocks; in the last block may be threads that are not of the launch. Or
        bytes of dynamic shared memory, along axis 0: a launch that brings none, and whose kernel uses some, is refused before.
    axis : int
        Which axis.
    """

    kind: Literal["dim", "blockDim", "gridDim", "shared"]
    axis: int

    def __str__(self) -> str:
        return f"{self.kind}[{self.axis}]"

    @property
    def lowest(self) -> int | None:
        """What it is at least."""
        return 1

    def value(self, known: Known) -> Any:
        """Return what it is in a launch."""
        return known.along(self.kind, self.axis)


@dataclass(frozen=True)
class Extent:
    """How long an axis of an array is."""

    parameter: str
    axis: int

    def __str__(self) -> str:
        return f"{self.parameter}.shape[{self.axis}]"

    @property
    def lowest(self) -> int | None:
        """What it is at least."""
        return 0

    def value(self, known: Known) -> Any:
        """Return what it is in a launch."""
        shape = known.shape(self.parameter)
        return shape[self.axis] if shape is not None and self.axis < len(shape) else None


@dataclass(frozen=True)
class Total:
    """How many elements an array has."""

    parameter: str

    def __str__(self) -> str:
        return f"{self.parameter}.size"

    @property
    def lowest(self) -> int | None:
        """What it is at least."""
        return 0

    def value(self, known: Known) -> Any:
        """Return what it is in a launch."""
        shape = known.shape(self.parameter)
        return None if shape is None else math.prod(shape)


@dataclass(frozen=True)
class Number:
    """An integer that is passed by value."""

    parameter: str

    def __str__(self) -> str:
        return self.parameter

    @property
    def lowest(self) -> int | None:
        """What it is at least."""
        return None

    def value(self, known: Known) -> Any:
        """Return what it is in a launch."""
        return known.number(self.parameter)


@dataclass(frozen=True)
class Choice:
    """The smaller or the larger of two sizes."""

    is_smaller: bool
    left: Size
    right: Size

    def __str__(self) -> str:
        return f"{'min' if self.is_smaller else 'max'}({self.left}, {self.right})"

    @property
    def lowest(self) -> int | None:
        """What it is at least."""
        ends = [end for end in (self.left.lowest, self.right.lowest) if end is not None]
        if self.is_smaller:
            return min(ends) if len(ends) == 2 else None
        return max(ends, default=None)

    def value(self, known: Known) -> Any:
        """Return what it is in a launch."""
        left, right = self.left.value(known), self.right.value(known)
        return None if left is None or right is None else known.choose(min if self.is_smaller else max, left, right)


@dataclass(frozen=True)
class Quotient:
    """A quotient, rounded down; nothing is known of one by what is not positive."""

    left: Size
    right: Size

    def __str__(self) -> str:
        return f"({self.left}) // ({self.right})"

    @property
    def lowest(self) -> int | None:
        """What it is at least."""
        left, right = self.left.lowest, self.right.lowest
        return None if left is None or left < 0 or right is None or right < 1 else 0

    def value(self, known: Known) -> Any:
        """Return what it is in a launch."""
        left, right = self.left.value(known), self.right.value(known)
        return None if left is None or right is None or known.choose(min, right, 1) != 1 else left // right


Atom = Along | Extent | Total | Number | Choice | Quotient


@dataclass(frozen=True)
class Size:
    """A sum of products of atoms.

    Attributes
    ----------
    terms : tuple of (tuple of Atom, int)
        Products, each with its factor, in order; those without atoms are left to `constant`.
    constant : int
        What is added to them.
    """

    terms: tuple[tuple[tuple[Atom, ...], int], ...] = ()
    constant: int = 0

    @classmethod
    def of(cls, atom: Atom) -> Size:
        """Return an atom as a size."""
        return cls((((atom,), 1),))

    @classmethod
    def _summed(cls, terms: Mapping[tuple[Atom, ...], int]) -> Size:
        kept = [(atoms, factor) for atoms, factor in terms.items() if atoms and factor]
        return cls(tuple(sorted(kept, key=lambda term: [*map(str, term[0])])), terms.get((), 0))

    def _by_atoms(self) -> dict[tuple[Atom, ...], int]:
        return {**dict(self.terms), (): self.constant}

    def __str__(self) -> str:
        text = ""
        for atoms, factor in (*self.terms, *([((), self.constant)] if self.constant or not self.terms else [])):
            product = " * ".join(map(str, atoms))
            if abs(factor) != 1 or not atoms:
                product = f"{abs(factor)} * {product}" if atoms else str(abs(factor))
            sign = "-" if factor < 0 else "+"
            text = f"{text} {sign} {product}" if text else f"-{product}" if factor < 0 else product
        return text

    def __add__(self, other: Size | int) -> Size:
        if isinstance(other, int):
            return Size(self.terms, self.constant + other)
        terms = self._by_atoms()
        for atoms, factor in other._by_atoms().items():
            terms[atoms] = terms.get(atoms, 0) + factor
        return Size._summed(terms)

    def __neg__(self) -> Size:
        return Size(tuple((atoms, -factor) for atoms, factor in self.terms), -self.constant)

    def __sub__(self, other: Size | int) -> Size:
        return self + -other

    def __mul__(self, other: Size) -> Size:
        terms: dict[tuple[Atom, ...], int] = {}
        for left, factor in self._by_atoms().items():
            for right, by in other._by_atoms().items():
                atoms = tuple(sorted((*left, *right), key=str))
                terms[atoms] = terms.get(atoms, 0) + factor * by
        return Size._summed(terms)

    @property
    def has_choice(self) -> bool:
        """Whether it is made of a `min` or `max`."""
        return any(isinstance(atom, Choice) for atoms, _ in self.terms for atom in atoms)

    @property
    def atoms(self) -> frozenset[Atom]:
        """What it is made of, and what that is made of."""
        own = {atom for atoms, _ in self.terms for atom in atoms}
        made = [atom for atom in own if isinstance(atom, Choice | Quotient)]
        return frozenset(own).union(*(side.atoms for atom in made for side in (atom.left, atom.right)))

    @property
    def lowest(self) -> int | None:
        """What it is at least, whatever the launch; None where that is not seen."""
        least = self.constant
        for atoms, factor in self.terms:
            ends = [atom.lowest for atom in atoms]
            if factor < 0 or any(end is None or end < 0 for end in ends):
                return None
            least += factor * math.prod(end for end in ends if end is not None)
        return least

    @property
    def is_never_negative(self) -> bool:
        """Whether it is seen to be 0 or more in every launch."""
        if self.lowest is not None and self.lowest >= 0:
            return True
        # No less than 0 with either side of a choice, or with one where that says the same
        for atoms, factor in self.terms:
            if len(atoms) == 1 and isinstance(choice := atoms[0], Choice) and abs(factor) == 1:
                rest = self - (Size.of(choice) if factor == 1 else -Size.of(choice))
                sides = [rest + side if factor == 1 else rest - side for side in (choice.left, choice.right)]
                needs_both = choice.is_smaller == (factor == 1)
                return (all if needs_both else any)(side.is_never_negative for side in sides)
        return False

    def value(self, known: Known) -> Any:
        """Return what it is in a launch, or None if that is not known; 64 bits may not hold it."""
        total: Any = self.constant
        for atoms, factor in self.terms:
            product: Any = factor
            for atom in atoms:
                value = atom.value(known)
                if value is None:
                    return None
                product = product * value
            total = total + product
        return total


ZERO, ONE = Size(), Size((), 1)


def are_positive(sizes: Iterable[Size], known: Known, is_shorter: Callable[[Any, Any], bool | None]) -> bool | None:
    """Tell whether sizes are all positive in a launch; None where symbolic ones do not tell. One that is not known is not.

    Parameters
    ----------
    sizes : iterable of Size
        Which.
    known : Known
        The launch.
    is_shorter : callable
        Whether a number is less than another, or None.
    """
    found: bool | None = True
    for size in sizes:
        value = size.value(known)
        if value is None or (is_idle := is_shorter(value, 1)):
            return False
        found = None if is_idle is None else found
    return found


def smaller(left: Size, right: Size) -> Size:
    """Return the smaller of two sizes."""
    return _chosen(left, right, is_smaller=True)


def larger(left: Size, right: Size) -> Size:
    """Return the larger of two sizes."""
    return _chosen(left, right, is_smaller=False)


def quotient(left: Size, right: Size) -> Size:
    """Return a quotient, rounded down."""
    if not left.terms and not right.terms and right.constant > 0:
        return Size((), left.constant // right.constant)
    return left if right == ONE else Size.of(Quotient(left, right))


def _chosen(left: Size, right: Size, *, is_smaller: bool) -> Size:
    if (right - left).is_never_negative:
        return left if is_smaller else right
    if (left - right).is_never_negative:
        return right if is_smaller else left
    # What is added to one is added to the choice, so that equal choices look alike. One of them is no constant.
    left, right = sorted((left, right), key=lambda size: (not size.terms, str(Size(size.terms))))
    return Size.of(Choice(is_smaller, left - left.constant, right - left.constant)) + left.constant
