"""What the trips of a loop find at one place is read once, and what they add to its adjoint is added once."""

from __future__ import annotations

import numpy as np
import pytest

import numbridge as nb


@nb.kernel
def pairs(x, out, n):
    i = nb.tid()
    s = 0.0
    for j in range(n):
        if j != i:
            d = x[i] - x[j]
            s += d * d * x[0]
    out[i] = s


@nb.kernel
def of_vectors(x: nb.array1d[nb.vec3d], out: nb.array1d[nb.float64], n: int):
    i = nb.tid()
    s = nb.float64(0.0)
    for j in range(n):
        if j != i:
            d = x[i] - x[j]
            s += nb.dot(d, d) * d.x
    out[i] = s


@nb.kernel
def own_vectors(x: nb.array1d[nb.vec3d], out: nb.array1d[nb.float64], n: int):
    i = nb.tid()
    s = nb.float64(0.0)
    for j in range(n):
        s += nb.dot(x[i], x[i]) * (j + 1) * x[i].y
    out[i] = s


@nb.kernel
def flat(x, out, n):
    i = nb.tid()
    s = 0.0
    for j in range(n):
        d = x[3 * i] - x[3 * j + 1]
        s += d * d * x[3 * i + 2]
    out[i] = s


@nb.kernel
def with_flags(x, flags, out, n):
    i = nb.tid()
    s = 0.0
    for j in range(n):
        if flags[i]:
            s += x[i] * x[j] * flags[n - 1]
    out[i] = s


@nb.kernel
def stored_meanwhile(x, out, n):
    i = nb.tid()
    for j in range(n):
        x[i] = x[i] * 0.9 + 0.01 * j
        out[i] += x[i] * x[i]


N = 40
random = np.random.default_rng(4)
CASES = {
    pairs: (random.uniform(0.5, 1.5, N),),
    of_vectors: (random.uniform(0.5, 1.5, (N, 3)),),
    own_vectors: (random.uniform(0.5, 1.5, (N, 3)),),
    flat: (random.uniform(0.5, 1.5, 3 * N),),
    with_flags: (random.uniform(0.5, 1.5, N), np.arange(N) % 3 > 0),
    stored_meanwhile: (random.uniform(0.5, 1.5, N),),
}


def gradient(kernel, dim, x, *more, trips=N):
    by_x, out = np.zeros_like(x), np.zeros(dim)
    adjoints = [by_x, *[None] * len(more), np.linspace(1, 2, dim), None]
    nb.launch(kernel, dim, [x.copy(), *more, out, trips], adj_inputs=adjoints, adjoint=True)
    return by_x


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dim", [3, N])
@pytest.mark.parametrize(("kernel", "arguments"), CASES.items(), ids=[kernel.name for kernel in CASES])
def test_gradients_against_differences(kernel, arguments, dim):
    x, *more = arguments
    direction, seeds = random.normal(size=x.shape), np.linspace(1, 2, dim)

    def total(step):
        out = np.zeros(dim)
        nb.launch(kernel, dim, [x + step * direction, *more, out, N])
        return (seeds * out).sum()

    difference = (total(1e-5) - total(-1e-5)) / 2e-5
    assert np.isclose((gradient(kernel, dim, x, *more) * direction).sum(), difference, rtol=1e-7)


@pytest.mark.parametrize(
    ("kernel", "in_trips", "after"),
    [
        (pairs, ["_nb_add(_nb_adj_x, j_"], ["_nb_add(_nb_adj_x, _nb_i0", "_nb_add(_nb_adj_x, 0"]),
        (own_vectors, [], ["_nb_adj_x[_nb_i0] +="]),
        (flat, ["_nb_add(_nb_adj_x, "], ["_nb_add(_nb_adj_x, "] * 2),
        (stored_meanwhile, [*["_nb_adj_x[_nb_i0] +="] * 2, "_nb_adj_x[_nb_i0] ="], []),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_what_is_added_in_each_trip_and_what_after_them(kernel, in_trips, after):
    gradient(kernel, 3, *CASES[kernel])
    text = kernel.adjoint_source.split("\n\n\n")[0].rsplit("    for _nb_at", 1)[1]
    lines = text.splitlines()[1:]
    end = next(k for k, line in enumerate(lines) if not line.startswith("        "))
    for part, wanted in ((lines[:end], in_trips), (lines[end:], after)):
        found = [line.strip() for line in part if "_nb_adj_x[" in line or "_nb_add(_nb_adj_x" in line]
        found = [line for line in found if not line.startswith("_nb_adj_value")]
        assert len(found) == len(wanted), text
        assert all(line.startswith(start) for line, start in zip(found, wanted, strict=True)), text


def test_no_trip_reads_what_is_not_there():
    x = np.ones(4)
    held = x[:2]  # the other two are another array's
    assert gradient(pairs, 2, held, trips=0).tolist() == [0, 0]
    nothing = np.zeros(0)
    assert gradient(pairs, 2, nothing, trips=0).tolist() == []
    assert gradient(with_flags, 3, np.ones(2), np.array([True, True, False]), trips=2).tolist() == [4.5, 5.5]


def test_not_a_number_comes_through():
    x = np.ones(3)
    x[1] = np.nan
    assert np.isnan(gradient(pairs, 3, x, trips=3)).all()
    x[1] = np.inf
    assert not np.isfinite(gradient(pairs, 3, x, trips=3)).any()
