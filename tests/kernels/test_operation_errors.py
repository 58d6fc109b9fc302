"""What is said of an operation on vectors, matrices and records that there is not: in the kernel's words, with the way out."""

from __future__ import annotations

import re

import numpy as np
import pytest

import numbridge as nb

PLACE = np.dtype([("x", np.float32), ("n", np.int32)])
OTHER = np.dtype([("y", np.float64)])


@nb.kernel
def another_scalar(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = v[i] + nb.vec3d(1.0)


@nb.kernel
def plus_a_number(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = v[i] + 1.0


@nb.kernel
def product(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = v[i] * v[i]


@nb.kernel
def reciprocal(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = 1.0 / v[i]


@nb.kernel
def power(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = v[i] ** 2


@nb.kernel
def order(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i][0] = float(v[i] < v[0])


@nb.kernel
def truth(v: nb.array[nb.vec3]):
    i = nb.tid()
    if v[i]:
        v[i] = v[0]


@nb.kernel
def piece(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.vec3(v[i][0 : i + 2], 1.0)


@nb.kernel
def a_number_is_stored(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = 1.0


@nb.kernel
def a_vector_is_stored(v: nb.array[nb.vec3], out: nb.array[float]):
    i = nb.tid()
    out[i] = v[i]


@nb.kernel
def together(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i, 0] = 1.0


@nb.kernel
def nothing_left(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i][0] = v[i][3:][0]


@nb.kernel
def nothing_left_to_store(v: nb.array[nb.vec3]):
    v[nb.tid()][3:] = nb.vec2(1.0, 2.0)


@nb.kernel
def row_beyond_of_a_store(v: nb.array[nb.vec3]):
    m = nb.outer(v[0], v[0])
    m[1:, -4] = nb.vec2(1.0, 2.0)


@nb.kernel
def longer_than_the_slice(v: nb.array[nb.vec3]):
    u = v[nb.tid()]
    u[:2] = u


@nb.kernel
def slice_in_place(v: nb.array[nb.vec3]):
    u = v[nb.tid()]
    u[:2] += u[1:]


@nb.kernel
def piece_of_a_store(v: nb.array[nb.vec3]):
    i = nb.tid()
    u = v[i]
    u[:i] = nb.vec2(1.0, 2.0)


@nb.kernel
def starred(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.vec3(*v[i])


@nb.kernel
def starred_beside_others(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.vec3(1.0, *v[i])


@nb.kernel
def a_starred_array(x):
    v = nb.vec2(*x[0])
    x[0, 0] = v.x


@nb.kernel
def dtype_called(v: nb.array[nb.vec3], x):
    v[0] = nb.vec3(x.dtype(1))


@nb.kernel
def type_of_a_vector(v: nb.array[nb.vec3]):
    v[0] = type(v[1])(1.0)


@nb.kernel
def swizzled(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.vec3(v[i].xy, 1.0)


@nb.kernel
def too_few(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.vec3(1.0, 2.0)


@nb.kernel
def of_rows(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.mat33(v[i], v[i], v[i]) * v[i]


@nb.kernel
def wrong_operand(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.inverse(v[i])


@nb.kernel
def two_types(v: nb.array[nb.vec3]):
    i = nb.tid()
    u = nb.vec2(0.0)
    if i > 1:
        u = v[i]
    v[i] = v[i] * u[0]


@nb.kernel
def two_records(p, q):
    i = nb.tid()
    r = p[i]
    if i > 1:
        r = q[i]
    p[i].n = int(r.x)


@nb.kernel
def record_of_a_number(p):
    i = nb.tid()
    p[i] = 1.0


@nb.kernel
def half_the_index(x):
    i = nb.tid()
    v = x[i / 2]
    x[i] = v + v


@nb.kernel
def half_the_index_of_a_store(x):
    i = nb.tid()
    x[i / 2] = nb.vec3(1.0, 2.0, 3.0)


@nb.kernel
def at_a_vector(x):
    cell = nb.vec2i(1, nb.tid())
    x[cell][0] = 1.0


@nb.kernel
def stored_at_a_vector(x):
    cell = nb.vec2i(1, nb.tid())
    x[cell] = nb.vec3(1.0)


@nb.kernel
def method(x: nb.array[nb.vec3]):
    i = nb.tid()
    x[i] = x[i].normalized()


@nb.kernel
def dot_as_a_method(x: nb.array[nb.vec3]):
    i = nb.tid()
    x[i][0] = x[i].dot(x[i])


VECTORS = [np.ones((4, 3), np.float32)]
FRACTION = "an index is an integer, and this is a float64; divide with //, or convert with int(...)"
CASES = [
    (
        another_scalar,
        "there is no vec3 + vec3d; convert one of them, as in vec3(value), if they have as many components",
    ),
    (plus_a_number, "there is no vec3 + float32; make a vec3 of the number, as in vec3(value)"),
    (product, "there is no vec3 * vec3; nb.dot, nb.cross, nb.outer and nb.cw_mul multiply vectors"),
    (reciprocal, "there is no float32 / vec3; nb.cw_div(vec3(value), v) divides by component"),
    (power, "there is no vec3 ** int; multiply, as in v[0] * v[0]"),
    (order, "there is no vec3 < vec3; compare components, or lengths"),
    (truth, "a vec3 is neither true nor false; compare it, or one of its components"),
    (piece, "and a slice is written with constants, within its dimensions, and leaves something of it, as in v[0:2]"),
    (a_number_is_stored, "an array of vec3 holds nothing but vec3, and float32 is stored; store vec3(...)"),
    (
        a_vector_is_stored,
        "an array of float32 holds nothing but float32, and vec3 is stored; store its parts, as in v[0]",
    ),
    (together, "the components of its elements are indexed apart, as in a[i][0] = value"),
    (at_a_vector, "has no index of type vec2i; its indices are numbers, one for each axis, as in a[v[0], v[1]]"),
    (stored_at_a_vector, "has no index of type vec2i; its indices are numbers, one for each axis, as in a[v[0], v[1]]"),
    (method, "a vec3 has no method 'normalized'; write nb.normalize(v)"),
    (dot_as_a_method, "numpy.dot does not take (vec3, vec3); write nb.dot(v, w), or m @ n for matrices"),
    (half_the_index, FRACTION),
    (half_the_index_of_a_store, FRACTION),
    (nothing_left, "and a slice is written with constants, within its dimensions, and leaves something of it"),
    (nothing_left_to_store, "a slice of a vec3 is written with constants, within its dimensions, and leaves something"),
    (row_beyond_of_a_store, "index -4 is out of range for axis 1 of a mat33, whose extent is 3"),
    (longer_than_the_slice, "vec2 can be stored into this part of a vec3, and not vec3"),
    (slice_in_place, "a slice is written with constants, as in v[0:2] = w, and not computed with in place"),
    (starred, "the parts of a vec3 are not passed by a star, and make no tuple; unpack it before, as in a, b = v"),
    (starred_beside_others, "the parts of a vec3 are not passed by a star, and make no tuple; unpack it before"),
    (
        a_starred_array,
        "only the parts of a tuple are passed one by one by a star, and this is an array of float32; write the arguments out",
    ),
    (
        piece_of_a_store,
        "a vec3 does not take vec2 at an index of type slice; a slice is written with constants, as in v[0:2] = w",
    ),
    (
        dtype_called,
        "a dtype is not called in a kernel; what makes numbers of it is its .type, as in x.dtype.type(value)",
    ),
    (type_of_a_vector, "type does not take (vec3); name the type, as in nb.vec3(value)"),
    (swizzled, "a vec3 has no part 'xy'; take components, as in v[0]"),
    (too_few, "vec3 is not made of (float32, float32): pass nothing, one number for all components"),
    (of_rows, "mat33 is not made of (vec3, vec3, vec3): nb.matrix_from_rows and nb.matrix_from_cols make a matrix"),
    (wrong_operand, "inverse does not take (vec3); it takes square floating matrices of up to 4 rows, and quaternions"),
    (two_types, "'u' is a vec2 on one path and a vec3 on another; use a name for each"),
    (two_records, "'r' is a record (x, n) on one path and a record (y) on another; use a name for each"),
    (record_of_a_number, "an array of record (x, n) holds nothing but record (x, n), and float32 is stored"),
]


@pytest.mark.parametrize(("kernel", "problem"), CASES, ids=[kernel.name for kernel, _ in CASES])
def test_what_there_is_not_is_said_plainly(kernel, problem):
    arguments = VECTORS
    if "record" in kernel.name:
        arguments = [np.zeros(4, PLACE), np.zeros(4, OTHER)][: len(kernel.parameters)]
    elif kernel in (a_vector_is_stored, dtype_called):
        arguments = [*VECTORS, np.zeros(4, np.float32)]
    with pytest.raises(nb.KernelError, match=rf"does not compile for \(.*\): .*{re.escape(problem)}.*\n  {__file__}"):
        nb.launch(kernel, 4, arguments)


@nb.kernel
def a_complex_number_is_stored(x, y):
    i = nb.tid()
    y[i] = x[i]


def test_a_complex_number_in_an_array_of_real_ones():
    wanted = r"an array of float64 does not take complex64; store its .real or .imag, or pass an array of complex64; one that"
    with pytest.raises(nb.KernelError, match=wanted):
        nb.launch(a_complex_number_is_stored, 4, [np.ones(4, np.complex64), np.zeros(4)])


@nb.func
def fourth(v):
    return v[3]


@nb.kernel
def read_beyond(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.vec3(fourth(v[i]))


@nb.kernel
def written_before(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i][-4] = 1.0


@nb.kernel
def column_beyond(v: nb.array[nb.vec3]):
    i = nb.tid()
    m = nb.outer(v[i], nb.vec2(1.0))
    m[2, 2] = 1.0
    v[i] = nb.vec3(m[0, 0])


@nb.kernel
def row_beyond(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.vec3(nb.outer(v[i], v[i])[3][0])


@nb.kernel
def row_beyond_beside_a_slice(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = nb.vec3(nb.outer(v[i], v[i])[3, 1:], 1.0)


@nb.kernel
def unpacked(v: nb.array[nb.vec3]):
    i = nb.tid()
    a, b = v[i]
    v[i] = nb.vec3(b, b, a)


@nb.func
def first_row(m):
    (a,) = m
    return a


@nb.kernel
def unpacked_rows(v: nb.array[nb.vec3]):
    i = nb.tid()
    v[i] = first_row(nb.outer(v[i], v[i]))


@pytest.mark.parametrize("capability", [None, (9, 0)])
@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (read_beyond, "index 3 is out of range for axis 0 of a vec3, whose extent is 3"),
        (written_before, "index -4 is out of range for axis 0 of a vec3, whose extent is 3"),
        (column_beyond, "index 2 is out of range for axis 1 of a mat32, whose extent is 2"),
        (row_beyond, "index 3 is out of range for axis 0 of a mat33, whose extent is 3"),
        (row_beyond_beside_a_slice, "index 3 is out of range for axis 0 of a mat33, whose extent is 3"),
        (unpacked, "a vec3 has 3 components, and is unpacked into 2 names"),
        (unpacked_rows, "a mat33 has 3 rows, and is unpacked into 1 name"),
    ],
)
def test_a_constant_index_that_an_element_has_not(kernel, problem, capability):
    before = VECTORS[0].copy()
    with pytest.raises(nb.KernelError, match=rf"{problem}\n  {__file__}"):
        kernel.ptx(*VECTORS, capability=capability) if capability else nb.launch(kernel, 4, VECTORS)
    assert (VECTORS[0] == before).all()


@nb.kernel(check_bounds=True)
def component(v: nb.array[nb.vec3], k: int):
    i = nb.tid()
    v[i][1] = v[i][k] + 1.0


@nb.kernel(check_bounds=True)
def component_stored(v: nb.array[nb.vec3], k: int):
    i = nb.tid()
    u = v[i]
    u[k] = 1.0
    v[i] = u


@pytest.mark.parametrize(("kernel", "what"), [(component, "v[i]"), (component_stored, "u")])
@pytest.mark.parametrize("index", [3, -4])
def test_checked_indices_of_components(kernel, what, index):
    v = np.ones((4, 3), np.float32)
    nb.launch(kernel, 4, [v, -3])
    wanted = f"index {index} is out of range for axis 0 of {what}, whose extent is 3"
    with pytest.raises(IndexError, match=re.escape(wanted)):
        nb.launch(kernel, 4, [v, index])


@nb.func
def first_extent(x):
    return x.shape[0]


@nb.kernel
def extent_of_a_part(pair, y):
    y[0] = first_extent(pair[0])


def test_attributes_of_none():
    with pytest.raises(
        nb.KernelError, match=r"None has no \.shape; ask for an argument that may be None before, as in `if x"
    ):
        nb.launch(extent_of_a_part, 1, [(None, 1), np.zeros(1)])


@nb.func
def product_of_all(*numbers):
    product = 1.0
    for k in range(len(numbers)):
        product = product * numbers[k]
    return product


@nb.kernel
def product_of_none(y):
    y[0] = product_of_all()


def test_a_part_of_an_empty_tuple():
    with pytest.raises(
        nb.KernelError, match=r"this tuple is empty, so there is no part of it to choose; .* pass one or more"
    ):
        nb.launch(product_of_none, 1, [np.zeros(1)])


@nb.kernel
def size_of_one(y):
    y[0] = y.dtype.itemsize


def test_attributes_of_a_dtype():
    way = r"a dtype has no itemsize in a kernel; .* or write nb\.static\(np\.float64\(0\)\.itemsize\)"
    with pytest.raises(nb.KernelError, match=way):
        nb.launch(size_of_one, 1, [np.zeros(1)])
