"""Writes the pages of the API reference: which names stand together; what is said of them are their docstrings.

`tests/test_docs.py` compares the names with ``numbridge.__all__``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import numbridge as nb

__all__ = ["GROUPS", "write_all"]

FRAMEWORKS = ("numpy", "torch", "paddle", "jax", "cupy")
_WAYS = ("from", "to")
_MATRICES = ("mat22", "mat33", "mat44", "spatial_matrix")
_VECTORS = ("vec2", "vec3", "vec4", "quat", "transform", "spatial_vector")
_ELEMENTS = [f"{name}{kind}" for name in (*_VECTORS, *_MATRICES) for kind in ("", "f", "d", "h", "i")]
# What other modules of numbridge use, and nobody else.
_INTERNAL = {
    "Kernel": "new_variants, dependencies, flattened, flattened_for, label, source",
    "Tape": "launching, changing, copied, open_scopes",
    "TorchOp": "boxed",
}

# Page → title, what stands above the names, and the names.
GROUPS: dict[str, tuple[str, str, list[str]]] = {
    "kernels": (
        "Kernels and launches",
        "Declaring a kernel, running it over threads, and asking what it became.",
        ["kernel", "func", "tid", "static", "launch", "init", "Kernel", "Launch", "config"],
    ),
    "arrays": (
        "Arrays",
        "numbridge's own array, and what makes or describes one. ``nb.array`` and ``nb.Array`` are the same class.",
        [
            *(
                "Array",
                "array",
                "asarray",
                "convert",
                "explain",
                "ArrayExplanation",
                "array1d",
                "array2d",
                "array3d",
                "array4d",
            ),
            *("zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "clone", "copy"),
            *("from_dlpack", "to_dlpack"),
        ],
    ),
    "frameworks": (
        "Frameworks",
        "Arrays, dtypes, devices and streams of each framework, there and back.",
        [
            *(f"{way}_{name}" for name in FRAMEWORKS for way in _WAYS),
            *(f"{what}_{way}_{name}" for what in ("dtype", "device") for name in FRAMEWORKS for way in _WAYS),
            *(f"stream_{way}_{name}" for name in ("torch", "paddle", "cupy") for way in _WAYS),
        ],
    ),
    "gradients": (
        "Gradients and operators",
        "Launches that are recorded, derivatives by hand, and kernels as operators of PyTorch and Paddle.",
        ["Tape", "grad", "func_grad", "torch_op", "TorchOp", "paddle_op", "PaddleOp"],
    ),
    "jax": (
        "Inside JAX",
        "Kernels and functions that launch them, as JAX functions.",
        ["jax_kernel", "jax_callable", "GraphMode", "register_ffi_callback"],
    ),
    "operations": (
        "In kernels",
        "Functions that kernels call. Those on numbers and elements work in Python as well.",
        [
            *(f"atomic_{name}" for name in ("add", "sub", "min", "max", "exch", "cas")),
            *(
                "dot",
                "cross",
                "length",
                "length_sq",
                "normalize",
                "outer",
                "transpose",
                "determinant",
                "inverse",
                "trace",
            ),
            *("cw_mul", "cw_div", "matrix_from_rows", "matrix_from_cols"),
            *("quat_from_axis_angle", "quat_inverse", "quat_rotate", "quat_rotate_inv", "quat_to_matrix"),
            *("transform_point", "transform_vector", "transform_inverse"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh"),
            *("exp", "log", "log2", "log10", "pow", "sqrt"),
        ],
    ),
    "types": (
        "Element types",
        (
            "What arrays hold. Without a suffix, or with ``f``, they are of float32; ``d`` is float64, ``h`` float16, "
            "``i`` int32. A quaternion is x, y, z, w, and a transform a position and then a quaternion. "
            ":doc:`How to use vectors and matrices <../howto/vectors>` is a page of its own."
        ),
        [
            *("vector", "matrix"),
            *("bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))),
            *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
            *_ELEMENTS,
        ],
    ),
    "devices": (
        "Devices, streams and graphs",
        "Where work runs, in which order, and how long it takes.",
        [
            *("Device", "get_device", "set_device", "get_devices", "device_count", "ScopedDevice"),
            *("Stream", "Event", "ScopedStream", "get_stream", "set_stream", "synchronize"),
            *("synchronize_device", "synchronize_stream", "synchronize_event"),
            *("record_event", "wait_event", "wait_stream", "get_event_elapsed_time"),
            *("Graph", "ScopedCapture", "capture_begin", "capture_end", "capture_launch", "ScopedTimer"),
        ],
    ),
    "errors": (
        "Errors",
        "Every error is a `NumbridgeError`, and the built-in exception that one would expect.",
        [
            *(
                "NumbridgeError",
                "NumbridgeTypeError",
                "NumbridgeValueError",
                "NumbridgeIndexError",
                "NonFiniteError",
                "BufferAccessError",
            ),
            *(
                "ConversionError",
                "DataRaceError",
                "DeviceError",
                "FrameworkNotFoundError",
                "KernelError",
                "KernelUnsupportedError",
                "NumbridgeWarning",
            ),
        ],
    ),
}


def write_all(folder: Path) -> None:
    """Write a page for each group into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, about, names) in GROUPS.items():
        lines = [".. currentmodule:: numbridge", "", title, "=" * len(title), "", about, ""]
        lines += [line for each in names for line in _entry(each)]
        text = "\n".join(lines) + "\n"
        page = folder / f"{name}.rst"
        # What is unchanged keeps its time, so that Sphinx need not read it again.
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def _entry(name: str) -> Iterator[str]:
    value: Any = getattr(nb, name)
    if name == "array":
        yield from (".. py:class:: array", "", "   `Array`, by the name that annotations use: ``nb.array[float]``.", "")
    elif isinstance(value, BuiltinFunctionType) and value.__module__ == "math":
        arguments = {"atan2": "y, x", "pow": "x, y"}.get(name, "x")
        yield from (
            f".. py:function:: {name}({arguments})",
            "",
            f"   Python's ``math.{name}``, also of arguments in kernels.",
            "",
        )
    elif name in _ELEMENTS:
        yield from (f".. py:data:: {name}", "", f"   {value.__doc__}", "")
    elif isinstance(value, type) and not value.__module__.startswith("numbridge"):
        yield from (f".. py:data:: {name}", "", f"   ``{value.__module__}.{value.__name__}``.", "")
    elif not isinstance(value, type) and not callable(value):
        yield from (f".. autodata:: {name}", "   :no-value:", "")
    else:
        kind = "class" if isinstance(value, type) else "data" if name.startswith("array") else "function"
        options = ["   :no-value:"] if kind == "data" else []
        if name in _INTERNAL:
            options.append(f"   :exclude-members: {_INTERNAL[name]}")
        yield from (f".. auto{kind}:: {name}", *options, "")
        if kind == "class" and issubclass(value, nb.NumbridgeError):
            yield from _bases(value)


def _bases(error: type) -> Iterator[str]:
    """Say by which other classes an error can be caught."""
    names = [f"`{base.__name__}`" if hasattr(nb, base.__name__) else f"``{base.__name__}``" for base in error.__bases__]
    if "``Exception``" not in names:
        yield from (f"   Caught by {' and by '.join(names)}.", "")
