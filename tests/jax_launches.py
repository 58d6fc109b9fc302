"""Random functions that launch kernels on arrays and views of them, for `jax_callable`, and their twins in jax.numpy.

The text of a function runs with numbridge's arrays, as they are traced, and with arrays of the twin: a view of these is the
places of its elements in the array that it is a view of, so that whatever NumPy does to these places is a view.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

import numbridge as nb
from jax_kernels import Twins


class Held:
    """An array of the twin: a flat value, and where in it the elements lie."""

    def __init__(self, root, places):
        self.root, self.places = root, places

    @classmethod
    def of(cls, value):
        value = jnp.asarray(value)
        return cls([value.reshape(-1)], np.arange(value.size).reshape(value.shape))

    @property
    def value(self):
        return self.root[0][self.places]

    @property
    def shape(self):
        return self.places.shape

    def set(self, value):
        held = self.root[0]
        self.root[0] = held.at[self.places.reshape(-1)].set(
            jnp.broadcast_to(jnp.asarray(value, held.dtype), self.shape).reshape(-1)
        )
        return self

    def __getitem__(self, key):
        return Held(self.root, np.asarray(self.places[key]))

    def __iter__(self):
        return (self[k] for k in range(len(self.places)))

    def __setitem__(self, key, value):
        self[key].set(value.value if isinstance(value, Held) else value)

    def __jax_array__(self):
        return self.value

    def reshape(self, *shape):
        return Held(self.root, self.places.reshape(*shape))

    def flatten(self):
        return self.reshape(-1)

    def transpose(self, *axes):
        return Held(self.root, self.places.transpose(*axes))

    @property
    def T(self):  # noqa: N802
        return self.transpose()

    def fill_(self, value):
        return self.set(value.value if isinstance(value, Held) else value)

    def zero_(self):
        return self.set(0)

    def assign(self, value):
        return self.fill_(value)

    def clone(self):
        return Held.of(self.value)

    __copy__ = clone


def stencil(x, out):
    return (out if x.shape[0] < 3 else out.at[1:-1].set(x[:-2] - 0.5 * x[1:-1] * x[2:]),)


TWINS = Twins()
# Of each kernel: a letter for each parameter, capital for those that it writes, and what these are then
FORMS = {
    "product": ("vvV", lambda x, y, o: TWINS.product(x, y)),
    "scaled": ("vsV", lambda x, s, o: TWINS.scaled(x, s)),
    "pair": ("vvVV", lambda x, y, p, q: TWINS.pair(x, y)),
    "changed": ("vV", TWINS.changed),
    "changed_and_more": ("vVV", lambda x, y, o: TWINS.changed_and_more(x, y)),
    "total": ("vV", lambda x, o: (o.at[:1].add(TWINS.total(x)[0]),)),
    "stencil": ("vV", stencil),
    "wrapped": ("vvV", lambda x, y, o: TWINS.wrapped(x, y)),
    "running": ("vV", lambda x, o: (o + TWINS.running(x)[0],)),
    "linear": ("vvV", lambda x, y, o: TWINS.linear(x, y)),
    "slopes": ("vV", lambda x, o: TWINS.slopes(x)),
    "halved": ("vvV", lambda x, y, o: TWINS.halved(x, y)),
    "untouched": ("vVV", TWINS.untouched),
    "power": ("vkV", lambda x, n, o: TWINS.power(x, n)),
    "gathered": ("ivV", lambda i, x, o: TWINS.gathered(i, x)),
    "scattered": ("viV", lambda x, i, o: (o.at[i % o.shape[0]].add(0.5 * x * x),)),
    "row_sums": ("mV", lambda x, o: (o + TWINS.row_sums(x)[0],)),
    "matvec": ("mwV", lambda a, x, o: (o + TWINS.matvec(a, x)[0],)),
    "turned": ("tM", lambda x, o: TWINS.turned(x)),
    "plane": ("mmM", lambda x, y, o: TWINS.plane(x, y)),
    "spread": ("vwM", lambda x, y, o: TWINS.spread(x, y)),
    "recurrence": ("mM", lambda x, o: TWINS.recurrence(x)),
}


POINTWISE = ("product", "pair", "changed", "linear", "slopes", "halved", "scaled")


def twin_of_numbridge():
    """Return what stands for numbridge and its kernels in the twin."""

    def launch(name, dim, arguments):
        parameters, function = FORMS[name]
        values = [a.value if isinstance(a, Held) else a for a in arguments]
        if isinstance(dim, int) and name in POINTWISE:
            values = [a[:dim] if isinstance(a, jnp.ndarray) and a.ndim else a for a in values]
            arguments = [a[:dim] if isinstance(a, Held) and a.shape else a for a in arguments]
        written = [a for a, letter in zip(arguments, parameters, strict=True) if letter.isupper()]
        for target, value in zip(written, function(*values), strict=True):
            target.set(value)

    def assign(made, given):
        made.assign(given)

    fake = SimpleNamespace(
        launch=launch,
        copy=assign,
        zeros=lambda shape, dtype: Held.of(jnp.zeros(shape, dtype)),
        full=lambda shape, value, dtype: Held.of(jnp.full(shape, value, dtype)),
        clone=lambda a: a.clone(),
        zeros_like=lambda a: Held.of(jnp.zeros(a.shape, a.value.dtype)),
        array=lambda a: a.clone(),
    )
    return fake, SimpleNamespace(**{name: name for name in FORMS})


SHAPES = {"x": (4,), "y": (3,), "m": (4, 3), "c": (3, 2, 4), "index": (4,)}
OUTPUTS = {"out": (4, 4), "last": (3,)}
# Inputs that a function may change
IN_OUT = "x", "y", "m"


@dataclass
class Function:
    """A function's text, which of its inputs it changes, and whether a launch reads what another of its threads may write."""

    text: str
    in_out: list[str]
    is_aliased: bool

    def made(self, **names: Any) -> Any:
        annotations = {
            name: nb.array(dtype=np.float64, ndim=k) for k, name in enumerate(("Vector", "Matrix", "Cube"), 1)
        }
        annotations["Index"] = nb.array(dtype=np.int32)
        exec(self.text, {**annotations, "D": np.float64, "jnp": jnp, "copy": copy, **names}, declared := {})
        return declared["generated"]

    def values(self, seed: int) -> list[Any]:
        random = np.random.default_rng(seed)
        made = [random.uniform(-1, 1.2, shape) for shape in list(SHAPES.values())[:-1]]
        integers = random.integers(0, 9, 4).astype(np.int32), np.asarray(random.uniform(-1, 1))
        return [*made, *integers, np.asarray(random.integers(0, 4), np.int32)]


def of_numbridge(function: Function, kernels: Any, mode: nb.GraphMode, options: dict[str, Any]) -> Any:
    """Return a function as one of JAX."""
    count = len(OUTPUTS) + len(function.in_out)
    options = {"output_dims": OUTPUTS, "in_out_argnames": function.in_out, **options}
    made = function.made(nb=nb, kernels=SimpleNamespace(**kernels.raw))
    return nb.jax_callable(made, count, mode, **options)


def of_the_twin(function: Function) -> Any:
    """Return the same in jax.numpy."""
    fake, names = twin_of_numbridge()
    generated = function.made(nb=fake, kernels=names)

    def run(x, y, m, c, index, s, k):
        held = {"x": Held.of(x), "y": Held.of(y), "m": Held.of(m)}
        out, last = (Held.of(jnp.zeros(shape)) for shape in OUTPUTS.values())
        generated(*held.values(), Held.of(c), index, s, k, out, last)
        return (*(held[name].value for name in IN_OUT if name in function.in_out), out.value, last.value)

    return run


@dataclass
class LaunchWriter:
    """Writes one function; `pick(n)` is the next choice, below `n`."""

    pick: Callable[[int], int]
    lines: list[str] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)
    writable: list[str] = field(default_factory=list)
    is_aliased: bool = False

    def one_of(self, things: Any) -> Any:
        return things[self.pick(len(things))]

    def value(self, text: str) -> Any:
        # NumPy's copies
        return eval(text.replace("flatten", "ravel"), {"nb": None}, self.arrays)

    def size(self) -> int:
        return self.one_of((4, 3, 4, 2))

    def shape_of(self, text: str) -> tuple[int, ...]:
        return self.value(text).shape

    def view(self, *shape: int, writes: bool = False) -> str | None:
        """Return a view of a shape, found by trying."""
        names = [n for n in self.arrays if n != "index" and (not writes or n in self.writable)]
        for _ in range(60):
            text = self.one_of(names)
            for _ in range(self.pick(4)):
                text = self.step(text)
            # Overlapping views do not come about; empty ones are left out.
            if self.shape_of(text) == shape:
                return text
        return None

    def step(self, text: str) -> str:
        shape = self.shape_of(text)
        if not shape:
            return text
        kinds = ["span", "span", "number", "turn"] + ["T", "ravel", "column", "swap"] * (len(shape) > 1) + ["new"]
        match self.one_of(kinds):
            case "span":
                n = shape[0]
                spans = [
                    "1:",
                    ":-1",
                    "::2",
                    "::-1",
                    "::-2",
                    f"{self.pick(n + 1)}:",
                    f":{self.pick(n + 1)}",
                    "-2:",
                    "1:3",
                ]
                return f"{text}[{self.one_of(spans)}]"
            case "number" if shape[0]:
                return f"{text}[{self.pick(2 * shape[0]) - shape[0]}]"
            case "T":
                return f"{text}.T"
            case "swap":
                axes = list(range(len(shape)))
                axes = axes[1:] + axes[:1]
                return f"{text}.transpose({', '.join(map(str, axes))})"
            case "ravel" if self.value(text).flags.c_contiguous:
                return f"{text}.{self.one_of(('reshape(-1)', 'flatten()'))}" if "flatten" else text
            case "column" if shape[-1]:
                return f"{text}[..., {self.pick(shape[-1])}]"
            case "turn":
                return f"{text}[..., ::-1]"
            case "new":
                return f"{text}[None]"
        return text

    def launch(self) -> bool:
        name, (parameters, _) = self.one_of(list(FORMS.items()))
        v, w = self.size(), self.size()
        shapes = {"v": (v,), "w": (w,), "m": (v, w), "t": (w, v)}
        given = []
        for letter in parameters:
            if letter.lower() in shapes:
                made = self.view(*shapes[letter.lower()], writes=letter.isupper())
                if made is None:
                    return False
                given.append(made)
            else:
                given.append({"s": self.one_of(("s", "0.4", "s")), "k": self.one_of(("2", "k")), "i": "index"}[letter])
        if "i" in parameters and v != 4:
            return False
        written = [a for a, letter in zip(given, parameters, strict=True) if letter.isupper()]
        roots = [a.split("[")[0].split(".")[0] for a in written]
        if len(set(roots)) < len(roots):
            return False
        read = [a for a, letter in zip(given, parameters, strict=True) if letter in "vwmt"]
        self.is_aliased |= any(np.shares_memory(self.value(a), self.value(b)) for a in written for b in read)
        dim = f"({v}, {w})" if name in ("row_sums", "plane", "spread", "turned") else w if name == "recurrence" else v
        if name in POINTWISE and v > 1 and self.pick(4) == 0:
            dim = v - 1
        self.lines.append(f"nb.launch(kernels.{name}, {dim}, [{', '.join(given)}])")
        return True

    def expression(self, text: str) -> str:
        return self.one_of(
            ("jnp.sin(jnp.asarray({}))", "0.5 * jnp.asarray({})", "jnp.cos(jnp.asarray({}))", "{}")
        ).format(text)

    def shape(self) -> tuple[int, ...]:
        n, k = self.size(), self.size()
        return self.one_of(((n,), (n,), (n, k), ()))

    def statement(self) -> bool:
        kind = self.pick(14)
        if kind < 8:
            return self.launch()
        shape = self.shape()
        name = f"t{len(self.arrays)}"
        if kind == 8:
            self.lines.append(
                f"{name} = nb.{self.one_of(('zeros({}, dtype=D)', 'full({}, 0.4, dtype=D)')).format(shape)}"
            )
            self.arrays[name] = np.zeros(shape)
            self.writable.append(name)
            return True
        given = self.view(*shape)
        if given is None:
            return False
        if kind == 9:
            copies = ("nb.clone({})", "{}.clone()", "nb.zeros_like({})", "nb.array({})", "copy({})")
            self.lines.append(f"{name} = {self.one_of(copies).format(given)}")
            self.arrays[name] = np.zeros(shape)
            self.writable.append(name)
            return True
        if kind == 10 and len(shape) and shape[0] == 4:
            # Held, and seen later
            self.lines.append(f"{name} = {given}")
            self.arrays[name] = self.value(given)
            return True
        made = self.view(*shape, writes=True)
        if made is None:
            return False
        ways = (
            "{made}[...] = {expression}",
            "{made}.fill_({number})",
            "{made}.zero_()",
            "{made}.assign({given})",
            "nb.copy({made}, {given})",
            "{made}[...] = {given}",
        )
        number = self.one_of(("s", "0.3", "1"))
        line = self.one_of(ways).format(made=made, given=given, expression=self.expression(given), number=number)
        self.lines.append(line)
        return True

    def function(self) -> Function:
        """Return a function."""
        self.arrays = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        in_out = [name for name in IN_OUT if self.pick(3) == 0]
        self.arrays |= {name: np.zeros(shape) for name, shape in OUTPUTS.items()}
        self.writable = [*in_out, *OUTPUTS]
        for _ in range(2 + self.pick(8)):
            while not self.statement():
                pass
        head = "def generated(x: Vector, y: Vector, m: Matrix, c: Cube, index: Index, s: D, k: int, out: Matrix, last: Vector):"
        return Function("\n    ".join([head, *self.lines]) + "\n", in_out, self.is_aliased)
