"""Tape: launches are recorded while they run, and their adjoints run in the opposite order afterwards.

A tape follows memory, not objects: what a launch wrote carries gradients to whatever later reads it, through views and
through other frameworks' tensors. It keeps copies of contents only where the compiler says that an adjoint reads what a
launch is about to overwrite. Gradients of arrays that require one end in their ``grad``.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from numbridge.adjoint_memory import AdjointMemory, add
from numbridge.array import Array
from numbridge.bridge import bridge_for_type
from numbridge.contents import as_values, filled
from numbridge.convert import asarray
from numbridge.element_views import packed, unpacked
from numbridge.kernels import watching
from numbridge.kernels.adjoint.derive import Derivative
from numbridge.kernels.adjoint.overlap import check_overlaps, share_memory
from numbridge.kernels.dependencies import check_unchanged
from numbridge.kernels.element_arguments import full_shape
from numbridge.kernels.elements import has_gradient
from numbridge.kernels.errors import NumbridgeError, NumbridgeTypeError, NumbridgeValueError, NumbridgeWarning
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.parameter_types import ArrayType, ParameterType
from numbridge.kernels.readers import Description, describe, reader_of
from numbridge.kernels.variant import variants_of
from numbridge.memory import element_of, native, row_of
from numbridge.memory_index import MemoryIndex, place_of
from numbridge.remembered_contents import Checksums, RememberedContents
from numbridge.tape_events import (
    CopyEvent,
    Event,
    FillEvent,
    FunctionEvent,
    LaunchEvent,
    OpaqueEvent,
    check_opaque,
    gradient_like,
    region_of,
    reverse_copy,
    reverse_function,
)

__all__ = ["Gradients", "Tape"]

_recording = threading.local()


class Tape:
    """Records launches, and carries gradients back through them.

    Use it as a context manager, launch, and then call `backward`. Launches of every form are recorded, of the thread that
    entered the tape, by the innermost tape. A launch is recorded if one of its arrays requires a gradient or was written
    from one that does. Launches and methods of `Array` may overwrite what was recorded at any time. What something else changes
    before `backward`, such as NumPy through a view, or a global value that a kernel uses, is noticed and refused.

    Parameters
    ----------
    check_contents : bool
        Whether to look, on the CPU, if something that the tape is not told of has changed arrays. That reads each array of a
        launch once or twice more, which takes longer than a simple kernel. Without it such a change makes a gradient wrong
        silently.

    Examples
    --------
    >>> import numbridge as nb
    >>> @nb.kernel
    ... def square(x, y):
    ...     i = nb.tid()
    ...     y[i] = x[i] * x[i]
    >>> x, y = nb.array([1.0, 2.0, 3.0], requires_grad=True), nb.zeros(3)
    >>> with Tape() as tape:
    ...     nb.launch(square, 3, [x], [y])
    >>> tape.backward(grads={y: [1.0, 1.0, 1.0]})
    >>> x.grad.list()
    [2.0, 4.0, 6.0]
    """

    def __init__(self, check_contents: bool = True) -> None:
        self._events: list[Event] = []
        self._varied: MemoryIndex[None] = MemoryIndex()
        # Whether arrays without elements are among these: then every one counts, since they have no memory to be known by.
        self._has_empty = False
        # What was written while this tape recorded, of every dtype, by launches that are recorded and by others
        self._made: MemoryIndex[None] = MemoryIndex()
        # What adjoints read and has not been kept yet
        self._reads: MemoryIndex[tuple[LaunchEvent, str]] = MemoryIndex()
        self._arrays: dict[int, Array] = {}
        self._objects: list[Any] = []
        # Those of them on which a framework's own gradient would have gone on to what they were made of
        self._ends: list[Array] = []
        self._memory: AdjointMemory | None = None
        self._now = Checksums()
        self._check_contents = check_contents
        self._forget_contents()
        self._thread: int | None = None
        self._done = False
        self._kept = 0

    # Recording

    def __enter__(self) -> Tape:
        """Record launches from here on."""
        if self._done:
            self.reset()
        native()
        stack = _stack()
        if self in stack:
            raise NumbridgeError("this tape records already; use another one")
        stack.append(self)
        self._thread = threading.get_ident()
        watching.watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Record no more; what has been recorded is still protected from being overwritten."""
        _stack().remove(self)
        self._thread = None
        if not self._events:
            watching.unwatch(self)

    def launching(
        self, kernel: Kernel, geometry: Any, arguments: Sequence[Any], types: Sequence[ParameterType], weak: str
    ) -> Callable[[], None] | None:
        """Prepare for a launch: keep what it overwrites and an adjoint needs; return what records it."""
        names = [parameter.name for parameter in kernel.parameters]
        found = {
            name: describe(argument)
            for name, argument, kind in zip(names, arguments, types, strict=True)
            if isinstance(kind, ArrayType)
        }
        written = {kind.name for kind in types if isinstance(kind, ArrayType) and kind.written}
        self._now.look_again()
        event = self._event(kernel, geometry, arguments, types, weak, found, written)
        for name in written:
            self._keep_before(found[name])
        if self._records():
            for name in written:
                self._made.add(found[name])
        if event is None:
            return None
        self._look_for_changes(event.arrays, f"the launch of kernel {kernel.name!r}")
        if isinstance(event, LaunchEvent):
            for name in event.snapshot:
                self._keep(event, name, {})

        def record() -> None:
            self._events.append(event)
            changed = [found[name] for name in written]
            self._remember_carried(event.arrays, changed)
            if isinstance(event, LaunchEvent):
                self._contents.remember(event.found[name] for name in event.reads)
                for name in event.reads:
                    self._reads.add(event.found[name], (event, name))
            for array in changed:
                if _is_float(array):
                    self._note_varied(array)

        return record

    def _look_for_changes(self, arrays: Iterable[Description], before: str) -> None:
        """Let no gradient pass where something that nobody was told of has set elements of arrays that carry gradients."""
        changed = {place_of(other): other for array in arrays for other in self._carried.changed(array)}
        if changed:
            why = f"something that the tape is not told of, such as NumPy, before {before}"
            self._events.append(OpaqueEvent(list(changed.values()), why))
        for other in changed.values():
            self._carried.renew(other)

    def _remember_carried(self, arrays: Sequence[Description], changed: Sequence[Description]) -> None:
        """Remember what arrays that carry gradients hold after a step, which has changed some."""
        for array in changed:
            self._now.look_again(array)
            self._carried.renew(array)
        self._carried.remember(arrays)

    def _event(
        self,
        kernel: Kernel,
        geometry: Any,
        arguments: Sequence[Any],
        types: Sequence[ParameterType],
        weak: str,
        found: dict[str, Description],
        written: set[str],
    ) -> LaunchEvent | OpaqueEvent | None:
        """Return what is to be recorded of a launch, or None."""
        if not self._records() or (isinstance(kernel, Derivative) and not watching.is_recorded()):
            return None
        floats = [name for name in found if _is_float(found[name])]
        given = dict(zip((p.name for p in kernel.parameters), arguments, strict=True))
        varied = [name for name in floats if self._is_varied(given[name], found[name])]
        if not varied:
            return None
        self._objects += arguments
        touched = [found[name] for name in floats if name in written]
        if not watching.is_recorded():
            return OpaqueEvent(touched, f"kernel {kernel.name!r}, launched with record_tape=False")
        if isinstance(kernel, Derivative):
            return OpaqueEvent(touched, f"the {kernel.name}, which is not differentiated again")
        if not kernel.options.get("enable_backward", True):
            return OpaqueEvent(touched, f"kernel {kernel.name!r}, declared with enable_backward=False")
        check_overlaps(f"gradient of kernel {kernel.name!r}", list(found), written, (), found)
        active = tuple(name for name in floats if name in varied or name in written)
        for name in active:
            self._remember_array(given[name])
        plan = kernel.adjoint(active).plan(tuple(types), weak)
        return LaunchEvent(
            [found[name] for name in active],
            kernel,
            geometry,
            list(arguments),
            found,
            active,
            tuple(name for name in active if name in written),
            variants_of(kernel).dependencies,
            set(plan.reads),
            snapshot=tuple(plan.snapshot),
        )

    def _records(self) -> bool:
        """Whether this tape records what this thread does now."""
        stack = _stack()
        return self._thread == threading.get_ident() and bool(stack) and stack[-1] is self

    def changing(self, array: Array, operation: str, source: Any) -> Callable[[], None] | None:
        """Prepare for a change of an array's contents by one of its own methods; return what records it."""
        found = describe(array)
        self._now.look_again()
        given = None if source is None else describe(source)
        is_followed = self._records() and _is_float(found) and given is not None and given.is_array and _is_float(given)
        if is_followed and given is not None and self._is_varied(source, given):
            raise NumbridgeError(
                f"{operation} of an array that carries a gradient is not recorded; copy it in a kernel, use clone(), or "
                "record_func"
            )
        self._keep_before(found)
        if not self._records():
            return None
        self._made.add(found)
        if not _is_float(found) or not self._is_varied(array, found):
            return None
        self._look_for_changes([found], operation)

        def record() -> None:
            whole = operation in ("fill_", "zero_", "assign")
            self._objects.append(array)
            self._events.append(FillEvent([found]) if whole else OpaqueEvent([found], operation))
            self._remember_carried([found], [found])

        return record

    def copied(self, source: Any, made: Array) -> None:
        """Record that an array was copied."""
        if not self._records():
            return
        arrays = [describe(source), describe(made)]
        self._made.add(arrays[1])
        if all(map(_is_float, arrays)) and self._is_varied(source, arrays[0]):
            self._remember_array(source)
            self._objects += [source, made]
            self._now.look_again()
            self._look_for_changes(arrays[:1], "clone")
            self._events.append(CopyEvent(arrays))
            self._remember_carried(arrays, arrays[1:])
            self._note_varied(arrays[1])

    def _is_varied(self, argument: Any, found: Description) -> bool:
        is_empty = self._has_empty and 0 in found.shape
        return is_empty or _requires_grad(argument) or self._varied.shares(found)

    def _note_varied(self, found: Description) -> None:
        self._varied.add(found)
        self._has_empty |= 0 in found.shape

    def _remember_array(self, argument: Any) -> None:
        if not _requires_grad(argument):
            return
        array = _root(argument if isinstance(argument, Array) else asarray(argument))
        ask = reader_of(argument).lost_gradient
        if ask is not None and not argument.is_leaf and ask(argument) is not None:
            self._ends.append(array)
        self._arrays.setdefault(id(array if array._source is None else array._source), array)

    def _keep_before(self, written: Description) -> None:
        """Keep a copy of every array that an adjoint reads and that is about to be written to."""
        copies: dict[tuple[Any, ...], Any] = {}
        for event, name in self._reads.take(written):
            if not self._contents.holds(event.found[name]):
                event.lost.append(name)
            self._keep(event, name, copies)
        self._contents.forget(written)

    def _keep(self, event: LaunchEvent, name: str, copies: dict[tuple[Any, ...], Any]) -> None:
        place = [parameter.name for parameter in event.kernel.parameters].index(name)
        found = event.found[name]
        key = place_of(found)
        if key not in copies:
            copies[key] = _copy(event.arguments[place])
            self._kept += copies[key].nbytes
        event.arguments[place] = copies[key]
        event.reads.discard(name)

    @property
    def kept_bytes(self) -> int:
        """How many bytes of contents the tape has copied, because they were overwritten and are needed."""
        return self._kept

    def record_func(self, backward: Callable[[], None], arrays: Sequence[Any]) -> None:
        """Record a step of one's own.

        Parameters
        ----------
        backward : callable
            Called without arguments while gradients are carried back. It reads and writes the ``grad`` of the `arrays`,
            which are then those of this place of the tape.
        arrays : sequence of Array
            The arrays that the step read or wrote. They count as depending on what requires a gradient.
        """
        for array in arrays:
            if not isinstance(array, Array):
                raise NumbridgeTypeError(f"record_func: wanted arrays of numbridge, got {array!r}; use nb.asarray(x)")
            self._remember_array(array)
        found = [describe(array) for array in arrays]
        self._events.append(FunctionEvent(found, backward, list(arrays)))
        for array in found:
            self._note_varied(array)
        self._now.look_again()
        self._remember_carried(found, found)

    # Going back

    def backward(self, loss: Any = None, grads: Any = None, *, retain_graph: bool = False) -> None:
        """Carry gradients back through everything that was recorded.

        Each call starts from its own loss or gradients alone; what it gives is added to the ``grad`` of arrays that require
        one, as in PyTorch. `gradients` are those of the last call.

        Parameters
        ----------
        loss : array_like, optional
            An array of one element, whose gradient is one.
        grads : mapping or iterable of pairs, optional
            Array → the gradient at its contents after the last launch.
        retain_graph : bool
            Whether `backward` may be called again. Until then the tape goes on keeping what is overwritten and needed. If no
            adjoint reads what the recorded launches have made, what NumPy or a framework changes in between is read as it
            is then, so that one tape serves a whole optimisation; otherwise it is refused.

        Raises
        ------
        NumbridgeError
            If there is nothing to go back from, it was done already, or a gradient comes to a launch without an adjoint.
        """
        if self._thread is not None:
            raise NumbridgeError("backward: the tape still records; call it after the with block")
        if self._done:
            raise NumbridgeError(
                "backward: the tape has been used up, and what it kept may have changed; record again, or call backward with "
                "retain_graph=True before"
            )
        seeds = self._seeds(loss, grads)
        roots = [describe(array) for array in self._arrays.values()]
        every = [found for event in self._events for found in event.arrays]
        memory = self._memory = AdjointMemory([*every, *(found for found, _ in seeds), *roots])
        for found, cotangent in seeds:
            _add_seed(memory, found, cotangent)
        if not retain_graph:
            self._done = True
            watching.unwatch(self)
        self._now.look_again()
        for event in reversed(self._events):
            self._reverse(event, memory)
        if not retain_graph:
            self._events.clear()
            self._reads = MemoryIndex()
        elif self._reads_only_given():
            self._forget_contents()
        self._deposit(memory)

    def _forget_contents(self) -> None:
        # What adjoints read; and everything that carries gradients, of which nobody else may set an element in between.
        self._contents = RememberedContents(self._now, watchful=self._check_contents)
        self._carried = RememberedContents(self._now, watchful=self._check_contents)

    def _reads_only_given(self) -> bool:
        """Tell whether no adjoint reads what was made while recording, so that other contents only mean another point."""
        if self._kept or any(isinstance(event, OpaqueEvent | FunctionEvent) for event in self._events):
            return False
        return not any(map(self._made.shares, self._reads))

    def _check_unchanged(self, event: LaunchEvent) -> None:
        """Refuse to go back through a launch whose adjoint would not see what the launch saw."""
        kernel = event.kernel.name
        check_unchanged(f"backward through kernel {kernel!r}", event.dependencies)
        changed = [*event.lost, *(name for name in sorted(event.reads) if not self._contents.holds(event.found[name]))]
        if changed:
            raise NumbridgeError(
                f"backward: parameter {changed[0]!r} of kernel {kernel!r} has been changed since the launch, by something that "
                "the tape is not told of; change it in a launch or by a method of nb.Array, or pass a copy"
            )

    def _seeds(self, loss: Any, grads: Any) -> list[tuple[Description, Any]]:
        seeds = [] if loss is None else [(loss, np.ones(_one_element(loss)))]
        seeds += list(grads.items() if isinstance(grads, Mapping) else grads or ())
        if not seeds:
            raise NumbridgeValueError("backward needs a loss, or grads={array: gradient}")
        found = [(_floating(array), _cotangent(array, value)) for array, value in seeds]
        for (array, _), (description, _) in zip(seeds, found, strict=True):
            if not self._is_varied(array, description):
                raise NumbridgeError(
                    "backward: no recorded launch has made the loss, or the array of a gradient, of anything that requires "
                    "one, so every gradient would be zero; launch in the with block, on arrays with requires_grad=True, and "
                    "pass what these launches wrote"
                )
            self._remember_array(array)
        self._objects += [array for array, _ in seeds]
        return found

    def _reverse(self, event: Event, memory: AdjointMemory) -> None:
        if isinstance(event, LaunchEvent):
            self._reverse_launch(event, memory)
        elif isinstance(event, OpaqueEvent):
            check_opaque(event, memory)
        elif isinstance(event, FunctionEvent):
            reverse_function(event, memory)
            self._now.look_again()
        elif isinstance(event, FillEvent):
            region_of(memory, event.arrays[0]).adjoint(event.arrays[0])[...] = 0
        elif isinstance(event, CopyEvent):
            reverse_copy(event, memory)

    def _reverse_launch(self, event: LaunchEvent, memory: AdjointMemory) -> None:
        regions = {name: region_of(memory, event.found[name]) for name in event.active}
        if not any(regions[name].reached for name in event.written):
            return
        self._check_unchanged(event)
        adjoints = [regions[name].adjoint(event.found[name]) for name in event.active]
        with watching.unrecorded():
            event.kernel.adjoint(event.active).over(event.geometry)(*event.arguments, *adjoints)
        for region in regions.values():
            region.reached = True

    def _deposit(self, memory: AdjointMemory) -> None:
        """Add the adjoints of arrays that require a gradient to their gradients."""
        found = [(array, describe(array)) for array in self._arrays.values()]
        reached = [(a, d, region) for a, d in found if (region := memory.region(d)) is not None and region.reached]
        for array, _, _ in reached:
            room = bridge_for_type(type(array._source))
            if room is not None:
                room.check_deposit(array._source)
        ends = {id(array) for array in self._ends}
        leaves = [found for array, found, _ in reached if id(array) not in ends]
        if any(id(a) in ends and not any(share_memory(d, leaf) for leaf in leaves) for a, d, _ in reached):
            warnings.warn(
                "backward: the gradient of a tensor that is no leaf stays in tape.gradients[tensor], and does not flow to what "
                "the tensor was made of; pass it to the tensor's own backward, or make an operator of the kernel (nb.torch_op, "
                "nb.paddle_op), or pass tensor.detach()",
                NumbridgeWarning,
                stacklevel=3,
            )
        for array, description, region in reached:
            gradient = array.grad
            if gradient is not None:
                add(gradient.numpy(), region.adjoint(description))

    @property
    def gradients(self) -> Gradients:
        """The gradient of every array that was recorded, after `backward`."""
        return Gradients(self._memory, self._objects)

    def zero(self) -> None:
        """Set the gradients of all arrays that were recorded to zero."""
        for array in self._arrays.values():
            gradient = array.grad
            if gradient is not None:
                gradient.zero_()
        self._memory = None

    def reset(self) -> None:
        """Forget everything that was recorded; gradients stay."""
        watching.unwatch(self)
        recording, thread = self._thread is not None, self._thread
        self.__init__()  # type: ignore[misc]
        self._thread = thread
        if recording:
            watching.watch(self)


class Gradients(Mapping[Any, Array]):
    """Array → its gradient, found by memory: views and tensors over the same memory have their own part of it."""

    def __init__(self, memory: AdjointMemory | None, objects: Iterable[Any]) -> None:
        self._memory = memory
        self._objects = [obj for obj in {id(obj): obj for obj in objects}.values() if self._adjoint(obj) is not None]

    def _adjoint(self, array: Any) -> Any:
        found = describe(array)
        if self._memory is None or not found.is_array or found.scalar is None:
            return None
        region = self._memory.region(found)
        return None if region is None else region.adjoint(found)

    def __getitem__(self, array: Any) -> Array:
        """Return an array's gradient, on the tape's own memory."""
        adjoint = self._adjoint(array)
        if adjoint is None:
            raise KeyError("the tape has no gradient of this array")
        return gradient_like(adjoint, describe(array))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the arrays that were recorded."""
        return iter(self._objects)

    def __len__(self) -> int:
        """Return how many arrays were recorded."""
        return len(self._objects)


def _stack() -> list[Tape]:
    if not hasattr(_recording, "stack"):
        _recording.stack = []
    found: list[Tape] = _recording.stack
    return found


def _is_float(found: Description) -> bool:
    return found.scalar is not None and has_gradient(found.element, found.scalar)


def _requires_grad(argument: Any) -> bool:
    if isinstance(argument, Array):
        return argument.requires_grad
    room = bridge_for_type(type(argument))
    return room is not None and room.requires_grad_of(argument)


def _root(array: Array) -> Array:
    """Return the array whose gradient a view's is a part of."""
    while array._extra is not None and array._extra.parent is not None:
        array = array._extra.parent
    return array


def _floating(array: Any) -> Description:
    found = describe(array)
    if not found.is_array or not _is_float(found):
        raise NumbridgeTypeError("backward: gradients come from arrays of floating-point numbers")
    return found


def _one_element(loss: Any) -> tuple[int, ...]:
    found = _floating(loss)
    if found.element is not None and found.element.fields is not None:
        raise NumbridgeTypeError("backward: the loss is a record, and must be a number; pass grads={array: gradient}")
    if any(extent != 1 for extent in full_shape(found)):
        raise NumbridgeValueError(
            f"backward: the loss has shape {full_shape(found)}, and must have one element; pass grads={{array: gradient}}"
        )
    return full_shape(found)


def _cotangent(array: Any, value: Any) -> Any:
    found = describe(array)
    values, wanted = np.asarray(as_values(value)), full_shape(found)
    if found.element is not None and found.element.fields is not None:
        wanted = found.shape
        if values.dtype != found.element.fields:
            raise NumbridgeTypeError(
                f"backward: the gradient has dtype {values.dtype}, and its array has records of {found.element.name}; give "
                "one of the same dtype"
            )
    if values.shape != wanted:
        raise NumbridgeValueError(
            f"backward: the gradient has shape {values.shape}, and its array {wanted}; give one of the same shape"
        )
    return values


def _copy(array: Any) -> Any:
    """Return a copy of an array's contents, to be launched with in its place."""
    if isinstance(array, np.ndarray) and array.dtype.fields is not None:
        return array.copy()
    whole = asarray(array)
    made, element = filled(unpacked(whole).numpy(), row_of(whole)), element_of(whole)
    return made if element is None else packed(made, element)


def _add_seed(memory: AdjointMemory, found: Description, cotangent: Any) -> None:
    region = region_of(memory, found)
    add(region.adjoint(found), cotangent)
    region.reached = True
