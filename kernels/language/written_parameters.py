"""Which parameters a kernel may write: an alias analysis of its source and of all that it calls.

It works on `ast` alone and errs on the safe side: what is not understood counts as written.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import numpy as np

from numbridge.kernels.language.dependencies import MISSING, is_from_library, root_package
from numbridge.kernels.language.inner_gradients import Gradient
from numbridge.kernels.language.intrinsics import Intrinsic, intrinsic_of
from numbridge.kernels.language.source import FunctionSource, Program, Sourced, call_rank
from numbridge.kernels.language.static_names import instance_of, is_dispatcher

__all__ = ["written_parameters"]

_UNKNOWN_RANK = 99
_DEEPEST = 4
_Place = int | str | None


@dataclass(frozen=True)
class _Alias:
    """A value that may be a parameter's memory: its array, a view of it, or tuples around one.

    `taken` counts the dimensions that subscripts removed from `rank`, which is the parameter's own where None. Where the
    parameter has records, this is a field of numbers if `record` is false. `places` are those in the tuples, from the outermost
    on: an index, the name of a field, or None where that is not known.
    """

    parameter: str
    taken: int = 0
    rank: int | None = None
    places: tuple[_Place, ...] = ()
    record: bool = True


# What a variable may hold: aliases; None for something that keeps dimensions when used as an index (a slice, None, an
# ellipsis); and an int n for a tuple that takes n dimensions when used as an index. No int stands for one dimension.
_Value = frozenset["_Alias | int | None"]
_NOTHING: _Value = frozenset()
_FREE: _Value = frozenset({None})

_METADATA = frozenset({"shape", "strides", "ndim", "size", "dtype", "itemsize", "nbytes", "flags"})
_SAME_RANK = frozenset(
    {"transpose", "swapaxes", "view", "conj", "conjugate", "asarray", "asanyarray", "ascontiguousarray"}
    | {"asfortranarray", "flip", "flipud", "fliplr", "real", "imag", "moveaxis", "rollaxis", "rot90"}
)
_VIEW_METHODS = frozenset(
    {"reshape", "ravel", "view", "transpose", "swapaxes", "squeeze", "diagonal", "getfield", "conj", "conjugate"}
    | {"__getitem__", "astype", "newbyteorder"}
)
_MUTATING_METHODS = frozenset(
    {"fill", "sort", "partition", "put", "itemset", "byteswap", "resize", "setfield", "setflags"}
)
_READING_METHODS = frozenset(name for name in dir(np.ndarray) if not name.startswith("_")) | {"index", "count"}
_NUMPY_WRITES_FIRST = frozenset(
    {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis", "shuffle", "setitem"}
)
_NUMPY_FRESH = frozenset(
    {"all", "allclose", "amax", "amin", "any", "append", "arange", "argmax", "argmin", "argsort", "around", "array"}
    | {"array_equal", "average", "bincount", "clip", "concatenate", "convolve", "copy", "corrcoef", "correlate"}
    | {"count_nonzero", "cov", "cross", "cumprod", "cumsum", "delete", "diff", "digitize", "dot", "dstack", "empty"}
    | {"empty_like", "eye", "full", "full_like", "histogram", "hstack", "identity", "inner", "insert", "interp"}
    | {"isclose", "kron", "linspace", "max", "mean", "median", "min", "nanargmax", "nanargmin", "nancumprod"}
    | {"nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "ndim"}
    | {"nonzero", "ones", "ones_like", "outer", "percentile", "prod", "ptp", "quantile", "repeat", "roll", "round"}
    | {"searchsorted", "shape", "size", "sort", "stack", "std", "sum", "take", "tile", "trace", "unique", "var"}
    | {"vdot", "vstack", "where", "zeros", "zeros_like"}
)
_BUILTINS_READ = frozenset(
    {"len", "abs", "round", "pow", "divmod", "sum", "print", "isinstance", "hash", "any", "all", "ord"}
    | {"chr", "callable", "id", "repr", "hasattr"}
)
_BUILTINS_REACH = frozenset({"exec", "eval", "vars", "locals", "globals"})
_NUMBA_READ = frozenset({"literal_unroll", "literally", "prange"})


def written_parameters(
    source: FunctionSource, ranks: Mapping[str, int | None] | None, records: Mapping[str, np.dtype[Any]]
) -> frozenset[str]:
    """Return the parameters that a function may write; `FunctionSource.written` says what the others are for."""
    return _Writes(source, ranks, records).run()


@dataclass(frozen=True)
class _Arguments:
    """What a call passes, and the call's syntax."""

    call: ast.Call
    positional: tuple[_Value, ...]
    named: Mapping[str, _Value]

    def all(self) -> _Value:
        return _NOTHING.union(*self.positional, *self.named.values())

    def first(self) -> _Value:
        return self.positional[0] if self.positional else _NOTHING

    def rest(self) -> _Arguments:
        return _Arguments(self.call, self.positional[1:], self.named)


class _Writes:
    """The alias analysis of a function and everything that it calls, to a fixpoint.

    Device functions are analysed anew for each combination of what their arguments may alias, so that the answer is
    always in terms of the outermost function's parameters.
    """

    def __init__(
        self, root: FunctionSource, ranks: Mapping[str, int | None] | None, records: Mapping[str, np.dtype[Any]]
    ) -> None:
        self.ranks = ranks
        self._fields = {name: dict(_fields(dtype)) for name, dtype in records.items()}
        self.program = Program(root)
        self._written: set[str] = set()
        self._returns: dict[tuple[int, tuple[_Value, ...]], _Value] = {}
        self._active: set[tuple[int, tuple[_Value, ...]]] = set()

    def run(self) -> frozenset[str]:
        """Return the parameters that may be written."""
        root = self.program.root
        start = tuple(frozenset({_Alias(name)}) for name in _names(root))
        before = None
        while before != (before := (dict(self._returns), set(self._written))):
            self._active.clear()
            self.analyse(root, start)
        return frozenset(self._written)

    def analyse(self, source: FunctionSource, arguments: tuple[_Value, ...]) -> _Value:
        """Record what a function writes, given its arguments, and return what its result may alias."""
        key = (id(source), arguments)
        if key not in self._active:
            self._active.add(key)
            self._returns[key] = _BodyWrites(self, source, arguments).run()
        return self._returns.get(key, _NOTHING)

    def write(self, value: _Value) -> None:
        """Record a store into whatever a value may alias."""
        self._written.update(alias.parameter for alias in _aliases(value))

    def is_view(self, alias: _Alias) -> bool:
        """Return whether an alias may still be memory, and not a number or an element."""
        if alias.record and alias.parameter in self._fields:
            return True
        return alias.taken < self._rank(alias) or (alias.taken <= 0 and alias.parameter not in self._fields)

    def _rank(self, alias: _Alias) -> int:
        if alias.rank is not None:
            return alias.rank
        known = None if self.ranks is None else self.ranks.get(alias.parameter)
        return _UNKNOWN_RANK if known is None else known

    def field(self, alias: _Alias, name: str) -> _Value:
        """Return what a field of records, or an attribute of something else, may alias."""
        fields = self._fields.get(alias.parameter)
        if alias.places or fields is None or not alias.record or name not in fields:
            return frozenset(_unwrapped(alias, name)) if alias.places else frozenset({alias})
        inner = fields[name]
        if inner is None:
            return frozenset({_Alias(alias.parameter, 0, _UNKNOWN_RANK)})
        is_record, rank = inner
        view = _Alias(alias.parameter, 0, max(self._rank(alias) - alias.taken, 0) + rank, record=is_record)
        return frozenset({view} if self.is_view(view) else ())

    def augments(self, alias: _Alias) -> bool:
        """Return whether an augmented assignment to a variable that holds this alias works in place."""
        if alias.places:
            return False
        if alias.rank is None and self.ranks is not None and alias.parameter not in self.ranks:
            return False
        if alias.rank is None and (self.ranks is None or self.ranks[alias.parameter] is None):
            return alias.taken <= 0
        return self.is_view(alias)

    def elements(self, value: _Value, taken: int | None = 1, *, sliced: bool = False, place: _Place = None) -> _Value:
        """Return what a subscript of a value, or a loop over it, may alias; `taken` and `place` are None where unknown."""
        found: set[_Alias | int | None] = set()
        for alias in _aliases(value):
            if alias.places:
                found.update(_unwrapped(alias, place, keep=sliced or taken is None))
            elif taken is None:
                found.add(_Alias(alias.parameter, 0, _UNKNOWN_RANK))
            else:
                view = replace(alias, taken=min(max(alias.taken + taken, -8), 32))
                found.update({view} if self.is_view(view) else ())
        return frozenset(found)


def _fields(dtype: np.dtype[Any]) -> Iterator[tuple[str, tuple[bool, int] | None]]:
    """Yield the names of the fields of records, and of fields within these: whether they hold fields, and dimensions.

    There is None for a name of fields that differ in that.
    """
    found: dict[str, set[tuple[bool, int]]] = {}
    waiting = [dtype]
    while waiting:
        for name, (kind, *_) in (waiting.pop().fields or {}).items():
            found.setdefault(name, set()).add((kind.base.fields is not None, len(kind.shape)))
            waiting.append(kind.base)
    for name, kinds in found.items():
        yield name, kinds.pop() if len(kinds) == 1 else None


def _aliases(value: _Value) -> Iterator[_Alias]:
    return (item for item in value if isinstance(item, _Alias))


def _counts(value: _Value) -> list[int]:
    return [item for item in value if isinstance(item, int)]


def _unwrapped(alias: _Alias, place: _Place, *, keep: bool = False) -> Iterator[_Alias]:
    """Yield what stands at a place of a tuple, if this does; and the tuple, elsewhere, if it is to be kept."""
    first, *inner = alias.places
    # An index and a name may be the same place.
    if None in (first, place) or type(first) is not type(place) or first == place:
        yield replace(alias, places=tuple(inner))
    if keep or len(alias.places) == _DEEPEST:
        yield _moved(alias)


def _moved(alias: _Alias) -> _Alias:
    """Return an alias of which it is not known where in a tuple it stands."""
    return replace(alias, places=(None, *alias.places[1:]))


def _wrapped(value: _Value, place: _Place = None) -> _Value:
    """Return what a tuple may alias that has a value at some place."""
    deepest = (None,) * _DEEPEST
    inner = (replace(a, places=deepest if len(a.places) == _DEEPEST else (place, *a.places)) for a in _aliases(value))
    return frozenset(inner) | (_FREE & value)


def _concatenated(value: _Value) -> _Value:
    """Return what arithmetic on a value may alias: tuples keep their elements when concatenated, arrays make new ones."""
    return frozenset(_moved(alias) for alias in _aliases(value) if alias.places)


def _of_rank(value: _Value, rank: int) -> _Value:
    return frozenset(replace(a, taken=0, rank=rank) for a in _aliases(value))


def _join(*values: _Value) -> _Value:
    """Return what may be any of several values."""
    counted = [value if _counts(value) else value | {1} for value in values]
    return _NOTHING.union(*counted)


class _BodyWrites:
    """One function's body under given arguments.

    The order of statements is ignored, which errs on the safe side; but what is assigned to a name outside of branches and loops,
    ``x = x[i]``, is all that the name stands for in the statements that follow.
    """

    def __init__(self, writes: _Writes, source: FunctionSource, arguments: tuple[_Value, ...]) -> None:
        self._all = writes
        self._source = source
        self._variables: dict[str, _Value] = {
            name: _join(value) for name, value in zip(_names(source), arguments, strict=True)
        }
        self._returned: list[_Value] = []
        # By which keys variables are known that have been assigned anew
        self._keys: dict[str, str] = {}

    def run(self) -> _Value:
        """Analyse until no variable may hold anything new; return what the result may alias."""
        before = None
        while before != (before := dict(self._variables)):
            self._returned.clear()
            self._keys.clear()
            for place, statement in enumerate(self._source.tree.body):
                match statement:
                    case ast.Assign([ast.Name(name) as target]):
                        value = self._value(statement.value)
                        self._keys[name] = f"{name} of {place}"
                        self._bind(target, value, statement.value)
                    case _:
                        for node in ast.walk(statement):
                            if isinstance(node, ast.stmt):
                                self._statement(node)
        return _join(*self._returned) if self._returned else _NOTHING

    def _variable(self, name: str) -> _Value:
        return self._variables.get(self._keys.get(name, name), _NOTHING)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                value = self._value(node.value)
                for target in node.targets:
                    self._bind(target, value, node.value)
            case ast.AnnAssign(value=ast.expr() as assigned):
                self._bind(node.target, self._value(assigned), assigned)
            case ast.AugAssign():
                self._augment(node.target, self._value(node.value))
            case ast.For():
                for target, value in self._looped(node.target, node.iter):
                    self._bind(target, value)
            case ast.Return(value=ast.expr() as returned):
                self._returned.append(self._value(returned))
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._value(child)

    def _looped(self, target: ast.expr, node: ast.expr) -> list[tuple[ast.expr, _Value]]:
        """Return what a loop assigns, and what that may alias: each variable of ``zip`` and ``enumerate`` by itself."""
        match target, node:
            case ast.Tuple(targets), ast.Call(func, [first, *more] as arguments, []) if not any(
                isinstance(part, ast.Starred) for part in (*targets, *arguments)
            ):
                static = self._source.resolve(func)
                kind = static.value if static is not None and static.builtin else None
                if kind is zip and len(arguments) == len(targets):
                    pairs = zip(targets, arguments, strict=True)
                    return [made for pair in pairs for made in self._looped(*pair)]
                if kind is enumerate and len(targets) == 2:
                    for number in more:
                        self._value(number)
                    return [(targets[0], _NOTHING), *self._looped(targets[1], first)]
        return [(target, self._all.elements(self._value(node)))]

    def _bind(self, target: ast.expr, value: _Value, syntax: ast.expr | None = None) -> None:
        if isinstance(target, ast.Name):
            key = self._keys.get(target.id, target.id)
            held = self._variables.get(key)
            self._variables[key] = _join(value) if held is None else _join(held, value)
        elif isinstance(target, ast.Tuple):
            parts = syntax.elts if isinstance(syntax, ast.Tuple) and len(syntax.elts) == len(target.elts) else None
            for position, element in enumerate(target.elts):
                part = self._all.elements(value, place=position) if parts is None else self._value(parts[position])
                self._bind(element, part, None if parts is None else parts[position])
        else:
            self._store(target)

    def _augment(self, target: ast.expr, value: _Value) -> None:
        if not isinstance(target, ast.Name):
            self._store(target)
            return
        held = self._variable(target.id)
        self._all.write(frozenset(alias for alias in _aliases(held) if self._all.augments(alias)))
        self._bind(target, _concatenated(value))

    def _store(self, target: ast.expr) -> None:
        """Record a store through a subscript or an attribute, at any depth: ``a[i].x[j] = v`` writes `a`."""
        node: ast.expr = target
        steps: list[_Place] = []
        while isinstance(node, ast.Subscript | ast.Attribute):
            if isinstance(node, ast.Subscript):
                self._value(node.slice)
            steps.append(self._place(node.slice) if isinstance(node, ast.Subscript) else node.attr)
            node = node.value
        value = self._value(node)
        for place in reversed(steps):
            # Of a tuple, one element; what lies in memory is the memory that is written.
            found = (_unwrapped(a, place) if a.places else (a,) for a in _aliases(value))
            value = _NOTHING.union(*found)
        self._all.write(value)

    def _place(self, index: ast.expr) -> int | None:
        """Return which element of a tuple an index selects, or None if that is not known."""
        place = self._source.fold(index)
        return place if type(place) is int and place >= 0 else None

    def _value(self, node: ast.expr) -> _Value:
        """Return what an expression may alias, and record what it writes."""
        match node:
            case ast.Name() | ast.Attribute():
                return self._named(node)
            case ast.Constant():
                return _FREE if node.value in (None, ...) else _NOTHING
            case ast.Tuple():
                return self._tuple(node)
            case ast.Subscript():
                name = self._source.fold(node.slice)
                if isinstance(name, str):
                    owner = self._value(node.value)
                    return _NOTHING.union(*(self._all.field(alias, name) for alias in _aliases(owner)))
                taken, place = self._taken(node.slice), self._place(node.slice)
                is_slice = isinstance(node.slice, ast.Slice)
                return self._all.elements(self._value(node.value), taken, sliced=is_slice, place=place)
            case ast.Call():
                return self._call(node)
            case ast.NamedExpr():
                value = self._value(node.value)
                self._bind(node.target, value, node.value)
                return value
            case ast.IfExp():
                self._value(node.test)
                return _join(self._value(node.body), self._value(node.orelse))
            case ast.BoolOp():
                return _join(*(self._value(part) for part in node.values))
        held = [self._value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if isinstance(node, ast.Slice):
            return _FREE
        return _NOTHING.union(*map(_concatenated, held))

    def _named(self, node: ast.Name | ast.Attribute) -> _Value:
        static = self._source.resolve(node)
        if static is not None:
            return _FREE if _dimensions_taken(static.value) != 1 else _NOTHING
        if isinstance(node, ast.Name):
            return self._variable(node.id)
        value = self._value(node.value)
        if node.attr in _METADATA:
            return _NOTHING
        if node.attr == "flat":
            return _of_rank(value, 1)
        return _NOTHING.union(*(self._all.field(alias, node.attr) for alias in _aliases(value)))

    def _tuple(self, node: ast.Tuple) -> _Value:
        parts = [self._value(element) for element in node.elts]
        count = sum(min(_counts(part), default=1) for part in parts)
        return _NOTHING.union(*(_wrapped(part, place) for place, part in enumerate(parts))) | {count}

    def _taken(self, index: ast.expr) -> int | None:
        """Return how many dimensions a subscript removes, or None where that is not known."""
        total = 0
        for part in index.elts if isinstance(index, ast.Tuple) else (index,):
            value = self._value(part)
            fixed = MISSING if isinstance(part, ast.Slice) else self._source.fold(part)
            if fixed is not MISSING:
                total += _dimensions_taken(fixed)
            elif isinstance(part, ast.Slice):
                continue
            elif None in value:
                return None
            else:
                total += min(_counts(value), default=1)
        return total

    def _call(self, node: ast.Call) -> _Value:
        given = (argument.value if isinstance(argument, ast.Starred) else argument for argument in node.args)
        positional = tuple(map(self._value, given))
        named = {str(k.arg): self._value(k.value) for k in node.keywords}
        arguments = _Arguments(node, positional, named)
        static = self._source.resolve(node.func)
        if static is not None:
            return self._static_call(static.value, arguments)
        if isinstance(node.func, ast.Attribute):
            return self._method(self._value(node.func.value), node.func.attr, arguments)
        # What is called may be a method that a variable holds, and so know its array.
        return self._unknown(_Arguments(node, (self._value(node.func), *positional), named))

    def _static_call(self, function: Any, arguments: _Arguments) -> _Value:
        intrinsic = intrinsic_of(function)
        if intrinsic is not None:
            return self._intrinsic_call(intrinsic, arguments)
        if isinstance(function, Gradient):
            return _NOTHING  # it writes to nothing, and is a number or several
        source = self._all.program.callee(function) or self._all.program.compiled(function, starred=True)
        if source is not None:
            return self._all.analyse(source, self._bound(source, arguments))
        starred = [isinstance(argument, ast.Starred) for argument in arguments.call.args]
        if any(starred):
            pairs = zip(arguments.positional, starred, strict=True)
            given = tuple(self._all.elements(value) if of_tuple else value for value, of_tuple in pairs)
            # Of others, it depends on the place of an argument what they do with it.
            if function is not min and function is not max:
                return self._unknown(_Arguments(arguments.call, given, arguments.named))
            return _NOTHING.union(*given)
        if isinstance(function, type):
            return self._construct(function, arguments)
        if isinstance(function, np.ufunc) or instance_of(function, "numba.np.ufunc.dufunc", "DUFunc"):
            return self._ufunc(function, arguments)
        if any(self._is_function(argument) for argument in arguments.call.args):
            return self._unknown(arguments)
        by_library = {"numpy": self._numpy, "builtins": self._builtin, "operator": self._operator, "numba": self._numba}
        library = root_package(function)
        if library in by_library:
            return by_library[library](function, arguments)
        return _NOTHING if is_from_library(function) and not is_dispatcher(function) else self._unknown(arguments)

    def _bound(self, source: FunctionSource, arguments: _Arguments) -> tuple[_Value, ...]:
        """Return what a function's parameters may alias; from a starred tuple on, each of them may be any of what follows."""
        names, positional = _names(source), list(arguments.positional)
        starred = [isinstance(argument, ast.Starred) for argument in arguments.call.args]
        if any(starred):
            first = starred.index(True)
            pairs = zip(positional[first:], starred[first:], strict=True)
            others = _NOTHING.union(*(self._all.elements(v) if of_tuple else v for v, of_tuple in pairs))
            positional = [*positional[:first], *[others] * max(len(names) - first, 1)]
        given = dict(zip(source.parameters, positional, strict=False)) | dict(arguments.named)
        if source.rest is not None:
            given[source.rest] = _NOTHING.union(*map(_wrapped, positional[len(source.parameters) :]))
        return tuple(given.get(name, _NOTHING) for name in names)

    def _is_function(self, node: ast.expr) -> bool:
        """Return whether an argument is a function of the user's, which whatever takes it may call."""
        static = self._source.resolve(node) if isinstance(node, ast.Name | ast.Attribute) else None
        return static is not None and (isinstance(static.value, Sourced) or is_dispatcher(static.value))

    def _intrinsic_call(self, intrinsic: Intrinsic, arguments: _Arguments) -> _Value:
        if intrinsic.kind == "grid":
            return frozenset({call_rank(self._source, arguments.call, intrinsic)})
        if intrinsic.kind == "atomic":
            self._all.write(arguments.first())
        elif intrinsic.kind == "cuda":
            return self._unknown(arguments)
        return _NOTHING

    def _unknown(self, arguments: _Arguments) -> _Value:
        """Assume that a function writes every array that it is given, and may return any of them."""
        everything = arguments.all()
        self._all.write(everything)
        return _of_rank(everything, _UNKNOWN_RANK) | frozenset(
            _Alias(a.parameter, 0, _UNKNOWN_RANK) for a in _aliases(everything)
        )

    def _construct(self, kind: type, arguments: _Arguments) -> _Value:
        if issubclass(kind, slice):
            return _FREE
        if kind in (zip, enumerate):
            return _NOTHING.union(*(_wrapped(_wrapped(self._all.elements(v))) for v in arguments.positional))
        if kind in (reversed, tuple):
            return _wrapped(self._all.elements(arguments.all()))
        if issubclass(kind, tuple):
            pairs = zip(getattr(kind, "_fields", ()), arguments.positional, strict=False)
            named = {**dict(pairs), **arguments.named}
            is_known = len(named) == len(arguments.positional) + len(arguments.named)
            return (
                _NOTHING.union(*(_wrapped(v, n) for n, v in named.items())) if is_known else _wrapped(arguments.all())
            )
        if not is_from_library(kind) or kind in (map, filter):
            return self._unknown(arguments)
        if kind in (int, float, bool, complex, str, range) or issubclass(kind, np.generic):
            return _NOTHING
        # Iterators such as numpy.nditer hand out views; numbridge's elements are values.
        return _NOTHING if root_package(kind) == "numbridge" else _of_rank(arguments.all(), _UNKNOWN_RANK)

    def _ufunc(self, function: Any, arguments: _Arguments) -> _Value:
        outputs = _NOTHING.union(*arguments.positional[function.nin :], arguments.named.get("out", _NOTHING))
        self._all.write(outputs)
        return outputs

    def _numpy(self, function: Any, arguments: _Arguments) -> _Value:
        name = getattr(function, "__name__", "")
        if isinstance(function, MethodDescriptorType):
            return self._method(arguments.first(), name, arguments.rest())
        if isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, np.ufunc):
            # Of a ufunc's methods, `at` works in place; the others take an output after their operand.
            self._all.write(arguments.first() if name == "at" else arguments.rest().all())
            return _NOTHING
        if name in _NUMPY_WRITES_FIRST:
            self._all.write(arguments.first().union(*arguments.named.values()))
            return _NOTHING
        output = arguments.named.get("out", _NOTHING) | _NOTHING.union(*arguments.positional[_out_position(function) :])
        self._all.write(output)
        if _is_fresh(function, arguments):
            return output
        views = arguments.all()
        if name in _SAME_RANK:
            return views
        return _of_rank(views, 1 if name == "ravel" else _UNKNOWN_RANK)

    def _builtin(self, function: Any, arguments: _Arguments) -> _Value:
        name = function.__name__
        if name in _BUILTINS_READ:
            return _NOTHING
        if name in ("iter", "sorted"):
            return _wrapped(self._all.elements(arguments.first()))
        if name == "next":
            return self._all.elements(arguments.first())
        if name in ("min", "max"):
            return arguments.all() if len(arguments.positional) > 1 else self._all.elements(arguments.first())
        if name in _BUILTINS_REACH:
            return self._unknown(_Arguments(arguments.call, tuple(self._variables.values()), {}))
        return arguments.first() if name == "getattr" else self._unknown(arguments)

    def _operator(self, function: Any, arguments: _Arguments) -> _Value:
        name = function.__name__
        if name in ("setitem", "delitem") or (
            name.startswith("i") and hasattr(operator, f"__{name}__") and name != "inv"
        ):
            self._all.write(arguments.first())
        return arguments.first() | _of_rank(arguments.first(), _UNKNOWN_RANK)

    def _numba(self, function: Any, arguments: _Arguments) -> _Value:
        name = getattr(function, "__name__", None)
        if name in _NUMBA_READ:
            return arguments.all()
        # An instance of a Numba type is a cast.
        return _NOTHING if name is None else self._unknown(arguments)

    def _method(self, owner: _Value, name: str, arguments: _Arguments) -> _Value:
        self._all.write(arguments.named.get("out", _NOTHING))
        if name in _MUTATING_METHODS:
            self._all.write(owner)
            return _NOTHING
        if name in _VIEW_METHODS:
            return self._view(owner, name, arguments)
        if name in _READING_METHODS:
            # The output of a reduction comes after its operand.
            self._all.write(arguments.rest().all())
            return _NOTHING
        self._all.write(owner)
        return _of_rank(owner, _UNKNOWN_RANK) | self._unknown(arguments)

    def _view(self, owner: _Value, name: str, arguments: _Arguments) -> _Value:
        if name == "astype" and len(arguments.positional) < 2 and "copy" not in arguments.named:
            return _NOTHING
        if name in _SAME_RANK:
            return owner
        if name == "ravel":
            return _of_rank(owner, 1)
        shape = arguments.call.args
        if name == "reshape" and len(shape) > 1:
            return _of_rank(owner, len(shape))
        if name == "reshape" and len(shape) == 1 and isinstance(shape[0], ast.Tuple):
            return _of_rank(owner, len(shape[0].elts))
        flat = name == "reshape" and len(shape) == 1 and type(self._source.fold(shape[0])) is int
        return _of_rank(owner, 1 if flat else _UNKNOWN_RANK)


def _names(source: FunctionSource) -> tuple[str, ...]:
    """Return a function's parameters, with that which holds what is given beyond them."""
    return source.parameters if source.rest is None else (*source.parameters, source.rest)


def _dimensions_taken(value: Any) -> int:
    """Return how many dimensions a known index removes."""
    if value is None:
        return -1
    if value is Ellipsis or isinstance(value, slice):
        return 0
    if isinstance(value, tuple):
        return sum(_dimensions_taken(part) for part in value)
    return value.ndim if isinstance(value, np.ndarray) and value.dtype == np.bool_ else 1


def _is_fresh(function: Any, arguments: _Arguments) -> bool:
    """Return whether a NumPy function makes a new array rather than, perhaps, a view of an argument."""
    if function.__module__ is not None and function.__module__.startswith(
        ("numpy.linalg", "numpy.random", "numpy.fft")
    ):
        return True
    return function.__name__ in _NUMPY_FRESH and "copy" not in arguments.named


@functools.cache
def _out_position(function: Any) -> int:
    """Return at which position a NumPy function takes `out`, or a position past every argument."""
    past = 1 << 16
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return past
    positional = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    return positional.index("out") if "out" in positional else past
