"""Gradients of torch's leaves while torch itself goes back: they are what a function returns, and not yet ``.grad``.

Torch's engine adds what the backward of an `autograd.Function` returns to the ``.grad`` of a leaf. If a kernel added to the
same ``.grad`` before, it would count twice. So within such a backward the gradient of a leaf that is the function's input is a
tensor of its own, zeros at first, for this call of this function alone, and must be returned. For other leaves the function
returns nothing, and their gradients are their own. Nothing here touches arrays.
"""

from __future__ import annotations

import threading
from typing import Any

from numbridge.kernels.errors import NumbridgeError

__all__ = ["check_deposit", "gradient_to_return", "is_returned", "set_gradient_to_return"]

_lock = threading.Lock()
# Under this key a node of torch's graph keeps: pass of the engine → leaf → the leaf, and what the node returns for it. The node
# keeps it, so that it goes with the node where an error ends a pass without its callbacks.
_KEY = "numbridge gradients to return"


def is_returned(leaf: Any) -> bool:
    """Tell whether torch's engine runs a backward on this thread that is yet to return a leaf's gradient.

    Where it adds to a leaf's ``.grad``, and calls the hooks of that, the gradient is the leaf's own.
    """
    return _accumulator(leaf) is not None


def _accumulator(leaf: Any) -> Any:
    """Return the node that adds what the running backward returns for a leaf to its ``.grad``; None if there is none."""
    import torch

    if _pass_number() == -1:
        return None
    following = [node for node, _ in torch._C._current_autograd_node().next_functions]
    return next((node for node in following if getattr(node, "variable", None) is leaf), None)


def gradient_to_return(leaf: Any, create: bool) -> Any:
    """Return the tensor that gathers what the running backward returns for a leaf; None if there is none yet and not `create`."""
    import torch

    with _lock:
        gradients = _of_this_call()
        found = gradients.get(id(leaf))
        if found is None and create:
            _insist(leaf)
            with torch.no_grad():
                found = gradients[id(leaf)] = (leaf, torch.zeros_like(leaf, requires_grad=False))
        return None if found is None else found[1]


def _insist(leaf: Any) -> None:
    """Refuse, in this pass of the engine, that nothing at all is returned for a leaf."""
    number, passing = _pass_number(), _passing()

    def check(gradients: Any) -> None:
        handle.remove()
        if gradients[0] is None and _pass_number() == number:
            passing.pop(number, None)  # an error ends the pass without its callbacks
            raise NumbridgeError(
                "a backward that torch runs used the gradient of an input's array and returned None for that input, so the "
                "gradient would be lost; return it, as in nb.to_torch(ctx.x.grad)"
            )

    handle = _accumulator(leaf).register_prehook(check)


def set_gradient_to_return(leaf: Any, gradient: Any) -> None:
    """Make a tensor, or nothing, what the running backward gathers for a leaf."""
    with _lock:
        gradients = _of_this_call()
        if gradient is None:
            gradients.pop(id(leaf), None)
        else:
            gradients[id(leaf)] = (leaf, gradient)


def check_deposit(leaf: Any) -> None:
    """Refuse to leave a tape's gradient where torch is about to add what the function returns.

    Raises
    ------
    NumbridgeError
        If torch goes back and the leaf has a gradient, which whoever looks for the tape's would find instead.
    """
    if leaf.is_leaf and leaf.grad is not None and is_returned(leaf):
        raise NumbridgeError(
            "Tape.backward within torch's backward: a tensor that requires grad has a .grad already, to which torch adds what "
            "the function returns; make the tape's arrays of x.detach(), with requires_grad=True, and return their .grad"
        )


def _pass_number() -> int:
    """Return which pass torch's engine makes on this thread; -1 while it makes none."""
    import torch

    return int(torch._C._current_graph_task_id())


def _of_this_call() -> dict[int, tuple[Any, Any]]:
    """Return what the running backward is to return: the leaf's id -> the leaf, and its gradient."""
    import torch

    number, passing = _pass_number(), _passing()
    if number not in passing:
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: passing.pop(number, None))
    return passing.setdefault(number, {})


def _passing() -> dict[int, dict[int, tuple[Any, Any]]]:
    """Return what the running node of torch's graph keeps for each pass of the engine."""
    import torch

    found: dict[int, dict[int, tuple[Any, Any]]] = torch._C._current_autograd_node().metadata.setdefault(_KEY, {})
    return found
