"""What a kernel's source says: which parameters it writes, what it depends on, and the text that is compiled."""

from __future__ import annotations

import builtins
import enum
import math

import numpy as np
import pytest
from numba import cuda, njit

import numbridge.kernels.language.intrinsics as markers
from numbridge.kernels.errors import KernelError
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.emission import emit
from numbridge.kernels.language.intrinsics import atomic_add, tid
from numbridge.kernels.launch import launch

OMEGA = 1.25
COUNT = 3
TABLE = np.array([1.0, 2.0])
another_name = tid


@func
def writes_second(a, b):
    b[0] = a[0]


@func
def passes_on(p, q):
    writes_second(q, p)


@njit
def njit_writes(values):
    values[0] = 1


def declare(body):
    return kernel(body)


def written(k, **ranks):
    return set(k.source.written(ranks or None))


def test_stores_and_atomics_write():
    @kernel
    def direct(a, b, c, d, e):
        i = tid()
        a[i] = 1
        b[i] += c[i]
        atomic_add(d, i, e[i])

    assert written(direct) == {"a", "b", "d"}


def test_aliases_write_what_they_stand_for():
    @kernel
    def aliased(a, b, c, d):
        i = tid()
        x = a
        x[i] = 1
        pair = (b, c)
        pair[0][i] = 2
        y = d if i > 3 else c
        y[i] = 3

    assert {"a", "b", "d"} <= written(aliased)


def test_views_write_and_elements_do_not():
    @kernel
    def views(a, b, c):
        row = a[tid()]
        row[0] = 1
        value = b[0]
        value += 1
        other = c[0]
        other += 1

    assert written(views, a=2, b=1, c=2) == {"a", "c"}


def test_device_functions_write():
    @kernel
    def calls(a, b, c, d):
        passes_on(a, b)
        njit_writes(c)

    assert written(calls) == {"a", "c"}


def test_names_are_resolved_by_object():
    @kernel
    def aliases(x):
        i = another_name()
        j = markers.tid()
        add = cuda.atomic.add
        add(x, i + j, 1.0)

    emitted = emit(aliases.source, "float32")
    assert aliases.source.index_rank == 1 and "_nb_atomic_add(x, i + j, _nb_float32(1.0))" in emitted.text


FLOAT, COMPLEX = float, complex


def test_python_s_numbers_by_other_names_are_of_the_kernel_s_type():
    @kernel
    def others(x, y):
        i = tid()
        y[i] = FLOAT(x[i]) * builtins.float("inf") + COMPLEX(x[i], 1.0).real

    text = emit(others.source, "float32").text
    assert "y[i] = _nb_float32(x[i]) * constant_inf + _nb_complex64(complex(x[i], _nb_float32(1.0))).real" in text


def test_a_float16_is_converted_by_float_by_another_name():
    @kernel
    def others(x, y):
        i = tid()
        y[i] = FLOAT(x[i]) * 2.0 + builtins.float(x[i])

    y = np.zeros(2, np.float16)
    launch(others, 2, [np.float16([1.5, 2.5]), y])
    assert y.tolist() == [4.5, 7.5]


def test_constants_are_inlined_and_weak():
    @kernel
    def constants(x):
        i = tid()
        x[i] = OMEGA * math.pi + COUNT + TABLE[i % 2] + float(i)

    narrow, wide = emit(constants.source, "float32"), emit(constants.source, "float64")
    assert f"_nb_float32(1.25) * _nb_float32({math.pi!r}) + 3 + TABLE[i % 2] + _nb_float32(i)" in narrow.text
    assert f"1.25 * {math.pi!r} + 3" in wide.text
    assert (
        narrow.namespace["TABLE"].tolist() == TABLE.tolist()
        and b"TABLE = array dtype('float64') (2,)" in narrow.fingerprint
    )


class Kind(enum.IntEnum):
    WALL = 1
    INLET = 3


class Side(enum.IntFlag):
    LEFT = 1
    RIGHT = 2


@func
def weighted(value, kind):
    return value * Kind.INLET if kind == Kind.WALL else value / Kind.INLET


def test_members_of_integer_enumerations_are_integers():
    @kernel
    def enumerated(x, kinds, y):
        i = tid()
        kept = cuda.local.array(Kind.INLET.value, np.float32)
        for k in range(Kind.INLET):
            kept[k] = weighted(x[i], kinds[i])
        y[i] = kept[Kind.INLET.value - 1] ** 2 + (Kind.WALL if kinds[i] & (Side.LEFT | Side.RIGHT) else 0.5)

    x, kinds, y = np.array([2, 3, 6], np.float32), np.array([1, 2, 4], np.int32), np.zeros(3, np.float32)
    launch(enumerated, 3, [x, kinds, y])
    assert y.tolist() == [37, 2, 4.5]
    by_x = np.zeros_like(x)
    launch(enumerated, 3, [x, kinds, y], adj_inputs=[by_x, None, np.ones_like(y)], adjoint=True)
    assert np.allclose(by_x, [9 * 2 * 2, 2 * 3 / 9, 2 * 6 / 9])
    assert ".target sm_90" in enumerated.ptx(x, kinds, y, capability=(9, 0))


def test_the_text_is_the_same_every_time():
    @kernel
    def stable(x):
        x[tid()] = OMEGA

    assert emit(stable.source, "float32") == emit(stable.source, "float32")


def test_dependencies_name_every_global():
    @kernel
    def reads(x, y):
        passes_on(x, y)
        x[tid()] = OMEGA + TABLE[0]

    names = {dependency.name for dependency in reads.source.dependencies()}
    assert {"OMEGA", "TABLE", "passes_on", "writes_second"} <= names


def test_hidden_parameters_reach_device_functions():
    @func
    def own_index():
        return cuda.grid(1) + cuda.blockDim.x

    @kernel
    def outer(x):
        x[own_index()] = 1

    emitted = emit(outer.source, "float32")
    assert emitted.hidden == ("_nb_i0", "_nb_b0")
    assert "own_index(_nb_i0, _nb_b0)" in emitted.text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("yield 1", "cannot be used"),
        ("with x: pass", "cannot be used"),
        ("del x", "cannot be used"),
        ("import os", "cannot be used"),
        ("_nb_i0 = 1", "reserved"),
        ("return x", "returns nothing"),
        ("x[undefined] = 1", "'undefined' is not defined"),
        ("x[0] = nb.min(x[0], x[1])", r"no attribute 'min'; write min\(\.\.\.\), which kernels take from Python"),
        ("x[0] = nb.floor(x[0])", r"no attribute 'floor'; write math\.floor\(\.\.\.\)"),
        ("x[0] = nb.clamp(x[0], 0.0, 1.0)", r"no attribute 'clamp'; write min\(max\(x, low\), high\)\n"),
        ("x[0] = nb.select(x[0] > 0, 0.0, 1.0)", r"no attribute 'select'; write if_true if condition else if_false\n"),
        ("s = nb.block_dim()", r"no attribute 'block_dim'; write cuda.blockDim.x"),
        (
            "s = nb.tile_load(x, 3)",
            r"no attribute 'tile_load'; threads of a block share cuda.shared.array\(shape, dtype\), and",
        ),
        (
            "s = nb.rand_init(1, 2)",
            r"no attribute 'rand_init'; write xoroshiro128p_uniform_float32\(states, i\) of numba",
        ),
        ("nb.atomic_inc(x, 0, 5)", r"no attribute 'atomic_inc'; write cuda\.atomic\.inc\n"),
        (
            "x[0] = nb.identity(2)[0, 0]",
            r"no attribute 'identity'; write the matrix out, as in nb\.mat22\(1\.0, 0\.0, ",
        ),
        (
            "for i, j in nb.ndrange(3, 3): x[i] = j",
            r"no attribute 'ndrange'; write one loop over range\(\.\.\.\) in another",
        ),
        ("x[0] = nb.pi", r"no attribute 'pi'; write math\.pi, which kernels take from Python"),
        ("x[0] = nb.no_such(x[0])", r"has no attribute 'no_such'\n"),
        ("i, j, k, m, n = tid()", "up to 4 indices"),
        ("i = tid(); j, k = tid()", "use one rank"),
        ("x[cuda.grid(x[0])] = 1", "written as a constant"),
        ("cuda.nanosleep(1)", "cuda.nanosleep exists only on CUDA"),
        ("cuda.syncthreads", "cuda.syncthreads must be called here"),
        ("cuda.syncwarp(mask=1)", "cuda.syncwarp takes its arguments by position"),
    ],
)
def test_what_no_kernel_can_be_is_refused_with_its_place(tmp_path, body, text):
    path = tmp_path / "refused.py"
    path.write_text(
        "import numbridge as nb\n"
        f"from numba import cuda\nfrom numbridge.kernels.language.intrinsics import tid\n\n\ndef bad(x):\n    {body}\n"
    )
    namespace = {"__name__": "refused"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    with pytest.raises(KernelError, match=text) as caught:
        emit(kernel(namespace["bad"]).source, "float32")
    assert "refused.py:" in str(caught.value) and "^" in str(caught.value)


def test_signatures_that_no_kernel_can_have():
    def starred(*arrays):
        pass

    def keyword(x, *, y):
        pass

    for function in (starred, keyword):
        with pytest.raises(KernelError):
            kernel(function)
    with pytest.raises(KernelError, match="lambda"):
        kernel(lambda x: None)


def test_a_kernel_whose_threads_work_together_is_a_coroutine_on_the_cpu():
    @kernel
    def warp(x):
        if x[0] > 0:
            return
        x[0] = cuda.shfl_sync(0xFFFFFFFF, x[0], cuda.laneid)

    made = emit(warp.source, "float32")
    assert made.in_blocks and made.hidden == ("_nb_crew", "_nb_thread", "_nb_i0")
    body = made.text.split("\n", 3)[3]
    assert body.splitlines() == [
        "    _nb_start(_nb_crew, _nb_thread)",
        "    if x[0] > 0:",
        "        _nb_finish(_nb_crew, _nb_thread)",
        "        return",
        "    x[0] = _nb_block_shfl_sync(_nb_crew, _nb_thread, 4294967295, x[0], _nb_thread % 32)",
        "    _nb_finish(_nb_crew, _nb_thread)",
    ]
    assert not emit(warp.source, "float32", "cuda").in_blocks


def test_an_assertion_is_an_exception_on_cuda():
    @kernel
    def positive(x):
        assert x[tid()] > 0, "negative"

    (line,) = emit(positive.source, "float32").text.split("\n", 3)[3].splitlines()
    assert line == "    assert x[_nb_i0] > 0, 'negative'"
    lines = emit(positive.source, "float32", "cuda").text.splitlines()[-2:]
    assert lines == ["    if not x[_nb_i0] > 0:", "        raise AssertionError('negative')"]


@kernel
def too_many(x, out):
    out[tid()] = math.exp(x[tid()], 2.0)


def test_arguments_of_mathematical_functions_are_counted():
    with pytest.raises(KernelError, match=r"math.exp takes 1 argument\(s\), and 2 are given\n.*\n.*math.exp\(x"):
        emit(too_many.source, "float32")
    for wrong, text in [
        (of_three, r"math.hypot takes 2 argument\(s\), and 3 are given; call it again .* or nb.length of a vector\n"),
        (of_one, r"np.arctan2 takes 2 argument\(s\), and 1 are given\n"),
    ]:
        with pytest.raises(KernelError, match=text):
            launch(wrong, 1, [np.ones(1), np.ones(1)])


@kernel
def of_three(x, y):
    i = tid()
    y[i] = math.hypot(x[i], x[i], x[i])


@kernel
def of_one(x, y):
    i = tid()
    y[i] = np.arctan2(x[i])
