"""Gradients of functions within kernels against the adjoints of kernels that call the functions, and differentiated again."""

from __future__ import annotations

import math
import os

import numba
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numba import cuda

import numbridge as nb
from adjoint_as_python import check_directions, oracle, run_adjoint
from adjoint_programs import FLOATS, ScratchWriter, Writer, arguments, declared
from emulated_cuda import emulated_cuda
from numbridge.kernels.adjoint import function_gradients

FUNCTIONS = int(os.environ.get("NUMBRIDGE_FUNCTION_GRADIENTS", "25"))


@nb.func
def bent(a, b):
    v = nb.vec3d(a, b, a * b)
    if v[0] > v[1]:
        v[2] = v[2] + math.sin(a)
        return nb.dot(v, v) * v[1] * 0.1
    return v[2] / (1.0 + nb.length_sq(v))


@nb.func
def guided(a, b):
    return a * a * b


@nb.func_grad(guided)
def guided_by_hand(a, b, cotangent):
    return 2.0 * a * b * cotangent, a * a * cotangent


class FunctionWriter(Writer):
    """Writes functions of numbers that read arrays and return a number."""

    def real(self, depth: int = 2) -> str:
        if depth and self.pick(8) == 0:
            return f"{('bent', 'guided')[self.pick(2)]}({self.real(depth - 1)}, {self.real(depth - 1)})"
        return super().real(depth)

    def _store(self, depth: int, in_loop: bool, level: int) -> None:
        self._float(depth, in_loop, level)

    def _atomic(self, depth: int, in_loop: bool, level: int) -> None:
        self._float(depth, in_loop, level)

    def _augment(self, depth: int, in_loop: bool, level: int) -> None:
        self.line(depth, f"{FLOATS[self.pick(3)]} {('+=', '-=')[self.pick(2)]} {self.bounded()}")

    def _return(self, depth: int, in_loop: bool, level: int) -> None:
        self._jump(depth, f"return {self.bounded()}")

    def program(self) -> str:
        self.line(0, "def generated(s, a, x, y, index, i, n):")
        for text in ("t = a * x[1]", "u = 0.5", "m = i", "p = index[i]"):
            self.line(1, text)
        self.body()
        self.line(1, f"return s * t + math.sin(u) * y[i, 0] + {self.real(1)}")
        return "\n".join(self.lines) + "\n"

    def body(self) -> None:
        loops = self.pick(2)
        for _ in range(1 + self.pick(3)):
            # Where there is no loop, every function is reversed.
            self.statement(1, False, 3) if loops else self._if(1, False, 1)


class ScratchFunctionWriter(FunctionWriter, ScratchWriter):
    """The same with arrays of the thread's own."""

    def body(self) -> None:
        for array in "cd":
            self.line(1, f"{array} = cuda.local.array(4, float64)")
            self.line(1, f"for j in range(4):\n        {array}[j] = 0.0")
        self.line(1, "for k in range(n):")
        for _ in range(1 + self.pick(3)):
            self.statement(2, True, 1)
        self.line(1, "s = s + c[1] * 0.3")


GRADIENTS = """
def gradients(x, y, z, index, a, n):
    i = tid()
    by_s, by_a, _, _, _, _, _ = grad(f)(x[i], a, x, y, index, i, n)
    z[i] = by_s
    y[i, 3] = by_a
"""
# Here the first argument is another number than what the function reads of `x`.
APART = """
def apart(s, x, y, z, index, a, n):
    i = tid()
    z[i] = f(s, a, x, y, index, i, n)
"""


@settings(
    max_examples=FUNCTIONS,
    deadline=None,
    derandomize=FUNCTIONS == 25,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(st.randoms(use_true_random=False), st.integers(0, 1000), st.booleans())
def test_random_functions(random, seed, scratch):
    writer = (ScratchFunctionWriter if scratch else FunctionWriter)(random.randrange)
    f = declared(writer.program(), nb.func, bent=bent, guided=guided, nb=nb)
    gradients, apart = declared(GRADIENTS, f=f, grad=nb.grad), declared(APART, f=f)
    given = arguments(seed)
    found = oracle(gradients, (2,), given)
    assume(all(np.isfinite(part).all() for part in found))
    x, y, _, *rest = given
    for i in range(2):
        by = {"z": np.eye(2)[i]}
        run_adjoint(apart, (2,), [x[i], x, y, np.zeros(2), *rest], by, ("s", "z", "a"))
        assert np.allclose([found[2][i], found[1][i, 3]], [by["s"], by["a"]], rtol=1e-9, atol=1e-12)
    check_directions(gradients, 2, *given, count=1)


STIFFNESS = 3.0
shape_of = np.array([0.5, 1.5, 2.5])


@nb.func
def potential(r, scale=2.0):
    return scale * STIFFNESS * (1.0 / r**4 - 1.0 / r**2)


@numba.njit
def swollen(a):
    total = 0.0
    for j in range(3):
        total += math.sin(a * shape_of[j])
    return total


@cuda.jit(device=True)
def declared_for_cuda(a, b):
    return a * b + math.exp(a)


@nb.func
def energy(v, w, k):
    d = v - w
    if nb.length_sq(d) < 1.0:
        return 0.5 * k * nb.dot(d, d)
    return k * (nb.length(d) - 0.5)


@nb.func
def horner(x, coefficients):
    scratch = cuda.local.array(2, nb.float64)
    scratch[1] = 0.0
    for j in range(len(coefficients)):
        scratch[j % 2] = scratch[(j + 1) % 2] * x + coefficients[j]
    return scratch[(len(coefficients) + 1) % 2]


@nb.func
def of_matrix(m, v):
    return nb.dot(m @ v, v) + nb.determinant(m)


@nb.func
def checked(a):
    assert a > -10.0
    return a * a


@nb.func
def slope(a):
    return nb.grad(guided)(a, a)[0]


@nb.func
def with_hand(a):
    return a * 5.0


@nb.func_grad(with_hand)
def with_hand_grad(a, cotangent):
    # A derivative by hand may be made of gradients, of other functions too.
    return nb.grad(checked)(a) * cotangent


@nb.kernel
def numbers(x, y):
    i = nb.tid()
    a = x[i]
    by_r, _ = nb.grad(potential)(a, scale=1.5)
    y[i, 0] = by_r
    y[i, 1] = nb.grad(swollen)(a)
    y[i, 2] = nb.grad(declared_for_cuda)(a, 2.0 * a)[0]
    y[i, 3] = nb.grad(math.tan)(a) + nb.grad(np.sinh)(a) + nb.grad(nb.sin)(a) + nb.grad(abs)(-a)
    g = nb.grad(nb.grad(checked))
    y[i, 4] = g(a) + nb.grad(nb.grad(nb.grad(math.sin)))(a)
    y[i, 5] = nb.grad(slope)(a)
    y[i, 6] = nb.grad(with_hand)(a)
    by_a, by_b = nb.grad(max)(a, 0.7)
    y[i, 7] = by_a - by_b


def expected_numbers(x):
    b = shape_of
    return np.stack(
        [
            1.5 * STIFFNESS * (-4 / x**5 + 2 / x**3),
            (b * np.cos(x[:, None] * b)).sum(1),
            2 * x + np.exp(x),
            1 / np.cos(x) ** 2 + np.cosh(x) + np.cos(x) - 1,
            2 - np.cos(x),
            # The derivative by hand of `guided` by its first argument, twice the product, of equal arguments
            4 * x,
            2 * x,
            np.where(x >= 0.7, 1.0, -1.0),
        ],
        axis=1,
    )


@nb.kernel
def elements(v, w, k, m, by_v, by_w, by_k, by_m):
    i = nb.tid()
    a, b, by_k[i] = nb.grad(energy)(v[i], w[i], k[i])
    by_v[i], by_w[i] = a, b
    by_m[i], _ = nb.grad(of_matrix)(m[i], v[i])


@nb.kernel
def polynomial(x, coefficients, y):
    i = nb.tid()
    by_x, _ = nb.grad(horner)(x[i], coefficients)
    y[i] = by_x


X = np.linspace(0.3, 1.1, 9)
COEFFICIENTS = np.array([0.5, -1.0, 2.0, 0.3])


def test_numbers():
    y = np.zeros((9, 8))
    nb.launch(numbers, 9, [X], [y])
    assert np.allclose(y, expected_numbers(X), rtol=1e-12)


@nb.kernel
def elements_of_float32(v, k, by_v):
    i = nb.tid()
    by_v[i], _, _ = nb.grad(energy)(v[i], nb.vec3(0.5, 0.25, 0.125), k)


def float32_arguments():
    v = np.random.default_rng(3).normal(size=(5, 3))
    return nb.array(v, dtype=nb.vec3), np.float32(1.5), nb.zeros(5, dtype=nb.vec3)


def test_of_float32():
    x, y = X.astype(np.float32), np.zeros((9, 8), np.float32)
    nb.launch(numbers, 9, [x], [y])
    assert np.allclose(y, expected_numbers(X), rtol=1e-5)
    # What Numba compiles by itself has float64 literals; nothing else is computed in float64.
    found = elements_of_float32.explain(*float32_arguments())
    assert not found.float64_lines, found


def element_arguments():
    random = np.random.default_rng(3)
    v, w = (nb.array(random.normal(size=(5, 3)), dtype=nb.vec3d, requires_grad=True) for _ in range(2))
    m = nb.array(random.normal(size=(5, 3, 3)), dtype=nb.mat33d, requires_grad=True)
    k = nb.array(random.uniform(1, 2, 5), requires_grad=True)
    kinds = (nb.vec3d, nb.vec3d, nb.float64, nb.mat33d)
    return [v, w, k, m], [nb.zeros(5, dtype=kind, requires_grad=True) for kind in kinds]


def test_elements():
    inputs, outputs = element_arguments()
    v, w, k, m = inputs
    nb.launch(elements, 5, inputs, outputs)
    for function, arrays, found in ((energies, (v, w, k), outputs[:3]), (of_matrices, (m, v), outputs[3:])):
        e = nb.zeros(5, dtype=nb.float64, requires_grad=True)
        with nb.Tape() as tape:
            nb.launch(function, 5, [*arrays], [e])
        tape.backward(grads={e: np.ones(5)})
        for argument, gradient in zip(arrays, found, strict=False):
            assert np.allclose(argument.grad.numpy(), gradient.numpy(), rtol=1e-12)
        tape.zero()


def test_elements_differentiated_again():
    inputs, outputs = element_arguments()
    random = np.random.default_rng(4)
    cotangents = [random.normal(size=o.numpy().shape) for o in outputs]
    directions = [random.normal(size=a.numpy().shape) for a in inputs]
    with nb.Tape() as tape:
        nb.launch(elements, 5, inputs, outputs)
    tape.backward(grads=dict(zip(outputs, cotangents, strict=True)))
    found = sum((a.grad.numpy() * d).sum() for a, d in zip(inputs, directions, strict=True))
    ends = []
    for sign in (1, -1):
        for array, direction in zip(inputs, directions, strict=True):
            array.numpy()[:] += sign * 1e-6 * direction
        nb.launch(elements, 5, inputs, outputs)
        ends.append(sum((o.numpy() * c).sum() for o, c in zip(outputs, cotangents, strict=True)))
        for array, direction in zip(inputs, directions, strict=True):
            array.numpy()[:] -= sign * 1e-6 * direction
    assert np.isclose(found, (ends[0] - ends[1]) / 2e-6, rtol=1e-6)


@nb.kernel
def energies(v, w, k, out):
    i = nb.tid()
    out[i] = energy(v[i], w[i], k[i])


@nb.kernel
def of_matrices(m, v, out):
    i = nb.tid()
    out[i] = of_matrix(m[i], v[i])


def test_local_arrays_and_every_order():
    op = nb.torch_op(polynomial, outputs="y", launch_dims=lambda x, coefficients: x.shape[0])
    x = torch.tensor(X[:4], requires_grad=True)
    coefficients = torch.tensor(COEFFICIENTS, requires_grad=True)
    powers = np.polyder(COEFFICIENTS)
    assert np.allclose(op(x, coefficients).detach().numpy(), np.polyval(powers, X[:4]))
    assert torch.autograd.gradcheck(op, (x, coefficients))
    assert torch.autograd.gradgradcheck(op, (x, coefficients))


@nb.func
def relaxed(m, v, k):
    kept = cuda.local.array(3, nb.float64)
    kept[0] = 0.3
    for j in range(3):
        v = m @ v / (1.0 + nb.length(v))
        kept[j] = v[0] * kept[0] + k
        if kept[j] > 1.4:
            break
    return nb.dot(v, v) + kept[0] * k


def relaxations(most):
    @nb.kernel
    def made(m, v, k, by_m, by_v):
        i = nb.tid() + 0 * most  # another program for each, to what is kept on disk
        by_m[i], by_v[i], _ = nb.grad(relaxed)(m[i], v[i], k[i])

    return made


def test_components_one_after_the_other(monkeypatch):
    random = np.random.default_rng(5)
    m, v, k = random.uniform(0.2, 1, (3, 2, 2)), random.normal(size=(3, 2)), random.normal(size=3) * 0.3
    kinds, found = (nb.mat22d, nb.vec2d, nb.float64), []
    for most in (10**9, 0):
        monkeypatch.setattr(function_gradients, "_MOST_UNROLLED", most)
        kernel = relaxations(most)
        given = [nb.array(a, dtype=kind, requires_grad=True) for a, kind in zip((m, v, k), kinds, strict=True)]
        made = [nb.zeros(3, dtype=kind, requires_grad=True) for kind in kinds[:2]]
        with nb.Tape() as tape:
            nb.launch(kernel, 3, given, made)
        tape.backward(grads={made[0]: np.ones((3, 2, 2)), made[1]: np.full((3, 2), 0.5)})
        found.append([a.numpy() for a in made] + [a.grad.numpy() for a in given])
        assert ("direction_1 in range(" in kernel.explain(*given, *made).source) == (most == 0)
    for unrolled, looped in zip(*found, strict=True):
        assert np.any(unrolled) and np.allclose(unrolled, looped, rtol=1e-9)


@nb.func
def of_thread(a, values):
    return a * a * values[nb.tid()]


@nb.kernel
def tiles(x, y):
    i = nb.tid()
    tile = cuda.shared.array(3, nb.float64)
    total = 0  # which becomes a float in the loop
    for j in range(3):
        by_x, _ = nb.grad(horner)(x[i] * j, x)
        total += by_x
    tile[cuda.threadIdx.x] = total
    cuda.syncthreads()
    y[i] = nb.grad(of_thread)(tile[2 - cuda.threadIdx.x], x)[0]


def expected_tiles(x):
    slope = np.polyder(x)
    totals = np.polyval(slope, np.multiply.outer(np.arange(3), x)).sum(0)
    return 2 * totals[::-1] * x


def test_in_blocks_and_loops():
    x, y = X[:3].copy(), np.zeros(3)
    tiles[1, 3](x, y)
    assert np.allclose(y, expected_tiles(x))
    assert tiles.explain(x, y).source.count("_nb_local_array(") == 2  # and its tangent
    with emulated_cuda() as emulation:
        z = np.zeros(3)
        tiles[1, 3](emulation.on_device(x), emulation.on_device(z))
        assert np.allclose(z, y)
    direction, step = np.array([0.3, -0.5, 0.7]), 1e-6
    by_x, by_y = np.zeros(3), np.array([1.0, -2.0, 0.5])
    tiles.adjoint(["x", "y"]).forall(3, 3)(x, y, by_x, by_y.copy())
    ends = [(expected_tiles(x + sign * step * direction) * by_y).sum() for sign in (1, -1)]
    assert np.isclose((by_x * direction).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-7)


def test_derivatives_of_numbers():
    op = nb.torch_op(
        numbers, outputs="y", launch_dims=lambda x: x.shape[0], output_dims=lambda x: {"y": (x.shape[0], 8)}
    )
    x = torch.tensor(X[:3], requires_grad=True)
    assert torch.autograd.gradcheck(op, (x,)) and torch.autograd.gradgradcheck(op, (x,))


def test_globals_are_looked_up_again(monkeypatch):
    monkeypatch.setitem(globals(), "STIFFNESS", 7.0)
    test_numbers()
    monkeypatch.undo()
    test_numbers()


def test_a_derivative_by_hand_that_is_entered_later_is_used():
    @nb.func
    def later(a):
        return a * a

    @nb.kernel
    def slopes(x, y):
        i = nb.tid()
        y[i] = nb.grad(later)(x[i])

    y = np.zeros(9)
    nb.launch(slopes, 9, [X], [y])
    assert np.allclose(y, 2 * X)

    @nb.func_grad(later)
    def by_hand(a, cotangent):
        return 11.0 * cotangent

    nb.launch(slopes, 9, [X], [y])
    assert (y == 11).all()


def test_assertions_of_the_function_end_the_launch():
    @nb.kernel
    def slopes(x, y):
        i = nb.tid()
        y[i] = nb.grad(checked)(x[i])

    with pytest.raises(nb.KernelError, match="raised an exception"):
        nb.launch(slopes, 9, [X - 20.0], [np.zeros(9)])


def test_on_an_emulated_device():
    with emulated_cuda() as emulation:
        y = np.zeros((9, 8))
        numbers.forall(9)(emulation.on_device(X), emulation.on_device(y))
        assert np.allclose(y, expected_numbers(X), rtol=1e-12)
        y = np.zeros(9)
        polynomial.forall(9)(emulation.on_device(X), emulation.on_device(COEFFICIENTS), emulation.on_device(y))
        assert np.allclose(y, np.polyval(np.polyder(COEFFICIENTS), X))
        x, by_x, by_y = X.copy(), np.zeros(9), np.ones(9)
        given = [x, COEFFICIENTS, y, by_x, by_y]
        polynomial.adjoint(["x", "y"]).forall(9)(*map(emulation.on_device, given))
        assert np.allclose(by_x, np.polyval(np.polyder(COEFFICIENTS, 2), X))


# Functions that are passed to others


@nb.func
def solved(function, target, x):
    slope = nb.grad(function)
    for _ in range(25):
        x -= (function(x) - target) / slope(x)
    return x


@nb.func
def by_way_of(function, target, x):
    return solved(function, target, x)


@nb.func
def curvature(function, x):
    return nb.grad(nb.grad(function))(x)


@nb.func
def slope_sum(first, second, x):
    return nb.grad(first)(x) + 10.0 * nb.grad(second)(x)


@nb.func
def cubic(a):
    return a * a * a + STIFFNESS * a


@numba.njit
def hyperbolic(a):
    return math.sinh(a)


@nb.kernel
def roots_of(x, y):
    i = nb.tid()
    y[i, 0] = solved(cubic, x[i], 1.0)
    y[i, 1] = by_way_of(hyperbolic, x[i], 1.0)
    y[i, 2] = by_way_of(math.exp, x[i] + 3.0, 1.0)
    y[i, 3] = curvature(cubic, x[i]) + curvature(math.sin, x[i])
    y[i, 4] = slope_sum(cubic, with_hand, x[i])


def expected_roots(x):
    cubic_roots = [np.roots([1.0, 0.0, STIFFNESS, -target]) for target in x]
    root = np.array([one[np.abs(one.imag).argmin()].real for one in cubic_roots])
    by_hand = np.empty(9)
    nb.launch(slopes_by_hand, 9, [x], [by_hand])
    slopes = 3 * x**2 + STIFFNESS + 10.0 * by_hand
    return np.stack([root, np.arcsinh(x), np.log(x + 3), 6 * x - np.sin(x), slopes], axis=1)


@nb.kernel
def slopes_by_hand(x, y):
    i = nb.tid()
    y[i] = nb.grad(with_hand)(x[i])


def test_functions_that_are_passed(monkeypatch):
    x, y = X.copy(), np.zeros((9, 5))
    nb.launch(roots_of, 9, [x], [y])
    assert np.allclose(y, expected_roots(x), rtol=1e-10)
    monkeypatch.setitem(globals(), "STIFFNESS", 7.0)
    nb.launch(roots_of, 9, [x], [y])
    assert np.allclose(y, expected_roots(x), rtol=1e-10)


def test_derivatives_of_functions_that_are_passed():
    op = nb.torch_op(
        roots_of, outputs="y", launch_dims=lambda x: x.shape[0], output_dims=lambda x: {"y": (x.shape[0], 5)}
    )
    x = torch.tensor(X[:3], requires_grad=True)
    assert torch.autograd.gradcheck(op, (x,)) and torch.autograd.gradgradcheck(op, (x,))


# Prints, and indices that are checked


@nb.kernel
def printing(x, y):
    i = nb.tid()
    slope = nb.grad(potential)(x[i], 1.5)[0]
    if i % 2 == 0:
        print("slope {of}", i, "is", slope, nb.vec2d(slope, 1.0), i == 2)
    for k in range(i):
        if k == 2:
            break
        print(k)
    y[i] = slope


def test_prints(capfd):
    y = np.zeros(3)
    nb.launch(printing, 3, [X[:3].copy()], [y])
    slopes = expected_numbers(X[:3])[:, 0]
    assert np.allclose(y, slopes)
    lines = [f"slope {{of}} {i} is {y[i]} vec2d({y[i]}, 1.0) {i == 2}" for i in (0, 2)] + ["0", "0", "1"]
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(lines)
    gx, gy = np.zeros(3), np.ones(3)
    nb.launch(printing, 3, [X[:3].copy()], [y], adj_inputs=[gx], adj_outputs=[gy], adjoint=True)
    assert gx.any() and not capfd.readouterr().out


@nb.kernel
def printing_on_cuda(x, y):
    i = nb.tid()
    slope = nb.grad(potential)(x[i], 1.5)[0]
    print('it\'s "slope" {of}', i, "is", slope)
    print(i)
    y[i] = slope


def test_prints_on_cuda():
    text = printing_on_cuda.ptx(X, np.zeros(9), capability=(9, 0))
    assert "vprintf" in text
    source = nb.kernels.variant.compile_for(printing_on_cuda, (X, np.zeros(9)), (9, 0)).source_file
    with open(source) as file:
        written = file.read()
    assert """print('it\\'s "slope" {of}', _nb_i0, 'is',""" in written and "print(_nb_i0)" in written


@nb.func
def read_there(x, i):
    return x[i] * x[i]


@nb.func
def cube_at(a, x, j):
    return a * a * a * x[j]


@nb.kernel(check_bounds=True)
def reading(x, index, v, y):
    i = nb.tid()
    j = index[i]
    rows = nb.vec3d(x[i], 1.0, 2.0)
    y[i, 0] = nb.grad(cube_at)(x[i], x, j)[0]
    y[i, 1] = rows[v[i]] + read_there(x, -1)


@pytest.mark.parametrize(
    ("wrong", "value", "message", "line"),
    [
        ("index", 9, "index 9 is out of range for axis 0 of x, whose extent is 9", "return a * a * a * x[j]"),
        ("index", -10, "index -10 is out of range for axis 0 of x, whose extent is 9", "return a * a * a * x[j]"),
        ("v", 3, "index 3 is out of range for axis 0 of rows, whose extent is 3", "rows[v[i]]"),
        (None, 0, "index 8 is out of range for axis 0 of index, whose extent is 8", "j = index[i]"),
    ],
)
def test_indices_are_checked(wrong, value, message, line):
    given = {"x": X.copy(), "index": np.arange(9), "v": np.arange(9) % 3 - 3, "y": np.zeros((9, 2))}
    nb.launch(reading, 9, [*given.values()])
    assert np.allclose(given["y"][:, 0], 3 * X**3)
    rows = np.stack([X, np.ones(9), np.full(9, 2.0)], axis=1)[np.arange(9), np.arange(9) % 3]
    assert np.allclose(given["y"][:, 1], rows + X[-1] ** 2)
    if wrong is None:
        given["index"] = given["index"][:8]
    else:
        given[wrong][4] = value
    with pytest.raises(nb.NumbridgeIndexError, match=message) as caught:
        nb.launch(reading, 9, [*given.values()])
    assert line in str(caught.value)
    plain = nb.kernel(check_bounds=False)(reading.function)
    given["index"], given["v"] = np.arange(9), np.arange(9) % 3
    nb.launch(plain, 9, [*given.values()])


@nb.func
def squared(a):
    return a * a


@nb.func
def slope_of(x, function=squared):
    return nb.grad(function)(x)


@nb.func
def value_of(x, function=squared):
    return function(x)


def test_functions_that_are_passed_by_default():
    @nb.kernel
    def slopes(x, y):
        i = nb.tid()
        y[i, 0] = slope_of(x[i])
        y[i, 1] = slope_of(x[i], function=math.sin)

    y = np.zeros((9, 2))
    nb.launch(slopes, 9, [X], [y])
    assert np.allclose(y, np.stack([2 * X, np.cos(X)], axis=1))

    @nb.kernel
    def values(x, y):
        i = nb.tid()
        y[i, 0] = value_of(x[i])
        y[i, 1] = value_of(x[i], math.sin) + squared(x[i])

    nb.launch(values, 9, [X], [y])
    assert np.allclose(y, np.stack([X**2, np.sin(X) + X**2], axis=1))


@nb.func
def root(a):
    # Of r * r = a; only the derivative by hand knows what loops and spacing have to do with it.
    r = 1.0 + 0.0 * np.spacing(a)
    for _ in range(20):
        r = 0.5 * (r + a / r)
    return r


@nb.func_grad(root)
def root_by_hand(a, cotangent):
    return cotangent * 0.5 / math.sqrt(a)


@nb.func
def stepped(a):
    # What has no derivative decides here, and is not what is returned.
    return root(a) * a if np.spacing(a) < 1e-16 else a * a


@nb.kernel
def slopes_of_steps(x, y):
    i = nb.tid()
    y[i, 0] = nb.grad(root)(x[i])
    y[i, 1] = nb.grad(nb.grad(root))(x[i])
    y[i, 2] = nb.grad(stepped)(x[i])


def test_what_no_gradient_passes_needs_no_derivative():
    y = np.zeros((9, 3))
    nb.launch(slopes_of_steps, 9, [X], [y])
    steps = np.where(X < 0.5, 1.5 * X**0.5, 2 * X)
    assert np.allclose(y, np.stack([0.5 * X**-0.5, -0.25 * X**-1.5, steps], axis=1))
    # No tangents run along with its loop.
    assert "_nb_tan_" not in slopes_of_steps.explain(X, y).source


@nb.func
def first_slope(function, x):
    return nb.grad(function)(x)


@nb.func
def slope_of_cubic(a):
    return first_slope(cubic, a)


@nb.func
def root_within(a):
    return solved(cubic, a, 0.3) * a


@nb.func
def itself_again(function, a):
    return function(itself_again(function, a))


def test_functions_that_call_what_they_are_passed_to():
    @nb.kernel
    def within(x, y):
        i = nb.tid()
        y[i, 0] = first_slope(slope_of_cubic, x[i])
        y[i, 1] = solved(root_within, x[i], 0.4)

    x, y = nb.array(X, requires_grad=True), nb.zeros((9, 2), dtype=nb.float64)
    with nb.Tape() as tape:
        nb.launch(within, 9, [x], [y])
    outer = y.numpy()[:, 1]
    inner = X / outer  # the root of cubic(r) = outer
    assert np.allclose(y.numpy()[:, 0], 6 * X) and np.allclose(inner**3 + STIFFNESS * inner, outer)
    tape.backward(grads={y: np.stack([np.ones(9), np.ones(9)], axis=1)})
    slope = inner + outer / (3 * inner**2 + STIFFNESS)  # of r * outer by outer
    assert np.allclose(x.grad.numpy(), 6 + 1 / slope)

    @nb.kernel
    def endless(x, y):
        i = nb.tid()
        y[i] = nb.grad(checked)(x[i]) + itself_again(checked, x[i])

    with pytest.raises(nb.KernelUnsupportedError, match="itself_again calls itself"):
        nb.launch(endless, 9, [X], [np.zeros(9)])


# What is refused


@nb.func
def writes(a, y):
    y[0] = a
    return a


@nb.func
def adds(a, y):
    nb.atomic_add(y, 0, a)
    return a


@nb.func
def two(a):
    return a, a


@nb.func
def whole(n):
    return n * 2


@nb.func
def vector(a):
    return nb.vec3d(a, a, a)


@nb.func
def coarse(a):
    return np.spacing(a)


@nb.func
def recursive(a):
    return nb.grad(recursive)(a)


@nb.func
def meets(a):
    cuda.syncthreads()
    return a


@nb.func
def says(a):
    print(a)
    return a


@nb.func
def renamed(function, a):
    function = a
    return nb.grad(function)(a)


def plain(a):
    return a


REFUSED = [
    ("y[i] = grad(writes)(x[i], y)", "writes to 'y'", {"writes": writes}),
    (
        "m = cuda.local.array(1, float64)\n    y[i] = grad(writes)(x[i], m)[0]",
        "local arrays of its own",
        {"writes": writes},
    ),
    ("y[i] = grad(adds)(x[i], y)[0]", "writes to 'y'", {"adds": adds}),
    ("y[i] = grad(two)(x[i])", "two returns no number", {"two": two}),
    ("y[i] = grad(vector)(x[i])", "vector returns vec3d", {"vector": vector}),
    ("y[i] = grad(grad(vector))(x[i])", "vector returns vec3d", {"vector": vector}),
    ("y[i] = grad(grad(max))(x[i], y[i])[0]", r"nb.grad\(max\) returns no number", {}),
    ("y[i] = grad(whole)(i)", "no argument of whole is a floating-point number", {"whole": whole}),
    ("y[i] = grad(coarse)(x[i])", "spacing has no derivative", {"coarse": coarse}),
    ("y[i] = grad(math.sin)(x[i], x[i])[0]", r"sin does not take \(float64, float64\)", {"math": math}),
    ("y[i] = grad(recursive)(x[i])", "calls itself", {"recursive": recursive}),
    ("y[i] = grad(meets)(x[i])", "waits for other threads", {"meets": meets}),
    ("y[i] = grad(says)(x[i])", "prints, which would happen more than once", {"says": says}),
    ("y[i] = grad(plain)(x[i])", "wanted a function decorated", {"plain": plain}),
    ("y[i] = grad(energies)(x[i])", "energies is a kernel", {"energies": energies}),
    ("y[i] = grad(max, 1)(x[i], y[i])[0]", "takes one function", {}),
    ("y[i] = grad(x)(x[i])", "takes one function", {}),
    ("y[i] = grad(tid)()", "nb.tid has no gradient", {}),
    ("y[i] = grad(float)(x[i])", "wanted a function decorated", {}),
    ("f = grad(max), 1\n    y[i] = 0.0", "is called where it stands", {}),
    ("y[i] = curvature(x[i], x[i])", "a function that is known before the kernel runs", {"curvature": curvature}),
    ("y[i] = curvature(writes, x[i])", "writes takes the arguments a, y", {"curvature": curvature, "writes": writes}),
    ("y[i] = curvature(two, x[i])", "two returns no number", {"curvature": curvature, "two": two}),
    ("y[i] = curvature(energies, x[i])", "energies is a kernel", {"curvature": curvature, "energies": energies}),
    ("y[i] = renamed(math.sin, x[i])", "takes one function", {"renamed": renamed, "math": math}),
    ("y[i] = bound(grad)(x[i])", "is called where it stands", {"bound": nb.func(plain)}),
    (
        "y[i], b = grad(potential)(x[i], i)\n    y[i] = b",
        "would be the gradient by an integer",
        {"potential": potential},
    ),
    ("y[i] = grad(potential)(x[i], wrong=1.0)[0]", "potential takes the arguments r, scale", {"potential": potential}),
]


@pytest.mark.parametrize(("line", "message", "names"), REFUSED, ids=[line for line, _, _ in REFUSED])
def test_what_has_no_gradient_is_refused(line, message, names):
    y = np.zeros(9)

    def launch():
        refused = declared(f"def refused(x, y):\n    i = tid()\n    {line}\n", grad=nb.grad, **names)
        nb.launch(refused, 9, [X], [y])

    with pytest.raises(nb.KernelError, match=message) as caught:
        launch()
    assert "\n" in str(caught.value)  # where it is
    assert not y.any()


def test_outside_of_kernels():
    gradient = nb.grad(nb.grad(potential))
    assert repr(gradient) == "nb.grad(nb.grad(potential))" and gradient == nb.grad(nb.grad(potential))
    with pytest.raises(nb.NumbridgeError, match="belongs in a kernel"):
        gradient(1.0)
    for wrong in (energies, plain, float, 3, None):
        with pytest.raises(nb.NumbridgeTypeError, match=r"nb.grad: "):
            nb.grad(wrong)
