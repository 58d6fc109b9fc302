"""Where each operation of a program stands: what is around it, what comes before it, and where each value is computed."""

from __future__ import annotations

from numbridge.kernels.adjoint.ir import If, Loop, Op, Program, Region, Value, defined_by, regions, walk

__all__ = ["Survey"]


class Survey:
    """The places of a program's operations.

    Parameters
    ----------
    program : Program
        What is looked at; its operations must stay where they are.

    Attributes
    ----------
    ops : list of Op
        Every operation, in source order.
    order : dict of Op to int
        The place of each in that order.
    parents : dict of Op to Op or None
        The branch or loop right around each.
    definers : dict of Value to Op
        What computes each value; parameters and constants are computed by nothing.
    """

    def __init__(self, program: Program) -> None:
        self._in_blocks = program.in_blocks
        self.ops: list[Op] = list(walk(program.body))
        self.order: dict[Op, int] = {}
        self.parents: dict[Op, Op | None] = {}
        self.definers: dict[Value, Op] = {}
        # The branches around each operation, and whether it stands where their condition holds
        self._sides: dict[Op, list[tuple[If, bool]]] = {}
        self._visit(program.body, None)

    def _visit(self, region: Region, parent: Op | None) -> None:
        for op in region:
            self.parents[op] = parent
            self._sides[op] = [] if parent is None else list(self._sides[parent])
            if isinstance(parent, If):
                self._sides[op].append((parent, region is parent.then))
            self.order[op] = len(self.order)
            for value in defined_by(op):
                self.definers[value] = op
            for inner in regions(op):
                self._visit(inner, op)

    def ancestors(self, op: Op) -> list[Op]:
        """Return the branches and loops around an operation, innermost first."""
        found: list[Op] = []
        parent = self.parents[op]
        while parent is not None:
            found.append(parent)
            parent = self.parents[parent]
        return found

    def loops(self, op: Op) -> list[Loop]:
        """Return the loops around an operation, innermost first."""
        return [outer for outer in self.ancestors(op) if isinstance(outer, Loop)]

    def sides(self, op: Op) -> list[tuple[If, bool]]:
        """Return the branches around an operation, outermost first, and whether it stands where their condition holds."""
        return self._sides[op]

    def is_within(self, op: Op | None, loop: Loop) -> bool:
        """Tell whether an operation is a loop, or stands in it."""
        while op is not None:
            if op is loop:
                return True
            op = self.parents[op]
        return False

    def may_precede(self, op: Op, other: Op) -> bool:
        """Tell whether an operation stands before another in the source, or on the other side of a branch.

        Threads on both sides of a branch may wait for each other.
        """
        if self.order[op] < self.order[other]:
            return True
        return self._in_blocks and any((branch, not side) in self._sides[other] for branch, side in self._sides[op])
