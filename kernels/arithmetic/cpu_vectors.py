"""Makes vectors of numba.cuda's types on the CPU: of numbers, which are converted, of vectors of the same numbers, and of both.

Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbridge.kernels.language.vector_types import VECTOR_TYPES, scalar_name

__all__ = ["NAMES"]


def _components(kind: Any, scalar: Any) -> int | None:
    """Return how many components an argument gives, or None if vectors of such numbers are not made of it."""
    if isinstance(types.unliteral(kind), types.Float | types.Integer | types.Boolean):
        return 1
    vector = getattr(kind, "instance_class", None)
    alike = VECTOR_TYPES.get(getattr(vector, "__name__", "")) is vector and kind.dtype == scalar
    return len(kind) if alike else None


def _constructor(name: str, vector: Any) -> Any:
    scalar = getattr(types, scalar_name(vector))
    made = types.NamedUniTuple(scalar, len(vector._fields), vector)

    def construct(typing_context: Any, *given: Any) -> Any:
        counts = [_components(kind, scalar) for kind in given]
        if None in counts or sum(count for count in counts if count) != len(made):
            listed = ", ".join(map(str, given))
            of = f"{len(made)} numbers, or of vectors of {scalar} with as many components"
            raise TypingError(f"cuda.{name} is made of {of}, and not of ({listed})")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            numbers = []
            (given,) = signature.args
            for kind, value in zip(given, cgutils.unpack_tuple(builder, arguments[0], len(given)), strict=True):
                if isinstance(kind, types.BaseTuple):
                    numbers += cgutils.unpack_tuple(builder, value, len(kind))
                else:
                    numbers.append(context.cast(builder, value, kind, scalar))
            return context.make_tuple(builder, made, numbers)

        return made(types.StarArgTuple.from_types([*map(types.unliteral, given)])), generate

    construct.__name__ = f"cuda.{name}"  # as messages call it
    return intrinsic(construct)


NAMES: dict[str, Any] = {name: _constructor(name, vector) for name, vector in VECTOR_TYPES.items()}
