"""Functions that are built where they are called, on the CPU and on CUDA alike, without Numba's analysis of bytecode.

Numba compiles each overload of a function through all its stages, for all the kernels of a process once and in every process
again; what a vector's sum is, in three lines of text, takes as long as a short kernel. Here such text becomes code of the
caller's, with the caller's way of dividing. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from numba import types
from numba.core.typing.templates import infer, infer_global, make_intrinsic_template

from numbridge.kernels.compilation.typed_text import Text, UnknownError
from numbridge.kernels.language.parsing import parsed

__all__ = ["Body", "built"]


@dataclass(frozen=True)
class Body:
    """What a function does for operands of some types.

    Attributes
    ----------
    text : str
        A function, as `typed_text` knows it.
    names : mapping
        Its globals.
    """

    text: str
    names: Mapping[str, Any]


_Entered = TypeVar("_Entered", bound=Callable[..., Body | None])


def built(function: Any, known: Collection[str] = ()) -> Callable[[_Entered], _Entered]:
    """Return a decorator that enters what a function does in compiled code.

    What is decorated takes the Numba types of the operands under the names of the function's parameters, and returns a `Body`,
    or None where there is none. What it does may depend on the values of those operands that are `known`, if they are
    constants.
    """

    def enter(body_of: _Entered) -> _Entered:
        signature = inspect.signature(body_of)
        starred = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in signature.parameters.values())

        def define(typing_context: Any, *given: Any, **named: Any) -> Any:
            try:
                kinds = signature.bind(*given, **named).args
            except TypeError:
                return None  # others may do it with so many operands
            body = body_of(*kinds)
            if body is None:
                return None
            if starred:
                taken: tuple[Any, ...] = (types.StarArgTuple.from_types(kinds),)
            else:
                pairs = zip(signature.parameters, kinds, strict=True)
                # Numba takes two calls with the same types for calls of the same code. The name of a field is no value.
                taken = tuple(
                    kind if name in known or isinstance(kind, types.StringLiteral) else types.unliteral(kind)
                    for name, kind in pairs
                )
            tree = parsed(body.text).body[0]
            assert isinstance(tree, ast.FunctionDef)
            text = Text(tree, taken, body.names, typing_context=typing_context)
            try:
                text.read()
            except UnknownError:
                return None

            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                return text.build(context, builder, arguments)

            return types.unliteral(text.result)(*taken), generate

        # Numba binds the arguments of a call by the parameters of what it asks.
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        first = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        define.__signature__ = inspect.Signature([first, *bare])  # type: ignore[attr-defined]
        template = make_intrinsic_template(function, define, getattr(function, "__name__", str(function)))

        class Template(template):  # type: ignore[misc, valid-type]
            def generic(self, args: Any, kws: Any) -> Any:
                # Numba comes with a list where it tells what it has tried, and looks for the types in a dictionary.
                return super().generic(tuple(args), kws)

        infer(Template)
        infer_global(function, types.Function(Template))
        return body_of

    return enter
