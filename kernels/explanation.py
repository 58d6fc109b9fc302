"""What a kernel becomes for some arguments, as a report: types, generated source, and where float64 arithmetic remains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numbridge.kernels.kernel import Kernel
from numbridge.kernels.variant import Variant, variants_of

__all__ = ["Explanation", "explain"]

# A literal in generated source, with the type that it takes.
_LITERAL = re.compile(r"_nb_(?:float|complex)\d+\((\d[\w.+-]*)\)")


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a kernel becomes for some arguments; `repr` and `str` of it are a report.

    Attributes
    ----------
    kernel : str
        Its name.
    variant : Variant
        The native code that the arguments run.
    float64_lines : tuple of str
        Source lines with float64 arithmetic in a kernel whose floating type is float32.
    source : str
        The generated source.
    """

    kernel: str
    variant: Variant
    float64_lines: tuple[str, ...]
    source: str

    def __repr__(self) -> str:
        """Return a readable report."""
        kind = "from the cache on disk" if self.variant.from_cache else "compiled now"
        where = "the CPU" if self.variant.device.is_cpu else str(self.variant.device)
        lines = [
            f"kernel {self.kernel!r} on {where}, {kind}",
            f"floating type of literals and Python floats: {self.variant.weak_float}",
            "parameters:",
            *(f"    {p.name}: {p}" for p in self.variant.parameters),
        ]
        if self.float64_lines:
            lines += ["float64 arithmetic remains in:", *(f"    {line}" for line in self.float64_lines)]
        return "\n".join([*lines, f"generated source ({self.variant.source_file}):", self.source])


def explain(kernel: Kernel, arguments: Sequence[Any]) -> Explanation:
    """Return which variant these arguments run, its types, its generated source, and where float64 arithmetic remains."""
    kernel, arguments = kernel.flattened(arguments)
    variant = variants_of(kernel).specialise(arguments)
    # Literals as they are written.
    wide = tuple(_LITERAL.sub(r"\1", line) for line in variant.wide) if variant.weak_float == "float32" else ()
    with open(variant.source_file, encoding="utf-8") as file:
        return Explanation(kernel.name, variant, wide, file.read())
