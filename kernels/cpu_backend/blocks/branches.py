"""Where threads wait next that do not take a branch, as a text says; nothing is changed here, and nothing compiled."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from numbridge.kernels.cpu_backend.blocks.syntax import blocks_of, is_barrier, is_count, is_exchange, waits

__all__ = ["ARRIVES", "PASSES", "every_statement", "first_waits", "waits_for_lanes"]

ARRIVES, PASSES = "block", "end"
"""What threads may do: wait for their block, or come to a text's end before they wait for anybody."""
_MEETS, _ORDERS = "others", "order"


def every_statement(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, with those in them."""
    for node in body:
        yield node
        for block in blocks_of(node):
            yield from every_statement(block)


def waits_for_lanes(body: Sequence[ast.stmt]) -> bool:
    """Tell whether threads that wait in statements wait for lanes of their warp, by operations that are known."""
    simple = (node for node in every_statement(body) if not blocks_of(node))
    return all(is_exchange(node) for node in simple if waits(node))


def first_waits(body: Sequence[ast.stmt], orders: Callable[[ast.stmt], Any]) -> set[str]:
    """Return what threads may do first that come to statements.

    Parameters
    ----------
    body : sequence of ast.stmt
        The statements.
    orders : callable
        Tells whether a statement has its place among what other threads do.
    """
    found: set[str] = set()
    for node in body:
        if not waits(node):
            found |= {_ORDERS} if orders(node) else set()
            continue
        if is_barrier(node) or is_count(node):
            return found | {ARRIVES}
        if not blocks_of(node):
            return found | {_MEETS}
        sides = [first_waits(block, orders) for block in (node.body, node.orelse)]  # type: ignore[attr-defined]
        found |= (sides[0] | sides[1]) - {PASSES}
        if isinstance(node, ast.If) and not any(PASSES in side for side in sides):
            return found
    return found | {PASSES}
