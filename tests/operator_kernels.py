"""Kernels of many kinds as operators, for random programs, and of each a twin in the framework's own operations."""

import math
from types import SimpleNamespace

import numpy as np

import numbridge as nb

BINS = 4


def operators(op, real):
    """Return operators that `op` makes, ``torch_op`` or ``paddle_op``, for a floating type, by name."""
    vec3 = nb.vector(3, real)

    @nb.kernel
    def waves(x, y, out):
        i = nb.tid()
        out[i] = math.sin(x[i]) * y[i] + x[i]

    @nb.kernel
    def pair(x, w, p, q):
        i = nb.tid()
        p[i] = x[i] * x[i] * w[i]
        q[i] = math.cos(w[i]) - x[i]

    @nb.kernel
    def scaled(x: nb.array1d[real], a: real, k: int, out: nb.array1d[real]):
        i = nb.tid()
        out[i] = a * x[i] + k * x[i] * x[i]

    @nb.kernel
    def mixed(x, u, out):
        i = nb.tid()
        out[i] = x[i] * u[i]

    @nb.kernel
    def masked(x, b, out):
        i = nb.tid()
        if b[i]:
            out[i] = x[i] * x[i]

    @nb.kernel
    def gathered(x, places, out):
        i = nb.tid()
        out[i] = 2.0 * x[places[i]] + x[i - 1]

    @nb.kernel
    def scattered(x, places, out):
        i = nb.tid()
        nb.atomic_add(out, places[i], x[i] * x[i])

    @nb.kernel
    def parted(x, whole: nb.array1d[nb.int32], part):
        i = nb.tid()
        whole[i] = math.floor(2.0 * x[i])
        part[i] = 2.0 * x[i] - whole[i]

    @nb.kernel
    def left_alone(x, unused: nb.array1d[real], out):
        i = nb.tid()
        out[i] = 3.0 * x[i]

    @nb.kernel
    def row_sums(x, out):
        i = nb.tid()
        total = real(0.0)
        for j in range(x.shape[1]):
            total += x[i, j] * x[i, j]
        out[i] = total

    @nb.kernel
    def planes(x, y, out):
        i, j = nb.tid()
        out[i, j] = x[i, j] * y[i, j] + 0.5 * x[i, j] * x[i, j]

    @nb.kernel
    def spread(out, x, w):
        i, j = nb.tid()
        out[i, j] = x[i] * w[j] + w[j]

    @nb.kernel
    def relaxed(x, out):
        i = nb.tid()
        out[0, i] = x[0, i]
        for t in range(1, x.shape[0]):
            out[t, i] = math.tanh(out[t - 1, i]) * x[t, i] + 0.5 * out[t - 1, i]

    @nb.kernel
    def lengths(x: nb.array1d[vec3], out: nb.array1d[real]):
        i = nb.tid()
        out[i] = math.sqrt(nb.dot(x[i], x[i]) + real(1.0))

    @nb.kernel
    def turned(x: nb.array1d[vec3], by: vec3, out: nb.array1d[vec3]):
        i = nb.tid()
        out[i] = nb.cross(x[i], by) + x[i]

    @nb.kernel
    def summed(planes, number: real, out: nb.array1d[real]):
        i = nb.tid()
        out[i] = planes[0][i] * planes[1][i] * number

    @nb.kernel
    def add_square(x, out):
        i = nb.tid()
        out[i] += x[i] * x[i]

    return SimpleNamespace(
        waves=op(waves, "out"),
        pair=op(pair, ["p", "q"]),
        scaled=op(scaled, "out"),
        mixed=op(mixed, "out"),
        masked=op(masked, "out"),
        gathered=op(
            gathered, "out", launch_dims=lambda x, places: places.shape, output_dims=lambda x, places: places.shape
        ),
        scattered=op(scattered, "out", launch_dims=lambda x, places: x.shape, output_dims=BINS),
        parted=op(parted, ["whole", "part"]),
        left_alone=op(left_alone, "out"),
        row_sums=op(row_sums, "out", launch_dims=lambda x: x.shape[0], output_dims=lambda x: x.shape[0]),
        planes=op(planes, "out"),
        spread=op(
            spread,
            "out",
            launch_dims=lambda x, w: (x.shape[0], w.shape[0]),
            output_dims=lambda x, w: (x.shape[0], w.shape[0]),
        ),
        relaxed=op(relaxed, "out", launch_dims=lambda x: x.shape[1]),
        lengths=op(lengths, "out"),
        turned=op(turned, "out"),
        summed=op(
            summed, "out", launch_dims=lambda planes, _: planes[0].shape, output_dims=lambda planes, _: planes[0].shape
        ),
        add_square=op(add_square),
    )


class Twins:
    """The same of a framework's own operations, which bear the same names in both; `cast` converts a tensor to a dtype."""

    def __init__(self, framework, cast):
        self.framework = framework
        self.cast = cast

    def waves(self, x, y):
        return self.framework.sin(x) * y + x

    def pair(self, x, w):
        return x * x * w, self.framework.cos(w) - x

    def scaled(self, x, a, k):
        return a * x + k * x * x

    def mixed(self, x, u):
        return x * self.cast(u, x.dtype)

    def masked(self, x, b):
        return x * x * self.cast(b, x.dtype)

    def gathered(self, x, places):
        # Row i - 1 of the same array; the launch is as long as the places.
        before = self.framework.concat([x[-1:], x[:-1]])[: places.shape[0]]
        return 2.0 * x[places] + before

    def scattered(self, x, places):
        shares = self.framework.nn.functional.one_hot(places, BINS)
        return ((x * x).unsqueeze(1) * self.cast(shares, x.dtype)).sum(0)

    def parted(self, x):
        whole = self.cast(self.framework.floor(2.0 * x.detach()), self.framework.int32)
        return whole, 2.0 * x - self.cast(whole, x.dtype)

    def left_alone(self, x, unused):
        return 3.0 * x + 0.0 * unused.sum()

    def row_sums(self, x):
        return (x * x).sum(1)

    def planes(self, x, y):
        return x * y + 0.5 * x * x

    def spread(self, x, w):
        return x.unsqueeze(1) * w.unsqueeze(0) + w.unsqueeze(0)

    def relaxed(self, x):
        rows = [x[0]]
        for t in range(1, x.shape[0]):
            rows.append(self.framework.tanh(rows[-1]) * x[t] + 0.5 * rows[-1])
        return self.framework.stack(rows)

    def lengths(self, x):
        return self.framework.sqrt((x * x).sum(1) + 1.0)

    def turned(self, x, by):
        (a, b, c), (d, e, f) = (x[:, 0], x[:, 1], x[:, 2]), (by[0], by[1], by[2])
        return self.framework.stack([b * f - c * e, c * d - a * f, a * e - b * d], 1) + x

    def summed(self, planes, number):
        return planes[0] * planes[1] * number

    def add_square(self, x, out):
        out.add_(x * x)


def value(random, kind, shape, real):
    """Return an argument of a kind: f floating, i places, b truth values."""
    if kind == "i":
        return random.integers(0, 3, shape).astype(np.int64)
    if kind == "b":
        return random.uniform(-1, 1, shape) > 0
    return random.uniform(-1.1, 1.3, shape).astype(real)
