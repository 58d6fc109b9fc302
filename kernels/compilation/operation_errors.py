"""What Numba says of vectors, matrices, records and complex numbers in the words of the kernel, with what to do.

Takes and returns text; what is not recognised is left to the caller. Imports neither Numba nor NumPy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

__all__ = ["in_plain_words"]

_ARITHMETIC = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "divide": "/",
    "divide_in_place": "/",
    "floordiv": "//",
    "mod": "%",
    "matmul": "@",
    "pow": "**",
}
_ORDER = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_SIGNS = {
    **{f"i{name}": sign for name, sign in _ARITHMETIC.items()},
    **_ARITHMETIC,
    **_ORDER,
    "eq": "==",
    "ne": "!=",
}
_OF_VECTORS = {
    "mul": "; nb.dot, nb.cross, nb.outer and nb.cw_mul multiply vectors",
    "truediv": "; nb.cw_div divides by component",
}
_ELEMENT = re.compile(r"element\((\w+)\)")
_OWN = re.compile(r"(?:\w+ )*(?:array\()?(?:read-only )?(?:element|Record)\(")
_ARRAY = re.compile(r"(?:readonly )?(?:unaligned )?array\((\w+), (\d)d, ")
_NUMBER = re.compile(r"(?:u?int|float|complex)\d+|bool")
_MAKES_ARRAYS = (
    "zeros",
    "ones",
    "empty",
    "full",
    "zeros_like",
    "ones_like",
    "empty_like",
    "array",
    "arange",
    "linspace",
)
_CALL = re.compile(r"No implementation of function (Function\(.+\)) found for signature:\s+>>> (.+)")


def in_plain_words(text: str) -> str | None:
    """Return what is wrong with an operation on vectors, matrices or records that Numba refused; None for anything else.

    Examples
    --------
    >>> in_plain_words("Unknown attribute 'xy' of type element(vec3)")
    "a vec3 has no part 'xy'; take components, as in v[0], or make a new one of them"
    """
    for pattern, said in _SAID:
        found = re.search(pattern, text)
        if found is not None:
            return said(found)
    # A store of several steps fails in one of them, of which Numba speaks after it.
    calls = [call for call in _CALL.finditer(text) if not call[2].startswith("put_part(")]
    return _of_call(calls[0][1], calls[0][2]) if calls else None


def _named(kind: str) -> str:
    """Return a type of Numba's as messages call it."""
    kind = kind.strip().removeprefix("unaligned ").removeprefix("readonly ")
    whole = _ELEMENT.fullmatch(kind)
    if whole is not None:
        return whole[1]
    if kind.startswith(("Record(", "read-only Record(")):
        fields = re.findall(r"[(,](\w+)\[type=", kind)
        return f"record ({', '.join(fields)})"
    if kind.startswith("array("):
        inner = kind[len("array(") : -1].rsplit(", ", 2)[0]
        return f"array of {_named(inner)}"
    literal = re.fullmatch(r"Literal\[(\w+)\]\(.*\)", kind)
    if literal is not None:
        return literal[1]
    return "tuple" if kind.startswith(("Tuple(", "UniTuple(")) else "slice" if kind.startswith("slice<") else kind


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def _arguments(listed: str) -> list[str]:
    """Return the parts of a list of types, which may hold commas themselves."""
    parts, depth, part = [], 0, ""
    for letter in listed:
        depth += (letter in "([<") - (letter in ")]>")
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [*parts, part] if part.strip() else parts


def _of_call(function: str, signature: str) -> str | None:
    name, _, listed = signature.partition("(")
    given = _arguments(listed.rstrip().removesuffix(")"))
    if re.fullmatch(r"Function\(\w+\)", function):  # of a class: an element type
        return (
            f"{name} is not made of ({', '.join(map(_named, given))}): pass nothing, one number for all components, all of them, "
            "or vectors and numbers that make them up"
        )
    if not any(_OWN.match(kind.strip()) for kind in given):
        return _of_numbers(function, name, given)
    kinds = [_named(kind) for kind in given]
    said = _CALLS.get(name)
    if said is not None:
        return said(given, kinds)
    if name in _SIGNS and len(kinds) == 2:
        return f"there is no {kinds[0]} {_SIGNS[name]} {kinds[1]}{_way_out(name.removeprefix('i'), given, kinds)}"
    called = re.match(r"Function\(<(?:built-in )?function (\w+)", function) or re.match(
        r"Function\(<class '(\w+)'", function
    )
    return None if called is None else f"{called[1]} does not take ({', '.join(kinds)})"


def _of_numbers(function: str, name: str, given: list[str]) -> str | None:
    """Return what is wrong with an index of an array of numbers, or with a call that makes an array."""
    if name in _MAKES_ARRAYS and "built-in function" in function:
        return (
            f"np.{name} makes an array, for which kernels have no memory; use cuda.local.array(shape, dtype), "
            "of a constant shape"
        )
    if name == "contains" and given[0].strip().startswith("Tuple("):
        return "`in` looks into a tuple of numbers of one type only; convert them, or compare with each, as in x == a or x == b"
    if (name == "setitem" and given[2].strip() == "none") or (name in _SIGNS and "none" in map(str.strip, given)):
        return "None is stored or computed with here, which a function gives that returns nothing; return a number on every path"
    if name in ("getitem", "setitem", "static_getitem", "static_setitem") and _NUMBER.fullmatch(given[0].strip()):
        return (
            f"{_with_article(given[0].strip())} is a number, and is indexed here like an array; pass an array, or leave out "
            "the index"
        )
    array = _ARRAY.match(given[0].strip()) if given else None
    if name not in ("getitem", "setitem") or array is None:
        return None
    ndim, index = int(array[2]), given[1].strip()
    of = f"an array of {array[1]} with {ndim} dimension{'' if ndim == 1 else 's'}"
    many = re.fullmatch(r"UniTuple\(.+ x (\d+)\)", index)
    parts = int(many[1]) if many else len(_arguments(index[len("Tuple(") : -1])) if index.startswith("Tuple(") else 1
    if (fraction := _of_fraction(index)) is not None:
        return fraction
    if parts > ndim:
        numbers = f"{parts} numbers" if parts > 1 else "a number"
        return f"{of} is indexed by {numbers}{'; index it by [()]' if ndim == 0 else ''}"
    stored = _named(given[2]) if name == "setitem" else ""
    if stored in ("str", "tuple"):
        return f"{of} does not take {'text' if stored == 'str' else 'a tuple'}; store numbers, one in each element"
    if name == "setitem" and parts == ndim and _ARRAY.match(given[2].strip()):
        return f"an element of {of} is a number, and this stores an array there; choose an element of that, or write a loop"
    return None


def _of_fraction(index: str) -> str | None:
    """Return what is wrong with an index that is, or has, a floating-point number."""
    found = re.search(r"(?<!array\()\bfloat\d+\b", index)
    if found is None or "element(" in index:
        return None
    return f"an index is an integer, and this is a {found[0]}; divide with //, or convert with int(...)"


def _is_array(kind: str) -> bool:
    return "array(" in kind.partition("Record(")[0]


def _way_out(name: str, given: list[str], kinds: list[str]) -> str:
    """Return what to write instead of an operation."""
    elements = [kind for kind, text in zip(kinds, given, strict=True) if _ELEMENT.fullmatch(text.strip())]
    if name in _ORDER:
        return "; compare components, or lengths"
    if name == "pow":
        return "; multiply, as in v[0] * v[0]"
    if len(elements) == 2:
        if elements[0] != elements[1]:
            return f"; convert one of them, as in {elements[0]}(value), if they have as many components"
        return _OF_VECTORS.get(name, "")
    if len(elements) == 1 and name in ("add", "sub"):
        return f"; make {_with_article(elements[0])} of the number, as in {elements[0]}(value)"
    if name == "truediv" and kinds[1] in elements:
        return f"; nb.cw_div({kinds[1]}(value), v) divides by component"
    return ""


def _of_truth(given: list[str], kinds: list[str]) -> str:
    return f"{_with_article(kinds[0])} is neither true nor false; compare it, or one of its components"


def _of_index(given: list[str], kinds: list[str]) -> str | None:
    if (fraction := _of_fraction(given[1])) is not None:
        return fraction
    if _is_array(given[0]):
        return (
            f"{_with_article(kinds[0])} has no index of type {kinds[1]}; its elements are indexed apart, as in a[i][0]"
        )
    return (
        f"{_with_article(kinds[0])} has no index of type {kinds[1]}: a vector takes one int, a matrix a row's or a row's and a "
        "column's; take components one by one"
    )


def _of_store(given: list[str], kinds: list[str]) -> str | None:
    if (fraction := _of_fraction(given[1])) is not None:
        return fraction
    if _is_array(given[0]):
        inner = kinds[0].removeprefix("array of ")
        if kinds[2] != inner and kinds[1] != "tuple":
            wanted = f"{inner}(...)" if "element(" in given[0] else "its parts, as in v[0]"
            return f"{_with_article(kinds[0])} holds nothing but {inner}, and {kinds[2]} is stored; store {wanted}"
        return (
            f"{_with_article(kinds[0])} does not take {kinds[2]} at an index of type {kinds[1]}; the components of its elements "
            "are indexed apart, as in a[i][0] = value"
        )
    return f"{_with_article(kinds[0])} does not take {kinds[2]} at an index of type {kinds[1]}"


_CALLS: dict[str, Callable[[list[str], list[str]], str | None]] = {
    "bool": _of_truth,
    "not_": _of_truth,
    "getitem": _of_index,
    "setitem": _of_store,
    "replaced": _of_store,
}


def _of_part(found: re.Match[str]) -> str:
    return f"{_with_article(found[2])} has no part {found[1]!r}; take components, as in v[0], or make a new one of them"


def _of_iteration(found: re.Match[str]) -> str:
    return (
        f"{_with_article(found[1])} is neither unpacked nor iterated over in a kernel; take its components, as in v[0]"
    )


def _of_module(found: re.Match[str]) -> str:
    return (
        f"{found[2]}.{found[1]} cannot be called here: kernels make no arrays and launch nothing, and functions of numba.njit "
        "have no threads and no gradients; decorate such a function with @nb.func instead"
    )


def _in_math(name: str) -> str:
    return f", as math.{name}(value)" if hasattr(math, name) else ""


def _of_number(found: re.Match[str]) -> str | None:
    if not hasattr(math, found[1]):
        return None
    return (
        f"{_with_article(found[2])} has no .{found[1]}: elements are numbers in a kernel, and no tensors; call functions on "
        f"them{_in_math(found[1])}"
    )


def _of_array(found: re.Match[str]) -> str:
    return f"an array has no .{found[1]} in a kernel; write a loop over its elements, or compute it before the launch"


def _of_other_module(found: re.Match[str]) -> str:
    if re.fullmatch(r"u?int\d+|float\d+|complex\d+|bool", found[1]):
        return f"kernels do not know {found[2]}.{found[1]}; write numpy.{found[1]}"
    return (
        f"{found[2]}.{found[1]} works on whole arrays, and kernels cannot call it; call functions of numbers of Python's math, "
        f"NumPy or numbridge{_in_math(found[1])}"
    )


def _of_loop(found: re.Match[str]) -> str:
    return f"{_with_article(_named(found[1]))} cannot be looped over; loop over range(n), an array or a tuple"


def _of_binding(found: re.Match[str]) -> str:
    """Return what is wrong with the arguments of a call of a device function."""
    given = [found[1].strip("(),"), *found[2].strip("{}").replace("'", "").split(", ")]
    return (
        f"a device function with the parameters {found[3]} is called with ({', '.join(filter(None, given))}): {found[4]}; pass "
        "one argument for each"
    )


def _of_names(found: re.Match[str]) -> str:
    first, second = _named(found[1]), _named(found[2])
    name = found[3].split(".")[0]
    what = "a conditional expression" if name.startswith("$") else repr(name)
    if first == second:
        return f"{what} is one {first} on one path and a different one on another, which differ in layout; use a name for each"
    return f"{what} is {_with_article(first)} on one path and {_with_article(second)} on another; use a name for each"


def _of_declared(found: re.Match[str]) -> str:
    """Return what is wrong with a call of a function that Numba compiled for declared types when it was defined."""
    kinds = [kind.strip() for kind in _arguments(found[2])]
    only_read = any(kind.startswith("readonly ") for kind in kinds)
    why = ", where an array that the kernel only reads is read-only" if only_read else ""
    return (
        f"{found[1]} is compiled for the types that its decorator declares, not for ({', '.join(map(_named, kinds))}){why}; "
        "leave the signatures out of @njit(...), so that each call compiles it for its own"
    )


# Numba's other messages, as patterns.
_SAID: tuple[tuple[str, Callable[[re.Match[str]], str | None]], ...] = (
    (
        r">>> setitem\(array\((\w+), [^)]*\), .+, (complex\d+)\)",
        lambda found: (
            f"an array of {found[1]} does not take {found[2]}; store its .real or .imag, or pass an array of {found[2]}"
        ),
    ),
    (r"Unknown attribute '(\w+)' of type element\((\w+)\)", _of_part),
    (
        r"_part_setter(?:.|\n)*?>>> with_part\(element\((\w+)\)",
        lambda found: f"a {found[1]} has no such part to store into",
    ),
    (r"(?:getiter with parameters \(|failed to unpack )element\((\w+)\)", _of_iteration),
    (
        r"cannot type infer runaway recursion",
        lambda found: "a function that calls itself needs a path that returns a number without doing so",
    ),
    (r"Unknown attribute '(\w+)' of type Module\(<module '(numbridge)'", _of_module),
    (r"Unknown attribute '(\w+)' of type Module\(<module '((?!numpy|math)[\w.]+)'", _of_other_module),
    (r"Unknown attribute '(\w+)' of type (?:readonly )?(?:unaligned )?array\(", _of_array),
    (
        r">>> npy_(max|min)\(readonly array\(",
        lambda found: (
            f"the {found[1]} of an array that the kernel only reads cannot be had in one call; write a loop over its elements"
        ),
    ),
    (r"Unknown attribute '(\w+)' of type ((?:u?int|float|complex)\d+)\b", _of_number),
    (r"Invalid use of type\(CPUDispatcher\(<function (\w+) at \w+>\)\) with parameters \((.*)\)\nKnown", _of_declared),
    (r"Invalid use of getiter with parameters \((\w+)\)", _of_loop),
    (
        r"Cannot bind 'args=(.*?) kws=(\{.*?\})' to signature '(\(.*?\))' due to \"TypeError: (.+?)\.?\"",
        _of_binding,
    ),
    (r"Cannot unify (.+?) and (.+?) for '([^']+)', defined", _of_names),
)
