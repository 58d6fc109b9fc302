"""Takes 1,500 points to the minimum of the Rosenbrock function at (1, 1), with PyTorch's Adam and a kernel in four forms.

A kernel becomes something that torch differentiates by a `torch.autograd.Function`, by custom operators of `torch.library`,
by the same under `torch.compile(fullgraph=True)`, and by one line: `nb.torch_op`, which writes all of that itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import numbridge as nb

POINTS, STEPS, RATE = 1500, 1000, 5e-2


@nb.func
def rosenbrock(x, y):
    return (1.0 - x) ** 2.0 + 100.0 * (y - x**2.0) ** 2.0


@nb.kernel
def evaluate(xy: nb.array2d[float], z: nb.array1d[float]):
    i = nb.tid()
    z[i] = rosenbrock(xy[i, 0], xy[i, 1])


def run(xy: torch.Tensor) -> torch.Tensor:
    """Return the function's value at each point, of which torch's autograd knows nothing."""
    z = xy.new_empty(xy.shape[0])
    nb.launch(evaluate, xy.shape[0], [xy.detach()], [z])
    return z


def run_adjoint(xy: torch.Tensor, adj_z: torch.Tensor) -> torch.Tensor:
    """Return the gradient by each point, from that by each value."""
    z, adj_xy = xy.new_empty(xy.shape[0]), torch.zeros_like(xy)
    # The kernel overwrites z, so its adjoint ends as zero: it works on a copy, which is contiguous too.
    adj_z = adj_z.clone(memory_format=torch.contiguous_format)
    nb.launch(evaluate, xy.shape[0], [xy], [z], adj_inputs=[adj_xy], adj_outputs=[adj_z], adjoint=True)
    return adj_xy


class Rosenbrock(torch.autograd.Function):
    """The first form: forward and backward, written by hand."""

    @staticmethod
    def forward(ctx: Any, xy: torch.Tensor) -> torch.Tensor:
        """Launch the kernel."""
        ctx.save_for_backward(xy)
        return run(xy)

    @staticmethod
    def backward(ctx: Any, adj_z: torch.Tensor) -> torch.Tensor:
        """Launch its adjoint."""
        (xy,) = ctx.saved_tensors
        return run_adjoint(xy, adj_z)


# The second form: operators, which torch.compile and torch.export take as they are.


@torch.library.custom_op("examples::rosenbrock", mutates_args=())
def rosenbrock_op(xy: torch.Tensor) -> torch.Tensor:
    """Launch the kernel."""
    return run(xy)


@torch.library.custom_op("examples::rosenbrock_adjoint", mutates_args=())
def rosenbrock_adjoint(xy: torch.Tensor, adj_z: torch.Tensor) -> torch.Tensor:
    """Launch its adjoint."""
    return run_adjoint(xy, adj_z)


@rosenbrock_op.register_fake
def _(xy: torch.Tensor) -> torch.Tensor:
    return xy.new_empty(xy.shape[0])


@rosenbrock_adjoint.register_fake
def _(xy: torch.Tensor, adj_z: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(xy)


def keep(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    """Keep what the adjoint reads."""
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, adj_z: torch.Tensor) -> torch.Tensor:
    """Call the adjoint's operator."""
    (xy,) = ctx.saved_tensors
    return rosenbrock_adjoint(xy, adj_z)


rosenbrock_op.register_autograd(backward, setup_context=keep)


# The third form is the second, compiled without a break in the graph.
@torch.compile(fullgraph=True)
def compiled(xy: torch.Tensor) -> torch.Tensor:
    """Call the operator, from a graph."""
    return rosenbrock_op(xy)


# The fourth form.
def along_points(xy: torch.Tensor) -> int:
    """Return how many points there are."""
    return xy.shape[0]


in_one_line = nb.torch_op(evaluate, outputs="z", launch_dims=along_points, output_dims=along_points)


def minimise(form: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return where 1,500 points end."""
    start = np.random.default_rng(42).normal(size=(POINTS, 2))
    xy = torch.tensor(start, dtype=torch.float32, requires_grad=True)
    optimiser = torch.optim.Adam([xy], lr=RATE, betas=(0.95, 0.95))
    for _ in range(STEPS):
        optimiser.zero_grad()
        form(xy).sum().backward()
        optimiser.step()
    return xy.detach()


def main() -> None:
    """Go to (1, 1) in each form."""
    torch.set_num_threads(1)  # for 3,000 numbers, waking others takes longer than the work
    forms = {
        "torch.autograd.Function": Rosenbrock.apply,
        "custom operators": rosenbrock_op,
        "torch.compile(fullgraph=True)": compiled,
        "nb.torch_op": in_one_line,
    }
    for name, form in forms.items():
        xy = minimise(form)
        x, y = xy.mean(dim=0).tolist()
        print(f"{name}: ({x:.4f}, {y:.4f}) on average, the farthest {(xy - 1).abs().max():.4f} away")
        assert (xy - 1).abs().max() < 0.01, name


if __name__ == "__main__":
    main()
