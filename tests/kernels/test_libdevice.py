"""The functions of numba.cuda.libdevice, on the CPU what they are on CUDA, and their derivatives on both."""

import itertools
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice, libdevicefuncs

import numbridge as nb
from adjoint_programs import declared
from emulated_cuda import emulated_cuda
from libdevice_references import EDGES, STORED, reference
from numbridge.kernels.arithmetic import cpu_libdevice
from numbridge.kernels.arithmetic.cpu_libdevice import signature
from numbridge.kernels.errors import KernelError, KernelUnsupportedError
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch

NAMES = sorted(name.removeprefix("__nv_") for name in libdevicefuncs.functions)
ROWS = 64
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1.5, 0.3, -0.7, 3.7, -7.25, 27.0, 1e-310, -1e-42, 5e-324, 1e308]
FLOATS += [-1.7976931348623157e308, 3.4028234663852886e38, math.inf, -math.inf, math.nan, 3e9, -3e9, 1e19, -1e10]
FLOATS += [2.0**31 - 0.5, 16777217.0, 1e-300, 2.0**-150, -(2.0**-1060), 1.0000000001, 0.99999999]
INTEGERS = [0, 1, -1, 2, 3, 7, -5, 2**31 - 1, -(2**31), 123456789, -987654321, 0x3210, 2**24 + 1, -(2**25) - 3]
LONG = [2**63 - 1, -(2**63), 1234567890123456789, -2345678901234567890, 2**40 + 1, 2**53 + 1, -(2**62) - 1]
TYPES = {"float32": np.float32, "float64": np.float64, "int16": np.int16, "int32": np.int32, "int64": np.int64}


def base_of(name):
    """Return the name under which values of a function are stored, or None."""
    base = name.removeprefix("fast_").replace("sincospi", "sinpi")
    return next((found for found in (base, base.removesuffix("f")) if found in STORED), None)


def points(name, generator):
    """Return arguments, one row for each call: stored ones, or ordinary, special and neighbouring numbers."""
    kinds = [str(kind) for kind in signature(name).arguments]
    base = base_of(name)
    if base is not None:
        rows = [row[:-1] for row in (*STORED[base], *EDGES[base])]
        return [
            tuple(TYPES[k](v) for k, v in zip(kinds, row, strict=True))
            for row in itertools.islice(itertools.cycle(rows), ROWS)
        ]
    columns = []
    for k, kind in enumerate(kinds):
        if kind.startswith("float"):
            special = generator.permutation(FLOATS) if k else FLOATS
            drawn = np.concatenate([special, generator.normal(size=ROWS) * generator.choice([0.5, 3, 40], ROWS)])[:ROWS]
        else:
            special = [v for v in INTEGERS + LONG if -(2 ** (int(kind[3:]) - 1)) <= v < 2 ** (int(kind[3:]) - 1)]
            special = generator.permutation(special) if k else special
            drawn = np.concatenate([special, generator.integers(-40, 40, ROWS)]).astype(np.int64)[:ROWS]
        columns.append([TYPES[kind](v) for v in drawn])
    return list(zip(*columns, strict=True))


def kernel_of(names):
    """Return a kernel that calls functions, with one column of arguments for each, and one of results."""
    lines, results, columns = ["def calls(x, v, y, w):", "    i = tid()"], [], [0, 0]
    for name in names:
        declared_as, given = signature(name), []
        for kind in declared_as.arguments:
            integer = str(kind).startswith("int")
            given.append(f"{kind}({'v' if integer else 'x'}[i, {columns[integer]}])")
            columns[integer] += 1
        made = [f"r{len(results) + k}" for k in range(len(declared_as.results))]
        lines.append(f"    {', '.join(made)} = libdevice.{name}({', '.join(given)})")
        for number, kind in zip(made, declared_as.results, strict=True):
            lines.append(f"    {'w' if str(kind).startswith('int') else 'y'}[i, {len(results)}] = {number}")
            results.append((name, kind))
    return declared("\n".join(lines), kernel, libdevice=libdevice, **TYPES), results


def called(names, rows):
    """Return arguments and memory for results of such a kernel."""
    columns = [[], []]
    for name in names:
        for k, kind in enumerate(signature(name).arguments):
            columns[str(kind).startswith("int")].append([row[k] for row in rows[name]])
    x = np.array(columns[0] or [[0.0] * ROWS], np.float64).T.copy()
    return x, np.array(columns[1] or [[0] * ROWS], np.int64).T.copy()


def agrees(found, wanted, kind, within):
    if wanted is None or (math.isnan(found) and math.isnan(wanted)):
        return True
    if str(kind).startswith("int"):
        return int(found) == int(wanted)
    rounded = TYPES[str(kind)](wanted)
    if found == rounded:
        return found != 0 or np.signbit(found) == np.signbit(rounded)
    if within == 0 or not (np.isfinite(found) and np.isfinite(rounded)):
        return False
    return abs(float(found) - float(wanted)) <= within * float(np.spacing(abs(rounded)))


def check(names, rows, results, y, w, looser=1):
    """Compare what a kernel has left with the references."""
    wrong = []
    for name in names:
        known = reference(name)
        columns = [c for c, (of, _) in enumerate(results) if of == name]
        for i, row in enumerate(rows[name]):
            plain = [int(v) if isinstance(v, np.integer) else float(v) for v in row]
            wanted = known.function(*plain)
            for c, one in zip(columns, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
                kind = results[c][1]
                found = (w if str(kind).startswith("int") else y)[i, c]
                if not agrees(found, one, kind, known.within * looser):
                    wrong.append((name, plain, found, one))
    assert not wrong, "\n".join(map(str, wrong))


GROUPS = [NAMES[k::6] for k in range(6)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
@np.errstate(all="ignore")
def test_values(names):
    generator = np.random.default_rng(7)
    rows = {name: points(name, generator) for name in names}
    made, results = kernel_of(names)
    x, v = called(names, rows)
    y, w = np.zeros((ROWS, len(results))), np.zeros((ROWS, len(results)), np.int64)
    with emulated_cuda():  # where nothing is compiled for CUDA beside what runs on the CPU
        launch(made, ROWS, [x, v, y, w])
    check(names, rows, results, y, w)


DIRECTED = [name for name in NAMES if re.fullmatch(r"(?:[df](?:add|sub|mul|div|rcp)|fmaf?)_r[dnuz]", name)]


def hard(kinds, generator):
    """Return numbers of any size whose sums, products and quotients are close to what can be represented."""
    single = str(kinds[0]) == "float32"
    kind, most, digits = (np.float32, 127, 23) if single else (np.float64, 1023, 52)
    drawn = generator.choice([1.0, 1.5, 2 - 2.0**-digits, 1 + 2.0**-digits, 1 + generator.random()], len(kinds))
    wide = generator.random() < 0.5
    exponents = generator.integers(*((-most - digits, most + 1) if wide else (-3, 4)), len(kinds))
    numbers = [kind(np.ldexp(d * generator.choice([-1, 1]), e)) for d, e in zip(drawn, exponents, strict=True)]
    if len(kinds) == 3 and generator.random() < 0.6:  # what is added takes nearly everything away
        numbers[2] = np.nextafter(-numbers[0] * numbers[1], kind(generator.choice([-np.inf, 0, np.inf])))
    if len(kinds) == 2 and generator.random() < 0.2:
        numbers[1] = -numbers[0]
    return tuple(numbers)


@np.errstate(all="ignore")
def test_rounding_in_a_direction_is_exact():
    generator = np.random.default_rng(11)
    made, results = kernel_of(DIRECTED)
    for _ in range(6):
        rows = {name: [hard(signature(name).arguments, generator) for _ in range(ROWS)] for name in DIRECTED}
        x, v = called(DIRECTED, rows)
        y, w = np.zeros((ROWS, len(results))), np.zeros((ROWS, len(results)), np.int64)
        with emulated_cuda():
            launch(made, ROWS, [x, v, y, w])
        check(DIRECTED, rows, results, y, w)


CONVERTED = [
    name
    for name in NAMES
    if re.fullmatch(r"(?:u?int|u?ll)2.*_r[duz]|double2float_r.|[df](?:sqrt|rcp)_r[dnuz]|u?sad", name)
]


@np.errstate(all="ignore")
def test_both_targets_round_alike():
    generator = np.random.default_rng(9)
    rows = {name: points(name, generator) for name in CONVERTED}
    made, results = kernel_of(CONVERTED)
    given = called(CONVERTED, rows)
    left = []
    with emulated_cuda() as emulation:
        for moved in (lambda array: array, emulation.on_device):
            left.append((np.zeros((ROWS, len(results))), np.zeros((ROWS, len(results)), np.int64)))
            launch(made, ROWS, [*map(moved, given), *map(moved, left[-1])])
    (y, w), (there, bits_there) = left
    np.testing.assert_array_equal(y, there)
    np.testing.assert_array_equal(np.signbit(y) & ~np.isnan(y), np.signbit(there) & ~np.isnan(y))
    np.testing.assert_array_equal(w, bits_there)


# Derivatives


def is_float(kind):
    return str(kind).startswith("float")


def is_differentiable(name):
    known = signature(name)
    return any(map(is_float, known.arguments)) and any(map(is_float, known.results))


ACTIVE = [name for name in NAMES if is_differentiable(name)]
# Where differences are taken, by what the names begin with; elsewhere no function of these has an end or a step.
PLACES = {
    **dict.fromkeys(("acosh",), (1.25, 3.5, 20.0)),
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), (0.3, -0.6, 0.9)),
    "erfcinv": (0.1, 0.7, 1.9),
    "normcdfinv": (0.1, 0.4, 0.9),
    "erfcx": (-0.9, 2.3, 15.0),
    "lgamma": (0.3, -2.6, 12.3),
    "tgamma": (0.3, -1.4, 4.3),
    "saturatef": (-0.4, 0.3, 1.7),
    **dict.fromkeys(("log", "fast_log", "y0", "y1", "yn", "pow", "fast_pow"), (0.8, 3.1, 9.7)),
    "": (0.8, 1.7, 5.3),
}


def places(name):
    return next(found for beginning, found in PLACES.items() if name.startswith(beginning))


def names_of(kind):
    return [name for name in ACTIVE if is_float32(name) == (kind == "float32")]


def is_float32(name):
    return any(str(k) == "float32" for k in signature(name).arguments)


def differentiated(kind, names):
    """Return a kernel that calls functions of a type at three places each, its arrays, and whose each column is."""
    columns = [(name, place) for name in names for place, k in enumerate(signature(name).arguments) if is_float(k)]
    lines, results = ["def calls(x, y):", "    i = tid()"], []
    for name in names:
        known = signature(name)
        given = [f"x[i, {columns.index((name, p))}]" if is_float(k) else "i + 1" for p, k in enumerate(known.arguments)]
        made = [f"r{len(results) + k}" for k in range(len(known.results))]
        lines.append(f"    {', '.join(made)} = libdevice.{name}({', '.join(given)})")
        for number, result in zip(made, known.results, strict=True):
            lines.append(f"    y[i, {len(results)}] = {number if is_float(result) else f'0 * {number}'}")
            results.append(name)
    x = np.array([[places(name)[i] * (1 + 0.45 * place) for name, place in columns] for i in range(3)], kind)
    return (
        declared("\n".join(lines), kernel, libdevice=libdevice),
        x,
        np.zeros((3, len(results)), kind),
        columns,
        results,
    )


KINDS = ("float64", "float32")


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives(kind):
    made, x, y, columns, results = differentiated(kind, names_of(kind))
    normal = np.random.default_rng(5).normal
    weights, direction = normal(size=y.shape).astype(kind), normal(size=x.shape).astype(kind)
    by_x = np.zeros_like(x)
    launch(made, 3, [x, y.copy()], adj_inputs=[by_x, weights.copy()], adjoint=True)

    def value(x):
        out = np.zeros_like(y)
        with emulated_cuda():
            launch(made, 3, [x, out])
        return out.astype(np.float64)

    step = 1e-6 if kind == "float64" else 2e-3
    for place in range(3):
        moved = np.array([of == place for _, of in columns])
        further, before = x + step * moved.astype(kind), x - step * moved.astype(kind)
        difference = (value(further) - value(before)) * weights
        for c in np.flatnonzero(moved):
            name = columns[c][0]
            own = [k for k, of in enumerate(results) if of == name]
            if name.startswith("double2float"):
                # A step in float32 is wider than that of the difference.
                np.testing.assert_allclose(by_x[:, c], weights[:, own[0]], rtol=1e-6)
                continue
            wanted = difference[:, own].sum(1) / (further[:, c].astype(float) - before[:, c].astype(float))
            rounding = np.abs(value(x))[:, own].max(1) * (1e-9 if kind == "float64" else 2e-4) + 1e-30
            relative, more = (1e-6, 0) if kind == "float64" else (1e-2, 2e-4)
            within = {"rtol": relative, "atol": rounding.max() + more}
            np.testing.assert_allclose(by_x[:, c], wanted, **within, err_msg=f"{name} by argument {place}")
    tangent = np.zeros_like(y)
    made.tangent(["x", "y"]).forall(3)(x, y.copy(), direction, tangent)
    np.testing.assert_allclose(
        (tangent * weights).sum(dtype=float),
        (by_x * direction).sum(dtype=float),
        rtol=1e-10 if kind == "float64" else 1e-4,
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_on_cuda(kind):
    # One of each kind: rounding in another direction has the same derivative.
    names = [name for name in names_of(kind) if not re.search(r"_r[nuz]$|^fast_(?!fdivide)", name)]
    made, x, y, columns, _ = differentiated(kind, names)
    weights = np.random.default_rng(6).normal(size=y.shape).astype(kind)
    here, there = np.zeros_like(x), np.zeros_like(x)
    with emulated_cuda() as emulation:
        launch(made, 3, [x, y.copy()], adj_inputs=[here, weights.copy()], adjoint=True)
        given = [[emulation.on_device(array) for array in (x, y.copy())]]
        given.append([emulation.on_device(array) for array in (there, weights.copy())])
        launch(made, 3, given[0], adj_inputs=given[1], adjoint=True)
    for c, (name, place) in enumerate(columns):
        within = 1e-12 if kind == "float64" else 4e-6
        np.testing.assert_allclose(there[:, c], here[:, c], rtol=within, err_msg=f"{name} by argument {place}")


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0)], ids=str)
def test_adjoints_compile_for_every_gpu(capability):
    names = [
        name for name in names_of("float64") if name in {*STORED, "powi", "ldexp", "frexp", "fmax", "fdim", "fma_rd"}
    ]
    made, x, y, _, _ = differentiated("float64", names)
    assert made.adjoint(["x", "y"]).cubin(x, y, x, y, capability=capability).startswith(b"\x7fELF")


def is_smooth(name):
    known = signature(name)
    return len(known.arguments) == len(known.results) == 1 and "_r" not in name


SMOOTH = [name for name in names_of("float64") if is_smooth(name)]


@nb.func
def power(x):
    return libdevice.pow(x, 0.5 * x) + libdevice.powi(x, 4)


@nb.func
def angle(x):
    return libdevice.atan2(x, 1.0 + x * x) * libdevice.hypot(x, 2.0 * x * x) * libdevice.fma_rd(x, x, x)


@nb.func
def waves(x):
    sine, cosine = libdevice.sincos(x)
    return libdevice.jn(3, x) * cosine + libdevice.yn(0, x) * sine


@nb.func
def pieces(x):
    fraction, _ = libdevice.frexp(x * x)
    rest, _ = libdevice.remquo(x * x, 0.7 + x)
    return fraction * x + rest * x + libdevice.ldexp(x * x, 3) + libdevice.modf(x * x)[0] * libdevice.copysign(x, -x)


@nb.func
def extremes(x):
    return libdevice.fdim(x * x, x) * x + libdevice.fmax(x * x, 0.5 * x) + libdevice.fmin(x * x, 0.5 * x) * x


COMPOSED = (power, angle, waves, pieces, extremes)


def test_second_derivatives():
    functions = [f"libdevice.{name}" for name in SMOOTH] + [function.__name__ for function in COMPOSED]
    lines = ["def calls(x, y):", "    i = tid()"]
    for k, function in enumerate(functions):
        lines.append(f"    y[i, {k}, 0] = nb.grad({function})(x[i, {k}])")
        lines.append(f"    y[i, {k}, 1] = nb.grad(nb.grad({function}))(x[i, {k}])")
    known = {function.__name__: function for function in COMPOSED}
    made = declared("\n".join(lines), kernel, libdevice=libdevice, nb=nb, **known)
    x = np.array([places(function.removeprefix("libdevice.")) for function in functions]).T.copy()
    y = np.zeros((3, len(functions), 2))

    def value(x):
        out = np.zeros_like(y)
        with emulated_cuda():
            launch(made, 3, [x, out])
        return out

    found, step = value(x), 1e-6
    wanted = (value(x + step)[..., 0] - value(x - step)[..., 0]) / (2 * step)
    for k, function in enumerate(functions):
        np.testing.assert_allclose(found[:, k, 1], wanted[:, k], rtol=1e-5, atol=1e-8, err_msg=function)


def test_gamma_functions_far_out():
    made = declared(
        "def calls(x, y):\n    i = tid()\n    y[i, 0] = nb.grad(libdevice.lgamma)(x[i])\n"
        "    y[i, 1] = nb.grad(nb.grad(libdevice.lgamma))(x[i])",
        kernel,
        libdevice=libdevice,
        nb=nb,
    )
    # Abramowitz and Stegun, tables 6.1 and 6.2 and 6.3.18; Euler's constant and pi squared over 6
    x = np.array([1.0, 0.5, 1e-8, 1e8, 1e200])
    euler, square = 0.5772156649015329, math.pi**2 / 6
    wanted = [(-euler, square), (-euler - 2 * math.log(2), 3 * square), (-1e8 - euler, 1e16 + square)]
    wanted += [(math.log(1e8) - 0.5e-8, 1e-8 + 0.5e-16), (math.log(1e200), 1e-200)]
    y = np.zeros((5, 2))
    launch(made, 5, [x, y])
    np.testing.assert_allclose(y, wanted, rtol=1e-13)


@kernel
def without_sign(x, y):
    i = tid()
    y[i] = libdevice.int_as_float(libdevice.float_as_int(x[i]) & 0x7FFFFFFF)


@kernel
def scaled_by_bits(x, z, y):
    i = tid()
    y[i] = x[i] * libdevice.int_as_float(libdevice.float_as_int(z[i]) & 0x7FFFFFFF) * libdevice.floorf(x[i])


def test_bits_have_no_derivative():
    x, y = np.array([-1.5], np.float32), np.zeros(1, np.float32)
    launch(without_sign, 1, [x, y])
    assert y[0] == 1.5
    with pytest.raises(
        KernelUnsupportedError, match=r"(?s)cuda\.libdevice\.float_as_int has no derivative: it reads the bits.*\^"
    ):
        without_sign.adjoint(["x", "y"]).forall(1)(x, y, np.zeros_like(x), np.ones_like(y))
    # Those of a number that no gradient is asked of are as good as any.
    by_x = np.zeros_like(x)
    scaled_by_bits.adjoint(["x", "y"]).forall(1)(x, np.float32([-3]), y, by_x, np.ones_like(y))
    assert by_x[0] == 3 * -2


def test_bits_within_a_gradient():
    @nb.func
    def size(x):
        return libdevice.int_as_float(libdevice.float_as_int(x) & 0x7FFFFFFF)

    @kernel
    def slope(x, y):
        i = tid()
        y[i] = nb.grad(size)(x[i])

    with pytest.raises(KernelUnsupportedError, match=r"float_as_int has no derivative"):
        launch(slope, 1, [np.ones(1, np.float32), np.zeros(1, np.float32)])


@nb.func
def size_by_hand(x):
    return libdevice.int_as_float(libdevice.float_as_int(x) & 0x7FFFFFFF)


@nb.func_grad(size_by_hand)
def slope_by_hand(x, adjoint):
    return adjoint * libdevice.copysignf(1.0, x)


@kernel
def sizes(x, y):
    i = tid()
    y[i] = size_by_hand(x[i]) * x[i]


def test_bits_behind_a_derivative_by_hand():
    x, by_x = np.array([-1.5, 2.5], np.float32), np.zeros(2, np.float32)
    sizes.adjoint(["x", "y"]).forall(2)(x, np.zeros_like(x), by_x, np.ones_like(x))
    np.testing.assert_array_equal(by_x, 2 * np.abs(x))


def test_conversions_of_arguments():
    @kernel
    def converted(x, n, y):
        i = tid()
        y[i, 0] = libdevice.cosf(x[i])  # of float32
        y[i, 1] = libdevice.cos(n[i])
        y[i, 2] = cuda.libdevice.sqrt(2)
        y[i, 3] = libdevice.umax(n[i], 7)
        rest, whole = libdevice.modf(x[i])
        y[i, 4] = rest * whole

    x, n, y = np.array([2.75]), np.array([-1]), np.zeros((1, 5))
    launch(converted, 1, [x, n, y])
    wanted = [np.cos(np.float32(2.75)), math.cos(1), math.sqrt(2), -1, 1.5]
    np.testing.assert_allclose(y[0], wanted, rtol=1e-7)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("libdevice.cosf(x[i], x[i])", "cosf"),
        ("libdevice.cosf(x=x[i])", "cuda.libdevice.cosf takes its arguments by position"),
    ],
)
def test_mistakes(call, text):
    made = declared(f"def calls(x):\n    i = tid()\n    x[i] = {call}", kernel, libdevice=libdevice)
    with pytest.raises(KernelError, match=text):
        launch(made, 1, [np.ones(1)])
    if "x=" not in call:
        with pytest.raises(KernelError, match=r"cuda\.libdevice\.cosf takes 1 argument, and is given 2"):
            made.adjoint(["x"]).forall(1)(np.ones(1), np.ones(1))


def test_what_another_numba_cuda_may_have():
    with pytest.raises(KernelUnsupportedError, match=r"cuda\.libdevice\.no_such exists only on CUDA; launch"):
        cpu_libdevice.function("no_such")


USES_NONE = """
import sys
import numpy as np
from numba import cuda
import numbridge as nb
@nb.kernel
def cubed(x, y):
    i = nb.tid()
    y[i] = cuda.fma(x[i], x[i] * x[i], cuda.popc(3))
x = np.ones(2)
nb.launch(cubed, 2, [x, x.copy()])
cubed.adjoint(["x", "y"]).forall(2)(x, x.copy(), np.zeros(2), np.ones(2))
print(*(name for name in sys.modules if name.startswith("numbridge") and "libdevice" in name or "bessel" in name))
"""


def test_nothing_is_imported_for_kernels_that_call_none(tmp_path):
    path = tmp_path / "uses_none.py"
    path.write_text(USES_NONE)
    found = subprocess.run([sys.executable, str(path)], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []
