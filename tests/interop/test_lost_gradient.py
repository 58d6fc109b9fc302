"""The warning that a framework's gradient ends at a direct launch: when it comes, once, and when it must not."""

from __future__ import annotations

import functools
import sys
import warnings
from dataclasses import replace

import numpy as np
import paddle
import pytest
import torch

import numbridge as nb
from numbridge.kernels.geometry import geometry_of
from numbridge.kernels.launch import launcher


def new_kernel():
    """Return a kernel that has never warned."""

    @nb.kernel
    def doubled(x, y):
        i = nb.tid()
        y[i] = 2.0 * x[i]

    return doubled


def leaf():
    return torch.ones(4, requires_grad=True)


FORMS = {
    "launch": lambda kernel, x, y: nb.launch(kernel, 4, [x], [y]),
    "forall": lambda kernel, x, y: kernel.forall(4)(x, y),
    "configured": lambda kernel, x, y: kernel[1, 4](x, y),
    "recorded": lambda kernel, x, y: nb.launch(kernel, 4, [x], [y], record_cmd=True).launch(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("warm", [False, True])
def test_a_direct_launch_warns_once_and_runs(form, warm):
    kernel = new_kernel()
    run = functools.partial(FORMS[form], kernel)
    if warm:
        run(torch.ones(4), torch.zeros(4))
    y = torch.zeros(4)
    with pytest.warns(
        nb.NumbridgeWarning, match=r"parameter 'x'.*gradient will not flow.*nb\.torch_op.*nb\.Tape"
    ) as found:
        run(leaf(), y)
    assert len(found) == 1 and found[0].filename == __file__
    assert (y == 2).all()
    run(leaf() * 1, y)  # a warning would be an error here


def test_each_kernel_warns_for_itself_and_whatever_the_types():
    first, second = new_kernel(), new_kernel()
    for kernel in (first, second):
        with pytest.warns(nb.NumbridgeWarning, match="'doubled', parameter 'x'"):
            nb.launch(kernel, 4, [leaf()], [torch.zeros(4)])
    nb.launch(first, 4, [leaf().double()], [torch.zeros(4, dtype=torch.float64)])


def test_where_warnings_are_errors_nothing_is_written_and_it_comes_again():
    kernel, y = new_kernel(), torch.zeros(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(nb.NumbridgeWarning):
                nb.launch(kernel, 4, [leaf()], [y])
    assert (y == 0).all()


def test_without_a_gradient_to_lose_there_is_no_warning():
    kernel, x, y = new_kernel(), leaf(), torch.zeros(4)
    for _ in range(2):
        with torch.no_grad():
            nb.launch(kernel, 4, [x], [y])
        with torch.inference_mode():
            nb.launch(kernel, 4, [x], [y.clone()])
        nb.launch(kernel, 4, [x.detach()], [y])
        nb.launch(kernel, 4, [torch.ones(4)], [y])
        nb.launch(kernel, 4, [nb.from_torch(x)], [y])
    with pytest.warns(nb.NumbridgeWarning):
        nb.launch(kernel, 4, [x], [y])


def test_a_tape_and_operators_carry_the_gradient():
    kernel, x, y = new_kernel(), leaf(), torch.zeros(4)
    with nb.Tape() as tape:
        nb.launch(kernel, 4, [x], [y])
    tape.backward(grads={y: np.ones(4)})
    assert (x.grad == 2).all()
    nb.torch_op(kernel, "y")(x).sum().backward()
    assert (x.grad == 4).all()
    trained = paddle.ones([4])
    trained.stop_gradient = False
    nb.paddle_op(kernel, "y")(trained).sum().backward()
    assert (trained.grad.numpy() == 2).all()


def test_a_hand_written_function_does_not_warn():
    kernel = new_kernel()

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.zeros_like(x)
            nb.launch(kernel, 4, [x], [y])
            return y

        @staticmethod
        def backward(ctx, by_y):
            by_x = torch.zeros(4)
            nb.launch(kernel, 4, [by_y.contiguous()], [by_x])
            return by_x

    x = leaf()
    Doubled.apply(x).sum().backward()
    assert (x.grad == 2).all()


def test_who_launches_an_adjoint_is_not_warned():
    kernel, x = new_kernel(), leaf()
    by_x = torch.zeros(4)
    nb.launch(kernel, 4, [x], [torch.zeros(4)], adj_inputs=[by_x], adj_outputs=[torch.ones(4)], adjoint=True)
    assert (by_x == 2).all()


def test_what_is_no_number_with_a_gradient_does_not_warn():
    @nb.kernel
    def counted(x, n):
        i = nb.tid()
        if x[i] > 0.5:
            nb.atomic_add(n, 0, 1)

    n = torch.zeros(1, dtype=torch.int64)
    for _ in range(2):
        nb.launch(counted, 4, [leaf()], [n])
    assert n.item() == 8


def test_paddle_warns_where_a_launch_is_new():
    kernel, x = new_kernel(), paddle.ones([4])
    x.stop_gradient = False
    with paddle.no_grad():
        nb.launch(new_kernel(), 4, [x], [paddle.zeros([4])])
    with pytest.warns(nb.NumbridgeWarning, match=r"stop_gradient=False.*nb\.paddle_op"):
        nb.launch(kernel, 4, [x], [paddle.zeros([4])])
    nb.launch(kernel, 4, [x], [paddle.zeros([4])])


def calls(run):
    """Return the names of the functions in Python that a call comes to."""
    names = []
    sys.setprofile(lambda frame, event, arg: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return names


def test_an_operator_asks_nobody_and_leaves_the_warning_to_direct_launches():
    kernel, x, y = new_kernel(), leaf(), torch.zeros(4)
    op = nb.torch_op(kernel, "y")
    for _ in range(2):
        op(x).sum().backward()
    assert "lost_gradient" not in calls(lambda: op(x))
    with torch.no_grad():
        assert "lost_gradient" not in calls(lambda: op(x))
        assert "lost_gradient" in calls(lambda: nb.launch(kernel, 4, [x], [y]))
    with pytest.warns(nb.NumbridgeWarning, match=r"'doubled', parameter 'x'.*will not flow"):
        nb.launch(kernel, 4, [x], [y])
    op(x).sum().backward()


def test_a_launch_that_autograd_follows_is_still_kept_from_what_autograd_owns():
    kernel = new_kernel()
    run = launcher(kernel, replace(geometry_of(kernel, 4), is_followed=True))
    run(leaf(), torch.zeros(4))
    target = leaf()
    with pytest.raises(nb.BufferAccessError, match=r"parameter 'y'.*leaf tensor that requires grad"):
        run(leaf(), target)
    assert (target == 1).all()
