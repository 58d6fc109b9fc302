"""The text of a kernel's adjoint as its user reads it: for the types of its last launch, or those of its annotations."""

from __future__ import annotations

from numbridge.kernels.adjoint.derive import Derivative, check_floats
from numbridge.kernels.annotations import ArrayAnnotation, ElementAnnotation, ScalarAnnotation
from numbridge.kernels.element_types.elements import ElementType, has_gradient
from numbridge.kernels.errors import KernelError
from numbridge.kernels.kernel import Kernel, Parameter
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType
from numbridge.kernels.variant import variants_of

__all__ = ["adjoint_source"]


def adjoint_source(kernel: Kernel) -> str:
    """Return the text of a kernel's adjoint by all of its floating parameters."""
    types, weak = _last_types(kernel)
    wanted = [p.name for p in types if has_gradient(p.element, p.scalar)]
    derivative: Derivative = kernel.adjoint(wanted)
    check_floats(derivative, types)
    plan = derivative.plan(types, weak)
    if not plan.in_blocks:
        return plan.text
    from numbridge.kernels.adjoint.emit import for_reader

    return for_reader(plan.text)


def _last_types(kernel: Kernel) -> tuple[tuple[ParameterType, ...], str]:
    for key in reversed(kernel.derivatives):
        known = kernel.derivatives[key].variants if key[0] == "adjoint" else None
        if known is not None and known.last is not None:
            types, weak = known.last
            return types[: len(kernel.parameters)], weak
    last = variants_of(kernel).last
    if last is not None:
        found: tuple[tuple[ParameterType, ...], str] = last
        return found
    types = tuple(_annotated(kernel, parameter) for parameter in kernel.parameters)
    wide = any(p.scalar.is_float and p.scalar.itemsize > 4 for p in types)
    return types, "float64" if wide else "float32"


def _annotated(kernel: Kernel, parameter: Parameter) -> ParameterType:
    annotation = parameter.annotation
    if isinstance(annotation, ScalarAnnotation):
        return ScalarType(parameter.name, annotation.scalar)
    if isinstance(annotation, ElementAnnotation):
        return ScalarType(parameter.name, annotation.element.scalar, annotation.element)
    if isinstance(annotation, ArrayAnnotation) and annotation.dtype is not None and annotation.ndim is not None:
        dtype = annotation.dtype
        element = dtype if isinstance(dtype, ElementType) else None
        scalar = dtype.scalar if isinstance(dtype, ElementType) else dtype
        return ArrayType(parameter.name, scalar, annotation.ndim, True, False, element)
    raise KernelError(
        f"the adjoint of kernel {kernel.name!r} depends on the type of {parameter.name!r}; annotate it, such as "
        "nb.array1d[float], or launch the kernel once"
    )
