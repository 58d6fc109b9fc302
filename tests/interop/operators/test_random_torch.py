"""Random programs of PyTorch with operators, eager, transformed and compiled, against twins of PyTorch's own operations."""

from __future__ import annotations

import contextlib
import functools
import os
import random

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import numbridge as nb
from operator_kernels import BINS, operators
from tensor_programs import SIZES, SPECIAL, TensorWriter, are_close, is_comparable
from torch_programs import TORCH, TWINS

# torch's own decompositions for forward mode are scripted when they are first needed.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
PROGRAMS = int(os.environ.get("NUMBRIDGE_TORCH_PROGRAMS", "12"))
# What PyTorch raises where it does not have a combination itself
OF_TORCH = RuntimeError, ValueError, TypeError, NotImplementedError, IndexError
# What is refused, and an assertion of PyTorch's about views of what has a tangent of another layout
LEFT_OUT = "in place, and tangents would not follow", "has_fw_view()"
CHANGED = "has been modified by an inplace operation"
# What transforms and compilers follow
FOLLOWED = "changed", "detached", "without_gradients"


@pytest.fixture(scope="module")
def operators_of():
    made = {real: operators(nb.torch_op, np.dtype(real).type) for real in ("float64", "float32")}
    return made.__getitem__


def odd(tensor, choices):
    """Return the same numbers, or one of them, in another layout."""
    if tensor.ndim == 0 or choices.random() < 0.7:
        return tensor
    kind = choices.randrange(4)
    if kind == 0:
        return tensor[:1].expand(tensor.shape)
    if kind == 1:
        return torch.stack([tensor, tensor], -1)[..., choices.randrange(2)]
    if kind == 2 and tensor.is_floating_point():
        # Its sign is yet to be computed.
        return torch._neg_view(-tensor)
    return tensor.flip(0).flip(0) if tensor.ndim == 1 else tensor.t().contiguous().t()


def arguments(program, number, choices):
    """Return a program's arguments as tensors, some without gradients, and some of them in odd layouts."""
    made = [odd(torch.as_tensor(value), choices) for value in program.values(number)]
    return [x.detach().requires_grad_(x.is_floating_point() and choices.random() < 0.8) for x in made]


def weights(like):
    """Return the numbers by which a result's elements count."""
    return torch.cos(torch.arange(like.numel(), dtype=like.dtype)).reshape(like.shape)


def loss(results):
    """Return what gradients are asked of."""
    return sum((r * weights(r)).sum() for r in results if r.is_floating_point())


# Ways to use eager functions


def called(run, given):
    return run(*given)


def after_backward(run, given):
    results = run(*given)
    total = loss(results)
    if total.requires_grad:
        total.backward()
    return [*results, *(x.grad for x in given)]


def after_backward_twice(run, given):
    results = run(*given)
    total = loss(results)
    if total.requires_grad:
        total.backward(retain_graph=True)
        total.backward()
    return [*results, *(x.grad for x in given)]


def asked(run, given, *, only=1, again=False, second=False, third=False):
    results, leaves = run(*given), [x for x in given if x.requires_grad][::only]
    total = loss(results)
    if not total.requires_grad or not leaves:
        return results
    more = second or third
    found = torch.autograd.grad(total, leaves, retain_graph=again or more, create_graph=more, allow_unused=True)
    grads = [*found]
    if again:
        grads += torch.autograd.grad(total, leaves, allow_unused=True)
    for _ in range(second + 2 * third):
        followed = [g for g in found if g is not None and g.requires_grad]
        # Of what is the same everywhere the gradient is zero, whether there is a graph or none.
        found = [None] * len(leaves)
        if followed:
            found = torch.autograd.grad(loss(followed), leaves, create_graph=True, allow_unused=True)
        grads += found
    return [*results, *grads]


def asked_of_some(run, given):
    return asked(run, given, only=2)


def asked_again(run, given):
    return asked(run, given, again=True)


def asked_twice(run, given):
    return asked(run, given, second=True)


def asked_thrice(run, given):
    return asked(run, given, third=True)


def asked_together(run, given):
    """Ask for several gradients at once."""
    results, leaves = run(*given), [x for x in given if x.requires_grad]
    followed = [r for r in results if r.requires_grad]
    if not followed or not leaves:
        return results
    by = [torch.stack([weights(r), 0.5 - weights(r)]) for r in followed]
    found = torch.autograd.grad(followed, leaves, by, is_grads_batched=True, allow_unused=True)
    return [*results, *found]


def with_tangents(run, given):
    """Call with dual tensors, whose tangents are those of the results."""
    with torch.autograd.forward_ad.dual_level():
        duals = [
            torch.autograd.forward_ad.make_dual(x.detach(), torch.cos(x.detach())) if x.requires_grad else x
            for x in given
        ]
        pairs = [torch.autograd.forward_ad.unpack_dual(r) for r in run(*duals)]
        return [part for pair in pairs for part in (pair.primal, pair.tangent)]


def without_gradients(run, given):
    with torch.inference_mode():
        return run(*given)


EAGER = called, after_backward, after_backward, after_backward_twice, asked, asked_of_some, asked_again
EAGER += asked_twice, asked_thrice, asked_together, with_tangents, without_gradients


# Transforms, of functions of what is a floating-point number


def split(run, given):
    """Return a function of the floating-point arguments alone, and those."""
    places = [k for k, x in enumerate(given) if x.is_floating_point()]

    def of_floats(*floats):
        all_of_them = [x.detach() for x in given]
        for k, x in zip(places, floats, strict=True):
            all_of_them[k] = x
        return tuple(r for r in run(*all_of_them) if r.is_floating_point())

    return of_floats, tuple(given[k].detach() for k in places)


def flat(results):
    return [part for r in results for part in flat(r)] if isinstance(results, tuple | list) else [results]


def numbers(f):
    return lambda *floats: loss(f(*floats))


def every(floats):
    return tuple(range(len(floats)))


def batch(floats):
    """Return batches of three of some arguments, along their first or last dimension, and where these are."""
    rows, dims = [], []
    for k, x in enumerate(floats):
        dim = (0, -1, None)[(k + x.ndim) % 3] if k else 0
        rows.append(x if dim is None else torch.stack([x, x + 0.1, 0.5 * x], dim))
        dims.append(dim)
    return rows, tuple(dims)


def of_grad(f, floats):
    return grad(numbers(f), every(floats))(*floats)


def of_vjp(f, floats):
    results, back = vjp(f, *floats)
    return [results, back(tuple(torch.cos(r) for r in results))]


def of_jvp(f, floats):
    return jvp(f, floats, tuple(torch.cos(x) for x in floats))


def of_jacrev(f, floats):
    return jacrev(f, every(floats))(*floats)


def of_jacfwd(f, floats):
    return jacfwd(f, every(floats))(*floats)


def of_hessian(f, floats):
    return hessian(numbers(f), every(floats))(*floats)


def of_vmap(f, floats):
    rows, dims = batch(floats)
    return vmap(f, dims)(*rows)


def of_vmap_of_grad(f, floats):
    rows, dims = batch(floats)
    return vmap(grad(numbers(f), every(floats)), dims)(*rows)


def of_grad_of_vmap(f, floats):
    rows, dims = batch(floats)
    return grad(numbers(vmap(f, dims)), every(floats))(*rows)


def of_vmap_of_jvp(f, floats):
    rows, dims = batch(floats)
    return vmap(lambda *given: jvp(f, given, tuple(torch.cos(x) for x in given)), dims)(*rows)


def of_jvp_of_grad(f, floats):
    return jvp(grad(numbers(f), every(floats)), floats, tuple(torch.cos(x) for x in floats))


def of_grad_of_jvp(f, floats):
    ones = tuple(torch.ones_like(x) for x in floats)
    return grad(lambda *given: loss(jvp(f, given, ones)[1]), every(floats))(*floats)


def of_vmap_of_vmap(f, floats):
    rows, dims = batch(floats)
    more, other = batch(rows)
    return vmap(vmap(f, dims), other)(*more)


TRANSFORMS = of_grad, of_vjp, of_jvp, of_jacrev, of_jacfwd, of_hessian, of_vmap, of_vmap_of_grad, of_grad_of_vmap
TRANSFORMS += of_vmap_of_jvp, of_jvp_of_grad, of_grad_of_jvp, of_vmap_of_vmap


def transformed(use):
    @functools.wraps(use)
    def run(function, given):
        return flat(use(*split(function, given)))

    return run


def shown(results):
    return [None if r is None else r.detach().resolve_neg().numpy() for r in results]


def refusal(run):
    """Return what an error says, if there is one."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - a compiler has errors of its own
        return str(error)
    return ""


def check(number, operators_of, uses, special, *, wrap=lambda run: run):
    """Run a program in one of some ways; return why it could not be compared, or None."""
    choices = random.Random(number)
    real = choices.choice(("float64", "float64", "float32"))
    budget = choices.choice((2, 4, 8, 12))
    sizes = choices.choice((SIZES, (3, BINS, 1)))
    program = TensorWriter(TORCH, choices.randrange, real, special, budget, sizes).program(f"<torch {number}>")
    use, seed = choices.choice(uses), choices.random()
    try:
        found = shown(use(program.function(TWINS), arguments(program, number, random.Random(seed))))
        # PyTorch makes some tangents wider than what they are of.
        wanted = [r.astype(real) if r is not None and r.dtype.kind == "f" else r for r in found]
    except OF_TORCH as error:
        return f"{use.__name__}: {type(error).__name__}: {str(error)[:160]}"
    if not is_comparable(wanted, program.real):
        return "large"
    said = f"{use.__name__} of {number}"
    run = wrap(program.function(operators_of(real)))
    try:
        # What an operator was called with before must not matter.
        if choices.randrange(2):
            with contextlib.suppress(*OF_TORCH):
                use(run, arguments(program, number + 1, choices))
        got = shown(use(run, arguments(program, number, random.Random(seed))))
    except Exception as error:
        if any(text in str(error) for text in LEFT_OUT):
            return "left out"
        # A graph has its gradients in it, also where nobody asks for them.
        twin = wrap(program.function(TWINS))
        if CHANGED in str(error) and CHANGED in refusal(
            lambda: use(twin, arguments(program, number, random.Random(seed)))
        ):
            return "changed too late"
        raise AssertionError(f"{said}: {type(error).__name__}: {error}\n{program}") from error
    assert are_close(got, wanted, program.tolerance), f"{said}: {got} is not {wanted}\n{program}"
    return None


def compiled(run):
    torch.compiler.reset()
    return torch.compile(run, backend="aot_eager", fullgraph=True)


def transformed_in_graphs(use):
    @functools.wraps(use)
    def run(function, given):
        f, floats = split(function, given)
        return flat(compiled(lambda *floats: use(f, floats))(*floats))

    return run


COMPILED_TRANSFORMS = of_grad, of_vjp, of_jvp, of_vmap, of_vmap_of_grad, of_jacrev, of_hessian
WAYS = {
    "eager": (EAGER, SPECIAL, 1, {}),
    "transformed": (tuple(map(transformed, TRANSFORMS)), FOLLOWED, 1, {}),
    "compiled": ((called, after_backward, asked, without_gradients), FOLLOWED, 6, {"wrap": compiled}),
    "transformed in graphs": (tuple(map(transformed_in_graphs, COMPILED_TRANSFORMS)), FOLLOWED, 18, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_random(way, operators_of):
    uses, special, rarer, more = WAYS[way]
    count = PROGRAMS // rarer
    left_out = [
        said for said in (check(number, operators_of, uses, special, **more) for number in range(count)) if said
    ]
    assert len(left_out) <= 1 + 0.25 * count, left_out
