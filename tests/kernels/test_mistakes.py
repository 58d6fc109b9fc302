"""What launches and kernels say to mistakes: the argument, what it was, what was wanted, and what to do."""

import array
import linecache
import math
from collections import namedtuple
from types import ModuleType

import numba
import numpy as np
import pytest
from numba import cuda
from numba.core.errors import NumbaExperimentalFeatureWarning

import numbridge
from numbridge.kernels.cpu_backend.raised import RAISED, raised_by
from numbridge.kernels.cuda_backend.cuda_driver import driver_count
from numbridge.kernels.errors import (
    DeviceError,
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
        ("2", "pass an array or a number$"),
        ([1.0, 2.0], r"builtins.list is no array.*numpy.asarray\(x\) does; a kernel takes tuples as well, tuple\(x\)"),
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


TABLE = {"a": 1.0}


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


@numba.njit
def greatest_of(x):
    return x.max()


@kernel
def has_a_maximum(x, y):
    y[0] = greatest_of(x)


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
            r"parameters \(a, b\) is called with \(float32, c=float32\): missing a required argument: 'b'",
        ),
        (stores_none, "None is stored or computed with here, .*return a number on every path"),
        (computes_with_none, "None is stored or computed with here"),
        (
            indexes_a_number,
            r"a float32 is a number, and is indexed here like an array; pass an array, .*one of shape \(\) is",
        ),
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


class Holding:
    pass


Pair = namedtuple("Pair", "first second")

AROUND = {
    "kernel": kernel,
    "nb": numbridge,
    "np": np,
    "math": math,
    "cuda": cuda,
    "both": both,
    "twice": twice,
    "OF_TWO_TYPES": (1, 2.0),
    "SET": {1, 2},
    "NUMBERS": [1.0, 2.0],
    "WEIGHTS": np.ones(2, np.float32),
    "Holding": Holding,
    "Pair": Pair,
    "AXIS": numbridge.vec3(1.0, 0.0, 0.0),
    "BUFFER": array.array("f", [1.0, 2.0]),
    "NOTHING": None,
}


def made(statement, names=AROUND):
    """Return a kernel of two arrays, the second of which it does not write."""
    text = f"@kernel\ndef wrong(x, y):\n    i = nb.tid()\n    {statement}\n"
    filename = f"<{statement}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace = dict(names)
    exec(compile(text, filename, "exec"), namespace)
    return namespace["wrong"]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        # Arrays where numbers are wanted
        (
            "if y > 1: x[i] = 1",
            r"an array is neither true nor false, as is what compares one; compare its elements, as in x\[i\]",
        ),
        ("x[i] = 1.0 if y else 2.0", "an array is .*, or ask whether it was passed, as in x is not None"),
        ("x[i] = math.sin(y)", r"sin does not take \(array of float32\)"),
        ("x[i] = math.sin(nb.vec3(1.0))", r"sin does not take \(vec3\); take components, as in sin\(v\[0\]\)"),
        ("x[i] = np.sum(nb.vec3(1.0))", r"sum does not take \(vec3\); write sum\(c for c in v\)"),
        ("x[i] = float(nb.vec3(1.0))", r"float32 does not take \(vec3\); take components, as in float32\(v\[0\]\)"),
        (
            "x[i] = np.maximum(nb.vec3(1.0), 0.0)[0]",
            r"maximum does not take \(vec3, float32\); .* maximum\(v\[0\], w\[0\]\)",
        ),
        ("y.count = 1", "an array has no .count that a kernel stores into; store into its elements"),
        (
            "WEIGHTS[i] = y[i]",
            "an array from outside the kernel is a constant of it, and is not stored to; pass it as an argument",
        ),
        # Operations on numbers
        ("x[i] = y[i] << 2", r"there is no float32 << int; convert with int\(...\)"),
        ("x[i] = y[i] & 1", r"there is no float32 & int; convert with int\(...\)"),
        ("x[i] = ~y[i]", "there is no ~float32"),
        ("x[i] = pow(y[i], 2, 3)", r"pow does not take \(float32, int, int\); write x \*\* y"),
        (
            "x[i] = y[i].astype(np.int32)",
            r"a float32 has no .astype in a kernel; convert it by a call, as in nb.int32\(value\)",
        ),
        ("x[i] = y[i].shape[0]", "a float32 has no .shape: elements are numbers in a kernel"),
        ("for k in 5: x[i] += k", r"an int cannot be looped over; loop over range\(n\)"),
        # What Numba has for arrays only, or not at all
        (
            "x[i] = 2.0 * np.clip(y, 0.0, 1.0)[i]",
            "memory for an array of its own, .*; write a loop .* `def kernel.x: nb.array.nb.vec3",
        ),
        ("x[i] = np.where(y > 0, y, 0.0)[i]", "an array is neither true nor false"),
        ("x[i] = math.comb(5, 2)", "kernels do not have math.comb; write a loop"),
        ("x[i] = np.i0(y[i])", "kernels do not have numpy.i0; write it with others"),
        (
            "x[i] = np.interp(y, y, y)[0]",
            r"np.interp\(x, xp, .*\) in a kernel takes a number x and two rows of numbers",
        ),
        ("x[i] = np.linalg.norm(y[i])", r"np.linalg.norm\(x, ord=None\) in a kernel takes a row of numbers"),
        ("x[i] = np.linalg.det(y)", r"det does not take .*; write nb.determinant\(a\) of a matrix"),
        ("x[i] = np.linalg.qr(y)[0][0, 0]", r"qr does not take \(array of float32\)"),
        ("x.sort()", "kernels do not sort arrays; sort a cuda.local.array in a loop, or the array before the launch"),
        ("x[i] = np.argsort(y)[0]", "(do not sort arrays|argsort does not take .*); sort a cuda.local.array in a loop"),
        ("x[i] = y.shap[0]", "an array has no .shap in a kernel; did you mean .shape?"),
        (
            "for k in range(3)[::-1]: x[i] += k",
            r"a range is neither cut nor indexed in a kernel; write .*, as in range\(n - 1, -1, -1\)",
        ),
        ("x[i] = range(3)[i]", "a range is neither cut nor indexed in a kernel"),
        ("x[i] = np.fft.fft(y)[0]", "kernels do not have numpy.fft; write it"),
        # Calls of other things, of other numbers of them, and of what is no function
        (
            "x[i] = nb.length(y)",
            r"length does not take \(array of float32\); it takes floating vectors and quaternions",
        ),
        ("x[i] = nb.dot(y[i], y[i])", r"dot does not take \(float32, float32\); both must be vectors of one type"),
        (
            "x[i] = nb.quat_rotate(nb.vec3(), nb.vec3())[0]",
            r"quat_rotate does not take \(vec3, vec3\); it takes a quaternion and",
        ),
        (
            "x[i] = nb.normalize(nb.vec3(), 1.0)[0]",
            r"normalize does not take \(vec3, float32\); it takes floating vectors",
        ),
        ("x[i] = np.conj(nb.vec3())[0]", r"conjugate does not take \(vec3\)"),
        ("x[i] = cuda.popc(i, i)", r"(popc|what is called here) does not take (so many arguments|\(int64, int64\))"),
        (
            "nb.atomic_add(y[i], 1.0, 2.0)",
            "atomic.* needs an array and got float32; pass the array and the index of",
        ),
        ("nb.atomic_add(x, y[i], 1.0)", r"atomic.* needs (an|1) integer.* to index an array of float32, got float32"),
        ("nb.atomic_add(x, (i, i), 1.0)", r"atomic.* needs (an|1) integer.* to index an array of float32, got a tuple"),
        ("x[i] = abs(y[i], 1)", r"abs does not take \(float32, int\)"),
        (
            "x[i] = math.pi(2.0)",
            "a float(32|64) is a number, and is called here like a function; leave the brackets out",
        ),
        ("a, b = y[i]", "a float32 is unpacked into several names here, and has no parts"),
        (
            "x[i] = range(3)",
            "an element of an array of float32 with 1 dimension is a number, and this stores a range.* there",
        ),
        ("x[i] = nb.float32(1j)", "a complex(64|128) is not converted to float32; take its .real or .imag"),
        # Tuples
        ("a, b, c = both(y[i], 1.0), 2.0", "what has 2 parts is unpacked into 3 names"),
        ("n, m = y.shape", "what has 1 part is unpacked into 2 names"),
        ("x[i] = y.shape[1]", "a constant index is beyond the end of a tuple, or an array has no such axis in .shape"),
        (
            "for k in OF_TWO_TYPES: x[i] += k",
            r"parts of different types \(int, float32\), and is not looped over; make them alike",
        ),
        (
            "x[i] = OF_TWO_TYPES[i]",
            r"different types \(int, float32\), of which only a constant index chooses one; make them alike",
        ),
        ("x[i] = ((1.0, 2.0) * 2)[i]", r"there is no tuple \* int"),
        (
            "a = (1.0, 2.0); a[0] = 3.0; x[i] = a[0]",
            "a tuple does not change; make a new one, or take cuda.local.array",
        ),
        *(
            (
                f"a = (y[i], nb.vec3(1.0)); {store}; x[i] = a[1][0]",
                r"a tuple does not change, and neither do its parts; take one out, as in v = t\[1\]",
            )
            for store in ("a[1][0] = 3.0", "a[1].x = 3.0", "a[1][0] += 3.0")
        ),
        (
            "a = Pair(nb.vec3(y[i]), 1.0); a.first[0] = 2.0; x[i] = a.first[0]",
            r"a component of a vec3 is stored here that is no variable: .*; give it a name before, as in v = \.\.\.",
        ),
        (
            "AXIS[0] = y[i]; x[i] = AXIS[0]",
            "a component of a vec3 is stored here that is no variable: one from outside",
        ),
        ("a = Pair(y[i], 1.0); a.first = 2.0; x[i] = a.first", "a named tuple does not change, and .first is assigned"),
        # Truth values as indices
        *(
            (statement, r"an index is an integer, and this is a bool; convert with int\(...\), or write an if")
            for statement in (
                "x[i] = y[y[i] > 0]",
                "x[y[i] > 0] = y[i]",
                "x[i] = nb.vec3(y[i])[y[i] > 0]",
                "x[i] = nb.mat22(y[i])[i, y[i] > 0]",
                "x[i] = (y[i], 1.0)[y[i] > 0]",
            )
        ),
        (
            "x['a'] = y[i]",
            "an index is an integer, and this is text, which names a field of a record; this array has none",
        ),
        ("x[i] = y['a']", "an index is an integer, and this is text"),
        # Names
        ("x[i] = y[i] * later; later = 2.0", "'later' is read here where nothing has been assigned to it yet"),
        ("v = nb.vec3(y[i]); v.xy = 1.0; x[i] = v[0]", "a vec3 has no part 'xy' that is assigned to; assign to comp"),
        # Text
        (
            "print('x %f' % y[i])",
            r"there is no text % float32; kernels make no text: print\(...\) takes text and numbers apart",
        ),
        ("print('x ' + y[i])", r"there is no text \+ float32; kernels make no text"),
        ("print('{}'.format(y[i]))", "text has no .format in a kernel, which makes no text; print"),
        ("x[i] = int('3')", r"int does not take \(text\)"),
        # What is around a kernel, and what it calls
        ("x[i] = y[i] * NOTHING", "None is stored or computed with here, .* or bind the name to one"),
        (
            "x[i] = BUFFER[0]",
            "a buffer of float32 from outside of the kernel is no constant of it; pass it as an argument",
        ),
        (
            f"x[i] = y[i] * 1{'0' * 30}",
            r"10{30} does not fit into 64 bits; write a floating-point number, as in 1e\+30",
        ),
        ("held = Holding(); x[i] = held.x", "Holding is a class, of which kernels make no objects; pass the numbers"),
        (
            "x[i] = both(y[i], 1, (2, 3))",
            r"\(a, b\) is called with \(float32, int, tuple\): too many positional arguments",
        ),
    ],
)
def test_operations_and_calls_that_there_are_not(statement, words):
    wrong, x = made(statement), ones()
    for compiled in (
        lambda: launch(wrong, 1, [x, ones()]),
        lambda: wrong.ptx(x, ones(), capability=(9, 0)),
    ):
        with pytest.raises(KernelError, match=rf"'wrong' does not compile for [^:]*: .*{words}.*\n  <") as caught:
            compiled()
        assert "Numba says" not in str(caught.value) and "_nb_" not in str(caught.value)
    assert (x == 1).all()


def test_a_function_chosen_on_the_way_is_none_for_cuda():
    wrong = made("f = both if y[i] > 0 else other; x[i] = f(y[i], 1.0)", AROUND | {"other": func(lambda a, b: a * b)})
    with (
        pytest.warns(NumbaExperimentalFeatureWarning),
        pytest.raises(KernelError, match=r"a name stands for one function on one path.*; call each on its path\n  <"),
    ):
        wrong.ptx(ones(), ones(), capability=(9, 0))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("print(str(y[i]))", r"str\(...\) cannot be called in a kernel: kernels make no text; print\(...\) takes text"),
        (
            "x[i] = 1.0 if y[i] in SET else 0.0",
            "SET is a set, which kernels cannot read; make it a tuple, or pass an array",
        ),
        ("x[i] = math.sin(x=y[i])", "math.sin takes its arguments by position"),
        ("x[i] = cuda.laneid()", "cuda.laneid is a number, and is called here; leave the brackets out"),
        ("x[i] = cuda.threadIdx.x()", "cuda.threadIdx.x is a number, and is called here; leave the brackets out"),
        ("x[i] = NUMBERS[0]", "NUMBERS is a list, which kernels cannot read; make it a tuple, or pass an array"),
        (
            "x[i] = 2.0 * 2**70",
            r"2 \*\* 70 does not fit into 64 bits; write it with floating-point numbers, as in 2.0 \*\* 70",
        ),
        ("n = 65; x[i] = (-2) ** n", r"\(?-2\)? \*\* n does not fit into 64 bits"),
        ("x[i] = 1 << 10**9", "1 << 10 .* does not fit into 64 bits"),
        ("x[i] = max(y[i], default=1.0)", "max in a kernel takes numbers by position, and default came by name"),
        (
            "x[i] = sorted(y)[0]",
            r"sorted\(...\) cannot be called in a kernel: kernels have no memory for that; take a tuple",
        ),
        (
            "for k in reversed(range(3)): x[i] += k",
            r"reversed\(...\) cannot be called in a kernel: count down in a loop, as in range\(n - 1, -1, -1\)",
        ),
        (
            "x[i] = any((y[i] > 0, i > 1))",
            r"any\(...\) cannot be called in a kernel: write conditions with `or`, or a generator, any\(",
        ),
        (
            "x[i] = all((y[i] > 0, i > 1))",
            r"all\(...\) cannot be called in a kernel: write conditions with `and`, or a generator, all\(",
        ),
        ("x[i] = chr(65)", r"chr\(...\) cannot be called in a kernel: kernels make no text"),
        ("x[i] = hash(i)", r"hash\(...\) cannot be called in a kernel: kernels hash nothing; write the arithmetic"),
        ("a = list(y)", r"list\(...\) cannot be called in a kernel: kernels have no memory"),
        *(
            (f"x[i] = np.clip({given})", r"np.clip\(a, a_min, a_max\) in a kernel takes a number and its limits")
            for given in ("y[i]", "y[i], None, None", "y[i], 0.0, min=1.0", "y[i], 0.0, least=1.0")
        ),
        ("x[i] = np.where(y[i])", "np.where in a kernel takes a condition and two numbers, by position"),
        (
            "x[i] = np.interp(y[i], y, y, period=2.0)",
            r"np.interp\(.*\) in a kernel takes a .*, and no other arguments: got an unexpected keyword argument 'period'",
        ),
        (
            "x[i] = np.linalg.norm(y, 1, 0)",
            r"np.linalg.norm\(x, ord=None\) .*, and no other arguments: too many positional arguments",
        ),
    ],
)
def test_what_is_refused_before_anything_is_compiled(statement, words):
    with pytest.raises(KernelError, match=rf"^{words}.*\n  <"):
        launch(made(statement), 1, [ones(), ones()])


@func
def inverse_square(n):
    return n**-2


@pytest.mark.parametrize(
    ("statement", "power"),
    [
        ("x[i] = i ** -1", -1),
        ("n = i; n **= -3; x[i] = n", -3),
        ("x[i] = 2.0 * inverse_square(i)", -2),
        ("x[i] = True ** -2 if i > 0 else (i > 1) ** -2", -2),
    ],
)
def test_integers_to_negative_powers(statement, power):
    """Numba takes them for integers: 0 for most."""
    wrong, x = made(statement, AROUND | {"inverse_square": inverse_square}), ones()
    words = rf"'wrong': an integer to the power {power} is an integer .* mostly 0; write float\(...\) \*\* {power}\n  "
    with pytest.raises(KernelError, match=words):
        launch(wrong, 8, [x, ones()])
    with pytest.raises(KernelError, match=words):
        wrong.ptx(x, ones(), capability=(9, 0))
    assert (x == 1).all()
    launch(made("x[i] = float(i) ** -2 + y[i] ** -1 + 2 ** -1 + i ** 2"), 8, [x, 2 * ones()])
    assert x[2] == 0.25 + 0.5 + 0.5 + 4


def test_reshaping_on_cuda():
    reshaped = made("x[i] = y.reshape(2, 4)[0, i]")
    with pytest.raises(
        KernelError, match=r"does not compile on CUDA, which has no code for .reshape\(...\); index the array"
    ):
        reshaped.ptx(ones(), ones(), capability=(9, 0))


def test_a_new_dimension_on_cuda():
    grown = made("x[i] = y[None][0, i]")
    with pytest.raises(
        KernelError, match="on CUDA: CUDA has no code for an index of None, which adds a dimension; index"
    ):
        grown.ptx(ones(), ones(), capability=(9, 0))


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


@pytest.mark.parametrize("capability", [None, (9, 0)])
def test_rows_are_copied_in_a_loop(capability):
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    with pytest.raises(
        KernelError, match=r"kernels have no memory for a copy; write a loop .*\n.*\n +y\[i, :\] = x\[i, :\]\n"
    ):
        copies_a_row.ptx(x, y, capability=capability) if capability else launch(copies_a_row, 2, [x, y])
    assert not y.any()


@kernel
def copies_a_row(x, y):
    i = cuda.grid(1)
    y[i, :] = x[i, :]


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
    if x[0] > 0 and (v := x[0] + 1.0) > 0:
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


@pytest.mark.skipif(driver_count() > 0, reason="a CUDA device has a compute capability")
def test_a_compute_capability_that_no_device_has():
    with pytest.raises(
        DeviceError, match=r"'saxpy': capability .* there is none here; pass one, such as capability=\(9, 0\)"
    ):
        saxpy.ptx(ones(), ones(), 1.0)


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
