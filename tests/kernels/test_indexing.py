"""Which elements a thread touches, from the source alone: bound axes, free indices, parameters that are stored as a whole."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from numbridge.kernels.language.indexing import indexing_of


@nb.kernel
def elementwise(x, s, out):
    i, j = nb.tid()
    out[i, j] = x[i, j] * s


@nb.kernel
def transposed(x, out):
    i, j = nb.tid()
    out[j, i] = x[i, j]


@nb.kernel
def matmul(a, b, c):
    i, j = nb.tid()
    s = 0.0
    for k in range(a.shape[1]):
        s += a[i, k] * b[k, j]
    c[i, j] = s


@nb.kernel
def guarded(a, b, c):
    i, j = nb.tid()
    n, m = a.shape[0], b.shape[1]
    if i < n and j < m and i < a.shape[0]:
        c[i, j] = a[i, 0] * b[0, j]


@nb.kernel
def guarded_by_another(a, b, c):
    i = nb.tid()
    if i < b.shape[0]:
        c[i] = a[i] + b[0]


@nb.kernel
def lookup(table, indices, out):
    i = nb.tid()
    out[i] = table[indices[i]]


@nb.kernel
def stencil(x, out):
    i = nb.tid()
    if i > 0:
        out[i] = x[i - 1] + x[i]


@nb.kernel
def own_number(x, out):
    i = nb.tid()
    out[i] = x[i] + i


@nb.kernel
def scaled_by_extent(x, out):
    i = nb.tid()
    out[i] = x[i] / x.shape[0]


@nb.kernel
def length(x, out):
    i = nb.tid()
    out[i] = x[i] / len(x)


@nb.kernel
def negative_axis(x, out):
    i = nb.tid()
    out[i] = x[i] / x.shape[-1]


@nb.kernel
def row_sums(m, sums):
    i, j = nb.tid()
    nb.atomic_add(sums, i, m[i, j])


@nb.kernel
def total(x, out):
    i = nb.tid()
    nb.atomic_add(out, 0, x[i])


@nb.func
def first(x):
    return x[0]


@nb.kernel
def passes_array_on(x, y, out):
    i = nb.tid()
    out[i] = first(x) + y[i]


@nb.func
def at(x, i):
    return x[i]


@nb.kernel
def passes_index_on(x, out):
    i = nb.tid()
    out[i] = at(x, i)


@nb.func
def index():
    return nb.tid()


@nb.kernel
def index_elsewhere(x, out):
    i = index()
    out[i] = x[i]


@nb.kernel
def index_changes(x, out):
    i = nb.tid()
    i = i + 1
    out[i] = x[i]


@nb.kernel
def two_uses(x, out):
    i = nb.tid()
    out[i] = x[nb.tid()]


@nb.kernel
def own_element_and_another(x, out):
    i = nb.tid()
    out[i] = x[i] + x[0]


@nb.kernel
def rows(x, out):
    i = nb.tid()
    for k in range(x.shape[1]):
        out[i, k] = x[i, k]


@nb.kernel
def one_of_two(x, out, last):
    i = nb.tid()
    out[i] = x[i]
    last[0] = x[0]


@nb.kernel
def dots(x, out):
    i = nb.tid()
    out[i] = x[i] + x.size


@nb.kernel
def behind_an_ellipsis(x, out):
    i = nb.tid()
    out[..., i] = x[i]


@nb.kernel
def behind_a_new_axis(x, out):
    i = nb.tid()
    out[i] = x[np.newaxis, i][0]


@nb.kernel
def neighbour_in_a_warp(x, out):
    i = nb.tid()
    out[i] = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)


CASES = {
    "elementwise": (elementwise, {0, 1}, {"x": (0, 1), "out": (0, 1), "s": ()}, {"out"}),
    "transposed": (transposed, {0, 1}, {"x": (0, 1), "out": (1, 0)}, set()),
    "matmul": (matmul, {0, 1}, {"a": (0, None), "b": (None, 1), "c": (0, 1)}, {"c"}),
    "guarded": (guarded, {0, 1}, {"a": (0, None), "b": (None, 1), "c": (0, 1)}, set()),
    "guarded by another": (guarded_by_another, set(), None, set()),
    "lookup": (lookup, {0}, {"table": (None,), "indices": (0,), "out": (0,)}, {"out"}),
    "stencil": (stencil, set(), None, set()),
    "own number": (own_number, set(), None, {"out"}),
    "extent": (scaled_by_extent, set(), None, {"out"}),
    "length": (length, set(), None, {"out"}),
    "negative axis": (negative_axis, set(), None, {"out"}),
    "row sums": (row_sums, {0}, {"m": (0, 1), "sums": (0,)}, set()),
    "total": (total, set(), None, set()),
    "array passed on": (passes_array_on, {0}, {"x": (), "y": (0,), "out": (0,)}, {"out"}),
    "index passed on": (passes_index_on, set(), None, {"out"}),
    "index elsewhere": (index_elsewhere, set(), {}, set()),
    "index changes": (index_changes, set(), {}, set()),
    "two uses": (two_uses, set(), {}, set()),
    "own and another": (own_element_and_another, set(), None, {"out"}),
    "rows": (rows, {0}, {"x": (0, None), "out": (0, None)}, set()),
    "one of two": (one_of_two, set(), None, {"out"}),
    "size": (dots, set(), None, {"out"}),
    "ellipsis": (behind_an_ellipsis, set(), {"x": (0,), "out": ()}, set()),
    "new axis": (behind_a_new_axis, set(), {"x": (), "out": (0,)}, {"out"}),
    "threads together": (neighbour_in_a_warp, set(), None, {"out"}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_thread_touches(case):
    kernel, free, bound, covered = CASES[case]
    found = indexing_of(kernel)
    assert found.free == free and found.covered == covered
    assert bound is None or found.bound == bound


@nb.kernel
def sometimes(x, out):
    i = nb.tid()
    if x[i] < 0:
        return
    out[i] = x[i]


@nb.kernel
def reads_first(x, out):
    i = nb.tid()
    old = out[i]
    out[i] = x[i] + old


@nb.kernel
def adds(x, out):
    i = nb.tid()
    out[i] += x[i]


@nb.kernel
def in_a_branch(x, out):
    i = nb.tid()
    if x[i] > 0:
        out[i] = 1


@nb.kernel
def in_some_branches(x, out):
    i = nb.tid()
    if x[i] > 0:
        out[i] = 1
    elif x[i] < 0:
        out[i] = 2


@nb.kernel
def elsewhere_in_a_branch(x, out):
    i = nb.tid()
    if x[i] > 0:
        out[i] = 1
    else:
        out[0] = 2


@nb.kernel
def ends_in_a_branch(x, out):
    i = nb.tid()
    if x[i] > 0:
        out[i] = 1
    else:
        if x[i] < -1:
            return
        out[i] = 2


@nb.kernel
def read_in_a_branch(x, out):
    i = nb.tid()
    if x[i] > 0:
        out[i] = 1
    else:
        out[i] = 2
        out[i] += x[i]


@nb.kernel
def in_a_loop(x, out):
    i = nb.tid()
    for _ in range(int(x[i])):
        out[i] = 1


@nb.kernel
def shifted(x, out):
    i = nb.tid()
    out[i + 1] = x[i]


@nb.kernel
def stores_then_returns(x, out):
    i = nb.tid()
    out[i] = x[i]
    if x[i] < 0:
        return
    out[i] = 2 * x[i]


@nb.kernel
def raises_first(x, out):
    i = nb.tid()
    if x[i] < 0:
        raise ValueError("x is negative")
    out[i] = x[i]


@nb.kernel
def asserts_first(x, out):
    i = nb.tid()
    assert x[i] >= 0
    out[i] = x[i]


@nb.kernel
def in_every_branch(x, out, more):
    i = nb.tid()
    if x[i] > 0:
        out[i] = 1
        more[i] = 1
    elif x[i] < -1:
        more[i] = 2
        out[i] = 2
        if x[i] < -2:
            return
        more[i] = 3
    else:
        out[i] = 3


NOT_SURE = [
    *(sometimes, reads_first, adds, shifted, raises_first, asserts_first),
    *(in_a_branch, in_some_branches, elsewhere_in_a_branch, ends_in_a_branch, read_in_a_branch, in_a_loop),
]


@pytest.mark.parametrize("kernel", NOT_SURE, ids=lambda kernel: kernel.name)
def test_what_is_not_surely_stored(kernel):
    assert indexing_of(kernel).covered == set()


def test_what_is_stored_in_every_branch():
    assert indexing_of(in_every_branch).covered == {"out"}


def test_what_is_stored_before_a_return():
    assert indexing_of(stores_then_returns).covered == {"out"}
