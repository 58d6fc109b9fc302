"""Threads: many jitted functions at once, beside launches from Python, on two threading layers; and who comes first."""

from __future__ import annotations

import textwrap

import pytest

STRESS = """
    import sys, threading
    import jax, jax.numpy as jnp, numpy as np
    import numbridge as nb

    THREADS, FUNCTIONS, CALLS = 6, int(sys.argv[1]), 16

    @nb.kernel
    def axpy(x: nb.array[float], a: float, out: nb.array[float]):
        i = nb.tid()
        out[i] = a * x[i] + 1.0

    @nb.kernel
    def sums(m: nb.array2d[float], total: nb.array[float]):
        i, j = nb.tid()
        nb.atomic_add(total, i, m[i, j])

    f, g = nb.jax_kernel(axpy, enable_backward=True, fuse=False), nb.jax_kernel(sums, in_out_argnames=["total"])
    failures = []

    def work(number):
        try:
            rng = np.random.default_rng(number)
            for k in range(FUNCTIONS):
                # Every other size is shared out to threads.
                n = int(rng.integers(1, 50) if k % 2 else rng.integers(70_000, 90_000))
                a = float(number + k)
                one = jax.jit(lambda x, a=a: f(x, a)[0])
                x = jnp.arange(n, dtype=jnp.float32)
                results = [one(x) for _ in range(CALLS)]
                here = np.zeros(n, np.float32)
                nb.launch(axpy, n, [np.asarray(x), a], [here])
                want = np.float32(a) * np.arange(n, dtype=np.float32) + np.float32(1)
                for out in (*results, here):
                    np.testing.assert_allclose(out, want, rtol=1e-6)
                if k % 10 == 0:
                    np.testing.assert_allclose(jax.jit(jax.vmap(one))(jnp.stack([x, x]))[1], want, rtol=1e-6)
                    slope = jax.jit(jax.grad(lambda x: (one(x) ** 2).sum()))(x)
                    np.testing.assert_allclose(slope, 2 * np.float32(a) * want, rtol=1e-5)
                    np.testing.assert_array_equal(jax.jit(g)(jnp.ones((3, n)), jnp.zeros(3))[0], np.full(3, n))
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    from numbridge.kernels.cpu_backend.threads import layer
    print(layer(), failures)
"""


@pytest.mark.parametrize(("layer", "functions"), [("tbb", 12), ("workqueue", 5)])
def test_many_jitted_functions_beside_launches(run_python, tmp_path, monkeypatch, layer, functions):
    if layer != "tbb":
        monkeypatch.setenv("NUMBA_THREADING_LAYER", layer)
    path = tmp_path / "stress.py"  # a kernel's source must lie in a file
    path.write_text(textwrap.dedent(STRESS))
    assert (
        run_python(f"import runpy, sys; sys.argv[1:] = ['{functions}']; runpy.run_path({str(path)!r})")
        == f"{layer} []\n"
    )


FIRST = """
    import sys, threading
    import jax, jax.numpy as jnp
    import numbridge as nb

    @nb.kernel
    def double(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = 2.0 * x[i]

    sys.setswitchinterval(1e-5)
    found, gate = [], threading.Barrier(8)

    def first():
        gate.wait()
        found.append(float(jax.jit(nb.jax_kernel(double))(jnp.ones(4))[0].sum()))

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(found)
"""


def test_the_first_use_may_come_from_several_threads(run_python, tmp_path, monkeypatch):
    path = tmp_path / "first.py"
    path.write_text(textwrap.dedent(FIRST))
    assert run_python(f"import runpy; runpy.run_path({str(path)!r})") == f"{[8.0] * 8}\n"
