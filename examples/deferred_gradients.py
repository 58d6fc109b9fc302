"""Shows when the gradients of PyTorch's tensors come into being: when they are first needed, by torch's own allocator.

A bridge that allocates ``.grad`` as soon as it sees a tensor that requires grad hands torch memory that its allocator does
not know, and pays for it in every step that makes new tensors. numbridge never touches ``.grad`` before `Tape.backward`
adds to it. So the usual remedies (pass ``requires_grad=False``, detach, allocate gradients beforehand) still work, and
change nothing: this program runs a training step with new tensors in each way, and looks at ``.grad`` in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import numbridge as nb

COUNT, TRIALS = 300_000, 20


@nb.kernel(enable_backward=False)
def squares(a: nb.array1d[float], b: nb.array1d[float], out: nb.array1d[float]):
    i = nb.tid()
    out[i] = a[i] * a[i] + b[i] * b[i]


@nb.kernel(enable_backward=False)
def squares_backward(
    by_out: nb.array1d[float],
    a: nb.array1d[float],
    b: nb.array1d[float],
    by_a: nb.array1d[float],
    by_b: nb.array1d[float],
):
    i = nb.tid()
    by_a[i] = 2.0 * a[i] * by_out[i]
    by_b[i] = 2.0 * b[i] * by_out[i]


@nb.kernel
def squares_with_adjoint(a: nb.array1d[float], b: nb.array1d[float], out: nb.array1d[float]):
    i = nb.tid()
    out[i] = a[i] * a[i] + b[i] * b[i]


Passing = Callable[[torch.Tensor], Any]


class ByHand(torch.autograd.Function):
    """A kernel with a derivative that is a kernel too; `passing` says how tensors are handed over."""

    @staticmethod
    def forward(ctx: Any, passing: Passing, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Launch the kernel."""
        ctx.save_for_backward(a, b)
        ctx.passing = passing
        out = torch.empty_like(a)
        nb.launch(squares, a.shape, [passing(a), passing(b)], [out])
        return out

    @staticmethod
    def backward(ctx: Any, by_out: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor]:
        """Launch the derivative."""
        a, b = ctx.saved_tensors
        made = torch.empty_like(a), torch.empty_like(b)
        nb.launch(squares_backward, a.shape, [by_out, ctx.passing(a), ctx.passing(b)], made)
        return None, *made


class ByTape(torch.autograd.Function):
    """The same with a tape, whose arrays have gradients of their own."""

    @staticmethod
    def forward(ctx: Any, passing: Passing, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Record the launch."""
        ctx.inputs = [nb.from_torch(tensor.detach(), requires_grad=True) for tensor in (a, b)]
        out = torch.empty_like(a)
        with nb.Tape() as ctx.tape:
            nb.launch(squares_with_adjoint, a.shape, ctx.inputs, [out])
        ctx.out = nb.from_torch(out)
        return out

    @staticmethod
    def backward(ctx: Any, by_out: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor]:
        """Go back along the tape."""
        ctx.tape.backward(grads={ctx.out: by_out})
        made = [nb.to_torch(array.grad) for array in ctx.inputs]
        return None, *made


def step(
    function: type[torch.autograd.Function], passing: Passing, allocate: bool, old: list[torch.Tensor]
) -> tuple[str, list[torch.Tensor]]:
    """Train new tensors for one step; return what ``.grad`` was before torch's backward, and the tensors."""
    new = [tensor.clone().detach().requires_grad_(True) for tensor in old]
    for tensor in new if allocate else ():
        tensor.grad = torch.zeros_like(tensor)
    loss = function.apply(passing, *new).sum()
    before = "none" if all(tensor.grad is None for tensor in new) else "allocated"
    loss.backward()
    return before, new


def main() -> None:
    """Run every way, and print what each costs and when its gradients appear."""
    ways: dict[str, tuple[type[torch.autograd.Function], Passing, bool]] = {
        "from_torch": (ByHand, nb.from_torch, False),
        "the tensors themselves": (ByHand, lambda t: t, False),
        "remedy A, requires_grad=False": (ByHand, lambda t: nb.from_torch(t, requires_grad=False), False),
        "remedy B, detach": (ByHand, lambda t: t.detach(), False),
        "remedy C, gradients beforehand": (ByHand, nb.from_torch, True),
        "a tape": (ByTape, nb.from_torch, False),
    }
    old = [torch.randn(COUNT) for _ in range(2)]
    print(f"{'way':32} {'ms per step':>12}  .grad before backward")
    for name, (function, passing, allocate) in ways.items():
        before, new = step(function, passing, allocate, old)
        for tensor in new:
            torch.testing.assert_close(tensor.grad, 2 * tensor.detach())
        start = time.perf_counter()
        for _ in range(TRIALS):
            step(function, passing, allocate, old)
        print(f"{name:32} {(time.perf_counter() - start) / TRIALS * 1e3:12.2f}  {before}")
        assert before == ("allocated" if allocate else "none"), name


if __name__ == "__main__":
    main()
