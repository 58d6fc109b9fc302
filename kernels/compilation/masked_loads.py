"""Loads that LLVM 22 moves past stores. What it makes is looked through for such ones, and made again without vectors of loops.

Where a loop becomes vectors, what it loads under a condition is a masked load, and what two branches give one variable is a
select of such a load and something else. LLVM 22 makes one load of both, and puts it where the select is, also where its element
has been stored to in between (llvm/llvm-project#215453, mended in LLVM 23)::

    if flag[i]:
        v = a[i]
        a[i] = 0.0
    else:
        v = 1.0
    b[i] = v  # 0.0 where the flag is set

Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

__all__ = ["has_moved_load", "keep_loads_in_place", "optimized"]

_IS_AFFECTED = llvm.llvm_version_info[0] == 22
_LOAD = re.compile(r"call .*@llvm\.masked\.load\.[\w.]+\(ptr [^%@]*([%@][^,\s]+), (?!.*(?:poison|undef)\))")
_STORE = re.compile(r"@llvm\.masked\.(?:store|scatter|compressstore)\.|^\s*store |@llvm\.mem(?:set|cpy|move)\.")
_COPY = re.compile(r"@llvm\.mem(?:cpy|move)\.")
# An address, or a vector of such, behind what is said of it, such as "noundef nonnull align 64 dereferenceable(256)"
_STORED_TO = re.compile(r"\bptr>? (?:[^%@,]* )?([%@][^,\s)]+)")
_POINTER = re.compile(r"\bptr\b")
_ADDRESS = re.compile(r"^\s*(%\S+) = getelementptr [^%@]*?ptr>? ([%@][^,\s]+)")
_ONE_OF = re.compile(r"^\s*(%\S+) = extractelement <\d+ x ptr> (%[^,\s]+)")
_DEFINED = re.compile(r"^\s*(%\S+) = (\w+)")
# What gives an address that may be that of another one's memory
_UNKNOWN_ROOTS = frozenset(
    ("phi", "select", "freeze", "inttoptr", "extractelement", "insertelement", "shufflevector", "addrspacecast")
)


class _Library(JITCodeLibrary):
    """A library of Numba's whose loads stay where they are."""

    def _optimize_final_module(self) -> None:
        optimized(self, super()._optimize_final_module)


def keep_loads_in_place() -> None:
    """Let Numba keep loads in place in what it compiles for the CPU from now on, whoever asks for it."""
    codegen = cpu_target.target_context.codegen()
    if _IS_AFFECTED and codegen._library_class is JITCodeLibrary:
        codegen._library_class = _Library


def optimized(library: Any, optimize: Callable[[], None]) -> None:
    """Optimise the module of a library, and if LLVM moves a load in it, once more without vectors of loops."""
    if not _IS_AFFECTED:
        optimize()
        return
    before = library._final_module.clone()
    optimize()
    module = library._final_module
    if any(function.name.startswith("llvm.masked.load.") for function in module.functions) and has_moved_load(
        str(module)
    ):
        library._final_module = before
        passes, how = library._codegen._module_pass_manager(loop_vectorize=False)
        passes.run(before, how)


def has_moved_load(text: str) -> bool:
    """Tell whether some load in a module may have come from before a store to the same memory.

    Parameters
    ----------
    text : str
        Optimised LLVM code. Masked loads that hold something else where they load nothing are those that may have been moved.
        Between the addresses of different arrays a loop of vectors has looked for overlaps before it began.
    """
    return any(map(_moved_within, re.split(r"^define ", text, flags=re.MULTILINE)[1:]))


def _moved_within(function: str) -> bool:
    lines = function.split("\n")
    moved = [(k, found) for k, line in enumerate(lines) if (found := _LOAD.search(line))]
    if not moved:
        return False
    addresses = {found[1]: found[2] for line in lines if (found := _ADDRESS.match(line))}
    several = (found for line in lines if (found := _ONE_OF.match(line)))
    addresses |= {found[1]: found[2] for found in several if found[2] in addresses}
    kinds = {found[1]: found[2] for line in lines if (found := _DEFINED.match(line))}
    for place, load in moved:
        root = _root(load[1], addresses, kinds)
        for line in _since_loop_began(lines, place):
            # LLVM makes no vectors of loops with calls that may write to memory, other than these.
            if _STORE.search(line) and _may_be_same(root, line, addresses, kinds):
                return True
    return False


def _since_loop_began(lines: list[str], place: int) -> Iterator[str]:
    """Yield the lines before a place, back to where the loop of vectors begins, or the function."""
    for line in reversed(lines[:place]):
        if re.match(r"\S*vector\.body\S*:", line):
            return
        yield line


def _may_be_same(root: str | None, line: str, addresses: Mapping[str, str], kinds: Mapping[str, str]) -> bool:
    names = _STORED_TO.findall(line)
    if root is None or len(names) != len(_POINTER.findall(line)):
        return True
    # What a copy reads comes behind what it writes.
    written = names[:1] if _COPY.search(line) else names
    return any(_root(name, addresses, kinds) in (None, root) for name in written)


def _root(name: str, addresses: Mapping[str, str], kinds: Mapping[str, str]) -> str | None:
    """Return what an address is counted from, or None if that may be any memory."""
    while name in addresses:
        name = addresses[name]
    return None if kinds.get(name) in _UNKNOWN_ROOTS else name
