"""Random programs of JAX whose operations are kernels, nested in transformations; each runs with the kernels or with their twins.

A program is text, made of a stream of choices: a function ``generated(K, given0, given1, ...)``, where `K` has the functions of
`jax_kernels`, and a use of it, such as its gradient by some arguments. Values of wanted types are made by kernels, by operations
of jax.numpy, and by transformations of functions that are made in the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from jax_kernels import as_records, fields

# What JAX raises where it does not have a combination of transformations itself
SKIPPED = TypeError, ValueError, NotImplementedError, AttributeError, ZeroDivisionError, jax.errors.JaxRuntimeError

# A letter for what a value has (f floating-point numbers, c complex ones, i integers, b truth values), and its shape
Type = tuple[str, tuple[int, ...]]


def own_vjp(f):
    """Return a function with a rule of the user's, that of JAX."""
    made = jax.custom_vjp(f)
    made.defvjp(lambda *a: (f(*a), a), lambda a, cotangent: jax.vjp(f, *a)[1](cotangent))
    return made


def own_jvp(f):
    made = jax.custom_jvp(f)
    made.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return made


def saved_by_name(f):
    return jax.checkpoint(f, policy=jax.checkpoint_policies.save_only_these_names("kept"))


def saved_dots(f):
    return jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)


@functools.cache
def mesh():
    """Return the mesh of all programs: JAX has one for each program with operations that partition themselves."""
    return jax.make_mesh((4,), ("d",), devices=jax.devices("cpu")[:4], axis_types=(jax.sharding.AxisType.Auto,))


def sharded(f, inside, outside):
    return jax.shard_map(f, mesh=mesh(), in_specs=inside, out_specs=outside)


def noted(x):
    jax.debug.callback(lambda value: None, x)
    return x


def signs(x, method):
    """Return integers that Python computes; its thread may not know of 64 bits."""
    kind = jax.ShapeDtypeStruct(x.shape, np.int32)
    x = jax.lax.stop_gradient(x)
    # JAX's partitioner takes no operand that comes straight from a callback.
    return 1 - jax.pure_callback(lambda x: (np.asarray(x) > 0.1).astype(np.int32), kind, x, vmap_method=method)


def as_tree(f):
    """Return a function whose arguments go through `jax.jit` as a tree."""
    inner = jax.jit(lambda tree: f(*tree["given"]))
    return lambda *a: inner({"given": list(a), "none": None})


def as_jaxpr(f):
    """Return a function that is traced, and evaluated by its jaxpr."""

    def run(*a):
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*a)
        out = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves(a))
        return jax.tree.unflatten(jax.tree.structure(shape), out)

    return run


NAMES = {
    "jax": jax,
    "jnp": jnp,
    "np": np,
    "P": P,
    "own_vjp": own_vjp,
    "own_jvp": own_jvp,
    "saved_by_name": saved_by_name,
    "saved_dots": saved_dots,
    "sharded": sharded,
    "noted": noted,
    "signs": signs,
    "as_records": as_records,
    "fields": fields,
    "as_tree": as_tree,
    "as_jaxpr": as_jaxpr,
    "checkpoint_name": checkpoint_name,
}


USES = ("call", "jit", "grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "vmap", "compiled", "export", "donate")
USES += (
    "exported_vjp",
    "sharded",
    "sharded_grad",
    "pmap",
    "disable_jit",
    "threads",
    "jaxpr",
    "grad_of_jit",
    "remat",
    "grad_some",
    "vmap_grad",
    "scan",
    "reshaped",
    "shard_map",
)
ON_DEVICES = "sharded", "sharded_grad", "pmap", "shard_map"
REVERSE = (
    "grad",
    "vjp",
    "jacrev",
    "exported_vjp",
    "sharded_grad",
    "grad_of_jit",
    "remat",
    "grad_some",
    "hessian",
    "vmap_grad",
    "scan",
)
FORWARD = "jvp", "jacfwd", "hessian"


@dataclass
class Program:
    """A program: its text, the types of its arguments, and how it is used."""

    text: str
    arguments: tuple[Type, ...]
    use: str
    float_type: Any

    def function(self, kernels: Any) -> Callable[..., Any]:
        """Return the function of the arguments, with these kernels."""
        exec(self.text, {**NAMES, "D": self.float_type}, declared := {})
        return functools.partial(declared["generated"], kernels)

    def values(self, seed: int) -> list[Any]:
        random = np.random.default_rng(seed)
        return [self._value(random, *kind) for kind in self.arguments]

    def _value(self, random: Any, kind: str, shape: tuple[int, ...]) -> Any:
        real = random.uniform(-1.1, 1.3, shape)
        match kind:
            case "f":
                return np.asarray(real, self.float_type)
            case "c":
                wide = np.complex64 if self.float_type == np.float32 else np.complex128
                return np.asarray(real + 1j * random.uniform(-1, 1, shape), wide)
            case "i":
                return np.asarray(random.integers(0, 9, shape), np.int32)
        return np.asarray(real > 0)

    def __str__(self) -> str:
        return f"# arguments: {self.arguments}, {np.dtype(self.float_type)}; use: {self.use}\n{self.text}"


@dataclass
class Var:
    name: str
    type: Type
    level: int


@dataclass
class JaxWriter:
    """Writes one program; `pick(n)` is the next choice, below `n`."""

    pick: Callable[[int], int]
    float_type: Any = np.float64
    depth: int = 3
    budget: int = 12
    sizes: tuple[int, ...] = (4, 3)
    devices: int = 1
    lines: list[str] = field(default_factory=list)
    scope: list[Var] = field(default_factory=list)
    level: int = 1
    count: int = 0
    # Transformations around what is written now
    contexts: list[str] = field(default_factory=list)
    axes: list[str] = field(default_factory=list)

    def one_of(self, things: Any) -> Any:
        return things[self.pick(len(things))]

    def size(self) -> int:
        return self.one_of((*self.sizes, self.sizes[0]))

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.level + line)

    def let(self, kind: Type, text: str) -> str:
        name = self.name(kind[0] if kind[0] != "f" else "xyzuvw"[self.pick(6)])
        self.emit(f"{name} = {text}")
        self.scope.append(Var(name, kind, self.level))
        return name

    # Values of wanted types

    def f(self, *shape: int) -> str:
        return self.want(("f", shape))

    def i(self, *shape: int) -> str:
        return self.want(("i", shape))

    def want(self, kind: Type, *, fresh: bool = False) -> str:
        """Return the name of a value of a type."""
        found = [v for v in self.scope if v.type == kind]
        inner = [v for v in found if v.level == self.level] or found
        if inner and not fresh and (self.pick(3) or self.budget <= 0):
            return self.one_of(inner if self.pick(3) else found).name
        if self.budget <= 0:
            return self.let(kind, self.fallback(kind))
        self.budget -= 1
        if kind[0] == "i":
            return self.integers(kind)
        if kind[0] == "b":
            return self.let(kind, f"{self.f(*kind[1])} > {self.one_of(('0.0', '0.2'))}")
        if kind[0] == "c" and self.pick(2):
            return self.complex_numbers(kind)
        if self.depth > 0 and self.pick(5) < 3:
            made = self.transformed(kind)
            if made is not None:
                return made
        if kind[0] == "c":
            return self.complex_numbers(kind)
        for _ in range(6):
            made = self.kernel(kind) if self.pick(4) else self.plain(kind)
            if made is not None:
                return made
        return self.plain(kind)

    def fallback(self, kind: Type) -> str:
        letter, shape = kind
        text = f"jnp.arange({int(np.prod(shape))}).reshape({shape})"
        if letter == "i":
            return f"({text} * 5 % 7).astype(jnp.int32)"
        if letter == "b":
            return f"{text} % 3 == 0"
        if letter == "c":
            return f"jnp.exp({text} * 1j).astype(jnp.result_type(D, 'complex64'))"
        floats = [v for v in self.scope if v.type[0] == "f"]
        mine = [v for v in floats if v.level == self.level] or floats
        if not mine or self.pick(6) == 0:
            return f"jnp.cos({text}.astype(D))"
        return f"jnp.broadcast_to(jnp.sum(jnp.sin({self.one_of(mine).name})), {shape})"

    def integers(self, kind: Type) -> str:
        shape = kind[1]
        if len(shape) == 1 and self.pick(3) == 0:
            made = self.name("p"), self.name("i")
            self.emit(f"{made[0]}, {made[1]} = K.divided({self.f(*shape)}{self.options()})")
            self.scope += [Var(made[0], ("f", shape), self.level), Var(made[1], kind, self.level)]
            return made[1]
        if len(shape) == 1 and self.pick(2):
            return self.whole(*shape)
        if self.pick(2):
            ways = "jnp.floor(3 * {}).astype(jnp.int32)", "signs({}, 'sequential')", "signs({}, 'expand_dims')"
            return self.let(kind, self.one_of(ways).format(self.f(*shape)))
        return self.let(kind, self.fallback(kind))

    def integer_type(self) -> str:
        """Return a type of integers; there are 64 bits in programs of float64 only."""
        names = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]
        return self.one_of(names + ["int64", "uint64"] * (self.float_type == np.float64))

    def whole(self, n: int) -> str:
        kind, name = ("i", (n,)), self.integer_type()
        if self.pick(3) == 0:
            # There is no derivative by bytes.
            by = f"jax.lax.stop_gradient({self.f(n)})"
            text = f"K.moved_records({by}, as_records({self.f(n)}, {self.i(n)}){self.options()})"
            return self.let(kind, self.one_of((f"{text}[1]", f"fields({text}[0])[1]")))
        if n == 2 or self.pick(4) == 0:
            k, wide = self.size(), name if "8" not in name and "16" not in name else "int32"
            two = f"K.whole_sums({self.i(k)}.astype('{wide}'), {self.i(k)}.astype('{wide}'){self.options()})[0]"
            return self.let(kind, f"jnp.resize({two}, {n}).astype(jnp.int32)")
        options = self.options(pointwise=True)
        pair = f"{self.i(n)}.astype('{name}'), {self.i(n)}.astype('{name}')"
        return self.let(kind, f"K.whole_numbers({pair}{options})[0].astype(jnp.int32)")

    def complex_numbers(self, kind: Type) -> str:
        shape = kind[1]
        if len(shape) == 1 and self.pick(2):
            if self.pick(4) == 0:
                return self.let(kind, f"K.turning({self.f(*shape)}{self.options()})[0]")
            if self.pick(3) == 0:
                number = f"jax.lax.stop_gradient({self.want(('c', ()))})" if self.pick(2) else "0.3 - 0.2j"
                text = f"K.complex_changed({self.want(kind)}, {number}, {self.want(kind)}{self.options()})[0]"
                return self.let(kind, text)
            return self.let(kind, f"K.complex_product({self.want(kind)}, {self.want(kind)}{self.options()})[0]")
        wide = "complex64" if self.float_type == np.float32 else "complex128"
        return self.let(kind, f"jax.lax.complex({self.f(*shape)}, {self.f(*shape)}).astype('{wide}')")

    def plain(self, kind: Type) -> str:
        """Return a value that operations of JAX have made."""
        shape = kind[1]
        choice = self.pick(9)
        if choice == 0 and len(shape) == 2:
            return self.let(kind, f"{self.f(*shape[::-1])}.T")
        if choice == 1 and shape:
            return self.let(kind, f"jnp.flip({self.f(*shape)}, {self.pick(len(shape))})")
        if choice == 2 and self.is_wide():
            c = self.want(("c", shape))
            return self.let(kind, f"{c}.{self.one_of(('real', 'imag'))}")
        if choice == 3:
            return self.let(kind, f"jnp.sum({self.f(self.size(), *shape)}, 0)")
        if choice == 4 and self.axes:
            return self.let(kind, f"jax.lax.psum({self.f(*shape)}, '{self.one_of(self.axes)}') * 0.3")
        if choice == 5:
            return self.let(kind, f"noted({self.f(*shape)})")
        if choice == 6:
            return self.let(kind, f"checkpoint_name({self.f(*shape)}, 'kept')")
        if choice == 7:
            return self.let(kind, f"jax.lax.stop_gradient({self.f(*shape)}) * {self.f(*shape)}")
        return self.let(kind, f"{self.one_of(('jnp.sin', 'jnp.tanh', '0.5 *'))}({self.f(*shape)}) + {self.f(*shape)}")

    def is_wide(self) -> bool:
        """Tell whether there are atomic additions, complex numbers, gradients of vectors and fused kernels of these floats."""
        return self.float_type in (np.float32, np.float64)

    # Kernels

    def options(self, pointwise: bool = False) -> str:
        made = ""
        if self.pick(4) == 0:
            methods = ("broadcast_all", "expand_dims", "sequential", "sequential_unrolled")
            made += f", vmap_method='{self.one_of(methods)}'"
        if pointwise and self.is_wide() and self.pick(2):
            made += f", fuse={self.one_of((True, False))}"
        return made

    def number(self) -> str:
        """Return a number for a floating parameter: a value, or one that is known."""
        return self.one_of(("0.7", "np.float32(0.5)", "1", "np.float64(0.3)")) if self.pick(3) == 0 else self.f()

    def several(self, text: str, *kinds: Type, pick: int) -> str:
        """Return one of several results; the others may be used later."""
        if self.pick(3) == 0:
            return self.let(kinds[pick], f"{text}[{pick}]")
        names = [self.name("r") for _ in kinds]
        self.emit(f"{', '.join(names)} = {text}")
        self.scope += [Var(n, k, self.level) for n, k in zip(names, kinds, strict=True)]
        return names[pick]

    def kernel(self, kind: Type) -> str | None:
        shape = kind[1]
        match len(shape):
            case 0 if self.is_wide():
                return self.let(kind, f"K.total({self.f(self.size())}{self.options()})[0][0]")
            case 1:
                return self.vector(*shape)
            case 2:
                return self.matrix(*shape)
            case 3:
                a, b, c = shape
                return self.let(kind, f"K.cube({self.f(a, b, c)}, {self.f(a, c)}{self.options()})[0]")
        return None

    def vector(self, n: int) -> str | None:
        kind, o = ("f", (n,)), self.options()
        fused = self.options(True)
        match self.pick(32):
            case 0 | 1:
                return self.let(kind, f"K.product({self.f(n)}, {self.f(n)}{fused})[0]")
            case 2 | 3:
                return self.let(kind, f"K.scaled({self.f(n)}, {self.number()}{o})[0]")
            case 4 | 5:
                return self.several(f"K.pair({self.f(n)}, {self.f(n)}{fused})", kind, kind, pick=self.pick(2))
            case 6 | 7:
                return self.let(kind, f"K.changed({self.f(n)}, {self.f(n)}{fused})[0]")
            case 8:
                text = f"K.changed_and_more({self.f(n)}, {self.f(n)}{o})"
                return self.several(text, kind, kind, pick=self.pick(2))
            case 9 if self.is_wide():
                return self.let(kind, f"K.row_sums({self.f(n, self.size())}{o})[0]")
            case 10:
                return self.let(kind, f"K.stencil({self.f(n)}{o})[0]")
            case 11:
                return self.let(kind, f"K.wrapped({self.f(n)}, {self.f(n)}{o})[0]") if n else None
            case 12:
                return self.let(kind, f"K.gathered({self.i(n)}, {self.f(self.size() or 1)}{o})[0]")
            case 13 if n == 3 and self.is_wide():
                k = self.size()
                return self.let(kind, f"K.scattered({self.f(k)}, {self.i(k)}{o})[0]")
            case 14:
                return self.let(kind, f"K.running({self.f(n)}{o})[0]")
            case 15:
                k = self.size()
                return self.let(kind, f"K.matvec({self.f(n, k)}, {self.f(k)}{o})[0]")
            case 16 if self.is_wide():
                return self.let(kind, f"K.lengths({self.f(n, 3)}{o})[0]")
            case 17 | 18:
                n_times = self.i() if self.pick(2) else str(self.pick(4))
                return self.let(kind, f"K.power({self.f(n)}, {n_times}{o})[0]")
            case 19:
                return self.let(kind, f"K.divided({self.f(n)}{fused})[0]")
            case 20:
                return self.let(kind, f"K.masked({self.want(('b', (n,)))}, {self.f(n)}, {self.f(n)}{fused})[0]")
            case 21 if n == 4:
                return self.let(kind, f"K.filled({self.f()}, {self.i()}{o})[0]")
            case 22 if self.float_type == np.float64:
                narrow = f"{self.f(n)}.astype('float32')" if self.pick(2) else f"K.narrowed({self.f(n)})[0]"
                return self.let(kind, f"K.widened({narrow}, {self.f(n)}{fused})[0]")
            case 23:
                return self.let(kind, f"K.slopes({self.f(n)}{o})[0]")
            case 24:
                return self.let(kind, f"K.linear({self.f(n)}, {self.f(n)}{fused})[0]")
            case 25:
                return self.let(kind, f"K.halved({self.f(n)}, {self.f(n)}{o})[0]")
            case 26 if n:
                return self.let(kind, f"K.first_half({self.f(n - 1)}{o})[0]")
            case 27 if n:
                text = f"K.untouched({self.f(n)}, {self.f(n)}, {self.f(n)}{o})"
                return self.several(text, kind, kind, pick=self.pick(2))
            case 28:
                which = self.one_of(("several", "several_replayed"))
                return self.several(f"K.{which}({self.f(n)}, {self.f(n)})", kind, kind, pick=self.pick(2))
            case 29:
                which = self.one_of(("several_in_place", "several_in_place_replayed"))
                return self.let(kind, f"K.{which}({self.f(n)}, {self.number()}, {self.f(n)})[0]")
            case 30:
                weights = self.want((self.one_of("ib"), (n,)))
                name = self.one_of((self.integer_type(), self.integer_type(), "bool"))
                return self.let(kind, f"K.weighted({weights}.astype('{name}'), {self.f(n)}{o})[0]")
            case 31 if self.is_wide():
                return self.let(kind, f"K.complex_lengths({self.want(('c', (n,)))}{o})[0]")
        return None

    def matrix(self, n: int, k: int) -> str | None:
        kind, o = ("f", (n, k)), self.options()
        match self.pick(9):
            case 0:
                return self.let(kind, f"K.plane({self.f(n, k)}, {self.f(n, k)}{self.options(True)})[0]")
            case 1:
                return self.let(kind, f"K.turned({self.f(k, n)}{o})[0]")
            case 2:
                return self.let(kind, f"K.spread({self.f(n)}, {self.f(k)}{o})[0]")
            case 3:
                m = self.size()
                return self.let(kind, f"K.matmul({self.f(n, m)}, {self.f(m, k)}{o})[0]")
            case 4 if n:
                return self.let(kind, f"K.recurrence({self.f(n, k)}{o})[0]")
            case 5 if k == 3 and self.is_wide():
                return self.let(kind, f"K.crossed({self.f(n, k)}, {self.f(n, k)}{o})[0]")
            case 6 if k == 3 and self.is_wide():
                return self.let(kind, f"K.shifted({self.f(n, k)}, {self.f(k)}{o})[0]")
            case 7 if k == 3 and self.is_wide():
                return self.let(kind, f"K.rotated({self.f(n, k, k)}, {self.f(n, k)}{o})[0]")
        return None

    # Functions

    def define(self, arguments: list[Type], results: list[Type], context: str = "", *, closed: bool = False) -> str:
        """Write a function within this one; return its name."""
        name = self.name("f")
        names = [self.name("ab"[self.pick(2)]) for _ in arguments]
        self.emit(f"def {name}({', '.join(names)}):")
        before = self.scope
        self.level, self.depth = self.level + 1, self.depth - 1
        self.scope = ([] if closed else list(before)) + [
            Var(n, kind, self.level) for n, kind in zip(names, arguments, strict=True)
        ]
        self.contexts.append(context)
        made = [self.want(kind, fresh=self.pick(6) > 0) for kind in results]
        self.contexts.pop()
        self.emit(f"return {', '.join(made)}")
        self.level, self.depth, self.scope = self.level - 1, self.depth + 1, before
        return name

    def some_types(self, least: int = 0) -> list[Type]:
        """Return types of further arguments."""
        made: list[Type] = []
        for _ in range(max(least, self.pick(3))):
            n, k = self.size(), self.size()
            kinds: list[Type] = [
                ("f", ()),
                ("f", (n,)),
                ("f", (n,)),
                ("f", (n, k)),
                ("i", (n,)),
                ("i", ()),
                ("b", (n,)),
            ]
            made.append(self.one_of(kinds))
        return made

    def known(self, *contexts: str) -> bool:
        return any(context in self.contexts for context in contexts)

    def wrapped(self, name: str) -> str:
        """Return a function, perhaps wrapped in what leaves its values alone."""
        ways = ["{}", "{}", "jax.jit({})", "jax.checkpoint({})", "saved_by_name({})", "saved_dots({})"]
        ways += ["as_tree({})", "as_jaxpr({})", "jax.jit({}, inline=True)", "jax.named_call({})"]
        ways += ["own_jvp({})"] + ([] if self.known("forward") else ["own_vjp({})"])
        return self.one_of(ways).format(name)

    def transformed(self, kind: Type) -> str | None:
        shape = kind[1]
        ways = [self.called, self.gradient, self.tangent, self.pulled, self.conditional, self.looped]
        if kind[0] == "c":
            return self.one_of([*ways, *[self.mapped, self.scanned, self.mapped_by_lax] * bool(shape)])(kind)
        if shape:
            ways += [self.mapped] * 3 + [self.scanned, self.mapped_by_lax]
            ways += [self.cut] if 4 in shape and self.devices >= 4 and not self.known("cut") else []
        if len(shape) >= 2 and 0 not in shape:
            ways += [self.jacobian] * 2
        if len(shape) == 2 and shape[0] == shape[1]:
            ways += [self.hessian]
        if len(shape) == 1:
            ways += [self.associative]
        return self.one_of(ways)(kind)

    def given(self, kinds: list[Type]) -> str:
        return ", ".join([self.want(kind) for kind in kinds])

    def called(self, kind: Type) -> str:
        # A rule of the user's closes over no tracers.
        kinds = self.some_types(1)
        name = self.define(kinds, [kind], closed=True)
        way = self.wrapped(name)
        return self.let(kind, f"{way}({self.given(kinds)})")

    def gradient(self, kind: Type) -> str:
        rest = self.some_types()
        place = self.pick(len(rest) + 1)
        kinds = [*rest[:place], kind, *rest[place:]]
        name = self.define(kinds, [("f", ())], "reverse")
        if self.pick(3) == 0:
            return self.let(kind, f"jax.value_and_grad({name}, argnums={place})({self.given(kinds)})[1]")
        return self.let(kind, f"jax.grad({name}, argnums={place})({self.given(kinds)})")

    def tangent(self, kind: Type) -> str:
        moved = [k for k in self.some_types(1) if k[0] == "f"] or [("f", (self.size(),))]
        name = self.define(moved, [kind], "forward")
        x, t = self.given(moved), self.given(moved)
        if self.pick(3) == 0:
            return self.let(kind, f"jax.linearize({name}, {x})[1]({t})")
        return self.let(kind, f"jax.jvp({name}, ({x},), ({t},))[{self.pick(2)}]")

    def pulled(self, kind: Type) -> str:
        rest = self.some_types()
        results: list[Type] = [k for k in self.some_types(1) if k[0] == "f"] or [("f", (self.size(),))]
        name = self.define([kind, *rest], results, "reverse")
        cotangents = self.given(results)
        cotangents = f"({cotangents})" if len(results) > 1 else cotangents
        if self.pick(4) == 0:
            others = [self.want(k) for k in rest]
            x = self.want(kind)
            text = f"lambda t: {name}({', '.join(['t', *others])})"
            return self.let(kind, f"jax.linear_transpose(jax.linearize({text}, {x})[1], {x})({cotangents})[0]")
        return self.let(kind, f"jax.vjp({name}, {self.given([kind, *rest])})[1]({cotangents})[0]")

    def jacobian(self, kind: Type) -> str | None:
        shape = kind[1]
        split = self.pick(len(shape) + 1)
        rest = self.some_types()
        is_reverse = self.pick(2)
        name = self.define(
            [("f", shape[split:]), *rest], [("f", shape[:split])], "reverse" if is_reverse else "forward"
        )
        which = "jacrev" if is_reverse else "jacfwd"
        return self.let(kind, f"jax.{which}({name})({self.given([('f', shape[split:]), *rest])})")

    def hessian(self, kind: Type) -> str:
        rest = self.some_types()
        self.contexts.append("forward")
        name = self.define([("f", kind[1][:1]), *rest], [("f", ())], "reverse")
        self.contexts.pop()
        way = self.one_of(("jax.hessian({})", "jax.jacfwd(jax.grad({}))", "jax.jacfwd(jax.jacrev({}))"))
        return self.let(kind, f"{way.format(name)}({self.given([('f', kind[1][:1]), *rest])})")

    def mapped(self, kind: Type) -> str:
        shape = kind[1]
        out = self.pick(len(shape))
        size = shape[out]
        inner = self.some_types(1)
        is_mapped = [k == 0 or self.pick(3) > 0 for k in range(len(inner))]
        axis = f"v{self.count}"
        is_named = self.pick(4) == 0
        self.axes += [axis] * is_named
        name = self.define(inner, [(kind[0], (*shape[:out], *shape[out + 1 :]))])
        if is_named:
            self.axes.pop()
        outer, axes = [], []
        for (letter, dims), mapped in zip(inner, is_mapped, strict=True):
            place = self.pick(len(dims) + 1)
            outer.append((letter, (*dims[:place], size, *dims[place:]) if mapped else dims))
            axes.append(place if mapped and self.pick(2) else place - len(dims) - 1 if mapped else None)
        text = f"jax.vmap({name}, in_axes={(*axes,)}, out_axes={out}{f', axis_name={axis!r}' * is_named})"
        text = f"jax.jit({text})" if self.pick(4) == 0 else text
        return self.let(kind, f"{text}({self.given(outer)})")

    def mapped_by_lax(self, kind: Type) -> str:
        shape = kind[1]
        inner = self.some_types(1)
        name = self.define(inner, [(kind[0], shape[1:])])
        outer: list[Type] = [(letter, (shape[0], *dims)) for letter, dims in inner]
        batch = self.one_of(("", "", ", batch_size=2"))
        return self.let(kind, f"jax.lax.map(lambda a: {name}(*a), ({self.given(outer)},){batch})")

    def scanned(self, kind: Type) -> str:
        shape = kind[1]
        carry: list[Type] = [k for k in self.some_types(1) if k[0] != "b"] or [("f", (self.size(),))]
        rows = self.some_types(1)
        name = self.define([*carry, *rows], [*carry, (kind[0], shape[1:])])
        outer: list[Type] = [(letter, (shape[0], *dims)) for letter, dims in rows]
        n = len(carry)
        body = f"lambda c, r: (lambda o: (tuple(o[:{n}]), o[{n}]))({name}(*c, *r))"
        more = self.one_of(("", "", ", reverse=True", ", unroll=2"))
        c, r = self.given(carry), self.given(outer)
        if self.pick(3) == 0:
            body = f"jax.checkpoint({body})"
        return self.let(kind, f"jax.lax.scan({body}, ({c},), ({r},){more})[1]")

    def looped(self, kind: Type) -> str:
        rest = self.some_types()
        name = self.define([("i", ()), kind, *rest], [kind])
        x, *others = [self.want(k) for k in (kind, *rest)]
        given = ", ".join(["c", *others])
        if not self.known("reverse") and self.pick(2):
            body = f"lambda s: (s[0] + 1, (lambda c: {name}(s[0].astype(jnp.int32), {given}))(s[1]))"
            least = f"{self.i()} % 3" if self.pick(2) else "2"
            return self.let(kind, f"jax.lax.while_loop(lambda s: s[0] < {least}, {body}, (jnp.int32(0), {x}))[1]")
        body = f"lambda i, c: {name}(jnp.asarray(i, jnp.int32), {given})"
        return self.let(kind, f"jax.lax.fori_loop(0, {1 + self.pick(3)}, {body}, {x})")

    def conditional(self, kind: Type) -> str:
        kinds = self.some_types(1)
        names = [self.define(kinds, [kind]) for _ in range(2)]
        given = self.given(kinds)
        if self.pick(2):
            return self.let(kind, f"jax.lax.cond({self.f()} > 0.2, {', '.join(names)}, {given})")
        return self.let(kind, f"jax.lax.switch({self.i()} % 2, [{', '.join(names)}], {given})")

    def associative(self, kind: Type) -> str:
        which = self.one_of(("product({}, {})[0]", "changed({}, {})[0]", "linear({}, {})[0]", "pair({}, {})[1]"))
        text = f"lambda a, b: K.{which.format('a', 'b')}"
        return self.let(
            kind, f"jax.lax.associative_scan({text}, {self.f(*kind[1])}{self.one_of(('', ', reverse=True'))})"
        )

    def cut(self, kind: Type) -> str:
        """Return what several devices have made, each its own part."""
        shape = kind[1]
        out = self.one_of([k for k, n in enumerate(shape) if n == 4])
        outer = self.some_types(1)
        inner, specs = [], []
        for letter, dims in outer:
            places = [k for k, n in enumerate(dims) if n == 4]
            if not places or self.pick(4) == 0:
                inner.append((letter, dims))
                specs.append("P()")
                continue
            place = self.one_of(places)
            inner.append((letter, (*dims[:place], 1, *dims[place + 1 :])))
            specs.append(f"P({'None, ' * place}'d')")
        self.axes.append("d")
        name = self.define(inner, [("f", (*shape[:out], 1, *shape[out + 1 :]))], "cut", closed=True)
        self.axes.pop()
        made = f"sharded({name}, ({', '.join(specs)},), P({'None, ' * out}'d'))"
        return self.let(kind, f"{made}({self.given(outer)})")

    # Programs

    def program(self) -> Program:
        use = self.one_of([use for use in USES if use not in ON_DEVICES or self.devices >= 4])
        arguments = self.some_types(2)
        arguments += [("f", (self.size(),))] if self.pick(2) or not any(k[0] == "f" for k in arguments) else []
        if self.is_wide() and self.pick(6) == 0:
            arguments.append(("c", (self.size(),)))
        self.contexts += ["reverse"] * (use in REVERSE) + ["forward"] * (use in FORWARD)
        self.scope = [Var(f"given{k}", kind, 1) for k, kind in enumerate(arguments)]
        results = [("f", self.one_of(((), (self.size(),), (self.size(),), (self.size(), self.size()))))]
        results += self.some_types()[:1]
        if use == "hessian":
            self.budget = min(self.budget, 6)
        made = [self.want(kind, fresh=True) for kind in results]
        head = f"def generated({', '.join(['K', *(f'given{k}' for k in range(len(arguments)))])}):"
        self.emit(f"return {', '.join(made)},")
        return Program("\n".join([head, *self.lines]) + "\n", tuple(arguments), use, self.float_type)


# --------------------------------------------------------------------------------------------------------------------
# What is done with a program


def scalar(f):
    """Return a function's floating results as one number."""

    def run(*a):
        wide = [o.astype("float32") if o.dtype.itemsize < 4 else o for o in keep_floats(f(*a))]
        return sum(jnp.sum(jnp.sin(o)) for o in wide)

    return run


def exported(f, order):
    checks = [export.DisabledSafetyCheck.custom_call(n) for n in ("numbridge_launch", "numbridge_plan")]
    checks += [export.DisabledSafetyCheck.custom_call("xla_python_cpu_callback")]
    checks += [export.DisabledSafetyCheck.custom_call("xla_ffi_python_cpu_callback")]

    def run(*a):
        made = export.export(jax.jit(f), disabled_checks=checks)(*a)
        return export.deserialize(made.serialize(vjp_order=order)).call(*a)

    return run


def used(use: str, f: Callable[..., Any], values: list[Any]) -> Any:
    """Return what a use of a program makes of some values."""
    floats = tuple(k for k, v in enumerate(values) if v.dtype.kind in ("fVc" if use in REVERSE else "fV"))
    arrays = [jnp.asarray(v) for v in values]
    random = np.random.default_rng(1)

    def of_floats(*given):
        whole = list(arrays)
        for k, value in zip(floats, given, strict=True):
            whole[k] = value
        return f(*whole)

    given = [arrays[k] for k in floats]
    some = [jnp.asarray(np.asarray(random.uniform(-1, 1, values[k].shape), values[k].dtype)) for k in floats]
    match use:
        case "call":
            return f(*arrays)
        case "jit":
            return jax.jit(f)(*values)
        case "grad":
            return jax.grad(scalar(f), floats)(*arrays)
        case "grad_some":
            return jax.jit(jax.grad(scalar(f), floats[0]))(*arrays)
        case "grad_of_jit":
            return (
                jax.value_and_grad(jax.jit(scalar(f)), tuple(range(len(values))), allow_int=True)(*arrays)
                if not any(v.dtype.kind == "c" for v in values)
                else None
            )
        case "remat":
            return jax.grad(jax.checkpoint(scalar(f)), floats)(*arrays)
        case "vjp":
            out, pull = jax.vjp(f, *arrays)
            return out, pull(jax.tree.map(cotangent, out))
        case "jvp":
            return jax.jit(lambda *t: jax.jvp(of_floats, given, list(t)))(*some)
        case "jacrev":
            return jax.jacrev(lambda *a: keep_floats(of_floats(*a)), tuple(range(len(given))))(*given)
        case "jacfwd":
            return jax.jit(jax.jacfwd(lambda *a: keep_floats(of_floats(*a)), tuple(range(len(given)))))(*given)
        case "hessian":
            return jax.hessian(scalar(of_floats))(*given)
        case "vmap":
            stacked = [jnp.stack([x, x[..., ::-1] if x.ndim else x, x], -1) for x in arrays]
            return jax.vmap(f, in_axes=-1)(*stacked)
        case "vmap_grad":
            axes = tuple(0 if k % 2 or k == 0 else None for k in range(len(values)))
            stacked = [x if axis is None else jnp.stack([x, x + x]) for x, axis in zip(arrays, axes, strict=True)]
            return jax.vmap(jax.grad(scalar(f), floats), in_axes=axes)(*stacked)
        case "scan":

            def body(carry, row):
                made = scalar(of_floats)(carry, *given[1:])
                return jnp.tanh(carry + made * row).astype(carry.dtype), made

            rows = jnp.arange(1, 4, dtype=given[0].dtype) / 3
            return jax.grad(lambda first: jnp.sum(jax.lax.scan(body, first, rows)[1]))(given[0])
        case "compiled":
            lowered = jax.jit(f).lower(*arrays)
            return lowered.compile()(*arrays)
        case "export":
            return exported(f, 0)(*arrays)
        case "exported_vjp":
            return jax.grad(scalar(exported(f, 1)), floats)(*arrays)
        case "donate":
            copies = [jnp.array(v) for v in values]
            return jax.jit(f, donate_argnums=tuple(range(len(values))), keep_unused=True)(*copies)
        case "pmap":
            return jax.pmap(f)(*(jnp.stack([x, x, x[::-1] if x.ndim else x, x]) for x in arrays))
        case "reshaped":
            # XLA moves a reshape of a result to before operations that may then run in place.
            return jax.jit(lambda *a: [o.reshape(1, *o.shape, 1) for o in f(*a)])(*arrays)
        case "shard_map":
            parts = sharded(lambda *a: [o[None] for o in f(*(x[0] for x in a))], P("d"), P("d"))
            return jax.jit(parts)(*(jnp.stack([x, x, x[::-1] if x.ndim else x, x]) for x in arrays))
        case "disable_jit":
            with jax.disable_jit():
                return f(*arrays)
        case "sharded" | "sharded_grad":
            f = jax.grad(scalar(f), floats) if use == "sharded_grad" else f
            places = [P("d") if v.ndim and v.shape[0] == 4 else P() for v in values]
            cut = [
                jax.device_put(v, jax.sharding.NamedSharding(mesh(), p)) for v, p in zip(values, places, strict=True)
            ]
            return jax.tree.map(np.asarray, jax.jit(f)(*cut))
        case "threads":
            run, is_wide = jax.jit(f), jax.config.jax_enable_x64

            def in_a_thread(_):
                with jax.enable_x64(is_wide):
                    return run(*arrays)

            with ThreadPoolExecutor(3) as pool:
                return list(pool.map(in_a_thread, range(4)))
        case "jaxpr":
            return as_jaxpr(f)(*arrays)
    raise AssertionError(use)


def keep_floats(results):
    return [r for r in results if r.dtype.kind not in "ib"]


def cotangent(out):
    if out.dtype.kind in "ib":
        return np.zeros(out.shape, jax.dtypes.float0)
    return jnp.cos(jnp.arange(out.size)).reshape(out.shape).astype(out.dtype)
