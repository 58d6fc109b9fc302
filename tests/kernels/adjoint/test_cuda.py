"""Adjoints compile to PTX for CUDA, without a GPU; what cannot is refused with its place."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, types
from numba.cuda import dispatcher

from adjoint_as_python import floats_of, program_of
from adjoint_cases import CASES, name_of
from numbridge.kernels.adjoint.checkpoint import CUDA_SLOTS
from numbridge.kernels.adjoint.emit import for_cuda
from numbridge.kernels.adjoint.ir import Array, Value
from numbridge.kernels.adjoint.reverse import reverse
from numbridge.kernels.errors import KernelUnsupportedError


@pytest.fixture(autouse=True)
def no_driver(monkeypatch):
    """Device functions ask for the device that is there; any will do."""
    device = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)


def ptx_of(kernel, arguments, dtype):
    """Return the PTX of a kernel's adjoint with one thread per index along the first axis."""
    narrow = [a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in arguments]
    program = program_of(kernel, [dtype(a) if isinstance(a, float) else a for a in narrow], np.dtype(dtype).name)
    made = reverse(program, floats_of(kernel, arguments), "adjoint", slots=CUDA_SLOTS, stacks=False)
    names = {**program.namespace, "cuda": cuda, "_nb_device": cuda.jit(device=True)}
    exec(compile(for_cuda(made.text), "<adjoint>", "exec"), names)
    given = [p.name for p in program.parameters] + [f"_nb_adj_{name}" for name in made.arrays]
    sums = [f"    cuda.atomic.add(_nb_sum, {k}, r[{k}])" for k in range(len(made.scalars))]
    indices = ["i", "j"][: sum(v.name.startswith("_nb_i") for v in program.hidden)]
    call = f"    r = adjoint({', '.join([*indices, *given])})"
    grid = [f"    {', '.join(indices)} = cuda.grid({len(indices)})"] if indices else []
    text = "\n".join([f"def run({', '.join([*given, '_nb_sum'])}):", *grid, call, *sums])
    exec(compile(text, "<run>", "exec"), names)
    kinds = [kind_of(p.item) for p in program.parameters]
    kinds += [kind_of(program.array(name)) for name in made.arrays]
    ptx, _ = cuda.compile_ptx(names["run"], (*kinds, types.float64[::1]), cc=(9, 0))
    return ptx


def kind_of(item):
    if isinstance(item, Value):
        return item.type
    assert isinstance(item, Array)
    return types.Array(item.dtype, item.ndim, "C")


STACKED = {"squares_in_a_loop", "prefix_products", "in_place_nested", "local_memory"}


@pytest.mark.parametrize("case", [c for c in CASES if c[0].name not in STACKED], ids=name_of)
def test_adjoint_compiles_to_ptx(case):
    ptx = ptx_of(case[0], case[2:], np.float32)
    assert ".visible .entry" in ptx


def test_float64_and_atomics():
    case = next(c for c in CASES if c[0].name == "gather")
    assert re.search(r"atom(\.\w+)*\.add\.f64", ptx_of(case[0], case[2:], np.float64))


@pytest.mark.parametrize("name", sorted(STACKED))
def test_what_needs_a_stack_is_refused(name):
    case = next(c for c in CASES if c[0].name == name)
    with pytest.raises(KernelUnsupportedError, match=r"overwrites.*\n.*adjoint_cases.py:\d+:\d+\n"):
        ptx_of(case[0], case[2:], np.float64)
