"""Adjoints that are stored, whatever their memory holds, in place of added to zeros; and kernels that cannot have them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda

from adjoint_cases import CASES, name_of
from numbridge.kernels.errors import BufferAccessError, KernelUnsupportedError, NumbridgeValueError
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.indexing import indexing_of
from numbridge.kernels.language.intrinsics import atomic_add, tid

# What the memory holds before the launch
GARBAGE = np.nan


def extents(dim):
    return dim if isinstance(dim, tuple) else (dim,)


def loaded(case):
    kernel, dim, *arguments = case
    names = zip([p.name for p in kernel.parameters], arguments, strict=True)
    found = indexing_of(kernel).loaded
    return [name for name, argument in names if name in found and argument.ndim == len(extents(dim))]


WHOLE = [case for case in CASES if loaded(case)]


def test_many_kernels_have_inputs_of_which_each_thread_has_an_element():
    assert len({case[0].name for case in WHOLE}) >= 9


@pytest.mark.parametrize("case", WHOLE, ids=name_of)
def test_stored_adjoints_are_those_that_are_added_up(case):
    kernel, dim, *arguments = case
    names = [p.name for p in kernel.parameters]
    floats = [
        n
        for n, a in zip(names, arguments, strict=True)
        if isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.shape
    ]
    fresh = [name for name in loaded(case) if name in floats]
    given = {name: np.full_like(a, 0.5) for name, a in zip(names, arguments, strict=True) if name in floats}
    wanted = {name: np.zeros_like(a) if name in fresh else a.copy() for name, a in given.items()}
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    kernel.adjoint(floats).forall(dim)(*copies, *wanted.values())
    own = tuple(map(slice, extents(dim)))
    for name in fresh:
        given[name][...] = 0
        given[name][own] = GARBAGE
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    kernel.adjoint(floats, fresh=fresh).forall(dim)(*copies, *given.values())
    for name in floats:
        np.testing.assert_array_equal(given[name], wanted[name], err_msg=name)


@kernel
def stepped(x, w, y):
    i = tid()
    y[i] = math.floor(x[i]) * w[i]


@kernel
def never_used(x, y):
    i = tid()
    t = x[i]
    y[i] = 3.0
    if t > 1.0:
        y[i] = 4.0


@kernel
def twice(x, y):
    i = tid()
    y[i] = x[i] * x[i] + math.sin(x[i])


@kernel
def transposed(x, y):
    i, j = tid()
    y[i, j] = x[j, i] * x[j, i]


def test_an_adjoint_that_nothing_is_added_to_is_zero():
    x, w, y = np.array([1.5, 2.5]), np.array([3.0, 4.0]), np.zeros(2)
    by_x, by_w, by_y = np.full(2, GARBAGE), np.full(2, GARBAGE), np.ones(2)
    stepped.adjoint(["x", "w", "y"], fresh=["x", "w"]).forall(2)(x, w, y, by_x, by_w, by_y)
    assert by_x.tolist() == [0, 0] and by_w.tolist() == [1, 2]
    by_x, by_y = np.full(2, GARBAGE), np.ones(2)
    never_used.adjoint(["x", "y"], fresh=["x"]).forall(2)(x, y, by_x, by_y)
    assert by_x.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_several_loads_are_stored_and_then_added(dtype):
    x, y = np.linspace(0, 1, 1000, dtype=dtype), np.zeros(1000, dtype)
    by_x, by_y = np.full(1000, GARBAGE, dtype), np.ones(1000, dtype)
    twice.adjoint(["x", "y"], kept=["y"], fresh=["x"]).forall(1000)(x, y, by_x, by_y)
    np.testing.assert_allclose(by_x, 2 * x + np.cos(x), rtol=1e-6)


def test_indices_in_another_order():
    x, y = np.arange(9.0).reshape(3, 3), np.zeros((3, 3))
    by_x, by_y = np.full((3, 3), GARBAGE), np.ones((3, 3))
    transposed.adjoint(["x", "y"], fresh=["x"]).forall((3, 3))(x, y, by_x, by_y)
    assert np.array_equal(by_x, 2 * x)


def test_elements_that_no_thread_has_keep_what_they_hold():
    x, y = np.arange(4.0), np.zeros(4)
    by_x, by_y = np.array([GARBAGE, GARBAGE, 7, 8]), np.ones(4)
    twice.adjoint(["x", "y"], fresh=["x"]).forall(2)(x, y, by_x, by_y)
    assert by_x.tolist() == [1, 2 + math.cos(1), 7, 8]


@kernel
def if_positive(x, y):
    i = tid()
    y[i] = 0.0
    if i > 0:
        y[i] = x[i]


@kernel
def either(x, y):
    i = tid()
    y[i] = x[i] if i > 0 else 0.0


@kernel
def both_places(x, y):
    i = tid()
    y[i] = x[i]
    if i > 0:
        y[i] = x[i] * x[i]


@kernel
def in_a_loop(x, y, n):
    i = tid()
    s = 0.0
    for _ in range(n):
        s += x[i]
    y[i] = s


@kernel
def neighbours(x, y):
    i = tid()
    y[i] = x[i] + x[(i + 1) % x.shape[0]]


@kernel
def returns(x, y):
    i = tid()
    if i > 0:
        return
    y[i] = x[i]


@kernel
def raises(x, y):
    i = tid()
    t = x[i]
    if t < 0:
        raise ValueError("negative")
    y[i] = t


@kernel
def in_place(x, y):
    i = tid()
    y[i] = x[i]
    x[i] = 0.0


@kernel
def one_of_a_row(x, y):
    i = tid()
    y[i] = x[i, 0]


@kernel
def by_atomics(x, y):
    i = tid()
    atomic_add(x, i, 1.0)
    y[i] = 2.0


@func
def element(x, i):
    return x[i]


@kernel
def by_a_function(x, y):
    i = tid()
    y[i] = element(x, i)


@kernel
def nowhere(x, y):
    i = tid()
    y[i] = 1.0


NOT_OWN = [
    if_positive,
    either,
    both_places,
    in_a_loop,
    neighbours,
    returns,
    raises,
    in_place,
    one_of_a_row,
    by_atomics,
    nowhere,
]


@pytest.mark.parametrize("kernel", NOT_OWN, ids=lambda kernel: kernel.name)
def test_adjoints_that_must_be_added_up_are_refused(kernel):
    assert "x" not in indexing_of(kernel).loaded
    x = np.ones((2, 2)) if kernel is one_of_a_row else np.ones(2)
    by_x, by_y = np.full_like(x, 5), np.ones(2)
    more = [1] if kernel is in_a_loop else []
    with pytest.raises(
        KernelUnsupportedError, match="do not all store their own element of the adjoint of 'x'; pass zeros"
    ):
        kernel.adjoint(["x", "y"], fresh=["x"]).forall(2)(x, np.zeros(2), *more, by_x, by_y)
    assert (by_x == 5).all()


@kernel
def over_the_grid(x, y):
    for i in range(cuda.grid(1), 2, cuda.gridsize(1)):
        y[i] = 2.0 * x[i]


def test_what_a_loop_over_the_grid_may_leave_out_is_refused():
    by_x = np.full(4, 5.0)
    with pytest.raises(KernelUnsupportedError, match="of the adjoint of 'x', but run a loop over the grid; pass zeros"):
        over_the_grid.adjoint(["x", "y"], fresh=["x"]).forall(4)(np.ones(4), np.zeros(4), by_x, np.ones(4))
    assert (by_x == 5).all()


def test_what_only_the_generator_sees_is_stored_too():
    assert "x" not in indexing_of(by_a_function).loaded
    x, by_x, by_y = np.ones(2), np.full(2, GARBAGE), np.ones(2)
    by_a_function.adjoint(["x", "y"], fresh=["x"]).forall(2)(x, np.zeros(2), by_x, by_y)
    assert by_x.tolist() == [1, 1]


def test_names_and_memory_are_checked():
    with pytest.raises(NumbridgeValueError, match="'y' is not among its parameters"):
        twice.adjoint(["x"], fresh=["y"])
    x, shared = np.ones(2), np.zeros(2)
    with pytest.raises(
        BufferAccessError, match="adjoints share memory, so they are added up; pass zeros and no `fresh`"
    ):
        stepped.adjoint(["x", "w", "y"], fresh=["x", "w"]).forall(2)(x, x, np.zeros(2), shared, shared, np.ones(2))
    assert shared.tolist() == [0, 0]


@kernel
def added_to(a: float, x, y):
    i = tid()
    y[i] += a * x[i]


@kernel
def stored_after(x, y, z):
    i = tid()
    v = y[i] + x[i]
    z[i] = 2.0 * v
    y[i] = v


@kernel
def stored_before(x, y, z):
    i = tid()
    v = y[i] + x[i]
    y[i] = v
    z[i] = 2.0 * v


@kernel
def stored_elsewhere(x, y, z):
    i = tid()
    v = y[i] + x[i]
    z[i] = v
    y[i] = v
    y[i] = y[i] + z[i]


@pytest.mark.parametrize(
    ("kernel", "stored", "wanted"),
    [
        (added_to, False, ([3.0], [1.0])),
        (stored_after, True, ([5.0], [5.0], [0.0])),
        (stored_before, True, ([5.0], [5.0], [0.0])),
        (stored_elsewhere, True, ([4.0], [4.0], [0.0])),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_adjoint_that_an_element_holds_already_is_not_stored(kernel, stored, wanted):
    first = [3.0] if kernel is added_to else []
    arrays = [np.ones(1), np.ones(1)] + [np.ones(1)] * (not first)
    adjoints = [np.array([value]) for value in (0.0, 1.0, 2.0)[: len(arrays)]]
    adjoint = kernel.adjoint(["x", "y", "z"][: len(arrays)])
    assert ("_nb_adj_y[_nb_i0] =" in adjoint.explain(*first, *arrays, *adjoints).source) == stored
    adjoint.forall(1)(*first, *arrays, *adjoints)
    assert [list(found) for found in adjoints] == [*wanted]
