"""What launches and kernels say to mistakes: the argument, what it was, what was wanted, and what to do."""

import numpy as np
import pytest
from numba import cuda

from numbridge.kernels.errors import KernelError, NumbridgeError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.launch import launch


@kernel
def saxpy(x, y, a):
    i = cuda.grid(1)
    y[i] = a * x[i] + y[i]


def ones():
    return np.ones(8, np.float32)


@pytest.mark.parametrize("launched", [saxpy.forall(8), saxpy[1, 8]])
def test_arguments_by_name(launched):
    y = ones()
    with pytest.raises(
        NumbridgeTypeError, match=r"'saxpy' takes its.* by position, in the order \(x, y, a\), and a came by"
    ):
        launched(ones(), y, a=1.0)
    with pytest.raises(NumbridgeTypeError, match="x, y, a came by name; leave the names out"):
        launched(x=ones(), y=y, a=1.0)
    assert (y == 1).all()
    launched(ones(), y, 1.0, **{})
    assert (y == 2).all()
    with pytest.raises(NumbridgeError, match="'saxpy' cannot be called; launch it"):
        saxpy(ones(), y, a=1.0)


@pytest.mark.parametrize(
    ("blocks", "threads", "text"),
    [
        (1, 1025, r"\(1025, 1, 1\) are 1025 threads in a block, and CUDA has up to 1024; take more blocks"),
        (1, (64, 64), "are 4096 threads in a block"),
        (1, (1, 1, 65), "are 65 threads in a block along z, and CUDA has up to 64 there; put more along x"),
        ((1, 65536), 1, "are 65536 blocks along y, and CUDA has up to 65535"),
        ((1, 1, 65536), 1, "are 65536 blocks along z, and CUDA has up to 65535"),
        (2**31, 1, "are 2147483648 blocks along x"),
    ],
)
def test_blocks_that_cuda_does_not_have(blocks, threads, text):
    with pytest.raises(NumbridgeValueError, match=text):
        saxpy[blocks, threads]
    for most in ((1, 1024), (65535, 1)):
        saxpy[most]


def test_no_blocks_are_no_bools_and_none_run_nothing():
    y = ones()
    with pytest.raises(NumbridgeTypeError, match="blocks and threads are ints of 0 or more.*got True"):
        saxpy[True, 8]
    with pytest.raises(NumbridgeTypeError, match="blocks and threads are ints of 0 or more.*got -1"):
        saxpy[-1, 8]
    saxpy[0, 8](ones(), y, 1.0)
    saxpy[8, 0](ones(), y, 1.0)
    assert (y == 1).all()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2**63, "integer 9223372036854775808 does not fit into int64; pass np.uint64.value., or float"),
        (-(2**63) - 1, r"does not fit into int64; pass float\(value\)$"),
        (10**400, "the integer of 1329 bits does not fit into int64; scale it"),
        pytest.param(10**5000, "the integer of 16610 bits does not fit", id="thousands of digits"),
    ],
)
def test_large_integers(number, text):
    with pytest.raises(NumbridgeValueError, match=text):
        launch(saxpy, 8, [ones(), ones(), number])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "pass an array or a number$"),
        ("2", "pass an array or a number$"),
        ((1.0, 2.0), r"builtins.tuple is no array.*numpy.asarray\(x\) does, or pass what it holds one by one"),
        (np.datetime64(1, "s"), r"pass it as an integer, as by x.astype\(np.int64\)"),
        ({}, "pass an array or a number made of it"),
    ],
)
def test_what_to_pass_instead(given, text):
    with pytest.raises(NumbridgeTypeError, match=f"'a'.*{text}"):
        launch(saxpy, 8, [ones(), ones(), given])


def test_adjoints_that_are_no_list():
    with pytest.raises(
        NumbridgeTypeError, match="adj_inputs is of type ndarray; it must be a list of adjoints, one for each"
    ):
        launch(saxpy, 8, [ones(), ones(), 1.0], adj_inputs=ones(), adjoint=True)
