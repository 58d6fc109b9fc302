"""Which frameworks there are, and the line that brings the others; only `needed` imports one."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.errors import FrameworkNotFoundError

__all__ = ["FRAMEWORK_PACKAGES", "absent", "is_there", "needed", "version"]

# Import name → (packages on PyPI that have it, what brings it)
FRAMEWORK_PACKAGES = {
    "numpy": (("numpy",), "pip install numpy"),
    "torch": (("torch",), "pip install 'numbridge[torch]'"),
    "paddle": (("paddlepaddle", "paddlepaddle-gpu"), "pip install 'numbridge[paddle]'"),
    "jax": (("jax",), "pip install 'numbridge[jax]'"),
    "cupy": (("cupy-cuda13x", "cupy-cuda12x", "cupy"), "pip install 'numbridge[cuda13]'"),
}


def version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    # Which takes longer to import than the rest of what converters need.
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_there(module: str) -> bool:
    """Tell whether a module can be imported."""
    return importlib.util.find_spec(module) is not None


def absent(framework: str) -> str | None:
    """Return why a framework cannot be used here and what to do about it, or None if it can."""
    if not is_there(framework):
        return f"not installed; {FRAMEWORK_PACKAGES[framework][1]}"
    if framework == "cupy" and not cuda_driver.driver_count():
        return "has CUDA arrays only, and there is no CUDA device here"
    return None


def needed(framework: str) -> Any:
    """Return a framework's module for somebody who has asked for it.

    Raises
    ------
    FrameworkNotFoundError
        If it is not installed.
    """
    # Paddle rewrites what its programs call, and does not stop at a return within a try.
    try:
        module = importlib.import_module(framework)
    except ModuleNotFoundError as error:
        # What is missing may be something that the framework itself needs, and it says so.
        if error.name != framework:
            raise
        raise FrameworkNotFoundError(
            f"this needs {framework}, which is not installed here; {FRAMEWORK_PACKAGES[framework][1]} (`python -m numbridge "
            "info` shows what there is)",
            name=framework,
        ) from None
    return module
