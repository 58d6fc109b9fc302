"""What a process sets once for all kernels: where compiled code is kept, and what `nb.kernel` takes by default."""

from __future__ import annotations

import os
from typing import Any

from numbridge.kernels.errors import NumbridgeTypeError, NumbridgeValueError

__all__ = ["config"]

_ON, _OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class Config:
    """The settings of this process, as `nb.config`.

    Attributes
    ----------
    kernel_cache_dir : str, path or None
        The folder of compiled code, made if it does not exist; it must be private. By default ``NUMBRIDGE_CACHE_DIR`` from
        the environment, or else ``~/.cache/numbridge``. Setting it counts for what is compiled afterwards; None goes back
        to the default.
    fastmath : bool
        The default of `nb.kernel`, for kernels declared afterwards.
    simd : bool or None
        Likewise; by default None.
    enable_backward, check_bounds, check_races : bool
        Likewise. With ``NUMBRIDGE_CHECK_BOUNDS=1`` in the environment, `check_bounds` starts as True, and with
        ``NUMBRIDGE_CHECK_RACES=1`` `check_races` does.

    Raises
    ------
    AttributeError
        For a setting that does not exist.
    NumbridgeTypeError
        For a value of another type.
    NumbridgeError
        For a folder that cannot be written to, or that others could write to.

    Examples
    --------
    >>> import numbridge as nb
    >>> nb.config.enable_backward
    True
    """

    __slots__ = ("_kernel_cache_dir", "check_bounds", "check_races", "enable_backward", "fastmath", "simd")

    fastmath: bool
    enable_backward: bool
    check_bounds: bool
    check_races: bool
    simd: bool | None

    def __init__(self) -> None:
        self._kernel_cache_dir: str | None = None
        self.fastmath, self.enable_backward, self.simd = False, True, None
        self.check_bounds = _is_set("NUMBRIDGE_CHECK_BOUNDS")
        self.check_races = _is_set("NUMBRIDGE_CHECK_RACES")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a setting, if it exists and the value is of its type."""
        if name in ("fastmath", "enable_backward", "check_bounds", "check_races") and type(value) is not bool:
            raise NumbridgeTypeError(f"config.{name}: wanted True or False, got {value!r}")
        if name == "simd" and value is not None and type(value) is not bool:
            raise NumbridgeTypeError(f"config.simd: wanted True, False or None, got {value!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Refuse: a setting always has a value."""
        raise NumbridgeTypeError(f"config.{name}: a setting cannot be deleted; set it to another value")

    @property
    def kernel_cache_dir(self) -> str | None:
        """The folder that was chosen, here or by ``NUMBRIDGE_CACHE_DIR``; None for the default."""
        return self._kernel_cache_dir or os.environ.get("NUMBRIDGE_CACHE_DIR") or None

    @kernel_cache_dir.setter
    def kernel_cache_dir(self, folder: str | os.PathLike[str] | None) -> None:
        from numbridge.kernels.object_cache import named_folder, private_folder

        if folder == "" or (folder is not None and not isinstance(folder, str | os.PathLike)):
            raise NumbridgeTypeError(f"config.kernel_cache_dir: wanted a path or None, got {folder!r}")
        chosen = None if folder is None else str(named_folder(str(folder)).absolute())
        private_folder(chosen)
        self._kernel_cache_dir = chosen

    def __repr__(self) -> str:
        """Return the settings as they are."""
        names = ("kernel_cache_dir", "fastmath", "enable_backward", "check_bounds", "check_races", "simd")
        return f"config({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _is_set(variable: str) -> bool:
    text = os.environ.get(variable, "")
    if text.lower() not in (*_OFF, *_ON):
        raise NumbridgeValueError(f"the environment variable {variable}: wanted 1 or 0, got {text!r}")
    return text.lower() in _ON


config = Config()
