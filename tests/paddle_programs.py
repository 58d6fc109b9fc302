"""What random programs of Paddle are made of; see `tensor_programs`.

Not in them, for they are Paddle's own faults: a second `backward()` through a `PyLayer`, `paddle.grad` within the backward of one
that `paddle.grad` runs, and `paddle.grad` in several threads, all of which end the process; hooks on what a `PyLayer` returns,
which change nothing; and `detach` in programs that are compiled, some of which are wrong then.
"""

from __future__ import annotations

import paddle

from operator_kernels import Twins
from tensor_programs import Framework


def own(f):
    """Return a function as a layer of the user's, which computes it again for its gradients."""

    class Own(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, *given):
            ctx.save_for_backward(*given)
            return f(*given)

        @staticmethod
        def backward(ctx, by):
            given = [paddle.assign(x.detach()) for x in ctx.saved_tensor()]
            for x in given:
                x.stop_gradient = False
            with paddle.enable_grad():
                made = f(*given)
            if not made.stop_gradient:
                paddle.autograd.backward([made], [by])
            return tuple(paddle.zeros_like(x) if x.grad is None else x.grad for x in given)

    return Own.apply


def hooked(x):
    """Return the same, whose gradient a hook doubles."""
    made = paddle.assign(x)
    if not made.stop_gradient:
        made.register_hook(lambda gradient: 2.0 * gradient)
    return made


def cast(x, dtype):
    return x.astype(dtype)


def backwards(x):
    return x[::-1]


def scale_(x, by):
    return x.scale_(by)


DTYPES = {name: name for name in ("int64", "float32", "float64")}
PADDLE = Framework(
    {"F": paddle, "own": own, "hooked": hooked, "cast": cast, "backwards": backwards, "scale_": scale_, **DTYPES},
    ("own",),
)
TWINS = Twins(paddle, cast)
