"""Random programs of a framework that call operators; each runs with the operators or with their twins.

A program is text, made of a stream of choices: a function ``generated(given0, given1, ...)``, to which `K` has the operators of
`operator_kernels`, and `F` is the framework. Values of wanted types are made by operators and by the framework's own operations,
many of which return views. What only eager tensors have (changes in place, hooks, layers of the user's, parts without gradients)
may be left out.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from operator_kernels import BINS, value

# A letter for what a value has (f floating-point numbers, i places, b truth values), and its shape
Type = tuple[str, tuple[int, ...]]
SIZES = 3, BINS, 2
# Parts of programs that not every way to run them allows
SPECIAL = "changed", "layer", "hooked", "detached", "without_gradients"
TOLERANCES = {"float64": 1e-9, "float32": 2e-3}
# Beyond these, fractions of a number have few digits left
LARGE = {"float64": 1e6, "float32": 1e3}


@dataclass(frozen=True)
class Framework:
    """What programs say of a framework.

    Attributes
    ----------
    names : dict
        Of its module, ``F``; of ``cast(x, dtype)`` and of dtypes; of what turns a vector round, ``backwards``, and multiplies
        in place, ``scale_``; of ``hooked``, whose gradient a hook doubles.
    layers : tuple of str
        Names of what returns a function as one whose gradients are made in a way of its own.
    """

    names: dict[str, Any]
    layers: tuple[str, ...]


@dataclass
class Program:
    """A program: its text, and the types of its arguments."""

    text: str
    arguments: tuple[Type, ...]
    real: str
    name: str
    framework: Framework

    def function(self, operators: Any) -> Callable[..., Any]:
        """Return the function of the arguments, with these operators."""
        # Some compile functions from their text.
        linecache.cache[self.name] = len(self.text), None, self.text.splitlines(keepends=True), self.name
        names = {**self.framework.names, "K": operators, "D": self.framework.names[self.real]}
        exec(compile(self.text, self.name, "exec"), names)
        made: Callable[..., Any] = names["generated"]
        return made

    def values(self, seed: int) -> list[Any]:
        random = np.random.default_rng(seed)
        return [value(random, kind, shape, self.real) for kind, shape in self.arguments]

    @property
    def tolerance(self) -> float:
        # Gradients by an argument of float32 are rounded to that.
        return TOLERANCES["float32" if "K.mixed" in self.text else self.real]

    def __str__(self) -> str:
        return f"# arguments: {self.arguments}, {self.real}\n{self.text}"


@dataclass
class Var:
    name: str
    type: Type
    # Whether nothing else has its memory, nor depends on what it holds
    is_own: bool = False


@dataclass
class TensorWriter:
    """Writes one program; `pick(n)` is the next choice, below `n`, and `special` says which parts of `SPECIAL` it may have."""

    framework: Framework
    pick: Callable[[int], int]
    real: str = "float64"
    special: tuple[str, ...] = SPECIAL
    budget: int = 8
    sizes: tuple[int, ...] = SIZES
    lines: list[str] = field(default_factory=list)
    scope: list[Var] = field(default_factory=list)
    level: int = 1
    count: int = 0

    def one_of(self, things: Any) -> Any:
        return things[self.pick(len(things))]

    def size(self) -> int:
        return self.one_of(self.sizes)

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.level + line)

    def let(self, kind: Type, text: str, *, is_own: bool = False) -> str:
        name = self.name(kind[0])
        self.emit(f"{name} = {text}")
        self.scope.append(Var(name, kind, is_own))
        return name

    # Values of wanted types

    def f(self, *shape: int) -> str:
        return self.want(("f", shape))

    def want(self, kind: Type, *, fresh: bool = False) -> str:
        """Return the name of a value of a type."""
        found = [v for v in self.scope if v.type == kind]
        if found and not fresh and (self.pick(3) or self.budget <= 0):
            return self.read(self.one_of(found))
        if self.budget <= 0:
            return self.let(kind, self.fallback(kind))
        self.budget -= 1
        if kind[0] == "i":
            return self.let(kind, f"cast(F.floor(F.abs({self.f(*kind[1])})), int64) % 2")
        if kind[0] == "b":
            return self.let(kind, f"{self.f(*kind[1])} > 0.2")
        makers = {0: self.number, 1: self.row, 2: self.matrix}
        if self.special and self.pick(5) == 0:
            made: str = getattr(self, self.one_of(self.special))(kind)
            return made
        return makers[len(kind[1])](kind)

    def read(self, var: Var) -> str:
        var.is_own = False
        return var.name

    def fallback(self, kind: Type) -> str:
        letter, shape = kind
        text = f"F.arange({int(np.prod(shape))}).reshape({list(shape)})"
        if letter == "i":
            return f"{text} % 2"
        if letter == "b":
            return f"{text} % 2 == 0"
        numbers = [v for v in self.scope if v.type[0] == "f"]
        if not numbers or self.pick(6) == 0:
            return f"F.cos(cast({text}, D))"
        return f"F.cos({text} + F.sin({self.read(self.one_of(numbers))}).sum())"

    def number(self, kind: Type) -> str:
        n = self.size()
        options = (
            lambda: f"{self.f(n)}[{self.one_of((0, -1))}]",
            lambda: f"{self.f(n)}.sum()",
            lambda: f"{self.f(n, self.size())}.mean()",
            lambda: f"F.sin({self.f()})",
        )
        return self.let(kind, self.one_of(options)())

    def row(self, kind: Type) -> str:
        (n,) = kind[1]
        m = self.size()
        if self.pick(3) == 0:
            return self.let(kind, self.one_of(self.views_of_rows(n, m))())
        if self.pick(4) == 0:
            return self.let(kind, self.plain(kind), is_own=True)
        if self.pick(5) == 0:
            p, q = self.one_of((("f", "f"), ("i", "f")))
            made = self.name(p), self.name(q)
            given = f"pair({self.f(n)}, {self.f(n)})" if p == "f" else f"parted({self.f(n)})"
            self.emit(f"{made[0]}, {made[1]} = K.{given}")
            # The whole numbers of an operator are no places.
            self.scope += [Var(name, ("f", (n,))) for name, letter in zip(made, (p, q), strict=True) if letter == "f"]
            if p == "i":
                self.scope.append(Var(made[0], ("w", (n,))))
            return made[1]
        options = [
            lambda: f"waves({self.f(n)}, {self.f(n)})",
            lambda: f"scaled({self.f(n)}, {self.one_of((0.5, 'number'))}, {self.pick(3)})",
            lambda: f"mixed({self.f(n)}, cast({self.f(n)}, {'float32' if self.real == 'float64' else 'float64'}))",
            lambda: f"masked({self.f(n)}, {self.want(('b', (n,)))})",
            lambda: f"left_alone({self.f(n)}, {self.f(m)})",
            lambda: f"row_sums({self.f(n, m)})",
            lambda: f"lengths({self.f(n, 3)})",
            lambda: f"summed(({self.f(n)}, {self.f(n)}), {self.one_of((1.5, 'number'))})",
            lambda: f"gathered({self.f(4)}, {self.want(('i', (n,)))})",
            lambda: f"gathered({self.f(n)}, {self.want(('i', (n,)))})" if n > 2 else f"waves({self.f(n)}, {self.f(n)})",
        ]
        if n == BINS:
            options += [lambda: f"scattered({self.f(m)}, {self.want(('i', (m,)))})"] * 2
        text = self.one_of(options)()
        if "number" in text:
            text = text.replace("number", self.f())
        return self.let(kind, f"K.{text}", is_own=True)

    def views_of_rows(self, n: int, m: int) -> tuple[Callable[[], str], ...]:
        return (
            lambda: f"{self.f(n, m)}[:, {self.pick(m)}]",
            lambda: f"{self.f(m, n)}[{self.pick(m)}]",
            lambda: f"backwards({self.f(n)})",
            lambda: f"F.concat([{self.f(n)}, {self.f(n)}])[::2]",
            lambda: f"F.concat([{self.f(m)}, {self.f(n)}])[{m}:]",
            lambda: f"{self.f(m, n)}.t()[:, {self.pick(m)}]",
            lambda: f"{self.f()}.expand([{n}])",
            lambda: f"{self.f(2, n)}.reshape([{2 * n}])[1::2]",
            lambda: f"{self.f(n, m)}.chunk({m}, 1)[{self.pick(m)}].squeeze(1)",
        )

    def plain(self, kind: Type) -> str:
        a, b = self.want(kind), self.want(kind)
        return self.one_of((f"{a} + {b}", f"{a} * {b}", f"{a} - 0.5 * {b}", f"F.tanh({a})", f"F.sin({a})"))

    def matrix(self, kind: Type) -> str:
        n, m = kind[1]
        views = (
            lambda: f"{self.f(m, n)}.t()",
            lambda: f"{self.f(m, n)}.reshape([{n}, {m}])",
            lambda: f"{self.f(m)}.unsqueeze(0).expand([{n}, {m}])",
            lambda: f"{self.f(n)}.unsqueeze(1).expand([{n}, {m}])",
            lambda: f"F.stack([{', '.join(self.f(m) for _ in range(n))}])",
            lambda: f"F.stack([{', '.join(self.f(n) for _ in range(m))}], 1)",
            lambda: f"backwards({self.f(n, m)})",
            lambda: f"F.concat([{self.f(n, m)}, {self.f(n, 2)}], 1)[:, :{m}]",
            lambda: f"F.concat([{self.f(n, m)}, {self.f(n, m)}], 1)[:, ::2]",
            lambda: f"{self.f(n, m)}.flip([0, 1])",
        )
        if self.pick(3) == 0:
            return self.let(kind, self.one_of(views)())
        if self.pick(4) == 0:
            return self.let(kind, self.plain(kind), is_own=True)
        options = [
            lambda: f"planes({self.f(n, m)}, {self.f(n, m)})",
            lambda: f"spread({self.f(n)}, {self.f(m)})",
            lambda: f"relaxed({self.f(n, m)})",
        ]
        if m == 3:
            options += [lambda: f"turned({self.f(n, 3)}, {self.f(3)})"] * 2
        return self.let(kind, f"K.{self.one_of(options)()}", is_own=True)

    # Special parts

    def hooked(self, kind: Type) -> str:
        return self.let(kind, f"hooked({self.want(kind)})")

    def detached(self, kind: Type) -> str:
        return self.let(kind, f"{self.want(kind)}.detach()")

    def changed(self, kind: Type) -> str:
        """Change what nothing else has read: an operation's result, or a copy."""
        mine = [v for v in self.scope if v.type == kind and v.is_own]
        by = self.want(kind)
        mine = [v for v in mine if v.is_own]
        if mine and self.pick(2):
            name = self.one_of(mine).name
        else:
            name = self.let(kind, f"{self.want(kind)}.clone()", is_own=True)
        options = [f"{name}.add_({by})", f"scale_({name}, 0.5)", f"{name}.multiply_({by})", f"F.tanh_({name})"]
        if kind[1]:
            options += [f"{name}[0] = 0.5", f"{name}[{self.one_of(('::2', '1:', '-1'))}] = {self.f()}"]
            options += [f"scale_({name}[0], 3.0)"]
        self.emit(self.one_of(options))
        return name

    def without_gradients(self, kind: Type) -> str:
        if len(kind[1]) == 1 and self.pick(2):
            given = self.want(kind)
            name = self.let(kind, f"{self.want(kind)}.detach().clone()")
            self.emit("with F.no_grad():")
            self.emit(f"    K.add_square({given}, {name})")
            return name
        self.emit("with F.no_grad():")
        self.level += 1
        before = len(self.scope)
        name = self.want(kind, fresh=True)
        del self.scope[before:]
        self.level -= 1
        self.scope.append(Var(name, kind))
        return name

    def layer(self, kind: Type) -> str:
        """Write a function whose gradients a layer of the user's computes."""
        given = [self.want(self.one_of([("f", (self.size(),)), kind])) for _ in range(1 + self.pick(2))]
        given = list(dict.fromkeys(given))
        known = {v.name: v.type for v in self.scope}
        outer, name = self.scope, self.name("g")
        names = [self.name("a") for _ in given]
        self.scope = [Var(inner, known[one]) for inner, one in zip(names, given, strict=True)]
        self.emit(f"def {name}({', '.join(names)}):")
        self.level += 1
        made = self.want(kind, fresh=True)
        # A layer may not return what it is given.
        self.emit(f"return 1.0 * {made}")
        self.level -= 1
        self.scope = outer
        return self.let(kind, f"{self.one_of(self.framework.layers)}({name})({', '.join(given)})")

    def program(self, name: str) -> Program:
        """Return a program of one to four arguments that returns one to three values."""
        shapes = [(), (self.size(),), (self.size(),), (self.size(), self.size())]
        arguments: list[Type] = [("f", self.one_of(shapes[1:]))]
        arguments += [(self.one_of("fffib"), self.one_of(shapes)) for _ in range(self.pick(4))]
        names = [f"given{k}" for k in range(len(arguments))]
        self.scope += [Var(one, kind) for one, kind in zip(names, arguments, strict=True)]
        wanted = [("f", self.one_of(shapes)) for _ in range(1 + self.pick(3))]
        made = [self.want(kind, fresh=True) for kind in wanted]
        others = [v.name for v in self.scope if v.type[0] == "w"]
        self.emit(f"return {', '.join(dict.fromkeys([*made, *others]))},")
        head = f"def generated({', '.join(names)}):"
        return Program("\n".join([head, *self.lines]) + "\n", tuple(arguments), self.real, name, self.framework)


@functools.cache
def weights(shape: tuple[int, ...]) -> Any:
    """Return the numbers by which a result's elements count in a loss."""
    return np.cos(np.arange(int(np.prod(shape)))).reshape(shape)


def is_close(one: Any, other: Any, tolerance: float) -> bool:
    if one is None or other is None:
        # Of what nothing depends on a layer says zero, and a framework's own operations say nothing.
        return all(r is None or not r.any() for r in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.abs(one.astype(float) - other).max(initial=0) <= tolerance * (1 + np.abs(other).max(initial=0)))


def are_close(one: Sequence[Any], other: Sequence[Any], tolerance: float) -> bool:
    return len(one) == len(other) and all(is_close(a, b, tolerance) for a, b in zip(one, other, strict=True))


def is_comparable(results: Sequence[Any], real: str) -> bool:
    return all(r is None or (np.isfinite(r).all() and np.abs(r).max(initial=0) < LARGE[real]) for r in results)
