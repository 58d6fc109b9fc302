"""What launches and kernels say to mistakes: the argument, what it was, what was wanted, and what to do."""

import linecache
import math
from types import ModuleType

import numba
import numpy as np
import pytest
from numba import cuda

import numbridge
from numbridge.kernels.cpu_backend.raised import RAISED, raised_by
from numbridge.kernels.errors import (
    KernelError,
    KernelUnsupportedError,
    NumbridgeError,
    NumbridgeTypeError,
    NumbridgeValueError,
)
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
    launched(ones(), y, 1.0)
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
    with pytest.raises(NumbridgeTypeError, match=r"blocks and threads are ints of 0 or more.*got True"):
        saxpy[True, 8]
    with pytest.raises(NumbridgeTypeError, match=r"blocks and threads are ints of 0 or more.*got -1"):
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
        ([1.0, 2.0], r"builtins.list is no array.*numpy.asarray\(x\) does, or pass what it holds one by one"),
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


NUMBERS, TABLE = [1.0, 2.0], {"a": 1.0}


@func
def twice(v):
    return v + v


@func
def both(a, b):
    return a + b


@func
def nothing(v):
    v + v


@numba.njit
def twice_in_njit(v):
    return twice(v)


@kernel
def reads_a_list(x, y):
    x[0] = NUMBERS[0]


@kernel
def reads_a_dict(x, y):
    x[0] = TABLE["a"]


@kernel
def calls_njit(x, y):
    x[0] = twice_in_njit(x[0])


@kernel
def leaves_out_an_argument(x, y):
    x[0] = both(x[0])


@kernel
def misnames_an_argument(x, y):
    x[0] = both(x[0], c=1.0)


@kernel
def stores_none(x, y):
    x[0] = nothing(x[0])


@kernel
def computes_with_none(x, y):
    x[0] = nothing(x[0]) + 1.0


@kernel
def indexes_a_number(x, y):
    x[0] = y[0]


@kernel
def stores_into_a_number(x, y):
    y[0] = x[0]


@kernel
def loops_over_a_number(x, y):
    for k in y:
        x[0] = k


@kernel
def calls_a_builtin(x, y):
    x[0] = input("a")


@kernel
def has_a_norm(x, y):
    x[0] = x.norm()


@kernel
def has_a_maximum(x, y):
    y[0] = x.max()


def inside_a_function():
    class Settings:
        rate = 2.0

    settings = Settings()

    @kernel
    def reads_an_object(x, y):
        x[0] = settings.rate

    return reads_an_object


@kernel
def stores_text(x, y):
    x[0] = "a"


@kernel
def stores_a_tuple(x, y):
    x[0] = (1.0, 2.0)


@kernel
def counts_in_floats(x, y):
    cuda.atomic.inc(x, 0, 3)


@kernel
def forgets_an_index(x, y):
    x[0] += 1


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (reads_a_list, "NUMBERS is a list, which kernels cannot read; make it a tuple, or pass an array"),
        (reads_a_dict, "TABLE is of type dict, which kernels cannot read; pass the numbers and arrays that it holds"),
        (calls_a_builtin, r"input is of type builtin_function_or_method, which kernels cannot call; .* with @nb.func"),
        (
            has_a_norm,
            r"an array has no .norm in a kernel; write a loop over its elements, or compute it before the launch",
        ),
        (
            inside_a_function(),
            r"settings is of type [\w.]*inside_a_function.Settings, which kernels cannot read; .* nb.static\(...\)",
        ),
        (
            calls_njit,
            "twice is a device function of @nb.func, which functions of numba.njit cannot call; decorate with @nb.func",
        ),
        (
            leaves_out_an_argument,
            r"parameters \(a, b\) is called with \(float32\): missing a required argument: 'b'; pass one",
        ),
        (
            misnames_an_argument,
            r"parameters \(a, b\) is called with \(float32, c: float32\): missing a required argument: 'b'",
        ),
        (stores_none, "None is stored or computed with here, .*return a number on every path"),
        (computes_with_none, "None is stored or computed with here"),
        (indexes_a_number, "a float32 is a number, and is indexed here like an array; pass an array"),
        (stores_into_a_number, "a float32 is a number, and is indexed here like an array"),
        (loops_over_a_number, r"a float32 cannot be looped over; loop over range\(n\), an array or a tuple"),
        (stores_text, "an array of float32 with 1 dimension does not take text; store numbers"),
        (stores_a_tuple, "does not take a tuple; store numbers, one in each element"),
        (counts_in_floats, "atomic_inc works on unsigned integers, not on float32; use an array of such a type"),
    ],
)
def test_what_does_not_compile(wrong, text):
    with pytest.raises(KernelError, match=rf"'{wrong.name}' does not compile for .*{text}(.|\n)*test_mistakes.py:"):
        launch(wrong, 1, [ones(), 2.0])


def test_the_maximum_of_an_array_that_is_read():
    with pytest.raises(
        KernelError, match=r"the max of an array that the kernel only reads .*; write a loop over its elem"
    ):
        launch(has_a_maximum, 1, [ones(), ones()])


def test_what_may_have_been_meant():
    def wrong(source):
        namespace = {"kernel": kernel, "nb": numbridge, "math": math, "helper": saxpy, "peer": ModuleType("peer")}
        text = f"@kernel\ndef wrong(x):\n    x[0] = {source}\n"
        linecache.cache["<meant>"] = (len(text), None, text.splitlines(keepends=True), "<meant>")
        exec(compile(text, "<meant>", "exec"), namespace)
        with pytest.raises(KernelError) as caught:
            launch(namespace["wrong"], 1, [ones()])
        return str(caught.value).partition("\n")[0]

    assert wrong("hleper(1.0)") == "the name 'hleper' is not defined; did you mean helper?"
    assert wrong("nb.atomic_ad(x, 0, 1.0)") == "numbridge has no attribute 'atomic_ad'; did you mean nb.atomic_add?"
    assert wrong("math.sinn(x[0])") == "math has no attribute 'sinn'; did you mean math.sin?"
    assert wrong("peer.tid()") == "peer has no attribute 'tid'; numbridge has nb.tid"
    assert wrong("peer.nothing_like_it()") == "peer has no attribute 'nothing_like_it'"


class Holder:
    @kernel
    def method(self, x):
        x[0] = 1.0


@kernel
def has_a_default(x, a=2.0):
    x[0] = a


def test_arguments_that_other_functions_get_by_themselves():
    with pytest.raises(NumbridgeTypeError, match=r"\(self, x\), got 1; .* write @staticmethod above @nb.kernel"):
        launch(Holder().method, 1, [ones()])
    with pytest.raises(
        NumbridgeTypeError, match=r"\(x, a\), got 1; the defaults of a kernel's parameters are not used"
    ):
        launch(has_a_default, 1, [ones()])


def test_an_array_with_a_dimension_more_than_the_kernel_has_indices():
    with pytest.raises(KernelError, match=r"x\[i\] \+ 1 is one too, if x has two dimensions"):
        launch(forgets_an_index, 1, [np.ones((2, 2), np.float32), 2.0])


def test_assignment_expressions():
    with pytest.raises(
        KernelUnsupportedError, match=r"v := of more than a variable .*in a statement before\n.*\n.*\n +\^"
    ):
        launch(keeps_a_sum, 8, [ones()])
    x = ones()
    launch(keeps_a_variable, 8, [x])
    assert x.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@kernel
def keeps_a_sum(x):
    if (v := x[0] + 1.0) > 0:
        x[0] = v


@kernel
def keeps_a_variable(x):
    i = cuda.grid(1)
    w = x[i] * 0.0
    if (v := i) >= 0:
        x[i] = v + w


@pytest.mark.parametrize("given", ["a", 2.0])
def test_max_blocks_that_are_no_int(given):
    with pytest.raises(NumbridgeTypeError, match=f"max_blocks of kernel 'saxpy': wanted an int, got {given!r}"):
        launch(saxpy, 8, [ones(), ones(), 1.0], max_blocks=given)


@pytest.mark.parametrize("given", [90, "sm_90", (9, 0, 0)])
def test_compute_capabilities_that_are_none(given):
    with pytest.raises(NumbridgeTypeError, match=r"capability is .*; it must be two ints, such as \(9, 0\) for sm_90"):
        saxpy.ptx(ones(), ones(), 1.0, capability=given)


def test_a_compute_capability_that_numba_cuda_does_not_have():
    with pytest.raises(KernelError, match=r"does not compile for the compute capability \(1, 0\): .*not supported"):
        saxpy.ptx(ones(), ones(), 1.0, capability=(1, 0))


def test_a_static_method():
    with pytest.raises(NumbridgeTypeError, match=r"got a staticmethod; write @staticmethod above @nb.kernel"):
        kernel(staticmethod(saxpy.function))


@kernel
def misnames_a_local_dtype(x, a):
    i = cuda.grid(1)
    memory = cuda.local.array(3, "foo")
    memory[0] = a
    x[i] = memory[0]


@kernel
def misnames_a_shared_dtype(x, a):
    i = cuda.grid(1)
    memory = cuda.shared.array((3, 2), "foo")
    memory[0, 0] = a
    x[i] = memory[0, 0]


@kernel
def takes_a_number_for_a_dtype(x, a):
    i = cuda.grid(1)
    memory = cuda.local.array(3, 32)
    memory[0] = a
    x[i] = memory[0]


@pytest.mark.parametrize(
    ("wrong", "got"),
    [(misnames_a_local_dtype, "'foo'"), (misnames_a_shared_dtype, "'foo'"), (takes_a_number_for_a_dtype, "32")],
)
def test_a_dtype_of_memory_that_is_none(wrong, got):
    with pytest.raises(KernelError, match=f"needs a dtype such as numpy.float32, got {got}\\n(.|\n)*test_mistakes.py:"):
        launch(wrong, 1, [ones(), 2.0])


class UnsteadyError(Exception):
    """An exception of a user's own."""


@func
def root(x):
    if x == 3:
        raise ZeroDivisionError
    return x


@kernel
def raises(x):
    i = cuda.grid(1)
    if x[i] == 1:
        raise ValueError("a step is too long")
    if x[i] == 2:
        raise ValueError("another step is too long")
    x[i] = root(x[i])
    if x[i] == 4:
        raise UnsteadyError("at", 4)
    assert x[i] != 5, "five is odd"
    for _ in range(0, 1, int(x[i]) - 6):
        x[i] += 0


@kernel
def raises_in_a_block(x):
    i = cuda.grid(1)
    cuda.syncthreads()
    if x[i] == 1:
        raise ValueError("a step is too long")
    cuda.syncthreads()
    x[i] = root(x[i])


@pytest.mark.parametrize(
    ("raising", "given", "kind", "said", "line"),
    [
        (raises, 1, ValueError, ", ValueError: a step is too long;", 'raise ValueError("a step is too long")'),
        (raises, 2, ValueError, ", ValueError: another step", 'raise ValueError("another step is too long")'),
        (raises, 3, ZeroDivisionError, ", ZeroDivisionError;", "raise ZeroDivisionError"),
        (raises, 4, UnsteadyError, r", UnsteadyError: \('at', 4\);", 'raise UnsteadyError("at", 4)'),
        (raises, 5, AssertionError, ", AssertionError: five is odd;", 'assert x[i] != 5, "five is odd"'),
        (raises, 6, ValueError, r", ValueError: range\(\) arg 3 must not be zero;", None),
        (
            raises_in_a_block,
            1,
            ValueError,
            ", ValueError: a step is too long;",
            'raise ValueError("a step is too long")',
        ),
        (raises_in_a_block, 3, ZeroDivisionError, ", ZeroDivisionError;", "raise ZeroDivisionError"),
    ],
)
def test_what_a_kernel_raises_is_told(raising, given, kind, said, line):
    with pytest.raises(
        KernelError, match=f"'{raising.name}' raised an exception in one of its threads{said}"
    ) as caught:
        launch(raising, 2, [np.full(2, float(given))])
    assert type(caught.value.__cause__) is kind
    shown = [text.strip() for text in str(caught.value).splitlines()[2::3]]
    assert shown == [line] if line else len(shown) == 5  # the place, or all where an exception may come from


@kernel
def raises_after_a_block(x):
    i = cuda.grid(1)
    cuda.syncthreads()
    assert x[i] != 5, "five is odd"
    x[i] *= 2


@pytest.mark.parametrize(
    ("raising", "given", "said", "line"),
    [
        (raises, 1, "ValueError: a step is too long", 'raise ValueError("a step is too long")'),
        (raises, 3, "ZeroDivisionError", "raise ZeroDivisionError"),
        (raises, 4, r"UnsteadyError: \('at', 4\)", 'raise UnsteadyError("at", 4)'),
        (raises, 5, "AssertionError: five is odd", 'assert x[i] != 5, "five is odd"'),
        (raises_after_a_block, 5, "AssertionError: five is odd", 'assert x[i] != 5, "five is odd"'),
    ],
)
def test_what_an_adjoint_raises_is_told(raising, given, said, line):
    with pytest.raises(
        KernelError, match=f"'adjoint of {raising.name}' raised an exception in one of its threads, {said};"
    ) as caught:
        launch(raising, 2, [np.full(2, float(given))], adj_inputs=[np.ones(2)], adjoint=True)
    assert said.startswith(type(caught.value.__cause__).__name__)
    assert [text.strip() for text in str(caught.value).splitlines()[2::3]] == [line]


@kernel
def raises_a_number(x, step):
    i = cuda.grid(1)
    if step <= 0:
        raise ValueError("the step must be positive", step)
    x[i] += step


def test_an_exception_with_numbers_in_it():
    for call in (
        lambda: launch(raises_a_number, 2, [ones(), 1.0]),
        lambda: raises_a_number.ptx(ones(), 1.0, capability=(9, 0)),
    ):
        with pytest.raises(
            KernelError, match=r": an exception in a kernel is made of constants, and this one.*print\("
        ):
            call()
    with pytest.raises(
        KernelError, match=r"is made of constants(.|\n)*raise ValueError\(\"the step must be positive\", step"
    ):
        launch(raises_a_number, 2, [ones(), 1.0])


def test_what_another_kernel_raised_is_not_told(monkeypatch):
    found = np.zeros(1, np.int64)
    with pytest.raises(KernelError):
        launch(raises, 1, [np.full(1, 1.0)])
    monkeypatch.setattr("numbridge.kernels.launch.raised_by", lambda kernels: found.__setitem__(0, RAISED[0]))
    with pytest.raises(KernelError, match="in one of its threads; the arrays"):
        launch(raises, 1, [np.full(1, 1.0)])
    RAISED[0] = found[0]
    assert raised_by([saxpy]) is None and RAISED[0] == 0
    RAISED[0] = found[0]
    assert raised_by([saxpy, raises]).args == ("a step is too long",)
