"""What to say when Numba cannot compile generated source: what is wrong and where in the user's source, or else Numba's words."""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numbridge.kernels.compilation.operation_errors import in_place_of_call, in_plain_words
from numbridge.kernels.errors import KernelError
from numbridge.kernels.language.parsing import parsed
from numbridge.kernels.language.written_out import refusal_at
from numbridge.kernels.parameter_types import ParameterType

__all__ = ["NO_MEMORY", "not_compiled"]

NO_MEMORY = (
    "it needs memory for an array of its own, which kernels do not have (x[i] + 1 is one too, if x has two dimensions); write a "
    "loop over the elements, or let rows of few numbers be vectors, as in `def kernel(x: nb.array[nb.vec3], ...)`"
)

_OVERLAP = (
    "an array cannot be assigned to rows or a slice, since it may overlap with them, and kernels have no memory for a copy; "
    "write a loop over the elements, as in `for k in range(x.shape[1]): y[i, k] = x[i, k]`"
)

# What Numba says to slices that are assigned, or added, where it may not allocate.
_NRT = "NRT required but not enabled"
# Floats that are stored only
_NARROW = frozenset({"float8_e4m3fn", "float8_e5m2"})
# What it says of exceptions with numbers in them on CUDA; on the CPU these need memory
_DYNAMIC = "return_dynamic_user_exc"
_RAISED = (
    "an exception in a kernel is made of constants, and this one of what only the running kernel knows; raise it with a text of "
    "its own, and print(...) the numbers before"
)
_UNKNOWN_GLOBAL = re.compile(r"Untyped global name '(\w+)': Cannot determine Numba type of <class '([^']+)'>")
_CALLED = re.compile(r"(?i)function|method|\bpartial$")
_OF_KERNELS = frozenset(
    {"numbridge.kernels.language.inner_gradients.Gradient", "numbridge.kernels.language.intrinsics.Intrinsic"}
)
# Types as Numba writes them
_ARRAY = re.compile(r"(?:readonly )?(?:unaligned )?array\((?:element\()?(\w+)\)?, \dd, \w\)")
_TUPLE = re.compile(r"(?:Uni)?Tuple\([^()]*\)")
_HERE = str(Path(__file__).parents[1])
_NOISE = ("Failed in ", "- Resolution failure ")


def not_compiled(
    error: Exception,
    entry: str,
    parameters: Sequence[ParameterType],
    filename: str,
    origin: Callable[[int], str | None],
    where: str = "",
) -> KernelError:
    """Return the error of a kernel that Numba cannot compile, to be raised ``from None``: it has of Numba's words what it needs.

    Parameters
    ----------
    error : Exception
        What Numba raised.
    entry : str
        The kernel's name.
    parameters : sequence of ParameterType
        What it was compiled for.
    filename : str
        The generated source.
    origin : callable
        Returns where a line of the generated source comes from, as ``file:line:column`` with the line and a caret.
    where : str
        For which back end, as in ``" on CUDA"``.
    """
    listed = ", ".join(f"{p.name}: {p}" for p in parameters)
    text = str(error)
    places = _places(text, filename, origin) or _places_in_frames(error, filename, origin)
    # Within what stands for a function of NumPy's or Python's, the user's place is that of the call.
    place = next((place for place in places if refusal_at(place) is None), None)
    refusal = refusal_at(places[0]) if places else None
    excerpt = "" if place is None else f"\n  {place}"
    # The statement that wants memory, if one is known
    statement = "" if place is None or _NRT not in text else place.splitlines()[1].strip()
    raising = _DYNAMIC in text or statement.startswith("raise ")
    problem = refusal or (_RAISED if raising else _OVERLAP if _is_copy(statement) else _own_words(text))
    more = "" if problem is not None else f"\nNumba says:\n{_without_noise(text)}"
    if problem is None or place is None:
        more += f"\nThe generated source is {filename}"
    return KernelError(
        f"kernel {entry!r} does not compile for ({listed}){where}: {problem or _first_line(text)}{excerpt}{more}"
    )


def _is_copy(statement: str) -> bool:
    """Tell whether a statement assigns what may be an array, as it is, to a part of another one."""
    try:
        tree = parsed(statement)
    except SyntaxError:  # the first line of a longer one
        return False
    match tree.body:
        case [ast.Assign([ast.Subscript()], ast.Name() | ast.Attribute() | ast.Subscript())]:
            return True
    return False


def _of_global(name: str, kind: str) -> str:
    """Return what is wrong with a global of a class that compiled code does not know."""
    if kind == "numbridge.kernels.kernel.Function":
        return (
            f"{name} is a device function of @nb.func, which functions of numba.njit cannot call; decorate with @nb.func "
            "what calls it"
        )
    if kind in _OF_KERNELS:
        return f"{name} works in kernels and functions of @nb.func only, not in those of numba.njit; decorate with @nb.func"
    if kind == "type":
        return (
            f"{name} is a class, of which kernels make no objects; pass the numbers and arrays that one holds as arguments, or "
            "write what it does with loops, tuples and functions of @nb.func"
        )
    if _CALLED.search(kind.rpartition(".")[2]):
        return (
            f"{name} is of type {kind}, which kernels cannot call; call functions of numbers of Python's math, NumPy or "
            "numbridge, or functions of your own that are decorated with @nb.func"
        )
    return (
        f"{name} is of type {kind.replace('<locals>.', '')}, which kernels cannot read; pass the numbers and arrays that it "
        "holds as arguments, or make a constant of one of its numbers: nb.static(...) around the expression that gives it"
    )


def _places(text: str, filename: str, origin: Callable[[int], str | None]) -> list[str]:
    """Return where the lines come from that Numba names, the innermost first, since it goes from inside outward."""
    name = re.escape(Path(filename).name)
    found = (origin(int(match[1] or match[2])) for match in re.finditer(rf'{name}(?:", line (\d+)| \((\d+)\))', text))
    return [place for place in found if place is not None]


def _places_in_frames(error: Exception, filename: str, origin: Callable[[int], str | None]) -> list[str]:
    """Return the same of the lines whose types were inferred when an error was raised, which numba.cuda does not say."""
    places: list[str] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        at: Any = _loc_of(frame.f_locals.get("self"))
        place = origin(at.line) if getattr(at, "filename", None) == filename else None
        if place is not None:
            places.insert(0, place)
    return places


def _loc_of(value: object) -> object:
    try:
        return getattr(value, "loc", None)
    except KeyError:  # from structures that Numba builds, which are asked for a field of that name
        return None


def _own_words(text: str) -> str | None:
    """Return what is wrong in numbridge's words; None for what it has none for."""
    instead = in_place_of_call(text)
    if instead is not None:
        return instead
    if _NRT in text:
        return NO_MEMORY
    own = re.search(rf"raised a specific error:\s+\w+: (.+)\n\s+raised from {re.escape(_HERE)}", text)
    if own is not None:  # one of numbridge's intrinsics says it better
        return _TUPLE.sub("a tuple", _ARRAY.sub(r"an array of \1", own[1]))
    called = re.search(r"Untyped global name '(\w+)': Cannot determine Numba type of <class 'function'>", text)
    if called is not None:
        return f"{called[1]} is a Python function, which kernels cannot call; decorate it with @nb.func"
    unknown = _UNKNOWN_GLOBAL.search(text)
    if unknown is not None:
        return _of_global(unknown[1], unknown[2])
    changing = re.search(r"The use of a reflected (list|set).*assigned to variable '(\w+)' in globals", text)
    if changing is not None:  # of a function of numba.njit
        return f"{changing[2]} is a {changing[1]}, which kernels cannot read; make it a tuple, or pass an array"
    narrow = next((line for line in text.splitlines() if line.strip() in _NARROW), None)
    if narrow is not None:  # all that Numba says of a call such as ml_dtypes.float8_e5m2(x)
        return (
            f"{narrow.strip()}(...) makes no number in a kernel: floats of 16 and 8 bits are stored in arrays, and computed with "
            "in float32; leave the conversion out, and store to an array of that dtype to round"
        )
    return in_plain_words(text)


def _first_line(text: str) -> str:
    """Return the first line in which Numba says what is wrong, with what an operation was given."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_NOISE)]
    first = lines[0] if lines else text
    if first.endswith("found for signature:") and len(lines) > 1:
        return f"{first.removesuffix(' found for signature:')} for {lines[1].removeprefix('>>>').strip()}"
    return first


def _without_noise(text: str) -> str:
    """Return Numba's words without the names of its passes, and without how it came to the kernel from generated code."""
    words = text.partition("\nDuring: resolving callee type")[0]
    return "\n".join(line for line in words.splitlines() if not line.startswith(("Failed in ", "During: Pass"))).strip()
