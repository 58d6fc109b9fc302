"""Functions of NumPy's and Python's, step by step: kernels and derivatives are made of this source as of device functions'.

They are read, and never called. Of those that Numba compiles by itself only derivatives are made: they decide as Numba's do, also
where an array is not sorted or holds NaN. What they load is seen, so that a tape keeps it. Where NumPy's and Python's make floats
of integers first, so do these, by ``1.0 *``: differences of unsigned ones would begin anew at their end, and squares overflow.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from typing import Any

import numpy as np

from numbridge.kernels.language.static_names import known_by

__all__ = ["SUPPLIED", "WRITTEN_OUT", "refusal_at", "refusal_of"]


def searchsorted(a: Any, v: Any, side: str = "left") -> Any:
    """Return before which element a number belongs; NaN belongs at the end."""
    low = 0
    high = len(a)
    while low < high:
        middle = low + ((high - low) >> 1)
        found = a[middle]
        if side == "left":
            before = found < v or (v != v and found == found)
        else:
            before = not (v < found or (found != found and v == v))
        if before:
            low = middle + 1
        else:
            high = middle
    return low


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None) -> Any:
    """Return the value at a number between points, as NumPy computes it: by the line through the two beside it."""
    last = len(xp) - 1
    if len(fp) != last + 1:
        raise ValueError("np.interp: fp and xp are not of the same length")
    if last < 0:
        raise ValueError("np.interp: array of sample points is empty")
    number = 1.0 * x
    if number != number:
        return number
    if number < xp[0]:
        return fp[0] if left is None else left
    if number > xp[last]:
        return fp[last] if right is None else right
    if number == xp[last]:
        return fp[last]
    low = 0
    high = last
    while high - low > 1:
        middle = low + ((high - low) >> 1)
        if xp[middle] <= number:
            low = middle
        else:
            high = middle
    if xp[low] == number:  # also where its neighbour is not finite
        return fp[low]
    begin = 1.0 * fp[low]
    end = 1.0 * fp[low + 1]
    slope = (end - begin) / (1.0 * xp[low + 1] - 1.0 * xp[low])
    value = slope * (number - xp[low]) + begin
    if value != value:
        value = slope * (number - xp[low + 1]) + end
        if value != value and begin == end:
            value = begin
    return value


def norm(x: Any, ord: Any = None) -> Any:
    """Return the length of a row or a vector, or another norm of it; where all of it is 0, so is the length's derivative."""
    if ord is None:
        square = 0.0
        for component in x:
            part = 1.0 * component
            square += part * part
        return math.sqrt(square) if square != 0.0 else 0.0
    else:
        found = math.inf if ord == -math.inf else 0.0
        for component in x:
            size = abs(1.0 * component)
            if ord == math.inf:
                found = np.maximum(found, size)
            elif ord == -math.inf:
                found = np.minimum(found, size)
            elif ord == 0:
                found += 1.0 if size != 0.0 else 0.0
            elif ord == 1:
                found += size
            else:
                found += size**ord
        if ord == 2:
            return math.sqrt(found) if found != 0.0 else 0.0
        return found ** (1.0 / ord) if ord != 0 and ord != 1 and abs(ord) != math.inf else found


def dist(p: Any, q: Any) -> Any:
    """Return how far two points are apart; where they are one, the derivative is 0."""
    square = 0.0
    for a, b in zip(p, q):  # noqa: B905 - kernels know no `strict`
        apart = 1.0 * a - 1.0 * b
        square += apart * apart
    return math.sqrt(square) if square != 0.0 else 0.0


def heaviside(x1: Any, x2: Any) -> Any:
    """Return 0 for what is negative, 1 for what is positive, another number for 0, and NaN for NaN."""
    return 0.0 if x1 < 0.0 else 1.0 if x1 > 0.0 else x2 if x1 == 0.0 else x1


def sinc(x: Any) -> Any:
    """Return sin(pi x) / (pi x), which is 1 at 0; near there by its series, since derivatives of the quotient cancel out."""
    scaled = math.pi * x
    if abs(scaled) < 0.25:
        square = scaled * scaled
        return 1.0 - square / 6.0 * (
            1.0 - square / 20.0 * (1.0 - square / 42.0 * (1.0 - square / 72.0 * (1.0 - square / 110.0)))
        )
    return math.sin(scaled) / scaled


def polyval(p: Any, x: Any) -> Any:
    """Return the value of a polynomial whose coefficients come from the highest power down."""
    value = 0.0
    for coefficient in p:
        value = value * x + coefficient
    return value


def isclose(a: Any, b: Any, rel_tol: Any = 1e-9, abs_tol: Any = 0.0) -> Any:
    """Tell whether two numbers are as near as Python's math.isclose wants them, which infinities are to themselves alone."""
    if a == b:
        return True
    apart = abs(1.0 * a - 1.0 * b)
    most = max(abs(1.0 * a), abs(1.0 * b))
    return apart < math.inf and (apart <= rel_tol * most or apart <= abs_tol)


WRITTEN_OUT: dict[Any, Any] = {np.searchsorted: searchsorted}
"""Of these only derivatives are made."""
SUPPLIED: dict[Any, Any] = {
    np.interp: interp,
    np.linalg.norm: norm,
    math.dist: dist,
    np.heaviside: heaviside,
    np.sinc: sinc,
    np.polyval: polyval,
    math.isclose: isclose,
}
"""These Numba does not have for numbers and rows, or not on both targets."""
_WANTED: dict[Any, str] = {
    interp: "np.interp(x, xp, fp, left=None, right=None) in a kernel takes a number x and two rows of numbers",
    norm: "np.linalg.norm(x, ord=None) in a kernel takes a row of numbers or a vector, and a number",
    dist: "math.dist(p, q) in a kernel takes two rows of numbers, two tuples or two vectors",
    heaviside: "np.heaviside(x1, x2) in a kernel takes two numbers",
    sinc: "np.sinc(x) in a kernel takes a number",
    polyval: "np.polyval(p, x) in a kernel takes a row or a tuple of numbers, and a number",
    isclose: "math.isclose(a, b, rel_tol=1e-09, abs_tol=0.0) in a kernel takes numbers",
}


def refusal_of(call: ast.Call, function: Any) -> str | None:
    """Return what is wrong with the number or the names of the arguments of a call; None if nothing is, or it is for another."""
    made = known_by(function, SUPPLIED)
    if made is None or any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    try:
        inspect.signature(made).bind(*call.args, **{str(keyword.arg): keyword.value for keyword in call.keywords})
    except TypeError as error:
        return f"{_WANTED[made]}, and no other arguments: {error}"
    return None


def refusal_at(place: str) -> str | None:
    """Return what a function takes in whose source here a place lies, ``file:line:column`` and more, or None for other places."""
    found = re.match(re.escape(__file__) + r":(\d+):", place)
    if found is None:
        return None
    line = int(found[1])
    return next((said for of, said in reversed(_WANTED.items()) if of.__code__.co_firstlineno <= line), None)
