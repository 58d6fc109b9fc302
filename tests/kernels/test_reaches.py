"""Arrays that every thread of a launch would overrun are refused, and none that some thread may spare."""

from __future__ import annotations

import itertools
import linecache
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, njit

import numbridge as nb
from fake_cuda import cuda_array, fake_cuda
from numbridge.kernels.language.reaches import reaches_of

_numbers = itertools.count()


def made(text, **names):
    """Return the kernel of a text, and the text as plain Python."""
    file = f"<reaches {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"nb": nb, "cuda": cuda, **names}
    exec(compile(text, file, "exec"), space)
    return nb.kernel(space["k"]), space["k"]


@nb.func
def positive(v):
    if v < 0.0:
        raise ValueError("negative")
    return v


@njit
def root(v):
    assert v >= 0.0
    return v**0.5


def reaches(body, parameters="x, y", index="i", **names):
    """Return what is reached by the lines of a body, as ``(parameter, axis, index, more)``."""
    head = f"    {index} = nb.tid()\n" if index else ""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    found = reaches_of(made(f"def k({parameters}):\n{head}{lines}", **names)[0])
    return {(r.parameter, r.axis, r.index, r.more) for r in found}


@pytest.mark.parametrize(
    ("body", "index", "wanted"),
    [
        ("y[i] = x[i]", "i", {("x", 0, 0, 0), ("y", 0, 0, 0)}),
        ("y[i] = x[i + 1] - x[i]", "i", {("x", 0, 0, 1), ("y", 0, 0, 0)}),
        ("y[i] = x[2 + i]", "i", {("x", 0, 0, 2), ("y", 0, 0, 0)}),
        # The first threads count from the end.
        ("y[0] = x[i - 3]", "i", {("x", 0, 0, -3), ("x", 0, None, 2), ("y", 0, None, 0)}),
        ("y[i] = x[i - 1] + x[i + 1]", "i", {("x", 0, 0, 1), ("y", 0, 0, 0)}),
        ("y[-2] = x[4]", "i", {("x", 0, None, 4), ("y", 0, None, 1)}),
        ("y[j, i] = x[i, 3]", "i, j", {("x", 0, 0, 0), ("x", 1, None, 3), ("y", 0, 1, 0), ("y", 1, 0, 0)}),
        ("y[i, :] = x[1:]", "i", {("y", 0, 0, 0)}),
        ("y[..., i] = x[None, i]", "i", set()),
        ("nb.atomic_add(y, 0, x[i])", "i", {("x", 0, 0, 0), ("y", 0, None, 0)}),
        ("nb.atomic_cas(y, i, 0.0, x[i])", "i", {("x", 0, 0, 0), ("y", 0, 0, 0)}),
        ("cuda.atomic.add(y, (i, 1), x[i])", "i", {("x", 0, 0, 0), ("y", 0, 0, 0), ("y", 1, None, 1)}),
        ("y[int(x[i])] = 1", "i", {("x", 0, 0, 0)}),
        ("m = 2\ny[i + m] = x[m]", "i", {("x", 0, None, 2), ("y", 0, 0, 2)}),
        ("y[i + N] = x[N]", "i", {("x", 0, None, 5), ("y", 0, 0, 5)}),
        ("y[0] = x[3]", "", {("x", 0, None, 3), ("y", 0, None, 0)}),
        # What only some threads come to
        ("if x[i] > 0:\n    y[i] = 1", "i", {("x", 0, 0, 0)}),
        ("while x[0] > y[i]:\n    y[i] += x[i]", "i", {("x", 0, None, 0), ("y", 0, 0, 0)}),
        ("for k in range(int(x[i])):\n    y[i] += k", "i", {("x", 0, 0, 0)}),
        ("y[0] = x[i] if x[1] > 0 else y[i]", "i", {("x", 0, None, 1), ("y", 0, None, 0)}),
        ("a = x[1] > 0 and x[i] > 0 or y[i] > 0", "i", {("x", 0, None, 1)}),
        ("a = i < x[0] < x[i]", "i", {("x", 0, None, 0)}),
        ("if i >= y.shape[0]:\n    return\ny[i] = x[i]", "i", set()),
        ("y[0] = 1\nif x[i] > 0:\n    return\ny[i] = 1", "i", {("x", 0, 0, 0), ("y", 0, None, 0)}),
        ("y[0] = 1\nassert x[i] > 0\ny[i] = 1", "i", {("y", 0, None, 0)}),
        ("y[0] = 1\nfor k in range(2):\n    if k > i:\n        return\ny[i] = 1", "i", {("y", 0, None, 0)}),
        ("y[i] = positive(x[0])", "i", set()),
        ("y[i] = root(x[0])", "i", set()),
        # What is no index of the thread, or another array
        ("i = i * 2\ny[i] = x[i]", "i", set()),
        ("y = x\ny[i] = 1\nx[i] = 1", "i", {("x", 0, 0, 0)}),
        ("y[i * 2] = x[True]", "i", set()),
    ],
)
def test_what_every_thread_comes_to(body, index, wanted):
    assert reaches(body, index=index, N=5, positive=positive, root=root) == wanted


def test_a_kernel_that_checks_its_indices_says_itself_which_is_wrong():
    kernel = nb.kernel(check_bounds=True)(shifted.function)
    assert reaches_of(shifted) and not reaches_of(kernel)
    with pytest.raises(IndexError, match="index 3 is out of range"):
        nb.launch(kernel, 3, [np.ones(3, np.float32), np.zeros(3, np.float32)])


INDICES = ("i", "j", "i + 1", "j + 2", "2 + i", "i - 1", "j - 3", "0", "2", "-1", "-3")


@st.composite
def programs(draw):
    """Draw a body of accesses, some of which only some threads come to; and whether all of them come to all."""
    element = st.builds("{}[{}, {}]".format, st.sampled_from("xy"), st.sampled_from(INDICES), st.sampled_from(INDICES))
    store, is_straight = st.builds("{} = {} + 0.5".format, element, element), True
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        one = draw(st.sampled_from(("plain", "plain", "if", "for", "return", "either", "and")))
        is_straight &= one == "plain"
        if one == "plain":
            lines += [draw(store)]
        elif one in ("if", "for"):
            head = f"{draw(element)} > 0.6" if one == "if" else "range(int(2 * v[i]))"
            lines += [f"{one} {'' if one == 'if' else 'k in '}{head}:", f"    {draw(store)}"]
        elif one == "return":
            lines += ["if i > 1:", f"    {draw(store)}", "    return"]
        elif one == "either":
            lines += [f"v[0] = {draw(element)} if j > i else {draw(element)}"]
        else:
            lines += [f"b = j > {draw(element)} and {draw(element)} > 0.0", f"v[1] = {draw(element)}"]
    return lines, is_straight


def is_overrun(function, dims, arrays):
    """Tell whether a run of all threads in plain Python takes an element that an array does not have."""
    arrays = [array.copy() for array in arrays]
    for i, j in np.ndindex(*dims):
        function.__globals__["nb"] = SimpleNamespace(tid=lambda i=i, j=j: (i, j))
        try:
            function(*arrays)
        except IndexError:
            return True
    return False


@settings(max_examples=400, deadline=None)
@given(programs(), st.tuples(*[st.integers(0, 4)] * 2), st.tuples(*[st.integers(1, 6)] * 4), st.integers(0, 2**32 - 1))
def test_random_programs_against_plain_python(program, dims, shape, seed):
    lines, is_straight = program
    body = "".join(f"    {line}\n" for line in lines)
    kernel, function = made(f"def k(x, y, v):\n    i, j = nb.tid()\n{body}")
    random = np.random.default_rng(seed)
    arrays = [random.random(extents) for extents in (shape[:2], shape[2:], (8,))]
    shapes = {name: array.shape for name, array in zip("xyv", arrays, strict=True)}
    is_refused = 0 not in dims and any(shapes[r.parameter][r.axis] < r.least(dims) for r in reaches_of(kernel))
    overruns = is_overrun(function, dims, arrays)
    assert overruns or not is_refused, lines
    assert is_refused or not (is_straight and overruns), lines


@nb.kernel
def shifted(x, y):
    i = nb.tid()
    y[i] = x[i + 1]


@nb.kernel
def scaled(x, s: float):
    i, j = nb.tid()
    x[i, j] *= s


@nb.kernel
def unit(x: nb.array[nb.vec3], out: nb.array[float]):
    i = nb.tid()
    out[i] = nb.length(x[i])


def f32(*shape):
    return np.ones(shape, np.float32)


WAYS = {
    "launch": lambda kernel, dim, *arguments: nb.launch(kernel, dim, [*arguments]),
    "forall": lambda kernel, dim, *arguments: kernel.forall(dim)(*arguments),
    "brackets": lambda kernel, dim, *arguments: kernel[dim, 1](*arguments),
    "recorded": lambda kernel, dim, *arguments: nb.launch(kernel, dim, [*arguments], record_cmd=True).launch(),
    "in a block": lambda kernel, dim, *arguments: nb.launch(kernel, dim, [*arguments], block_dim=32),
}


@pytest.mark.parametrize("launched", WAYS.values(), ids=WAYS)
def test_a_launch_is_refused_before_anything_is_written(launched):
    x, y = f32(5), f32(5) * 0
    for _ in range(2):  # the second time the compiled entry knows the arguments
        with pytest.raises(
            nb.NumbridgeValueError, match=r"parameter 'x': its shape is \(5,\).* over \(5,\) takes x\[i \+ 1\]"
        ):
            launched(shifted, 5, x, y)
        assert not y.any()
        launched(shifted, 4, x, y)
        assert y.tolist() == [1, 1, 1, 1, 0]
        y[:] = 0
    for short in (y[:3], y[1:4], y[:0], y[::2]):
        with pytest.raises(nb.NumbridgeValueError, match=rf"parameter 'y': its shape is \({len(short)},\)"):
            launched(shifted, 4, x, short)
    assert not y.any()
    launched(shifted, 0, x[:0], y[:0])  # no thread, no element


def test_the_message():
    with pytest.raises(nb.NumbridgeValueError) as caught:
        nb.launch(scaled, (2, 4), [f32(2, 3), 2.0])
    first, *place = str(caught.value).splitlines()
    assert first == (
        "launch of kernel 'scaled', parameter 'x': its shape is (2, 3), and each thread of a launch over (2, 4) takes x[i, j], "
        "so axis 1 must have 4 elements or more; kernels do not broadcast: pass a longer array, launch fewer threads, or guard "
        "what those beyond its end must not take"
    )
    assert "test_reaches.py" in place[0] and place[1].strip() == "x[i, j] *= s" and place[2].strip() == "^"


def test_arrays_of_other_frameworks_and_of_vectors():
    out = torch.zeros(3)
    for x in (f32(2, 3), torch.ones(2, 3), jnp.ones((2, 3)), nb.ones(2, dtype=nb.vec3)):
        with pytest.raises(nb.NumbridgeValueError, match=r"'x': its shape is \(2.*takes x\[i\], so axis 0 must have 3"):
            nb.launch(unit, 3, [x, out])
        nb.launch(unit, 2, [x, out])
        assert out.tolist() == [pytest.approx(3**0.5)] * 2 + [0]
        out.zero_()


def test_a_recorded_launch_that_is_given_other_extents():
    x, y = f32(5), f32(5) * 0
    command = nb.launch(shifted, 4, [x, y], record_cmd=True)
    command.launch()
    command.set_dim(5)
    with pytest.raises(nb.NumbridgeValueError, match="so axis 0 must have 6"):
        command.launch()
    command.set_param_by_name("x", f32(6) * 2)
    command.launch()
    assert y.tolist() == [2] * 5


def test_a_global_that_changes():
    kernel, function = made("def k(y):\n    i = nb.tid()\n    y[i + M] = 1\n", M=1)
    y = f32(4) * 0
    nb.launch(kernel, 3, [y])
    function.__globals__["M"] = 2
    for _ in range(2):
        with pytest.raises(nb.NumbridgeValueError, match=r"takes y\[i \+ M\], so axis 0 must have 5"):
            nb.launch(kernel, 3, [y])
    nb.launch(kernel, 2, [y])
    assert y.tolist() == [0, 1, 1, 1]


def test_adjoints_and_tapes():
    x, y = nb.ones(4, dtype=float, requires_grad=True), nb.zeros(4, dtype=float, requires_grad=True)
    with nb.Tape() as tape:
        with pytest.raises(nb.NumbridgeValueError, match="parameter 'x'"):
            nb.launch(shifted, 4, [x, y])
        nb.launch(shifted, 3, [x, y])
    tape.backward(grads={y: nb.ones(4, dtype=float)})
    assert x.grad.numpy().tolist() == [0, 1, 1, 1]
    with pytest.raises(nb.NumbridgeValueError, match=r"adjoint of shifted.*parameter 'x': its shape is \(4,\)"):
        nb.launch(shifted, 4, [x], [y], [x.grad], [y.grad], adjoint=True)
    adjoint = shifted.adjoint(["x", "y"])
    with pytest.raises(nb.NumbridgeValueError, match="parameter 'x'"):
        adjoint.forall(4)(f32(4), f32(4), f32(4), f32(4))


def test_on_cuda_nothing_is_launched():
    with fake_cuda() as driver:
        for _ in range(2):
            for x, y in ((4, 4), (5, 3)):
                arrays = [cuda_array((n,), address=0x7000_0000 + 4096 * n) for n in (x, y)]
                with pytest.raises(nb.NumbridgeValueError, match="of a launch over"):
                    nb.launch(shifted, 4, arrays)
            assert not driver.launches
            nb.launch(shifted, 4, [cuda_array((n,), address=0x7000_0000 + 4096 * n) for n in (5, 4)])
            assert len(driver.launches) == 1
            driver.launches.clear()


def test_launches_that_jax_traces():
    def twice(x: nb.array[float], y: nb.array[float]):
        nb.launch(shifted, x.shape[0], [x, y])

    with pytest.raises(nb.NumbridgeValueError, match=r"'x': its shape is \(4,\)"):
        nb.jax_callable(twice)(jnp.ones(4))
