"""Kernels that tests write as text, whose lines error messages can show."""

from __future__ import annotations

import itertools
import linecache

from numba import cuda

import numbridge as nb

_numbers = itertools.count()


def made(text, **names):
    """Return the kernel `k` of a text, and the same as plain Python; `names` are its globals besides nb and cuda."""
    file = f"<written {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"nb": nb, "cuda": cuda, **names}
    exec(compile(text, file, "exec"), space)
    return nb.kernel(space["k"]), space["k"]
