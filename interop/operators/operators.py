"""A kernel as an operator of a framework: what goes in, what comes out, and how large it is. Names no framework.

An operator takes the kernel's parameters that are not outputs, in order, and returns the outputs as new arrays. A parameter is
an array if its annotation says so, or if the kernel uses it as one. Vectors and matrices, in arrays or by value, are the last
dimensions of tensors.
"""

from __future__ import annotations

import ast
import numbers
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any, Literal

from numbridge.kernels.annotations import ArrayAnnotation, ElementAnnotation, ScalarAnnotation
from numbridge.kernels.block_dims import BlockDim, block_dim_of
from numbridge.kernels.element_types.elements import Element
from numbridge.kernels.errors import NumbridgeError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.kernel import Boxed, Kernel
from numbridge.kernels.language.intrinsics import intrinsic_of
from numbridge.kernels.language.source import FunctionSource, Program, given_by_name
from numbridge.kernels.language.tuple_parameters import Structure, leaves, rebuilt, structure_of
from numbridge.kernels.scalars import BOOL, INT, UINT, Scalar
from numbridge.operators.element_dims import (
    element_of,
    inner_dims,
    inner_extents,
    outer_dims,
    outer_shape,
    refuse_records,
    value_of,
)

__all__ = ["Dims", "OperatorPlan"]

Kind = Literal["array", "int", "bool", "float", "number"]
Dims = int | Sequence[int] | Mapping[str, Any] | Callable[..., Any] | None
_INTEGERS = frozenset({BOOL, INT, UINT})
_METADATA = frozenset({"shape", "strides", "ndim", "size", "dtype", "itemsize", "nbytes"})


# What makes a tensor of numbers
_MAKERS = {"torch": "torch.tensor", "paddle": "paddle.to_tensor"}


def _way_to_tensor(value: object, framework: str) -> str:
    """Return how a tensor is made of what was passed for one."""
    made = _MAKERS[framework]
    if isinstance(value, Element):
        return f"use {made}(x.numpy())"
    if value is None or isinstance(value, str):
        return "pass a tensor"
    if isinstance(value, list):
        return f"use {made}(x); a kernel takes tuples as well, tuple(x)"
    if isinstance(value, numbers.Number):
        return f"use {made}([x])"
    return f"use nb.convert(x, {framework!r}), which shares its memory, or {made}"


def _type_name(value: object) -> str:
    """Return a type as users write it, such as ``torch.Tensor``: several frameworks call theirs alike."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


class OperatorPlan:
    """How a kernel becomes an operator.

    Parameters
    ----------
    kernel : Kernel
        What runs.
    outputs : str or sequence of str
        The array parameters that the operator returns.
    launch_dims, output_dims : int, tuple of int, callable or None
        None is the shape of the first array. A callable gets the operator's inputs and returns one of the others; it also runs
        on tensors without data. `output_dims` may also be a dict by output name; its shapes may have the dimensions of vectors
        and matrices or not.
    block_dim : int or tuple of int
        Threads per block, along each axis of the launch if it is a tuple.
    boxed : sequence of str
        Numbers that come as tensors without dimensions, whose shape is nothing to go by.
    arrays : sequence of str
        Parameters that are known to be arrays.

    Attributes
    ----------
    inputs, outputs : tuple of str
        Parameters, in the kernel's order.
    kinds : dict
        Parameter -> ``"array"``, ``"int"``, ``"bool"``, ``"float"`` or ``"number"``.
    mutated : tuple of str
        Inputs that the kernel writes.
    elements : dict
        Inputs that hold vectors or matrices and are only read -> how many of their dimensions are the components'.
    numbers : tuple of int
        The places of the inputs that are no arrays.
    in_boxes : tuple of str
        Inputs that are numbers to the kernel and come as tensors.
    like_first, along_first : bool
        Whether every output, or the launch, has the shape of the first input array.
    asks_inputs : bool
        Whether a function of the inputs says the shapes of outputs.

    Raises
    ------
    NumbridgeError
        If `outputs` does not name array parameters that the kernel writes.
    """

    def __init__(
        self,
        kernel: Kernel,
        outputs: str | Sequence[str],
        launch_dims: Dims,
        output_dims: Dims,
        block_dim: BlockDim = 256,
        boxed: Sequence[str] = (),
        arrays: Sequence[str] = (),
    ) -> None:
        # A kernel without thread indices may be launched with any number of dimensions.
        rank = kernel.source.index_rank or None
        self.kernel, self.block_dim = kernel, block_dim_of(kernel, block_dim, rank)
        names = [parameter.name for parameter in kernel.parameters]
        if not isinstance(outputs, Sequence | Set):
            raise NumbridgeTypeError(
                f"outputs of kernel {kernel.name!r}: wanted a parameter's name, or a list of names, got {outputs!r}"
            )
        given = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        unknown = [name for name in given if name not in names]
        if unknown or len(set(given)) != len(given):
            raise NumbridgeValueError(
                f"outputs of kernel {kernel.name!r}: wanted some of its parameters ({', '.join(names)}), each once, got "
                f"{outputs!r}"
            )
        refuse_records(f"kernel {kernel.name!r} as an operator", kernel.parameters)
        self._parameters = {parameter.name: parameter for parameter in kernel.parameters}
        self.in_boxes = tuple(boxed)
        self._labels, self._known_arrays = {name: kernel.label(name) for name in names}, arrays
        used = {*_arrays(kernel.source, Program(kernel.source)), *arrays}
        self.kinds: dict[str, Kind] = {p.name: _kind(p.annotation, p.name in used) for p in kernel.parameters}
        memory = [name for name in names if self.kinds[name] == "array" and not self._is_value(name)]
        written = kernel.source.written({name: self._rank(name) for name in memory})
        wrong = [name for name in given if self.kinds[name] != "array" or name not in written]
        if wrong:
            raise NumbridgeValueError(
                f"outputs of kernel {kernel.name!r}: {', '.join(wrong)} is no array that the kernel writes; it writes "
                f"{', '.join(sorted(written)) or 'none'}"
            )
        self.outputs = tuple(name for name in names if name in given)
        self.inputs = tuple(name for name in names if name not in given)
        self.arrays = tuple(name for name in self.inputs if self.kinds[name] == "array")
        # A thread that changes components of what comes by value changes its own.
        self.mutated = tuple(name for name in self.arrays if name in written and not self._is_value(name))
        inner = {name: len(self._components(name)) for name in self.arrays if name not in self.mutated}
        self.elements = {name: rank for name, rank in inner.items() if rank}
        self.numbers = tuple(place for place, name in enumerate(self.inputs) if self.kinds[name] != "array")
        self._launch_dims, self._output_dims = launch_dims, output_dims
        # What comes by value has no shape that a launch could have.
        shaped = (name for name in self.arrays if not (self._is_value(name) or name in boxed))
        self.first = next(shaped, None)
        of_first = () if self.first is None else self._inner(self.first)
        self.like_first = output_dims is None and all(self._inner(name) == of_first for name in self.outputs)
        self.along_first = launch_dims is None and not of_first
        self.asks_inputs = callable(output_dims)
        if self.first is None and (launch_dims is None or (self.outputs and output_dims is None)):
            raise NumbridgeValueError(
                f"kernel {kernel.name!r} as an operator has no input array whose shape could be the dims; give launch_dims and "
                "output_dims"
            )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the plan was made of."""
        return self.kernel, self.outputs, self._launch_dims, self._output_dims

    def wrong_count(self, name: str, count: int) -> NumbridgeTypeError:
        """Return the error of an operator that was called with another number of arguments than it has inputs."""
        listed = ", ".join(self.inputs)
        return NumbridgeTypeError(f"operator {name} takes {len(self.inputs)} arguments ({listed}), got {count}")

    def lost_gradient(self, name: str, unfollowed: str) -> NumbridgeError:
        """Return the error of an operator that has no gradient and that autograd would follow, but within `unfollowed`."""
        return NumbridgeError(
            f"operator {name} changes {', '.join(self.mutated) or 'nothing it returns'} in place and has no gradient; make what "
            f"it writes an output, or call it under {unfollowed}"
        )

    def lost_tangent(self, name: str, primal: str) -> NumbridgeError:
        """Return the error of an operator that has no derivative and that forward mode would follow, but with `primal`."""
        return NumbridgeError(
            f"operator {name} changes {', '.join(self.mutated) or 'nothing it returns'} in place, and tangents would not follow; "
            f"make what it writes an output, or pass {primal}"
        )

    def tensors_as_numbers(self, name: str, values: Sequence[Any], tensor: type) -> tuple[int, ...]:
        """Return the places of tensors that come for parameters that are numbers, or refuse those that are none.

        Raises
        ------
        NumbridgeTypeError
            If such a tensor has dimensions, or comes for an integer, which may be an extent.
        """
        places = tuple(place for place in self.numbers if isinstance(values[place], tensor))
        for place in places:
            parameter, value = self.inputs[place], values[place]
            where = f"operator {name}, parameter {self._labels[parameter]!r}: wanted a number, got a tensor"
            if value.ndim:
                raise NumbridgeTypeError(
                    f"{where} of shape {tuple(value.shape)}; pass one without dimensions, such as tensor[0], or annotate the "
                    "parameter as an array, such as nb.array[float], and read its elements"
                )
            if self.kinds[parameter] in ("int", "bool"):
                raise NumbridgeTypeError(
                    f"{where} for {self._parameters[parameter].annotation!r}; pass tensor.item(), or annotate the parameter as "
                    "an array, such as nb.array[int], and read its element"
                )
        return places

    def boxed(self, places: Sequence[int]) -> OperatorPlan:
        """Return the plan of the same operator that takes tensors without dimensions for the numbers in some places."""
        names = [self.inputs[place] for place in places]
        return OperatorPlan(
            Boxed(self.kernel, names),
            self.outputs,
            self._launch_dims,
            self._output_dims,
            self.block_dim,
            names,
            self._known_arrays,
        )

    def flattened(self, values: Sequence[Any]) -> tuple[Hashable, Callable[[], OperatorPlan], list[Any]]:
        """Return what the inputs become if some are tuples: what tells such inputs apart, what makes their plan, and they.

        The plan is that of an operator that takes what the tuples hold one by one. Dims are asked of the inputs as they are.
        """
        structures = tuple(map(structure_of, values))
        taken = [leaf for value in values for leaf in leaves(value)]
        are_arrays = tuple(getattr(leaf, "ndim", 0) > 0 for leaf in taken)

        def plan() -> OperatorPlan:
            given = dict(zip(self.inputs, structures, strict=True))
            flat = self.kernel.flattened_for(tuple(given.get(p.name) for p in self.kernel.parameters))
            inputs = [p.name for p in flat.parameters if p.name not in self.outputs]
            arrays = [name for name, is_array in zip(inputs, are_arrays, strict=True) if is_array]
            launch, output = _of_tuples(self._launch_dims, structures), _of_tuples(self._output_dims, structures)
            return OperatorPlan(flat, self.outputs, launch, output, self.block_dim, arrays=arrays)

        return (structures, are_arrays), plan, taken

    def number_type(self, place: int) -> Scalar | None:
        """Return the type of the number that an input is, or None for any."""
        annotation = self._parameters[self.inputs[place]].annotation
        return annotation.scalar if isinstance(annotation, ScalarAnnotation) else None

    def refuse_other_arrays(self, name: str, values: Sequence[Any], tensor: type, framework: str) -> None:
        """Refuse what is no tensor of the operator's framework for parameters that are arrays."""
        for parameter, value in zip(self.inputs, values, strict=True):
            if self.kinds[parameter] == "array" and not isinstance(value, tensor):
                raise NumbridgeTypeError(
                    f"operator {name}, parameter {self._labels[parameter]!r}: wanted a {framework}.Tensor, got "
                    f"{_type_name(value)}; {_way_to_tensor(value, framework)}"
                ) from None

    def dtype(self, name: str) -> Scalar | None:
        """Return the annotated element type of a parameter, or None."""
        annotation = next(p.annotation for p in self.kernel.parameters if p.name == name)
        dtype = annotation.dtype if isinstance(annotation, ArrayAnnotation) else None
        return dtype if isinstance(dtype, Scalar) else None if dtype is None else dtype.scalar

    def may_truncate(self) -> tuple[str, ...]:
        """Return the outputs that have the first tensor's dtype, if that may be an integer while others are floating."""
        first = None if self.first is None else self.dtype(self.first)
        others = (self.kinds[name] for name in self.inputs if name != self.first)
        sure = all(kind in ("int", "bool") for kind in others) or (first is not None and first.code not in _INTEGERS)
        return () if sure else tuple(name for name in self.outputs if self.dtype(name) is None)

    def truncates(self, outputs: Sequence[str], first: str, floating: str, dtype: Any) -> NumbridgeTypeError:
        """Return the error of outputs that would be made of integers, as the first tensor is, where others are floating."""
        is_one = self.kinds[floating] != "array"
        return NumbridgeTypeError(
            f"kernel {self.kernel.name!r} as an operator, output {outputs[0]!r}: its dtype is not annotated, and the first "
            f"tensor, {first!r}, holds {dtype}, while {floating!r} {'is a' if is_one else 'holds'} floating-point "
            f"number{'' if is_one else 's'}; annotate it, as in {outputs[0]}: nb.array[float], or let the kernel have a "
            "floating-point array first"
        )

    def _rank(self, name: str) -> int | None:
        annotation = self._parameters[name].annotation
        return annotation.ndim if isinstance(annotation, ArrayAnnotation) else None

    def _is_value(self, name: str) -> bool:
        return isinstance(self._parameters[name].annotation, ElementAnnotation)

    def _inner(self, name: str) -> tuple[int, ...]:
        return inner_dims(self._parameters[name])

    def _components(self, name: str) -> tuple[int, ...]:
        return inner_extents(value_of(self._parameters[name])) if self._is_value(name) else self._inner(name)

    def output_shapes(self, values: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
        """Return the shape of each output for the operator's inputs; extents may be symbolic."""
        dims: Any = self._output_dims(*values) if callable(self._output_dims) else self._output_dims
        if isinstance(dims, Mapping):
            missing = [name for name in self.outputs if name not in dims]
            extra = [name for name in dims if name not in self.outputs]
            if missing or extra:
                raise NumbridgeValueError(
                    f"output_dims of kernel {self.kernel.name!r}: wanted a shape for each of {', '.join(self.outputs)}, got "
                    f"{', '.join(map(str, dims))}"
                )
            return {name: self._output_shape(name, dims[name], values) for name in self.outputs}
        return {name: self._output_shape(name, dims, values) for name in self.outputs}

    def _output_shape(self, name: str, dims: Any, values: Sequence[Any]) -> tuple[Any, ...]:
        parameter, shape = self._parameters[name], self._shape(dims, values, "output_dims")
        return (*(shape if dims is None else outer_dims(parameter, shape)), *inner_dims(parameter))

    def launch_shape(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the launch's dimensions for the operator's inputs."""
        dims: Any = self._launch_dims(*values) if callable(self._launch_dims) else self._launch_dims
        return self._shape(dims, values, "launch_dims")

    def _shape(self, dims: Any, values: Sequence[Any], what: str) -> tuple[Any, ...]:
        if dims is None:
            assert self.first is not None
            parameter, first = self._parameters[self.first], values[self.inputs.index(self.first)]
            if element_of(parameter) is None:
                return tuple(first.shape)
            return outer_shape(f"kernel {self.kernel.name!r}, parameter {self.first!r}", parameter, tuple(first.shape))
        shape = tuple(dims) if isinstance(dims, tuple | list) else (dims,)
        # Symbolic extents have an index too, and asking for it would make them constants.
        if not all(hasattr(type(extent), "__index__") for extent in shape):
            raise NumbridgeTypeError(
                f"{what} of kernel {self.kernel.name!r}: wanted an int or a tuple of ints, got {dims!r}"
            )
        if any(isinstance(extent, int) and extent < 0 for extent in shape):
            raise NumbridgeValueError(f"{what} of kernel {self.kernel.name!r}: {dims!r} has a negative extent")
        return shape


def _of_tuples(dims: Any, structures: Sequence[Structure | None]) -> Any:
    """Return dims of inputs as those of what is left of them without tuples."""
    if not callable(dims):
        return dims

    def asked(*taken: Any) -> Any:
        items = iter(taken)
        return dims(*(rebuilt(structure, items) for structure in structures))

    return asked


def _kind(annotation: Any, used: bool) -> Kind:
    if isinstance(annotation, ArrayAnnotation | ElementAnnotation):
        return "array"
    if isinstance(annotation, ScalarAnnotation):
        code = annotation.scalar.code
        return "bool" if code == BOOL else "int" if code in (INT, UINT) else "float"
    return "array" if used else "number"


def _arrays(source: FunctionSource, program: Program, seen: tuple[int, ...] = ()) -> set[str]:
    """Return the names that a function uses as arrays: subscripted, asked for their shape, or passed on to such a use."""
    found: set[str] = set()
    for node in source.nodes:
        if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in _METADATA):
            found |= _names(node.value)
        elif isinstance(node, ast.Call):
            found |= _passed(source, program, node, (*seen, id(source)))
    aliases = [(node.targets, node.value) for node in source.nodes if isinstance(node, ast.Assign)]
    for _ in aliases:
        for targets, value in aliases:
            if any(_names(target) & found for target in targets):
                found |= _names(value)
    return found


def _names(node: ast.AST) -> set[str]:
    return {node.id} if isinstance(node, ast.Name) else set()


def _passed(source: FunctionSource, program: Program, node: ast.Call, seen: tuple[int, ...]) -> set[str]:
    static = source.resolve(node.func)
    if static is None:
        return set()
    intrinsic = intrinsic_of(static.value)
    if intrinsic is not None:
        return _names(node.args[0]) if intrinsic.kind == "atomic" and node.args else set()
    callee = program.callee(static.value) or program.compiled(static.value)
    if callee is None or id(callee) in seen:
        return set()
    inner = _arrays(callee, program, seen)
    given = given_by_name(callee.parameters, node).items()
    return {name for parameter, argument in given if parameter in inner for name in _names(argument)}
