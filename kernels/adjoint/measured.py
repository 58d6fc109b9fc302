"""What is known of the stacks of an adjoint that must be given memory for them; made by `measuring`, kept with its plan."""

from __future__ import annotations

from dataclasses import dataclass

from numbridge.kernels.errors import KernelUnsupportedError

__all__ = ["MEMORY", "NEEDS", "PLACES", "Measured", "StackMemoryError", "without_stacks"]

MEMORY, PLACES = "_nb_memory", "_nb_places"
"""The parameters of an adjoint that is given memory: the memory, and where in it each stack of each group of threads lies."""
NEEDS = "_nb_needs"
"""The parameter of what measures, into which it writes."""


class StackMemoryError(KernelUnsupportedError):
    """An adjoint that needs memory for its stacks has come to a launch that gives none."""


@dataclass(frozen=True)
class Measured:
    """A function that counts the entries on the stacks of a program's adjoint.

    Attributes
    ----------
    text : str
        A function of the program's parameters, then of `NEEDS`: for each group of threads, and in it for each stack, the
        most entries of one thread.
    name : str
        Its name.
    stacks : int
        How many stacks a thread has.
    changes : frozenset of str
        Arrays that it stores into, and leaves so.
    compares_floats : bool
        Whether the counts depend on floating-point numbers, and so on how these are rounded.
    place : str
        Where the first store that must be undone stands in the source, for messages.
    """

    text: str
    name: str
    stacks: int
    changes: frozenset[str]
    compares_floats: bool
    place: str


def without_stacks(name: str, measured: Measured) -> StackMemoryError:
    """Return the error for an adjoint of this name where no memory can be given."""
    return StackMemoryError(
        f"the {name} must remember every element that this loop overwrites, and how much memory that takes on CUDA can only be "
        "measured by a launch from Python that no graph captures; launch it so, or store into another array than the loop reads"
        f"\n  {measured.place}"
    )
