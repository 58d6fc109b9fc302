"""Which parameters a kernel writes: random kernels, run in plain Python over NumPy arrays, against what the source says.

NumPy is the oracle: its views and in-place operations are those of kernels. Whatever a run changes must have been reported
as written, or the kernel must have been refused. Without the arrays' ranks, only `u += x` for a variable is not judged.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import operator
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from numba import cuda, njit

from numbridge.kernels.errors import KernelError
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language import intrinsics

RANKS = {"a": 1, "b": 1, "d": 2, "e": 2}
PARAMETERS = (*RANKS, "n")
_numbers = itertools.count()

# Device functions, as text: compiled for the analysis, and once more as plain Python for the run.
HELPERS = """
def identity(x):
    return x

def second(x, y):
    return y

def pair(x, y):
    return x, y

def swapped(x, y):
    first, last = pair(x, y)
    return last, first

def store(x):
    x.flat[0] = SENTINEL

def store_second(x, y):
    swapped(x, y)[0].flat[0] = SENTINEL

def rows(x):
    return x[0:2]

def chosen(x, y, n):
    if n > 0:
        return x
    z = y
    return z

def deep(x, n):
    y = identity(chosen(x, x, n))
    store(y)
    return y

def only_reads(x):
    y = x.flat[0]
    y += 1
    return y

def augmented(x):
    x += 1
    return 0

def last_of(x, *rest):
    return rest[-1] if rest else x

def store_rest(*rest):
    for x in rest[1:]:
        x.flat[0] = SENTINEL

def passes_on(x, both):
    return last_of(x, *both, *both[:1])

def rebound(x):
    x = x + 1
    x += 1
    return x
"""
NAMES = [line.split("(")[0][4:] for line in HELPERS.splitlines() if line.startswith("def ")]
COMPILED = """
def njit_store(x):
    x.flat[0] = SENTINEL

def njit_identity(x):
    return x

def njit_last(x, *rest):
    return rest[-1] if rest else x

def njit_store_rest(*rest):
    for x in rest[1:]:
        x.flat[0] = SENTINEL

def njit_starred(x, both):
    return njit_last(x, *both, *both[:1])

def njit_store_starred(x, both):
    njit_store_rest(x, *both)
    max(*both, x, key=len)

def njit_store_first(x, y, z):
    x.flat[0] = SENTINEL

def njit_spread(x, both):
    njit_store_first(*both, x)
"""


def executed(text: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run text as a module whose source `inspect` can find."""
    filename = f"<written {next(_numbers)}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[filename] = (len(text), None, lines, filename)
    exec(compile(text, filename, "exec"), namespace)
    return namespace


def atomic_add(array, index, value):
    held = array[index]
    array[index] = held + value
    return held


COMMON = {"np": np, "operator": operator, "SENTINEL": 777.25}
PLAIN = executed(
    HELPERS + COMPILED,
    COMMON
    | {
        "tid": lambda: 0,
        "atomic_add": atomic_add,
        "cuda": SimpleNamespace(atomic=SimpleNamespace(add=atomic_add), local=SimpleNamespace(array=np.zeros)),
    },
)
DECLARED = executed(HELPERS, COMMON | {"tid": intrinsics.tid, "atomic_add": intrinsics.atomic_add, "cuda": cuda})
for _name in NAMES:
    DECLARED[_name] = func(DECLARED[_name])
_njit = executed(COMPILED, dict(COMMON))
_njit |= {name: njit(function) for name, function in _njit.items() if name.startswith("njit_")}
DECLARED |= {name: function for name, function in _njit.items() if name.startswith("njit_")}


def arrays() -> dict[str, np.ndarray]:
    """Return fresh arguments: distinct falling values, so that sorting and shuffling show."""
    return {
        name: np.arange(16.0 * k + 16, 16 * k, -1).reshape((16,) if rank == 1 else (4, 4))
        for k, (name, rank) in enumerate(RANKS.items())
    }


def changed(function: Any, n: int) -> set[str]:
    """Return which arguments a plain run changes, until its end or until it fails."""
    arguments, before = arrays(), arrays()
    with contextlib.suppress(Exception), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        function(*arguments.values(), n)
    return {name for name, array in arguments.items() if not np.array_equal(array, before[name])}


def check(body: str) -> bool:
    """Check one kernel; return whether it was accepted."""
    text = f"def generated({', '.join(PARAMETERS)}):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    plain = executed(text, dict(PLAIN))["generated"]
    really = changed(plain, 0) | changed(plain, 1)
    try:
        declared = kernel(executed(text, dict(DECLARED))["generated"])
        reports = [declared.source.written(RANKS)]
        if not any(isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name) for n in ast.walk(ast.parse(text))):
            reports.append(declared.source.written())
            reports.append(declared.source.written(RANKS | {"b": None, "e": None}))
    except KernelError:
        return False
    for reported in reports:
        assert really <= reported, f"{sorted(really - reported)} written and not reported ({sorted(reported)}):\n{text}"
    return True


# --------------------------------------------------------------------------------------------------------------------
# The grammar


def forms(text: str) -> list[str]:
    """Return what stands between bars and on lines."""
    return [form for line in text.split("\n") for form in line.split(" | ") if form]


LOCALS = ("u", "v", "w")
names = st.sampled_from([*RANKS, *LOCALS])
leaf = st.one_of(names, st.sampled_from([*RANKS]))
VIEWS = forms("""
{0}[0] | {0}[1:] | {0}[::-1] | {0}[...] | {0}[None] | {0}[0, 1:] | {0}[tid()] | {0}[n] | {0}[0][0] | {0}[1:][0]
{0}.T | {0}.flat | {0}.real | {0}.reshape(-1) | {0}.reshape(16) | {0}.reshape(2, 8) | {0}.reshape((8, 2))
{0}.ravel() | {0}.view() | {0}.transpose() | {0}.squeeze() | {0}.swapaxes(0, -1) | {0}.copy() | ({0} + 1.0)
np.asarray({0}) | np.ravel({0}) | np.transpose({0}) | np.reshape({0}, 16) | np.squeeze({0}) | np.flip({0})
np.expand_dims({0}, 0) | np.atleast_2d({0}) | np.ascontiguousarray({0}) | np.split({0}, 2)[0] | np.diag({0})
np.copy({0}) | np.sort({0}) | np.sqrt({0}) | np.swapaxes({0}, 0, -1) | np.moveaxis({0}, 0, -1) | np.real({0})
np.broadcast_arrays({0}, {0})[0] | np.nan_to_num({0}, copy=False) | np.require({0}) | np.atleast_1d({0}, {0})[1]
identity({0}) | rows({0}) | deep({0}, n) | rebound({0}) | njit_identity({0}) | getattr({0}, 'T') | next(iter({0}))
next(iter(({0}, {0}))) | tuple({0})[0] | (u := {0}) | (v := {0}[0]) | reversed({0}) | max(({0}, {0}), key=len)
min({0}, {0}, key=len) | sorted(({0},), key=len)[0] | sum(({0},), 0) | abs({0}) | {0}.__getitem__(0) | {0}.__array__()
operator.getitem({0}, 0) | np.ndarray.view({0}) | operator.pos({0}) | np.lib.stride_tricks.as_strided({0})
slice({0}).start | np.frombuffer({0}) | memoryview({0}).obj | {0}.base
""")
TWO = forms("""
({0} if n else {1}) | ({0}, {1})[0] | ({0}, {1})[n] | ({0}, {1})[-1] | (({0}, 1.0), {1})[0][0] | pair({0}, {1})[0]
second({0}, {1}) | chosen({0}, {1}, n) | swapped({0}, {1})[0] | second(y={0}, x={1}) | ({0}, {1})[0:1][0]
(({0},) + ({1},))[1] | (({0},) * 2)[1] | ({0} and n or {1}) | (n and {0} or {1}) | np.where({0} > 0, {0}, {1})
tuple(({0}, {1}))[0] | next(zip({0}, {1}))[0] | np.add({0}, {1}) | np.maximum({0}, 0.0, {1})
np.multiply({0}, 2.0, out={1}) | np.cumsum({0}, out={1}) | np.take({0}, 0, out={1}) | next(enumerate({0}))[1]
max({0}.sum(), {1}.sum()) | np.add({0}, 1.0, out=({1},)) | njit_last({0}, {1}) | njit_starred({0}, ({1}, {0}))
last_of({0}, *({1}, {0})) | passes_on({0}, ({1}, {0})) | last_of(*({0}, {1})) | max(*({0}, {1}), key=len)
""")
arrays_ = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.builds(str.format, st.sampled_from(VIEWS), inner), st.builds(str.format, st.sampled_from(TWO), inner, inner)
    ),
    max_leaves=4,
)
numbers = st.sampled_from(["777.25", "n + 778.5", "a[0] + 500.0", "d[0, 0] * 3.0 + 400.0", "(w := b)[1] + 333.0"])
targets = st.builds(
    str.format,
    st.sampled_from(
        forms("{0}[0] | {0}[0, 0] | {0}[...] | {0}[1:] | {0}[0][0] | {0}.flat[0] | {0}[n] | {0}.real[0] | {0}.T[0]")
    ),
    arrays_,
)
SIMPLE = forms("""
{t} = {x} | {t} += {x} | {t} *= {x} | u = {y} | v = {y} | w = {y} | u = v = {y} | u, v = {y}, {z} | u: object = {y}
u += {x} | v *= 2.0 | w -= {y} | u = v | v = w | w = u | ({t}, u) = ({x}, {y}) | (u, v), w = ({y}, {z}), {y}
u, v = pair({y}, {z}) | u, v = {y}[0], {y}[1] | u, v = v, u | a += {x} | d[0] += {x} | e = {y} | a, d = d, a
store({y}) | store_second({y}, {z}) | augmented({y}) | only_reads({y}) | deep({y}, n) | njit_store({y}) | store(x={y})
njit_store_rest({y}, {z}) | store_rest(*({y}, {z})) | store_rest({y}, *({z},)) | np.copyto(*({y}, {z}))
njit_store_starred({y}, ({z}, {y})) | njit_spread({y}, ({z}, {y}))
store_second(y={y}, x={z}) | atomic_add({y}, 0, {x}) | cuda.atomic.add({y}, 0, {x}) | {y}.fill({x}) | {y}.sort()
{y}.put(0, {x}) | {y}.partition(2) | {y}.__setitem__(0, {x}) | {y}.__iadd__({x}) | np.copyto({y}, {x})
np.put({y}, 0, {x}) | np.place({y}, {y} > 0, {x}) | np.putmask({y}, {y} > 0, {x}) | np.fill_diagonal({y}, {x})
np.random.shuffle({y}) | np.add({y}, 1.0, {z}) | np.add.at({y}, 0, {x}) | np.add({y}, {x}, out={z})
np.sqrt({y}, {z}) | np.clip({y}, 0, 1, {z}) | np.cumsum({y}, 0, None, {z}) | np.add.reduce({y}, 0, None, {z})
np.add.accumulate({y}, out={z}) | np.ndarray.fill({y}, {x}) | np.divmod({y}, 2.0, {z}, {z}) | {y}.cumsum(out={z})
{y}.clip(0, 1, {z}) | {y}.sum(0, None, {z}) | {y}.byteswap(True) | {y}.dot({z}, {z}) | np.dot({y}, {z}, {y})
operator.setitem({y}, 0, {x}) | operator.iadd({y}, {x}) | operator.imul({y}, 2.0)
operator.setitem(b={x}, a={y}, c=0) | setattr({y}, 'real', {x}) | {y}.real = {x} | {y}.flat = {x}
{y}.shape = {y}.shape | getattr({y}, 'fill')({x}) | {t}, {t2} = {x}, {x} | {t} = {t2} = {x}
d[int((u := {y}).sum() * 0)] = {x} | assert (w := {y}) is not None | (u := {y})[0] = {x}
u = cuda.local.array(16, np.float64) | u = (store({y}), {z})[1] | u = {y} if store({z}) else {y}
v = 1 < (w := {y}).size < 99 | u = not store({y}) | return | pass | raise ValueError | del u | u, *v = {y}, {z}, {y}
store(*({y},)) | np.copyto(*({y}, {x})) | u = [{y}][0] | u = [store(k) for k in ({y},)] | (lambda k: store(k))({y})
u = [1.0 for {t} in range(3)] | [{y}][0][0] = {x} | {{0: {y}}}[0][0] = {x} | f = store; f({y})
f = store if n else augmented; f({y}) | f = {y}.fill; f({x}) | f = (store, augmented)[n]; f({y})
np.array({y}, copy=False)[0] = {x} | np.nditer({y}, [], [['readwrite']]) | map(store, ({y},))
tuple(map(store, ({y},))) | any(map(store, ({y},))) | {y}.astype(np.float64, copy=False)[0] = {x}
np.apply_along_axis(store, 0, {y}) | {y}.__setattr__('real', {x})
np.lib.stride_tricks.sliding_window_view({y}, 2, writeable=True)[0] = {x} | np.frompyfunc(store, 1, 1)({y})
type({y}).fill({y}, {x}) | {y}.setfield({x}, np.float64) | exec('a[0] = 1e3') | vars()['a'][0] = 1e3
print({x}, (w := {y})) | locals()['b'].fill(1e3) | np.vectorize(store)({y}) | np.nan_to_num({y}, False)[0] = {x}
""")
BLOCKS = forms("""
if n: | if (u := {y}) is not None: | while (n := n - 1) > 0: | for w in {y}: | for u, v in zip({y}, {z}):
for u in ({y}, {z}): | for n, u in enumerate({y}): | for {t} in range(3): | for ({t}, u) in (({x}, {y}),):
for k in range(2): | for u in reversed({y}): | for u in iter(({y}, {z})): | for w in np.nditer({y}):
for k, w in np.ndenumerate({y}): | for u, (v, w) in enumerate(zip({y}, {z})): | with np.errstate(): | try:
for u in ({y} if n else {z}): | for u in {y}.flat: | for u in np.nditer({y}, [], ['readwrite']):
for u in tuple({y}): | for a[0] in {z}.flat: | for e in ({y},): | for u in np.split({y}, 2):
""")
filled = st.fixed_dictionaries({"t": targets, "t2": targets, "x": numbers, "y": arrays_, "z": arrays_})
simple = st.builds(lambda form, parts: form.format(**parts), st.sampled_from(SIMPLE), filled)


def indented(head: str, body: list[str], otherwise: list[str]) -> str:
    ending = {"t": "except Exception:", "w": "else:" if head.startswith("while") else ""}.get(head[0], "else:")
    lines = [head, *(f"    {line}" for part in body for line in part.splitlines())]
    if ending and (otherwise or ending.startswith("except")):
        lines += [ending, *(f"    {line}" for part in otherwise or ["pass"] for line in part.splitlines())]
    return "\n".join(lines)


def blocks(inner: Any) -> Any:
    heads = st.builds(lambda form, parts: form.format(**parts), st.sampled_from(BLOCKS), filled)
    return st.builds(indented, heads, st.lists(inner, min_size=1, max_size=3), st.lists(inner, max_size=2))


statements = st.recursive(simple, blocks, max_leaves=5)
# Each local exists from the start; several statements after it make chains of aliases.
bodies = st.builds(
    lambda first, rest: "\n".join([*first, *rest]),
    st.tuples(*(st.builds(lambda name, value: f"{name} = {value}", st.just(name), arrays_) for name in LOCALS)),
    st.lists(statements, min_size=1, max_size=5),
)


@settings(max_examples=80, deadline=None)
@given(bodies)
def test_whatever_is_written_is_reported(body):
    try:
        check(body)
    except SyntaxError:
        reject()  # a walrus where Python allows none, which no kernel can hold


@pytest.mark.parametrize("form", SIMPLE + [indented(head, ["u[0] = 777.25"], []) for head in BLOCKS])
def test_each_form_alone(form):
    """Each statement once over each argument: nothing depends on what the random kernels happened to reach."""
    for name in RANKS:
        other = "e" if name == "d" else "b"
        parts = {"t": f"{name}[0]", "t2": f"{other}[1]", "x": "777.25", "y": name, "z": other}
        check("u = a\nv = b\nw = d\n" + form.format(**parts))


USES = (
    *("({0})[0] = 777.25", "({0}).fill(777.25)", "store({0})"),
    *("u = {0}\nu += 777.25", "u = {0}\nfor v in u:\n    v[...] = 777.25"),
)


@pytest.mark.parametrize("view", VIEWS + TWO)
def test_each_view_alone(view):
    for first, last in (("a", "b"), ("d", "e"), ("b", "d")):
        value = view.format(first, last)
        for use in USES:
            check(use.format(value))


@kernel
def names_anew(x, y, z):
    i = intrinsics.tid()
    x = x[i]
    x[0] *= 2.0
    for k in range(3):
        y[k] += x[k]
        y = y[1:]
    if x[0] > 0.0:
        z = z[0]
    z[0] = 1.0


def test_a_name_is_what_was_assigned_to_it_outside_of_branches_and_loops():
    elements = {"x": 1, "y": 1, "z": 1}
    assert names_anew.source.written(elements) == {"y", "z"}
    assert names_anew.source.written(elements | {"x": 2}) == {"x", "y", "z"}
