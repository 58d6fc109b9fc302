"""The custom operators of a kernel and its adjoint, or of a tangent and its adjoint: schemas, fakes, batches, derivatives.

torch's custom operators know neither forward mode nor torch.func, and an `autograd.Function` does. So there is one of each
for either. Where one of torch.func's transforms is at work, torch's dispatcher itself goes from the operator to the function,
for whoever may have called the operator: a compiled or an exported graph, or the user.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from numbridge.kernels.errors import BufferAccessError, KernelUnsupportedError
from numbridge.kernels.language.dependencies import check_unchanged
from numbridge.kernels.variant import variants_of
from numbridge.operators.operator_levels import Level, detached, returned
from numbridge.operators.torch_eager import forward_mode_check, has_gradient, named
from numbridge.operators.torch_sharding import has_dtensor, let_be_cut, with_dtensors

__all__ = ["NAMESPACE", "Operator"]

NAMESPACE = "numbridge"
_SCHEMA = {"array": "Tensor", "int": "SymInt", "bool": "bool", "float": "float", "number": "Scalar"}
_lock = threading.RLock()
_taken: set[str] = set()


def _free_name(name: str) -> str:
    """Return a name for an operator that no other has."""
    wanted = re.sub(r"\W", "_", name)
    with _lock:
        numbers = itertools.count(2)
        found = wanted
        while found in _taken:
            found = f"{wanted}_{next(numbers)}"
        _taken.add(found)
    return found


class Operator:
    """A level's operator and its adjoint's, with their derivatives.

    Parameters
    ----------
    level : Level
        What it runs.
    name : str
        Its name in ``torch.ops.numbridge``; one that is taken gets a number.
    mutated : sequence of str
        Inputs that it writes.
    differentiable : bool
        Whether it has derivatives.
    """

    def __init__(self, level: Level, name: str, mutated: Sequence[str] = (), *, differentiable: bool = True) -> None:
        import torch

        self.level, self.name, self._mutated = level, _free_name(name), tuple(mutated)
        self._is_differentiable = differentiable
        self._library = torch.library.Library(NAMESPACE, "FRAGMENT")
        self._is_compiling, self._is_forward_mode = torch.compiler.is_dynamo_compiling, forward_mode_check()
        self._tangents: dict[Any, Operator] = {}
        self._is_cut = False
        inputs = [f"{self._type(n)} {n}" for n in level.inputs]
        self.op = self._define(self.name, inputs, len(level.outputs), self._run, self._run_fake)
        if differentiable:
            more = [*(f"Tensor grad_{n}" for n in level.outputs), "bool[] wanted"]
            count = len(level.arrays)
            self._adjoint = self._define(
                _free_name(f"{self.name}_adjoint"), [*inputs, *more], count, self._run_adjoint, self._adjoint_fake
            )
            for operator, rule in ((self.op, self._backward), (self._adjoint, self._adjoint_backward)):
                torch.library.register_autograd(operator.name(), rule, setup_context=self.keep, lib=self._library)
            self._run_function, self._adjoint_function = _run_function(self), _adjoint_function(self)
            self._transform(self.op, self._run_function.apply)
            self._transform(
                self._adjoint, lambda *values: self._adjoint_function.apply(*values[:-1], _coded(values[-1]))
            )
        else:
            self._library.impl(self.name, self._refuse_gradients, "Autograd", with_keyset=True)
            torch.library.register_vmap(self.op.name(), self._batch_in_place, lib=self._library)

    def _refuse_gradients(self, keys: Any, *values: Any) -> Any:
        """Run an operator that has no derivatives, unless it would make those of what it writes wrong.

        What it reads may require a gradient: in the graphs that `torch.export` decomposes, nothing is left of torch.no_grad().
        """
        import torch

        plan, name = self.level.launches.plan, f"{NAMESPACE}::{self.name}"
        written = [value for key, value in zip(plan.inputs, values, strict=True) if key in self._mutated]
        if torch.is_grad_enabled() and any(value.requires_grad for value in written):
            raise plan.lost_gradient(name, "torch.no_grad()")
        if _is_dual(values):
            raise plan.lost_tangent(name, "forward_ad.unpack_dual(x).primal")
        if any(value.is_neg() or value.is_conj() for value in written):
            raise BufferAccessError(
                f"operator {name} writes to {', '.join(self._mutated)}, of which a sign or conjugate is yet to be computed; pass "
                "tensor.resolve_neg() or tensor.resolve_conj(), which are copies"
            )
        # The launch counts up the versions of tensors that have memory. Those around them, which transforms make, have
        # versions of their own, by which autograd notices that what it has saved is not what it was.
        for value in written:
            if torch._C._functorch.is_functorch_wrapped_tensor(value):
                torch.autograd.graph.increment_version(value)
        with torch._C._AutoDispatchBelowAutograd():
            return self.op.redispatch(keys & torch._C._after_autograd_keyset, *values)

    def _batch_in_place(self, info: Any, in_dims: Any, *values: Any) -> Any:
        """Run an operator that writes to some of a batch's inputs, row by row."""
        for name, dim in zip(self.level.inputs, in_dims, strict=True):
            if name in self._mutated and dim is None:
                raise KernelUnsupportedError(
                    f"operator {NAMESPACE}::{self.name} changes {name} in place, which within torch.vmap is the same for all "
                    "rows, while others of its inputs are not; pass one for each row, such as torch.zeros_like(x)"
                )
        if self.level.outputs:
            made, dims = _batched(self.op)(info, in_dims, *values)
            return returned(made), returned(dims)
        for k in range(info.batch_size):
            self.op(*_row(values, in_dims, k))
        return None, None

    def _transform(self, operator: Any, function: Callable[..., Any]) -> None:
        """Have torch.func's transforms take an `autograd.Function` for an operator."""
        import torch

        def transformed(*values: Any) -> Any:
            if not torch.is_grad_enabled():
                # A function turns it on again for the transforms further out.
                values = tuple(map(_unrecorded, values))
            return returned(_tuple(_functionalized(operator, values) or function(*values)))

        _keep_out_of_graphs(transformed)
        self._library.impl(operator.name().partition("::")[2], transformed, "FuncTorchDynamicLayerFrontMode")

    def cast(self) -> None:
        """Compute in float32 under autocast."""
        import torch

        for device in ("cpu", "cuda"):
            torch.library.register_autocast(self.op.name(), device, torch.float32, lib=self._library)

    # Schemas

    def _type(self, name: str) -> str:
        kind = _SCHEMA[self.level.kinds[name]]
        return f"Tensor({chr(ord('a') + self._mutated.index(name))}!)" if name in self._mutated else kind

    def _define(
        self, name: str, arguments: Sequence[str], results: int, run: Callable[..., Any], fake: Callable[..., Any]
    ) -> Any:
        import torch

        returned = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        self._library.define(f"{name}({', '.join(arguments)}) -> {returned}", tags=(torch.Tag.pt2_compliant_tag,))
        self._library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=self._library)
        for function in (run, fake):
            _keep_out_of_graphs(function)
        return getattr(getattr(torch.ops, NAMESPACE), name).default

    # What runs

    def _run(self, *values: Any) -> Any:
        if self._is_differentiable and _is_dual(values):
            return returned(_tuple(self._run_function.apply(*values)))
        return returned(self.level.run([detached(value) for value in values]))

    def _run_fake(self, *values: Any) -> Any:
        level = self.level
        if self._is_differentiable and _may_be_dual():
            raise KernelUnsupportedError(
                f"operator {NAMESPACE}::{self.name}: within forward_ad.dual_level its tangents cannot be compiled, exported or "
                "computed on fake tensors; use torch.func.jvp, or call the operator outside of what is compiled"
            )
        return returned(level.blank(values, level.outputs) if level.spare else level.launches.outputs(values))

    def _run_adjoint(self, *values: Any) -> Any:
        inputs, grads, wanted = self._split(values)
        names = [name for name, want in zip(self.level.arrays, wanted, strict=True) if want]
        found = iter(self.level.adjoint([detached(v) for v in inputs], [detached(g) for g in grads], names))
        arrays = zip(self._arrays(inputs), wanted, strict=True)
        return returned([next(found) if want else _nothing(array) for array, want in arrays])

    def _adjoint_fake(self, *values: Any) -> Any:
        import torch

        inputs, _, wanted = self._split(values)
        arrays = zip(self._arrays(inputs), wanted, strict=True)
        like = torch.contiguous_format
        return returned([torch.empty_like(a, memory_format=like) if want else _nothing(a) for a, want in arrays])

    def _arrays(self, values: Sequence[Any]) -> list[Any]:
        return [v for n, v in zip(self.level.inputs, values, strict=True) if self.level.kinds[n] == "array"]

    def _split(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[bool]]:
        """Return the adjoint's arguments: inputs, gradients of outputs, and which inputs' are wanted."""
        count = len(self.level.inputs)
        return list(values[:count]), list(values[count:-1]), _mask_of(values[-1])

    # What autograd follows

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the outputs."""
        if not self._is_compiling():
            if has_dtensor(map(type, values)):
                self.let_be_cut()
            if self._is_forward_mode():
                return _tuple(self._run_function.apply(*values))
        return _tuple(self.op(*values))

    def let_be_cut(self) -> bool:
        """Let DTensors come to the operator and its adjoint, and tell whether they may.

        They may not where one would be changed in place, of which the operator could get a copy.
        """
        if self._is_differentiable and not self._is_cut:
            let_be_cut(self.level, self.op, self._adjoint)
            self._is_cut = True
        return self._is_cut

    def adjoint(self, inputs: Sequence[Any], grads: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
        """Return a tensor for each of the inputs that are tensors: the gradient, or an empty one."""
        if not self._is_compiling():
            if has_dtensor(map(type, inputs)):
                self.let_be_cut()
            if self._is_forward_mode():
                return _tuple(self._adjoint_function.apply(*inputs, *grads, _coded(wanted)))
        return _tuple(self._adjoint(*inputs, *grads, list(wanted)))

    def gradients(self, inputs: Sequence[Any], grads: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        """Return what is given back for each input: the gradient or None."""
        if not any(wanted):
            return [None] * len(inputs)
        dense = [_strided(grad) for grad in grads]
        found = (g if w else None for g, w in zip(self.adjoint(inputs, dense, wanted), wanted, strict=True))
        return [next(found) if self.level.kinds[name] == "array" else None for name in self.level.inputs]

    def tangent(self, moved: Sequence[bool], floats: Sequence[bool]) -> Operator:
        """Return the operator of the tangent by some of the tensors, of the outputs that are floating."""
        key = (tuple(moved), tuple(floats))
        with _lock:
            if key not in self._tangents:
                by = [name for name, move in zip(self.level.arrays, moved, strict=True) if move]
                of = [name for name, is_float in zip(self.level.outputs, floats, strict=True) if is_float]
                coded = "_".join(_coded(mask) for mask in (key if not all(floats) else key[:1]))
                self._tangents[key] = Operator(self.level.tangent(by, of), f"{self.name}_tangent{coded}")
            return self._tangents[key]

    def mask(self, needs: Sequence[bool], inputs: Sequence[Any]) -> list[bool]:
        """Return which of the tensors a gradient is needed by."""
        pairs = zip(self.level.inputs, needs, inputs, strict=False)
        return [bool(n) and has_gradient(v) for name, n, v in pairs if self.level.kinds[name] == "array"]

    def moved(self, given: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        """Return the tangents among what is given for each tensor, and for which there is one."""
        arrays = self._arrays(inputs)
        moved = [
            t is not None and t.numel() == a.numel() and has_gradient(a) for t, a in zip(given, arrays, strict=True)
        ]
        return [_like(t, a) for t, a, move in zip(given, arrays, moved, strict=True) if move], moved

    def keep(self, ctx: Any, inputs: Any, output: Any) -> None:
        """Keep an operator's arguments for its derivatives, and what the kernel was compiled with."""
        _keep(ctx, inputs, output)
        ctx.dependencies = variants_of(self.level.launches.plan.kernel).dependencies

    def keep_for_both_modes(self, ctx: Any, inputs: Any, output: Any) -> None:
        """Keep the same for forward mode too, which custom operators do not know."""
        import torch

        self.keep(ctx, inputs, output)
        ctx.save_for_forward(*(v for v in inputs if isinstance(v, torch.Tensor)))

    def _check_unchanged(self, ctx: Any) -> None:
        check_unchanged(f"backward through kernel {self.level.launches.plan.kernel.name!r}", ctx.dependencies)

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        self._check_unchanged(ctx)
        inputs = _kept(ctx)
        return tuple(self.gradients(inputs, _given(grads, ctx), self.mask(ctx.needs_input_grad, inputs)))

    def _adjoint_backward(self, ctx: Any, *seconds: Any) -> Any:
        self._check_unchanged(ctx)
        inputs, grads, wanted = self._split(_kept(ctx))
        asked = [s if w else None for s, w in zip(seconds, wanted, strict=True)]
        tangents, moved = self.moved(asked, inputs)
        if not any(moved):
            return (*[None] * (len(inputs) + len(grads)), None)
        floats = [*map(has_gradient, grads)]
        operator, values = self.tangent(moved, floats), [*inputs, *tangents]
        by = [*self.mask(ctx.needs_input_grad, inputs), *[False] * len(tangents)]
        first = operator.gradients(values, [*filter(has_gradient, grads)], by)[: len(inputs)]
        back = iter(operator(values) if any(ctx.needs_input_grad[len(inputs) : -1]) else [None] * len(grads))
        return (*first, *[next(back) if is_float else None for is_float in floats], None)


def _run_function(operator: Operator) -> Any:
    """Return the `autograd.Function` of an operator, which knows forward mode and torch.func."""
    import torch

    class Run(torch.autograd.Function):
        setup_context = staticmethod(operator.keep_for_both_modes)

        @staticmethod
        def forward(*values: Any) -> Any:
            return _tuple(operator.op(*values))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return operator._backward(ctx, *grads)

        @staticmethod
        def jvp(ctx: Any, *given: Any) -> Any:
            inputs = _kept(ctx)
            tangents, moved = operator.moved(operator._arrays(given), inputs)
            floats = [dtype.is_floating_point or dtype.is_complex for _, dtype, _ in ctx.results]
            found = iter(operator.tangent(moved, floats)([*inputs, *tangents]))
            return tuple(next(found) if is_float else None for is_float in floats)

    return _with_batches(named(Run, operator.name))


def _adjoint_function(operator: Operator) -> Any:
    """Return the `autograd.Function` of an operator's adjoint, which knows forward mode and torch.func."""
    import torch

    class Adjoint(torch.autograd.Function):
        setup_context = staticmethod(operator.keep_for_both_modes)

        @staticmethod
        def forward(*values: Any) -> Any:
            return _tuple(operator._adjoint(*values[:-1], _mask_of(values[-1])))

        @staticmethod
        def backward(ctx: Any, *seconds: Any) -> Any:
            return operator._adjoint_backward(ctx, *seconds)

        @staticmethod
        def jvp(ctx: Any, *given: Any) -> Any:
            inputs, grads, wanted = operator._split(_kept(ctx))
            count = len(inputs)
            pairs = zip(given[count:-1], grads, strict=True)
            by_grads = [torch.zeros_like(g) if t is None else _like(t, g) for t, g in pairs]
            total = operator.adjoint(inputs, by_grads, wanted)
            tangents, moved = operator.moved(operator._arrays(given[:count]), inputs)
            if any(moved):
                further = operator.tangent(moved, [*map(has_gradient, grads)])
                floats, more = [*filter(has_gradient, grads)], [False] * len(tangents)
                found = further.adjoint([*inputs, *tangents], floats, [*wanted, *more])
                with _tangents_followed():
                    total = tuple(a + b for a, b in zip(total, found, strict=False))
            # What stands for the gradient by integers has no tangent.
            return tuple(t if has_gradient(t) else None for t in total)

    return _with_batches(named(Adjoint, f"{operator.name}_adjoint"))


def _with_batches(function: Any) -> Any:
    """Return an `autograd.Function` that runs on batches by itself: each row has derivatives of its own."""
    function.vmap = staticmethod(_batched(function.apply))
    return function


def _batched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return how a function runs on a batch: row by row."""
    import torch

    def rule(info: Any, in_dims: Any, *values: Any) -> Any:
        if not info.batch_size:
            return _batched_nothing(function, list(zip(values, in_dims, strict=True)))
        rows = [_tuple(function(*_row(values, in_dims, k))) for k in range(info.batch_size)]
        stacked = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


def _row(values: Sequence[Any], in_dims: Any, k: int) -> list[Any]:
    """Return the arguments of one call for a batch."""
    return [v.select(d, k) if isinstance(d, int) else v for v, d in zip(values, in_dims, strict=True)]


def _batched_nothing(function: Callable[..., Any], pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return what a function gives for a batch of no rows: nothing, of the shapes that it gives for a row without data."""
    import torch

    def row(value: Any, dim: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = [extent for k, extent in enumerate(value.shape) if not isinstance(dim, int) or k != dim % value.ndim]
        return torch.empty(shape, dtype=value.dtype, device="meta")

    like = next(value for value, dim in pairs if isinstance(dim, int))
    made = _tuple(function(*[row(value, dim) for value, dim in pairs]))
    return tuple(like.new_empty((0, *one.shape), dtype=one.dtype) for one in made), (0,) * len(made)


def _functionalized(operator: Any, values: Sequence[Any]) -> Any:
    """Return what an operator, which changes nothing, gives within torch.func.functionalize; None within other transforms."""
    from torch._functorch.pyfunctorch import TransformType, retrieve_current_functorch_interpreter
    from torch._subclasses.functional_tensor import FunctorchFunctionalizeAPI

    interpreter: Any = retrieve_current_functorch_interpreter()
    if interpreter.key() != TransformType.Functionalize:
        return None
    level: Any = FunctorchFunctionalizeAPI(interpreter)
    given = level.unwrap_tensors(tuple(values))
    with level.redispatch_to_next():
        made = operator(*given)
    return level.wrap_tensors(_tuple(made))


def _keep_out_of_graphs(method: Any) -> None:
    """Have torch.compile trace neither a method nor what it calls, where an operator runs by itself between two graphs."""
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(method.__code__, eval_frame._FrameExecStrategy(skip, skip))


def _is_dual(values: Sequence[Any]) -> bool:
    """Tell whether a tensor carries a tangent of forward mode, of which torch's custom operators do not know."""
    import torch
    from torch.autograd import forward_ad

    if not _may_be_dual():
        return False
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def _may_be_dual() -> bool:
    """Tell whether forward mode is at work, and not turned off, as within an `autograd.Function`."""
    import torch
    from torch.autograd import forward_ad

    return forward_ad._current_level >= 0 and bool(torch._C._is_fwd_grad_enabled())


def _nothing(array: Any) -> Any:
    return array.new_empty(0)


def _unrecorded(value: Any) -> Any:
    """Return a tensor that no graph leads to, as an operation of torch's would under no_grad; tangents of forward mode go on."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    with _tangents_followed():
        return value.view_as(value)


def _like(tangent: Any, primal: Any) -> Any:
    """Return a tangent in its primal's dtype.

    It is another's in `torch.func.jacfwd(lambda a: 0.9 * a)` at a tensor of float32 without dimensions: among batches torch
    forgets that 0.9 was no tensor.
    """
    if tangent.dtype == primal.dtype:
        return tangent
    with _tangents_followed():
        return tangent.to(primal.dtype)


def _tangents_followed() -> Any:
    """Return a context for what is computed within the jvp of an `autograd.Function`.

    There torch has turned forward mode off for its own operations, also that of transforms further out.
    """
    from torch.autograd import forward_ad

    return forward_ad._set_fwd_grad_enabled(True)


def _strided(grad: Any) -> Any:
    """Return a gradient as ordinary memory: that of a sparse embedding comes as a sparse tensor."""
    import torch

    return grad if grad.layout == torch.strided else grad.to_dense()


def _tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def _given(grads: Sequence[Any], ctx: Any) -> list[Any]:
    """Return gradients of all outputs: zero for one that nothing depends on."""
    import torch

    made = [
        torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
        for grad, (shape, dtype, device) in zip(grads, ctx.results, strict=True)
    ]
    return with_dtensors(made) if has_dtensor(map(type, made)) else made


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    """Keep an operator's arguments for its derivatives: tensors through autograd, and the rest."""
    import torch

    ctx.save_for_backward(*(v for v in inputs if isinstance(v, torch.Tensor)))
    ctx.others = [None if isinstance(v, torch.Tensor) else (v,) for v in inputs]
    ctx.results = [(o.shape, o.dtype, o.device) for o in _tuple(output)]


def _kept(ctx: Any) -> list[Any]:
    tensors = iter(ctx.saved_tensors)
    return [next(tensors) if other is None else other[0] for other in ctx.others]


def _coded(mask: Sequence[bool]) -> str:
    """Return a mask as text, which torch's transforms take for one value and not for a list of some."""
    return "".join("1" if item else "0" for item in mask)


def _mask_of(coded: Any) -> list[bool]:
    return [item == "1" for item in coded] if isinstance(coded, str) else list(coded)
