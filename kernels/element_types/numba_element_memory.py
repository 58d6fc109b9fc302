"""Arrays of elements as arrays of their components, and the reverse, on the same memory; atomic operations on the components.

Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbridge.kernels.compilation.built_calls import Body, built
from numbridge.kernels.element_types.numba_elements import NumbaElement, at, maker, numba_element

__all__ = ["NAMES", "component_atomics", "not_an_element", "numbers_of", "scalars_of"]


@intrinsic
def scalars_of(typing_context: Any, array: Any) -> Any:
    """Return an array of elements as one of their components, which are its last dimension, on the same memory."""
    if not isinstance(array, types.Array) or not isinstance(array.dtype, NumbaElement):
        return None
    kind = array.dtype
    scalars = types.Array(kind.dtype, array.ndim + 1, "C" if array.layout == "C" else "A", readonly=not array.mutable)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = context.make_array(array)(context, builder, arguments[0])
        made = context.make_array(scalars)(context, builder)
        count, size = (context.get_constant(types.intp, n) for n in (kind.element.count, kind.element.scalar.itemsize))
        made.meminfo, made.parent, made.itemsize = given.meminfo, given.parent, size
        made.nitems = builder.mul(given.nitems, count)
        made.data = builder.bitcast(given.data, context.get_data_type(kind.dtype).as_pointer())
        for name, last in (("shape", count), ("strides", size)):
            parts = cgutils.unpack_tuple(builder, getattr(given, name), array.ndim)
            setattr(made, name, cgutils.pack_array(builder, [*parts, last]))
        return made._getvalue()

    return scalars(array), generate


@intrinsic
def numbers_of(typing_context: Any, array: Any) -> Any:
    """Return an array of numbers as it is, and one of elements as one of their components."""
    if isinstance(array.dtype, NumbaElement):
        return scalars_of._defn(typing_context, array)
    return array(array), lambda context, builder, signature, arguments: arguments[0]


@intrinsic
def elements_of(typing_context: Any, array: Any, element: Any) -> Any:
    """Return memory of components, which are its last dimension, as an array of elements; of one dimension, as many as fit."""
    kind = numba_element(element.typing_key)
    count, ndim = kind.element.count, max(array.ndim - 1, 1)
    made_type = types.Array(kind, ndim, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = context.make_array(array)(context, builder, arguments[0])
        made = context.make_array(made_type)(context, builder)
        size = context.get_constant(types.intp, kind.element.bytes)
        made.meminfo, made.parent, made.itemsize = given.meminfo, given.parent, size
        made.nitems = builder.sdiv(given.nitems, context.get_constant(types.intp, count))
        made.data = builder.bitcast(given.data, context.get_data_type(kind).as_pointer())
        whole, steps = (cgutils.unpack_tuple(builder, part, array.ndim) for part in (given.shape, given.strides))
        made.shape = cgutils.pack_array(builder, [made.nitems] if array.ndim == 1 else whole[:-1])
        made.strides = cgutils.pack_array(builder, [size] if array.ndim == 1 else steps[:-1])
        return made._getvalue()

    return made_type(array, element), generate


def component_atomic(name: str, scalar_atomic: Any, check: Callable[[str, Any], None]) -> Any:
    """Return an atomic operation that takes elements component by component, and scalars as `scalar_atomic` does.

    Each component is updated atomically, and not the element as a whole: another thread may see some components of a sum.
    `check` is given the operation's name and the type of the numbers, to refuse what the target has none on.
    """

    def atomic(array: Any, index: Any, value: Any) -> Any:
        raise NotImplementedError

    def generated(array: Any, index: Any, value: Any) -> Body:
        names = {"update": scalar_atomic, "at": at, "scalars_of": scalars_of}
        if isinstance(array, types.Array):
            check(name, array.dtype.dtype if isinstance(array.dtype, NumbaElement) else array.dtype)
        if not isinstance(array, types.Array) or not isinstance(array.dtype, NumbaElement):
            return Body("def implementation(array, index, value): return update(array, index, value)", names)
        if value != array.dtype:
            raise TypingError(not_an_element(name, array, value))
        element = array.dtype.element
        place = "index + " if isinstance(index, types.BaseTuple) else "(index,) + "
        parts = ", ".join(f"update(whole, {place}({k},), at(value, {k}))" for k in range(element.count))
        lines = [
            "def implementation(array, index, value):",
            "    whole = scalars_of(array)",
            f"    return make({parts})",
        ]
        return Body("\n".join(lines), names | {"make": maker(element)})

    atomic.__name__ = name
    built(atomic)(generated)
    return atomic


def not_an_element(name: str, array: Any, value: Any) -> str:
    """Return the message for an atomic operation that is given something else than an element."""
    kind, wanted = getattr(value, "element", None), array.dtype.element.name
    found = value if kind is None else kind.name
    return f"atomic_{name} takes a {wanted} for an array of {wanted}, not {found}; make one, such as {wanted}(...)"


@functools.cache
def component_atomics(intrinsics: Any) -> dict[str, Any]:
    """Return the atomics that also take elements, under the names of generated source, for a back end's module of them."""
    made = ((name, getattr(intrinsics, f"atomic_{name}")) for name in ("add", "sub", "min", "max"))
    return {f"_nb_atomic_{name}": component_atomic(name, atomic, intrinsics.check_numbers) for name, atomic in made}


# What generated source calls.
NAMES: dict[str, Callable[..., Any]] = {"_nb_components": scalars_of, "_nb_elements": elements_of}
