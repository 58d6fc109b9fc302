"""Random programs of Paddle that call operators, eager and compiled, against twins of Paddle's own operations."""

from __future__ import annotations

import gc
import os
import random

import numpy as np
import paddle
import pytest

import numbridge as nb
from operator_kernels import operators
from paddle_programs import PADDLE, TWINS
from tensor_programs import TensorWriter, are_close, is_comparable, weights

PROGRAMS = int(os.environ.get("NUMBRIDGE_PADDLE_PROGRAMS", "48"))
# What Paddle raises where it does not have a combination itself
OF_PADDLE = RuntimeError, ValueError, TypeError, NotImplementedError, IndexError, OSError, SystemError
EAGER = "call", "backward", "grad", "grad_some", "grad_again", "second"


@pytest.fixture(scope="module")
def operators_of():
    made = {}

    def get(real):
        if real not in made:
            made[real] = operators(nb.paddle_op, np.dtype(real).type)
        return made[real]

    return get


def arguments(program, number, choices):
    """Return a program's arguments as tensors, some without gradients, and some of them in odd layouts."""
    made = []
    for value in program.values(number):
        tensor, is_float = paddle.to_tensor(value), value.dtype.kind == "f"
        if value.ndim and choices.random() < 0.3:
            # The same numbers, every other in memory
            tensor = paddle.stack([tensor, tensor], -1)[..., choices.randrange(2)]
        tensor.stop_gradient = not is_float or choices.random() < 0.2
        made.append(tensor.detach() if tensor.stop_gradient else tensor)
        made[-1].stop_gradient = tensor.stop_gradient
    return made


def loss(results):
    """Return what gradients are asked of, or None if it has none."""
    followed = [r for r in results if not r.stop_gradient]
    return (
        sum((r * paddle.to_tensor(weights(tuple(r.shape))).astype(r.dtype)).sum() for r in followed)
        if followed
        else None
    )


def used(use, run, given):
    """Return the results of a use of a function, as arrays and None."""
    results = run(*given)
    results = list(results) if isinstance(results, tuple | list) else [results]
    found, total = [r.numpy() for r in results], loss(results)
    leaves = [x for x in given if not x.stop_gradient]
    if total is None or not leaves or use == "call":
        return found
    if use == "backward":
        total.backward()
        return [*found, *(x.grad for x in leaves)]
    if use == "grad_some":
        leaves = leaves[::2]
    grads = paddle.grad(
        [total], leaves, retain_graph=use == "grad_again", create_graph=use == "second", allow_unused=True
    )
    if use == "grad_again":
        again = paddle.grad([total], leaves, allow_unused=True)
        assert [g is None for g in again] == [g is None for g in grads]
        pairs = [(a, b) for a, b in zip(again, grads, strict=True) if a is not None]
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs), "another gradient the second time"
    if use == "second":
        more = loss([g for g in grads if g is not None])
        grads = [*grads, *(paddle.grad([more], leaves, allow_unused=True) if more is not None else ())]
    return [*found, *grads]


def shown(results):
    return [None if r is None else r if isinstance(r, np.ndarray) else r.numpy() for r in results]


def by_paddle(use, twin, program, number, seed):
    """Return what Paddle's own operations make of a program, or why nothing can be compared with it."""
    try:
        wanted = shown(used(use, twin, arguments(program, number, random.Random(seed))))
    except OF_PADDLE as error:
        # Paddle itself does not have that combination.
        return None, type(error).__name__
    return wanted, None if is_comparable(wanted, program.real) else "large"


def check_eager(number, operators_of):
    choices = random.Random(number)
    real = choices.choice(("float64", "float64", "float32"))
    budget = choices.choice((2, 4, 8, 12))
    program = TensorWriter(PADDLE, choices.randrange, real, budget=budget).program(f"<eager {number}>")
    use, seed = choices.choice(EAGER), choices.random()
    with_operators, twin = program.function(operators_of(real)), program.function(TWINS)
    wanted, why_not = by_paddle(use, twin, program, number, seed)
    if why_not:
        return why_not
    try:
        got = shown(used(use, with_operators, arguments(program, number, random.Random(seed))))
    except Exception as error:
        raise AssertionError(f"{use}: {type(error).__name__}: {error}\n{program}") from error
    assert are_close(got, wanted, program.tolerance), f"{use}: {got} is not {wanted}\n{program}"
    return None


def compiled(function, program, choices):
    spec = []
    is_dynamic = choices.random() < 0.4
    for kind, shape in program.arguments:
        dtype = {"f": program.real, "i": "int64", "b": "bool"}[kind]
        # The dimensions of vectors must be known.
        known = [None if is_dynamic and n != 3 and choices.random() < 0.5 else n for n in shape]
        spec.append(paddle.static.InputSpec(known, dtype, stop_gradient=kind != "f"))
    full = choices.random() < 0.6
    return paddle.jit.to_static(function, full_graph=full, input_spec=spec if full and choices.random() < 0.7 else None)


def check_compiled(number, operators_of):
    choices = random.Random(number)
    real = choices.choice(("float64", "float64", "float32"))
    budget = choices.choice((2, 4, 6))
    program = TensorWriter(PADDLE, choices.randrange, real, (), budget).program(f"<compiled {number}>")
    use, seed = choices.choice(("call", "backward", "backward", "grad")), choices.random()
    twin = program.function(TWINS)
    wanted, why_not = by_paddle(use, twin, program, number, seed)
    if why_not:
        return why_not

    def tried(function):
        # Paddle takes values of earlier programs, which lie in cycles, for those of this one.
        gc.collect()
        return shown(
            used(use, compiled(function, program, random.Random(seed)), arguments(program, number, random.Random(seed)))
        )

    try:
        got = tried(program.function(operators_of(real)))
        assert are_close(got, wanted, program.tolerance), f"{use}: {got} is not {wanted}\n{program}"
    except Exception as error:
        # Paddle compiles not all of its own operations rightly.
        try:
            if not are_close(tried(twin), wanted, program.tolerance):
                return "paddle"
        except OF_PADDLE as of_paddle:
            return f"paddle: {type(of_paddle).__name__}"
        raise AssertionError(f"{use}: {type(error).__name__}: {error}\n{program}") from error
    return None


@pytest.mark.parametrize("check", [check_eager, check_compiled], ids=["eager", "compiled"])
def test_random(check, operators_of):
    count = PROGRAMS if check is check_eager else PROGRAMS // 6
    left_out = [said for said in (check(number, operators_of) for number in range(count)) if said is not None]
    assert len(left_out) < 0.25 * count, left_out
