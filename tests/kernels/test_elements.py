"""Vectors and matrices as values, in kernels by every operation, as arguments, and as arrays of other frameworks."""

import pickle

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from emulated_cuda import emulated_cuda
from numbridge.kernels.element_types.element_operations import OPERATIONS, expand
from numbridge.kernels.element_types.elements import Element, by_number
from numbridge.kernels.readers import describe

RNG = np.random.default_rng(7)


def values(kind, count=5):
    """Return `count` random elements as an array of scalars, away from what is singular."""
    numbers = RNG.uniform(0.5, 2.0, (count, *kind.extents)) * RNG.choice([-1, 1], (count, *kind.extents))
    return numbers.astype(kind.scalar.numpy)


# ----------------------------------------------------------------------------------------------------------- values


def test_types_are_made_once():
    assert nb.vector(3, float) is nb.vec3 and nb.vec3f is nb.vec3 and nb.matrix((2, 2), np.float64) is nb.mat22d
    assert nb.vector(6) is nb.spatial_vector and nb.matrix((6, 6)) is nb.spatial_matrix
    assert nb.quat is not nb.vec4 and by_number(nb.quat.number) is nb.quat
    assert (nb.mat33.bytes, nb.mat33.count, nb.vec3h.bytes, nb.vec2i.scalar.name) == (36, 9, 6, "int32")
    assert repr(nb.matrix((12, 3), np.uint8)) == "mat12x3_uint8"


@pytest.mark.parametrize("name", [n + s for n in ("vec2", "vec3", "vec4", "mat22", "mat33", "mat44") for s in "fdhi"])
def test_names(name):
    kind = getattr(nb, name)
    length = int(name[3])
    assert kind.extents == ((length,) if name.startswith("vec") else (length, length))
    assert kind.scalar.name == {"f": "float32", "d": "float64", "h": "float16", "i": "int32"}[name[-1]]
    assert kind.name == name.removesuffix("f")


def test_construction():
    assert nb.vec3() == nb.vec3(0) == nb.vec3(0, 0, 0)
    assert nb.vec4(nb.vec3(1, 2, 3), 4) == nb.vec4(1, 2, 3, 4)
    assert nb.vec3d(nb.vec3(1, 2, 3)) == nb.vec3d(1, 2, 3)
    assert nb.mat22([[1, 2], [3, 4]]) == nb.mat22([1, 2, 3, 4]) == nb.mat22(np.arange(1.0, 5)) == nb.mat22(1, 2, 3, 4)
    for wrong in (nb.vec4(1, 2, 3, 4), [1, 2, 3]):
        with pytest.raises(nb.NumbridgeValueError, match=r"mat22 has 4 components \(2 x 2\), got 1 argument\(s\)"):
            nb.mat22(wrong)
    pose = nb.transform(nb.vec3(1, 2, 3), nb.quat(0, 0, 0, 1))
    assert pose.p == nb.vec3(1, 2, 3) and pose.q == nb.quat(0, 0, 0, 1)


@pytest.mark.parametrize("wrong", [(1, 2), (1, 2, 3, 4), ([[1, 2, 3]],), (nb.vec2(1, 2),), (nb.mat22(1), 1)])
def test_construction_refuses_what_does_not_fit(wrong):
    with pytest.raises(nb.NumbridgeValueError, match=r"vec3 has 3 components \(3\), got"):
        nb.vec3(*wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        (1 + 2j,),
        (np.complex64(2j), 1, 2),
        (None,),
        ("1", 2, 3),
        (np.array(["1", "2", "3"]),),
        (np.datetime64("2020-01-01"),),
        (object(), 1, 2),
    ],
    ids=lambda given: type(given[0]).__name__,
)
def test_construction_takes_real_numbers(wrong):
    for kind in (nb.vec3, nb.vec3i):
        with pytest.raises(nb.NumbridgeTypeError, match=f"{kind.__name__} is made of real numbers, and not of"):
            kind(*wrong)
    with pytest.raises(nb.NumbridgeValueError, match=r"vec3 cannot be made of this list: .*inhomogeneous"):
        nb.vec3([1, [2], 3])


@pytest.mark.parametrize(
    "given", [(3_000_000_000,), (1, 2, -(2**31) - 1), (np.array([1, 2**40, 3]),), ([1, 2, 2**70],)], ids=str
)
def test_integers_that_components_do_not_hold_are_refused(given):
    with pytest.raises(
        nb.NumbridgeValueError, match=r"vec3i holds integers from -2147483648 to 2147483647, and was given -?\d+"
    ):
        nb.vec3i(*given)
    assert nb.vec3i(-(2**31), 2**31 - 1, True).numpy().tolist() == [-(2**31), 2**31 - 1, 1]


def test_a_matrix_of_vectors_has_functions_of_its_own():
    rows = [nb.vec3(1, 2, 3), nb.vec3(4, 5, 6), nb.vec3(7, 8, 9)]
    with pytest.raises(
        nb.NumbridgeValueError, match=r"mat33 has 9 components .*; nb.matrix_from_rows and nb.matrix_from_cols"
    ):
        nb.mat33(*rows)
    assert nb.matrix_from_rows(*rows) == nb.mat33(1, 2, 3, 4, 5, 6, 7, 8, 9)


def test_values_never_change():
    v = nb.vec3(1, 2, 3)
    with pytest.raises(nb.NumbridgeTypeError, match="never changes"):
        v.x = 4
    for value, index in ((v, 0), (v, slice(1, None)), (nb.mat22(1), (0, 0))):
        with pytest.raises(nb.NumbridgeTypeError, match=r"never changes in Python; change a copy, value.numpy\(\)"):
            value[index] = 4
    assert {v: 1}[nb.vec3(1, 2, 3)] == 1
    assert pickle.loads(pickle.dumps(v)) == v
    odd = nb.vector(5, np.int16)(1, 2, 3, 4, 5)
    assert pickle.loads(pickle.dumps(odd)) == odd


def test_parts_of_values():
    m = nb.mat22(1, 2, 3, 4)
    assert (m[0, 1], m[-1], len(m), list(nb.vec3(1, 2, 3))) == (2.0, nb.vec2(3, 4), 2, [1.0, 2.0, 3.0])
    assert nb.vec4(1, 2, 3, 4).w == 4.0 and not hasattr(nb.vec3(1, 2, 3), "w")
    with pytest.raises(IndexError, match="vec3"):
        nb.vec3(1, 2, 3)[3]


@pytest.mark.parametrize("dtype", [complex, bool, "U3"])
def test_component_types_that_cannot_be(dtype):
    with pytest.raises(nb.ConversionError):
        nb.vector(3, dtype)


def test_functions_say_what_they_take():
    with pytest.raises(nb.NumbridgeTypeError, match=r"cross\(vec3, vec2\): .* vectors of three components"):
        nb.cross(nb.vec3(1), nb.vec2(1))
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"cw_div\(vec2i, vec2i\): .* vectors or matrices of one floating type"
    ):
        nb.cw_div(nb.vec2i(1), nb.vec2i(1))
    with pytest.raises(TypeError, match="unsupported operand"):
        nb.vec3(1) + nb.vec3d(1)
    assert expand("dot", nb.vec3, nb.vec3d) is None and expand("nothing", nb.vec3) is None


# ------------------------------------------------------------------------------------------------- operations, in kernels


@nb.kernel
def unary(a, v, m, q, s, out):
    i = nb.tid()
    x = v[i]
    out[i, 0] = nb.length(x) + nb.length_sq(x) + min(x) * 2.0 + max(x) * 3.0
    out[i, 1] = nb.dot(nb.normalize(x), nb.vec3(1.0, 2.0, 3.0))
    out[i, 2] = nb.trace(m[i]) + nb.determinant(m[i])
    w = nb.inverse(m[i]) @ (x + abs(x) * 0.5)
    out[i, 3] = w.x + 2.0 * w.y + 3.0 * w.z
    out[i, 4] = (nb.transpose(m[i]) * x)[1] + (x @ m[i])[2]
    out[i, 5] = nb.outer(x, w)[0, 2] + (m[i] @ m[i])[1, -1] + (m[i] * m[i])[1][2]
    out[i, 6] = nb.dot(nb.cross(x, w), x + w) + nb.cross(x, w)[i % 3]
    u = nb.normalize(q[i])
    out[i, 7] = nb.dot(nb.quat_rotate(u, x), w) + nb.dot(nb.quat_rotate_inv(u, w), x)
    out[i, 8] = nb.dot(nb.quat_to_matrix(u) @ x, w) + (u * nb.quat_inverse(u)).w
    t = nb.transform(w, u)
    back = nb.transform_point(nb.transform_inverse(t), nb.transform_point(t, x)) - x
    out[i, 9] = nb.length(back) + nb.dot(nb.transform_vector(t, x), w) + (t * t).p.x + t.q.w
    c = nb.cw_mul(x, w) + nb.cw_div(x, x) - (-x) / 2.0 + 3.0 * w - min(x, w) + max(x, w)
    out[i, 10] = c.x + c.y * 2.0 + c.z * 3.0 + s
    out[i, 11] = (1.0 if x == x else 0.0) + (2.0 if x != w else 0.0) + len(x)


def unary_in_numpy(v, m, q, s):
    def rotate(u, x):
        return x + 2 * np.cross(u[:3], np.cross(u[:3], x) + u[3] * x)

    rows = []
    for i, (x, a, p) in enumerate(zip(v, m, q, strict=True)):
        w = np.linalg.inv(a) @ (x + abs(x) * 0.5)
        u, back = p / np.linalg.norm(p), np.array([-1, -1, -1, 1])
        c = x * w + x / x - (-x) / 2 + 3 * w - np.minimum(x, w) + np.maximum(x, w)
        rows.append(
            [
                np.linalg.norm(x) + x @ x + x.min() * 2 + x.max() * 3,
                x @ np.array([1, 2, 3]) / np.linalg.norm(x),
                np.trace(a) + np.linalg.det(a),
                w @ [1, 2, 3],
                (a.T @ x)[1] + (x @ a)[2],
                x[0] * w[2] + 2 * (a @ a)[1, 2],
                np.cross(x, w) @ (x + w) + np.cross(x, w)[i % 3],
                rotate(u, x) @ w + rotate(u * back, w) @ x,
                rotate(u, x) @ w + 1,
                rotate(u, x) @ w + (w + rotate(u, w))[0] + u[3],
                c @ [1, 2, 3] + s,
                6,
            ]
        )
    return np.array(rows)


def test_operations():
    a, b, c = values(nb.vec3), values(nb.mat33) + 3 * np.eye(3, dtype="f4"), values(nb.quat)
    out = np.zeros((5, 12), np.float32)
    arrays = [nb.from_numpy(x, dtype=kind) for x, kind in ((a, nb.vec3), (b, nb.mat33), (c, nb.quat))]
    nb.launch(unary, 5, [0, *arrays, np.float32(0.25), out])
    wanted = unary_in_numpy(*(x.astype(float) for x in (a, b, c)), 0.25)
    np.testing.assert_allclose(out, wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_inverse_and_determinant_of_every_size(size):
    kind = nb.matrix((size, size), np.float64)
    a = values(kind, 4) + 3 * np.eye(size)
    b, d = np.zeros_like(a), np.zeros(4)

    @nb.kernel
    def invert(x: nb.array[kind], y: nb.array[kind], z: nb.array[np.float64]):
        i = nb.tid()
        y[i] = nb.inverse(x[i])
        z[i] = nb.determinant(x[i])

    nb.launch(invert, 4, [a, b, d])
    np.testing.assert_allclose(b, np.linalg.inv(a), rtol=1e-9)
    np.testing.assert_allclose(d, np.linalg.det(a), rtol=1e-9)
    assert np.allclose(nb.inverse(kind(a[0])).numpy(), b[0]) and np.isclose(nb.determinant(kind(a[0])), d[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_is_the_same_in_python_and_in_kernels(name):
    assert _cases(name), "an operation that nothing tests"
    for operands in _cases(name):
        expansion = expand(name, *(type(o) if isinstance(o, Element) else None for o in operands))
        expected = _in_python(name, operands)
        found = _in_kernel(name, operands, expansion)
        flat = expected.numpy().reshape(-1) if isinstance(expected, Element) else np.array([expected], float)
        np.testing.assert_allclose(found, flat, rtol=2e-6, atol=1e-6, err_msg=f"{name}{operands}")


def _cases(name):
    v, w, q = nb.vec3(1, -2, 3), nb.vec3(0.5, 4, -1), nb.normalize(nb.quat(1, 2, 3, 4))
    m, t = nb.mat33(2, 1, 0, 1, 3, 1, 0, 1, 4), nb.transform(w, q)
    i, j = nb.vec3i(7, -8, 9), nb.vec3i(2, 3, 4)
    both = [(v, w), (m, nb.mat33(1, 2, 3, 4, 5, 6, 7, 8, 9)), (i, j)]
    one_vector, one_matrix = [(v,), (q,)], [(m,), (nb.mat22(1, 2, 3, 4),)]
    return {
        "add": [*both, (q, q), (t, t)],
        "sub": both,
        "cw_mul": both,
        "cw_div": both[:2],
        "truediv": [(v, 2.0), (m, 4.0), (q, 2.0)],
        "floordiv": [(i, 2), (v, 2.0)],
        "mod": [(i, 5), (v, 2.0)],
        "mul": [(v, 2.0), (2.0, v), (m, v), (m, m), (q, q), (t, t), (i, 3)],
        "matmul": [(m, v), (v, m), (m, m), (nb.matrix((2, 3))(1, 2, 3, 4, 5, 6), v)],
        "neg": [(v,), (m,), (i,)],
        "abs": [(v,), (m,), (i,)],
        "pos": [(v,)],
        "min": [(v,), (v, w), (i, j)],
        "max": [(v,), (v, w), (i, j)],
        "eq": [(v, v), (v, w), (m, m)],
        "ne": [(v, v), (v, w)],
        "dot": [(v, w), (q, q), (i, j)],
        "inner": [*both, (q, q), (t, t)],
        "cross": [(v, w), (i, j)],
        "length_sq": one_vector,
        "length": one_vector,
        "normalize": [*one_vector, (nb.vec3(),)],
        "outer": [(v, w), (v, nb.vec2(1, 2))],
        "transpose": [*one_matrix, (nb.matrix((2, 3))(1, 2, 3, 4, 5, 6),)],
        "trace": one_matrix,
        "determinant": one_matrix,
        "inverse": [*one_matrix, (q,)],
        "quat_rotate": [(q, v)],
        "quat_rotate_inv": [(q, v)],
        "quat_inverse": [(q,)],
        "quat_to_matrix": [(q,)],
        "quat_from_axis_angle": [(nb.vec3(0, 0, 1), 0.5)],
        "transform_point": [(t, v)],
        "transform_vector": [(t, v)],
        "transform_inverse": [(t,)],
        "matrix_from_rows": [(v, w, v), (v, w)],
        "matrix_from_cols": [(v, w, v), (v, w)],
    }[name]


_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "matmul": "@", "truediv": "/", "floordiv": "//", "mod": "%"}
_SYMBOLS |= {"eq": "==", "ne": "!="}


def _expression(name, names):
    if name in _SYMBOLS:
        return f"{names[0]} {_SYMBOLS[name]} {names[1]}"
    if name in ("neg", "pos"):
        return f"{'-' if name == 'neg' else '+'}{names[0]}"
    if name == "inner":  # no public name: derivatives use it
        return f"nb.kernels.element_types.element_functions.inner({', '.join(names)})"
    return f"{name if name in ('min', 'max', 'abs') else f'nb.{name}'}({', '.join(names)})"


def _in_python(name, operands):
    names = "abc"[: len(operands)]
    if name in ("min", "max") and len(operands) == 2:  # Python's own would compare whole vectors
        return type(operands[0])(*map({"min": min, "max": max}[name], *operands))
    return eval(_expression(name, names), {"nb": nb, **dict(zip(names, operands, strict=True))})


def _in_kernel(name, operands, expansion):
    import linecache

    names = "abc"[: len(operands)]
    count = 1 if expansion.result is None else expansion.result.count
    lines = [f"def one(out, {', '.join(names)}):", "    i = nb.tid()", f"    r = {_expression(name, names)}"]
    if expansion.result is None:
        lines.append("    out[i] = r")
    elif len(expansion.result.extents) == 2:
        columns = expansion.result.extents[1]
        lines += [f"    out[{k}] = r[{k // columns}, {k % columns}]" for k in range(count)]
    else:
        lines += [f"    out[{k}] = r[{k}]" for k in range(count)]
    text = "\n".join(lines)
    file = f"<{name} {count} {names} {abs(hash(operands))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = {"nb": nb}
    exec(compile(text, file, "exec"), namespace)
    out = np.zeros(count, np.float32)
    nb.launch(nb.kernel(namespace["one"]), 1, [out, *operands])
    return out


# ---------------------------------------------------------------------------------------------------------------- stores


@nb.func
def turned(v, k):
    v[k] = -v[k]
    v.x += 1.0
    return v


@nb.kernel
def stores(a: nb.array[nb.vec3], m: nb.array[nb.mat22], k: int):
    i = nb.tid()
    v = a[i]
    w = turned(v, k)
    a[i].y = w.x
    a[i][2] *= 10.0
    a[i][-3] = v[k - 3]
    m[i][1, 0] = 7.0
    r = m[i]
    r[0] = nb.vec2(v.z, w[k])
    r[1][1] = 5.0
    r[0, 0], r[-1, 0] = r[0, 1], r[0, 0]
    m[i] = r


def test_stores_into_elements():
    a, m = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 2, 2), np.float32)
    nb.launch(stores, 2, [a, m, 1])
    np.testing.assert_array_equal(a, [[1, 1, 20], [4, 4, 50]])
    np.testing.assert_array_equal(m, [[[-1, -1], [2, 5]], [[-4, -4], [5, 5]]])


def test_an_index_with_an_effect_is_evaluated_once():
    @nb.kernel
    def count(a: nb.array[nb.vec3], n: nb.array[int]):
        a[nb.atomic_add(n, 0, 1)].x += 2.0

    a, n = np.zeros((4, 3), np.float32), np.zeros(1, np.int32)
    nb.launch(count, 3, [a, n])
    assert n[0] == 3 and a[:, 0].tolist() == [2, 2, 2, 0]


@nb.func
def changing(number, index):
    number[0] = 7.0
    return index


@nb.kernel
def ordered(a: nb.array[nb.vec3], m: nb.array[nb.mat22], n: nb.array[float]):
    a[changing(n, 0)].x = n[0]
    n[0] = 3.0
    m[0][changing(n, 1)][0] = n[0]
    n[0] = 4.0
    v = nb.vec3(0.0)
    v[changing(n, 2)] = n[0]
    n[0] = 5.0
    a[0].y = v[changing(n, 2)] = n[0]
    a[0].z = v[2]
    n[0] = 6.0
    a[1:][changing(n, 0)].z, m[0][0, 0] = n[0], n[0]


def test_what_is_stored_is_evaluated_before_its_place():
    a, m, n = np.zeros((2, 3), np.float32), np.zeros((1, 2, 2), np.float32), np.float32([2.0])
    nb.launch(ordered, 1, [a, m, n])
    assert a.tolist() == [[2, 5, 5], [0, 0, 6]]
    assert m.tolist() == [[[6, 0], [3, 0]]]


@nb.func
def lower(a, k, by):
    a[1:][k][1] -= by


@nb.kernel
def within_slices(a: nb.array[nb.vec3], m: nb.array2d[nb.mat22], x: nb.array[float], step: int):
    i = nb.tid()
    a[::step][i].x = x[i]
    a[1:][::step][i][1] += x[i]
    m[0, 1:][i][1].y, m[i, :][0][0] = x[i], nb.vec2(x[i])
    lower(a, i, 10.0)


def test_stores_into_elements_of_slices():
    a, m, x = np.ones((4, 3), np.float32), np.zeros((2, 3, 2, 2), np.float32), np.float32([3, 5])
    nb.launch(within_slices, 2, [a, m, x, 2])
    assert a.tolist() == [[3, 1, 1], [1, -6, 1], [5, -9, 1], [1, 6, 1]]
    assert m[0].tolist() == [[[3, 3], [0, 0]], [[0, 0], [0, 3]], [[0, 0], [0, 5]]]
    assert m[1].tolist() == [[[5, 5], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]]


def test_gradients_of_stores_into_elements_of_slices():
    a, m = nb.ones(4, nb.vec3, requires_grad=True), nb.zeros((2, 3), nb.mat22, requires_grad=True)
    x = nb.array([3.0, 5.0], requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(within_slices, 2, [a, m, x, 2])
    tape.backward(grads={a: np.arange(1.0, 13.0).reshape(4, 3), m: np.ones((2, 3, 2, 2))})
    assert a.grad.numpy().tolist() == [[0, 2, 3], [4, 5, 6], [0, 8, 9], [10, 11, 12]]
    assert x.grad.numpy().tolist() == [1 + 5 + 1 + 2, 7 + 11 + 1 + 2]


@nb.kernel
def into_a_slice_of_a_vector(a: nb.array[nb.vec3], m: nb.array[nb.mat33]):
    a[0][0:2][1] = 5.0


@nb.kernel
def into_a_slice_of_a_matrix(a: nb.array[nb.vec3], m: nb.array[nb.mat33]):
    m[0][0:2][1][0] = 5.0


@nb.kernel
def into_a_slice_of_a_local_matrix(a: nb.array[nb.vec3], m: nb.array[nb.mat33]):
    n = 2.0 * m[0]
    n[0:2][1].x += 5.0
    m[0] = n


@pytest.mark.parametrize("kernel", [into_a_slice_of_a_vector, into_a_slice_of_a_matrix, into_a_slice_of_a_local_matrix])
def test_a_store_into_what_nobody_keeps_is_refused(kernel):
    arguments = [np.zeros((1, 3), np.float32), np.zeros((1, 3, 3), np.float32)]
    words = "is a value of its own|a component of a vec2 is stored here that is no variable"
    with pytest.raises(nb.KernelError, match=words):
        nb.launch(kernel, 1, arguments)
    with pytest.raises(nb.KernelError, match="a slice of a vector or a matrix is a value of its own"):
        nb.launch(kernel, 1, arguments, adj_inputs=[np.zeros_like(a) for a in arguments], adjoint=True)


# ----------------------------------------------------------------------------------------------------------------- parts


@nb.func
def twice_of(v):
    total = 0
    for part in v:
        total += 2 * part
    return total


@nb.kernel
def taken_apart(
    v: nb.array[nb.vec3i], m: nb.array[nb.matrix((2, 3), nb.int32)], by: nb.vec3i, out: nb.array2d[nb.int64], step: int
):
    i = nb.tid()
    a, b, c = v[i]
    (d, e, f), row = m[i]
    g, h, k = by
    out[i, 0] = a + 10 * b + 100 * c + 1000 * (d + 10 * e + 100 * f)
    out[i, 1] = g + 10 * h + 100 * k + 1000 * twice_of(row) + 10000 * twice_of(v[i][1:])
    total, w = 0, v[i]
    for n, part in enumerate(w):
        w[2] = 7  # the loop goes through what it was
        if n == step:
            continue
        total = 10 * total + part
    for part, other in zip(by, m[i][1, ::-1]):  # noqa: B905 - kernels take no keyword there
        total = 10 * total + part * other
    for line in m[i]:
        line[1] = 9  # of its own
        for part in line:
            total = 10 * total + part
    out[i, 2] = total
    out[i, 3] = m[i][:, 1][1] + 10 * m[i][0, 1:][1] + 100 * m[i][:1, ::2][0][1] + 1000 * w[-1:][0]


@pytest.mark.parametrize("on_cuda", [False, True])
def test_elements_are_unpacked_looped_over_and_sliced_as_in_python(on_cuda):
    v, m, by = np.int32([[1, 2, 3], [4, 5, 6]]), np.arange(12, dtype=np.int32).reshape(2, 2, 3), nb.vec3i(1, 2, 3)
    for array in (v, m):  # none of this stores into them
        array.flags.writeable = False
    out = np.zeros((2, 4), np.int64)
    if on_cuda:
        with emulated_cuda() as device:
            nb.launch(taken_apart, 2, [device.on_device(v), device.on_device(m), by, device.on_device(out), 1])
    else:
        nb.launch(taken_apart, 2, [v, m, by, out, 1])
    expected = []
    for (a, b, c), rows in zip(v.tolist(), m.tolist(), strict=True):
        (d, e, f), row = rows
        total = 10 * a + c
        for part, other in zip((1, 2, 3), row[::-1], strict=True):
            total = 10 * total + part * other
        for first, _, last in rows:
            total = 1000 * total + 100 * first + 90 + last
        one = a + 10 * b + 100 * c + 1000 * (d + 10 * e + 100 * f)
        two = 321 + 2000 * sum(row) + 20000 * (b + c)
        expected.append([one, two, total, row[1] + 10 * f + 100 * f + 7000])
    assert out.tolist() == expected


@nb.func
def leading(a, k, by):
    a[k][:2] = by


@nb.kernel
def stored_slices(v: nb.array[nb.vec3], m: nb.array[nb.mat33], x: nb.array2d[float], c: nb.vec3):
    i = nb.tid()
    leading(v, i, v[i][1:])
    leading(x, i, v[i][2])
    u = v[i]
    u[1:], u[0] = c[:2], u[1]
    c[::2] = u[:2]
    m[i][0] = u
    m[i][1:, :2] = m[i][:2, 1:]
    m[i][:, 2] = c
    n = m[i]
    n[1:] = n[:2]
    n[0, 1:] = v[i][1:]
    m[i] = n


@pytest.mark.parametrize("on_cuda", [False, True])
def test_stores_into_slices_of_elements(on_cuda):
    v = np.arange(6, dtype=np.float32).reshape(2, 3)
    m, x, c = np.arange(18, dtype=np.float32).reshape(2, 3, 3), np.ones((2, 3), np.float32), nb.vec3(7, 8, 9)
    arrays = [array.copy() for array in (v, m, x)]
    if on_cuda:
        with emulated_cuda() as device:
            nb.launch(stored_slices, 2, [*(device.on_device(array) for array in arrays), c])
    else:
        nb.launch(stored_slices, 2, [*arrays, c])
    for i in range(2):
        v[i, :2] = v[i, 1:].copy()
        x[i, :2] = v[i, 2]
        u = [v[i, 1], 7, 8]
        m[i, 0] = u
        m[i, 1:, :2] = m[i, :2, 1:].copy()
        m[i, :, 2] = [u[0], 8, u[1]]
        m[i, 1:] = m[i, :2].copy()
        m[i, 0, 1:] = v[i, 1:]
    for found, wanted in zip(arrays, (v, m, x), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_threads_store_slices_of_one_element():
    @nb.kernel
    def sides(v: nb.array[nb.vec4]):
        i = nb.tid()
        if i % 2 == 0:
            v[i // 2][:2] = nb.vec2(1.0, float(i))
        else:
            v[i // 2][2:] = nb.vec2(2.0, float(i))

    v = np.zeros((40, 4), np.float32)
    nb.launch(sides, 80, [v])
    np.testing.assert_array_equal(v, [[1, 2 * k, 2, 2 * k + 1] for k in range(40)])


def test_a_store_into_a_slice_of_an_element_is_a_write():
    @nb.kernel
    def write(a: nb.array[nb.vec3]):
        a[nb.tid()][:2] = nb.vec2(1.0, 2.0)

    a = np.ones((2, 3), np.float32)
    a.flags.writeable = False
    with pytest.raises(nb.BufferAccessError, match="writes to it"):
        nb.launch(write, 2, [a])


def test_constants_beside_slices_are_checked(monkeypatch):
    monkeypatch.setattr(nb.config, "check_bounds", True)

    @nb.kernel
    def checked(m: nb.array[nb.mat33], x: nb.array2d[float], k: int):
        row = x[k:]
        m[0][1, 1:] = m[0][2, :2]
        m[0][:, 0] = m[0][:, -1]
        row[0, 1:] = row[1, 1:][0]

    m, x = np.arange(9, dtype=np.float32).reshape(1, 3, 3), np.arange(6, dtype=np.float32).reshape(2, 3)
    nb.launch(checked, 1, [m, x, 0])
    np.testing.assert_array_equal(m[0], [[2, 1, 2], [7, 6, 7], [8, 7, 8]])
    np.testing.assert_array_equal(x[0], [0, 4, 4])
    with pytest.raises(nb.NumbridgeIndexError, match="index 1 is out of range for axis 0 of row, whose extent is 1"):
        nb.launch(checked, 1, [m, x, 1])


def test_parts_of_values_in_python():
    m = nb.matrix((2, 3), int)(1, 2, 3, 4, 5, 6)
    (a, b, c), row = m
    assert (a, b, c) == (1, 2, 3) and row == nb.vec3i(4, 5, 6)
    assert m[:, 1:] == nb.mat22i(2, 3, 5, 6) and m[:1] == nb.matrix((1, 3), int)(1, 2, 3)
    assert m[:, 0] == nb.vec2i(1, 4) and row[::-2] == nb.vec2i(6, 4)


def test_stores_through_views_of_arrays_stay_stores():
    @nb.kernel
    def through(a: nb.array2d[float]):
        i = nb.tid()
        row = a[i]
        row[1] = 3.0
        a[i][2] += 4.0

    a = np.ones((2, 3), np.float32)
    nb.launch(through, 2, [a])
    np.testing.assert_array_equal(a, [[1, 3, 5], [1, 3, 5]])


def test_a_local_element_is_no_write_to_its_array():
    @nb.kernel
    def read(a: nb.array[nb.vec3], out: nb.array[float]):
        i = nb.tid()
        v = a[i]
        v[0] = 5.0
        out[i] = v.x + a[i].x

    a = np.ones((2, 3), np.float32)
    a.flags.writeable = False
    out = np.zeros(2, np.float32)
    nb.launch(read, 2, [a, out])
    assert out.tolist() == [6, 6]


def test_a_store_into_an_array_s_element_is_a_write():
    @nb.kernel
    def write(a: nb.array[nb.vec3]):
        a[nb.tid()].x = 1.0

    a = np.ones((2, 3), np.float32)
    a.flags.writeable = False
    with pytest.raises(nb.BufferAccessError, match="writes to it"):
        nb.launch(write, 2, [a])


# ------------------------------------------------------------------------------------------------------------- arguments


@nb.kernel
def offset(x: nb.array[nb.vec3], by: nb.vec3, y: nb.array[nb.vec3]):
    i = nb.tid()
    y[i] = x[i] + by


@pytest.mark.parametrize("by", [nb.vec3(1, 2, 3), np.float32([1, 2, 3]), nb.array([[1, 2, 3]], nb.vec3)[0]], ids=type)
def test_elements_by_value(by):
    x, y = np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32)
    for _ in range(2):
        nb.launch(offset, 4, [x, by, y])
    np.testing.assert_array_equal(y, [[2, 3, 4]] * 4)


ONE, HALVES, BYTES = nb.vec3(0.5, 1, 2), nb.vec2h(0.1, -2), nb.vector(2, nb.uint8)(3, 255)
PAIR = (2.0, nb.vec2i(-1, 7))


@nb.func
def of_defaults(s, v=ONE, h=HALVES, n=BYTES, pair=PAIR):
    return v * (s * h[0]) + nb.vec3(h[1], float(n[1]), pair[0] * float(pair[1][0]))


@nb.kernel
def changed_values(x: nb.array[nb.vec3], by: nb.vec3, n: nb.vec2i, m: nb.mat22, y: nb.array[nb.vec3]):
    i = nb.tid()
    n[0] -= 1
    if i >= n[0]:
        return
    by[1] = x[i][0] * by[2]
    by.z += 1.0
    m[0, 1] = by[1]
    m[1] = m[0] * 2.0
    x = x[i]
    x[2] *= m[1, 1]
    y[i] = x + by + of_defaults(by[0])


@pytest.mark.parametrize("on_cuda", [False, True])
def test_parts_of_what_is_passed_by_value_change_for_the_thread_and_defaults_are_vectors(on_cuda):
    x, y = RNG.normal(size=(4, 3)).astype(np.float32), np.zeros((4, 3), np.float32)
    by, n, m = nb.vec3(1, 2, 3), nb.vec2i(4, 0), nb.mat22(1, 2, 3, 4)
    wanted, before = y.copy(), x.copy()
    second = 3 * x[:3, 0]
    wanted[:3] = np.stack([x[:3, 0] + 1, x[:3, 1] + second, 2 * second * x[:3, 2] + 4], 1)
    wanted[:3] += np.float32([0.5, 1, 2]) * np.float32(np.float16(0.1)) + np.float32([-2, 255, -2])
    if on_cuda:
        with emulated_cuda() as device:
            nb.launch(changed_values, 4, [device.on_device(x), by, n, m, device.on_device(y)])
    else:
        nb.launch(changed_values, 4, [x, by, n, m, y])
    np.testing.assert_allclose(y, wanted, rtol=1e-5)
    assert (x == before).all() and (by, n, m) == (nb.vec3(1, 2, 3), nb.vec2i(4, 0), nb.mat22(1, 2, 3, 4))


@pytest.mark.parametrize("by", [(1, 2, 3), nb.vec2(1, 2), nb.vec3d(1), np.zeros(3), np.zeros(2, np.float32), 1.0])
def test_what_is_no_such_element(by):
    x, y = np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32)
    nb.launch(offset, 4, [x, nb.vec3(1), y])
    with pytest.raises(nb.NumbridgeTypeError, match=r"parameter 'by': wanted vec3, got .*; pass nb.vec3\(...\)"):
        nb.launch(offset, 4, [x, by, y])


def test_an_element_where_none_is_wanted():
    @nb.kernel
    def scale(x: nb.array[float], by: float):
        x[nb.tid()] *= by

    x = np.ones(3, np.float32)
    with pytest.raises(nb.NumbridgeTypeError, match=r"parameter 'by': wanted float32, got vec3"):
        nb.launch(scale, 3, [x, nb.vec3(1)])
    with pytest.raises(nb.NumbridgeTypeError, match=r"parameter 'x': wanted array1d\[float32\], got vec3"):
        nb.launch(scale, 3, [nb.vec3(1), 1.0])


LAYOUTS = {
    "dense": lambda x: x.copy(),
    "rows apart": lambda x: np.concatenate([x, x], 1)[:, :3],
    "every second": lambda x: np.repeat(x, 2, 0)[::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_arrays(layout):
    x = values(nb.vec3, 6)
    given, y = LAYOUTS[layout](x), np.zeros((6, 3), np.float32)
    nb.launch(offset, 6, [given, nb.vec3(1, 2, 3), LAYOUTS[layout](y)])
    out = LAYOUTS[layout](np.zeros((6, 3), np.float32))
    nb.launch(offset, 6, [given, nb.vec3(1, 2, 3), out])
    np.testing.assert_array_equal(out, x + np.float32([1, 2, 3]))


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.zeros((4, 2), "f4"), nb.NumbridgeTypeError, r"float32 with shape \(\.\.\., 3\), got .* shape \(4, 2\)"),
        (
            np.zeros((4, 3), "f8"),
            nb.NumbridgeTypeError,
            r"float32 with shape \(\.\.\., 3\), got a 2-d array of float64",
        ),
        (np.zeros((4, 2, 3), "f4"), nb.NumbridgeTypeError, r"of 1 dimension\(s\) .* got .* shape \(4, 2, 3\)"),
        (np.zeros(3, "f4"), nb.NumbridgeTypeError, r"of 1 dimension\(s\) .* shape \(3,\)"),
        (np.zeros((3, 4), "f4").T, nb.BufferAccessError, r"\(\.\.\., 3\) lie densely .* shape \(4, 3\) \(numpy"),
        (np.zeros((4, 6), "f4")[:, ::2], nb.BufferAccessError, "lie densely"),
        (nb.zeros(4, nb.vec3d), nb.NumbridgeTypeError, r"got a 1-d array of vec3d with shape \(4,\)"),
    ],
)
def test_arrays_that_do_not_fit(x, error, message):
    good, y = np.zeros((4, 3), "f4"), np.zeros((4, 3), "f4")
    nb.launch(offset, 4, [good, nb.vec3(1), y])
    for _ in range(2):
        with pytest.raises(error, match=message):
            nb.launch(offset, 4, [x, nb.vec3(1), y])


def test_recognised_arguments_are_still_compared():
    """After a dense array of vec3 was seen, one of the same rank and another last extent must not slip through."""
    run = offset.forall(4)
    y = np.zeros((4, 3), "f4")
    run(np.zeros((8, 3), "f4")[::2], nb.vec3(1), y)
    for x in (np.zeros((8, 4), "f4")[::2], np.zeros((4, 6), "f4")[:, ::2], np.zeros((4, 4), "f4")):
        with pytest.raises(nb.NumbridgeError):
            run(x, nb.vec3(1), y)


def test_arrays_without_annotations_know_their_elements():
    @nb.kernel
    def double(x, y):
        i = nb.tid()
        y[i] = x[i] * 2.0

    x, y = nb.array(values(nb.mat22), dtype=nb.mat22), nb.zeros(5, nb.mat22)
    nb.launch(double, 5, [x, y])
    np.testing.assert_array_equal(y.numpy(), x.numpy() * 2)
    nb.launch(double, 5, [x[::-1], y])
    np.testing.assert_array_equal(y.numpy(), x.numpy()[::-1] * 2)


def test_globals_and_results_of_device_functions():
    up = nb.vec3(0, 9.8, 0)
    identity = nb.mat33(1, 0, 0, 0, 1, 0, 0, 0, 1)

    @nb.func
    def fallen(v, t):
        return identity @ (v - up * t), nb.length(v)

    @nb.kernel
    def fall(v: nb.array[nb.vec3], speed: nb.array[float]):
        i = nb.tid()
        moved, before = fallen(v[i], 0.5)
        v[i] = moved
        speed[i] = before

    v, speed = np.ones((3, 3), np.float32), np.zeros(3, np.float32)
    nb.launch(fall, 3, [v, speed])
    np.testing.assert_allclose(v, np.ones((3, 3)) - np.array([0, 4.9, 0]), rtol=1e-6)
    np.testing.assert_allclose(speed, np.sqrt(3), rtol=1e-6)


def test_elements_stay_in_registers_on_cuda():
    arrays = [nb.zeros(4, kind) for kind in (nb.vec3, nb.mat33, nb.quat)]
    text = unary.ptx(0, *arrays, np.float32(1), np.zeros((4, 12), np.float32), capability=(9, 0))
    assert ".local" not in text and "call" not in text and ".f64" not in text


def test_large_matrices_stay_in_registers_on_cuda():
    @nb.kernel
    def product(a: nb.array[nb.mat44], b: nb.array[nb.spatial_matrix]):
        i = nb.tid()
        a[i] = nb.inverse(a[i]) @ a[i]
        b[i] = b[i] @ b[i]

    text = product.ptx(np.zeros((4, 4, 4), "f4"), np.zeros((4, 6, 6), "f4"), capability=(9, 0))
    assert ".local" not in text and "call" not in text


def test_atomics_on_elements_update_each_component():
    @nb.kernel
    def total(x: nb.array[nb.vec3], out: nb.array[nb.vec3], lowest: nb.array2d[nb.vec3]):
        i = nb.tid()
        nb.atomic_add(out, i % 2, x[i])
        nb.atomic_sub(out, -1, x[i] * 0.5)
        nb.atomic_min(lowest, 0, 1, x[i])

    x = np.arange(3000, dtype=np.float32).reshape(1000, 3) % 7
    out, lowest = np.zeros((2, 3), np.float32), np.full((1, 2, 3), 9, np.float32)
    nb.launch(total, 1000, [x, out, lowest])
    np.testing.assert_array_equal(out, [x[::2].sum(0), x[1::2].sum(0) - x.sum(0) / 2])
    np.testing.assert_array_equal(lowest, [[[9, 9, 9], x.min(0)]])


def test_a_part_that_is_not_there_is_said_so():
    @nb.kernel
    def wrong(out: nb.array[nb.vec3]):
        i = nb.tid()
        out[i].w = 1.0

    with pytest.raises(nb.KernelError, match="a vec3 has no such part to store into"):
        nb.launch(wrong, 3, [np.zeros((3, 3), np.float32)])


def test_atomics_on_elements_refuse_other_values():
    @nb.kernel
    def wrong(out: nb.array[nb.vec3]):
        nb.atomic_add(out, 0, 1.0)

    with pytest.raises(nb.KernelError, match="does not compile"):
        nb.launch(wrong, 3, [np.zeros((2, 3), np.float32)])


@nb.func
def popped(stack, top):
    top[0] -= 1
    return stack[top[0]]


@nb.func
def added(stack, top):
    stack[top[0] - 1] = popped(stack, top) + stack[top[0] - 1]


@nb.kernel
def summed_on_a_stack(x, y):
    i = nb.tid()
    stack = cuda.local.array(4, np.float64)
    top = cuda.local.array(1, np.int64)
    stack[0], stack[1] = x[i], 5.0
    top[0] = 2
    added(stack, top)
    y[i] = stack[0]


@nb.kernel
def counted_into_a_row(y, count):
    for row in y:
        row[count[0]] = nb.atomic_add(count, 0, 1) + 10.0


@nb.kernel
def swapped_into_a_row(y):
    for row in y:
        a, b = 1.0, 2.0
        a, row[0] = row[1], b = b, a
        row[2] = a


def test_what_is_stored_is_evaluated_before_where():
    x = np.array([0.3, -1.2])
    for options in ({}, {"check_bounds": True}):
        y, given = np.zeros(2), np.zeros(2)
        kernel = nb.kernel(summed_on_a_stack.__wrapped__, **options)
        nb.launch(kernel, 2, [x, y])
        np.testing.assert_array_equal(y, x + 5)
        nb.launch(kernel, 2, [x, y], adj_inputs=[given, np.ones(2)], adjoint=True)
        np.testing.assert_array_equal(given, [1, 1])
    y = np.zeros((1, 4))
    nb.launch(counted_into_a_row, 1, [y, np.zeros(1, np.int64)])
    np.testing.assert_array_equal(y, [[0, 10, 0, 0]])
    nb.launch(swapped_into_a_row, 1, [y])
    np.testing.assert_array_equal(y, [[1, 2, 2, 0]])


# ----------------------------------------------------------------------------------------------- as kernels, in Python


BYTE_VECTOR = nb.vector(3, np.uint8)


@nb.kernel
def squared_bytes(a: nb.array[BYTE_VECTOR], o):
    i = nb.tid()
    o[i, 0], o[i, 1] = nb.dot(a[i], a[i]), nb.length_sq(a[i])


@nb.kernel
def squared_integers(a: nb.array[nb.vec3i], o):
    i = nb.tid()
    o[i, 0], o[i, 1] = nb.dot(a[i], a[i]), nb.length_sq(a[i])


@pytest.mark.parametrize(
    ("kernel", "v"), [(squared_bytes, BYTE_VECTOR(250, 3, 9)), (squared_integers, nb.vec3i(2**17, 1, 2))]
)
@pytest.mark.parametrize("on_cuda", [False, True])
def test_numbers_of_integer_vectors_are_of_their_type_everywhere(kernel, v, on_cuda):
    a, o = np.array([v.numpy()]), np.zeros((1, 2), np.int64)
    if on_cuda:
        with emulated_cuda() as device:
            nb.launch(kernel, 1, [device.on_device(a), device.on_device(o)])
    else:
        nb.launch(kernel, 1, [a, o])
    assert o.tolist() == [[nb.dot(v, v), nb.length_sq(v)]] == [[int((v.numpy() * v.numpy()).sum(dtype=a.dtype))] * 2]


@pytest.mark.parametrize(
    "multiply", [lambda v: v * 1.5, lambda v: 1.5 * v, lambda v: np.float32(2) * v, lambda v: v // 2.0]
)
def test_integer_vectors_take_no_floats(multiply):
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"of (vec3i and \w+|\w+ and vec3i): the components of vec3i are integers"
    ):
        multiply(nb.vec3i(1, 2, 3))
    assert nb.vec3i(1, 2, 3) * np.int8(2) == nb.vec3i(2, 4, 6) == np.int64(2) * nb.vec3i(1, 2, 3)


def test_numbers_of_numpy_scale_from_both_sides():
    v = nb.vec3(1, 2, 3)
    assert [x * v for x in (np.float32(2), np.float64(2), np.int64(2), 2)] == [v * 2] * 4
    # NumPy's arrays broadcast, and its functions take the components.
    assert (np.ones((2, 3)) + v).tolist() == [[2, 3, 4]] * 2 and (np.ones(3) * v).tolist() == [1, 2, 3]
    assert np.sqrt(nb.vec2(4, 9)).tolist() == [2, 3] and np.add.reduce(v) == 6


def test_equal_values_have_equal_hashes():
    p, q = nb.vec3(0.0, 1, 2), nb.vec3(-0.0, 1, 2)
    assert p == q and hash(p) == hash(q) and {p: 1}[q] == 1 and hash(p) != hash(nb.vec3(1, 0, 2))


@pytest.mark.parametrize("index", [True, np.True_, (0, False)])
def test_a_truth_value_is_no_index(index):
    with pytest.raises(nb.NumbridgeIndexError, match="is no index; pass ints or slices"):
        nb.mat22(1, 2, 3, 4)[index]


def test_types_are_pickled_by_what_they_are():
    records = nb.zeros(1, np.dtype([("x", "f4")]))
    kinds = [nb.vec3, nb.quat, nb.vector(5, np.float64), nb.matrix((2, 7), np.uint8), Element]
    for value in (kinds, nb.array1d[kinds[2]], describe(records).element):
        assert pickle.loads(pickle.dumps(value)) == value


def test_lengths_of_numpy_are_lengths():
    assert nb.vector(np.int64(3), float) is nb.vec3 and nb.matrix(np.array([2, 2]), float) is nb.mat22
