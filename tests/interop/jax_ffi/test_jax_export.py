"""`jax.export`: a program that was made in one process runs in another one, on what that one has declared; symbolic dims."""

from __future__ import annotations

import textwrap

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from block_dim_cases import TILE, factors, places, places2, products
from compiled_calls import jax_kernel
from numbridge.jax_ffi.targets import TARGET

CHECKS = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]

KERNEL = """
    import sys
    import jax, jax.export
    import jax.numpy as jnp
    import numbridge as nb

    @nb.kernel
    def saxpy(x: nb.array[float], a: float, y: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = a * x[i] + y[i]
"""
MAKE = """
    f = nb.jax_kernel(saxpy)
    shape = jax.export.symbolic_shape("n")
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    checks = [jax.export.DisabledSafetyCheck.custom_call("numbridge_launch")]
    made = jax.export.export(jax.jit(lambda x, y: f(x, 2.0, y)[0]), disabled_checks=checks)(x, x)
    open(sys.argv[1], "wb").write(made.serialize())
"""
USE = """
    loaded = jax.export.deserialize(open(sys.argv[1], "rb").read())
    try:
        for n in (3, 5):
            print(loaded.call(jnp.arange(float(n)), jnp.ones(n)).tolist())
    except Exception as error:
        print(str(error).splitlines()[0])
"""


def run(run_python, path, *parts):
    program = path.with_suffix(".py")  # a kernel's source must lie in a file
    program.write_text("".join(textwrap.dedent(part) for part in parts))
    return run_python(f"import runpy, sys\nsys.argv[1:] = [{str(path)!r}]\nrunpy.run_path({str(program)!r})")


def test_a_program_runs_in_a_new_process(run_python, tmp_path, monkeypatch):
    path = tmp_path / "program"
    run(run_python, path, KERNEL, MAKE)
    wanted = "[1.0, 3.0, 5.0]\n[1.0, 3.0, 5.0, 7.0, 9.0]\n"
    assert run(run_python, path, KERNEL, "\nnb.jax_kernel(saxpy)", USE) == wanted
    # As on another machine, nothing is in the cache of compiled code.
    monkeypatch.setenv("NUMBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    assert run(run_python, path, KERNEL, "\nnb.jax_kernel(saxpy)", USE) == wanted


GRADIENT = """
    def loss(x, y):
        return (nb.jax_kernel(saxpy, enable_backward=True)(x, jnp.float32(2), y)[0] ** 2).sum()

    shape = jax.export.symbolic_shape("n")
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    checks = [jax.export.DisabledSafetyCheck.custom_call("numbridge_launch")]
    second = lambda x, y: jax.jvp(jax.grad(loss), (x, y), (y, x))[1]
    made = jax.export.export(jax.jit(lambda x, y: jax.grad(loss)(x, y) + second(x, y)), disabled_checks=checks)(x, x)
    open(sys.argv[1], "wb").write(made.serialize())
"""


def test_a_gradient_runs_in_a_new_process(run_python, tmp_path, cache_without_kernels, monkeypatch):
    path = tmp_path / "program"
    run(run_python, path, KERNEL, GRADIENT)
    monkeypatch.setenv("NUMBRIDGE_CACHE_DIR", cache_without_kernels)
    # 2 a (a x + y), and along (y, x) 2 a (a y + x)
    wanted = "".join(f"{[4 * (2 * k + 1) + 4 * (2 + k) for k in map(float, range(n))]}\n" for n in (3, 5))
    assert run(run_python, path, KERNEL, "\nnb.jax_kernel(saxpy)", USE) == wanted
    other = KERNEL.replace("a * x[i] + y[i]", "a * x[i] * x[i] + y[i]")
    said = run(run_python, path, other, "\nnb.jax_kernel(saxpy)", USE)
    assert "kernel 'saxpy' under JAX: this program was made elsewhere, and no kernel that computes the same" in said


def test_a_kernel_that_computes_something_else_is_not_run(run_python, tmp_path):
    path = tmp_path / "program"
    run(run_python, path, KERNEL, MAKE)
    other = KERNEL.replace("a * x[i] + y[i]", "a * x[i] - y[i]")
    for kernel in (other, KERNEL.replace("saxpy", "axpy")):
        name = "axpy" if "def axpy" in kernel else "saxpy"
        said = run(run_python, path, kernel, f"\nnb.jax_kernel({name})", USE)
        assert "kernel 'saxpy' under JAX: this program was made elsewhere, and no kernel that computes the same" in said


@nb.kernel
def pairs(x: nb.array[float], out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = x[i] * j


@nb.kernel
def triple(x: nb.array2d[float], out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = 3.0 * x[i, j]


@nb.kernel
def product(a: nb.array2d[float], b: nb.array2d[float], out: nb.array2d[float]):
    i, j = nb.tid()
    for k in range(a.shape[1]):
        out[i, j] += a[i, k] * b[k, j]


@nb.kernel
def cut(x: nb.array[float], y: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    if i < x.shape[0] and i < y.shape[0]:
        out[i] = x[i] * y[i]


def exported(f, *shapes):
    scope = jax.export.SymbolicScope()
    given = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), jnp.float32) for shape in shapes]
    return jax.export.export(jax.jit(f), disabled_checks=CHECKS)(*given)


def test_symbolic_dims():
    f = jax_kernel(triple)
    made = exported(lambda x: f(x)[0], "n, m")
    for shape in ((2, 3), (5, 1), (300, 400)):
        np.testing.assert_array_equal(made.call(jnp.ones(shape)), jnp.full(shape, 3.0))


def test_symbolic_ends_of_guards_and_loops():
    def matmul(a, b):
        return jax_kernel(product)(a, b, launch_dims=(a.shape[0], b.shape[1]))[0]

    made = exported(matmul, "m, k", "k, n")
    assert made.call(jnp.ones((2, 3)), jnp.ones((3, 4))).tolist() == [[3.0] * 4] * 2
    with pytest.raises(nb.NumbridgeValueError, match=r"argument 'b'.* takes b\[k, j\] with k = k - 1.*JAX cannot tell"):
        exported(matmul, "m, k", "l, n")
    f = jax_kernel(cut)
    for output_dims in (0, 1):
        made = exported(
            lambda *xy, k=output_dims: f(*xy, launch_dims=xy[0].shape, output_dims=xy[k].shape)[0], "n", "m"
        )
        assert made.call(jnp.ones(3), jnp.ones(2))[:2].tolist() == [1, 1]
    with pytest.raises(
        nb.NumbridgeValueError, match=r"output 'out'.* takes out\[i\] with i = min\(n, m\) - 1.*JAX cannot tell"
    ):
        exported(lambda x, y, z: f(x, y, launch_dims=x.shape, output_dims=z.shape)[0], "n", "m", "k")


def test_dims_that_are_worked_out():
    f = jax_kernel(pairs)

    def run(x):
        (n,) = x.shape
        return f(x, launch_dims=(n, 2 * n + 1))[0]

    made = exported(run, "n")
    for n in (1, 4):
        np.testing.assert_array_equal(made.call(jnp.ones(n)), jnp.broadcast_to(jnp.arange(2.0 * n + 1), (n, 2 * n + 1)))


def test_blocks_of_a_given_shape():
    f = jax_kernel(places2, block_dim=(2, 8))

    def run(x):
        return f(launch_dims=x.shape, output_dims=(*x.shape, 8))[0]

    made = exported(run, "n, m")
    for dims in ((7, 21), (2, 8), (1, 1)):
        np.testing.assert_array_equal(made.call(jnp.ones(dims)), places(dims, (2, 8)))
    product = jax_kernel(products, block_dim=(TILE, TILE), enable_backward=True)

    def loss(a, b):
        dims = (a.shape[0], b.shape[1])
        return jnp.square(product(a, b, launch_dims=dims, output_dims=dims)[0]).sum()

    made, (a, b) = exported(jax.grad(loss, (0, 1)), "4*n, 4*k", "4*k, 4*m"), factors()
    expected = jax.grad(lambda a, b: jnp.square(a @ b).sum(), (0, 1))(a, b)
    for pair in zip(made.call(a, b), expected, strict=True):
        np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-3)
    with pytest.raises(nb.NumbridgeValueError, match=r"block_dim of kernel 'products': .*got \(2, 2, 2\)"):
        exported(lambda x: jax_kernel(products, block_dim=(2, 2, 2))(x, x)[0], "n, n")


def test_symbolic_batches():
    f = jax_kernel(triple)
    made = exported(lambda x: jax.vmap(f)(x)[0], "b, n, 4")
    np.testing.assert_array_equal(made.call(jnp.ones((3, 2, 4))), jnp.full((3, 2, 4), 3.0))


def test_symbolic_dims_of_a_wrong_rank_are_refused():
    f = jax_kernel(triple)
    with pytest.raises(nb.NumbridgeError, match=r"launch_dims \(n,\) has 1 dimension\(s\), and the kernel asks for 2"):
        exported(lambda x: f(x, launch_dims=x.shape[:1])[0], "n, m")


@nb.kernel
def sums(x: nb.array[float], y: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] + y[i + 1]


def test_symbolic_dims_that_a_launch_may_overrun():
    f = jax_kernel(sums)
    with pytest.raises(nb.NumbridgeValueError, match=r"'y': its shape is \(n,\), .*axis 0 must have n \+ 1 elements"):
        exported(lambda x, y: f(x, y)[0], "n", "n")
    with pytest.raises(
        nb.NumbridgeValueError, match=r"'y': its shape is \(m,\), .*JAX cannot tell whether it has: use the same"
    ):
        exported(lambda x, y: f(x, y)[0], "n", "m")
    made = exported(lambda x, y: f(x, y)[0], "n", "n + 1")
    assert made.call(jnp.ones(2), jnp.arange(3.0)).tolist() == [2, 3]
    n, m = jax.export.symbolic_shape("n, m", constraints=["m >= n + 1"])
    given = [jax.ShapeDtypeStruct((extent,), jnp.float32) for extent in (n, m)]
    made = jax.export.export(jax.jit(lambda x, y: f(x, y)[0]), disabled_checks=CHECKS)(*given)
    assert made.call(jnp.ones(2), jnp.arange(7.0)).tolist() == [2, 3]


def test_gradients_with_symbolic_dims():
    f = jax_kernel(triple, enable_backward=True)
    made = exported(jax.vmap(jax.grad(lambda x: (f(x)[0] ** 2).sum())), "b, n, m")
    for shape in ((2, 3, 4), (1, 1, 5)):
        np.testing.assert_array_equal(made.call(jnp.ones(shape)), jnp.full(shape, 18.0))


def test_an_exported_function_has_its_gradient_with_it():
    f = jax_kernel(triple, enable_backward=True)
    made = exported(lambda x: (f(x)[0] ** 2).sum(), "n, m")
    loaded = jax.export.deserialize(made.serialize(vjp_order=1))
    np.testing.assert_array_equal(jax.grad(loaded.call)(jnp.ones((2, 3))), jnp.full((2, 3), 18.0))


@nb.kernel
def square_and_add(x: nb.array[float], total: nb.array[float]):
    i = nb.tid()
    total[i] = total[i] * total[i] + x[i]


def several_launches(x: nb.array[float], total: nb.array[float], out: nb.array[float]):
    half, ones = nb.zeros_like(x), nb.ones(x.shape)
    nb.launch(square_and_add, x.shape, [x], [ones])
    nb.launch(square_and_add, x.shape[0], [ones], [total])
    square_and_add.forall(x.size, block_dim=64)(total, half)
    nb.launch(square_and_add, x.shape[0] - 1, [half[1:]], [total[:-1]])
    nb.launch(square_and_add, [x.shape[0] // 2], [total[::2]], [out[1::2]])
    nb.launch(square_and_add, 2, [out[:2]], [out[2:4]])


@pytest.mark.parametrize("mode", [nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE])
def test_functions_that_launch_kernels_with_symbolic_dims(mode):
    f = nb.jax_callable(several_launches, 2, mode, in_out_argnames=["total"], enable_backward=True)

    def loss(run, *arguments):
        return sum((out**2).sum() for out in run(*arguments))

    (n,) = jax.export.symbolic_shape("2*n", constraints=["n >= 2"])
    x = jax.ShapeDtypeStruct((n,), jnp.float32)
    made = jax.export.export(jax.jit(f), disabled_checks=CHECKS)(x, x)
    loaded = jax.export.deserialize(made.serialize(vjp_order=1)).call
    for count in (4, 10):
        given = (jnp.linspace(0.1, 0.5, count), jnp.linspace(0.3, -0.3, count))
        for got, wanted in zip(loaded(*given), f(*given), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
        for got, wanted in zip(jax.grad(loss, (1, 2))(loaded, *given), jax.grad(loss, (1, 2))(f, *given), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_symbolic_dims_are_for_arrays_of_the_traced_function():
    outside = np.ones(3, np.float32)

    def f(x: nb.array[float], out: nb.array[float]):
        nb.launch(square_and_add, x.shape, [outside], [outside])

    with pytest.raises(nb.NumbridgeTypeError, match=r"dim of kernel 'square_and_add': wanted an int .*, got \(n,\)"):
        exported(lambda x: nb.jax_callable(f)(x)[0], "n")


SEVERAL = """
    def twice(x: nb.array[float], y: nb.array[float], out: nb.array[float]):
        half = nb.zeros(x.shape)
        nb.launch(saxpy, x.shape, [x, 2.0, y], [half])
        nb.launch(saxpy, x.shape, [half, 3.0, y], [out])

    f = nb.jax_callable(twice, graph_mode=nb.GraphMode.{mode})
"""
MAKE_SEVERAL = """
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n") if {symbolic} else (3,), jnp.float32)
    checks = [jax.export.DisabledSafetyCheck.custom_call(f"numbridge_{name}") for name in ("launch", "plan")]
    open(sys.argv[1], "wb").write(jax.export.export(jax.jit(lambda *xs: f(*xs)[0]), disabled_checks=checks)(x, x).serialize())
"""


@pytest.mark.parametrize(("mode", "symbolic"), [("JAX", True), ("NUMBRIDGE", True), ("NUMBRIDGE", False)])
def test_a_function_that_launches_kernels_runs_in_a_new_process(run_python, tmp_path, mode, symbolic):
    path = tmp_path / "program"
    several = SEVERAL.replace("{mode}", mode)
    run(run_python, path, KERNEL, several, MAKE_SEVERAL.replace("{symbolic}", str(symbolic)))
    use = USE if symbolic else USE.replace("(3, 5)", "(3,)")
    wanted = "".join(f"{[6.0 * k + 4 for k in range(n)]}\n" for n in ((3, 5) if symbolic else (3,)))
    assert run(run_python, path, KERNEL, several, "\nnb.jax_kernel(saxpy)", use) == wanted
