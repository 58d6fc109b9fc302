"""What stands before `launch`, `Kernel.forall` and ``kernel[blocks, threads]``: which calls run no Python, and which do.

What Python functions refuse, they refuse whatever was launched before; and they look like functions of Python.
"""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from numbridge.kernels.language import source
from numbridge.kernels.launch import launch


@nb.kernel
def add_one(x, y):
    i = nb.tid()
    y[i] = x[i] + 1


@nb.kernel
def transposed(x, y):
    i, j = nb.tid()
    y[j, i] = x[i, j]


class Shape(tuple[int, ...]):
    """A shape as PyTorch's is: a subclass of tuple."""


X, Y = np.arange(3.0), np.zeros(3)
PLANE, TURNED = np.arange(6.0).reshape(2, 3), np.zeros((3, 2))
CPU = nb.get_device("cpu")
USUAL: dict[str, Callable[[], Any]] = {
    "by position": lambda: launch(add_one, 3, [X, Y]),
    "by name": lambda: launch(kernel=add_one, dim=3, inputs=(X,), outputs=[Y]),
    "a tuple of extents": lambda: launch(add_one, dim=(3,), inputs=[X], outputs=(Y,)),
    "an array's shape": lambda: launch(transposed, PLANE.shape, [PLANE, TURNED]),
    "a list of extents": lambda: launch(transposed, [2, 3], [PLANE, TURNED]),
    "another class of shape": lambda: launch(transposed, Shape((2, 3)), [PLANE, TURNED]),
    "a block": lambda: launch(add_one, 3, [X, Y], block_dim=64),
    "a block of two axes": lambda: launch(transposed, (2, 3), [PLANE, TURNED], block_dim=(8, 4)),
    "a device's name": lambda: launch(add_one, 3, [X, Y], device="cpu"),
    "a device": lambda: launch(add_one, 3, [X, Y], device=CPU),
    "no device": lambda: launch(add_one, 3, [X, Y], device=None),
    "blocks and threads": lambda: add_one[1, 3](X, Y),
    "blocks and threads along axes": lambda: transposed[(1, 1), (2, 3)](PLANE, TURNED),
    "a stream and shared memory": lambda: add_one[1, 3, 0, 0](X, Y),
    "forall": lambda: add_one.forall(3)(X, Y),
    "forall by name": lambda: add_one.forall(dim=(3,), block_dim=32)(X, Y),
    "forall with a block": lambda: transposed.forall((2, 3), (8, 4))(PLANE, TURNED),
}


def frames_of(call: Callable[[], Any]) -> list[str]:
    """Return the names of the Python functions that run in a call, besides its own."""
    seen: list[str] = []
    inside = call.__code__

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is not inside:
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


@pytest.fixture(autouse=True)
def results() -> Iterator[None]:
    """Check what was launched, if anything was: either array is right, or as it was."""
    Y[:], TURNED[:] = 0, 0
    yield
    assert Y.tolist() in ([0, 0, 0], [1, 2, 3])
    assert not TURNED.any() or np.array_equal(TURNED, PLANE.T)


@pytest.mark.parametrize("form", USUAL)
def test_usual_calls_run_no_python(form):
    USUAL[form]()
    Y[:], TURNED[:] = 0, 0
    assert frames_of(USUAL[form]) == []
    assert Y.any() or TURNED.any()


def test_shapes_of_torch_run_no_python():
    import torch

    x, y = torch.ones(2, 3), torch.zeros(3, 2)

    def call() -> None:
        launch(transposed, x.shape, [x], [y], device="cpu")

    call()
    y.zero_()
    assert frames_of(call) == []
    assert torch.equal(y, x.T)


UNUSUAL: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no arguments": (launch, TypeError, "missing 2 required positional arguments: 'kernel' and 'dim'"),
    "no extents": (lambda: launch(add_one), TypeError, "missing 1 required positional argument: 'dim'"),
    "extents twice": (lambda: launch(add_one, 3, [X, Y], dim=3), TypeError, "multiple values for argument 'dim'"),
    "an unknown name": (lambda: launch(add_one, 3, [X, Y], grid=1), TypeError, "unexpected keyword argument 'grid'"),
    "no kernel": (
        lambda: launch(print, 3, [X, Y]),
        nb.NumbridgeTypeError,
        "wanted a kernel, got <built-in function print>",
    ),
    "a kernel as an int": (lambda: nb.Kernel.forall(3, 3), AttributeError, "'int' object has no attribute"),
    "a float": (lambda: launch(add_one, 3.0, [X, Y]), nb.NumbridgeTypeError, "wanted an int or a tuple"),
    "a float in a tuple": (lambda: launch(add_one, (3.0,), [X, Y]), nb.NumbridgeTypeError, r"got \(3.0,\)"),
    "a float in a list": (lambda: launch(add_one, [3.0], [X, Y]), nb.NumbridgeTypeError, r"got \[3.0\]"),
    "too few extents": (lambda: launch(transposed, 3, [X, Y]), nb.NumbridgeValueError, "pass a tuple of 2"),
    "a negative extent": (lambda: launch(add_one, -3, [X, Y]), nb.NumbridgeValueError, "negative extent"),
    "an array for a list": (lambda: launch(add_one, 3, X, Y), nb.NumbridgeTypeError, "inputs is of type ndarray"),
    "a mapping": (lambda: launch(add_one, 3, {"x": X}), nb.NumbridgeTypeError, "inputs is of type dict"),
    "too few arguments": (lambda: launch(add_one, 3, [X]), nb.NumbridgeTypeError, "takes 2 arguments"),
    "a float in a block": (
        lambda: launch(add_one, 3, [X, Y], block_dim=(64.0,)),
        nb.NumbridgeTypeError,
        "block_dim of kernel",
    ),
    "a bool as block": (lambda: launch(add_one, 3, [X, Y], block_dim=True), nb.NumbridgeTypeError, "got True"),
    "no such device": (
        lambda: launch(add_one, 3, [X, Y], device="tpu"),
        nb.NumbridgeValueError,
        "there is no device 'tpu'",
    ),
    "no name of a device": (
        lambda: launch(add_one, (1, 3), [X, Y], device=...),
        nb.NumbridgeTypeError,
        "device is Ellipsis",
    ),
    "one in brackets": (lambda: add_one[3], nb.NumbridgeTypeError, r"wanted kernel\[blocks, threads"),
    "floats in brackets": (lambda: add_one[1, 3.0], nb.NumbridgeTypeError, "got 3.0"),
    "shared memory as a float": (lambda: add_one[1, 3, 0, 0.0], nb.NumbridgeTypeError, "shared memory"),
    "an axis too many": (lambda: add_one[1, (3, 2)], nb.NumbridgeValueError, "threads along more axes"),
    "forall without extents": (add_one.forall, TypeError, "missing 1 required positional argument: 'dim'"),
    "forall with inputs": (lambda: add_one.forall(3, inputs=[X]), TypeError, "unexpected keyword argument 'inputs'"),
    "forall with two blocks": (lambda: add_one.forall(3, 32, block_dim=32), TypeError, "multiple values"),
    "forall with too many": (lambda: add_one.forall(3, 32, 0), TypeError, "4 were given"),
}


@pytest.mark.parametrize("form", UNUSUAL)
def test_what_python_refuses_it_refuses_after_any_launch(form):
    call, kind, message = UNUSUAL[form]
    with pytest.raises(kind, match=message):
        call()
    for usual in USUAL.values():
        usual()
    Y[:], TURNED[:] = 0, 0
    with pytest.raises(kind, match=message):
        call()
    assert not (Y.any() or TURNED.any())


def test_other_calls_are_pythons():
    for call in (
        lambda: launch(add_one, np.int64(3), [X, Y]),
        lambda: launch(add_one, 3, iter([X, Y])),
        lambda: launch(add_one, 3, [X, Y], [], (), (), None, None, False, True, False, 0, 256),
        lambda: launch(add_one, 3, [X], [Y], max_blocks=2),
        lambda: launch(add_one, 3, [X], [Y], device="cpu", block_dim=32),
        # Names that were put together are equal to those that compiled calls have, and others.
        lambda: launch(**{"kernel": add_one, "".join(["di", "m"]): 3, "".join(["in", "puts"]): [X, Y]}),
    ):
        Y[:] = 0
        call()
        assert Y.tolist() == [1, 2, 3]
        Y[:] = 0
        assert frames_of(call) != []
        assert Y.tolist() == [1, 2, 3]


def test_errors_of_a_launch_come_through_and_leave_no_reference():
    class Mine:
        pass

    given = Mine()
    before = sys.getrefcount(given), sys.getrefcount(X), sys.getrefcount(add_one)
    launch(add_one, 3, [X, Y])
    for _ in range(100):
        with pytest.raises(nb.NumbridgeTypeError):
            launch(add_one, 3, [X], [given])
        with pytest.raises(nb.NumbridgeTypeError):
            add_one[1, 3](X, given)
    assert (sys.getrefcount(given), sys.getrefcount(X), sys.getrefcount(add_one)) == before


def test_calls_leave_no_reference():
    for usual in USUAL.values():
        usual()
    kept = [X, Y, PLANE, TURNED, add_one, transposed, CPU, add_one.forall(3), "cpu"]
    before = [sys.getrefcount(one) for one in kept]
    for usual in [*USUAL.values()] * 200:
        usual()
    assert [sys.getrefcount(one) for one in kept] == before


def test_arguments_that_leave_their_list_while_they_are_read_stay():
    given: list[Any] = []

    class Leaving:
        """An array that takes everything out of the list that it came in."""

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            given.clear()
            return np.arange(3.0)

    launch(add_one, 3, [X, Y])
    for _ in range(20):
        given[:] = [Leaving(), np.zeros(3)]
        launch(add_one, 3, given)
        assert given == []


def test_fronts_are_functions_to_python():
    for name, function, parameters in (
        (
            "launch",
            nb.launch,
            "kernel dim inputs outputs adj_inputs adj_outputs device stream adjoint record_tape record_cmd",
        ),
        ("forall", nb.Kernel.forall, "self dim block_dim"),
        ("forall", add_one.forall, "dim block_dim"),
    ):
        signature = inspect.signature(function)
        assert " ".join(signature.parameters).startswith(parameters)
        assert signature.parameters["dim"].default is inspect.Parameter.empty
        assert function.__name__ == name and "dim : int or tuple of int" in str(inspect.getdoc(function))
    assert inspect.signature(nb.launch).parameters["block_dim"].default == 256
    assert repr(nb.launch) == "<built-in function launch>" and nb.launch.__module__ == "numbridge.kernels.launch"
    assert pickle.loads(pickle.dumps(nb.launch)) is nb.launch and copy.deepcopy(nb.launch) is nb.launch


BEFORE = """
import pickle
import numpy as np
from numbridge import kernel, launch, tid
from numbridge.kernels.machine import _started

@kernel
def double(x):
    i = tid()
    x[i] *= 2

first, x, copied = launch, np.ones(3), pickle.dumps(launch)
for call in (lambda: launch(double), lambda: double.forall(), lambda: double[3]):
    try:
        call()
    except TypeError as error:
        assert "dim" in str(error) or "blocks, threads" in str(error), error
    else:
        raise AssertionError
assert not _started
launch(double, dim=3, inputs=[x])
assert _started and pickle.loads(copied) is launch is first
for _ in range(3):
    first(double, 3, [x])
    double[1, 3](x)
    double.forall(3)(x)
print(x.tolist())
"""


def test_fronts_work_before_there_is_compiled_code(tmp_path):
    program = tmp_path / "before.py"
    program.write_text(BEFORE)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[1024.0, 1024.0, 1024.0]\n", "")


def test_launches_of_new_extents_do_not_read_the_program_again(monkeypatch):
    USUAL["by position"]()
    USUAL["blocks and threads along axes"]()

    def refuse(*_: Any) -> None:
        raise AssertionError("the program was read again")

    monkeypatch.setattr(source.Program, "_visit", refuse)
    x, y = np.arange(1000.0), np.zeros(500)
    for n in range(400, 500):
        launch(add_one, n, [x, y])
        assert y[n - 1] == n and y[n] == 0
        transposed[(1, 1), (2, n)](x[: 2 * n].reshape(2, n), np.zeros((n, 2)))


@nb.kernel
def places(where, count):
    i, j, k = nb.tid()
    nb.atomic_add(count, 0, nb.int64(1))
    if i == 0 and j == 0 and k == 0:
        where[0], where[1], where[2] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
        where[3], where[4], where[5] = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z


@nb.kernel
def threads(count):
    nb.atomic_add(count, 0, nb.int64(1))


@pytest.mark.parametrize("block", [256, 3, (4, 2), (2, 3, 5)])
def test_new_extents_have_the_blocks_that_were_asked_for(block):
    shape = (*(block if isinstance(block, tuple) else (block,)), 1, 1)[:3]
    where, count = np.zeros(6, np.int64), np.zeros(1, np.int64)
    for dims in [(1, 1, 1), (7, 5, 3), (2, 0, 9), (300, 1, 2), (1, 64, 7)]:
        where[:], count[:] = 0, 0
        launch(places, dims, [where, count], block_dim=block)
        assert count[0] == math.prod(dims)
        if count[0]:
            assert where.tolist() == [*(-(-n // size) for n, size in zip(dims, shape, strict=True)), *shape]


@pytest.mark.parametrize("dims", [5, 0, (3,), (2, 3), (2, 3, 4), (2, 1, 3, 2), (0, 4)])
def test_threads_without_an_index_are_counted_over_any_extents(dims):
    count = np.zeros(1, np.int64)
    launch(threads, 2, [count])
    launch(threads, dims, [count])
    launch(threads, dims, [count])
    assert count[0] == 2 + 2 * (dims if isinstance(dims, int) else math.prod(dims))


@pytest.mark.parametrize("dims", [1 << 63, (1 << 32, 1 << 31), (1 << 70,), (0, 1 << 63), (-1, 0), (1, 1, 1, 1, 1)])
def test_extents_that_compiled_code_cannot_count_are_refused(dims):
    count = np.zeros(1, np.int64)
    launch(threads, (1,) * (1 if isinstance(dims, int) else min(len(dims), 4)), [count])
    with pytest.raises(nb.NumbridgeValueError, match=r"64 bits can count|negative extent|1 to 4 dimensions"):
        launch(threads, dims, [count])
    assert count[0] == 1


def first_of_one(x):
    i = nb.tid()
    return x[i, 0]


def first_of_two(x):
    i, j = nb.tid()
    return x[i, j]


place = nb.func(first_of_one)
AXES = 1


@nb.kernel
def placed(x, y):
    y[0] = place(x)


@nb.kernel
def counted(y):
    nb.atomic_add(y, 0, nb.int64(1))
    _ = cuda.grid(AXES)


def test_a_function_that_takes_another_place_gives_the_kernel_its_indices(monkeypatch):
    x, y = np.array([[5.0]]), np.zeros(1)
    launch(placed, 1, [x, y])
    over_one = placed.forall(1)
    assert placed.source.index_rank == 1
    monkeypatch.setitem(globals(), "place", nb.func(first_of_two))
    assert placed.source.index_rank == 2
    for extents in (1, 7):
        with pytest.raises(nb.NumbridgeValueError, match="pass a tuple of 2"):
            launch(placed, extents, [x, y])
    with pytest.raises(nb.NumbridgeValueError, match="pass a tuple of 2"):
        over_one(x, y)
    launch(placed, (1, 1), [x, y])
    assert y[0] == 5


def test_a_number_of_axes_that_changes_gives_the_kernel_its_indices(monkeypatch):
    y = np.zeros(1, np.int64)
    launch(counted, 4, [y])
    monkeypatch.setitem(globals(), "AXES", 2)
    with pytest.raises(nb.NumbridgeValueError, match="pass a tuple of 2"):
        launch(counted, 5, [y])
    launch(counted, (2, 3), [y])
    assert y[0] == 10


def test_many_types_of_arguments_in_turn_run_no_python():
    kinds = ("?", "b", "B", "h", "H", "i", "I", "l", "L", "e", "f", "d", "F", "D")
    arrays = [(np.arange(3).astype(kind), np.zeros(3, other)) for kind in kinds[:10] for other in kinds[10:12]]

    def call() -> None:
        for x, y in arrays:
            launch(add_one, 3, [x, y])

    call()
    for _, y in arrays:
        y[:] = 0
    assert frames_of(call) == []
    assert all(y[1] == 2 for _, y in arrays)


def by_itself(y):
    i = nb.tid()
    y[i] = 1


def by_its_block(y):
    i = nb.tid()
    y[i] = cuda.blockDim.x


way = nb.func(by_itself)


@nb.kernel
def either(y):
    way(y)


def test_launches_that_were_prepared_for_other_threads_are_refused(monkeypatch):
    y = np.zeros(7)
    run, brackets, recorded = either.forall(7), either[1, 7], launch(either, 7, [y], record_cmd=True)
    for call in (lambda: run(y), lambda: brackets(y), recorded.launch):
        call()
    monkeypatch.setitem(globals(), "way", nb.func(by_its_block))
    for call in (lambda: run(y), lambda: brackets(y), recorded.launch):
        with pytest.raises(nb.NumbridgeError, match="takes its threads' places in another way than when this launch"):
            call()
    assert y.tolist() == [1] * 7
    for call, size in (
        (lambda: launch(either, 7, [y], block_dim=32), 32),
        (lambda: launch(either, 5, [y], block_dim=32), 32),
        (lambda: either.forall(6, 32)(y), 32),
        (lambda: either[1, 7](y), 7),
    ):
        for _ in range(2):
            y[:] = 0
            call()
            assert y[0] == size
