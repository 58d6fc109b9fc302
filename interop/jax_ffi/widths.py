"""Which widths of numbers JAX keeps, as the user has configured it now. Decides nothing about values that are there already.

Without 64 bits JAX makes 32 of what it is asked to make and of what comes from NumPy; an array of 64 bits that was made while it
was set to these stays one.
"""

from __future__ import annotations

from typing import Any

__all__ = ["all_kept", "is_kept", "width_settings", "widths"]


def width_settings() -> tuple[Any, ...]:
    """Return what JAX's widths depend on: what was decided under other settings has to be decided anew."""
    import jax

    # The second one came with JAX 0.9.
    return jax.config.jax_enable_x64, getattr(jax.config, "jax_explicit_x64_dtypes", None)


def all_kept() -> Any:
    """Return a context in which JAX makes what it is asked for: kernels compute in 64 bits where it may be set to 32."""
    return widths(True)


def widths(is_64: bool) -> Any:
    """Return a context in which JAX makes numbers of 64 bits, or of 32."""
    import jax

    return jax.enable_x64(is_64)


def is_kept(dtype: Any) -> bool:
    """Tell whether JAX makes arrays of a dtype if it is asked to, and not of a narrower one."""
    import jax

    _, explicit = width_settings()
    # Its class is none of JAX's public names.
    return getattr(explicit, "name", "") == "ALLOW" or bool(jax.dtypes.canonicalize_dtype(dtype) == dtype)
