"""Threads that a guard leaves nothing to do are not run on the CPU, and all others are, with the guard promised to hold."""

from __future__ import annotations

import importlib.util
import itertools
import types

import numpy as np
import pytest
from numba import cuda

import numbridge as nb

LARGEST, SMALLEST = 2**63 - 1, -(2**63)
SHAPE = 9, 21
HEAD = "from numba import cuda\nimport numbridge as nb\nOFFSET = 2\n"
# What stands before `y[i, j] += 1`, for an array `x` of another shape, `n` of 32 and `m` of 64 bits
FOUND = {
    "around": "if j < x.shape[1]:\n  if i < x.shape[0]:",
    "both": "if i > 0 and j > 0 and i < x.shape[0] - 1 and j < x.shape[1] - 1:",
    "chain": "if 0 < j <= n:",
    "both sides": "if (i < x.shape[0]) & (j < x.shape[1]) & (j != 3):",
    "either side": "if (i >= x.shape[0]) | (j >= x.shape[1]) | (j == 3): return\nif True:",
    "mirrored": "if n > j and 3 <= j:",
    "return": "if i >= x.shape[0] or j >= x.shape[1]: return\nif True:",
    "returns": "if i >= n: return\nh, w = x.shape\nif not j < w: return\nif True:",
    "denied": "if not (i >= n or j > n):",
    "equal": "if j == n:",
    "row": "if i != n and j < w:",
    "size": "if j < x.size and j * 1 < 12:",
    "len": "if i <= j and j < len(x):",
    "shifted": "if j + n < x.shape[1] and j - OFFSET >= 0:",
    "moved": "k = j + 3\nif k < m:",
    "wide": "if j < m:",
    "wide and more": "if m < j + 1:",
    "wide or equal": "if j <= m:",
    "wide product": "if j < m * 2:",
    "wide equal": "if j == m:",
    "negative": "if j > -n:",
    "half": "if j < x.shape[1] // 2:",
    "before": "c = 2.0 * n\nl = i // 2\nif j < n and c > l:",
    "triangle": "if j < i:",
    "some more": "if j < x.shape[1] and (i + j) % 2 == 0:",
}
NOT_FOUND = {
    "else": "if j < n:\n  pass\nelse:",
    "float": "if j < 2.5 * n:",
    "scaled": "if 2 * j < n:",
    "either holds": "if (i < x.shape[0]) | (j < x.shape[1]):",
    "beside an effect": "if (j < n) & (nb.atomic_add(calls, 0, 1) >= 0):",
    "after an effect": "if nb.atomic_add(calls, 0, 1) >= 0 and j < n:",
    "bound again": "n = n + 1\nif j < n:",
    "bound in a loop": "for k in range(3):\n  p = k\nif j < p:",
    "element": "if j < x[0, 0]:",
    "work before": "calls[0] = 1\nif j < n:",
}


def module_of(folder, text):
    """Return a module of kernels, whose source must be in a file."""
    path = folder / "kernels_of_a_test.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    parts = [HEAD]
    for name, guard in (FOUND | NOT_FOUND).items():
        lines = guard.split("\n")
        inner = " " * (len(lines[-1]) - len(lines[-1].lstrip()) + 4)
        body = ["i, j = nb.tid()", "w = x.shape[1]", *lines, f"{inner}y[i, j] += 1"]
        signature = f"def guard_{name.replace(' ', '_')}(x, y, calls, n: nb.int32, m: nb.int64):"
        parts.append("\n".join(["@nb.kernel", signature, *(f"    {line}" for line in body), ""]))
    return module_of(tmp_path_factory.mktemp("guards"), "\n".join(parts))


def wanted(name, x, n, m):
    """Return what Python makes of a guard, thread by thread; its integers have no end."""
    lines = (FOUND | NOT_FOUND)[name].replace("return", "continue").split("\n")
    inner = " " * (len(lines[-1]) - len(lines[-1].lstrip()) + 4)
    text = [
        "for i, j in np.ndindex(*y.shape):",
        " w = x.shape[1]",
        *(f" {line}" for line in lines),
        f"{inner} y[i, j] += 1",
    ]
    y = np.zeros(SHAPE, np.int32)
    exec("\n".join(text), {"np": np, "x": x, "y": y, "n": n, "m": m, "OFFSET": 2, "calls": [0]})
    return y


def arguments(n, m, shape=(7, 15)):
    return np.full(shape, 5.0, np.float32), np.zeros(SHAPE, np.int32), np.zeros(1, np.int64), n, m


def guarded(kernels, name):
    return getattr(kernels, f"guard_{name.replace(' ', '_')}")


def is_found(kernel, *given):
    return "_nb_assume(" in kernel.explain(*given).source


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize(("n", "m"), [(4, 9), (0, 0), (-3, -2), (100, LARGEST), (3, SMALLEST), (1, LARGEST - 1)])
def test_just_those_threads_run_that_pass(kernels, name, n, m):
    if name == "wide product" and abs(m) > 2**62:
        m //= 2  # whose double is no more than 64 bits in Python, either
    kernel, given = guarded(kernels, name), arguments(n, m)
    nb.launch(kernel, SHAPE, given)
    np.testing.assert_array_equal(given[1], wanted(name, given[0], n, m))
    assert is_found(kernel, *given)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["else", "float", "scaled", "element", "either holds", "work before"])
def test_a_guard_that_says_something_else_is_asked(kernels, name):
    kernel, given = guarded(kernels, name), arguments(4, 9)
    nb.launch(kernel, SHAPE, given)
    np.testing.assert_array_equal(given[1], wanted(name, given[0], 4, 9))
    assert not is_found(kernel, *given)


@pytest.mark.parametrize("name", ["after an effect", "beside an effect"])
def test_effects_of_a_guard_happen_in_every_thread(kernels, name):
    kernel, given = guarded(kernels, name), arguments(4, 9)
    nb.launch(kernel, SHAPE, given)
    assert given[2][0] == SHAPE[0] * SHAPE[1]
    assert not is_found(kernel, *given)


@pytest.mark.parametrize(("name", "n"), [("bound again", 5), ("bound in a loop", 2)])
def test_a_variable_that_changes_is_no_bound(kernels, name, n):
    kernel, given = guarded(kernels, name), arguments(4, 9)
    nb.launch(kernel, SHAPE, given)
    assert given[1].sum() == SHAPE[0] * n
    assert not is_found(kernel, *given)


@nb.kernel
def unsigned(y, n: nb.uint64):
    i = nb.tid()
    if i < n:
        y[i] = 1


def test_a_bound_of_64_bits_without_a_sign_is_asked_in_every_thread():
    y = np.zeros(20, np.int32)
    nb.launch(unsigned, 20, [y, 2**64 - 1])
    assert y.all()
    assert not is_found(unsigned, y, 3)


@nb.kernel
def three(y, n: int):
    i, j, k = nb.tid()
    if i < n and j < k and k >= 2:
        y[i, j, k] += 1


def test_three_indices_cut_into_pieces_between_workers():
    y = np.zeros((40, 30, 50), np.int32)
    i, j, k = np.ogrid[:40, :30, :50]
    for n in (0, 7, 40):
        y[...] = 0
        nb.launch(three, y.shape, [y, n])
        np.testing.assert_array_equal(y, (i < n) & (j < k) & (k >= 2))


@nb.kernel
def summed(x, y, n: int):
    i, j = nb.tid()
    if i >= x.shape[0] or j >= n:
        return
    s = 0.0
    for k in range(j + 1):
        s += x[i, k] * x[i, k]
    y[i, j] = s


def test_loops_in_lanes_and_their_gradients_stay_within_the_guard():
    x = np.random.default_rng(1).normal(size=(5, 40)).astype(np.float32)
    for n in (0, 1, 15, 16, 33, 40):
        a, b = nb.array(x, requires_grad=True), nb.zeros((5, 40), dtype=nb.float32, requires_grad=True)
        with nb.Tape() as tape:
            nb.launch(summed, (8, 70), [a, b, n])
        np.testing.assert_allclose(b.numpy()[:, :n], np.cumsum(x * x, 1)[:, :n], rtol=1e-5)
        assert not b.numpy()[:, n:].any()
        tape.backward(grads={b: nb.ones((5, 40), dtype=nb.float32)})
        uses = np.clip(n - np.arange(40), 0, None)
        np.testing.assert_allclose(a.grad.numpy(), 2 * x * uses, rtol=1e-5)
        # What nobody stored keeps its adjoint.
        np.testing.assert_array_equal(b.grad.numpy(), np.where(np.arange(40) < n, 0.0, 1.0) * np.ones((5, 1)))


@nb.kernel
def scaled(a: float, x, y):
    i = nb.tid()
    if 0 < i < x.size:
        y[i] = a * x[i]


def test_the_gradient_of_a_number_has_what_the_guard_lets_by():
    import torch

    x, y = torch.arange(10.0), torch.zeros(30, requires_grad=True)
    a = torch.tensor(3.0, requires_grad=True)
    operator = nb.torch_op(scaled, outputs=["y"], launch_dims=30, output_dims=30)
    operator(a, x).sum().backward()
    assert a.grad == x[1:].sum()
    assert y.grad is None


@nb.func
def counted(calls, answer: bool):
    nb.atomic_add(calls, 0, 1)
    return answer


@nb.kernel
def counted_before_a_return(y, calls, n: int):
    i = nb.tid()
    if not counted(calls, True):
        return
    if i >= n:
        return
    y[i] = 1


@nb.kernel
def counted_around(y, calls, n: int):
    i = nb.tid()
    if counted(calls, True):
        end = n
        if i < end:
            y[i] = 1


@nb.kernel
def counted_in_a_chain(y, calls, n: int):
    i = nb.tid()
    if 0 <= nb.atomic_add(calls, 0, 1) < 1000 > n > i:
        y[i] = 1


@pytest.mark.parametrize("kernel", [counted_before_a_return, counted_around, counted_in_a_chain])
def test_effects_before_a_guard_happen_in_every_thread(kernel):
    y, calls = np.zeros(20, np.int32), np.zeros(1, np.int64)
    nb.launch(kernel, 20, [y, calls, 7])
    np.testing.assert_array_equal(y, np.arange(20) < 7)
    assert calls[0] == 20


def test_functions_and_parameters_called_as_what_the_loop_calls():
    @nb.func
    def min(a, b):
        return a + 10.0 * b

    @nb.func
    def max(a, b):
        return a + 100.0 * b

    @nb.kernel
    def of_functions(x, y, n: int):
        i = nb.tid()
        if 0 < i < n:
            y[i] = min(x[i], 1.0) + max(x[(i + 1) % x.shape[0]], 1.0)

    @nb.kernel
    def of_parameters(min, max, n: int):
        i, j = nb.tid()
        if i < n and 0 < j < n:
            max[i, j] = min[(i + 1) % min.shape[0], (j + 1) % min.shape[1]]

    x, y = np.arange(11.0), np.zeros(11)
    nb.launch(of_functions, 11, [x, y, 7])
    i = np.arange(11)
    np.testing.assert_array_equal(y, np.where((i > 0) & (i < 7), 2 * i + 111, 0))
    x, y = np.arange(30.0).reshape(5, 6), np.zeros((5, 6))
    nb.launch(of_parameters, (5, 6), [x, y, 4])
    i, j = np.ogrid[:5, :6]
    np.testing.assert_array_equal(y, np.where((i < 4) & (j > 0) & (j < 4), np.roll(x, (-1, -1), (0, 1)), 0))


# The thread's index as numba.cuda's programs often spell it

SPELLINGS = [
    "i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x",
    "i = cuda.threadIdx.x + cuda.blockDim.x * cuda.blockIdx.x",
    "tx = cuda.threadIdx.x\nbx = cuda.blockIdx.x\nbw = cuda.blockDim.x\ni = tx + bx * bw",
    "first = cuda.blockIdx.x * cuda.blockDim.x\ni = first + cuda.threadIdx.x",
]


@pytest.mark.parametrize("spelling", range(len(SPELLINGS)))
def test_a_spelt_out_index_is_the_index(tmp_path, spelling):
    body = "\n".join(f"    {line}" for line in SPELLINGS[spelling].split("\n"))
    module = module_of(tmp_path, f"{HEAD}@nb.kernel\ndef spelt(y):\n{body}\n    if i < y.shape[0]:\n        y[i] = i\n")
    y = np.zeros(100, np.int32)
    module.spelt[3, 48](y)
    np.testing.assert_array_equal(y, np.arange(100))
    source = module.spelt.explain(y).source
    assert "i = _nb_i0" in source
    assert is_found(module.spelt, y)


@cuda.jit
def mixed(y):
    i = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.x
    j = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    if i < y.shape[0] and j < y.shape[1]:
        y[i, j] = 10 * i + j


def test_another_axis_in_the_place_of_one_is_no_index():
    y = np.zeros((6, 4), np.int32)
    nb.kernel(mixed)[(2, 2), (3, 2)](y)
    for (bx, by), (tx, ty) in itertools.product(np.ndindex(2, 2), np.ndindex(3, 2)):
        assert y[bx * 2 + tx, by * 2 + ty] == 10 * (bx * 2 + tx) + by * 2 + ty


# Loops over the grid

LOOPS = {
    "for": "for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):\n  y[i] += x[i] * n",
    "names": "s, d = cuda.grid(1), cuda.gridsize(1)\nfor i in range(s, len(y), d):\n  y[i] += x[i] * n",
    "spelt": "b = cuda.blockDim.x\ns = cuda.threadIdx.x + cuda.blockIdx.x * b\nd = b * cuda.gridDim.x\n"
    "for i in range(s, y.size, d):\n  y[i] += x[i] * n",
    "while": "i = cuda.grid(1)\nwhile i < y.shape[0]:\n  y[i] += x[i] * n\n  i += cuda.gridsize(1)",
    "from the third": "for i in range(cuda.grid(1) + 2, y.shape[0] - 1, cuda.gridsize(1)):\n  y[i] += x[i - 2] * n",
    "continue": "for i in range(cuda.grid(1), n, cuda.gridsize(1)):\n  if x[i] < 0.0: continue\n  y[i] += x[i]",
    "inner loop": "for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):\n  s = 0.0\n  for k in range(n):\n"
    "    if k > i: break\n    s += x[k] * x[i]\n  y[i] += s",
    "guards": "if n <= 0: return\nm = n - 1\nfor i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):\n"
    "  if 0 < i < m:\n    y[i] += x[i]",
    "choice": "for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):\n  if x[i] < 0.0:\n    a = x[i]\n  else:\n    a = n\n"
    "  y[i] += a",
}
KEPT_LOOPS = {
    "sum from one": "s = 1.0\nfor i in range(cuda.grid(1), n, cuda.gridsize(1)):\n  s += x[i]\ncuda.atomic.add(y, 0, s)",
    "sum that is asked": "s = 0.0\nfor i in range(cuda.grid(1), n, cuda.gridsize(1)):\n  s += x[i] * s + x[i]\n"
    "cuda.atomic.add(y, 0, s)",
    "sum that is kept": "s = 0.0\nt = cuda.grid(1)\nfor i in range(t, n, cuda.gridsize(1)):\n  s += x[i]\ny[t] = s",
    "sum of some": "s = 0.0\nfor i in range(cuda.grid(1), n, cuda.gridsize(1)):\n  s += x[i]\n  if x[i] > 0.0:\n    s = 0.0\n"
    "cuda.atomic.add(y, 0, s)",
    "square of a sum": "s = 0.0\nfor i in range(cuda.grid(1), n, cuda.gridsize(1)):\n  s += x[i]\ncuda.atomic.add(y, 0, s * s)",
    "sum beside": "s = 0.0\nfor i in range(cuda.grid(1), n, cuda.gridsize(1)):\n  s += y[1] + x[i]\ncuda.atomic.add(y, 0, s)",
    "sum that goes on": "s = 0.0\nfor i in range(cuda.grid(1), n, cuda.gridsize(1)):\n  s += x[i]\n  if x[i] > 0.0: continue\n"
    "  s -= 1.0\ncuda.atomic.add(y, 0, s)",
    "carried": "p = 0.0\nfor i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):\n  y[i] += p\n  p = x[i]",
    "carried by one side": "p = 1.0\nfor i in range(cuda.grid(1), len(y), cuda.gridsize(1)):\n  if x[i] < 0.0:\n    p = x[i]\n"
    "  y[i] += p",
    "break": "for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):\n  if x[i] < 0.0: break\n  y[i] += x[i]",
    "return": "for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):\n  if x[i] < 0.0: return\n  y[i] += x[i]",
    "first index": "t = cuda.grid(1)\nfor i in range(t, y.shape[0], cuda.gridsize(1)):\n  y[i] += x[t]",
    "asked before": "t = cuda.grid(1)\nif t % 2 == 0: return\nfor i in range(t, y.shape[0], cuda.gridsize(1)):\n  y[i] += x[i]",
    "around": "t = cuda.grid(1)\nif t < 5:\n  for i in range(t, y.shape[0], cuda.gridsize(1)):\n    y[i] += x[i]",
    "effect before": "if cuda.atomic.add(y, 0, 1.0) > -1.0:\n  for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):\n"
    "    y[i] += x[i]",
    "effect after": "for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):\n  y[i] += x[i]\ncuda.atomic.add(y, 0, 1.0)",
    "another step": "for i in range(cuda.grid(1), y.shape[0], cuda.blockDim.x):\n  cuda.atomic.add(y, i, x[i])",
    "until its index": "for i in range(cuda.grid(1), n + cuda.grid(1), cuda.gridsize(1)):\n  cuda.atomic.add(y, i, x[i])",
    "changed counter": "i = cuda.grid(1)\nwhile i < y.shape[0]:\n  y[i] += x[i]\n  if x[i] > 0.0:\n    i += 1\n"
    "  i += cuda.gridsize(1)",
}
LOOPS |= {
    "sum": "s = 0.0\nfor i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):\n  s += x[i] * x[i]\ncuda.atomic.add(y, 3, s)",
    "sums": "s, n1 = 0.0, n - 1\nt = 0.0\ni = cuda.grid(1)\nwhile i < n:\n  if x[i] > 0.0:\n    s += x[i]\n  t -= n1 * x[i]\n"
    "  i += cuda.gridsize(1)\ncuda.atomic.add(y, 0, s)\ncuda.atomic.sub(y, 4, t)",
}
BLOCKS, THREADS, EXTENT = 3, 5, 70


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    parts = [HEAD]
    for name, text in (LOOPS | KEPT_LOOPS).items():
        body = "\n".join(f"    {line}" for line in text.split("\n"))
        parts.append(f"@nb.kernel\ndef loop_{name.replace(' ', '_')}(x, y, n: nb.int32):\n{body}\n")
    return module_of(tmp_path_factory.mktemp("loops"), "\n".join(parts))


def as_python(name, x, y, n, threads):
    """Run each thread of a kernel with a loop over the grid in Python, one after another."""
    text = (LOOPS | KEPT_LOOPS)[name]
    body = "\n".join(f"    {line}" for line in text.split("\n"))
    scope = {"x": x, "y": y, "n": n}
    for t in range(threads):
        block = types.SimpleNamespace(
            grid=lambda rank, t=t: t,
            gridsize=lambda rank: BLOCKS * THREADS,
            threadIdx=types.SimpleNamespace(x=t % THREADS),
            blockIdx=types.SimpleNamespace(x=t // THREADS),
            blockDim=types.SimpleNamespace(x=THREADS),
            gridDim=types.SimpleNamespace(x=BLOCKS),
            atomic=types.SimpleNamespace(add=added, sub=lambda y, i, value: added(y, i, -value)),
        )
        exec(f"def run():\n{body}\nrun()", scope | {"cuda": block})


def added(y, i, value):
    before = y[i]
    y[i] += value
    return before


def loop_arguments(dtype=np.float64):
    return np.random.default_rng(3).normal(size=2 * EXTENT).astype(dtype), np.zeros(EXTENT, dtype)


def strides(kernel, *given):
    return kernel.explain(*given).source.count("while _nb_base")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [*LOOPS, *KEPT_LOOPS])
@pytest.mark.parametrize("n", [EXTENT - 20, 3, 0])
def test_a_loop_over_the_grid_does_what_its_threads_do(loops, name, n):
    kernel = getattr(loops, f"loop_{name.replace(' ', '_')}")
    (x, y), (_, wanted) = loop_arguments(), loop_arguments()
    kernel[BLOCKS, THREADS](x, y, n)
    as_python(name, x, wanted, n, BLOCKS * THREADS)
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)
    assert strides(kernel, x, y, n) == (name in LOOPS)


@pytest.mark.parametrize("name", LOOPS)
def test_ids_past_a_launch_make_no_trips(loops, name):
    kernel = getattr(loops, f"loop_{name.replace(' ', '_')}")
    (x, y), (_, wanted) = loop_arguments(), loop_arguments()
    nb.launch(kernel, 11, [x, y, 12], block_dim=THREADS)
    as_python(name, x, wanted, 12, 11)
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", sorted({*LOOPS} - {"guards"}))
def test_gradients_of_a_loop_over_the_grid(loops, name):
    kernel = getattr(loops, f"loop_{name.replace(' ', '_')}")
    x, y = (nb.array(a, requires_grad=True) for a in loop_arguments())
    with nb.Tape() as tape:
        kernel[BLOCKS, THREADS](x, y, 40)
    seed = np.random.default_rng(4).normal(size=EXTENT)
    tape.backward(grads={y: nb.array(seed)})
    found, step, wanted = x.grad.numpy(), 1e-6, np.zeros(2 * EXTENT)
    for k in range(2 * EXTENT):
        ends = []
        for moved in (step, -step):
            at, out = loop_arguments()
            at[k] += moved
            as_python(name, at, out, 40, BLOCKS * THREADS)
            ends.append(out @ seed)
        wanted[k] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(y.grad.numpy(), seed)


@nb.kernel
def two_loops(x, y):
    first, second = cuda.grid(2)
    rows, columns = cuda.gridsize(2)
    for i in range(first, x.shape[0], rows):
        for j in range(second, x.shape[1], columns):
            if j != i:
                y[i, j] += x[i, j] * x[i, j]


@nb.kernel
def inner_of_two(x, y):
    i, second = cuda.grid(2)
    _, columns = cuda.gridsize(2)
    if i < x.shape[0]:
        for j in range(second, x.shape[1], columns):
            y[i, j] += x[i, j] * x[i, j]


@nb.kernel
def triangle(x, y):
    first, second = cuda.grid(2)
    rows, columns = cuda.gridsize(2)
    for i in range(first, x.shape[0], rows):
        for j in range(second, i, columns):
            y[i, j] += x[i, j] * x[i, j]


@pytest.mark.parametrize(
    ("kernel", "count", "kept"), [(two_loops, 2, "odd"), (inner_of_two, 1, "all"), (triangle, 1, "low")]
)
@pytest.mark.parametrize("grid", [((2, 3), (4, 5)), ((1, 1), (1, 1)), ((40, 60), (1, 1)), ((300, 2), (16, 8))])
def test_loops_along_both_axes_of_a_grid(kernel, count, kept, grid):
    x, y = np.random.default_rng(5).normal(size=(37, 53)), np.zeros((37, 53))
    a, b = nb.array(x, requires_grad=True), nb.array(y, requires_grad=True)
    with nb.Tape() as tape:
        kernel[grid](a, b)
    i, j = np.indices(x.shape)
    where = {"odd": i != j, "all": i < grid[0][0] * grid[1][0], "low": j < i}[kept]
    np.testing.assert_allclose(b.numpy(), np.where(where, x * x, 0.0))
    tape.backward(grads={b: nb.ones(x.shape, dtype=nb.float64)})
    np.testing.assert_allclose(a.grad.numpy(), np.where(where, 2 * x, 0.0))
    assert strides(kernel, x, y) == count


def test_what_a_loop_over_the_grid_adds_everywhere_arrives():
    x, y = np.ones(100_000, np.float32), np.zeros(1, np.float32)

    @nb.kernel
    def total(x, y):
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            nb.atomic_add(y, 0, x[i])

    total[64, 128](x, y)
    assert y[0] == len(x)
    assert strides(total, x, y) == 1


@pytest.mark.parametrize(("kind", "count"), [(np.int32, 0), (np.float32, 1), (np.float64, 1)])
def test_sums_are_rounded_once_to_what_they_are_added_to(kind, count):
    @nb.kernel
    def total(x, y):
        s = 0.0
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            s += x[i]
        nb.atomic_add(y, 0, s)

    for part in ([0.5, 0.75], [1e8 + 1, -1e8]):
        x, y = np.array(part * 20), np.zeros(1, kind)
        total[1, 1](x, y)
        assert y[0] == sum(part) * 20
        assert strides(total, x, y) == count


@nb.kernel
def sum_of_asserted(x, y):
    s = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        assert x[i] < 1e30
        s += x[i]
    nb.atomic_add(y, 0, s)


def test_sums_of_trips_that_may_raise_are_added_at_the_end():
    x, y = np.full(40, 2.0**-24), np.ones(1, np.float32)
    sum_of_asserted[1, 1](x, y)
    assert y[0] == np.float32(1 + x.sum())  # each of the numbers by itself is lost
    x = np.arange(4.0)
    sum_of_asserted[1, 1](x, x[3:])
    np.testing.assert_array_equal(x, [0, 1, 2, 9])
    assert strides(sum_of_asserted, x, y) == 0


@nb.kernel
def sum_of_integers(x, y):
    s = 0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        s += x[i]
    nb.atomic_add(y, 0, s)


def test_a_sum_of_integers_is_exact_before_it_is_a_float():
    x, y = np.array([2**60, 1, -(2**60)] * 10), np.zeros(1, np.float32)
    sum_of_integers[1, 1](x, y)
    assert y[0] == 10


@nb.kernel
def from_the_trip_before(x, y):
    g = cuda.gridsize(1)
    for i in range(cuda.grid(1) + 4, y.shape[0], cuda.gridsize(1)):
        y[i] = y[i - g] * x[i]


@nb.kernel
def product_of_trips(x, y):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        k = i % cuda.gridsize(1)
        y[k] = y[k] * x[i]


@nb.kernel
def last_of_trips(x, y):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        y[i % cuda.gridsize(1)] = x[i] * x[i]


@nb.kernel
def own_of_trips(x, y):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        y[i] = y[i] * x[i] * x[(i + 1) % 16]


def one_by_one(kernel, x, y):
    y = np.array(y)
    for i in range(16):
        if kernel is from_the_trip_before and i >= 4:
            y[i] = y[i - 4] * x[i]
        elif kernel is product_of_trips:
            y[i % 4] *= x[i]
        elif kernel is last_of_trips:
            y[i % 4] = x[i] ** 2
        elif kernel is own_of_trips:
            y[i] *= x[i] * x[(i + 1) % 16]
    return y


@pytest.mark.parametrize("kernel", [from_the_trip_before, product_of_trips, last_of_trips, own_of_trips])
def test_trips_that_see_each_others_elements_have_their_gradients_backwards(kernel):
    x, y, small = np.arange(1, 17) / 8, np.full(16, 2.0), 1e-6 * np.eye(16)
    a, b = nb.array(x, requires_grad=True), nb.array(y, requires_grad=True)
    with nb.Tape() as tape:
        kernel[1, 4](a, b)
    np.testing.assert_allclose(b.numpy(), one_by_one(kernel, x, y))
    tape.backward(grads={b: nb.ones(16, dtype=nb.float64)})
    of_x = [(one_by_one(kernel, x + d, y) - one_by_one(kernel, x - d, y)).sum() / 2e-6 for d in small]
    of_y = [(one_by_one(kernel, x, y + d) - one_by_one(kernel, x, y - d)).sum() / 2e-6 for d in small]
    np.testing.assert_allclose(a.grad.numpy(), of_x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), of_y, rtol=1e-5, atol=1e-6)
    assert strides(kernel, x, y) == 1


# Neighbours on grids with periodic boundaries

RINGS = {
    "one": ("(i + 1) % n", "(j + 1) % m"),
    "both": ("(i - 1 + n) % n", "(m - 1 + j) % m"),
    "below": ("(i - 2) % n", "(j - 3) % m"),
    "by numbers": ("(i + k) % n", "(j - k + m) % m"),
    "by twice": ("(i - n + k) % n", "(j + 2 * m) % m"),
    "in one": ("i % n", "(j + 4) % 1"),
    "named": ("up", "left"),
}


@pytest.fixture(scope="module")
def rings(tmp_path_factory):
    parts = [HEAD]
    for name, (row, column) in RINGS.items():
        body = f"n, m = x.shape\n    up = (i + 2) % n\n    left = (j - 1) % m\n    y[i, j] = x[{row}, {column}] + 0 * up * left"
        parts.append(
            f"@nb.kernel\ndef ring_{name.replace(' ', '_')}(x, y, k: nb.int32):\n    i, j = nb.tid()\n    {body}\n"
        )
    return module_of(tmp_path_factory.mktemp("rings"), "\n".join(parts))


@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize("k", [1, -1, 0, 5, 100, -100])
@pytest.mark.parametrize("shape", [(7, 9), (1, 1), (5, 40)])
def test_neighbours_of_threads_within_and_at_the_ends(rings, name, k, shape):
    kernel, x = getattr(rings, f"ring_{name.replace(' ', '_')}"), np.random.default_rng(6).normal(size=shape)
    y = np.zeros((11, 37))  # more threads than the ring has places
    nb.launch(kernel, y.shape, [x, y, k])
    i, j = np.indices(y.shape)
    n, m = shape
    known = {"i": i, "j": j, "n": n, "m": m, "k": k, "up": (i + 2) % n, "left": (j - 1) % m}
    row, column = (eval(text, known) for text in RINGS[name])
    np.testing.assert_array_equal(y, x[row, column])
    assert "_nb_inside_ring" in kernel.explain(x, y, k).source


@nb.kernel
def around(x, y, total):
    i = nb.tid()
    if 0 < i < x.shape[0] - 1:
        y[i] = x[(i + 3) % x.shape[0]]
        nb.atomic_add(total, 0, x[(i - 3) % x.shape[0]])


@nb.kernel
def around_alone(x, y):
    i = nb.tid()
    if 0 < i < x.shape[0] - 1:
        y[i] = x[(i + 3) % x.shape[0]] * x[(i - 3) % x.shape[0]]


def test_neighbours_within_a_guard_and_with_sums_and_gradients():
    x = np.random.default_rng(7).normal(size=50)
    y, total = np.zeros(60), np.zeros(1)
    nb.launch(around, 60, [x, y, total])
    np.testing.assert_array_equal(y[1:49], np.roll(x, -3)[1:49])
    assert not y[[0, *range(49, 60)]].any()
    np.testing.assert_allclose(total, np.roll(x, 3)[1:49].sum())
    a, b = nb.array(x, requires_grad=True), nb.zeros(60, dtype=nb.float64, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(around_alone, 60, [a, b])
    np.testing.assert_array_equal(b.numpy()[1:49], (np.roll(x, -3) * np.roll(x, 3))[1:49])
    tape.backward(grads={b: nb.ones(60, dtype=nb.float64)})
    seen = np.zeros(50)
    seen[1:49] = 1
    np.testing.assert_allclose(a.grad.numpy(), np.roll(seen * np.roll(x, 3), 3) + np.roll(seen * np.roll(x, -3), -3))
    assert "_nb_inside_around_alone" in around_alone.explain(x, y).source


@nb.kernel
def far_around(x, y, b: nb.int8):
    i = nb.tid()
    if i - b < 370:
        y[i] = 2.0 * x[(i - b) % x.shape[0]]


def test_the_least_integer_of_eight_bits_as_a_distance():
    x, y = (nb.array(a, requires_grad=True) for a in (np.random.default_rng(7).normal(size=120), np.zeros(300)))
    with nb.Tape() as tape:
        nb.launch(far_around, 300, [x, y, -128])
    places = (np.arange(370 - 128) + 128) % 120
    np.testing.assert_array_equal(y.numpy(), np.concatenate([2 * x.numpy()[places], np.zeros(300 - len(places))]))
    tape.backward(grads={y: nb.ones(300, dtype=nb.float64)})
    np.testing.assert_array_equal(x.grad.numpy(), 2.0 * np.bincount(places))
    assert "_nb_inside_far_around" in far_around.explain(x, y, -128).source


@nb.kernel
def around_in_float64(x, y):
    i = nb.tid()
    y[i] = np.float64(x[(i + 1) % x.shape[0]]) * 2.0


def test_float64_arithmetic_is_told_once():
    x = np.ones(9, np.float32)
    told = around_in_float64.explain(x, x.copy())
    assert "_nb_inside_around" in told.source
    assert len(told.float64_lines) == 1


# One index that is split into several

SPLITS = {
    "two": "y[i] = x[i // w, i % w]",
    "named": "r = i // w\n    c = i % w\n    y[i] = x[r % h, c]",
    "three": "c = i % w\n    r = (i // w) % h\n    z = i // (w * h)\n    y[i] = x[r, c] + z",
    "three, other way": "z = i // (h * w)\n    r = i // w - z * h\n    y[i] = x[r % h, i % w] + z",
    "ring": "c = i % w\n    r = i // w\n    y[i] = x[(r + 1) % h, (c - 1 + w) % w] + x[(r - k) % h, (c + 2) % w]",
    "remainder": "y[i] = x[0, i % w]",
    "by a number": "y[i] = x[i // 8 % h, i % 8 % w]",
    "of another": "j = i + k\n    y[i] = x[(j // w) % h, j % w]",
    "guard": "if i < 60:\n        y[i] = x[i // w % h, i % w]",
    "strides": "for j in range(i, y.shape[0], cuda.gridsize(1)):\n        y[j] = x[j // w % h, (j % w + 1) % w]",
}


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    parts = [HEAD]
    for name, body in SPLITS.items():
        signature = f"def split_{name.replace(',', '').replace(' ', '_')}(x, y, w: nb.int32, k: nb.int64):"
        parts.append(f"@nb.kernel\n{signature}\n    i = cuda.grid(1)\n    h = x.shape[0]\n    {body}\n")
    return module_of(tmp_path_factory.mktemp("splits"), "\n".join(parts))


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("w", [1, 2, 7, 9, 100])
@pytest.mark.parametrize("k", [0, 3])
def test_rows_and_columns_of_one_index(splits, name, w, k):
    kernel = getattr(splits, f"split_{name.replace(',', '').replace(' ', '_')}")
    x, n = np.random.default_rng(8).normal(size=(70 if name == "two" else 6, 100)), 67
    y, wanted = np.zeros(n), np.zeros(n)
    nb.launch(kernel, n, [x, y, w, k])
    body = SPLITS[name].replace("range(i, y.shape[0], cuda.gridsize(1))", "[i]")
    exec(f"for i in range(n):\n    {body}", {"n": n, "x": x, "y": wanted, "w": w, "k": k, "h": len(x)})
    np.testing.assert_array_equal(y, wanted)
    assert ("_nb_row" in kernel.explain(x, y, w, k).source) == (name not in ("by a number", "of another"))


@pytest.mark.parametrize("w", [0, -1, -5])
def test_rows_of_no_width_are_as_in_numpy(splits, w):
    x, y = np.random.default_rng(8).normal(size=(70, 100)), np.zeros(40)
    nb.launch(splits.split_two, 40, [x, y, w, 0])
    with np.errstate(all="ignore"):
        row, column = np.divmod(np.arange(40), w)
    np.testing.assert_array_equal(y, x[row, column])


@pytest.mark.parametrize("h", [-1, -3, 0, 2])
def test_rows_in_layers_of_no_height_are_as_in_numpy(h):
    y = np.zeros(40)
    nb.launch(split_in_layers, 40, [y, 4, h])
    i = np.arange(40)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, i // (4 * h) + i % 4)
    assert "_nb_row" in split_in_layers.explain(y, 4, h).source


@nb.kernel
def split_in_layers(y, w: nb.int32, h: nb.int64):
    i = nb.tid()
    y[i] = i // (w * h) + i % w


def test_rows_that_several_workers_share():
    x, y = np.random.default_rng(9).normal(size=(311, 1009)).astype(np.float32), np.zeros((311, 1009), np.float32)

    @nb.kernel
    def doubled(x, y, w: int):
        i = nb.tid()
        y[i // w, i % w] += 2.0 * x[i // w, i % w]

    nb.launch(doubled, x.size, [x, y, 1009])
    np.testing.assert_array_equal(y, 2 * x)
    assert "_nb_row" in doubled.explain(x, y, 1009).source


@nb.kernel
def from_trip_to_trip(x, y):
    for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):
        if i >= 4:
            y[i] = y[i - 4] * x[i]
        else:
            y[i] = x[i]


def test_what_a_trip_reads_of_the_one_before_has_its_gradient():
    x = np.random.default_rng(10).uniform(0.5, 1.5, 12)
    a, b = nb.array(x, requires_grad=True), nb.zeros(12, dtype=nb.float64, requires_grad=True)
    with nb.Tape() as tape:
        from_trip_to_trip[1, 4](a, b)
    tape.backward(grads={b: nb.ones(12, dtype=nb.float64)})
    first, second, third = x.reshape(3, 4)
    np.testing.assert_allclose(b.numpy(), np.concatenate([first, first * second, first * second * third]))
    wanted = np.concatenate([1 + second + second * third, first + first * third, first * second])
    np.testing.assert_allclose(a.grad.numpy(), wanted)
