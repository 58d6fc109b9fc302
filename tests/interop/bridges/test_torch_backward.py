"""Kernels in functions of torch's autograd, written by hand: what a function returns counts once, whatever gathered it."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

import numbridge as nb


@nb.kernel
def square(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


class Square(torch.autograd.Function):
    """As Warp's documentation writes it: the gradient of the input's array is what is returned."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = nb.from_torch(x, requires_grad=True)
        ctx.y = nb.zeros(x.shape, device="cpu", requires_grad=True)
        nb.launch(square, x.shape, inputs=[ctx.x], outputs=[ctx.y])
        return nb.to_torch(ctx.y)

    @staticmethod
    def backward(ctx: Any, by_y: torch.Tensor) -> torch.Tensor:
        ctx.y.grad = nb.from_torch(by_y.clone())
        nb.launch(
            square,
            ctx.x.shape,
            inputs=[ctx.x],
            outputs=[ctx.y],
            adj_inputs=[ctx.x.grad],
            adj_outputs=[ctx.y.grad],
            adjoint=True,
        )
        return nb.to_torch(ctx.x.grad)


def leaf() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


def test_what_is_returned_counts_once() -> None:
    x = leaf()
    Square.apply(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 4, 6]


def test_it_is_added_to_a_gradient_that_is_there() -> None:
    x = leaf()
    x.grad = torch.full((3,), 10.0)
    for _ in range(2):
        Square.apply(x).sum().backward()
    assert x.grad.tolist() == [14, 18, 22]


def test_a_graph_that_is_retained_starts_from_zero_again() -> None:
    x = leaf()
    total = Square.apply(x).sum()
    total.backward(retain_graph=True)
    total.backward()
    assert x.grad is not None and x.grad.tolist() == [4, 8, 12]


def test_two_functions_of_one_leaf_do_not_share() -> None:
    x = leaf()
    (Square.apply(x) + 2 * Square.apply(x) + x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [7, 13, 19]


def test_other_inputs_gradients_leave_the_tensors_alone() -> None:
    x, other = leaf(), leaf()
    (by_other,) = torch.autograd.grad((Square.apply(x) * other).sum(), [other])
    assert by_other.tolist() == [1, 4, 9]
    assert x.grad is None


def test_threads_do_not_mix() -> None:
    found: list[list[float]] = []

    def work() -> None:
        x = leaf()
        for _ in range(20):
            Square.apply(x).sum().backward()
        assert x.grad is not None
        found.append(x.grad.tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[40, 80, 120]] * 4


@torch.library.custom_op("test_torch_backward::square", mutates_args=())
def square_op(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    nb.launch(square, x.shape, [x.detach()], [y])
    return y


@torch.library.custom_op("test_torch_backward::square_backward", mutates_args=())
def square_backward(x: torch.Tensor, y: torch.Tensor, by_y: torch.Tensor) -> torch.Tensor:
    array = nb.from_torch(x, requires_grad=True)
    arrays = [nb.from_torch(t.clone(), requires_grad=False) for t in (y, by_y)]
    nb.launch(square, x.shape, [array], arrays[:1], adj_inputs=[array.grad], adj_outputs=arrays[1:], adjoint=True)
    return nb.to_torch(array.grad)


def test_custom_operators() -> None:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)

    square_op.register_autograd(
        lambda ctx, by_y: square_backward(*ctx.saved_tensors, by_y.contiguous()), setup_context=setup
    )
    x = leaf()
    for _ in range(2):
        square_op(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [4, 8, 12]


class Forgetful(Square):
    @staticmethod
    def backward(ctx: Any, by_y: torch.Tensor) -> None:
        Square.backward(ctx, by_y)


def test_a_gradient_that_is_not_returned_is_refused() -> None:
    x = leaf()
    for _ in range(2):
        with pytest.raises(nb.NumbridgeError, match=r"returned None for that input(.|\n)*nb\.to_torch"):
            Forgetful.apply(x).sum().backward()
    assert x.grad is None
    Square.apply(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 4, 6]


@nb.kernel
def product(x: nb.array[float], w: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * w[i]


class Weighted(torch.autograd.Function):
    """A parameter that is no input: its gradient goes straight to the tensor, and nothing is returned for it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, hidden: list[torch.Tensor], by_tape: bool) -> torch.Tensor:
        ctx.x, ctx.w = nb.from_torch(x, requires_grad=True), nb.from_torch(hidden[0])
        ctx.y, ctx.by_tape = nb.zeros(x.shape, device="cpu"), by_tape
        with nb.Tape() as ctx.tape:
            nb.launch(product, x.shape, [ctx.x, ctx.w], [ctx.y])
        return nb.to_torch(ctx.y)

    @staticmethod
    def backward(ctx: Any, by_y: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if ctx.by_tape:
            ctx.tape.backward(grads={ctx.y: by_y.clone()})
        else:
            gradients = {"adj_inputs": [ctx.x.grad, ctx.w.grad], "adj_outputs": [by_y.clone()]}
            nb.launch(product, ctx.x.shape, [ctx.x, ctx.w], [ctx.y], adjoint=True, **gradients)
        return nb.to_torch(ctx.x.grad), None, None


@pytest.mark.parametrize("by_tape", [False, True])
def test_the_gradient_of_a_tensor_that_is_no_input_is_its_own(by_tape: bool) -> None:
    w = torch.tensor([4.0, 5.0, 6.0], requires_grad=True)
    for times in (1, 2):
        x = leaf()
        Weighted.apply(x, [w], by_tape).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [4, 5, 6]
        assert w.grad is not None and w.grad.tolist() == [times * v for v in (1, 2, 3)]


class ByTape(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        ctx.x, ctx.y = nb.from_torch(x, requires_grad=True), nb.from_torch(y)
        with nb.Tape() as ctx.tape:
            nb.launch(square, x.shape, [ctx.x], [ctx.y])
        return y

    @staticmethod
    def backward(ctx: Any, by_y: torch.Tensor) -> torch.Tensor:
        ctx.tape.backward(grads={ctx.y: by_y.contiguous()})
        return nb.to_torch(ctx.x.grad)


def test_a_tape_within_a_function() -> None:
    x = leaf()
    ByTape.apply(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 4, 6]
    with pytest.raises(nb.NumbridgeError, match=r"\.grad already(.|\n)*x\.detach\(\)"):
        ByTape.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 4, 6]


def test_outside_of_a_backward_the_gradient_is_the_tensors() -> None:
    x = leaf()
    array = nb.from_torch(x)
    array.grad.fill_(3)
    assert x.grad is not None and x.grad.tolist() == [3, 3, 3]
    Square.apply(x).sum().backward()
    assert array.grad.list() == [5, 7, 9]


def test_hooks_after_accumulation_see_the_tensors_gradient() -> None:
    @nb.kernel
    def step(x: nb.array[float], by_x: nb.array[float]):
        i = nb.tid()
        x[i] -= 0.5 * by_x[i]

    def optimise(tensor: torch.Tensor) -> None:
        array = nb.from_torch(tensor)
        with torch.no_grad():
            nb.launch(step, tensor.shape, [array, array.grad])

    x = leaf()
    x.register_post_accumulate_grad_hook(optimise)
    Square.apply(x).sum().backward()
    assert x.detach().tolist() == [0, 0, 0]


class Failing(Square):
    """Fails after it has gathered a gradient."""

    @staticmethod
    def backward(ctx: Any, by_y: torch.Tensor) -> torch.Tensor:
        Square.backward(ctx, by_y)
        raise ValueError("no luck")


def go_back(x: torch.Tensor, fails: bool) -> None:
    y = (Failing if fails else Square).apply(x)
    if not fails:
        y.sum().backward()
        return
    with pytest.raises(ValueError, match="no luck"):
        y.sum().backward()


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_kept_after_the_pass(fails: bool) -> None:
    x = leaf()
    gone = weakref.ref(x)
    go_back(x, fails)
    del x
    gc.collect()
    assert gone() is None
