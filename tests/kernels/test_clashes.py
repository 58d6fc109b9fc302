"""Launches in which threads are sure to change one element, each as it finds it, are refused before anything is written.

`test_reaches` compares what is found in random programs with what plain Python does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
import torch
from numba import cuda
from numba.extending import intrinsic

import numbridge as nb
from fake_cuda import cuda_array, fake_cuda
from numbridge.kernels.language.clashes import Clash
from numbridge.kernels.language.reaches import reaches_of
from written_kernels import made

HEAD = "i, j = nb.tid()"
IN_BLOCKS = "t, b = cuda.threadIdx.x, cuda.blockIdx.x"


@nb.func
def add(array, k, value):
    array[k] += value


@nb.func
def added(array, k, value):
    old = array[k]
    array[k] = old + value


@nb.func
def lock(flags):
    while nb.atomic_exch(flags, 0, 1) != 0:
        pass
    return 0


@nb.func
def turn(flags):
    return nb.atomic_add(flags, 0, 0)


@nb.func
def turn_after(flags, k):
    while flags[k - 1] == 0:
        cuda.threadfence()
    return k


@numba.njit
def asked(flags):
    return flags[0]


@intrinsic
def foreign(_, k):
    return k(k), lambda context, builder, signature, given: given[0]


@nb.func
def moved(v):
    v.x += 1.0
    v[1] += 1.0
    return v.x


NAMES = {"np": np, "add": add, "added": added, "lock": lock, "table": np.ones(3)}
WAYS_TO_WAIT = {"turn": turn, "turn_after": turn_after, "asked": asked, "foreign": foreign}


def kernel_of(text):
    return made(text, **NAMES, **WAYS_TO_WAIT)[0]


def clashes_of(kernel):
    return [found for found in reaches_of(kernel) if isinstance(found, Clash)]


def launched(body, dims, block_dim=None, n=5):
    """Launch the lines of a body over arrays; return the parameter that is refused, and the axis along which threads lie."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    kernel = kernel_of(f"def k(x, y, v, flags, n):\n{lines}")
    x, y, v = np.ones((8, 8)), np.ones((8, 8)), np.ones((8, 3))
    arrays = [x, y, nb.from_numpy(v, dtype=nb.vec3d), np.zeros(8, np.int32)]
    options = {} if block_dim is None else {"block_dim": block_dim}
    try:
        nb.launch(kernel, dims, [*arrays, n], **options)
    except nb.NumbridgeValueError as error:
        message = str(error)
        assert "change one element" in message or "change the same elements" in message, message
        assert (y == 1).all() and (v == 1).all()
        return message.split("'")[3], message.partition(" along axis ")[2][:1]
    return None


TOGETHER = [
    ("y[0, 0] += x[i, j]", "0"),
    ("y[i, 0] += x[i, j]", "1"),
    ("y[0, j] -= x[i, j]", "0"),
    ("y[0, j] = y[0, j] * x[i, j]", "0"),
    ("y[0, j] = x[i, j] + y[0, j]", "0"),
    ("y[i][n] **= x[i, j]", "1"),
    ("row = n - 2\ny[row, i] /= 2.0", "1"),
    ("a = y\na[i, 1] += 1.0", "1"),
    ("for k in range(n):\n    y[i, k] += x[i, j]", "1"),
    ("k = 0\nwhile k < n:\n    y[k, j] += x[i, j]\n    k += 1", "0"),
    ("if j < n:\n    y[i, 0] += x[i, j]", "1"),
    ("if j >= n:\n    return\ny[i, 0] += x[i, j]", "1"),
    ("for a in (y,):\n    a[i, 0] += 1.0", "1"),
    ("v[i].x += x[i, j]", "1"),
    ("v[i][1] += x[i, j]", "1"),
    ("v[i] += nb.vec3d(x[i, j], 0.0, 0.0)", "1"),
    ("x[i, j] = 1.0\nflags[i] <<= 1", "1"),
    ("flags[i] ^= 1", "1"),
    ("y[i, 0] = max(y[i, 0], x[i, j])", "1"),
    ("y[i, 0] = min(x[i, j] + 1.0, y[i, 0])", "1"),
    ("value = x[i, j]\ny[i, 0] = max(y[i, 0], value * 2.0)", "1"),
    ("flags[i] |= 1 << j", "1"),
    ("flags[i] = flags[i] & (j + 4)", "1"),
    ("y[n, n] += 1.0 if x[i, j] > 0.0 else 0.0", "0"),
    ("y += x[i, j]", "0"),
    ("y *= x", "0"),
    ("row = y[0]\nrow -= x[i]", "0"),
    ("row = y[i]\nrow += x[i, j]", "1"),
    ("row = y[i]\nif j < n:\n    row += 1.0\n    row *= 2.0", "1"),
]
APART = [
    "y[i, j] += x[i, j]",
    "y[j, i] = y[j, i] * 2.0",
    "y[0, 0] = x[i, j] + 1.0",  # which of them is left is chance, but one of them is
    "y[0, 0] = x[0, 0] - y[0, 0]",
    "y[(i * 2 + j) // 2, j] += 1.0",
    "if j == 0:\n    y[i, 0] += x[i, j]",
    "if x[i, j] > 1.0:\n    y[0, 0] += x[i, j]",
    "if j == n:\n    y[i, 0] += x[i, j]",
    "for k in range(i, i + 1):\n    y[k, j] += 1.0",
    "for k in range(n):\n    if k == j:\n        y[i, k] += 1.0",
    "y[i, 0] *= 0.0",
    "nb.atomic_add(y, 0, 0, x[i, j])",
    "flags[0] |= 1",
    "y[i, 0] = max(y[i, 0], x[i, 0])",
    "y[i, 0] = max(x[i, j], y[i, 1])",
    "y[i, 0] = y[i, 0] % x[i, 1]",
    "flags[0] %= 3",
    "y[flags[i], j] += 1.0",
    "row = y[i]\nif j == 0:\n    row += x[i, j]",
    "row = y[i]\nif n == 2:\n    row = y[j]\nrow *= x[i]",
    "n += 1\ny[i, j] = n - 5.0",
    "s = x[0, 0]\ns += 1.0\ny[i, j] = s",
    "w = v[0]\nw += nb.vec3d(1.0, 0.0, 0.0)\ny[i, j] = w.x",
    "y *= 0.0",
    "mine = cuda.local.array(2, np.float64)\nmine[0] = 0.0\nmine[0] += x[i, j]\ny[i, j] = mine[0]",
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("body", "axis"), TOGETHER)
def test_what_threads_change_together(body, axis):
    found = launched(f"{HEAD}\n{body}", (4, 3))
    assert found is not None
    assert found[1] == axis and found[0] in ("y", "v", "flags")
    # One thread along that axis is alone.
    by_all = any(text in body for text in ("n, n", "0, 0", "y +=", "y *=", "y[0]"))
    alone = (1, 1) if by_all else (1, 3) if axis == "0" else (4, 1)
    assert launched(f"{HEAD}\n{body}", alone) is None


@pytest.mark.parametrize("body", APART)
def test_what_threads_do_apart(body):
    assert launched(f"{HEAD}\n{body}", (2, 3)) is None


@pytest.mark.parametrize(
    "wait",
    [
        "while nb.atomic_cas(flags, 0, 0, 1) != 0:\n    pass",
        "while cuda.atomic.compare_and_swap(flags, 0, 1) != 0:\n    pass",
        "while nb.atomic_add(flags, 0, 0) != i:\n    pass",
        "lock(flags)",
        "while True:\n    if nb.atomic_add(flags, 0, 0) == i:\n        break",
        "now = nb.atomic_add(flags, 0, 0)\nwhile now != i:\n    now = nb.atomic_add(flags, 0, 0)",
        "done = False\nwhile not done:\n    if nb.atomic_add(flags, 0, 0) == i:\n        done = True",
        "for _ in range(1 << 30):\n    if nb.atomic_add(flags, 0, 0) == i:\n        break",
        "while turn(flags) != i:\n    pass",
        "while asked(flags) != i:\n    pass",
        "mine = nb.atomic_add(flags, 0, 1)\nwhile flags[1] != mine:\n    cuda.threadfence()",
        "tries = 0\nwhile flags[1] != i:\n    tries += 1",
        "now = cuda.local.array(1, np.int32)\nnow[0] = 0\nwhile now[0] != i:\n    now[0] = nb.atomic_add(flags, 0, 0)",
        "k = turn_after(flags, i)",
        "k = foreign(i)",
    ],
)
def test_threads_that_wait_for_each_other(wait):
    lines = "".join(f"    {line}\n" for line in f"i = nb.tid()\n{wait}\ny[0, 0] += x[i, 0]".splitlines())
    assert reaches_of(kernel_of(f"def k(x, y, flags):\n{lines}")) and not clashes_of(
        kernel_of(f"def k(x, y, flags):\n{lines}")
    )
    assert clashes_of(kernel_of("def k(x, y, flags):\n    i = nb.tid()\n    y[0, 0] += x[i, 0]\n"))


@pytest.mark.parametrize(
    "loop",
    [
        "for k in range(n):\n    if x[k, 0] > 0.5:\n        break",
        "while n > x.shape[0]:\n    n -= 1",
        "k = 0\nwhile k < n:\n    nb.atomic_add(flags, 0, 1)\n    k += 1",
        "k = i\nwhile x[k, 0] > 0.5 and k > 0:\n    k -= 1",
        "while y[i, 1] > 0.5:\n    y[i, 1] -= 1.0",
    ],
)
def test_loops_that_wait_for_nobody(loop):
    lines = "".join(f"    {line}\n" for line in f"i = nb.tid()\n{loop}\ny[0, 0] += x[i, 0]".splitlines())
    assert clashes_of(kernel_of(f"def k(x, y, flags, n):\n{lines}"))


@pytest.mark.parametrize(
    ("body", "array"),
    [
        ("y[0, b] += x[0, t]", "y"),
        ("y[0, t] += x[0, b]", "y"),
        ("for k in range(t, n, cuda.blockDim.x):\n    y[b, 0] += x[b, k]", "y"),
        ("for k in range(cuda.grid(1), n, cuda.gridsize(1)):\n    y[0, 0] += x[0, k]", "y"),
        ("tile = cuda.shared.array(2, np.float64)\ntile[0] += x[b, t]\ncuda.syncthreads()\ny[b, t] = tile[0]", "tile"),
        (
            "tile = cuda.shared.array(2, np.float64)\ntile[b] = tile[b] + x[b, t]\ncuda.syncthreads()\ny[b, t] = tile[0]",
            "tile",
        ),
        ("tile = cuda.shared.array(2, np.float64)\ntile += x[0, t]\ncuda.syncthreads()\ny[b, t] = tile[0]", "tile"),
    ],
)
def test_blocks(body, array):
    assert launched(f"{IN_BLOCKS}\n{body}", 8, 4) == (array, "")
    alone = (1, 1) if "gridsize" in body else (4, 4) if "[0, t]" in body[:8] else (2, 1)
    assert launched(f"{IN_BLOCKS}\n{body}", *alone) is None


@pytest.mark.parametrize(
    "body",
    [
        "if t == 0:\n    y[0, b] += x[0, t]",
        "y[b, t] += 1.0",
        "tile = cuda.shared.array(4, np.float64)\ntile[t] = 0.0\ntile[t] += x[b, t]\ny[b, t] = tile[t]",
        "for k in range(4):\n    if t == k:\n        y[b, 0] += x[b, t]\n    cuda.syncthreads()",
        "for k in range(t, n, cuda.blockDim.x):\n    y[b, k] += 1.0",
        "for k in range(cuda.grid(1), n, cuda.gridsize(1)):\n    y[0, k] += x[0, k]",
    ],
)
def test_blocks_whose_threads_are_apart(body):
    assert launched(f"{IN_BLOCKS}\n{body}", 8, 4) is None


@pytest.mark.parametrize("name", ["add", "added"])
def test_device_functions(name):
    body = "i = nb.tid()\n{}(flags, {}, 1)"
    # A number that is loaded, and stored with more, may be meant so.
    assert launched(body.format(name, "n"), 4) == (("flags", "") if name == "add" else None)
    assert launched(body.format(name, "n"), 1) is None
    assert launched(body.format(name, "i"), 4) is None


@nb.kernel
def summed(x: nb.array[float], total: nb.array[float]):
    i = nb.tid()
    if i < x.shape[0]:
        total[0] += x[i] * x[i]


def test_the_message():
    x, total = np.ones(3, np.float32), np.zeros(1, np.float32)
    with pytest.raises(nb.NumbridgeValueError) as found:
        nb.launch(summed, 3, [x, total])
    first, place, line, caret = str(found.value).splitlines()
    assert first == (
        "launch of kernel 'summed', parameter 'total': threads of a launch over (3,) change one element, total[0], each "
        "as it finds it, so that changes are lost; use nb.atomic_add(total, 0, ...), or let one thread do it"
    )
    assert place.strip().startswith(__file__)
    assert line.strip() == "total[0] += x[i] * x[i]" and caret.strip() == "^"
    nb.launch(summed, 3, [x[:1], total])  # the others are beyond the end
    nb.launch(summed, 0, [x, total])
    assert total.tolist() == [1]


@nb.kernel
def counted_down(n: nb.vec3i, out: nb.array[int]):
    i = nb.tid()
    while n[0] > 0:
        n[0] -= 1
        n.y += 2
    out[i] = n[1]


def test_what_is_passed_by_value_each_thread_has_for_itself():
    for launch in (counted_down, nb.jax_kernel(counted_down, launch_dims=3, output_dims=3)):
        if launch is counted_down:
            out = np.zeros(3, np.int32)
            nb.launch(counted_down, 3, [nb.vec3i(2, 1, 0), out])
        else:
            (out,) = launch(nb.vec3i(2, 1, 0))
        assert out.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("body", "way"),
    [
        ("pair[1][0] += 1.0", "use nb.atomic_add(pair[1], 0, ...), or let one thread do it"),
        ("pair[0][i, 0] -= j", "use nb.atomic_sub(pair[0], (i, 0), ...), or let one thread do it"),
        ("v[i].x += 1.0", "let one thread do it, or use an atomic operation"),
        ("records[0].a += 1.0", "let one thread do it, or use an atomic operation"),
    ],
)
def test_the_way_out(body, way):
    kernel = kernel_of(f"def k(pair, v, records):\n    {HEAD}\n    {body}\n")
    vectors, records = nb.from_numpy(np.ones((3, 3)), dtype=nb.vec3d), np.zeros(3, [("a", np.float64)])
    with pytest.raises(nb.NumbridgeValueError) as found:
        nb.launch(kernel, (2, 3), [(np.ones((2, 2)), np.ones(3)), vectors, records])
    assert str(found.value).splitlines()[0].endswith(f"so that changes are lost; {way}")


def test_arrays_of_no_axes():
    number = np.zeros(())
    with pytest.raises(nb.NumbridgeValueError, match=r"one element, y\[\(\)\], .*use nb.atomic_add\(y, \(\), ...\)"):
        nb.launch(kernel_of("def k(x, y):\n    i = nb.tid()\n    y[()] += x[i]\n"), 3, [np.ones(3), number])
    nb.launch(kernel_of("def k(x, y):\n    i = nb.tid()\n    nb.atomic_add(y, (), x[i])\n"), 3, [np.ones(3), number])
    assert number == 3


def test_vectors_by_value():
    @nb.kernel
    def each(v, y):
        i = nb.tid()
        y[i] = moved(v) + v.x

    y = np.zeros(3)
    for _ in range(2):
        nb.launch(each, 3, [nb.vec3d(1, 2, 3), y])
    assert y.tolist() == [3, 3, 3]


def test_what_is_made_of_names_that_are_used_twice():
    names = "".join(f"    v{k + 1} = v{k} * v{k}\n" for k in range(64))
    kernel = kernel_of(f"def k(x, y):\n    i = nb.tid()\n    v0 = x[i]\n{names}    y[0] = max(y[0], v64)\n")
    assert [found.text for found in clashes_of(kernel)] == ["y[0]"]


def test_what_no_function_is():
    kernel = kernel_of("def k(x, y):\n    i = nb.tid()\n    y[0] = table(y[0], x[i])\n")
    assert not clashes_of(kernel)


def test_a_function_of_no_module():
    kernel = kernel_of("def other(v):\n    return v\ndef k(x, y):\n    i = nb.tid()\n    y[0] += other(x[i])\n")
    assert not clashes_of(kernel)


def test_a_recorded_launch():
    x, total = np.ones(3, np.float32), np.zeros(1, np.float32)
    command = nb.launch(summed, 1, [x, total], record_cmd=True)
    command.launch()
    command.set_dim(3)
    with pytest.raises(nb.NumbridgeValueError, match="change one element"):
        command.launch()
    assert total.tolist() == [1]


def test_a_kernel_that_checks_its_indices():
    @nb.kernel(check_bounds=True)
    def checked(x, total):
        i = nb.tid()
        total[0] += x[i]

    total = np.zeros(1)
    with pytest.raises(nb.NumbridgeValueError, match="change one element"):
        nb.launch(checked, 3, [np.ones(3), total])
    nb.launch(checked, 1, [np.ones(3), total])
    assert total.tolist() == [1]


def test_tapes_and_operators():
    x, total = nb.ones(3, dtype=float, requires_grad=True), nb.zeros(1, dtype=float, requires_grad=True)
    with nb.Tape() as tape, pytest.raises(nb.NumbridgeValueError, match="change one element"):
        nb.launch(summed, 3, [x], [total])
    assert total.numpy().tolist() == [0] and not tape.gradients
    operator = nb.torch_op(summed, outputs=["total"], launch_dims=lambda x: x.shape, output_dims=lambda x: (1,))
    with pytest.raises(nb.NumbridgeValueError, match="change one element"):
        operator(torch.ones(3))


def test_jax():
    kernel = nb.jax_kernel(summed, launch_dims=3, in_out_argnames=["total"])
    with pytest.raises(nb.NumbridgeValueError, match=r"under JAX, argument 'total': threads of a launch over \(3,\)"):
        jax.jit(kernel)(jnp.ones(3), jnp.zeros(1))

    @nb.kernel
    def first(x: nb.array[float], n: int, total: nb.array[float]):
        i = nb.tid()
        if i < n:
            total[0] += x[i]

    traced = jax.jit(nb.jax_kernel(first, launch_dims=3, in_out_argnames=["total"]))
    assert traced(jnp.ones(3), 1, jnp.zeros(1))[0] == 1
    with pytest.raises(ValueError, match="change one element"):
        jax.block_until_ready(traced(jnp.ones(3), 2, jnp.zeros(1)))


def test_cuda():
    with fake_cuda() as driver:
        arrays = [cuda_array((n,), address=0x7000_0000 + 4096 * n) for n in (3, 1)]
        for _ in range(2):
            with pytest.raises(nb.NumbridgeValueError, match="change one element"):
                nb.launch(summed, 3, arrays)
        assert not driver.launches
        nb.launch(summed, 1, arrays)
        assert len(driver.launches) == 1


def test_cuda_kernels_of_numba():
    @cuda.jit
    def count(x, out):
        out[cuda.blockIdx.x] += x[cuda.grid(1)]

    out = np.zeros(2)
    with pytest.raises(nb.NumbridgeValueError, match=r"nb.atomic_add\(out, cuda.blockIdx.x, ...\)"):
        nb.kernel(count)[2, 4](np.ones(8), out)
    nb.kernel(count)[2, 1](np.ones(8), out)
    assert out.tolist() == [1, 1]
