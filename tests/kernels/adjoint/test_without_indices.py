"""Adjoints of kernels that ask for no thread index: exact over any number of threads, and added plainly by one worker."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from numbridge.kernels.adjoint.derive import _LONG

DIMS = [1, 7, (2, 3), (1, 1, 1), (3, 1, 2, 2), 0, (4, 0), 300_000]


def short(x: nb.array[float], out: nb.array[float]):
    nb.atomic_add(out, 0, x[0] * x[0] + x[1])


# As many statements as are not written twice
LONG = "\n".join(
    [
        "def long(x: nb.array[float], out: nb.array[float]):",
        "    s = x[1]",
        *["    s = s + x[0] * x[0] - x[0] * x[0]"] * _LONG,
        "    nb.atomic_add(out, 0, x[0] * x[0] + s)",
    ]
)


@pytest.fixture(params=["short", "long"])
def made(request, tmp_path, monkeypatch):
    """A kernel of each kind: one whose adjoint is written twice, and one whose adjoint is told how to add."""
    if request.param == "short":
        return nb.kernel(short)
    (tmp_path / "long_one.py").write_text(f"import numbridge as nb\n\n\n{LONG}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import long_one

    monkeypatch.delitem(sys.modules, "long_one")
    return nb.kernel(long_one.long)


@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_every_thread_adds_its_share(made, dim):
    x, by_x, by_out = np.array([3.0, 5.0], np.float32), np.zeros(2, np.float32), np.ones(1, np.float32)
    threads = int(np.prod(dim))
    # Products of these are whole numbers that float32 holds.
    assert 6 * threads < 1 << 24
    for _ in range(3 if threads > 1000 else 1):
        by_x[:] = 0
        nb.launch(made, dim, [x], [np.zeros(1, np.float32)], adjoint=True, adj_inputs=[by_x], adj_outputs=[by_out])
        assert by_x.tolist() == [6 * threads, threads]


def test_one_worker_adds_plainly(made):
    """Atomic additions of floats take some ten times as long as others."""
    x, out = np.ones(2, np.float32), np.ones(1, np.float32)
    text = made.adjoint(["x", "out"]).explain(x, out, x.copy(), out.copy()).source
    of_range = text[text.rindex("\ndef ") :]
    _, alone = of_range.split("if _nb_low < _nb_high:")
    before, _ = alone.split("if _nb_high < _nb_last:")
    assert "_private(" in before if made.name == "short" else ", True, _nb_low, _nb_high)" in before
    # They do where a range is all of the launch, and nowhere else.
    whole, _ = of_range.split("_nb_high = _nb_last")
    assert "if _nb_first == 0 and _nb_last == _nb_max(" in whole and of_range.count("_nb_high = ") == 2


@pytest.mark.parametrize("dims", [1, (2, 3), (5, 1, 4)], ids=str)
def test_within_jax(made, dims):
    f = nb.jax_kernel(
        made, num_outputs=1, launch_dims=dims, output_dims=(1,), in_out_argnames=["out"], enable_backward=True
    )
    threads = int(np.prod(dims))

    def loss(x):
        return f(x, jnp.zeros(1))[0].sum()

    x = jnp.array([[3.0, 5.0], [1.0, 2.0], [-2.0, 0.0]])
    assert jax.jit(jax.grad(loss))(x[0]).tolist() == [6 * threads, threads]
    rows = jax.jit(jax.vmap(jax.grad(loss)))(x)
    assert rows.tolist() == [[2 * float(row[0]) * threads, threads] for row in x]
