"""Which functions of a text LLVM compiles into their callers.

LLVM vectorises the loop over the threads only where the loop holds the kernel's body and all that the body calls. It judges
by size alone, and leaves out what two powers or a few branches make too long, though most functions have a single caller.
Nothing is compiled here, and no types are inferred.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping

from numbridge.kernels.cpu_backend.interior import INSIDE

__all__ = ["inlined"]

_DEVICE, _INLINED = "_nb_device", "_nb_inlined"
_MOST = 3000  # nodes of syntax trees; compiling them takes about a second


def inlined(tree: ast.Module) -> ast.Module:
    """Return a text in which functions that are compiled into their callers are decorated with `_nb_inlined`.

    Parameters
    ----------
    tree : ast.Module
        A text of functions, callee before caller, and of those with the loops over thread ids, whose names begin with
        ``_nb_``; changed in place.
    """
    bodies = {
        function.name: function
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        and (function.name.startswith(INSIDE) or not function.name.startswith("_nb_"))
    }
    called = {name: _called(function, bodies) for name, function in bodies.items()}
    callers = sum(called.values(), Counter[str]())
    sizes: dict[str, int] = {}
    for name, function in bodies.items():
        own = sum(1 for _ in ast.walk(function))
        # A function that calls itself or a later one has no size, and LLVM leaves it where it is.
        sizes[name] = own + sum(times * sizes.get(callee, _MOST) for callee, times in called[name].items())
    for name, function in bodies.items():
        if callers[name] <= 1 or all(sizes[caller] <= _MOST for caller in bodies if name in called[caller]):
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Name) and decorator.id == _DEVICE:
                    decorator.id = _INLINED
    return tree


def _called(function: ast.FunctionDef, bodies: Mapping[str, ast.FunctionDef]) -> Counter[str]:
    """Return how often a function names each of the others."""
    return Counter(part.id for part in ast.walk(function) if isinstance(part, ast.Name) and part.id in bodies)
