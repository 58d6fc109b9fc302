"""Gradients of kernels on vectors and matrices: against central differences in float64, to second order, and against JAX."""

# ruff: noqa: B007, B905 - kernels as users write them

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda

import numbridge as nb

VEC3, MAT33, QUAT, TRANSFORM = nb.vec3d, nb.mat33d, nb.quatd, nb.transformd
VEC2, MAT22, MAT44 = nb.vec2d, nb.mat22d, nb.mat44d
MAT23 = nb.matrix((2, 3), nb.float64)
N = 3


@nb.kernel
def vectors(a: nb.array1d[VEC3], b: nb.array1d[VEC3], s: nb.array1d[nb.float64], y: nb.array2d[VEC3]):
    i = nb.tid()
    y[i, 0] = nb.cross(a[i], b[i]) * nb.dot(a[i], b[i]) + 2.0 * a[i] - b[i] / s[i]
    y[i, 1] = nb.normalize(a[i]) * nb.length(b[i]) + nb.length_sq(a[i] + b[i]) * -b[i]
    y[i, 2] = nb.cw_mul(a[i], b[i]) + nb.cw_div(a[i], b[i]) + s[i] * +a[i]
    y[i, 3] = min(a[i], b[i]) * max(a[i]) + max(a[i], b[i]) * min(b[i]) + abs(a[i])


@nb.kernel
def matrices(m: nb.array1d[MAT33], n: nb.array1d[MAT33], v: nb.array1d[VEC3], y: nb.array2d[MAT33]):
    i = nb.tid()
    y[i, 0] = m[i] @ n[i] + nb.transpose(m[i]) * nb.trace(n[i]) - nb.outer(v[i], v[i])
    y[i, 1] = nb.inverse(m[i]) / nb.determinant(n[i]) + nb.cw_mul(m[i], n[i])
    y[i, 2] = nb.matrix_from_rows(m[i] @ v[i], v[i] @ n[i], m[i] * v[i])
    y[i, 3] = nb.matrix_from_cols(m[i][0], n[i][1] * m[i][2, 0], v[i]) * n[i] * -1.5


@nb.kernel
def rectangles(
    m: nb.array1d[MAT23], v: nb.array1d[VEC3], u: nb.array1d[VEC2], y: nb.array1d[MAT22], z: nb.array1d[VEC2]
):
    i = nb.tid()
    y[i] = m[i] @ nb.transpose(m[i]) + nb.outer(u[i], m[i] @ v[i]) * nb.determinant(m[i] @ nb.transpose(m[i]))
    z[i] = nb.inverse(y[i]) @ u[i] + VEC2(nb.dot(u[i] @ m[i], v[i]))


@nb.kernel
def of_four(m: nb.array1d[MAT44], y: nb.array1d[MAT44], d: nb.array1d[nb.float64]):
    i = nb.tid()
    d[i] = nb.determinant(m[i])
    y[i] = nb.inverse(m[i])


@nb.kernel
def quaternions(
    p: nb.array1d[QUAT],
    q: nb.array1d[QUAT],
    v: nb.array1d[VEC3],
    y: nb.array2d[QUAT],
    z: nb.array2d[VEC3],
    m: nb.array1d[MAT33],
):
    i = nb.tid()
    y[i, 0] = p[i] * q[i] + nb.normalize(p[i]) * nb.dot(p[i], q[i])
    y[i, 1] = nb.quat_inverse(p[i]) - nb.inverse(q[i]) * nb.length(p[i])
    y[i, 2] = nb.quat_from_axis_angle(v[i], v[i].x + p[i].w)
    z[i, 0] = nb.quat_rotate(p[i], v[i]) + nb.quat_rotate_inv(q[i], v[i])
    m[i] = nb.quat_to_matrix(q[i])


@nb.kernel
def transforms(
    t: nb.array1d[TRANSFORM],
    u: nb.array1d[TRANSFORM],
    v: nb.array1d[VEC3],
    y: nb.array1d[TRANSFORM],
    z: nb.array2d[VEC3],
):
    i = nb.tid()
    y[i] = t[i] * u[i] + nb.transform_inverse(t[i])
    z[i, 0] = nb.transform_point(t[i], v[i]) + u[i].p
    z[i, 1] = nb.transform_vector(u[i], v[i]) * u[i].q.w
    y[i].p = y[i].p + z[i, 0]


@nb.func
def mixed(a, b, k):
    if k % 2 == 0:
        return a * nb.length(b)
    return nb.cross(a, b)


@nb.kernel
def parts(
    v: nb.array1d[VEC3], m: nb.array1d[MAT33], k: nb.array1d[nb.int64], y: nb.array1d[VEC3], z: nb.array1d[MAT33]
):
    i = nb.tid()
    a = v[i]
    a[1] = a[0] * a[k[i]]
    a.z = a.x * a.z
    a[k[i]] += a[2] * a[2]
    w = VEC3(a.x, 2, a[k[i]])
    n = m[i]
    n[0] = a
    n[1, 2] *= n[k[i], 0]
    n[k[i]] = n[k[i]] * a.y
    y[i] = mixed(a, w, i) + nb.cross(n[2], n[k[i]])
    y[i].x = y[i].y * y[i].z
    y[i][1] += a[0] * n[2][1]
    z[i] = n
    z[i][2, 2] = z[i][0][0] * a.x
    z[i][1] = z[i][1] * a.y
    p, q = nb.vec2d(a[0], a[1]), nb.vec4d(a, 1.0)
    z[i][0, 0] += nb.dot(q, q) * (1.0 if p == p else 0.0) + (p.x if p != p else p.y) * len(q) * len(n)


@nb.kernel
def loops(x: nb.array1d[VEC3], m: nb.array1d[MAT22], count: int, y: nb.array1d[VEC3], z: nb.array1d[VEC2]):
    i = nb.tid()
    p, v = x[i], VEC3()
    for k in range(count):
        force = -p / (1.0 + nb.length_sq(p))
        v = v + force * 0.1
        if nb.length(p) > 1.0:
            p = p + nb.cross(v, p) * 0.2
        else:
            p += v
    u = VEC2(p.x, v.y)
    turns = 0
    while turns < 100 and nb.dot(u, u) < 50.0:
        u = m[i] @ u + VEC2(1.0, 0.5)
        turns += 1
    y[i] = p + v * nb.dot(p, v)
    z[i] = u


@nb.kernel
def in_place(x: nb.array2d[VEC3], y: nb.array1d[VEC3]):
    i = nb.tid()
    for k in range(1, 4):
        x[i, k] = nb.cross(x[i, k], x[i, k - 1]) + x[i, k - 1] * x[i, 0].x
        x[i, 0][1] = x[i, k][2] * 0.5
    y[i] = x[i, 3] * nb.length_sq(x[i, 0])


@nb.kernel
def by_value(x: nb.array1d[VEC3], t: VEC3, m: MAT33, s: nb.float64, y: nb.array1d[VEC3]):
    i = nb.tid()
    y[i] = m @ x[i] * s + nb.cross(t, x[i]) * nb.dot(t, t)


@nb.kernel
def gathered(x: nb.array1d[VEC3], index: nb.array1d[nb.int64], y: nb.array1d[VEC3], total: nb.array1d[VEC3]):
    i = nb.tid()
    a = x[index[i]]
    b = x[index[i + 1]]
    y[i] = nb.cross(a, b)
    nb.atomic_add(total, 0, a * nb.dot(a, b))
    nb.atomic_sub(total, 1, b)


@nb.func
def turned(a, b, s):
    return nb.cross(a, b) * s


@nb.func_grad(turned)
def turned_gradient(a, b, s, cotangent):
    return nb.cross(b, cotangent) * s, nb.cross(cotangent, a) * s, nb.dot(cotangent, nb.cross(a, b))


@nb.kernel
def by_hand(x: nb.array1d[VEC3], s: nb.array1d[nb.float64], y: nb.array1d[VEC3]):
    i = nb.tid()
    y[i] = turned(x[i], x[i] * x[i].x + VEC3(1.0, 2.0, 3.0), s[i])


@nb.kernel
def spatial(v: nb.array1d[nb.spatial_vectord], m: nb.array1d[nb.spatial_matrixd], y: nb.array1d[nb.spatial_vectord]):
    i = nb.tid()
    y[i] = m[i] @ v[i] * nb.dot(v[i], v[i])


@nb.kernel
def in_local_memory(x: nb.array1d[VEC3], m: nb.array1d[MAT33], y: nb.array1d[VEC3]):
    i = nb.tid()
    t = cuda.local.array((2, 3), VEC3)
    a = cuda.local.array(2, dtype=MAT33)
    for k in range(3):
        t[0, k] = x[i] * float(k + 1)
        t[1, k] = nb.cross(t[0, k], m[i] @ x[i])
    t[0, 1].x = t[1, 2].y * t[0, 0].z
    t[1, 0][2] *= t[0, 1][0]
    a[0], a[1] = m[i], nb.outer(t[0, 1], t[1, 0])
    a[0][1] = t[1, 2]
    row = t[1]
    s = row[1]
    for k in range(3):
        s += row[k] + t[0, k]
        for j in range(3):
            s[j] *= t[0, k][j] + s[(j + 1) % 3]
    y[i] = a[0] @ s + a[1] @ t[0, 2] * len(a)


@nb.kernel
def in_local_memory_without_loops(x: nb.array1d[VEC3], y: nb.array1d[VEC3]):
    i = nb.tid()
    t = cuda.local.array(3, VEC3)
    t[0], t[1] = x[i], x[i] * x[i].y
    t[1].z = t[0].x * t[0].x
    t[2] = nb.cross(t[0], t[1])
    t[0] += t[2]
    y[i] = t[0] * nb.dot(t[1], t[2])


@nb.kernel
def column(
    x: nb.array1d[VEC3], m: nb.array1d[MAT33], t: nb.array1d[TRANSFORM], y: nb.array2d[VEC3], z: nb.array1d[MAT33]
):
    """Each thread stores a component of every element."""
    j = nb.tid()
    for i in range(N):
        y[0, i][j] = x[i][j] * x[i][2 - j] * t[i].p[j]
        y[1][i][-j] = x[i].y * m[i][j, 1]
        m[i][j][1] = m[i][j][0] * m[i][j, 2]
        m[i][j, 0] *= x[i][j]
        z[i][j] = m[i][j] * y[0, i][j] + t[i].q[3] * m[i][j]
        z[i][j][j] += 0.5 * z[i][j].x
        t[i].p[j] = z[i][j, 2]
    y[0, 0][j] += y[0, 1][j] * y[0, 2][j]


@nb.kernel
def neighbours(
    x: nb.array1d[VEC3],
    m: nb.array1d[MAT33],
    t: nb.array1d[TRANSFORM],
    index: nb.array1d[nb.int64],
    y: nb.array1d[nb.float64],
):
    """Only parts are read, of elements that other threads read too."""
    i = nb.tid()
    a, b = index[i], index[i + 1]
    row = m[a][b]
    y[i] = x[a].y * x[b][b] + t[a].p[b] * t[b].q.w + row[a] * m[b][a][1] + nb.dot(m[b][2], t[a].p)


@nb.func
def scatter(v, place, number):
    v[place // 3][place % 3] += number
    v[place // 3][place % 3] *= number


@nb.kernel
def whole_and_parts(
    x: nb.array1d[VEC3],
    order: nb.array1d[nb.int64],
    y: nb.array1d[VEC3],
    total: nb.array1d[VEC3],
    t: nb.array1d[TRANSFORM],
):
    i = nb.tid()
    for k in range(3):
        scatter(y, order[3 * i + k], x[i][k])
    p, number = t[i].p, t[i].q.w
    t[i].p = nb.cross(p, x[i]) * number
    t[i].q.w = p.x
    t[i].p.y += number * t[i].p[1]
    x[i] = x[i] * nb.dot(p, x[i])
    if x[i].x > 0.1:
        x[i].x = x[i].y * x[i].x
    else:
        x[i][1] = x[i][2]
    nb.atomic_add(total, 0, nb.cross(x[i], t[i].p))
    total[1 + i].z = number


def floats(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


@nb.kernel
def in_slices(x: nb.array2d[VEC3], m: nb.array1d[MAT22], y: nb.array1d[VEC3]):
    i = nb.tid()
    part = x[i, 1:]
    for k, v in enumerate(part):
        y[i] += v[k] * v
    part[0][2] = part[-1][0] * m[i][1, 0]
    part[0].x += 2.0
    part[-1:] = y[i:][0] * part[0][2]
    t = cuda.local.array(4, VEC3)
    t[:] = x[i, 0]
    t[::2] = t[1] * 2.0
    for v in t[1:]:
        y[i] += nb.cw_mul(v, part[-1])


@nb.kernel
def changed_values(x: nb.array1d[VEC3], v: VEC3, m: MAT33, y: nb.array1d[VEC3]):
    i = nb.tid()
    v[0] = x[i].y * v[1]
    v.z += v[0] * m[i, 1]
    m[i] = v
    m[1][2] *= x[i][0]
    x = x[i]
    x[i] -= v[0] * x.y
    y[i] = m @ x + v


AXIS, PARTS, SHIFT = VEC3(1.0, -2.0, 0.5), (0.3, MAT22(1.0, 2.0, 3.0, 4.0)), nb.vec2i(1, 3)


@nb.func
def of_defaults(s, v=AXIS, parts=PARTS, shift=SHIFT):
    return v * (s * parts[0]) + VEC3(s, float(shift[1]), s * s) * parts[1][1, 0]


@nb.kernel
def left_out(x: nb.array1d[VEC3], y: nb.array1d[VEC3]):
    i = nb.tid()
    y[i] = nb.cross(of_defaults(x[i][0]), of_defaults(x[i].y, v=x[i]))


@nb.func
def twisted(v):
    a, b, c = v
    return VEC3(b * c, c, a * a)


@nb.func
def weighted(v, by):
    total = 0.0
    for part in v:
        total += by * part * part
    return total


@nb.kernel
def unpacked(x: nb.array1d[VEC3], m: nb.array1d[MAT22], v: VEC3, q: nb.array1d[QUAT], y: nb.array1d[VEC3]):
    i = nb.tid()
    a, b, c = x[(i + 1) % N]
    (d, e), row = m[i]
    row[0] *= d  # of its own: m stays what it is
    f, g, h = twisted(x[i]) + v
    if a > b:
        b, c, a = v
    for k in range(3):
        f, g, h = nb.cross(VEC3(f, g, h), x[k])
    x0, y0, z0, w0 = q[i]
    y[i] = VEC3(a * f * z0, b * g * e + w0 * x0, c * h * row[0] * m[i][1][0] + y0)


@nb.kernel
def iterated(x: nb.array1d[VEC3], m: nb.array1d[MAT23], v: VEC3, y: nb.array1d[VEC3]):
    i = nb.tid()
    total = VEC3(0.0, 0.0, 0.0)
    for row in m[i]:
        for k, part in enumerate(row):
            total[k] += part * row[2 - k]
        row[0] = weighted(row, x[i].x)
        total += row
    u = x[i]
    for part, other in zip(u, v):
        u[1] = part * other  # the loop goes through what it was
        total *= u[1]
        if part > 0.4:
            break
        x[i][2] += part
    for part in x[i]:
        x[i][0] = part * part
        total[0] += x[i][0]
    y[i] = total


@nb.kernel
def cut(x: nb.array1d[VEC3], m: nb.array1d[MAT33], t: nb.array1d[TRANSFORM], v: VEC3, y: nb.array1d[VEC3]):
    i = nb.tid()
    head, tail = x[i][:2], t[(i + 1) % N][3:5]
    tail[0] *= head[1]  # of its own, too
    turned = v[::-1]
    turned[-1] += nb.dot(head, tail)
    corner = m[i][1:, :2] @ head
    column = m[i][:, -1] + t[i].p[::-1]
    x[i].y += nb.dot(m[i][0, 1:], corner)
    m[i][1] = column
    m[i][1:, :2] = m[i][:2, 1:]
    m[i][0][1:] = column[::2] * x[i][0]
    x[i][1:] = x[i][:2]
    turned[:2] = m[i][0, 1:]
    t[i].p[::2] = turned[1:]
    y[i] = nb.cross(turned, t[i][:3]) + VEC3(t[i].q[1:3], corner[0]) + m[i][0:2][1] * nb.dot(t[i].p[:2], x[i][:2])


def near_one(rows):
    return np.eye(rows) + 0.3 * floats(N, rows, rows)


ORDER = np.array([4, 8, 0, 3, 6, 1, 5, 7, 2])
CASES = [
    (vectors, floats(N, 3), floats(N, 3) + 1, 2 + floats(N) ** 2, floats(N, 4, 3)),
    (matrices, near_one(3), near_one(3) + 0.1, floats(N, 3), floats(N, 4, 3, 3)),
    (rectangles, floats(N, 2, 3), floats(N, 3), floats(N, 2), floats(N, 2, 2), floats(N, 2)),
    (of_four, near_one(4), floats(N, 4, 4), floats(N)),
    (quaternions, floats(N, 4), floats(N, 4) - 0.5, floats(N, 3), floats(N, 3, 4), floats(N, 1, 3), floats(N, 3, 3)),
    (transforms, floats(N, 7), floats(N, 7) + 0.5, floats(N, 3), floats(N, 7), floats(N, 2, 3)),
    (parts, floats(N, 3), floats(N, 3, 3), np.array([2, 1, -1]), floats(N, 3), floats(N, 3, 3)),
    (loops, floats(N, 3), near_one(2), 70, floats(N, 3), floats(N, 2)),
    (in_place, floats(N, 4, 3), floats(N, 3)),
    (by_value, floats(N, 3), nb.vec3d(0.3, -1, 0.5), nb.mat33d(*floats(9)), 1.7, floats(N, 3)),
    (gathered, floats(N, 3), np.array([2, 1, 2, 0]), floats(N, 3), floats(2, 3)),
    (by_hand, floats(N, 3), floats(N), floats(N, 3)),
    (spatial, floats(N, 6), floats(N, 6, 6), floats(N, 6)),
    (in_local_memory, floats(N, 3), near_one(3), floats(N, 3)),
    (in_local_memory_without_loops, floats(N, 3), floats(N, 3)),
    (column, floats(N, 3), floats(N, 3, 3), floats(N, 7), floats(2, N, 3), floats(N, 3, 3)),
    (neighbours, floats(N, 3), floats(N, 3, 3), floats(N, 7), np.array([2, 1, 2, 0]), floats(N)),
    (in_slices, floats(N, 4, 3), floats(N, 2, 2), floats(N, 3)),
    (changed_values, floats(N, 3), nb.vec3d(0.3, -1, 0.5), nb.mat33d(*floats(9)), floats(N, 3)),
    (left_out, floats(N, 3), floats(N, 3)),
    (unpacked, floats(N, 3), floats(N, 2, 2), nb.vec3d(0.3, -1, 0.5), floats(N, 4), floats(N, 3)),
    (iterated, floats(N, 3), floats(N, 2, 3), nb.vec3d(0.3, -1, 0.5), floats(N, 3)),
    (cut, floats(N, 3), floats(N, 3, 3), floats(N, 7), nb.vec3d(0.3, -1, 0.5), floats(N, 3)),
    (whole_and_parts, floats(N, 3), ORDER, floats(N, 3), floats(N + 1, 3), floats(N, 7)),
]


def is_float(value):
    return isinstance(value, float | nb.kernels.element_types.elements.Element) or np.asarray(value).dtype.kind == "f"


def split(case):
    """Return a kernel, its arguments by name, and those that have a gradient."""
    kernel, *values = case
    by_name = {p.name: v for p, v in zip(kernel.parameters, values, strict=True)}
    return kernel, by_name, [name for name, value in by_name.items() if is_float(value)]


def moved(value, step):
    if isinstance(value, np.ndarray):
        return value + step
    if isinstance(value, float):
        return value + float(step)
    return type(value)(np.asarray(value) + step)


def copied(values):
    return [value.copy() if isinstance(value, np.ndarray) else value for value in values]


def weights_of(by_name, names):
    """Return a cotangent of what each array holds afterwards, and zeros for what is passed by value."""
    random = np.random.default_rng(5)
    return {
        name: random.normal(size=by_name[name].shape)
        if isinstance(by_name[name], np.ndarray)
        else np.zeros(np.shape(by_name[name]))
        for name in names
    }


def gradient(kernel, by_name, weights):
    """Return the gradient of what the weights make of the arrays afterwards."""
    adjoints = {name: weight.copy() for name, weight in weights.items()}
    kernel.adjoint([*adjoints]).forall(N)(*copied(by_name.values()), *adjoints.values())
    return adjoints


def cost(kernel, by_name, weights):
    values = copied(by_name.values())
    nb.launch(kernel, N, values)
    return sum(
        (weights[n] * v).sum()
        for n, v in zip(by_name, values, strict=True)
        if isinstance(v, np.ndarray) and n in weights
    )


def directions(by_name, names):
    random = np.random.default_rng(6)
    return {name: random.normal(size=np.shape(by_name[name])) for name in names}


def along(by_name, steps, factor):
    return {name: moved(v, factor * steps[name]) if name in steps else v for name, v in by_name.items()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].name)
def test_every_component_of_the_gradient(case):
    kernel, by_name, names = split(case)
    weights = weights_of(by_name, names)
    got = gradient(kernel, by_name, weights)
    for name in names:
        wanted = np.zeros(np.shape(by_name[name]))
        for place in np.ndindex(wanted.shape):
            step = np.zeros(wanted.shape)
            step[place] = 1.0
            up, down = (cost(kernel, along(by_name, {name: step}, h), weights) for h in (1e-6, -1e-6))
            wanted[place] = (up - down) / 2e-6
        np.testing.assert_allclose(got[name], wanted, rtol=1e-6, atol=1e-7 * (1 + np.abs(wanted).max()), err_msg=name)


def as_tangent(value, direction):
    if isinstance(value, np.ndarray):
        return direction.copy()
    return float(direction) if isinstance(value, float) else type(value)(direction)


# The others are written out in scalars, of which test_forward checks second derivatives.
SECOND = [case for case in CASES if case[0] not in (of_four, transforms, spatial)]


def test_what_is_read_of_an_element_is_what_its_adjoint_is_added_to():
    kernel, by_name, names = split(CASES[[case[0] for case in CASES].index(neighbours)])
    gradient(kernel, by_name, weights_of(by_name, names))
    text = kernel.adjoint_source.split("\n\n\n")[0]
    # x[a].y, x[b][b], t[a].p[b], t[b].q.w, the row m[a][b], m[b][a][1], the row m[b][2] and the vector t[a].p
    added = [line for line in text.splitlines() if line.strip().startswith("_nb_add")]
    assert len(added) == 1 + 1 + 1 + 1 + 3 + 1 + 3 + 3


@pytest.mark.one_in(2, first=1)
@pytest.mark.parametrize("case", SECOND, ids=lambda case: case[0].name)
def test_tangents_and_second_derivatives(case):
    kernel, by_name, names = split(case)
    weights, steps = weights_of(by_name, names), directions(by_name, names)
    tangent = kernel.tangent(names)
    tangents = [as_tangent(by_name[name], steps[name]) for name in names]
    tangent.forall(N)(*copied(by_name.values()), *tangents)
    arrays = [name for name in names if isinstance(by_name[name], np.ndarray)]
    forwards = sum((weights[name] * t).sum() for name, t in zip(names, tangents, strict=True) if name in arrays)
    first = gradient(kernel, by_name, weights)
    backwards = sum((first[name] * steps[name]).sum() for name in names)
    assert np.isclose(forwards, backwards, rtol=1e-10, atol=1e-10)

    # The adjoint of the tangent, with cotangents on tangents: by the arguments H v, by the tangents the gradient again.
    both = [*names, *(f"_nb_tan_{name}" for name in names)]
    second = {name: np.zeros(np.shape(by_name[name])) for name in names}
    again = {name: weight.copy() for name, weight in weights.items()}
    tangents = [as_tangent(by_name[name], steps[name]) for name in names]
    given = [*copied(by_name.values()), *tangents, *second.values(), *again.values()]
    tangent.adjoint(both).forall(N)(*given)
    up, down = (gradient(kernel, along(by_name, steps, h), weights) for h in (1e-5, -1e-5))
    for name in names:
        np.testing.assert_allclose(again[name], first[name], rtol=1e-9, atol=1e-9, err_msg=name)
        wanted = (up[name] - down[name]) / 2e-5
        limits = {"rtol": 1e-4, "atol": 1e-5 * (1 + np.abs(wanted).max())}
        np.testing.assert_allclose(second[name], wanted, **limits, err_msg=name)


@nb.kernel
def reflected(x: nb.array1d[VEC3], m: nb.array1d[MAT33], y: nb.array1d[VEC3]):
    i = nb.tid()
    n = nb.normalize(m[i] @ x[i])
    y[i] = x[i] - n * (2.0 * nb.dot(x[i], n)) + nb.inverse(m[i]) @ n * nb.length(x[i])


def test_against_jax():
    def f(x, m):
        n = m @ x
        n = n / jnp.linalg.norm(n)
        return x - n * (2.0 * jnp.dot(x, n)) + jnp.linalg.inv(m) @ n * jnp.linalg.norm(x)

    x, m, w = floats(N, 3), near_one(3), floats(N, 3) + 0.5
    with jax.enable_x64(True):
        wanted = jax.grad(lambda x, m: (jax.vmap(f)(x, m) * w).sum(), argnums=(0, 1))(x, m)
    by_x, by_m = np.zeros_like(x), np.zeros_like(m)
    nb.launch(reflected, N, [x, m, np.zeros_like(x)], adj_inputs=[by_x, by_m, w.copy()], adjoint=True)
    np.testing.assert_allclose(by_x, wanted[0], rtol=1e-10)
    np.testing.assert_allclose(by_m, wanted[1], rtol=1e-10)


@nb.kernel
def at_zero(x: nb.array1d[VEC3], y: nb.array1d[VEC3], z: nb.array1d[nb.float64]):
    i = nb.tid()
    y[i] = nb.normalize(x[i])
    z[i] = nb.length(x[i])


def test_length_and_direction_of_zero_have_gradient_zero():
    got = gradient(
        at_zero,
        {"x": np.zeros((N, 3)), "y": np.zeros((N, 3)), "z": np.zeros(N)},
        {"x": np.zeros((N, 3)), "y": np.ones((N, 3)), "z": np.ones(N)},
    )
    assert not got["x"].any()


@nb.kernel
def quotient(v: nb.array[nb.vec3], s: nb.array[float], y: nb.array[nb.vec3]):
    i = nb.tid()
    y[i] = v[i] / s[i]


def test_divisions_by_zero_have_the_gradients_of_numbers():
    v, s = (nb.array(np.ones(shape, "f4"), k, requires_grad=True) for shape, k in (((2, 3), nb.vec3), (2, nb.float32)))
    s.zero_()
    y = nb.zeros(2, nb.vec3, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(quotient, 2, [v, s], [y])
    tape.backward(grads={y: nb.ones(2, nb.vec3)})
    assert np.all(v.grad.numpy() == np.inf) and np.all(s.grad.numpy() == -np.inf)


def test_the_text_has_whole_elements():
    text = reflected.adjoint_source
    assert "_nb_outer(" in text and "_nb_adj_x[_nb_i0] +=" in text and "[0]" not in text


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["adjoint", "tangent"])
@pytest.mark.parametrize("case", [*CASES[6:12], CASES[-1]], ids=lambda case: case[0].name)
def test_compiles_for_cuda(case, mode):
    kernel, by_name, names = split(case)
    if mode == "adjoint":
        more = [np.zeros(np.shape(by_name[name])) for name in names]
    else:
        more = [as_tangent(by_name[name], np.ones(np.shape(by_name[name]))) for name in names]
    text = getattr(kernel, mode)(names).ptx(*by_name.values(), *more, capability=(9, 0))
    assert ".visible .entry" in text


def test_atomics_of_an_adjoint_are_on_components():
    case = next(case for case in CASES if case[0] is gathered)
    kernel, by_name, names = split(case)
    text = kernel.adjoint(names).ptx(*by_name.values(), *(np.zeros(by_name[n].shape) for n in names), capability=(9, 0))
    assert text.count("atom.") + text.count("red.") >= 3


@nb.kernel
def extreme(x: nb.array1d[nb.vec3], out: nb.array1d[nb.vec3]):
    i = nb.tid()
    nb.atomic_max(out, 0, x[i])


@nb.kernel
def sorted_by(x: nb.array1d[nb.vec3], out: nb.array1d[nb.float32]):
    i = nb.tid()
    out[i] = sum(x[i])


@nb.kernel
def halves(x: nb.array1d[nb.vec3h], out: nb.array1d[nb.float32]):
    i = nb.tid()
    out[i] = nb.length(x[i])


@nb.kernel
def local_halves(x: nb.array1d[nb.float16], out: nb.array1d[nb.float32]):
    v = nb.vec2h(x[0], x[1])
    out[0] = nb.dot(v, v)


@nb.kernel
def scaled_halves(x: nb.array1d[nb.float16], out: nb.array1d[nb.float32]):
    m = nb.float16(2) * nb.mat22h(x[0])
    out[0] = m[0, 1]


BRAIN, EIGHT_BITS = nb.vector(2, nb.bfloat16), nb.vector(2, nb.float8_e5m2)


@nb.kernel
def length_of_brain_floats(x: nb.array1d[nb.float32], out: nb.array1d[nb.float32]):
    out[0] = nb.length(BRAIN(x[0], x[1]))


@nb.kernel
def product_of_brain_floats(x: nb.array1d[nb.float32], out: nb.array1d[nb.float32]):
    out[0] = x[0] * nb.dot(BRAIN(x[0]), BRAIN(x[1]))


@nb.kernel
def scaled_floats_of_eight_bits(x: nb.array1d[nb.float32], out: nb.array1d[nb.float32]):
    out[0] = (x[0] * EIGHT_BITS(x[1]))[0]


def single(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("kernel", "values", "text"),
    [
        (
            extreme,
            (single(N, 3), single(N, 3)),
            r"atomic_max on 'out' has no derivative; use atomic_add.*\n.*py:\d+:\d+\n.*\n *\^",
        ),
        (
            sorted_by,
            (single(N, 3), single(N)),
            r"sum has no derivative for vectors.*nb.func_grad.*\n.*py:\d+:\d+\n.*\n *\^",
        ),
        *(
            (
                kernel,
                (np.ones(2, np.float16), single(N)),
                r"vectors and matrices of float16 have no derivative; use those of float32\n.*py:\d+:\d+\n.*\n *\^",
            )
            for kernel in (local_halves, scaled_halves)
        ),
        *(
            (
                kernel,
                (single(N), single(N)),
                rf"vectors and matrices of {dtype} have no derivative; use those of float32\n.*py:\d+:\d+\n",
            )
            for kernel, dtype in (
                (length_of_brain_floats, "bfloat16"),
                (product_of_brain_floats, "bfloat16"),
                (scaled_floats_of_eight_bits, "float8_e5m2"),
            )
        ),
        (halves, (np.ones((N, 3), np.float16), single(N)), r"parameter 'x' is vec3h, of float16.*convert it first"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_has_no_rule_is_refused_before_anything_runs(kernel, values, text):
    adjoints = [np.zeros_like(value) for value in values]
    with pytest.raises(nb.KernelUnsupportedError, match=text):
        nb.launch(kernel, N, list(values), adj_inputs=adjoints, adjoint=True)
    assert not any(adjoint.any() for adjoint in adjoints)


def test_adjoints_of_elements_have_their_shape():
    x, y = single(N, 3), single(N, 3)
    with pytest.raises(nb.NumbridgeError, match=r"wanted shape \(3, 3\), got shape \(3, 2\)"):
        nb.launch(plain, N, [x, y], adj_inputs=[single(N, 2), single(N, 3)], adjoint=True)
    with pytest.raises(nb.BufferAccessError, match="shares memory"):
        nb.launch(plain, N, [x, y], adj_inputs=[x, single(N, 3)], adjoint=True)
    nb.launch(plain, N, [x, y], adj_inputs=[nb.zeros(N, dtype=nb.vec3), single(N, 3)], adjoint=True)


@nb.kernel
def plain(x: nb.array1d[nb.vec3], y: nb.array1d[nb.vec3]):
    i = nb.tid()
    y[i] = x[i] * nb.dot(x[i], x[i])


def test_tape_carries_gradients_of_element_arrays():
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    x, y = nb.array(values, dtype=nb.vec3, requires_grad=True), nb.zeros(N, dtype=nb.vec3, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(plain, N, [x], [y])
    tape.backward(grads={y: nb.array(np.ones((N, 3), np.float32), dtype=nb.vec3)})
    wanted = (values**2).sum(1, keepdims=True) + 2 * values * values.sum(1, keepdims=True)
    assert x.grad.dtype is nb.vec3
    np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-6)
