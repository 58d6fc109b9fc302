"""Warp's side of the benchmarks, as its documentation writes kernels: at the top of a module, with evaluated annotations."""

import warp as wp

from numbridge.command_line.warp_peer import add


@wp.kernel
def normalize_cross(a: wp.array(dtype=wp.vec3), b: wp.array(dtype=wp.vec3), c: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    c[i] = wp.cross(wp.normalize(a[i]), wp.normalize(b[i]))


@wp.kernel
def transformed(m: wp.array(dtype=wp.mat33), v: wp.array(dtype=wp.vec3), out: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    out[i] = m[i] * v[i]


@wp.kernel
def product(a: wp.array2d(dtype=float), b: wp.array2d(dtype=float), c: wp.array2d(dtype=float)):
    i, j = wp.tid()
    s = wp.float32(0.0)
    for k in range(a.shape[1]):
        s += a[i, k] * b[k, j]
    c[i, j] = s


@wp.kernel
def histogram(places: wp.array(dtype=wp.int32), counts: wp.array(dtype=wp.int32)):
    i = wp.tid()
    wp.atomic_add(counts, places[i], 1)


@wp.kernel
def springs(
    x: wp.array(dtype=wp.vec3),
    ends: wp.array2d(dtype=wp.int32),
    lengths: wp.array(dtype=float),
    stiffness: float,
    f: wp.array(dtype=wp.vec3),
):
    k = wp.tid()
    i = ends[k, 0]
    j = ends[k, 1]
    d = x[i] - x[j]
    length = wp.length(d)
    force = d * (stiffness * (length - lengths[k]) / length)
    wp.atomic_sub(f, i, force)
    wp.atomic_add(f, j, force)


@wp.kernel
def all_pairs(x: wp.array(dtype=wp.vec3), masses: wp.array(dtype=float), energies: wp.array(dtype=float), n: int):
    i = wp.tid()
    total = wp.float32(0.0)
    for j in range(n):
        if j != i:
            total += masses[i] * masses[j] / (wp.length(x[i] - x[j]) + 0.01)
    energies[i] = total


@wp.kernel
def normals(x: wp.array(dtype=wp.vec3), corners: wp.array2d(dtype=wp.int32), sums: wp.array(dtype=wp.vec3)):
    t = wp.tid()
    i = corners[t, 0]
    j = corners[t, 1]
    k = corners[t, 2]
    normal = wp.cross(x[j] - x[i], x[k] - x[i])
    wp.atomic_add(sums, i, normal)
    wp.atomic_add(sums, j, normal)
    wp.atomic_add(sums, k, normal)


@wp.kernel
def five_by_five(x: wp.array2d(dtype=float), w: wp.array2d(dtype=float), y: wp.array2d(dtype=float)):
    i, j = wp.tid()
    total = wp.float32(0.0)
    for a in range(5):
        for b in range(5):
            total += w[a, b] * x[i + a, j + b]
    y[i, j] = total


@wp.kernel
def periodic(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float)):
    i, j = wp.tid()
    n = x.shape[0]
    m = x.shape[1]
    y[i, j] = 0.25 * (x[(i + 1) % n, j] + x[(i - 1 + n) % n, j] + x[i, (j + 1) % m] + x[i, (j - 1 + m) % m])


@wp.kernel
def periodic_by_one_index(x: wp.array(dtype=float), y: wp.array(dtype=float), w: int, h: int):
    i = wp.tid()
    r = i // w
    c = i % w
    left = (c - 1 + w) % w
    right = (c + 1) % w
    up = (r - 1 + h) % h
    down = (r + 1) % h
    y[i] = 0.25 * (x[r * w + left] + x[r * w + right] + x[up * w + c] + x[down * w + c])


@wp.kernel
def weighted(x: wp.array2d(dtype=float), w: wp.array2d(dtype=float), y: wp.array2d(dtype=float)):
    i = wp.tid()
    for k in range(w.shape[0]):
        total = wp.float32(0.0)
        for j in range(w.shape[1]):
            total += w[k, j] * x[i, j]
        y[i, k] = total


@wp.kernel
def squared_error(x: wp.array(dtype=float), y: wp.array(dtype=float), total: wp.array(dtype=float)):
    i = wp.tid()
    d = x[i] - y[i]
    wp.atomic_add(total, 0, d * d)


@wp.kernel
def mandelbrot(trips: wp.array2d(dtype=wp.int32), most: int):
    i, j = wp.tid()
    a = 3.0 * float(j) / float(trips.shape[1]) - 2.0
    b = 3.0 * float(i) / float(trips.shape[0]) - 1.5
    x = wp.float32(0.0)
    y = wp.float32(0.0)
    k = wp.int32(0)
    while k < most and x * x + y * y < 4.0:
        following = x * x - y * y + a
        y = 2.0 * x * y + b
        x = following
        k += 1
    trips[i, j] = k


@wp.kernel
def scale(x: wp.array(dtype=float), s: float, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * s


@wp.kernel
def square(x: wp.array(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    y[i] = x[i] * x[i]


@wp.kernel
def sum_edges(
    source: wp.array(dtype=int), target: wp.array(dtype=int), x: wp.array2d(dtype=float), out: wp.array2d(dtype=float)
):
    e, f = wp.tid()
    wp.atomic_add(out, target[e], f, x[source[e], f])


@wp.kernel
def relaxed(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float)):
    i = wp.tid()
    y[0, i] = x[0, i]
    for k in range(1, x.shape[0]):
        y[k, i] = wp.tanh(y[k - 1, i]) * x[k, i] + 0.5 * y[k - 1, i]


@wp.kernel
def burgers(u: wp.array2d(dtype=float)):
    for t in range(u.shape[0] - 1):
        for i in range(1, u.shape[1] - 1):
            steepest = u[t, i] - u[t, i - 1]
            bent = u[t, i - 1] - 2.0 * u[t, i] + u[t, i + 1]
            u[t + 1, i] = u[t, i] - 0.1 * u[t, i] * steepest + 0.05 * bent


@wp.kernel
def square_of_sum(a: wp.array(dtype=float), b: wp.array(dtype=float), s: float, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = (a[i] * s + b[i]) ** 2.0


def scaled_twice(x: wp.array(dtype=float), s: float, out: wp.array(dtype=float)):
    once, twice = wp.empty_like(x), wp.empty_like(x)
    wp.launch(scale, x.shape, [x, s], [once], device="cpu")
    wp.launch(scale, x.shape, [once, s], [twice], device="cpu")
    wp.launch(add, x.shape, [once, twice], [out], device="cpu")


def jax_square_of_sum():
    """Return the kernel `square_of_sum` as a JAX function with gradients."""
    return wp.jax_kernel(square_of_sum, enable_backward=True)


def jax_scaled_twice():
    """Return `scaled_twice` as a JAX function."""
    return wp.jax_callable(scaled_twice)
