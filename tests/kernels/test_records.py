"""Arrays of structured NumPy dtypes in kernels: as records, on the memory that is there, and as vectors where they fit."""

from __future__ import annotations

import gc
import pickle

import ml_dtypes
import numpy as np
import pytest
from numba import cuda
from numba.np.numpy_support import from_dtype

import numbridge as nb

N = 6
PARTICLE = np.dtype([("x", np.float32), ("mass", np.float64), ("kind", np.int32)], align=True)
PACKED = np.dtype([("flag", np.uint8), ("x", np.float32), ("mass", np.float64), ("kind", np.int16)])
OF_NUMBA = from_dtype(PACKED)
NESTED = np.dtype([("v", np.float32, (3,)), ("inner", PARTICLE)], align=True)


def particles(dtype=PARTICLE):
    made = np.zeros(N, dtype)
    made["x"], made["mass"], made["kind"] = np.arange(N), 0.5, 7
    return made


@nb.kernel
def step(p, q):
    i = nb.tid()
    q[i].x = p[i].x * 2.0 + p[i]["mass"]
    q[i]["mass"] = p[i].mass + 1.0
    q[i].kind += p[i].kind
    q[i]["kind"] += 2


@pytest.mark.parametrize("dtype", [PARTICLE, PACKED])
def test_fields_are_read_and_written_in_place(dtype):
    p, q = particles(dtype), particles(dtype)
    nb.launch(step, N, [p], [q])
    np.testing.assert_array_equal(q["x"], 2 * p["x"] + 0.5)
    assert (q["mass"] == 1.5).all() and (q["kind"] == 16).all()


def test_views_of_records():
    p, q = particles(), particles()
    nb.launch(step, N // 2, [p[::-2], q[::2]])
    np.testing.assert_array_equal(q["x"][::2], 2 * p["x"][::-2] + 0.5)
    assert (q["kind"][1::2] == 7).all()
    grid = np.zeros((2, 3), PARTICLE)

    @nb.kernel
    def place(g: nb.array2d[PARTICLE]):
        i, j = nb.tid()
        g[i, j].kind = i * 10 + j

    nb.launch(place, (3, 2), [grid.T])
    assert grid["kind"].tolist() == [[0, 10, 20], [1, 11, 21]]


def test_nested_fields():
    @nb.kernel
    def inner(p, out):
        i = nb.tid()
        p[i].v[1] = p[i].v[0] + 1.0
        p[i].inner.mass = 2.0
        out[i] = p[i].v[2]

    p, out = np.zeros(N, NESTED), np.zeros(N, np.float32)
    p["v"][:, 2] = np.arange(N)
    nb.launch(inner, N, [p, out])
    assert (p["v"][:, 1] == 1).all() and (p["inner"]["mass"] == 2).all() and (out == np.arange(N)).all()


@nb.kernel
def only_other_names(p):
    i = nb.tid()
    p[i].mass = 3.0


@nb.kernel
def through_an_alias(p, out):
    i = nb.tid()
    r = p[i]
    r.mass = 3.0
    out[i] = r.x


@nb.kernel
def through_a_nested_array(p, out):
    i = nb.tid()
    v = p[i].v
    v[0] = 3.0
    out[i] = v[1]


@nb.kernel
def through_a_nested_record(p, out):
    i = nb.tid()
    r = p[i].inner
    r.mass = 3.0
    out[i] = r.x


@nb.func
def change(r):
    r.mass = 3.0
    return r.x


@nb.kernel
def through_a_function(p, out):
    i = nb.tid()
    out[i] = change(p[i])


@nb.kernel
def through_a_part_name(p, out):
    i = nb.tid()
    r = p[i]
    r.x += 3.0
    out[i] = r.x


@nb.kernel
def through_a_name_in_quotes(p, out):
    i = nb.tid()
    r = p[i]
    r["x"] = 3.0
    out[i] = r.x


@nb.kernel
def through_one_of_two(p, out):
    i = nb.tid()
    r = p[i]
    if i > 2:
        r = p[0]
    r.x = 3.0
    out[i] = r.x


@nb.kernel
def through_a_column(p, out):
    i = nb.tid()
    p.x[i] = 3.0
    column = p["kind"]
    column[i] = i


@pytest.mark.parametrize(
    "kernel",
    [
        only_other_names,
        through_an_alias,
        through_a_nested_array,
        through_a_nested_record,
        through_a_function,
        through_a_part_name,
        through_a_name_in_quotes,
        through_one_of_two,
        through_a_column,
    ],
)
def test_nothing_is_written_to_read_only_records(kernel):
    p = np.zeros(N, NESTED if "nested" in kernel.name else PARTICLE)
    p.flags.writeable = False
    before = p.tobytes()
    arguments = [p] if kernel is only_other_names else [p, np.zeros(N, np.float32)]
    with pytest.raises(nb.BufferAccessError, match=r"parameter 'p': the kernel writes to it.*read-only"):
        nb.launch(kernel, N, arguments)
    assert p.tobytes() == before
    arguments[0] = p.copy()
    nb.launch(kernel, N, arguments)
    assert arguments[0].tobytes() != before


@nb.kernel
def copy(a, b):
    i = nb.tid()
    a[i] = b[i]


@nb.kernel
def copy_by_name(a, b):
    i = nb.tid()
    r = b[i]
    a[i] = r


@nb.kernel
def copy_a_field(a, b):
    i = nb.tid()
    a[i].inner = b[i].inner
    a[i].v = b[i].v


@pytest.mark.parametrize("kernel", [copy, copy_by_name, copy_a_field])
@pytest.mark.parametrize("writeable", [True, False])
def test_whole_records_are_copied(kernel, writeable):
    a, b = np.zeros(N, NESTED), np.zeros(N, NESTED)
    b["v"], b["inner"] = np.arange(3 * N).reshape(N, 3), particles()
    b.flags.writeable = writeable
    nb.launch(kernel, N, [a, b])
    np.testing.assert_array_equal(a, b)
    assert kernel.cubin(a, b, capability=(9, 0)).startswith(b"\x7fELF")


@nb.kernel
def locals_of_fields(p, out):
    i = nb.tid()
    x, kind, third = p[i].x, p[i]["kind"], p[i].v[2]
    x += 1.0
    kind *= 2
    third -= 1.0
    out[i] = x + kind + third


def test_numbers_of_fields_are_no_memory():
    p, out = np.zeros(N, [("x", "f4"), ("kind", "i4"), ("v", "f4", 3)]), np.zeros(N)
    p["kind"] = 3
    p.flags.writeable = False
    nb.launch(locals_of_fields, N, [p, out])
    assert (out == 6).all()


def test_records_of_other_dtypes_are_not_copied():
    with pytest.raises(nb.KernelError, match=r"holds nothing but record(.|\n)*a\[i\] = b\[i\]"):
        nb.launch(copy, N, [particles(), np.zeros(N, NESTED)])


def test_float64_fields_make_literals_wide():
    @nb.kernel
    def tenth(p, out):
        i = nb.tid()
        out[i].mass = 0.1

    p, out = particles(), particles()
    nb.launch(tenth, N, [p, out])
    assert (out["mass"] == 0.1).all()


def test_annotations_name_the_dtype():
    @nb.kernel
    def kinds(p: nb.array[PARTICLE], out: nb.array[int]):
        i = nb.tid()
        out[i] = p[i].kind

    out = np.zeros(N, np.int32)
    nb.launch(kinds, N, [particles(), out])
    assert (out == 7).all()
    for wrong in (particles(PACKED), np.zeros((N, 24), np.uint8), np.zeros((N, 3), np.uint64)):
        with pytest.raises(nb.NumbridgeTypeError, match=r"wanted array1d\[dtype\(\[\('x'"):
            nb.launch(kinds, N, [wrong, out])


@nb.kernel
def lengths(v: nb.array[nb.vec3], out: nb.array[float]):
    i = nb.tid()
    out[i] = nb.length(v[i])


FITTING = [
    np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")]),
    np.dtype([("xy", "f4", (2,)), ("z", "f4")], align=True),
]


@pytest.mark.parametrize("dtype", FITTING)
def test_fields_that_are_a_vectors_components(dtype):
    v, out = np.zeros((N, 3), np.float32), np.zeros(N, np.float32)
    v[:] = [0, 3, 4]
    nb.launch(lengths, N, [v.view(dtype)[:, 0], out])
    assert (out == 5).all()
    out[:] = 0
    nb.launch(lengths, N // 2, [v.view(dtype)[::2, 0], out])
    assert (out[: N // 2] == 5).all()


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype([("x", "f4"), ("y", "f4")]),
        np.dtype([("x", "f4"), ("y", "f8"), ("z", "f4")]),
        np.dtype({"names": ["x", "y", "z"], "formats": ["f4"] * 3, "offsets": [8, 4, 0]}),
        np.dtype({"names": ["x", "y", "z"], "formats": ["f4"] * 3, "offsets": [0, 4, 12]}),
    ],
)
def test_other_fields_are_no_vector(dtype):
    with pytest.raises(nb.NumbridgeTypeError, match=r"'v': wanted array1d\[vec3\], got a 1-d array of dtype"):
        nb.launch(lengths, N, [np.zeros(N, dtype), np.zeros(N, np.float32)])


def test_gradients_by_components_that_are_fields():
    v, out = np.zeros(N, FITTING[0]), np.zeros(N, np.float32)
    v["y"], v["z"] = 3, 4
    by_v = np.zeros((N, 3), np.float32)
    nb.launch(lengths, N, [v], [out], adj_inputs=[by_v], adj_outputs=[np.ones_like(out)], adjoint=True)
    np.testing.assert_allclose(by_v, np.tile([0, 0.6, 0.8], (N, 1)), rtol=1e-6)


@nb.kernel
def through_reading(p, out):
    i = nb.tid()
    out[i] = p[i].x


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros(N, np.dtype([("x", object)])), "holds Python objects"),
        (np.zeros(N, np.dtype([("x", ">f4")])), "byte order"),
        (np.zeros(N * 12 + 4, np.uint8)[1 : N * 12 + 1].view(FITTING[0]), "align"),
    ],
)
def test_refusals(array, text):
    with pytest.raises(nb.NumbridgeError, match=text):
        nb.launch(through_reading, N, [array, np.zeros(N, np.float32)])


VIEWS = [np.s_[:], np.s_[::2], np.s_[::-1], np.s_[:0], np.s_[None, 1:3]]


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("dtype", [PARTICLE, PACKED, NESTED])
@pytest.mark.parametrize("make", [nb.asarray, nb.from_numpy, nb.array])
def test_arrays_of_records_share_memory_or_copy_it(make, dtype, view):
    p = (particles(dtype) if dtype is not NESTED else np.zeros(N, NESTED))[view]
    for a in (make(p), make(p, dtype=dtype)):
        assert a.shape == p.shape and a.numpy().dtype == dtype and (a.numpy() == p).all()
        assert np.shares_memory(a.numpy(), p) == (make is not nb.array and p.size > 0)
    assert (pickle.loads(pickle.dumps(make(p))).numpy() == p).all()
    assert nb.convert(make(p), "numpy").dtype == dtype


def test_arrays_of_records_are_launched_on_and_have_gradients():
    p = particles()
    a, out = nb.from_numpy(p, requires_grad=True), nb.zeros(N, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(squared, N, [a, out])
    tape.backward(grads={out: nb.ones(N)})
    assert (out.numpy() == p["x"] ** 2).all() and (a.grad.numpy()["x"] == 2 * p["x"]).all()
    p.flags.writeable = False
    assert nb.asarray(p).read_only


@nb.kernel
def squared(p, out: nb.array[float]):
    i = nb.tid()
    out[i] = p[i].x * p[i].x


def test_records_of_lists():
    made = nb.array([(1.0, 2.0, 3), (4.0, 5.0, 6)], dtype=PARTICLE)
    assert made.numpy().tolist() == [(1, 2, 3), (4, 5, 6)]
    with pytest.raises(nb.NumbridgeValueError, match="data cannot become records of"):
        nb.array([(1.0, "two", 3)], dtype=PARTICLE)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: nb.array(p, dtype=float), "holds records of .* cannot become float32; take a field"),
        (lambda p: nb.array(p, dtype=nb.vec3), "vec3, which is float32"),
        (lambda p: nb.array(np.ones((N, 6), np.float32), dtype=PARTICLE), "the data is float32"),
        (lambda p: nb.asarray(p, dtype=PACKED), "the data is dtype"),
        (lambda p: nb.convert(p, "torch"), "torch has no records, .* convert one of the fields"),
        (lambda p: nb.asarray(np.zeros(2, [("x", object)])), "holds Python objects"),
    ],
)
def test_what_records_do_not_become(call, text):
    with pytest.raises(nb.ConversionError, match=text):
        call(particles())


@nb.kernel
def of_either(p, q, out):
    i = nb.tid()
    r = q[i]
    if i % 2 == 0:
        r = p[i]
    out[i] = r.x
    q[i].x = r.x + 1.0


def test_a_name_for_records_that_are_written_and_others_that_are_not():
    p, q, out = particles(), particles(), np.zeros(N, np.float32)
    q["x"] += 10
    p.flags.writeable = False
    nb.launch(of_either, N, [p, q, out])
    assert out.tolist() == [0, 11, 2, 13, 4, 15] and (q["x"] == out + 1).all()
    assert ".visible .entry" in of_either.ptx(p, q, out, capability=(9, 0))


@nb.kernel
def unknown_read(p):
    i = nb.tid()
    p[i].x = p[i].weight


@nb.kernel
def unknown_written(p):
    i = nb.tid()
    p[i].weight = 1.0


@pytest.mark.parametrize("kernel", [unknown_read, unknown_written])
def test_a_field_that_is_not_there_is_named(kernel):
    with pytest.raises(nb.KernelError, match="a record has no field 'weight'; the fields are 'x', 'mass', 'kind'"):
        nb.launch(kernel, N, [particles()])


@nb.kernel
def in_fields(p, out):
    i = nb.tid()
    out[i] = p[i].inner.v + p[i].v * p[i].v
    p[i].v = p[i].inner.v
    p[i].inner.v = 1.0 + p[i].k


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("align", [False, True])
def test_fields_of_narrow_floats(dtype, align):
    record = np.dtype([("k", np.float32), ("v", dtype), ("inner", [("v", dtype)])], align=align)
    p, out = np.zeros(N, record), np.zeros(N, np.float32)
    p["k"], p["v"], p["inner"]["v"] = 0.265625, 1.5, np.arange(N)
    nb.launch(in_fields, N, [p, out])
    assert (out == np.arange(N) + 2.25).all() and (p["v"] == np.arange(N).astype(dtype)).all()
    assert (p["inner"]["v"] == np.float32(1.265625).astype(dtype)).all()
    if align:
        assert ".visible .entry" in in_fields.ptx(p, out, capability=(9, 0))
    with pytest.raises(nb.KernelUnsupportedError, match=f"is {np.dtype(dtype).name}, and derivatives are computed"):
        nb.launch(in_fields, N, [p, out], adj_inputs=[p.copy(), np.ones(N, np.float32)], adjoint=True)


def test_arrays_of_narrow_floats_in_records_are_refused():
    p = np.zeros(N, [("x", np.float32), ("v", np.float16, 2)])
    with pytest.raises(nb.ConversionError, match="an array of float16 within a record; use a field for each number"):
        nb.launch(unknown_written, N, [p])


def test_records_compile_for_cuda():
    assert ".visible .entry" in step.ptx(particles(), particles(), capability=(9, 0))


def test_a_field_that_cuda_does_not_write_is_named():
    dense = np.dtype([("flag", np.uint8), ("x", np.float32)])
    with pytest.raises(
        nb.KernelError, match=r"the field .x of a record is not aligned, as CUDA needs it; .*align=True\n"
    ):
        halve.ptx(np.zeros(3, dense), capability=(9, 0))


@nb.kernel
def halve(p):
    i = nb.tid()
    p[i].x = 0.5 * p[i].x


@nb.kernel
def turned_round(p, q):
    tile = cuda.shared.array(N, PACKED)
    i = cuda.threadIdx.x
    own = cuda.local.array(2, OF_NUMBA)
    own[1] = p[i]
    own[1].x += 0.5
    tile[i] = own[1]
    cuda.syncthreads()
    q[i] = tile[N - 1 - i]


def test_records_in_local_and_shared_memory():
    p, q = particles(PACKED), np.zeros(N, PACKED)
    turned_round[1, N](p, q)
    wanted = p.copy()[::-1]
    wanted["x"] += 0.5
    assert q.tolist() == wanted.tolist()
    with pytest.raises(
        nb.KernelUnsupportedError, match="shared arrays of records have no derivative; use an array for each"
    ):
        nb.launch(turned_round, N, [p, q], adj_inputs=[p.copy(), q.copy()], adjoint=True, block_dim=N)


@nb.kernel
def moved(out, p, by):
    i = nb.tid()
    out[i] = p.x + p["mass"] * by + i


@nb.kernel
def changed(p, by):
    p.x += by
    p["kind"] = 3


@pytest.mark.parametrize("as_record", [lambda a: a[1], lambda a: np.rec.array(a)[1], lambda a: a[1].copy()])
def test_a_record_is_an_argument(as_record):
    record = as_record(particles())
    for _ in range(2):
        out = np.zeros(2)
        nb.launch(moved, 2, [out, record, 4.0])
        assert out.tolist() == [3.0, 4.0]
    moved[1, 2](out, record, 6.0)
    assert out.tolist() == [4.0, 5.0]
    nb.launch(changed, 1, [record, 0.5])
    assert (record["x"], record["mass"], record["kind"]) == (1.5, 0.5, 3)


def test_records_whose_fields_lie_in_another_order():
    fields = {"names": ["x", "mass"], "formats": [np.float32, np.float64], "offsets": [8, 0], "itemsize": 16}
    p, out = np.zeros(2, np.dtype(fields)), np.zeros(1)
    p["x"], p["mass"] = 3.0, 0.5
    nb.launch(moved, 1, [out, p[1], 2.0])
    assert out[0] == 4.0


def test_a_record_is_memory_of_its_array():
    p = particles()
    nb.launch(changed, 1, [p[2], 1.0])
    assert p["x"].tolist() == [0, 1, 3, 3, 4, 5]
    assert p["kind"].tolist() == [7, 7, 3, 7, 7, 7]
    p.flags.writeable = False
    with pytest.raises(nb.BufferAccessError, match=r"kernel 'changed', parameter 'p': .*read-only"):
        nb.launch(changed, 1, [p[2], 1.0])
    out = np.zeros(1)
    nb.launch(moved, 1, [out, p[2], 2.0])
    assert out[0] == 4.0


def test_records_that_are_gone():
    command = nb.launch(moved, 1, [np.zeros(1), particles()[3], 2.0], record_cmd=True)
    out = np.zeros(1)
    command.set_param_at_index(0, out)
    gc.collect()
    command.launch()
    assert out[0] == 4.0


def test_records_within_tuples_and_in_functions():
    @nb.func
    def total(p, by):
        return p.x + p.mass * by

    @nb.kernel
    def kernel(out, pair, other):
        i = nb.tid()
        p, by = pair
        if pair[0] is not None and other is None:
            out[i] = total(p, by) + pair[0].kind

    out = np.zeros(2)
    nb.launch(kernel, 2, [out, (particles()[1], 2.0), None])
    assert out.tolist() == [9.0, 9.0]


def test_gradients_beside_a_record():
    @nb.kernel
    def scaled(x, p, y):
        i = nb.tid()
        y[i] = x[i] * p.mass

    x, y = nb.array([1.0, 2.0], requires_grad=True), nb.zeros(2, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(scaled, 2, [x, particles()[0], y])
    tape.backward(grads={y: nb.ones(2)})
    assert x.grad.list() == [0.5, 0.5]
    adjoint = particles()[0]
    adjoints = {"adj_inputs": [None, adjoint], "adj_outputs": [np.ones(2, np.float32)]}
    nb.launch(scaled, 2, [x, particles()[0]], [y], **adjoints, adjoint=True)
    assert adjoint["mass"] == 0.5 + 3.0


def test_memory_without_fields_is_no_record():
    with pytest.raises(nb.NumbridgeTypeError, match=r"parameter 'p': an object of type numpy.void is no array"):
        nb.launch(moved, 1, [np.zeros(1), np.void(b"abcd"), 1.0])
