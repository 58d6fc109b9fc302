"""What random programs of PyTorch are made of; see `tensor_programs`."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from operator_kernels import Twins
from tensor_programs import Framework


def own(f):
    """Return a function as one of the user's, which computes it again for its gradients."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *given):
            ctx.save_for_backward(*given)
            return f(*given)

        @staticmethod
        def backward(ctx, by):
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                given = [x.view_as(x) for x in ctx.saved_tensors]
                made = f(*given)
            followed = [x for x in given if x.requires_grad]
            if not made.requires_grad or not followed:
                return (None,) * len(given)
            found = torch.autograd.grad(made, followed, by, create_graph=again, allow_unused=True)
            by_place = dict(zip(map(id, followed), found, strict=True))
            return tuple(by_place.get(id(x)) for x in given)

    return Own.apply


def checkpointed(f):
    return lambda *given: checkpoint(f, *given, use_reentrant=False)


def put_aside(f):
    """Return a function all of whose saved tensors lie elsewhere until they are asked for."""

    def run(*given):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
            return f(*given)

    return run


def hooked(x):
    """Return the same, whose gradient a hook doubles."""
    made = x.clone()
    if made.requires_grad:
        made.register_hook(lambda gradient: 2.0 * gradient)
    return made


def cast(x, dtype):
    return x.to(dtype)


def backwards(x):
    return x.flip(0)


def scale_(x, by):
    return x.mul_(by)


LAYERS = {"own": own, "checkpointed": checkpointed, "put_aside": put_aside}
DTYPES = {name: getattr(torch, name) for name in ("int64", "float32", "float64")}
SPELT = {"F": torch, "hooked": hooked, "cast": cast, "backwards": backwards, "scale_": scale_}
TORCH = Framework({**SPELT, **LAYERS, **DTYPES}, tuple(LAYERS))
TWINS = Twins(torch, cast)
