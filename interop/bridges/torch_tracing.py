"""What `torch.compile` must not look into: numbridge's kernels, which handle addresses in NumPy arrays, and their compilers.

TorchDynamo traces what a compiled function calls, also after its graph has ended, and would take those arrays for tensors.
What it is told to skip runs as it is. Operators (`torch_op`) are not skipped: they are one node of the graph. Imports no torch:
what is said here is said when torch loads the module that has the rules.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["keep_dynamo_out"]

_RULES = "torch._dynamo.trace_rules"
# With what compiles kernels, of which TorchDynamo knows nothing: tracing `struct.pack` in llvmlite, it calls itself without end.
_SKIPPED = ("numbridge.kernels", "numba", "numba_cuda", "llvmlite")


def keep_dynamo_out() -> None:
    """Let TorchDynamo skip kernels: at once if it has been loaded, or when it is."""
    rules = sys.modules.get(_RULES)
    if rules is not None:
        _add(rules)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _add(rules: ModuleType) -> None:
    # What is not there in some version of torch cannot be told to it; compiled functions then trace what they can.
    add = getattr(rules, "add", None)
    if add is not None:
        for name in _SKIPPED:
            add(name)


class _Finder(MetaPathFinder):
    """Finds the module with the rules, once, and sees that it is told."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, but for its loader."""
        if fullname != _RULES:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec, spec.loader)
        return spec


class _Loader(Loader):
    """Loads a module by its own loader, which it gets back, and tells it what to skip."""

    def __init__(self, spec: ModuleSpec, loader: Loader) -> None:
        self._spec, self._loader = spec, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _add(module)
