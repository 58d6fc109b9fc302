"""The public face: what it offers, what it is made of, and what importing it does not import."""

from __future__ import annotations

import doctest
import importlib
import importlib.metadata
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import numbridge as nb

HERE = Path(nb.__file__).parent
FOLDERS = ("arrays", "bridges", "operators", "storage", "streams", "tape")
MODULES = sorted(
    ".".join(file.relative_to(HERE).with_suffix("").parts)
    for file in (*HERE.glob("[!_]*.py"), *(file for name in FOLDERS for file in (HERE / name).glob("[!_]*.py")))
)
ROOMS = [f"jax_ffi.{name}" for name in ("kernel_call", "callable", "callback")]
OF_KERNELS = [
    f"kernels.{name}"
    for name in (
        *("annotations", "config", "devices", "kernel", "launch", "startup"),
        *("element_types.elements", "element_types.element_operations"),
        *("language.inner_gradients", "language.static_expressions"),
    )
]


@pytest.mark.parametrize("name", [*MODULES, *ROOMS, *OF_KERNELS])
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"numbridge.{name}")
    assert doctest.testmod(module).failed == 0


def test_every_name_is_there_once():
    assert sorted(set(nb.__all__)) == sorted(nb.__all__)
    assert [name for name in nb.__all__ if not hasattr(nb, name)] == []


def test_version():
    assert nb.__version__ == importlib.metadata.version("numbridge")
    with pytest.raises(AttributeError, match="'numbridge' has no attribute '__verion__'"):
        _ = nb.__verion__


def test_scalars_are_numpys_and_ml_dtypes():
    for name in ("int8", "int64", "uint16", "float16", "float32", "float64", "complex64", "complex128"):
        assert getattr(nb, name) is getattr(np, name)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        assert getattr(nb, name) is getattr(ml_dtypes, name)
    assert nb.bool is np.bool_


@pytest.mark.parametrize("framework", ["numpy", "torch", "paddle", "jax", "cupy"])
def test_converters_of_every_framework(framework):
    names = [f"{kind}{way}_{framework}" for kind in ("", "dtype_", "device_") for way in ("from", "to")]
    if framework not in ("numpy", "jax"):
        names += [f"stream_{way}_{framework}" for way in ("from", "to")]
    assert [name for name in names if name not in nb.__all__] == []


def test_errors_are_one_tree_and_builtins_too():
    builtins = {
        "NumbridgeTypeError": TypeError,
        "NumbridgeValueError": ValueError,
        "NumbridgeIndexError": IndexError,
        "NonFiniteError": FloatingPointError,
        "FrameworkNotFoundError": ModuleNotFoundError,
        "BufferAccessError": BufferError,
        "ConversionError": TypeError,
        "DeviceError": RuntimeError,
        "KernelError": TypeError,
        "KernelUnsupportedError": NotImplementedError,
    }
    for name, builtin in builtins.items():
        assert issubclass(getattr(nb, name), nb.NumbridgeError)
        assert issubclass(getattr(nb, name), builtin)


def test_the_import_is_light(run_python):
    printed = run_python("""
        import sys
        import numbridge
        heavy = ("numba", "llvmlite", "torch", "paddle", "jax", "jaxlib", "cupy", "cuda", "rich", "typer")
        print([name for name in heavy if name in sys.modules])
    """)
    assert printed == "[]\n"
