"""What Numba says of operations and calls that there are not, in the words of the kernel, with what to do.

Takes and returns text; what is not recognised is left to the caller. Does not import Numba.
"""

from __future__ import annotations

import builtins
import cmath
import difflib
import math
import re
import sys
from collections.abc import Callable

import numpy as np

from numbridge.kernels.element_types.element_functions import FUNCTIONS, taken_by

__all__ = ["in_place_of_call", "in_plain_words"]

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
_OF_BITS = {"lshift": "<<", "rshift": ">>", "and_": "&", "or_": "|", "xor": "^"}
_SIGNS = {
    **{f"i{name}": sign for name, sign in _ARITHMETIC.items()},
    **{f"i{name.removesuffix('_')}": sign for name, sign in _OF_BITS.items()},
    **_ARITHMETIC,
    **_OF_BITS,
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
_ATTRIBUTES = (
    "shape",
    "size",
    "ndim",
    "dtype",
    "strides",
    "itemsize",
    "nbytes",
    "real",
    "imag",
    "sum",
    "mean",
    "max",
    "min",
)
_ALONE = {"neg": "-", "pos": "+", "invert": "~"}
_OF_ELEMENTS = "as are the elements of a parameter x: nb.array[nb.mat33]"
_SORTED = "sort a cuda.local.array in a loop, or the array before the launch"
# What to write in place of functions of NumPy's, Python's and numba.cuda's that do not take what they are given.
_INSTEAD = {
    "clip": "call np.clip(x, low, high) by its name, with numbers, or write min(max(x, low), high)",
    "where": "call np.where(condition, a, b) by its name, with numbers, or write a if condition else b",
    "max": "write a loop over the elements, or pass numbers one by one",
    "min": "write a loop over the elements, or pass numbers one by one",
    "pow": "write x ** y",
    "type": "name the type, as in nb.vec3(value)",
    "tuple": "write its parts out, as in (a[0], a[1])",
    "argsort": _SORTED,
    "det": f"write nb.determinant(a) of a matrix, {_OF_ELEMENTS}",
    "inv": f"write nb.inverse(a) of a matrix, {_OF_ELEMENTS}",
    "solve": f"write nb.inverse(a) * b of a matrix and a vector, {_OF_ELEMENTS}",
    **dict.fromkeys(("popc", "clz", "ffs"), "it takes integers"),
    "brev": "it takes uint32 and uint64",
    "fma": "it takes three numbers",
    "selp": "it takes a truth value and two numbers of one type",
}
_OF_MATH = _INSTEAD | {
    "isclose": "write abs(a - b) <= tolerance",
    **dict.fromkeys(("sum", "fsum", "prod", "comb", "perm", "factorial"), "write a loop"),
}
# What vectors and matrices of other languages have methods for.
_METHODS = {
    "norm": "nb.length(v)",
    "norm_sqr": "nb.length_sq(v)",
    "normalized": "nb.normalize(v)",
    "cross": "nb.cross(v, w)",
    "outer_product": "nb.outer(v, w)",
    "cast": "the name of the type, as in nb.vec2i(v)",
    "T": "nb.transpose(m)",
    **{name: f"nb.{name}(m)" for name in ("transpose", "determinant", "trace", "inverse")},
}
_ALIKE = "make them alike, as in (1.0, 2.0), or write the parts out"
# Whose names are the user's, unlike those of what takes the place of operations in generated code.
_FUNCTIONS = frozenset({*dir(builtins), *dir(math), *dir(cmath), *dir(np), *dir(np.linalg), *FUNCTIONS, *_INSTEAD})
_AT_ONCE = r"\A(?:\s*(?:Failed in|- Resolution failure).*\n)*\s*"
_CALLED = re.compile(r"Function\(<(?:(?:built-in )?function|intrinsic|class|ufunc) '?(?:[\w.]+\.)?(\w+)")
_CALL = re.compile(r"No implementation of function (Function\(.+\)) found for signature:\s+>>> (.+)")


def in_plain_words(text: str) -> str | None:
    """Return what is wrong with an operation or a call that Numba refused; None for what has no words here.

    Examples
    --------
    >>> in_plain_words("Unknown attribute 'xy' of type element(vec3)")
    "a vec3 has no part 'xy'; take components, as in v[0], or make a new one of them"
    """
    # What a function takes any number of is a tuple like others.
    text = re.sub(r"\bStarArg(Uni)?Tuple\(", r"\1Tuple(", text)
    for pattern, said in _SAID:
        found = re.search(pattern, text)
        if found is not None:
            return said(found)
    # A store of several steps fails in one of them, of which Numba speaks after it.
    calls = [call for call in _CALL.finditer(text) if not call[2].startswith("put_part(")]
    if re.search(r">>> put_part\((Uni)?Tuple\(", text):
        return "a tuple does not change, and neither do its parts; take one out, as in v = t[1], and make a new tuple"
    if not calls and "Only accept returning of array passed into the function" in text:
        return "a function that is called here returns an array; let it write into one that it is given, and return nothing"
    return _of_call(calls[0][1], calls[0][2]) if calls else None


def in_place_of_call(text: str) -> str | None:
    """Return what to write in place of a call of a library's function that does not take numbers, or not these; or None.

    What Numba says behind it is about its own code for arrays.
    """
    call = re.match(f"{_AT_ONCE}{_CALL.pattern}", text)
    called = None if call is None else _CALLED.match(call[1])
    return _of_call(call[1], call[2]) if call and called and called[1] in _INSTEAD else None


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
    literal = re.fullmatch(r"Literal\[(\w+)\]\((?:.|\n)*\)", kind)
    if literal is not None:
        return "text" if literal[1] == "str" else literal[1]
    buffer = re.match(r"(?:buffer|pyarray|memoryview|bytes|bytearray)\((\w+),", kind)
    if buffer is not None:
        return f"buffer of {buffer[1]}"
    if kind == "unicode_type":
        return "text"
    if " generator(" in kind:
        return "generator"
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
        kinds = [*map(_named, given)]
        if name.startswith("<"):  # a type of numbers
            name = function.removeprefix("Function(").removesuffix(")")
            return f"{name} does not take ({', '.join(kinds)}){_what_it_takes(name, kinds)}"
        way = "pass nothing, one number for all components, all of them, or vectors and numbers that make them up"
        if name.startswith("mat") and kinds and all(kind.startswith("vec") for kind in kinds):
            way = "nb.matrix_from_rows and nb.matrix_from_cols make a matrix of vectors"
        return f"{name} is not made of ({', '.join(kinds)}): {way}"
    if not any(_OWN.match(kind.strip()) for kind in given):
        return _of_numbers(function, name, given)
    kinds = [_named(kind) for kind in given]
    said = _CALLS.get(name)
    if said is not None:
        return said(given, kinds)
    if name in _SIGNS and len(kinds) == 2:
        return f"there is no {kinds[0]} {_SIGNS[name]} {kinds[1]}{_way_out(name.removeprefix('i'), given, kinds)}"
    called = _CALLED.match(function)
    if called is None or called[1].startswith("_") or ("<intrinsic " in function and called[1] not in _FUNCTIONS):
        return None
    if called[1] == "dot" and len({*kinds}) == 1 and "array" not in kinds[0]:
        return f"numpy.dot does not take ({', '.join(kinds)}); write nb.dot(v, w), or m @ n for matrices"
    return f"{called[1]} does not take ({', '.join(kinds)}){_what_it_takes(called[1], kinds)}"


def _of_numbers(function: str, name: str, given: list[str]) -> str | None:
    """Return what is wrong with an operation on numbers, arrays of these, tuples and text, or with a call that takes some."""
    if name in _MAKES_ARRAYS and "built-in function" in function:
        return (
            f"np.{name} makes an array, for which kernels have no memory; use cuda.local.array(shape, dtype), "
            "of a constant shape"
        )
    if name == "contains" and given[0].strip().startswith("Tuple("):
        return "`in` looks into a tuple of numbers of one type only; convert them, or compare with each, as in x == a or x == b"
    if (name == "setitem" and given[2].strip() == "none") or (name in _SIGNS and "none" in map(str.strip, given)):
        return (
            "None is stored or computed with here, which a function gives that returns nothing, or a name outside of the kernel "
            "stands for; return a number on every path, or bind the name to one"
        )
    if name in ("getitem", "setitem", "static_getitem", "static_setitem", "replaced") and _NUMBER.fullmatch(
        given[0].strip()
    ):
        return (
            f"{_with_article(given[0].strip())} is a number, and is indexed here like an array; pass an array, of shape (1,) or "
            "more (one of shape () is passed as a number), or leave out the index"
        )
    if name == "getitem" and given[0].strip().startswith("range_state_"):
        return (
            "a range is neither cut nor indexed in a kernel; write its bounds and its step, as in range(n - 1, -1, -1)"
        )
    array = _ARRAY.match(given[0].strip()) if given else None
    if name == "numpy_take" and array is not None and array[2] == "0":  # Numba's way to store one in an element
        return "an array of shape () is stored in an element here, which takes a number; write [()] behind it"
    if name not in ("getitem", "setitem") or array is None:
        return _of_tuple(name, given) or _of_operation(function, name, [*map(_named, given)])
    if name == "setitem" and given[0].strip().startswith("readonly "):
        return "an array from outside the kernel is a constant of it, and is not stored to; pass it as an argument"
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
    if stored in ("text", "tuple"):
        return f"{of} does not take {'text' if stored == 'text' else 'a tuple'}; store numbers, one in each element"
    if name == "setitem" and parts == ndim and _ARRAY.match(given[2].strip()):
        return f"an element of {of} is a number, and this stores an array there; choose an element of that, or write a loop"
    if name == "setitem" and parts == ndim and not _NUMBER.fullmatch(stored):
        return f"an element of {of} is a number, and this stores {_with_article(stored.partition('(')[0])} there"
    return None


def _of_tuple(name: str, given: list[str]) -> str | None:
    """Return what is wrong with an index of a tuple, or a store into one."""
    is_uneven = bool(given) and given[0].strip().startswith("Tuple(")
    if not is_uneven and not (given and given[0].strip().startswith("UniTuple(")):
        return None
    if name in ("replaced", "setitem"):
        return "a tuple does not change; make a new one, or take cuda.local.array for something to write into"
    if name != "getitem":
        return None
    if not _arguments(given[0].strip().partition("(")[2].removesuffix(")")):
        return "this tuple is empty, so there is no part of it to choose; where it holds what a star takes, pass one or more"
    if (fraction := _of_fraction(given[1])) is not None or not is_uneven:
        return fraction
    return f"{_parts_of(given[0])}, of which only a constant index chooses one; {_ALIKE}"


def _parts_of(kind: str) -> str:
    """Return of what a tuple is made whose parts differ in type."""
    inner = kind.strip().partition("(")[2].removesuffix(")")
    return f"this tuple has parts of different types ({', '.join(map(_named, _arguments(inner)))})"


def _of_operation(function: str, name: str, kinds: list[str]) -> str | None:
    """Return what is wrong with an operator, or with a call of a function of Python's or NumPy's."""
    if name in ("bool", "not_", "truth") and len(kinds) == 1 and kinds[0].startswith("array of "):
        return (
            "an array is neither true nor false, as is what compares one; compare its elements, as in x[i] > 0, or ask "
            "whether it was passed, as in x is not None"
        )
    if name in _SIGNS and len(kinds) == 2:
        way = "; kernels make no text: print(...) takes text and numbers apart" if "text" in kinds else ""
        if name.removeprefix("i") in _OF_BITS and any(kind.startswith("float") for kind in kinds):
            way = "; convert with int(...)"
        return f"there is no {kinds[0]} {_SIGNS[name]} {kinds[1]}{way}"
    if name in _ALONE and len(kinds) == 1:
        return f"there is no {_ALONE[name]}{kinds[0]}"
    called = _CALLED.match(function)
    if called is None or called[1] not in _FUNCTIONS:
        return None
    return f"{called[1]} does not take ({', '.join(kinds)}){_what_it_takes(called[1], kinds)}"


def _what_it_takes(name: str, kinds: list[str]) -> str:
    """Return the end of a sentence about a call of a function: what to write instead, or what it takes."""
    way = _INSTEAD.get(name) or (taken_by(name) if name in FUNCTIONS else "")
    if name in ("maximum", "minimum") and "none" in kinds:
        way = "as a limit of np.clip, None is written at the call"
    elif name in ("max", "min") and "bool" in kinds:
        way = "convert the truth value with int(...)"
    elif not way and any(kind.startswith("vec") for kind in kinds) and name not in FUNCTIONS:
        components = ", ".join(f"{v}[0]" for v, _ in zip("vw", kinds, strict=False))
        way = "write sum(c for c in v)" if name == "sum" else f"take components, as in {name}({components})"
    return f"; {way}" if way else ""


def _of_fraction(index: str) -> str | None:
    """Return what is wrong with an index that is, or has, a floating-point number, a truth value or text."""
    if "element(" in index:
        return None
    if re.search(r"Literal\[str\]|\bunicode_type\b", index):
        return "an index is an integer, and this is text, which names a field of a record; this array has none"
    if re.search(r"(?<!array\()\bbool(ean)?\b", index):
        return "an index is an integer, and this is a bool; convert with int(...), or write an if"
    found = re.search(r"(?<!array\()\bfloat\d+\b", index)
    if found is None:
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
        if _ELEMENT.fullmatch(given[1].strip()):
            return _of_vector_index(kinds)
        return (
            f"{_with_article(kinds[0])} has no index of type {kinds[1]}; its elements are indexed apart, as in a[i][0]"
        )
    return (
        f"{_with_article(kinds[0])} has no index of type {kinds[1]}: a vector takes one int, a matrix a row's or a row's and a "
        "column's, and a slice is written with constants, within its dimensions, and leaves something of it, as in v[0:2]"
    )


def _of_vector_index(kinds: list[str]) -> str:
    return (
        f"{_with_article(kinds[0])} has no index of type {kinds[1]}; its indices are numbers, one for each axis, as in "
        "a[v[0], v[1]]"
    )


def _of_store(given: list[str], kinds: list[str]) -> str | None:
    if (fraction := _of_fraction(given[1])) is not None:
        return fraction
    if _is_array(given[0]):
        if _ELEMENT.fullmatch(given[1].strip()):
            return _of_vector_index(kinds)
        inner = kinds[0].removeprefix("array of ")
        if kinds[2] != inner and kinds[1] != "tuple":
            wanted = f"{inner}(...)" if "element(" in given[0] else "its parts, as in v[0]"
            return f"{_with_article(kinds[0])} holds nothing but {inner}, and {kinds[2]} is stored; store {wanted}"
        return (
            f"{_with_article(kinds[0])} does not take {kinds[2]} at an index of type {kinds[1]}; the components of its elements "
            "are indexed apart, as in a[i][0] = value"
        )
    if _NUMBER.fullmatch(kinds[2]) and "slice" not in given[1]:
        # Components of variables are replaced, and no store into them is left.
        return (
            f"a component of {_with_article(kinds[0])} is stored here that is no variable: one from outside the kernel, or in a "
            "tuple; give it a name before, as in v = ..., and change that"
        )
    whole = f"{_with_article(kinds[0])} does not take {kinds[2]} at an index of type {kinds[1]}"
    way = "a slice is written with constants, as in v[0:2] = w, and not computed with in place; or store numbers, as in v[0] = x"
    return f"{whole}; {way}" if "slice" in given[1] else whole


def _of_parts(given: list[str], kinds: list[str]) -> str | None:
    """Return what is wrong with a tuple that is to be made of something, as ``*v`` between other arguments does."""
    whole = _ELEMENT.fullmatch(given[0].strip()) if len(given) == 1 else None
    return None if whole is None else _not_starred(whole[1])


_CALLS: dict[str, Callable[[list[str], list[str]], str | None]] = {
    "bool": _of_truth,
    "not_": _of_truth,
    "getitem": _of_index,
    "setitem": _of_store,
    "replaced": _of_store,
    "tuple": _of_parts,
}


def _of_part(found: re.Match[str]) -> str:
    if found[1] in _METHODS:
        return f"{_with_article(found[2])} has no method {found[1]!r}; write {_METHODS[found[1]]}"
    return f"{_with_article(found[2])} has no part {found[1]!r}; take components, as in v[0], or make a new one of them"


def _not_starred(kind: str) -> str:
    return f"the parts of {_with_article(kind)} are not passed by a star, and make no tuple; unpack it before, as in a, b = v"


def _of_star(found: re.Match[str]) -> str:
    whole = _ELEMENT.fullmatch(found[1].strip())
    if whole is not None:
        return _not_starred(whole[1])
    kind = _with_article(_named(found[1]))
    return f"only the parts of a tuple are passed one by one by a star, and this is {kind}; write the arguments out"


def _of_module(found: re.Match[str]) -> str:
    return (
        f"{found[2]}.{found[1]} cannot be called here: kernels make no arrays and launch nothing, and functions of numba.njit "
        "have no threads and no gradients; decorate such a function with @nb.func instead"
    )


def _in_math(name: str) -> str:
    return f", as math.{name}(value)" if hasattr(math, name) else ""


def _of_number(found: re.Match[str]) -> str:
    if found[1] == "astype":
        return f"{_with_article(found[2])} has no .astype in a kernel; convert it by a call, as in nb.int32(value)"
    return (
        f"{_with_article(found[2])} has no .{found[1]}: elements are numbers in a kernel, and no tensors; call functions on "
        f"them{_in_math(found[1])}"
    )


def _of_array(found: re.Match[str]) -> str:
    alike = difflib.get_close_matches(found[1], _ATTRIBUTES, n=1)
    if alike:
        return f"an array has no .{found[1]} in a kernel; did you mean .{alike[0]}?"
    return f"an array has no .{found[1]} in a kernel; write a loop over its elements, or compute it before the launch"


def _of_other_module(found: re.Match[str]) -> str:
    if re.fullmatch(r"u?int\d+|float\d+|complex\d+|bool", found[1]):
        return f"kernels do not know {found[2]}.{found[1]}; write numpy.{found[1]}"
    held = getattr(sys.modules.get(found[2]), found[1], None)
    if held is not None and not callable(held):
        return (
            f"{found[2]}.{found[1]} is of type {type(held).__qualname__}, which kernels cannot read; make a constant of one of "
            "its numbers: nb.static(...) around the expression that gives it"
        )
    return (
        f"{found[2]}.{found[1]} works on whole arrays, and kernels cannot call it; call functions of numbers of Python's math, "
        f"NumPy or numbridge{_in_math(found[1])}"
    )


def _of_loop(found: re.Match[str]) -> str:
    if found[1] == "Tuple()":
        return "this tuple is empty, and is not looped over; pass one element at least"
    if found[1].startswith("Tuple("):
        return f"{_parts_of(found[1])}, and is not looped over; {_ALIKE}"
    return f"{_with_article(_named(found[1]))} cannot be looped over; loop over range(n), an array or a tuple"


def _of_text(found: re.Match[str]) -> str:
    return f"text has no .{found[1]} in a kernel, which makes no text; print(...) takes text and numbers apart"


def _of_numbers_module(found: re.Match[str]) -> str:
    name = found["name"]
    way = _OF_MATH.get(name, "write it with others that kernels have, or as a function of your own with @nb.func")
    return f"kernels do not have {found['module']}.{name}; {way}"


def _of_binding(found: re.Match[str]) -> str:
    """Return what is wrong with the arguments of a call of a device function."""
    first = found[1].removeprefix("(").removesuffix(")")
    named = re.findall(r"'(\w+)': ((?:[^,(]|\([^)]*\))+)", found[2].strip("{}"))
    given = [*map(_named, _arguments(first)), *(f"{name}={_named(kind)}" for name, kind in named)]
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
    return (
        f"{found[1]} is compiled for the types that its decorator declares, not for ({', '.join(map(_named, kinds))}); "
        "leave the signatures out of @njit(...), so that each call compiles it for its own"
    )


def _of_variable(found: re.Match[str]) -> str:
    """Return what is wrong with a variable whose type was declared."""
    given, wanted = map(_named, found.group(1, 2))
    return f"{found[3]} is declared as {wanted}, and is assigned {given}; leave it out of @njit(locals=...)"


# Numba's other messages, as patterns.
_SAID: tuple[tuple[str, Callable[[re.Match[str]], str | None]], ...] = (
    (r"\Wrun_quicksort\W|lowering array\.sort\(", lambda found: f"kernels do not sort arrays; {_SORTED}"),
    (
        r"No definition for lowering <built-in function getitem>\(.*\bnone\b",
        lambda found: (
            "CUDA has no code for an index of None, which adds a dimension; index the array by its own dimensions"
        ),
    ),
    (r"Use of unsupported NumPy function '(?P<module>numpy)\.(?P<name>\w+)'", _of_numbers_module),
    (
        r">>> setitem\(array\((\w+), [^)]*\), .+, (complex\d+)\)",
        lambda found: (
            f"an array of {found[1]} does not take {found[2]}; store its .real or .imag, or pass an array of {found[2]}; "
            f"one that an operator or JAX makes is annotated, as nb.array[nb.{found[2]}]"
        ),
    ),
    (
        r"Unknown attribute '(\w+)' of type none",
        lambda found: f"None has no .{found[1]}; ask for an argument that may be None before, as in `if x is not None`",
    ),
    (r"Unknown attribute '(\w+)' of type element\((\w+)\)", _of_part),
    (
        r"Unknown attribute '(\w+)' of type dtype\((\w+)\)",
        lambda found: (
            f"a dtype has no {found[1]} in a kernel; pass it as an argument, or write nb.static(np.{found[2]}(0).{found[1]})"
        ),
    ),
    (
        r"\)\.(\w+) of type \S+ is not aligned",
        lambda found: (
            f"the field .{found[1]} of a record is not aligned, as CUDA needs it; make the dtype with align=True"
        ),
    ),
    (
        r"_part_setter(?:.|\n)*?>>> with_part\(element\((\w+)\)",
        lambda found: f"a {found[1]} has no such part to store into",
    ),
    (
        r"Invalid use of dtype\(\w+\) with parameters",
        lambda found: (
            "a dtype is not called in a kernel; what makes numbers of it is its .type, as in x.dtype.type(value)"
        ),
    ),
    (r"\*args in function call should be a tuple, got (.+)", _of_star),
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
    (
        r"Invalid use of type\(CPUDispatcher\(<function (?:[\w.<>]+\.)?(\w+) at \w+>\)\) with parameters \((.*)\)\n\s*Known",
        _of_declared,
    ),
    (
        r"(\w+) declares (\w+) with (\S+), which numba.cuda does not know",
        lambda found: (
            f"{found[1]} is compiled with a type for {found[2]}, locals={{{found[2]!r}: {found[3]}}}, which numba.cuda does not "
            "know; convert it in the function"
        ),
    ),
    (r"No conversion from (.+) to (.+) for '(\w+)', defined at", _of_variable),
    # Unlike one in a function of Numba's own, which is told of behind the call
    (rf"{_AT_ONCE}Unknown attribute '(\w+)' of type ((?:u?int|float|complex)\d+)\b", _of_number),
    (
        r"Invalid use of ((?:u?int|float|complex)\d+|bool) with parameters",
        lambda found: (
            f"{_with_article(found[1])} is a number, and is called here like a function; leave the brackets out"
        ),
    ),
    (
        r"failed to unpack ((?:u?int|float|complex)\d+|bool|none)\b",
        lambda found: (
            f"{_with_article(found[1]).replace('a none', 'None')} is unpacked into several names here, and has no parts"
        ),
    ),
    (
        rf"{_AT_ONCE}Cannot cast (complex\d+) to (\w+)",
        lambda found: f"a {found[1]} is not converted to {found[2]}; take its .real or .imag, or abs(...) of it",
    ),
    (
        rf"{_AT_ONCE}.*(?:arguments? .*given|missing \d+ required|keyword arg|Keyword arguments|values to unpack \(expected)",
        lambda found: "what is called here does not take so many arguments, or takes none by name",
    ),
    (
        r"Int value is too large: (-?\d+)",
        lambda found: (
            f"{found[1]} does not fit into 64 bits; write a floating-point number, as in {float(found[1]):.4g}"
        ),
    ),
    (
        r"OverloadSelector object at \w+>, \(([^()]+\(.*\)|\w+),\)",
        lambda found: (
            f"{_with_article(_named(found[1]))} from outside of the kernel is no constant of it; pass it as an argument, or "
            "make a NumPy array of it before"
        ),
    ),
    (r"Invalid use of getiter with parameters \((.+)\)", _of_loop),
    (r"Unknown attribute '(\w+)' of type (?:Literal\[str\]\(|unicode_type)", _of_text),
    (r"Unknown attribute '(?P<name>\w+)' of type Module\(<module '(?P<module>math|cmath|numpy)\b", _of_numbers_module),
    (
        r"wrong tuple length for .*expected (\d+), got (\d+)",
        lambda found: f"what has {found[2]} part{'' if found[2] == '1' else 's'} is unpacked into {found[1]} names",
    ),
    (
        rf"{_AT_ONCE}tuple index out of range",
        lambda found: "a constant index is beyond the end of a tuple, or an array has no such axis in .shape",
    ),
    (
        r"Cannot resolve setattr: \((?:readonly )?(?:unaligned )?array\(.*\)\.(\w+) =",
        lambda found: (
            f"an array has no .{found[1]} that a kernel stores into; store into its elements, as in x[i] = value"
        ),
    ),
    (
        r"No definition for lowering \w+\(.*\)\.(\w+) = ",
        lambda found: f"a named tuple does not change, and .{found[1]} is assigned to; make a new one",
    ),
    (
        r"Cannot resolve setattr: \(element\((\w+)\)\)\.(\w+) =",
        lambda found: (
            f"a {found[1]} has no part {found[2]!r} that is assigned to; assign to components, as in v[0] = value"
        ),
    ),
    (
        r"Variable '(\w+)' is not defined",
        lambda found: f"{found[1]!r} is read here where nothing has been assigned to it yet; assign it before",
    ),
    (
        r"Cannot cast type\(CUDADispatcher\(",
        lambda found: (
            "a name stands for one function on one path and for another on another, which CUDA cannot call; call each on its path"
        ),
    ),
    (
        r"Cannot bind 'args=(.*?) kws=(\{.*?\})' to signature '(\(.*?\))' due to \"TypeError: (.+?)\.?\"",
        _of_binding,
    ),
    (r"Cannot unify (.+?) and (.+?) for '([^']+)', defined", _of_names),
)
