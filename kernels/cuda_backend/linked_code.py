"""Code that is not Python's and that kernels on CUDA call: what numba.cuda compiles or takes for them, for the linker.

That is CUDA C++, PTX, cubins and libraries behind `cuda.declare_device`, and what numba.cuda's own numbers of 16 bits are made
of. Importing this module imports numba.cuda, so only code that is about to compile, or has such a function, does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from cuda.core import ObjectCode
from numba.cuda.cudadrv import linkable_code
from numba.cuda.cudadrv.linkable_code import LinkableCode
from numba.cuda.descriptor import cuda_target

from numbridge.kernels.errors import KernelError, KernelUnsupportedError

__all__ = ["describe_linked", "objects_of"]

_MADE_OF: dict[type[LinkableCode], Callable[..., ObjectCode]] = {
    linkable_code.PTXSource: ObjectCode.from_ptx,
    linkable_code.Cubin: ObjectCode.from_cubin,
    linkable_code.Fatbin: ObjectCode.from_fatbin,
    linkable_code.Object: ObjectCode.from_object,
    linkable_code.Archive: ObjectCode.from_library,
    linkable_code.LTOIR: ObjectCode.from_ltoir,
}


def objects_of(codes: Sequence[Any]) -> list[ObjectCode]:
    """Return what is linked with a kernel, as `numba.cuda.compile_all` lists it."""
    return [_object(code) for code in codes]


def _object(code: Any) -> ObjectCode:
    if isinstance(code, LinkableCode):
        return _MADE_OF[type(code)](_data(code), name=code.name)
    return code if isinstance(code, ObjectCode) else ObjectCode.from_ptx(code.encode())


def describe_linked(function: Any) -> str:
    """Return what determines a function of `cuda.declare_device`: its name, its types, and what is linked for it.

    What CUDA C++ includes is not looked into.

    Raises
    ------
    KernelError
        If a file cannot be read.
    KernelUnsupportedError
        If some of what is linked wants to be told when it is loaded.
    """
    found = {
        f"{code.name} {hashlib.sha256(_data(code)).hexdigest()}"
        for _, implementation in cuda_target.target_context._defns[function].versions
        for library in getattr(implementation, "libs", ())
        for code in (_read(function, item) for item in library._linking_files)
    }
    return f"linked {function.name} {function.sig} {sorted(found)}"


def _read(function: Any, item: Any) -> LinkableCode:
    try:
        code: LinkableCode = LinkableCode.from_path_or_obj(item)
    except OSError as error:
        raise KernelError(
            f"the code that cuda.declare_device({function.name!r}, link=...) names cannot be read: {error}"
        ) from error
    if code.setup_callback is not None or code.teardown_callback is not None:
        raise KernelUnsupportedError(
            f"cuda.declare_device({function.name!r}) links {code.name}, which has a callback for when it is loaded or unloaded; "
            "numbridge calls none, so link it without, and let a kernel set up what it needs"
        )
    return code


def _data(code: LinkableCode) -> bytes:
    return code.data.encode() if isinstance(code.data, str) else bytes(code.data)
