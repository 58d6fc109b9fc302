"""Kernels of many kinds as functions of JAX, for random programs, and of each a twin in jax.numpy that computes the same."""

import cmath
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

import numbridge as nb


@nb.func
def bent(x, y):
    return x * y + math.sin(x)


def squared(x):
    return 0.5 * math.sin(x) * x


squared_func = nb.func(squared)
RECORD = np.dtype([("x", np.float32), ("n", np.int32)])


def as_records(x, n):
    """Return records as JAX has them, which are bytes."""
    return jnp.concatenate(
        [jax.lax.bitcast_convert_type(a, jnp.uint8) for a in (x.astype(jnp.float32), n.astype(jnp.int32))], -1
    )


def fields(records):
    """Return the fields of records that are bytes."""
    return (
        jax.lax.bitcast_convert_type(records[..., :4], jnp.float32),
        jax.lax.bitcast_convert_type(records[..., 4:], jnp.int32),
    )


def kernels(real, complex_):
    """Return the functions of kernels for a floating type, by name."""
    vec3, mat33 = nb.vector(3, real), nb.matrix((3, 3), real)
    # Kernels take numbers of 16 bits in arrays only.
    number = real if np.dtype(real).itemsize > 2 else nb.float32

    @nb.kernel
    def product(x, y, out):
        i = nb.tid()
        out[i] = x[i] * y[i] + 0.3 * x[i]

    @nb.kernel
    def scaled(x: nb.array(dtype=real), s: number, out: nb.array(dtype=real)):
        i = nb.tid()
        out[i] = math.sin(s * x[i]) + s

    @nb.kernel
    def pair(x, y, p, q):
        i = nb.tid()
        p[i] = math.sin(x[i]) * y[i]
        q[i] = math.cos(y[i]) + x[i] * p[i]

    @nb.kernel
    def changed(x, y):
        i = nb.tid()
        y[i] = 0.5 * y[i] * x[i] + math.sin(y[i])

    @nb.kernel
    def changed_and_more(x, y, out):
        i = nb.tid()
        out[i] = y[i] * x[i]
        if i > 0:
            y[i] = 0.3 * x[i] + out[i] * y[i]

    @nb.kernel
    def total(x, out):
        i = nb.tid()
        nb.atomic_add(out, 0, 0.25 * x[i] * x[i] + x[i])

    @nb.kernel
    def row_sums(x, out):
        i, j = nb.tid()
        nb.atomic_add(out, i, 0.5 * math.sin(x[i, j]))

    @nb.kernel
    def stencil(x, out):
        i = nb.tid()
        if i > 0 and i < x.shape[0] - 1:
            out[i] = x[i - 1] - 0.5 * x[i] * x[i + 1]

    @nb.kernel
    def wrapped(x, y, out):
        i = nb.tid()
        out[i] = x[(i + 1) % x.shape[0]] * y[i - 1] + 0.2 * x[i]

    @nb.kernel
    def gathered(index: nb.array(dtype=nb.int32), x: nb.array(dtype=real), out: nb.array(dtype=real)):
        i = nb.tid()
        out[i] = math.sin(x[index[i] % x.shape[0]]) + 0.1 * x[0]

    @nb.kernel
    def scattered(x: nb.array(dtype=real), index: nb.array(dtype=nb.int32), out: nb.array(dtype=real)):
        i = nb.tid()
        nb.atomic_add(out, index[i] % out.shape[0], 0.5 * x[i] * x[i])

    @nb.kernel
    def recurrence(x, out):
        i = nb.tid()
        state = 0.3 * x[0, i]
        for t in range(x.shape[0]):
            state = math.sin(state + x[t, i])
            out[t, i] = state * x[t, i]

    @nb.kernel
    def running(x, out):
        i = nb.tid()
        for k in range(i + 1):
            out[i] += 0.3 * x[k] * x[i]

    @nb.kernel
    def matmul(a, b, out):
        i, j = nb.tid()
        for k in range(a.shape[1]):
            out[i, j] += 0.4 * a[i, k] * b[k, j]

    @nb.kernel
    def matvec(a, x, out):
        i = nb.tid()
        for k in range(a.shape[1]):
            out[i] += 0.4 * a[i, k] * x[k]

    @nb.kernel
    def turned(x, out):
        i, j = nb.tid()
        out[i, j] = math.sin(x[j, i]) + 0.2 * x[j, i]

    @nb.kernel
    def plane(x, y, out):
        i, j = nb.tid()
        out[i, j] = bent(x[i, j], y[i, j])

    @nb.kernel
    def spread(x, y, out):
        i, j = nb.tid()
        out[i, j] = x[i] * math.cos(y[j])

    @nb.kernel
    def cube(x, y, out):
        i, j, k = nb.tid()
        out[i, j, k] = x[i, j, k] * y[i, k] + math.sin(x[i, j, k])

    @nb.kernel
    def crossed(x: nb.array(dtype=vec3), y: nb.array(dtype=vec3), out: nb.array(dtype=vec3)):
        i = nb.tid()
        out[i] = nb.cross(x[i], y[i]) + 0.5 * x[i]

    @nb.kernel
    def lengths(x: nb.array(dtype=vec3), out: nb.array(dtype=real)):
        i = nb.tid()
        out[i] = nb.sqrt(1.0 + nb.dot(x[i], x[i]))

    @nb.kernel
    def shifted(x: nb.array(dtype=vec3), by: vec3, out: nb.array(dtype=vec3)):
        i = nb.tid()
        out[i] = nb.cw_mul(x[i], by) + by

    @nb.kernel
    def rotated(m: nb.array(dtype=mat33), x: nb.array(dtype=vec3), out: nb.array(dtype=vec3)):
        i = nb.tid()
        out[i] = 0.4 * (m[i] @ x[i])

    @nb.kernel
    def power(x, n: int, out):
        i = nb.tid()
        made = math.cos(x[i])
        for _ in range(n % 4):
            made = made * math.sin(x[i])
        out[i] = made

    @nb.kernel
    def divided(x: nb.array(dtype=real), out: nb.array(dtype=real), whole: nb.array(dtype=nb.int32)):
        i = nb.tid()
        if x[i] > 0.31:
            out[i] = x[i] * x[i]
            whole[i] = i + 1
        else:
            out[i] = math.sin(x[i])

    @nb.kernel
    def masked(
        mask: nb.array(dtype=nb.bool), x: nb.array(dtype=real), y: nb.array(dtype=real), out: nb.array(dtype=real)
    ):
        i = nb.tid()
        if mask[i]:
            out[i] = x[i] * y[i]
        else:
            out[i] = y[i] + 0.5 * x[i]

    @nb.kernel
    def complex_product(x: nb.array(dtype=complex_), y: nb.array(dtype=complex_), out: nb.array(dtype=complex_)):
        i = nb.tid()
        out[i] = x[i] * y[i].conjugate() + 0.3 * x[i]

    @nb.kernel
    def complex_changed(x: nb.array(dtype=complex_), c: complex_, y: nb.array(dtype=complex_)):
        i = nb.tid()
        y[i] = 0.5 * x[i] * y[i] + c * cmath.exp(0.3j * y[i])

    @nb.kernel
    def complex_lengths(x: nb.array(dtype=complex_), out: nb.array(dtype=real)):
        i = nb.tid()
        out[i] = math.sqrt(1.0 + (x[i] * x[i].conjugate()).real) - 0.2 * x[i].imag

    @nb.kernel
    def turning(x: nb.array(dtype=real), out: nb.array(dtype=complex_)):
        i = nb.tid()
        out[i] = cmath.exp(1j * x[i]) * x[0]

    @nb.kernel
    def whole_numbers(a, b, out):
        """Of integers of any one type."""
        i = nb.tid()
        out[i] = a[i] * b[i] - (a[i] & 3) + max(a[i], b[i])

    @nb.kernel
    def whole_sums(a, b, out):
        i = nb.tid()
        nb.atomic_add(out, i % 2, a[i] * b[i] + (a[i] >> 1))

    @nb.kernel
    def weighted(a: nb.array(), x: nb.array(dtype=real), out: nb.array(dtype=real)):
        """The weights are integers or truth values of any type."""
        i = nb.tid()
        out[i] = x[i] * (a[i] % 3) + 0.2 * math.sin(x[i])

    @nb.kernel
    def moved_records(by: nb.array(dtype=real), records: nb.array(dtype=RECORD), out: nb.array(dtype=nb.int32)):
        i = nb.tid()
        records[i].x = records[i].x * 0.5 + by[i]
        if records[i].n % 2 == 0:
            records[i].n += 3
        out[i] = records[i].n % 5

    @nb.kernel
    def filled(s: number, n: int, out: nb.array(dtype=real)):
        i = nb.tid()
        out[i] = math.sin(s * (i + 1)) + 0.1 * (n % 3)

    @nb.kernel
    def widened(x: nb.array(dtype=nb.float32), y: nb.array(dtype=real), out: nb.array(dtype=real)):
        i = nb.tid()
        out[i] = y[i] * x[i] + math.sin(y[i])

    @nb.kernel
    def narrowed(x: nb.array(dtype=real), out: nb.array(dtype=nb.float32)):
        i = nb.tid()
        out[i] = x[i] * x[i]

    @nb.kernel
    def slopes(x, out):
        i = nb.tid()
        out[i] = nb.grad(squared_func)(x[i]) * x[i]

    @nb.kernel
    def linear(x, y, out):
        i = nb.tid()
        out[i] = 0.5 * x[i] - 0.25 * y[i]

    @nb.kernel
    def halved(x, y, out):
        """A while loop whose trips depend on data."""
        i = nb.tid()
        made = x[i]
        k = 0
        while abs(made) > 0.37 and k < 9:
            made = made * 0.5
            k += 1
        out[i] = made * y[i]

    @nb.kernel
    def first_half(x, out):
        """Launched on fewer threads than elements."""
        i = nb.tid()
        out[2 * i] = x[i] * x[i]

    @nb.kernel
    def untouched(x, y, z):
        """Two arrays that change, of which one only in part, and reads across threads."""
        i = nb.tid()
        y[i] = y[i] + x[i] * x[0]
        if i % 2 == 0:
            z[i] = math.sin(z[i] * x[i])

    made = nb.jax_kernel
    first = {"launch_dims": lambda x, *_: x.shape[0], "output_dims": lambda x, *_: x.shape[0]}
    grad = {"enable_backward": True}

    def several(
        x: nb.array(dtype=real), y: nb.array(dtype=real), out: nb.array(dtype=real), last: nb.array(dtype=real)
    ):
        between = nb.zeros(x.shape, dtype=real)
        nb.launch(product, x.shape, [x, y], [between])
        between[1:] = jnp.sin(jnp.asarray(between)[1:])
        nb.launch(changed, x.shape, [between, out])
        nb.launch(pair, x.shape, [between, x], [out, last])

    def several_in_place(x: nb.array(dtype=real), s: number, y: nb.array(dtype=real)):
        nb.launch(changed, x.shape, [x], [y])
        nb.launch(changed, x.shape, [x, y])
        y[:1] = s * jnp.asarray(y)[:1]

    raw = dict(locals())
    return SimpleNamespace(
        raw={k: v for k, v in raw.items() if isinstance(v, nb.Kernel)},
        product=made(product, **grad),
        scaled=made(scaled, **grad),
        pair=made(pair, 2, **grad),
        changed=made(changed, 1, in_out_argnames=["y"], **grad),
        changed_and_more=made(changed_and_more, 2, in_out_argnames=["y"], **grad),
        total=made(total, output_dims=1, **grad),
        row_sums=made(row_sums, output_dims=lambda x: x.shape[0], **grad),
        stencil=made(stencil, **grad),
        wrapped=made(wrapped, **grad),
        gathered=made(gathered, **grad),
        scattered=made(scattered, output_dims=3, **grad),
        recurrence=made(recurrence, launch_dims=lambda x: x.shape[1], output_dims=lambda x: x.shape, **grad),
        running=made(running, **grad),
        matmul=made(
            matmul,
            launch_dims=lambda a, b: (a.shape[0], b.shape[1]),
            output_dims=lambda a, b: (a.shape[0], b.shape[1]),
            **grad,
        ),
        matvec=made(matvec, **first, **grad),
        turned=made(
            turned, launch_dims=lambda x: x.shape[::-1], output_dims=lambda x: (x.shape[1], x.shape[0]), **grad
        ),
        plane=made(plane, **grad),
        spread=made(
            spread,
            launch_dims=lambda x, y: (x.shape[0], y.shape[0]),
            output_dims=lambda x, y: (x.shape[0], y.shape[0]),
            **grad,
        ),
        cube=made(cube, **grad),
        crossed=made(crossed, **grad),
        lengths=made(lengths, **grad),
        shifted=made(shifted, **grad),
        rotated=made(rotated, **grad),
        power=made(power, **grad),
        divided=made(divided, 2, **grad),
        masked=made(masked, launch_dims=lambda mask, *_: mask.shape, **grad),
        complex_product=made(complex_product, **grad),
        complex_changed=made(complex_changed, 1, in_out_argnames=["y"], **grad),
        complex_lengths=made(complex_lengths, **grad),
        turning=made(turning, **grad),
        whole_numbers=made(whole_numbers),
        whole_sums=made(whole_sums, output_dims=2),
        weighted=made(weighted, **grad),
        moved_records=made(moved_records, 2, in_out_argnames=["records"]),
        filled=made(filled, launch_dims=4, **grad),
        widened=made(widened, **grad),
        narrowed=made(narrowed, **grad),
        slopes=made(slopes, **grad),
        linear=made(linear, **grad),
        halved=made(halved, **grad),
        first_half=made(
            first_half, launch_dims=lambda x: (x.shape[0] + 1) // 2, output_dims=lambda x: x.shape[0] + 1, **grad
        ),
        untouched=made(untouched, 2, in_out_argnames=["z", "y"], **grad),
        several=nb.jax_callable(several, 2, **grad),
        several_replayed=nb.jax_callable(several, 2, graph_mode=nb.GraphMode.NUMBRIDGE, **grad),
        several_in_place=nb.jax_callable(several_in_place, in_out_argnames=["y"], **grad),
        several_in_place_replayed=nb.jax_callable(
            several_in_place, in_out_argnames=["y"], graph_mode=nb.GraphMode.NUMBRIDGE, **grad
        ),
    )


class Twins:
    """The same functions in jax.numpy."""

    def __getattr__(self, name):
        # options of a call
        function = getattr(type(self), f"_{name}")

        def run(*arguments, launch_dims=None, output_dims=None, vmap_method=None, fuse=None):
            return function(*arguments)

        return run

    @staticmethod
    def _product(x, y):
        return (x * y + 0.3 * x,)

    @staticmethod
    def _scaled(x, s):
        s = jnp.asarray(s, x.dtype)
        return (jnp.sin(s * x) + s,)

    @staticmethod
    def _pair(x, y):
        p = jnp.sin(x) * y
        return p, jnp.cos(y) + x * p

    @staticmethod
    def _changed(x, y):
        return (0.5 * y * x + jnp.sin(y),)

    @staticmethod
    def _changed_and_more(x, y):
        out = y * x
        return jnp.where(jnp.arange(x.shape[0]) > 0, 0.3 * x + out * y, y), out

    @staticmethod
    def _total(x):
        return ((0.25 * x * x + x).sum()[None],)

    @staticmethod
    def _row_sums(x):
        return ((0.5 * jnp.sin(x)).sum(1),)

    @staticmethod
    def _stencil(x):
        if x.shape[0] < 3:
            return (0 * x,)
        inner = x[:-2] - 0.5 * x[1:-1] * x[2:]
        return (jnp.pad(inner, 1),)

    @staticmethod
    def _wrapped(x, y):
        return (jnp.roll(x, -1) * jnp.roll(y, 1) + 0.2 * x,)

    @staticmethod
    def _gathered(index, x):
        if index.shape[0] == 0:
            return (jnp.zeros(0, x.dtype),)
        return (jnp.sin(x[index % x.shape[0]]) + 0.1 * x[0],)

    @staticmethod
    def _scattered(x, index):
        return (jnp.zeros(3, x.dtype).at[index % 3].add(0.5 * x * x),)

    @staticmethod
    def _recurrence(x):
        if 0 in x.shape:
            return (0 * x,)

        def step(state, row):
            state = jnp.sin(state + row)
            return state, state * row

        return (jax.lax.scan(step, 0.3 * x[0], x)[1],)

    @staticmethod
    def _running(x):
        return (0.3 * jnp.cumsum(x) * x,)

    @staticmethod
    def _matmul(a, b):
        return (0.4 * jnp.matmul(a, b, precision="highest"),)

    @staticmethod
    def _matvec(a, x):
        return (0.4 * jnp.matmul(a, x, precision="highest"),)

    @staticmethod
    def _turned(x):
        return (jnp.sin(x.T) + 0.2 * x.T,)

    @staticmethod
    def _plane(x, y):
        return (x * y + jnp.sin(x),)

    @staticmethod
    def _spread(x, y):
        return (x[:, None] * jnp.cos(y),)

    @staticmethod
    def _cube(x, y):
        return (x * y[:, None] + jnp.sin(x),)

    @staticmethod
    def _crossed(x, y):
        return (jnp.cross(x, y) + 0.5 * x,)

    @staticmethod
    def _lengths(x):
        return (jnp.sqrt(1.0 + (x * x).sum(-1)),)

    @staticmethod
    def _shifted(x, by):
        return (x * by + by,)

    @staticmethod
    def _rotated(m, x):
        return (0.4 * (m * x[:, None, :]).sum(-1),)

    @staticmethod
    def _power(x, n):
        made = jnp.cos(x)
        for k in range(3):
            made = jnp.where(k < n % 4, made * jnp.sin(x), made)
        return (made,)

    @staticmethod
    def _divided(x):
        above = x > 0.31
        whole = jnp.where(above, jnp.arange(1, x.shape[0] + 1, dtype=jnp.int32), 0)
        return jnp.where(above, x * x, jnp.sin(x)), whole.astype(jnp.int32)

    @staticmethod
    def _masked(mask, x, y):
        return (jnp.where(mask, x * y, y + 0.5 * x),)

    @staticmethod
    def _complex_product(x, y):
        return (x * jnp.conj(y) + 0.3 * x,)

    @staticmethod
    def _complex_changed(x, c, y):
        return (0.5 * x * y + jnp.asarray(c, x.dtype) * jnp.exp(0.3j * y),)

    @staticmethod
    def _complex_lengths(x):
        return (jnp.sqrt(1.0 + x.real * x.real + x.imag * x.imag) - 0.2 * x.imag,)

    @staticmethod
    def _turning(x):
        return (jnp.exp(1j * x) * x[:1],)

    @staticmethod
    def _whole_numbers(a, b):
        return (a * b - (a & 3) + jnp.maximum(a, b),)

    @staticmethod
    def _whole_sums(a, b):
        even, made = jnp.arange(a.shape[0]) % 2 == 0, a * b + (a >> 1)
        return (jnp.stack([jnp.where(even, made, 0).sum(dtype=a.dtype), jnp.where(even, 0, made).sum(dtype=a.dtype)]),)

    @staticmethod
    def _weighted(a, x):
        return (x * (a % 3).astype(x.dtype) + 0.2 * jnp.sin(x),)

    @staticmethod
    def _moved_records(by, records):
        x, n = fields(records)
        n = jnp.where(n % 2 == 0, n + 3, n)
        return as_records(x * 0.5 + by, n), n % 5

    @staticmethod
    def _filled(s, n):
        s = jnp.asarray(s)
        n = jnp.asarray(n)
        return (jnp.sin(s * jnp.arange(1, 5, dtype=s.dtype)) + 0.1 * (n % 3).astype(s.dtype),)

    @staticmethod
    def _widened(x, y):
        return (y * x.astype(y.dtype) + jnp.sin(y),)

    @staticmethod
    def _narrowed(x):
        return ((x * x).astype(jnp.float32),)

    @staticmethod
    def _slopes(x):
        return (0.5 * (jnp.cos(x) * x + jnp.sin(x)) * x,)

    @staticmethod
    def _linear(x, y):
        return (0.5 * x - 0.25 * y,)

    @staticmethod
    def _halved(x, y):
        made = x
        for _ in range(9):
            made = jnp.where(abs(made) > 0.37, made * 0.5, made)
        return (made * y,)

    @staticmethod
    def _first_half(x):
        n = x.shape[0]
        return (jnp.zeros(n + 1, x.dtype).at[: n + n % 2 : 2].set((x * x)[: (n + 1) // 2]),)

    @staticmethod
    def _untouched(x, y, z):
        even = jnp.arange(x.shape[0]) % 2 == 0
        return y + x * x[:1], jnp.where(even, jnp.sin(z * x), z)

    @staticmethod
    def _several(x, y):
        between = x * y + 0.3 * x
        between = jnp.where(jnp.arange(x.shape[0]) > 0, jnp.sin(between), between)
        return Twins._pair(between, x)

    _several_replayed = _several

    @staticmethod
    def _several_in_place(x, s, y):
        for _ in range(2):
            (y,) = Twins._changed(x, y)
        return (jnp.where(jnp.arange(x.shape[0]) == 0, jnp.asarray(s, y.dtype) * y, y),)

    _several_in_place_replayed = _several_in_place
