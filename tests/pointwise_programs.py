"""Random pointwise kernels: each thread reads and writes its own element, with branches, conversions and numbers.

A program is text, made of a stream of choices, so that hypothesis can shrink it. What two compilers may answer differently does
not occur: signed integers of 64 bits that overflow, which Numba leaves undefined, and floats that do not fit into an integer.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import numbridge as nb

FLOATS = ("float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
LARGEST = 1 << 40

_FLOAT_FORMS = (
    *(
        "({0} + {1})",
        "({0} - {1})",
        "({0} / {1})",
        "-{0}",
        "abs({0})",
        "min({0}, {1})",
        "max({0}, {1})",
        "math.sqrt({0})",
    ),
    *("np.float32({0})", "np.float64({0})", "np.floor(np.float64({0}))", "np.ceil(np.float32({0}))", "({0} / 3.0)"),
    *("np.rint(np.float32({0}))", "({0} + 0.0)", "(({0} + 0.1) + 0.2)", "(({0} / {1}) / 1.7)", "({0} * {1}) / 0.3"),
    *("({0} / math.sqrt({1}))", "({0} / ({1} / 0.1))", "helper({0}, {1})", "({0} if {2} else {1})", "i / ({0} - 1)"),
)
_INTEGER_FORMS = (
    *(
        "({0} + {1})",
        "({0} - {1})",
        "(np.int16({0}) * np.uint8({1}))",
        "(np.uint32({0}) * np.uint64({1}))",
        "-{0}",
        "~{0}",
    ),
    *(
        "min({0}, {1})",
        "max({0}, {1})",
        "({0} if {2} else {1})",
        "np.int16({0}) ** 2",
        "abs(np.int32({0}))",
        "({0} & {1})",
    ),
    *("({0} ^ {1})", "({0} | 3)", "np.int32({0})", "np.uint8({0})", "np.int64({0})", "helper({0}, {1})", "+{0}"),
)
_CONDITIONS = (
    *(
        "{0} < {1}",
        "{0} <= {1}",
        "{0} == {1}",
        "{0} != {1}",
        "{0} > {1} and {1} > 1",
        "not {0} >= {1}",
        "i < n",
        "i > 2",
    ),
    *("bool({0})", "{0} < 3 or {1} < 3"),
)
_OF_FLOATS = ("math.isnan({0} + 0.5)", "math.isinf({0} + 0.5)", "np.isfinite(np.float64({0}))")


@nb.func
def helper(p, q):
    if p < q:
        return p
    return q + 1


class Writer:
    """Writes one program of integers or of floats; `pick(n)` is the next choice, below `n`."""

    def __init__(self, pick: Callable[[int], int], *, integers: bool) -> None:
        self.pick, self.integers = pick, integers

    def one_of(self, forms: tuple[str, ...]) -> str:
        return forms[self.pick(len(forms))]

    def number(self, depth: int = 2) -> str:
        if depth == 0 or self.pick(5) == 0:
            constants = ("7", "-7", "2") if self.integers else ("0.1", "3.0", "-0.0", "7")
            return self.one_of(("x[i]", "y[i]", "z[i]", "v", "w", "a", "i", "1", *constants))
        form = self.one_of(_INTEGER_FORMS if self.integers else _FLOAT_FORMS)
        return form.format(self.number(depth - 1), self.number(depth - 1), self.condition())

    def condition(self) -> str:
        forms = _CONDITIONS if self.integers else (*_CONDITIONS, *_OF_FLOATS)
        return self.one_of(forms).format(self.number(0), self.number(0))

    def statements(self, depth: int, level: int) -> list[str]:
        made, indent = [], "    " * depth
        for _ in range(1 + self.pick(3)):
            target = ("v", "w", "out[i]", "both[i]", "z[i]", "if")[self.pick(6 if level else 5)]
            if target != "if":
                made.append(f"{indent}{target} = {self.number()}")
                continue
            made += [f"{indent}if {self.condition()}:", *self.statements(depth + 1, level - 1)]
            if self.pick(2):
                made += [f"{indent}else:", *self.statements(depth + 1, level - 1)]
        return made

    def program(self) -> str:
        guards = (["    if i >= out.shape[0]:", "        return"], ["    if i >= n:", "        return"], [])
        lines = ["def generated(x, y, a, n, z, out, both):", "    i = nb.tid()", *guards[self.pick(3)]]
        lines += ["    v = x[i]", "    w = y[i]", *self.statements(1, 2)]
        return "\n".join(
            [*lines, f"    out[i] = {self.number()}", f"    both[i] = {self.number(1)}", "    z[i] = w", ""]
        )


def made(text: str, outputs: tuple[str, str]) -> Any:
    """Return the kernel that a text is, with arrays of two dtypes as outputs."""
    name = f"<pointwise {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"nb": nb, "np": np, "math": math, "helper": helper}
    exec(compile(text, name, "exec"), namespace)
    function = namespace["generated"]
    kinds = (nb.array(dtype=np.dtype(dtype).type, ndim=1) for dtype in outputs)
    function.__annotations__ = dict(zip(("out", "both"), kinds, strict=True))
    return nb.kernel(function)


def values(dtype: str, count: int, rng: np.random.Generator) -> Any:
    """Return numbers of a dtype, many of them such as are treated specially."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        low, high = max(np.iinfo(kind).min, -LARGEST), min(np.iinfo(kind).max, LARGEST)
        found = rng.integers(low, high, count, endpoint=True).astype(kind)
        special = np.array([0, 1, 2, high, low], kind)
    else:
        facts = np.finfo(kind)
        small = [facts.tiny, facts.smallest_subnormal, facts.tiny / 3]
        listed = [0.0, 1.0, 0.5, 3.0, 0.1, np.inf, facts.max, 1 + facts.eps, *small]
        special = np.array([np.nan, *listed, *(-number for number in listed)], kind)
        found = (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 6, count)).astype(kind)
    chosen = rng.random(count) < 0.6
    found[chosen] = rng.choice(special, chosen.sum())
    return found
