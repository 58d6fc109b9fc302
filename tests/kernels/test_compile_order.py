"""What a kernel is compiled to, and computes, is the same whatever was compiled before, and nobody else's code changes by it."""

from __future__ import annotations

import math
import operator
import threading
from types import FunctionType, SimpleNamespace

import numba
import numpy as np
import pytest
from numba import cuda, types
from numba.core.registry import cpu_target
from numba.cuda import dispatcher
from numba.cuda.cudadrv import nvvm

import numbridge as nb
from numbridge.kernels import variant
from numbridge.kernels.arithmetic.replaced_code import INTEGER_OPERATIONS, always, loops_replaced, replaced
from numbridge.kernels.cuda_backend import cuda as back_end
from numbridge.kernels.variant import variants_of

TWO_ORDERS = """
import hashlib, itertools, math, sys
import llvmlite.binding as llvm
import numba
import numpy as np
from numba import cuda
import numbridge as nb
from numbridge.kernels import variant

made = []
variant.compiled_or_stored = lambda key, compiled: (made.append(compiled()) or made[-1], False)

def digest(compiled):
    sections = itertools.chain(*(llvm.ObjectFileRef.from_data(data).sections() for data in compiled.objects))
    held = [bytes(s.data()) for s in sections if (s.name() or b"").startswith((b".text", b".ltext", b".rodata", b".lrodata"))]
    return hashlib.sha256(b"".join(held)).hexdigest()[:16] + str(compiled.facts)

@numba.njit
def bent(a, b):
    return (a + b) - a + a % b

def of_math(x, y):
    i = nb.tid()
    y[i] = math.sin(x[i]) + math.fmod(x[i], 0.5)

def of_njit(x, y):
    i = nb.tid()
    y[i] = bent(x[i], y[i])

def of_libdevice(x, y):
    i = nb.tid()
    y[i] = cuda.libdevice.fadd_ru(x[i], y[i]) + cuda.libdevice.erfcxf(x[i])

def of_vectors(x: nb.array(dtype=nb.vec3), y: nb.array(dtype=nb.vec3)):
    i = nb.tid()
    y[i] = nb.normalize(x[i]) / y[i][0] + nb.cross(x[i], y[i])

given = {
    of_math: [np.float32, np.float16],
    of_njit: [np.float32],
    of_libdevice: [np.float32],
    of_vectors: [np.float32],
}
cases = [(f, dtype, fast) for f, dtypes in given.items() for dtype in dtypes for fast in (False, True)]
found = {}
for f, dtype, fast in cases if sys.argv[1:] == [] else reversed(cases):
    shape = (64, 3) if f is of_vectors else 64
    nb.launch(nb.kernel(f, fastmath=fast), 64, [np.ones(shape, dtype), np.ones(shape, dtype)], block_dim=64)
    found[f"{f.__name__} {dtype.__name__} {fast}"] = digest(made[-1])
for name in sorted(found):
    print(name, found[name])
"""


def test_code_is_the_same_in_either_order(run_python, tmp_path):
    script = tmp_path / "order.py"
    script.write_text(TWO_ORDERS)
    start = "import runpy, sys; sys.argv[1:] = {}; runpy.run_path({!r})"
    one, other = (run_python(start.format(order, str(script))).splitlines() for order in ([], ["reversed"]))
    assert len(one) == 10 and one == other


@pytest.fixture
def nothing_is_stored(monkeypatch):
    monkeypatch.setattr(variant, "compiled_or_stored", lambda key, compiled: (compiled(), False))


def quotient(a, b):
    return a / b


def nothing_or_more(a, b):
    return (a + b) - a - b  # 0, unless sums are reassociated


def of(function, *, fastmath=False):
    @nb.kernel(fastmath=fastmath)
    def both(x, y, out):
        i = nb.tid()
        out[i] = function(x[i], y[i])

    return both


def run(kernel, x, y):
    out = np.full(1, -1.0)
    kernel.forall(1)(np.array([x]), np.array([y]), out)
    return out[0]


@pytest.mark.parametrize("by_python_first", [False, True])
def test_a_function_divides_as_its_caller_does(nothing_is_stored, by_python_first):
    """By zero, Numba's raises where Python calls it."""
    divided = numba.njit(quotient)

    def by_python():
        with pytest.raises(ZeroDivisionError):
            divided(1.0, 0.0)

    if by_python_first:
        by_python()
    assert run(of(divided), 1.0, 0.0) == math.inf
    by_python()


@pytest.mark.parametrize("decorator", [numba.njit, numba.vectorize])
@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_a_function_is_as_exact_as_the_kernel_that_calls_it(nothing_is_stored, order, decorator):
    function = decorator(nothing_or_more)
    found = {fastmath: run(of(function, fastmath=fastmath), 1e16, 1.0) for fastmath in order}
    assert found == {False: -1.0, True: 0.0}
    assert function(1e16, 1.0) == -1.0


def test_a_function_has_the_values_that_its_kernel_is_found_by(nothing_is_stored):
    def scaled(a, b):
        return a * b * FACTOR  # noqa: F821

    namespace = {"FACTOR": 2.0}
    function = numba.njit(FunctionType(scaled.__code__, namespace))
    found = [run(of(function), 1.0, 1.0)]
    namespace["FACTOR"] = 3.0
    assert function(1.0, 1.0) == 3.0  # whose code keeps it
    namespace["FACTOR"] = 2.0
    found.append(run(of(function), 1.0, 1.0))
    assert found == [2.0, 2.0]


def test_a_function_on_cuda_is_that_of_whose_kernel_calls_it(monkeypatch):
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))

    def plain(x, y, out):
        out[0] = rest(x[0], y[0])

    def ptx(kernel):
        text = kernel.ptx(*(np.ones(1) for _ in range(3)), capability=(9, 0))
        return [line for line in text.splitlines() if "// " not in line and "_Z" not in line and "$" not in line]

    def of_numba():
        text, _ = cuda.compile_ptx(plain, (types.float64[::1],) * 3, cc=(9, 0))
        return len(text.splitlines())

    remainder = lambda a, b: a % b  # noqa: E731
    rest = numba.njit(remainder)
    alone, of_theirs = ptx(of(rest)), of_numba()
    rest = numba.njit(remainder)
    assert of_numba() == of_theirs
    assert ptx(of(rest)) == alone


def test_lines_with_float64_are_the_kernel_s_own(nothing_is_stored):
    made = {}
    # Where its division is, the text of the kernel has something else.
    exec("\n\n\n\ndef divided(a, b):\n    return a / b", made)
    kernel = of(numba.njit(made["divided"]))
    run(kernel, 1.0, 2.0)
    ((line,),) = {v.wide for v in variants_of(kernel)._variants.values()}
    assert "function(" in line


def test_what_other_threads_compile_for_cuda_is_theirs(monkeypatch):
    calls = []
    monkeypatch.setattr(nvvm, "compile_ir", lambda modules, **options: calls.append((modules, options)))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: "theirs")
    with back_end._for_capability((7, 5)), back_end._as_nvvm_wants(fused=False):

        def compile():
            calls.append(dispatcher.get_current_device())
            nvvm.compile_ir(["a", "a"], opt=3)

        other = threading.Thread(target=compile)
        other.start()
        other.join()
        compile()
    assert calls[:2] == ["theirs", (["a", "a"], {"opt": 3})]
    assert calls[2].compute_capability == (7, 5) and calls[3] == (["a"], {"fma": False, "opt": 3})


def test_an_interrupt_leaves_numba_as_it_was():
    def interrupted(_):
        raise KeyboardInterrupt

    context, kinds = cpu_target.target_context, (types.Integer, types.Integer)
    context.refresh()
    before = list(context._defns[operator.floordiv].versions)
    changes = {(operator.floordiv, *kinds): INTEGER_OPERATIONS[operator.floordiv, *kinds]}
    with pytest.raises(KeyboardInterrupt), replaced(context, changes | {(operator.mod, *kinds): interrupted}):
        pass
    assert context._defns[operator.floordiv].versions == before
    table = {"ll->l": 1, "dd->d": 2}
    with (
        pytest.raises(KeyboardInterrupt),
        loops_replaced(lambda _: table, {None: {"l": always(3), "d": interrupted}}),
    ):
        pass
    assert table == {"ll->l": 1, "dd->d": 2}
