"""Kernels that together use every construct of the kernel language, with arguments: the cases of the adjoint tests."""

# ruff: noqa: B007, F841, RUF005 - kernels as users write them, with loop variables and locals that nothing reads

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
from numba import cuda

from adjoint_row_cases import ROWS
from adjoint_slice_cases import SLICES
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.intrinsics import atomic_add, atomic_sub, tid

cuda_local = cuda.local.array
random = np.random.default_rng(7)


def uniform(*shape, low=0.2, high=1.7):
    return random.uniform(low, high, shape)


@kernel
def tuples_added_and_compared(x, y):
    i = tid()
    both = (x[i],) + (y[i], 2.0) + ()
    total = 0.0
    for part in both + (x[i] * y[i],):
        total = total * part + part
    if (i, both[0]) == (1, x[1]) or both[:2] != (x[i], y[i]):
        total *= x[i]
    if x.shape == y.shape and (i, i) != (0,) and () == () and not (i, 2) == (0, 2.0) == (0, 2):
        total *= y[i]
    y[i] = total


@kernel
def saxpy(x, y, a):
    i = tid()
    y[i] = a * x[i] + y[i]


@kernel
def overwritten_locals(x, y):
    i = tid()
    t = x[i]
    t = t * t
    t = t * math.sin(t)
    t += x[i]
    y[i] = t


@kernel
def branches(x, y):
    i = tid()
    if x[i] > 1.0:
        t = x[i] * x[i]
    elif x[i] > 0.6:
        t = math.exp(x[i])
        if i > 1:
            t = t * 2.0
    else:
        t = 3.0 * x[i]
    y[i] = t * t


CHOSEN, NOTHING = (0, 3), ()


@kernel
def one_of_a_tuple(x, y):
    i = tid()
    a, b = x[i], 1.1
    if a in (x[0], 2.0, x[2]):
        b = a * a
    if i not in CHOSEN:
        b *= math.sin(a)
    if not 0 < i in (2, 4):
        b += a * a * a
    y[i] = b if a not in NOTHING else 0.0


@kernel
def one_sided_branch(x, y):
    i = tid()
    t = x[i]
    if t > 0.7:
        t *= t
    y[i] = t


@kernel
def ternary(x, y):
    i = tid()
    a = x[i] * x[i] if (x[i] > 1.0 and i > 0) or x[i] < 0.4 else math.cos(x[i])
    y[i] = a if 0.1 < x[i] <= 1.5 else -a


@kernel
def early_return(x, y):
    i = tid()
    if i >= x.shape[0] - 1:
        return
    if x[i] > 1.0:
        y[i] = x[i] ** 3
        return
    y[i] = 2.0 * x[i]


@kernel
def static_loop(x, y):
    i = tid()
    s = x[i]
    for k in range(5):
        s = s * x[k] + math.sin(s)
    y[i] = s


@kernel
def dynamic_loop(x, y, n):
    i = tid()
    s = x[i]
    for k in range(n):
        s = s * x[k] + math.sin(s)
    y[i] = s


@kernel
def backward_loop(x, y, n):
    i = tid()
    s = x[i]
    for k in range(n - 1, -1, -2):
        s = s * x[k] + math.sin(s)
    y[i] = s


@kernel
def stepped_loop(x, y, n, step):
    i = tid()
    s = x[i]
    for k in range(1, n, step):
        s = s * x[k] + k
    y[i] = s


@kernel
def loop_variable_afterwards(x, y, n):
    i = tid()
    s = 0.0
    for k in range(n):
        s += x[k] * x[k]
    y[i] = s * x[k]


@kernel
def nested_loops(x, y, n):
    i = tid()
    s = x[i]
    for k in range(n):
        t = s
        for m in range(k + 1):
            t = t * x[m] + 0.1
        s = s + t * math.cos(s)
    y[i] = s


@kernel
def triple_loop(x, y, n):
    i = tid()
    s = x[i]
    for k in range(n):
        for m in range(k):
            for p in range(2):
                s = s * 0.5 * x[m] + math.sin(s * x[p])
        s *= 1.1
    y[i] = s


@kernel
def newton(x, y):
    i = tid()
    r = 1.0
    while abs(r * r - x[i]) > 1e-12:
        r = r - (r * r - x[i]) / (2.0 * r)
    y[i] = r


@kernel
def collatz(x, y, n):
    i = tid()
    m = n
    s = x[i]
    while m != 1:
        if m % 2 == 0:
            m = m // 2
            s = math.sin(s) * 1.5
        else:
            m = 3 * m + 1
            s = s * s * 0.5
    y[i] = s


@kernel
def breaks(x, y, n):
    i = tid()
    s = x[i]
    for k in range(n):
        if s > 3.0:
            break
        if k == 1:
            continue
        s = s * 1.5 * x[k]
        if k == 2:
            s = math.exp(s * 0.1)
    y[i] = s * s


@kernel
def break_in_while(x, y, n):
    i = tid()
    s = x[i]
    k = 0
    while True:
        s = s * x[k]
        k += 1
        if k == n:
            break
        if s > 10.0:
            return
        s += 0.3
    y[i] = s


@kernel
def return_from_nested_loops(x, y, n):
    i = tid()
    s = x[i]
    for k in range(n):
        for m in range(n):
            s = s * 1.1 + x[m] * 0.2
            if s > 2.0:
                y[i] = s * s
                return
        s *= 0.9
    y[i] = -s


@kernel
def conditional_jumps(x, y, n):
    i = tid()
    s = x[i]
    for k in range(n):
        if x[k] > 0.6:
            if s > 1.5:
                continue
            if s < 0.1:
                break
            s += 0.5
        s = s * x[k]
    else:
        s = s + 1.0
    y[i] = s * s


@kernel
def gather(x, y, index):
    i = tid()
    y[i] = x[index[i]] * x[index[i] - 1]


@kernel
def scatter(x, y, index):
    i = tid()
    y[index[i]] = x[i] * x[i]


@kernel
def advanced_index(x, y, n):
    i = tid()
    at = i
    s = 1.0
    for k in range(n):
        s = s * x[at]
        at = (at * 2 + 1) % 5
    y[i] = s


@kernel
def stencil(a, out):
    i, j = tid()
    if i > 0 and j > 0 and i < a.shape[0] - 1 and j < a.shape[1] - 1:
        out[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] * a[i, j + 1])


@kernel
def matmul(a, b, c):
    i, j = tid()
    s = 0.0
    for k in range(a.shape[1]):
        s += a[i, k] * b[k, j]
    c[i, j] = s


@kernel
def squares(y):
    i = tid()
    y[i] = y[i] * y[i]


@kernel
def squares_in_a_loop(y, n):
    i = tid()
    for k in range(n):
        y[i] = y[i] * y[i] * 0.7


@kernel
def in_place_twice(y, x):
    i = tid()
    y[i] = y[i] * x[i]
    y[i] = math.sin(y[i]) * y[i]
    if y[i] > 0.3:
        y[i] *= y[i]


@kernel
def prefix_products(x, y):
    for k in range(1, x.shape[0]):
        y[k] = y[k - 1] * x[k] + y[k]


@kernel
def in_place_nested(y, x, n):
    i = tid()
    for k in range(n):
        s = 1.0
        for m in range(2):
            y[i, m] = y[i, m] * x[k] + math.sin(y[i, 1 - m]) * s
            s = s * y[i, m]
            if s > 0.4:
                y[i, 0] = s


@kernel
def histogram(x, y, bins):
    i = tid()
    atomic_add(y, bins[i], x[i] * x[i])
    atomic_sub(y, 0, x[i])


@kernel
def norm(x, loss):
    i = tid()
    atomic_add(loss, 0, x[i] * x[i])


@func
def squared(value, scale=0.5):
    return scale * value * value


@func
def both(a, b):
    if a > b:
        return a * b, a
    return a - b, squared(b)


@func
def search(values, start, limit):
    for k in range(start, values.shape[0]):
        if values[k] > limit:
            return values[k] * k
    return 0.0


@func
def store(values, at, value):
    values[at] = squared(value=value)


@kernel
def functions(x, y):
    i = tid()
    p, q = both(x[i], 0.8)
    store(y, i, squared(p) * q + search(x, i, 0.9))


@kernel
def local_memory(x, y):
    from_cuda = cuda_local(4, np.float64)
    i = tid()
    for k in range(4):
        from_cuda[k] = x[k] * x[i]
    for k in range(1, 4):
        from_cuda[k] = from_cuda[k] * from_cuda[k - 1]
    y[i] = from_cuda[3] + from_cuda[1]


@kernel
def rows(a, y):
    i = tid()
    row = a[i]
    s = 1.0
    for k in range(len(row)):
        s *= row[k]
    y[i] = s + row.size


@kernel
def zero_rank(x, y):
    i = tid()
    y[i] = x[i] * y[0] if i > 0 else y[0]


@kernel
def scalar_parameters(x, y, a, b, n):
    i = tid()
    s = a
    for k in range(n):
        s = s * b + x[i] * a
    y[i] = s


@kernel
def seventeen_sines(x, y):
    i = tid()
    t = x[i]
    for k in range(17):
        t = math.sin(t) * 1.3
    y[i] = t


@kernel
def swapped(x, y, n):
    i = tid()
    a, b = x[i], 1.0
    for k in range(n):
        a, b = b, a * b + 0.1
    y[i] = a * b


@kernel
def unused_output(x, y):
    i = tid()
    t = x[i] * x[i]
    y[i] = 1.0


@kernel
def undefined_on_one_path(x, y):
    i = tid()
    if x[i] > 0.5:
        t = x[i] * 2.0
    if x[i] > 0.5:
        y[i] = t * t


@kernel
def counter_dependent(x, y, n):
    i = tid()
    s = 0.0
    k = 0
    while k < n:
        s += math.sin(x[k] * s + k)
        k += 1 + i % 2
    y[i] = s


@kernel
def assertive(x, y, n):
    i = tid()
    assert n > 0
    s = 1.0
    for k in range(n):
        if x[k] < 0.0:
            raise ValueError("negative")
        s *= x[k]
    y[i] = s


@kernel
def long_one(x, a, y, n):
    i = tid()
    p, q, r, s = x[i], a[0], 0.5, 1.0
    for k in range(n):
        u = p * q + math.sin(r)
        v = math.exp(-u * u) + x[k]
        if u > v:
            p = p * 0.9 + v
            q = q - 0.1 * u
            if p > 2.0:
                p = 2.0 - p * 0.1
            else:
                q = q * v
        elif u > 0.1:
            r = r * u + a[1]
            s = s * 0.99
        else:
            r = math.cos(r) * 0.5
            s = s + p * q
        w = 0.0
        for m in range(3):
            w += a[m] * math.tanh(w + p)
            if w > 5.0:
                w = math.sqrt(w)
        s = s + 0.1 * w
        if s > 10.0:
            s = math.log(s)
            continue
        p = p + 0.01 * s
        q = q + 0.01 * math.atan2(p, 1.0 + q * q)
        t = p * p + q * q
        if t > 4.0:
            t = 4.0 / t
            p = p * t
            q = q * t
        r = r + 0.05 * t
        r = max(min(r, 3.0), -3.0)
        if r * s > 30.0:
            break
    e = p * q - r * s
    f = p * r + q * s
    if e > f:
        g = math.sqrt(1.0 + e * e)
    else:
        g = math.sqrt(1.0 + f * f)
    for k in range(4):
        g = g + a[k] * math.sin(g * (k + 1))
    h = abs(g) ** 1.5
    y[i] = h + e * f


index = np.array([2, 0, 3, 1, 4])

TABLE = np.array([0.5, 1.5, 2.5])
PAIRS = ((1.0, 2.0), (3.0, 4.0))


@kernel
def chosen(x, y, n):
    """Elements of tuples by numbers that only the thread knows, also from the end."""
    i = tid()
    t = (x[i], math.sin(x[i]), 3.0 * x[i] * x[0])
    total = t[i % 3] + (x[1], 2.0 * x[i])[n % 2] * PAIRS[i % 2][1] + t[-1 - i % 3]
    pairs = ((x[0], x[i]), (x[i] * x[i], 0.5))
    for k in range(n):
        a, b = pairs[k % 2]
        total += a * b * TABLE[(i + k) % 3]
    y[i] = total


@kernel
def limits(x, y):
    i = tid()
    low, high = float("inf"), -float("inf")
    for k in range(x.shape[0]):
        low = min(low, x[k] * (i + 1))
        high = max(high, x[k] * x[i])
    y[i] = low * high + min(x[i], math.inf) - max(x[i] * x[i], float("-inf"))


@kernel
def extents_by_name(x, y):
    """Local memory whose shape is said by variables."""
    i = tid()
    rows = 2
    shape = (rows, rows + 1)
    t = cuda.local.array(shape, np.float64)
    for j in range(rows):
        for k in range(3):
            t[j, k] = x[i] * x[j] + k
    y[i] = t[1, 2] * t[0, i % 3]


@kernel
def assigned_in_conditions(x, y):
    i = tid()
    a = x[i]
    v = 3.0
    if a > 0.4 and (v := a) > 0.9:
        y[i] *= v
    w = v if a < 1.2 else (v := a)
    y[i] += v * v * w


@kernel
def tuple_of_one_branch(x, y):
    i = tid()
    if x[i] > 0.8:
        both = (x[i] * x[i], x[0] * 2)
    s = 1.0
    if x[i] > 0.8:
        s = both[0] * both[1]
    y[i] = s


State = namedtuple("State", "place speed")


@kernel
def tuples_from_trip_to_trip(x, y, n):
    """Tuples that a loop hands on: with integers that become floats, within others, named, and left by a break."""
    i = tid()
    best, nested, ball = (0, -1), (x[i], (1, x[0])), State(x[i], 0.5)
    for k in range(n):
        if x[k] > best[0]:
            best = x[k], k
        a, (count, b) = nested
        nested = (b * math.sin(a), (count + 1, a + x[k] * b))
        ball = State(ball.place + 0.1 * ball.speed, ball.speed - 0.1 * math.sin(ball.place))
        if nested[1][1] > 6.0:
            break
        last = a, k
    y[i] = best[0] * (best[1] + 1) + nested[0] * nested[1][0] * nested[1][1]
    y[i] += ball.place * ball.speed + last[0] * last[1]


@kernel
def names_used_again_in_loops(x, y, n):
    """Names of numbers and tuples that a loop gives to something else, in each trip before it reads them."""
    i = tid()
    longer, number, part, plain, filled = (x[i], 2.0), (x[0], x[i]), (x[i], 3.0), State(x[i], x[0]), ()
    both = x[i] * x[i]
    y[i] = longer[0] * longer[1] + number[0] * number[1] + part[0] * part[1] + plain.place * plain.speed + both
    for k in range(n):
        longer = (x[k], x[i], x[0])
        number = x[k] * x[i]
        part = x[k:]
        plain = (x[k], 0.5 * x[i])
        filled = (x[k], x[i])
        both = (x[k], x[i])
        y[i] += longer[0] * longer[1] * longer[2] + math.sin(number) + part[0] * x[i]
        y[i] += plain[0] * plain[1] + filled[0] * filled[1] + math.cos(both[0]) * both[1]


@func
def first_above(x, limit):
    for k in range(len(x)):
        if x[k] > limit:
            return k, x[k] * x[k]
    return -1, 3.0


@kernel
def tuple_returned_in_a_loop(x, y):
    i = tid()
    k, weight = first_above(x, 0.3 + 0.3 * i)
    y[i] = x[k] * weight


@kernel
def not_there(x, y, place, trips):
    """Elements that only some threads have; the others come to none of the trips that read them."""
    i = tid()
    s = 0.0
    for k in range(trips[i]):
        s += x[place[i]] * (k + 1)
    for k in range(9):
        if trips[i] > k:
            s += x[place[i]] * x[k % 4] * x[-1 - k % 2]
    y[i] = s


@kernel
def same_in_each_trip(x, w, y, n):
    """Elements that every trip reads, also by indices that are computed, in loops within loops, and by several threads."""
    i = tid()
    s = 0.0
    for j in range(n):
        d = x[3 * i] - x[3 * j + 1]
        for k in range(j):
            if k != i:
                s += math.sin(d) * x[2 * (i + 1) % 5] * w[j] + w[k] * w[-1]
        s += d * d * x[i // 2]
    y[i] = s


@kernel
def read_before_and_after(x, y, n):
    """An element that loops read, and that is stored before, between and after them."""
    i = tid()
    y[i] = y[i] * x[i]
    s = 0.0
    for k in range(n):
        s += y[i] * x[k] * x[i]
    y[i] = s * 0.1
    while s > 1.0:
        s *= 0.5 * min(y[i], 1.0)
    for k in range(n):
        y[i] = y[i] * x[i] + s
        s += y[i] * x[k]
    y[i] += s


@kernel
def quotients_with_remainders(x, y):
    i = tid()
    row, column = divmod(i, 3)
    whole, rest = divmod(x[i], 0.7)
    y[i] = x[row] * x[column] * rest + whole * divmod(2.0, x[i])[1]


CASES = [
    (tuples_added_and_compared, 4, uniform(4), uniform(4)),
    (not_there, 4, uniform(6), uniform(4), np.array([2, 1 << 40, -3, -(1 << 40)]), np.array([3, 0, 9, 0])),
    (same_in_each_trip, 3, uniform(12), uniform(4), uniform(3), 4),
    (same_in_each_trip, 3, uniform(12), uniform(4), uniform(3), 0),
    (read_before_and_after, 3, uniform(9), uniform(3), 9),
    (tuple_of_one_branch, 8, uniform(8), uniform(8)),
    (assigned_in_conditions, 8, uniform(8), uniform(8)),
    (chosen, 3, uniform(5), uniform(3), 3),
    (limits, 5, uniform(5), uniform(5)),
    (extents_by_name, 5, uniform(5), uniform(5)),
    (saxpy, 5, uniform(5), uniform(5), 2.5),
    (overwritten_locals, 5, uniform(5), uniform(5)),
    (branches, 5, uniform(5), uniform(5)),
    (one_sided_branch, 5, uniform(5), uniform(5)),
    (ternary, 5, uniform(5), uniform(5)),
    (one_of_a_tuple, 5, uniform(5), uniform(5)),
    (early_return, 5, uniform(5), uniform(5)),
    (static_loop, 3, uniform(5), uniform(3)),
    (dynamic_loop, 3, uniform(5), uniform(3), 5),
    (dynamic_loop, 3, uniform(5), uniform(3), 0),
    (backward_loop, 3, uniform(5), uniform(3), 5),
    (stepped_loop, 3, uniform(5), uniform(3), 5, 2),
    (loop_variable_afterwards, 3, uniform(5), uniform(3), 4),
    (nested_loops, 3, uniform(5), uniform(3), 4),
    (triple_loop, 3, uniform(5), uniform(3), 4),
    (newton, 4, uniform(4), uniform(4)),
    (collatz, 3, uniform(3), uniform(3), 6),
    (breaks, 5, uniform(5), uniform(5), 5),
    (break_in_while, 4, uniform(5), uniform(4), 4),
    (return_from_nested_loops, 4, uniform(4), uniform(4), 3),
    (conditional_jumps, 5, uniform(5, low=0.01), uniform(5), 5),
    (gather, 5, uniform(5), uniform(5), index),
    (scatter, 5, uniform(5), uniform(5), index),
    (advanced_index, 4, uniform(5), uniform(4), 6),
    (stencil, (4, 5), uniform(4, 5), uniform(4, 5)),
    (matmul, (2, 3), uniform(2, 4), uniform(4, 3), uniform(2, 3)),
    (squares, 4, uniform(4)),
    (squares_in_a_loop, 3, uniform(3), 3),
    (in_place_twice, 4, uniform(4), uniform(4)),
    (prefix_products, 1, uniform(5), uniform(5)),
    (in_place_nested, 2, uniform(2, 2), uniform(3), 3),
    (histogram, 5, uniform(5), uniform(3), np.array([0, 1, 1, 2, 0])),
    (norm, 5, uniform(5), uniform(1)),
    (functions, 4, uniform(4), uniform(4)),
    (local_memory, 3, uniform(4), uniform(3)),
    (rows, 3, uniform(3, 4), uniform(3)),
    (scalar_parameters, 3, uniform(3), uniform(3), 0.7, 1.2, 4),
    (seventeen_sines, 4, uniform(4), uniform(4)),
    (swapped, 4, uniform(4), uniform(4), 5),
    (unused_output, 4, uniform(4), uniform(4)),
    (undefined_on_one_path, 4, uniform(4), uniform(4)),
    (counter_dependent, 3, uniform(6), uniform(3), 6),
    (assertive, 3, uniform(4), uniform(3), 4),
    (tuples_from_trip_to_trip, 4, uniform(6), uniform(4), 6),
    (tuples_from_trip_to_trip, 4, uniform(6), uniform(4), 1),
    (names_used_again_in_loops, 4, uniform(6), uniform(4), 6),
    (quotients_with_remainders, 6, uniform(6), uniform(6)),
    (tuple_returned_in_a_loop, 5, uniform(6), uniform(5)),
    *SLICES,
    *ROWS,
]


def name_of(case):
    """Return a test's name."""
    return "-".join([case[0].name, *(str(argument) for argument in case[2:] if isinstance(argument, int))])
