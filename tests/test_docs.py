"""The documentation is true and complete: its code runs and prints what it says, it names everything, and it builds."""

from __future__ import annotations

import inspect
import linecache
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbridge as nb
from documents import blocks, run_page
from emulated_cupy import emulated_devices

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if not {"_build", "_generated", "benchmarks"} & set(page.relative_to(DOCS).parts)
)
WITH_CODE = [page for page in PAGES if any(block.language.startswith("python") for block in blocks(page))]


def _name(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_code_of_a_page_runs_on_a_gpu(page: Path, tmp_path: Path) -> None:
    if nb.device_count() == 1:
        pytest.skip("no CUDA GPU")
    if any("paddle" in block.text for block in blocks(page) if block.language.startswith("python")):
        pytest.importorskip("paddle")
    run_page(page, tmp_path, gpu=True)


WITH_OWN_ARRAYS = [
    page
    for page in WITH_CODE
    if any(re.search(r" nb\.(zeros|ones|full|empty|array)\(", block.text) for block in blocks(page, "python"))
]


@pytest.mark.parametrize("page", WITH_OWN_ARRAYS, ids=_name)
def test_a_page_with_arrays_of_numbridge_runs_where_these_lie_on_a_gpu(page: Path, tmp_path: Path) -> None:
    with emulated_devices():
        assert nb.get_device().is_cuda
        run_page(page, tmp_path)


def test_every_page_of_a_task_has_code() -> None:
    assert [_name(page) for page in PAGES if page.parent.name == "howto" and page not in WITH_CODE] == ["howto/index"]


def test_lines_of_code_fit_a_page() -> None:
    """A page of the built documentation shows 90 columns; beyond them its reader has to scroll."""
    long = [
        f"{page.relative_to(DOCS)}:{block.line + k}"
        for page in PAGES
        for block in blocks(page)
        if block.language not in ("output", "text")  # which are broken
        for k, line in enumerate(block.text.splitlines())
        if len(line) > 90
    ]
    assert long == []


def test_an_output_that_differs_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\nprint(x)\n```\n\n```output\n1\n```\n\n```python\nprint(x + 1)\n```\n\n```output\n3\n```\n"
    )
    with pytest.raises(AssertionError, match="output 2: the page says"):
        run_page(page, tmp_path)


def test_a_gpu_block_is_compiled_and_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```{code-block} python\n:class: needs-gpu\nraise SystemExit\n```\n")
    run_page(page, tmp_path)
    page.write_text("```{code-block} python\n:class: needs-gpu\nraise +\n```\n")
    with pytest.raises(SyntaxError):
        run_page(page, tmp_path)


def test_the_reference_names_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import api_pages

    named = [name for _, _, names in api_pages.GROUPS.values() for name in names]
    assert sorted(named) == sorted(nb.__all__)


def _functions_of_numbers(which: int) -> list[str]:
    """Return the names in one of the lists of a page: functions that have derivatives, and those that have none."""
    page = (DOCS / "howto" / "writing_kernels.md").read_text()
    names: list[str] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[which].split()
    return names


def _kernel_of(calls: list[str]) -> Any:
    lines = ["@nb.kernel", "def called(x, z, y):", "    i = nb.tid()"]
    text = "\n".join([*lines, *(f"    y[{k}, i] = {call}" for k, call in enumerate(calls)), ""])
    filename = f"<{' '.join(calls)[:40]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"nb": nb, "np": np, "math": math}
    exec(compile(text, filename, "exec"), namespace)
    return namespace["called"]


def _call(name: str) -> tuple[str, Any]:
    """Return a call of a function in a kernel, and what it gives there."""
    module, _, function = name.partition(".")
    called, scale = (
        getattr({"math": math, "np": np}[module], function),
        4.0 if function in ("acosh", "arccosh") else 1.0,
    )
    if function in ("ldexp", "hypot"):
        return f"{name}(x[i], 2)", called(0.5, 2)
    try:
        return f"{name}(x[i] * {scale})", called(0.5 * scale)
    except (TypeError, ValueError):
        return f"{name}(x[i], z[i])", called(0.5, 0.25)


def test_functions_of_numbers_are_those_that_a_page_names() -> None:
    for which, has_derivatives in enumerate([True, False]):
        calls, wanted = zip(*map(_call, _functions_of_numbers(which)), strict=True)
        x, z, y = np.full(1, 0.5), np.full(1, 0.25), np.zeros((len(calls), 1))
        kernel = _kernel_of([*calls])
        nb.launch(kernel, 1, [x, z, y])  # and it compiles for CUDA, as all that are launched here
        assert np.allclose(y[:, 0], np.array(wanted, float), rtol=1e-12, atol=0)
        adjoints: dict[str, Any] = {"adj_inputs": [np.zeros(1), np.zeros(1), np.ones_like(y)], "adjoint": True}
        if has_derivatives:
            nb.launch(kernel, 1, [x, z, y], **adjoints)
            adjoint = kernel.adjoint(["x", "z", "y"])
            assert ".target sm_90" in adjoint.ptx(x, z, y, x, z, y, capability=(9, 0))
        for call in () if has_derivatives else calls:
            with pytest.raises(nb.KernelUnsupportedError):
                nb.launch(_kernel_of([call]), 1, [x, z, y[:1]], **adjoints | {"adj_inputs": [x, z, np.ones((1, 1))]})


def test_warps_names_are_numbridges_names() -> None:
    page = (DOCS / "coming_from" / "warp.md").read_text()
    cells = [line.split("|")[2] for line in page.splitlines() if line.startswith("| `wp.")]
    names = [word.partition("`")[0] for cell in cells for word in cell.split("`nb.")[1:]]
    heads = {name.partition("(")[0].partition("[")[0].split(".")[0] for name in names}
    assert len(heads) > 30
    assert sorted(name for name in heads if name not in nb.__all__) == []


# What Warp's documents of interoperability name.
WARP_NAMES = frozenset(
    {"array", "array1d", "array2d", "array.numpy"}
    | {"atomic_add", "context.Device", "context.init", "cos"}
    | {"device_from_jax", "device_from_paddle", "device_from_torch", "device_to_jax"}
    | {"device_to_paddle", "device_to_torch", "dtype", "dtype_from_jax"}
    | {"dtype_from_numpy", "dtype_from_paddle", "dtype_from_torch", "dtype_to_jax"}
    | {"dtype_to_numpy", "dtype_to_paddle", "dtype_to_torch", "float32"}
    | {"from_dlpack", "from_jax", "from_numpy", "from_paddle"}
    | {"from_torch", "func", "get_device", "init"}
    | {"kernel", "launch", "mat22", "mat33"}
    | {"ScopedStream", "ScopedTimer", "sin", "static"}
    | {"Stream", "stream_from_paddle", "stream_from_torch", "stream_to_torch"}
    | {"Tape", "tid", "to_dlpack", "to_jax"}
    | {"to_paddle", "to_torch", "types.vector", "uint16"}
    | {"uint32", "uint64", "vec2", "vec3"}
    | {"zeros", "jax_kernel", "jax_callable", "register_ffi_callback"}
    | {"GraphMode.JAX", "GraphMode.WARP", "GraphMode.NONE", "jax_experimental"}
    | {
        "jax_experimental.ffi",
        "jax_experimental.custom_call",
        "examples.benchmarks.benchmark_interop_torch",
        "examples.benchmarks.benchmark_interop_paddle",
    }
)
WARP_ARGUMENTS = (
    *("requires_grad", "return_ctype", "dtype", "device"),
    *("shape", "adj_inputs", "adj_outputs", "adjoint"),
    *("enable_backward", "use_nvtx", "synchronize", "cuda_stream"),
    *("num_outputs", "in_out_argnames", "launch_dims", "output_dims"),
    *("vmap_method", "graph_mode", "graph_compatible", "quiet"),
    *("module_preload_mode", "retain_graph", "retain_grad", "pinned"),
    *(
        "stream",
        "force_module_load",
        "external",
        "apic",
        "capture_mode",
        "color",
        "cuda_filter",
        "report_func",
        "skip_tape",
    ),
    *(
        "sync",
        "hint",
        "inline",
        "capacity",
        "deleter",
        "cuda_event",
        "simplify_graph",
        "array_labels",
        "graph_direction",
    ),
    *(
        "launch_bounds",
        "cuda_max_registers",
        "cluster_dim",
        "grid_stride",
        "entry_point_abi",
        "module",
        "module_options",
    ),
)


def _is_named(page: str, name: str) -> bool:
    """Tell whether a page names something of Warp's, in code; the last part of a dotted name may stand alone."""
    spellings = (f"wp.{name}", f"warp.{name}", f"nb.{name}", name if "." in name else f".{name}(")
    return any(re.search(rf"`[^`]*{re.escape(spelling)}(?!\w)[^`]*`", page) for spelling in spellings) or (
        "." in name and f"`{name.rpartition('.')[2]}`" in page
    )


@pytest.mark.parametrize("name", sorted(WARP_NAMES))
def test_each_of_warps_names_is_treated(name: str) -> None:
    page = (DOCS / "coming_from" / "warp.md").read_text()
    assert _is_named(page, name) or (name == "array.numpy" and "`.numpy()`" in page)


def test_each_of_warps_arguments_is_there_or_named() -> None:
    page = (DOCS / "coming_from" / "warp.md").read_text()
    functions = [*(getattr(nb, name) for name in nb.__all__ if inspect.isroutine(getattr(nb, name))), nb.Array.__new__]
    functions += [nb.ScopedTimer, nb.ScopedCapture, nb.Stream, nb.Tape.backward, nb.Tape.visualize]
    there = {parameter for function in functions for parameter in _parameters(function)}
    assert [name for name in WARP_ARGUMENTS if name not in there and f"`{name}" not in page] == []


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:  # a function of Python's `math`
        return []


def test_what_is_not_named_is_found() -> None:
    assert not _is_named("`wp.from_torchish` and `nb.zeros`", "from_torch")
    assert _is_named("`wp.from_torch`, `nb.zeros`", "from_torch")


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    # The builder that reads everything and resolves every link, and writes no pages: `nox -s docs` does.
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "dummy", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
