"""Functions of `numba.cuda.fp16` and `numba.cuda.bf16`: on the CPU the values that CUDA defines, with derivatives on both."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from adjoint_programs import declared
from emulated_cuda import emulated_cuda, on_both
from numbridge.kernels.arithmetic import cpu_halves
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch

KINDS = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
NAMES = {
    module: sorted(name for name in cpu_halves._table() if name.startswith("h") and "2float" not in name)
    for module in KINDS
}
UNARY = {
    **{
        f"h{name}": getattr(np, name)
        for name in ("trunc", "ceil", "floor", "rint", "sqrt", "log", "log2", "log10", "cos")
    },
    **{f"h{name}": getattr(np, name) for name in ("sin", "exp", "exp2", "tanh")},
    "hneg": np.negative,
    "habs": np.abs,
    "hrcp": np.reciprocal,
    "hrsqrt": lambda x: 1 / np.sqrt(x),
    "hexp10": lambda x: np.power(10.0, x),
    "htanh_approx": np.tanh,
    "hisnan": np.isnan,
    "hisinf": lambda x: np.where(np.isinf(x), np.sign(x), 0),
}


def saturated(x):
    return np.where(x > 0, np.minimum(x, 1), 0)


def unordered(compare):
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


def ordered_zeros(choose, first):
    def chosen(a, b):
        both = (a == 0) & (b == 0)
        return np.where(both, np.where(np.signbit(a) == first, a, b), choose(a, b))

    return chosen


BINARY = {
    **{
        f"h{name}{end}": f
        for name, f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))
        for end in ("", "_rn")
    },
    "hadd_sat": lambda a, b: saturated(a + b),
    "hsub_sat": lambda a, b: saturated(a - b),
    "hmul_sat": lambda a, b: saturated(a * b),
    "hdiv": np.divide,
    "hmax": ordered_zeros(np.fmax, False),
    "hmin": ordered_zeros(np.fmin, True),
    "hmax_nan": ordered_zeros(np.maximum, False),
    "hmin_nan": ordered_zeros(np.minimum, True),
    "hne": lambda a, b: (a < b) | (a > b),
    "hneu": np.not_equal,
}
for name, compare in (
    ("eq", np.equal),
    ("ge", np.greater_equal),
    ("gt", np.greater),
    ("le", np.less_equal),
    ("lt", np.less),
):
    BINARY |= {f"h{name}": compare, f"h{name}u": unordered(compare)}
TERNARY = ("hfma", "hfma_sat", "hfma_relu")


def calling(module, names):
    """Return a kernel that calls functions, one for each column of what it leaves."""
    lines = []
    for k, name in enumerate(names):
        given = ("x[i]", "y[i]", "z[i]")[: cpu_halves.signature(f"{module}_{name}").count]
        lines.append(
            f"    out[i, {k}] = cuda.{module}.{name if hasattr(cpu(module), name) else '__' + name}({', '.join(given)})"
        )
    return declared("\n".join(["def calls(x, y, z, out):", "    i = tid()", *lines]), kernel, cuda=cuda)


def cpu(module):
    return __import__(f"numba.cuda.{module}", fromlist=[module])


def called(module, names, *columns):
    x, y, z = (*columns, *(columns[:1] * (3 - len(columns))))
    out = np.zeros((len(x), len(names)), np.float32)
    with emulated_cuda():  # where nothing is compiled for CUDA beside what runs on the CPU: see below
        launch(calling(module, names), len(x), [x, y, z, out])
    return out.T


def once(wide, kind):
    """Return numbers rounded once: ml_dtypes goes by float32, which has an odd last bit here where it is not exact."""
    near = wide.astype(np.float32)
    bits = near.view(np.int32)
    odd = np.where(np.abs(near) > np.abs(wide), bits - 1, bits) | 1
    near = np.where(np.isfinite(wide) & (near != wide), odd, bits).astype(np.int32).view(np.float32)
    return near.astype(kind).astype(np.float32)


def compare_rounded(found, wanted, kind, name):
    wanted = once(np.asarray(wanted, np.float64), kind)
    np.testing.assert_array_equal(found, wanted, err_msg=name)
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[there]), np.signbit(wanted[there]), err_msg=name)


@pytest.mark.parametrize("module", KINDS)
@np.errstate(all="ignore")
def test_functions_of_one_number(module):
    kind = KINDS[module]
    x = np.arange(1 << 16, dtype=np.uint16).view(kind)
    for name, column in zip(UNARY, called(module, [*UNARY], x), strict=True):
        compare_rounded(column, UNARY[name](x.astype(np.float64)), kind, name)


@pytest.mark.parametrize("module", KINDS)
@np.errstate(all="ignore")
def test_functions_of_two_numbers(module):
    kind, generator = KINDS[module], np.random.default_rng(5)
    special = np.array(
        [0.0, -0.0, 1, -1, 0.5, np.inf, -np.inf, np.nan, np.finfo(np.float16).max, 3e-8, 1e38, -1e-39], kind
    )
    pairs = np.stack(np.meshgrid(special, special), -1).reshape(-1, 2)
    drawn = generator.integers(0, 1 << 16, (4000, 2), np.uint16).view(kind)
    near = generator.normal(size=(2000, 2)).astype(kind)
    x, y = np.concatenate([pairs, drawn, near]).T.copy()
    wide = x.astype(np.float64), y.astype(np.float64)
    for name, column in zip(BINARY, called(module, [*BINARY], x, y), strict=True):
        compare_rounded(column, BINARY[name](*wide), kind, name)


def nearest(exact, kind):
    """Return the number of a type that is nearest to a fraction, of two the even one."""
    guess = np.array(float(exact), kind)
    close = (guess.view(np.uint16)[()] + np.arange(-2, 3)).astype(np.uint16).view(kind)
    return min(close, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint16)) & 1))


@pytest.mark.parametrize("module", KINDS)
def test_products_and_sums_are_rounded_once(module):
    kind, generator = KINDS[module], np.random.default_rng(6)
    x, y, z = (generator.normal(size=500).astype(kind) for _ in range(3))
    # Halfway between neighbours but for what float64 loses, in bfloat16
    tiny = 2.0**-24 if module == "fp16" else 2.0**-100
    x[:4], y[:4], z[:4] = [7, 7, -7, -7], [37, 37, 37, 37], [tiny, -tiny, tiny, -tiny]
    if module == "fp16":
        x[:4], y[:4] = [3, 3, -3, -3], [683, 683, 683, 683]
    found = called(module, TERNARY, x, y, z)
    exact = [
        nearest(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), kind)
        for a, b, c in zip(x, y, z, strict=True)
    ]
    exact = np.array([float(e) for e in exact])
    assert {*found[0, :4]} == ({2049 - 1, 2050, -2048, -2050} if module == "fp16" else {258, 260, -258, -260})
    for column, wanted in zip(found, (exact, saturated(exact), np.maximum(exact, 0)), strict=True):
        np.testing.assert_array_equal(column, wanted)


def test_special_products_and_sums():
    x, y, z = (np.array(column, np.float16) for column in ([np.inf, 1, np.nan, -1], [0, 1, 1, 0], [1, np.inf, 0, 0]))
    found = called("fp16", TERNARY, x, y, z)
    np.testing.assert_array_equal(found[0], [np.nan, np.inf, np.nan, 0])
    np.testing.assert_array_equal(found[1], [0, 1, 0, 0])
    np.testing.assert_array_equal(found[2], [np.nan, np.inf, np.nan, 0])


def test_arguments_of_other_types_are_rounded_once():
    @kernel
    def converted(x, n, y):
        i = tid()
        y[i, 0] = cuda.fp16.hadd(x[i], 1)
        y[i, 1] = cuda.fp16.hneg(n[i])
        y[i, 2] = cuda.bf16.float32_to_bfloat16(x[i])
        y[i, 3] = cuda.fp16.hadd(x[i], x[i]) + x[i]  # the sum is one of float64

    # Just above the middle of two neighbours: rounded to float32 first, it would go to the even one.
    x, n = np.array([1 + 2.0**-11 + 2.0**-40]), np.array([2049])
    y = np.zeros((1, 4))
    with emulated_cuda():
        launch(converted, 1, [x, n, y])
    once = float(np.float16(1 + 2.0**-10))
    assert y[0].tolist() == [2.0, -2048, 1.0, 2 * once + x[0]]


@pytest.mark.parametrize("module", KINDS)
def test_they_compile_for_cuda(module):
    x = np.ones(2, KINDS[module])
    made = calling(module, NAMES[module])
    assert made.cubin(x, x.astype(np.float32), x.astype(np.float64), np.zeros((2, 99), np.float32), capability=(9, 0))


SMOOTH = {
    **{
        name: (lambda x, y, z, f=UNARY[name]: f(x))
        for name in ("hneg", "habs", "hsqrt", "hlog", "hlog2", "hlog10", "hcos")
    },
    **{
        name: (lambda x, y, z, f=UNARY[name]: f(x))
        for name in ("hsin", "hexp", "hexp2", "htanh", "hrcp", "hrsqrt", "hexp10")
    },
    **{
        name: (lambda x, y, z, f=BINARY[name]: f(x, y))
        for name in ("hadd", "hsub_rn", "hmul", "hdiv", "hmax", "hmin_nan")
    },
    "hmul_sat": lambda x, y, z: saturated(x * y),
    "hfma": lambda x, y, z: x * y + z,
    "hfma_sat": lambda x, y, z: saturated(x * y + z),
    "hfma_relu": lambda x, y, z: np.maximum(x * y + z, 0),
}


def check_slopes(adjoint, kind):
    """Compare what an adjoint adds with differences of the functions themselves."""
    generator, count = np.random.default_rng(8), len(SMOOTH)
    x, y, z = (generator.uniform(0.3, 2, 40).astype(kind) for _ in range(3))
    z[::2] = -z[::2]
    given = [x.astype(np.float32), y.astype(np.float32), z.astype(np.float64)]
    weights = generator.normal(size=(40, count)).astype(np.float32)
    found = [np.zeros_like(g) for g in given]
    adjoint.forall(40)(*given, np.zeros_like(weights), *found, weights.copy())
    wide = [value.astype(np.float64) for value in (x, y, z)]
    for k, slope in enumerate(found):
        shifts = [[w + sign * 1e-6 * (j == k) for j, w in enumerate(wide)] for sign in (1, -1)]
        above, below = (np.stack([f(*at) for f in SMOOTH.values()], 1) for at in shifts)
        np.testing.assert_allclose(slope, ((above - below) / 2e-6 * weights).sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("module", KINDS)
def test_derivatives(module):
    made = calling(module, [*SMOOTH])
    check_slopes(made.adjoint(["x", "y", "z", "out"]), KINDS[module])


def test_an_adjoint_compiles_for_cuda():
    made = calling("fp16", ["hexp", "hfma_relu", "hmul_sat"])
    x, out = np.ones(2, np.float32), np.zeros((2, 3), np.float32)
    assert made.adjoint(["x", "y", "z", "out"]).cubin(x, x, x, out, x, x, x, out, capability=(9, 0))


def test_a_gradient_within_a_kernel():
    @kernel
    def slopes(x, y):
        i = tid()
        y[i] = nb.grad(cuda.fp16.hsin)(x[i])

    x = np.linspace(0, 1, 5).astype(np.float32)
    y = np.zeros_like(x)
    with emulated_cuda():
        launch(slopes, 5, [x, y])
    np.testing.assert_allclose(y, np.cos(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("cuda.fp16.hadd(x[i])", r"fp16.hadd"),
        ("cuda.fp16.hadd(a=x[i], b=x[i])", r"cuda\.fp16\.hadd takes its arguments by position"),
        ("cuda.fp16.atomicAdd(x, x[i])", r"(?s)cuda\.fp16\.atomicAdd exists only on CUDA.*\^"),
        ("cuda.fp16.hadd(x[i], 1j)", r"hadd"),
    ],
)
def test_mistakes(call, message):
    made = declared(f"def calls(x):\n    i = tid()\n    x[i] = {call}", kernel, cuda=cuda)
    with pytest.raises(nb.KernelError, match=message):
        launch(made, 1, [np.ones(1, np.float32)])


def test_the_module_needs_no_import(run_python, tmp_path):
    (tmp_path / "sums.py").write_text(
        "import numpy as np\nfrom numba import cuda\nimport numbridge as nb\n\n\n@nb.kernel\ndef sums(x):\n    i = nb.tid()\n"
        "    x[i] = cuda.fp16.hadd(x[i], x[i])\n\n\nx = np.ones(2, np.float16)\nnb.launch(sums, 2, [x])\nprint(x.tolist())\n"
    )
    assert run_python(f"import runpy; runpy.run_path({str(tmp_path / 'sums.py')!r})").strip() == "[2.0, 2.0]"


@kernel
def rounded(x, y):
    i = tid()
    half, short = np.float16(x[i]), nb.bfloat16(x[i])
    y[i, 0] = half
    y[i, 1] = short
    y[i, 2] = half * half  # of float32


def test_conversions_round_to_16_bits():
    x = np.array([1.0009, -3.7e-6, 70000, 3.14159, np.inf, 2049])
    here, there = on_both(rounded, 6, [x, np.zeros((6, 3))])
    with np.errstate(over="ignore"):
        half, short = x.astype(np.float16).astype(np.float32), x.astype(nb.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(here, np.stack([half, short, half * half], 1))
    np.testing.assert_array_equal(there, here)
    by_x = np.zeros(6)
    rounded.adjoint(["x", "y"]).forall(6)(x, np.zeros((6, 3)), by_x, np.ones((6, 3)))
    np.testing.assert_array_equal(by_x, 2 + 2 * half)
