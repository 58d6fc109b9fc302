"""What a kernel is called across processes and machines: a key over everything that its compiled code depends on.

Unlike the name under which object code is cached, a key knows neither the CPU nor file names, so that an exported program finds
its kernels again elsewhere, and finds none but these.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from numbridge.kernels.adjoint.derive import Derivative, derived
from numbridge.kernels.errors import KernelError, KernelUnsupportedError
from numbridge.kernels.extent_checks import atoms_of
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.language.launch_sizes import Along, Atom, Number
from numbridge.kernels.language.reaches import Demand, reaches_of
from numbridge.kernels.object_cache import digest
from numbridge.kernels.parameter_types import ParameterType
from numbridge.kernels.variant import Variant, variants_of

__all__ = [
    "Key",
    "check_current",
    "identity_of",
    "is_current",
    "key_of",
    "root_of",
    "spelled",
    "steps_from",
    "untraced_reaches",
]

Key = tuple[int, int]
_FORMAT = "numbridge kernel 1"
_known: dict[tuple[str, int, str], Key] = {}
_lock = threading.Lock()


def identity_of(kernel: Kernel, parameters: tuple[ParameterType, ...], weak: str, variant: Variant) -> Key:
    """Return the key of a kernel for parameter types as two signed 64-bit integers.

    What has one key computes and refuses the same, on the CPU and on CUDA. `variant` is its code on either.
    """
    known = (variant.source_file, variant.address, _spelled_reaches(kernel))
    found = _known.get(known)
    if found is None:
        made = key_of(kernel, parameters, weak)
        with _lock:
            found = _known.setdefault(known, made)
    return found


def check_current(kernel: Kernel, parameters: tuple[ParameterType, ...], weak: str, key: Key) -> None:
    """Refuse to derive a kernel that has become another one since JAX traced it.

    Raises
    ------
    KernelError
        If its key is no longer `key`.
    """
    if not is_current(kernel, parameters, weak, key):
        raise KernelError(
            f"derivative of kernel {kernel.name!r}: something that it reads from outside itself has changed since JAX traced it, "
            "so the derivative would be that of another function; trace it again (jax.clear_caches()), or pass it as an argument"
        )


def is_current(kernel: Kernel, parameters: tuple[ParameterType, ...], weak: str, key: Key) -> bool:
    """Tell whether a kernel still is what `key` stands for: nothing that it reads from outside itself has changed."""
    variants_of(root_of(kernel)).refresh()
    return key_of(kernel, parameters, weak) == key


def key_of(kernel: Kernel, parameters: Sequence[ParameterType], weak: str) -> Key:
    """Return what `identity_of` does, before there is code: it takes longer, and nothing is remembered."""
    try:
        emitted = variants_of(kernel).emitted(tuple(parameters), weak, "cpu")
    except KernelUnsupportedError:
        # It uses what only CUDA has.
        emitted = variants_of(kernel).emitted(tuple(parameters), weak, "cuda")
    # Comments say in which file the source lies, which makes no difference.
    code = "\n".join(line for line in emitted.text.splitlines() if not line.startswith("#"))
    listed = ", ".join(f"{p.name}: {p}" for p in parameters)
    options = f"{weak} {bool(kernel.options.get('fastmath'))} {kernel.source.index_rank}"
    name = digest(_FORMAT, kernel.name, code, emitted.fingerprint, listed, options, _spelled_reaches(kernel))
    low, high = (int.from_bytes(bytes.fromhex(half), "little", signed=True) for half in (name[:16], name[16:]))
    return low, high


def untraced_reaches(kernel: Kernel) -> tuple[Demand, ...]:
    """Return what a launch has to keep to where no trace tells: it may not know integers, and knows no blocks."""
    return tuple(reach for reach in reaches_of(kernel) if any(map(_is_untraced, atoms_of([reach]))))


def _is_untraced(atom: Atom) -> bool:
    return isinstance(atom, Number) or (isinstance(atom, Along) and atom.kind != "dim")


def _spelled_reaches(kernel: Kernel) -> str:
    """Return those as text; a derivative has the same code as that of a kernel that goes elsewhere in what has no derivative."""
    return "\n".join(reach.spelling for reach in untraced_reaches(kernel))


def root_of(kernel: Kernel) -> Kernel:
    """Return the user's kernel that a kernel is, or is derived from."""
    return root_of(kernel.base) if isinstance(kernel, Derivative) else kernel


def spelled(kernel: Kernel) -> str:
    """Return what a call site says of its kernel: the name of the user's kernel, then a line for each derivation."""
    if not isinstance(kernel, Derivative):
        return kernel.name
    lists = [kernel.wanted, kernel.kept, kernel.fresh] if kernel.kept or kernel.fresh else [kernel.wanted]
    return f"{spelled(kernel.base)}\n{kernel.mode} {' | '.join(map(' '.join, lists))}"


def steps_from(kernel: Kernel, lines: Sequence[str]) -> Kernel | None:
    """Return what is derived from a user's kernel by the lines of `spelled`, or None if there is no such thing."""
    for line in lines:
        mode, _, rest = line.partition(" ")
        # Those that are kept or fresh are named only where there are some.
        wanted, kept, fresh = (tuple(part.split()) for part in (*rest.split("|"), "", "")[:3])
        names = [parameter.name for parameter in kernel.parameters]
        if mode not in ("adjoint", "tangent") or not set(wanted) <= set(names) or not {*kept, *fresh} <= set(wanted):
            return None
        # As in `derivative`
        kernel = derived(kernel, mode, wanted, kept=kept, fresh=fresh, restores=mode == "tangent")
    return kernel
