"""Copies and pickles of what is made from kernels: functions stay themselves, and another process makes them again."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch

import numbridge as nb
from numbridge.operators import remade


@nb.kernel
def copied_square(x: nb.array(dtype=nb.float32), y: nb.array(dtype=nb.float32)):
    i = nb.tid()
    y[i] = x[i] * x[i]


def squared_twice(x: nb.array(dtype=nb.float32), y: nb.array(dtype=nb.float32)):
    half = nb.zeros(x.shape, dtype=nb.float32)
    nb.launch(copied_square, x.shape, [x], [half])
    nb.launch(copied_square, x.shape, [half], [y])


def doubled(x):
    return (2 * x.shape[0],)


TORCH_OP = nb.torch_op(copied_square, outputs="y", name="copied_square")
MADE = {
    "torch_op": TORCH_OP,
    "paddle_op": nb.paddle_op(copied_square, outputs="y"),
    "jax_kernel": nb.jax_kernel(copied_square, vmap_method="sequential", enable_backward=True),
    "jax_callable": nb.jax_callable(squared_twice, enable_backward=True),
    "jax_callable, replayed": nb.jax_callable(squared_twice, graph_mode=nb.GraphMode.NUMBRIDGE, graph_cache_max=3),
    "jax_callable, called": nb.jax_callable(squared_twice, graph_mode=nb.GraphMode.NONE),
}


class Squared(torch.nn.Module):
    """A module that holds an operator and a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.op, self.kernel = TORCH_OP, copied_square
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self) -> torch.Tensor:
        return self.op(self.weight)


def made_again(monkeypatch, name: str):
    """Return what a process unpickles that has not made it yet."""
    monkeypatch.setattr(remade, "_alive", lambda _: {})
    again = pickle.loads(pickle.dumps(MADE[name]))
    assert again is not MADE[name]
    return again


@pytest.mark.parametrize("name", MADE)
def test_a_copy_is_the_function_itself(name: str) -> None:
    made = MADE[name]
    assert copy.copy(made) is made and copy.deepcopy({"in a tree": made})["in a tree"] is made


@pytest.mark.parametrize("name", MADE)
def test_a_pickle_is_the_function_that_there_is(name: str) -> None:
    assert pickle.loads(pickle.dumps(MADE[name])) is MADE[name]


def test_an_operator_with_other_dims_is_another_one() -> None:
    other = nb.torch_op(copied_square, outputs="y", output_dims=doubled, name="copied_square")
    again = pickle.loads(pickle.dumps(other))
    assert again is other and again is not TORCH_OP and again(torch.ones(2)).shape == (4,)


@pytest.mark.parametrize("name", MADE)
def test_a_pickled_function_works_and_keeps_its_options(name: str, monkeypatch) -> None:
    framework = {"torch_op": torch.tensor, "paddle_op": paddle.to_tensor}.get(name, jnp.asarray)
    again = made_again(monkeypatch, name)
    x = framework(np.float32([1, 2, 3]))
    given, wanted = (f(x) for f in (again, MADE[name]))
    first, second = (np.asarray(r[0] if isinstance(r, tuple) else r) for r in (given, wanted))
    assert np.array_equal(first, second) and second[1] in (4, 16)


def test_a_pickled_jax_function_has_derivatives_and_its_graph_cache(monkeypatch) -> None:
    again = made_again(monkeypatch, "jax_kernel")
    assert jax.grad(lambda x: again(x)[0].sum())(jnp.float32([1, 2])).tolist() == [2, 4]
    assert made_again(monkeypatch, "jax_callable, replayed").graph_cache_max == 3


def test_a_module_with_an_operator_is_copied_and_pickled_with_its_gradient() -> None:
    for make in (copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
        module = make(Squared())
        module().sum().backward()
        assert module.weight.grad.tolist() == [2, 4] and module.op is TORCH_OP


def test_another_process_unpickles_a_module(tmp_path: Path) -> None:
    torch.save(Squared(), tmp_path / "module.pt")
    program = f"""
import torch
module = torch.load({str(tmp_path / "module.pt")!r}, weights_only=False)
module().sum().backward()
print(module.weight.grad.tolist(), module.op)
"""
    here = str(Path(__file__).parent)
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})" + program],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout.split("\n")[0] == "[2.0, 4.0] <TorchOp numbridge::copied_square(Tensor x) -> Tensor>"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_tape_is_not_copied(how) -> None:
    with pytest.raises(nb.NumbridgeTypeError, match=r"a tape can be neither copied nor pickled.*record them once more"):
        how(nb.Tape())


def test_a_copy_of_a_recorded_launch_has_arguments_of_its_own() -> None:
    x, y, other = np.float32([1, 2]), np.zeros(2, np.float32), np.zeros(2, np.float32)
    launch = nb.launch(copied_square, 2, [x], [y], record_cmd=True)
    again = copy.copy(launch)
    again.set_param_by_name("y", other)
    launch.launch()
    assert y.tolist() == [1, 4] and other.tolist() == [0, 0]
    again.launch()
    assert other.tolist() == [1, 4]


def test_the_same_call_returns_the_same_function() -> None:
    kernel = nb.jax_kernel(copied_square, launch_dims=[2], block_dim=64)
    assert nb.jax_kernel(copied_square, launch_dims=(2,), block_dim=64) is kernel
    assert nb.jax_kernel(copied_square, launch_dims=3, block_dim=64) is not kernel
    called = nb.GraphMode.NONE
    function = nb.jax_callable(squared_twice, graph_mode=called, output_dims={"y": 2})
    assert nb.jax_callable(squared_twice, graph_mode=called, output_dims={"y": (2,)}) is function
    assert nb.jax_callable(squared_twice, graph_mode=called, output_dims={"y": 3}) is not function


def test_only_the_last_of_many_calls_are_kept() -> None:
    first, used = (weakref.ref(nb.jax_kernel(copied_square, launch_dims=n)) for n in (1000, 1001))
    for n in range(2 * remade._MOST):
        nb.jax_kernel(copied_square, launch_dims=n + 1)
        assert nb.jax_kernel(copied_square, launch_dims=1001) is used()
    gc.collect()
    assert first() is None


def test_a_kernel_is_compiled_once_however_often_it_is_wrapped(caplog) -> None:
    x = jnp.ones(7)
    with jax.log_compiles():
        for _ in range(3):
            assert nb.jax_kernel(copied_square, vmap_method="expand_dims")(x)[0].tolist() == [1] * 7
    assert len([message for message in caplog.messages if "XLA compilation of jit(copied_square)" in message]) == 1


def test_a_changed_global_is_read_by_what_is_wrapped_again() -> None:
    factor = 2.0

    @nb.kernel
    def scale(x: nb.array[float], y: nb.array[float]):
        i = nb.tid()
        y[i] = factor * x[i]

    def function(x: nb.array[float], y: nb.array[float]):
        nb.launch(scale, x.shape, [x], [y])
        y.assign(factor * jnp.asarray(y))

    def called(x: nb.array[float], y: nb.array[float]):
        nb.launch(scale, x.shape, [x], [y])
        y.assign(factor * y.numpy())

    x = jnp.ones(1)
    made = [nb.jax_kernel(scale), nb.jax_callable(called, graph_mode=nb.GraphMode.NONE)]
    for count, factor in enumerate((2.0, 3.0, 5.0, 2.0)):
        # Of a shape that JAX traces each time
        assert jax.jit(made[0])(jnp.ones(int(factor) + count))[0][0].item() == factor
        assert [f(x)[0].item() for f in made] == [factor, factor**2]
        assert jax.jit(nb.jax_kernel(scale))(x)[0].item() == factor
        for mode, python in ((mode, called if mode is nb.GraphMode.NONE else function) for mode in nb.GraphMode):
            assert jax.jit(nb.jax_callable(python, graph_mode=mode))(x)[0].item() == factor**2


def test_dims_are_asked_anew_by_what_is_wrapped_again() -> None:
    length = 0

    def as_long(*_):
        return length

    for length in (2, 3):
        kernel = nb.jax_kernel(copied_square, launch_dims=as_long, output_dims=as_long)
        called = nb.jax_callable(squared_twice, graph_mode=nb.GraphMode.NONE, output_dims=as_long)
        assert jax.jit(kernel)(jnp.ones(3))[0].shape == (length,)
        assert jax.eval_shape(jax.jit(called), jnp.ones(3))[0].shape == (length,)


def test_what_was_made_goes_with_its_python_function() -> None:
    def made():
        def function(x: nb.array[float], y: nb.array[float]):
            nb.launch(copied_square, x.shape, [x], [y])

        wrapped = nb.jax_callable(function)
        assert wrapped(jnp.array([3.0]))[0].tolist() == [9]
        assert vars(function)
        return weakref.ref(function), weakref.ref(wrapped)

    gone = made()
    jax.clear_caches()
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_a_method_makes_something_new_each_time() -> None:
    class Scaled:
        def run(self, x: nb.array[float], y: nb.array[float]):
            nb.launch(copied_square, x.shape, [x], [y])

    held = Scaled()
    assert nb.jax_callable(held.run) is not nb.jax_callable(held.run)
    assert nb.jax_callable(held.run)(jnp.array([3.0]))[0].tolist() == [9]


def test_a_pickle_of_a_functions_namespace_has_nothing_that_was_made_of_it() -> None:
    nb.jax_kernel(copied_square)
    (table,) = vars(copied_square.function).values()
    for other in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
        assert table.kept and not other.kept and not other.alive
