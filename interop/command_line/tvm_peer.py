"""tvm-ffi's side of the comparison. It may be imported only where tvm-ffi is installed."""

from __future__ import annotations

from typing import Any

__all__ = ["nothing"]


def nothing() -> Any:
    """Return a C++ function that takes anything and does nothing, the one that tvm-ffi's own benchmarks call.

    It comes with the package, so that no compiler is needed, and is no slower than a function of `TensorView` that is empty.
    """
    import tvm_ffi
    import tvm_ffi.testing

    return tvm_ffi.get_global_func("testing.nop")
