"""Calls of njit functions: each kernel has code of its own of them, and what is declared for them holds.

Numba keeps one code of a function for each tuple of types, with the options of who called it first: whether division by zero
raises, whether sums are reassociated. So a kernel's numbers would depend on who had called the function before, and those that
the user's own calls give on kernels. Here a kernel calls a copy of the function, which is compiled with it.

Of functions that were compiled for declared types when they were defined, `@njit(float64(float64[:]))`, it is another: a kernel's
arrays that it only reads are read-only there, which no signature names, and CUDA compiles no such functions at all. So a call
converts its arguments to one of the declared signatures, as Numba does, and calls the same function compiled for the arrays as
they are. Variables that `locals` declares as arrays are left to Numba likewise. Importing this module imports Numba.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CellType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from numba import njit, typeof, types
from numba.core import targetconfig
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.extending import overload

from numbridge.kernels.language.njit_functions import declared, kept_values
from numbridge.kernels.language.source import reads_what_it_did
from numbridge.kernels.language.static_names import instance_of, is_dispatcher

__all__ = ["Copies", "copied_on_the_cpu", "declared_calls"]

_CALLED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
# The functions that are made here
_MADE: WeakSet[Any] = WeakSet()
# What is called in the place of functions of `numba.vectorize`, by the options of who calls them
_UFUNCS: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
# A global of every text that is generated for a kernel
GENERATED = "_nb_device"


class Copies:
    """What is called in the place of functions while one kernel is compiled; `copy` makes it."""

    def __init__(self, copy: Callable[[Any], Any]) -> None:
        self._copy = copy
        # By identity, with what each is of, or another function could get that
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, dispatcher: Any) -> Any:
        """Return what is called in the place of an njit function, which may be itself."""
        if id(dispatcher) not in self._made:
            made = self._copy(dispatcher) if _is_copied(dispatcher) else dispatcher
            self._made[id(dispatcher)] = dispatcher, made
        return self._made[id(dispatcher)][1]

    def of_ufunc(self, function: Any) -> Any:
        """Return what is called in the place of a function of `numba.vectorize`, which may be itself."""
        dispatcher = function._dispatcher
        if function._frozen or not _is_settled(dispatcher):
            return function
        flags = targetconfig.ConfigStack.top_or_none()
        options = "" if flags is None else f"{flags.fastmath} {flags.forceinline}"
        # Numba never forgets one, so there is one for all kernels with these options.
        made = _UFUNCS.setdefault(function, {})
        if options not in made:
            made[options] = type(function)(dispatcher.py_func, function.identity, targetoptions=function.targetoptions)
        return made[options]

    def called(self, value: Any) -> Any:
        """Return what was called in the place of a value, if it was; else the value."""
        return self._made.get(id(value), (value, value))[1]

    @property
    def all(self) -> list[Any]:
        """What was called in the place of any function."""
        return [made for _, made in self._made.values()]


def copied_on_the_cpu(dispatcher: Any) -> Any:
    """Return a function of the same source and options of which nothing is compiled yet."""
    compiler = dispatcher._compiler
    return type(dispatcher)(dispatcher.py_func, compiler.locals, dispatcher.targetoptions, compiler.pipeline_class)


def _is_settled(dispatcher: Any) -> bool:
    """Tell whether all values are as they were that the function's compiled code has kept."""
    return all(dependency.is_unchanged() for dependency in kept_values(dispatcher))


def _is_copied(dispatcher: Any) -> bool:
    """Tell whether a function is to have code of its own in each kernel.

    Not those that are compiled for one kernel anyway, nor numbridge's, which leave no option to who calls them.
    """
    function = dispatcher.py_func
    if not dispatcher._can_compile or GENERATED in function.__globals__:
        return False
    home = (function.__module__ or "").partition(".")[0]
    if home in ("numbridge", "numba"):
        return home == "numba"
    # Code that is compiled now would not have what has changed since. What kernels are stored under says the same of a function.
    return reads_what_it_did(dispatcher)


@contextmanager
def declared_calls(context: Any, copy: Callable[[Any], Any], *, everything: bool) -> Iterator[Copies]:
    """Let njit functions be called so.

    Parameters
    ----------
    context : object
        The typing context of Numba or numba.cuda.
    copy : callable
        Makes of a function of Numba's one of which nothing is compiled yet, for the context.
    everything : bool
        Whether functions with declared types and without arrays are called with conversions, too, and what the context does not
        know is refused, as for CUDA.

    Yields
    ------
    Copies
        What has been called.
    """
    kind, copies = type(context), Copies(copy)
    with global_compiler_lock:
        original = kind.resolve_value_type

        def resolve(self: Any, value: Any) -> Any:
            if not is_dispatcher(value):
                is_lazy = not everything and instance_of(value, "numba.np.ufunc.dufunc", "DUFunc")
                return original(self, copies.of_ufunc(value) if is_lazy else value)
            if everything:
                _refuse_variables(value)
            called = _called(value, everything=everything)
            if called is None:
                return original(self, copies.of(value))
            self.refresh()  # which lets it know what has just been entered
            return original(self, called)

        kind.resolve_value_type = resolve
        try:
            yield copies
        finally:
            kind.resolve_value_type = original


def _refuse_variables(dispatcher: Any) -> None:
    """Refuse variables of declared types, which numba.cuda would give others, and so compute something else."""
    for name, kind in declared(dispatcher).variables:
        if not _is_array(kind):
            function = dispatcher.py_func.__name__
            raise TypingError(f"{function} declares {name} with {kind}, which numba.cuda does not know")


def _called(dispatcher: Any, *, everything: bool) -> Any:
    """Return what is called in place of a function, or None if it can be called itself."""
    found = declared(dispatcher)
    if dispatcher in _MADE:
        return None
    kinds = [
        *(kind for signature in found.signatures for kind in signature.args),
        *(kind for _, kind in found.variables),
    ]
    if not any(map(_is_array, kinds)) and not (everything and found.signatures):
        return None
    if dispatcher not in _CALLED:
        # Code that is compiled now would not have what has changed since; and what calls itself calls what was compiled.
        calls_itself = any(value is dispatcher for value in _globals_of(dispatcher.py_func))
        _CALLED[dispatcher] = _entered(dispatcher, found) if _is_settled(dispatcher) and not calls_itself else None
    return _CALLED[dispatcher]


def _globals_of(function: Any) -> Iterator[Any]:
    for name in function.__code__.co_names:
        yield function.__globals__.get(name)
    for cell in function.__closure__ or ():
        if cell != CellType():  # which has nothing in it
            yield cell.cell_contents


def _entered(dispatcher: Any, found: Any) -> Any:
    """Return a function that Numba knows what to do with, for the parameters and the defaults of another."""
    function = dispatcher.py_func
    signature = inspect.signature(function)
    parameters = [*signature.parameters.values()]
    if any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        return None
    options = {name: value for name, value in dispatcher.targetoptions.items() if name != "nopython"}
    variables = dict(found.variables)
    read = {name: kind.copy(readonly=True) if _is_array(kind) else kind for name, kind in variables.items()}
    lazy = {writes: njit(function, locals=kinds, **options) for writes, kinds in ((True, variables), (False, read))}
    _MADE.update(lazy.values())
    names = {f"_nb_default{k}": parameter.default for k, parameter in enumerate(parameters)}
    listed = ", ".join(p.name if p.default is p.empty else f"{p.name}=_nb_default{k}" for k, p in enumerate(parameters))

    def implementation(kinds: Sequence[Any]) -> Any:
        given = [_type_of(kind) for kind in kinds]
        called = lazy[not any(_is_array(kind) and not kind.mutable for kind in given)]
        if not found.signatures:
            return _made(listed, names, [p.name for p in parameters], called, None)
        chosen = _chosen(found.signatures, given)
        if chosen is None:  # in Numba's words
            told = f"type(CPUDispatcher(<function {function.__name__} at 0>)) with parameters ({', '.join(map(str, given))})"
            raise TypingError(f"Invalid use of {told}\nKnown signatures: {found.signatures}")
        pairs = list(zip(given, chosen.args, strict=True))
        passed = [
            f"_nb_type{k}({p.name})" if _are_numbers(*pair) and pair[0] != pair[1] else p.name
            for k, (p, pair) in enumerate(zip(parameters, pairs, strict=True))
        ]
        casts = {f"_nb_type{k}": _cast_to(wanted) for k, wanted in enumerate(chosen.args)}
        return _made(listed, names | casts, passed, called, chosen.return_type)

    given = "".join(f"{p.name}, " for p in parameters)
    known = names | {"_nb_implementation": implementation}
    text = f"def _nb_generic({listed}): return _nb_implementation(({given}))\n"
    exec(f"{text}def _nb_marker({listed}): raise NotImplementedError('for kernels only')", known)
    marker = known["_nb_marker"]
    marker.__name__ = marker.__qualname__ = function.__name__  # for messages
    overload(marker)(known["_nb_generic"])
    return marker


def _chosen(signatures: Sequence[Any], given: Sequence[Any]) -> Any:
    """Return the signature that Numba would choose if the arrays could be written to, or None."""
    writable = tuple(kind.copy(readonly=False) if _is_array(kind) else kind for kind in given)
    cases = [signature for signature in signatures if len(signature.args) == len(given)]
    found = cpu_target.typing_context.resolve_overload("declared", cases, writable, {}) if cases else None
    if found is None:
        return None
    # What is neither a number nor an array is not converted here.
    fits = [
        kind == wanted or _is_array(kind) or _are_numbers(kind, wanted)
        for kind, wanted in zip(writable, found.args, strict=True)
    ]
    return found if all(fits) else None


def _type_of(kind: Any) -> Any:
    """Return the type of an argument, which may be a default."""
    kind = kind.value if isinstance(kind, types.Omitted) else kind
    return types.unliteral(kind if isinstance(kind, types.Type) else typeof(kind))


def _is_array(kind: Any) -> bool:
    return isinstance(kind, types.Array)


def _are_numbers(*kinds: Any) -> bool:
    return all(isinstance(kind, types.Number | types.Boolean) for kind in kinds)


def _cast_to(kind: Any) -> Any:
    return bool if isinstance(kind, types.Boolean) else kind


def _made(listed: str, names: dict[str, Any], passed: Sequence[str], lazy: Any, result: Any) -> Any:
    text = f"_nb_lazy({', '.join(passed)})"
    if result is not None and _are_numbers(result):
        text = f"_nb_result({text})"
    known = names | {"_nb_lazy": lazy, "_nb_result": _cast_to(result)}
    exec(f"def _nb_called({listed}): return {text}", known)
    return known["_nb_called"]
