"""Tape: launches are recorded while they run, and their adjoints run in the opposite order afterwards.

A tape follows memory, not objects: what a launch wrote carries gradients to whatever later reads it, through views and
through other frameworks' tensors. It keeps copies of contents only where the compiler says that an adjoint reads what a
launch is about to overwrite. Gradients of arrays that require one end in their ``grad``.
"""

from __future__ import annotations

import functools
import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from numbridge.arrays.array import Array
from numbridge.arrays.contents import moved
from numbridge.arrays.gradients import existing_gradient, is_required, retains_gradient, root_of
from numbridge.bridges.bridge import bridge_for_type
from numbridge.bridges.convert import asarray
from numbridge.kernels import watching
from numbridge.kernels.adjoint.overlap import share_memory
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.cuda_backend.argument_streams import argument_stream
from numbridge.kernels.element_types.element_arguments import full_shape
from numbridge.kernels.errors import NumbridgeError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.parameter_types import ParameterType
from numbridge.kernels.readers import Description, describe, reader_of
from numbridge.storage import cupy_memory
from numbridge.storage.element_views import packed
from numbridge.storage.memory import element_of, native, row_of
from numbridge.storage.stream_order import let_launch_wait, wait_for_launch
from numbridge.tape.adjoint_memory import AdjointMemory, clear
from numbridge.tape.deposits import Gradients, deposit
from numbridge.tape.places import Place, Places
from numbridge.tape.remembered_contents import RememberedContents
from numbridge.tape.retained_gradients import RetainedGradients, retained_gradients
from numbridge.tape.seeds import ONE, check_loss, cotangent_of, floating, pairs
from numbridge.tape.tape_drawing import Scope, drawn
from numbridge.tape.tape_events import (
    CopyEvent,
    Event,
    FillEvent,
    FunctionEvent,
    LaunchEvent,
    OpaqueEvent,
    check_opaque,
    reverse_copy,
    reverse_function,
)
from numbridge.tape.tape_launches import Signature, has_moved, meet, reverse_launch, signature_of, why_opaque

__all__ = ["Tape", "scope"]


class _Recording(threading.local):
    """The tapes that a thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Tape] = []


_recording = _Recording()
# What is done anew each time, so that a tape with it has no adjoint to be run once more at another point
_UNREPEATABLE = (OpaqueEvent, FunctionEvent)
_places_of = operator.attrgetter("places")
_first = operator.itemgetter(0)


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

    # Of the thread that entered it; whether it is the innermost there
    _thread: int | None = None
    _is_innermost = False
    # Whether arrays without elements are varied: then every one counts, since they have no memory to be known by.
    _has_empty = False
    # Whether backward has let go of what the tape protected, and whether it may run again all the same
    _done = _repeatable = False
    _kept = 0
    _memory: AdjointMemory | None = None
    _retained: RetainedGradients | None = None

    def __init__(self, check_contents: bool = True) -> None:
        self._events: list[Event] = []
        self._places = Places()
        self._arrays: dict[int, Array] = {}
        self._objects: list[Any] = []
        # Those of them on which a framework's own gradient would have gone on to what they were made of
        self._ends: list[Array] = []
        self._check_contents = check_contents
        self._contents = RememberedContents(watchful=check_contents)
        self._scopes: list[Scope] = []

    def __reduce__(self) -> NoReturn:
        """Refuse copies and pickles."""
        raise NumbridgeTypeError(
            "a tape can be neither copied nor pickled: it holds the arrays of launches that were made; record them once more"
        )

    # Recording

    def __enter__(self) -> Tape:
        """Record launches from here on."""
        if self._done:
            self._forget()
        native()
        stack = _recording.stack
        if self in stack:
            raise NumbridgeError("this tape records already; use another one")
        if stack:
            stack[-1]._is_innermost = False
        stack.append(self)
        self._is_innermost = True
        self._thread = threading.get_ident()
        watching.watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Record no more; what has been recorded is still protected from being overwritten."""
        stack = _recording.stack
        stack.remove(self)
        self._thread, self._is_innermost = None, False
        if stack:
            stack[-1]._is_innermost = True
        if not self._events:
            watching.unwatch(self)

    def launching(
        self,
        kernel: Kernel,
        geometry: Any,
        arguments: Sequence[Any],
        types: Sequence[ParameterType],
        weak: str,
        found: Sequence[Description],
        is_in_order: bool = False,
    ) -> Callable[..., None] | None:
        """Prepare for a launch: keep what it overwrites and an adjoint needs; return what records it."""
        if geometry.stream is not None and not is_in_order:
            return self._launching_on(geometry.stream, kernel, geometry, arguments, types, weak, found)
        signature = signature_of(kernel, types, weak)
        self._contents.look_again()
        if not self._records():
            for k in signature.written:
                self._keep_before(self._places.find(found[k]))
            return None
        at = self._places.keep_each(found, signature.arrays)
        event, stored = self._event(signature, geometry, arguments, at)
        changed: list[Place] = [*map(stored.__getitem__, signature.written)]  # type: ignore[list-item]
        for place in changed:
            self._keep_before(place)
            place.is_made = True
        if stored is not at:
            for k in signature.written:
                at[k].is_made = True  # type: ignore[union-attr]
        # Adjoints that a backward pass within this tape's block launches are another tape's.
        if event is None and (signature.is_derivative and not watching.is_recorded()):
            return None
        for k in signature.without_floats:
            by = f"kernel {kernel.name!r}, to parameter {kernel.label(signature.names[k])!r}"
            self._refuse_beneath(at[k], by, is_unrecorded=not watching.is_recorded())  # type: ignore[arg-type]
        if event is None:
            return self._watching(changed, f"the launch of kernel {kernel.name!r}")
        foreign = self._contents.changed(_touched(event))
        if foreign:
            self._refuse_gradients(foreign, f"the launch of kernel {kernel.name!r}")
        if isinstance(event, LaunchEvent):
            recipe = event.recipe
            for k in recipe.snapshot:
                loaded, made = event.at[k], stored[k]
                if loaded is made or k in recipe.stored_again or share_memory(loaded.found, made.found):  # type: ignore[union-attr]
                    self._keep(event, k, {})
        return functools.partial(self._record, kernel, event, changed)

    def _launching_on(self, stream: int, *launch: Any) -> Callable[..., None] | None:
        """Prepare for a launch on a stream of its own: what a tape copies and looks at it does on the current one."""
        found: Sequence[Description] = launch[-1]
        wait_for_launch(stream, found)
        kernel, geometry, arguments, types, weak, _ = launch
        record = self.launching(kernel, geometry, arguments, types, weak, found, is_in_order=True)
        let_launch_wait(stream, found)
        return None if record is None else functools.partial(_recorded_on, stream, found, record)

    def _refuse_beneath(self, place: Place, by: str, *, is_unrecorded: bool = False) -> None:
        """Let no gradient pass what is about to be written to memory that carries some, as elements that have none."""
        beneath = place.beneath()
        if beneath:
            why = f"{by}, as elements that are no floating-point numbers"
            self._events.append(OpaqueEvent(beneath, why, is_unrecorded))

    def _watching(self, changed: Sequence[Place], before: str) -> Callable[..., None] | None:
        """Prepare for a change on which no gradient depends; return what remembers it, where gradients are carried nearby.

        An array that carries some was recorded as a whole, of which this may be a part on which nothing depends.
        """
        if not self._contents.are_carried(changed):
            return None
        foreign = self._contents.changed(changed)
        if foreign:
            self._refuse_gradients(foreign, before)

        def remember(*, has_raised: bool = False) -> None:
            self._contents.remember_carried((), changed)

        return remember

    def _record(self, kernel: Kernel, event: Event, changed: Sequence[Place], *, has_raised: bool = False) -> None:
        """Record a launch that has run, or has raised and may have written a part."""
        if has_raised:
            event = OpaqueEvent([place for place in changed if place.is_float], f"kernel {kernel.name!r}, which raised")
        number = len(self._events)
        self._events.append(event)
        self._contents.remember_carried(_touched(event), changed)
        if isinstance(event, LaunchEvent):
            for k in event.reads:
                place = event.at[k]
                assert place is not None
                self._contents.remember_read(place)
                place.reads.append((number, k))
        for place in changed:
            if place.is_float and not place.is_varied:
                self._note_varied(place)

    def _refuse_gradients(self, changed: Sequence[Place], before: str) -> None:
        """Let no gradient pass where something that nobody was told of has set elements of arrays that carry gradients."""
        why = f"something that the tape is not told of, such as NumPy, before {before}"
        self._events.append(OpaqueEvent(changed, why))
        for place in changed:
            self._contents.renew_carried(place)

    def _look_for_changes(self, place: Place, before: str) -> None:
        changed = self._contents.changed([place])
        if changed:
            self._refuse_gradients(changed, before)

    def _event(
        self, signature: Signature, geometry: Any, arguments: Sequence[Any], at: Sequence[Place | None]
    ) -> tuple[LaunchEvent | OpaqueEvent | None, Sequence[Place | None]]:
        """Return what is to be recorded of a launch, or None, and where it stores to each array that it writes."""
        active, required = self._active(signature, arguments, at)
        if not active:
            return None, at
        kernel, is_recorded = signature.kernel, watching.is_recorded()
        is_derivative = signature.is_derivative
        if is_derivative and not is_recorded:
            return None, at
        self._objects += arguments
        for k in signature.arrays:
            place: Place = at[k]  # type: ignore[assignment]
            if place.holder is None:
                place.holder = arguments[k] if type(arguments[k]) is Array else native().capture(arguments[k])
        if not (is_recorded and signature.is_differentiable):
            touched: list[Place] = [at[k] for k in active if k in signature.written]  # type: ignore[misc]
            return OpaqueEvent(touched, why_opaque(kernel, is_recorded), is_unrecorded=not is_recorded), at
        are_apart = not (meet(at, signature.pairs) or signature.writes_repeatedly(at))
        recipe = signature.recipe(active)
        event, stored = LaunchEvent(recipe, geometry, arguments, at), at
        if recipe.rows is not None:
            loaded, stored = recipe.rows.narrow(self._places, at, arguments)
            event.narrow(loaded, stored)
            are_apart = are_apart or signature.are_apart(loaded, stored)
        if not are_apart:
            signature.refuse_overlaps(at)
        for k in required:
            self._remember_array(arguments[k], at[k])  # type: ignore[arg-type]
        return event, stored

    def _active(
        self, signature: Signature, arguments: Sequence[Any], at: Sequence[Any]
    ) -> tuple[tuple[int, ...], list[int]]:
        """Return the parameters that gradients pass through to what the kernel writes, and those that require a gradient.

        Without anything on which a gradient depends there are none.
        """
        active, required, is_varied = [], [], False
        for k, is_written in signature.are_written:
            place = at[k]
            if place.is_float:
                if _requires_grad(arguments[k]):
                    required.append(k)
                    is_varied = True
                elif place.meets_varied or (is_written and place.meets_leaf) or (self._has_empty and place.is_empty):
                    is_varied = True
                elif not is_written:
                    continue
                active.append(k)
        return (tuple(active) if is_varied else ()), required

    def _records(self) -> bool:
        """Whether this tape records what this thread does now."""
        return self._is_innermost and self._thread == threading.get_ident()

    def changing(self, array: Array, operation: str, source: Any) -> Callable[[], None] | None:
        """Prepare for a change of an array's contents by one of its own methods; return what records it."""
        found = describe(array)
        self._contents.look_again()
        if not self._records():
            self._keep_before(self._places.find(found))
            return None
        place, given = self._places.keep(found), None if source is None else describe(source)
        if given is not None and place.is_float and given.is_array:
            there = self._places.find(given)
            if there.is_float and self._is_varied(source, there):
                return self._copying(operation, array, place, source, there)
        self._keep_before(place)
        place.is_made = True
        if not place.is_float:
            self._refuse_beneath(place, operation)
        if not place.is_float or not (self._is_varied(array, place) or place.meets_leaf):
            return self._watching([place], operation)
        self._look_for_changes(place, operation)

        def record() -> None:
            whole = operation in ("fill_", "zero_", "assign")
            self._objects.append(array)
            self._events.append(FillEvent([place]) if whole else OpaqueEvent([place], operation))
            self._contents.remember_carried((), [place])

        return record

    def _copying(self, operation: str, array: Array, place: Place, source: Any, there: Place) -> Callable[[], None]:
        """Prepare for a copy of what carries gradients into an array that is there already."""
        found, given = place.found, there.found
        alike = full_shape(found) == full_shape(given) and found.element is given.element
        on_one = (found.device_type, found.device_id) == (given.device_type, given.device_id)
        repeated = any(d.has(nb.REPEATED) for d in (found, given)) or place.repeats or there.repeats
        if operation != "assign" or not alike or not on_one or repeated or share_memory(found, given):
            raise NumbridgeError(
                f"{operation} of an array that carries a gradient is not recorded, unless it is a copy (assign, nb.copy) between "
                "arrays of one shape and element type, on one device, that share no memory; copy it in a kernel, use clone(), "
                "or record_func"
            )
        places = [self._places.keep(given), place]
        if _requires_grad(source):
            self._remember_array(source, places[0])
        self._objects += [source, array]
        _hold(places[0], source)
        for changed in places:
            self._look_for_changes(changed, operation)
        self._keep_before(place)
        place.is_made = True

        def record() -> None:
            self._events.append(CopyEvent(places))
            self._contents.remember_carried(places, [place])
            self._note_varied(place)

        return record

    def copied(self, source: Any, made: Array) -> None:
        """Record that an array was copied."""
        if not self._records():
            return
        given, place = self._places.find(describe(source)), self._places.keep(describe(made))
        place.is_made = True
        if given.is_float and place.is_float and self._is_varied(source, given):
            places = [self._places.keep(given.found), place]
            if _requires_grad(source):
                self._remember_array(source, places[0])
            self._objects += [source, made]
            _hold(places[0], source)
            self._contents.look_again()
            self._look_for_changes(places[0], "clone")
            self._events.append(CopyEvent(places))
            self._contents.remember_carried(places, [place])
            self._note_varied(place)

    def _is_varied(self, argument: Any, place: Place) -> bool:
        return place.meets_varied or (self._has_empty and place.is_empty) or _requires_grad(argument)

    def _note_varied(self, place: Place) -> None:
        place.vary()
        if place.is_empty:
            self._has_empty = True

    def _remember_array(self, argument: Any, place: Place) -> None:
        """Remember an array that requires a gradient, which will be added to its own, and where it lies."""
        place.require()
        if isinstance(argument, Array):
            array = root_of(argument)
        else:
            known = self._arrays.get(id(argument))
            array = asarray(argument) if known is None else known
            ask = reader_of(argument).lost_gradient
            if ask is not None and not argument.is_leaf and ask(argument) is not None:
                self._ends.append(array)
        key = id(array if array._source is None else array._source)
        # Of several on one tensor, the one that retains the gradient says so for all.
        if key not in self._arrays or retains_gradient(array):
            self._arrays[key] = array

    def _keep_before(self, written: Place) -> None:
        """Keep a copy of every array that an adjoint reads and that is about to be written to."""
        for place in written.links:
            if place.reads:
                self._keep_read(place)
            place.read = None

    def _keep_read(self, place: Place) -> None:
        reads, place.reads, copies = place.reads, [], {}  # type: ignore[var-annotated]
        for number, k in reads:
            event = self._events[number]
            assert isinstance(event, LaunchEvent)
            if has_moved(event.arguments[k], event.wholes[k]) or not self._contents.holds_read(place):
                event.lost += (k,)
            self._keep(event, k, copies)

    def _keep(self, event: LaunchEvent, k: int, copies: dict[Place, Any]) -> None:
        place = event.wholes[k]
        assert place is not None
        if place not in copies:
            copies[place] = _copy(event.arguments[k])
            self._kept += copies[place].nbytes
        event.keep(k, copies[place])

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
            The arrays that the step read or wrote. They count as depending on what requires a gradient. Launches on them with
            ``record_tape=False`` since the last step that was recorded are this step.
        """
        for array in arrays:
            if not isinstance(array, Array):
                raise NumbridgeTypeError(f"record_func: wanted arrays of numbridge, got {array!r}; use nb.asarray(x)")
        places = [self._places.keep(describe(array)) for array in arrays]
        for array, place in zip(arrays, places, strict=True):
            if _requires_grad(array):
                self._remember_array(array, place)
        self._take_over(places)
        self._events.append(FunctionEvent(places, backward, list(arrays)))
        for place in places:
            self._note_varied(place)
        self._contents.look_again()
        self._contents.remember_carried(places, places)

    def record_scope_begin(self, scope_name: str) -> None:
        """Let what is recorded from here on stand together in a drawing, under a name; `visualize` alone reads it."""
        if not isinstance(scope_name, str):
            raise NumbridgeTypeError(f"record_scope_begin: scope_name is {scope_name!r}; it must be a string")
        self._scopes.append((len(self._events), scope_name))

    def record_scope_end(self, remove_scope_if_empty: bool = True) -> None:
        """End the innermost scope; one in which nothing was recorded is left out, unless ``remove_scope_if_empty`` is false.

        Raises
        ------
        NumbridgeError
            If no scope has begun.
        """
        if not self.open_scopes:
            raise NumbridgeError("record_scope_end: no scope has begun; call record_scope_begin before")
        if remove_scope_if_empty and self._scopes[-1][0] == len(self._events) and self._scopes[-1][1] is not None:
            self._scopes.pop()
        else:
            self._scopes.append((len(self._events), None))

    @property
    def open_scopes(self) -> int:
        """How many scopes have begun and not ended."""
        return sum(1 if name is not None else -1 for _, name in self._scopes)

    def visualize(
        self,
        filename: str | os.PathLike[str] | None = None,
        *,
        hide_readonly_arrays: bool = False,
        array_labels: Any = None,
        ignore_graph_scopes: bool = False,
        graph_direction: str = "LR",
    ) -> str:
        """Return what has been recorded as a graph in GraphViz's language, which ``dot -Tsvg tape.dot`` draws.

        Launches, copies and steps of one's own are boxes, numbered in their order, and arrays are ellipses, green if they
        require a gradient. Views with memory of their own are arrays of their own. Arrays are called as the parameter that
        they were passed for first.

        Parameters
        ----------
        filename : path, optional
            Where to write it, too.
        hide_readonly_arrays : bool
            Whether to leave arrays out that nothing has written.
        array_labels : mapping or iterable of pairs, optional
            Array → what to call it.
        ignore_graph_scopes : bool
            Whether to leave scopes out, which group what is recorded within them.
        graph_direction : str
            ``"LR"`` for from left to right, ``"RL"``, ``"TB"`` or ``"BT"``.

        Raises
        ------
        NumbridgeError
            If the tape has been used up.
        """
        if self._done and not self._repeatable:
            raise NumbridgeError(
                "visualize: backward has used the tape up; call it before, or call backward with retain_graph=True"
            )
        text = drawn(
            self._events,
            () if ignore_graph_scopes else self._scopes,
            required={self._places.find(describe(array)) for array in self._arrays.values()},
            labels={self._places.find(describe(array)): str(label) for array, label in _labelled(array_labels)},
            only_written=hide_readonly_arrays,
            direction=graph_direction,
        )
        if filename is not None:
            Path(filename).write_text(text, encoding="utf-8")
        return text

    def _take_over(self, places: Sequence[Place]) -> None:
        """Let gradients pass the last unrecorded launches where they wrote to what a step of the user's answers for."""
        for event in reversed(self._events):
            if not (isinstance(event, OpaqueEvent) and event.is_unrecorded):
                return
            event.places = [place for place in event.places if not any(place.meets(other) for other in places)]

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
            Array → the gradient at its contents after the last launch. Without it and a loss, the ``grad`` that the arrays which
            the tape has written hold now, which `backward` takes out of them, as Warp's does.
        retain_graph : bool
            Whether the tape goes on keeping what is overwritten and needed, so that `backward` may be called again. A tape
            whose adjoints read nothing that its launches have made needs nothing kept, and may be called again in any case:
            what has been changed in between is read as it is then, so that one tape serves a whole optimisation. With
            ``retain_graph`` that holds for what NumPy or a framework changes, and what a launch changes is kept as it was.

        Raises
        ------
        NumbridgeError
            If there is nothing to go back from, or from an array only that nothing recorded has read or written; if it was done
            already; or if a gradient comes to a launch without an adjoint.
        """
        if self._thread is not None:
            raise NumbridgeError("backward: the tape still records; call it after the with block")
        if self._done and not self._repeatable:
            raise NumbridgeError(
                "backward: the tape has been used up, and what it kept may have changed; record again, or call backward with "
                "retain_graph=True before"
            )
        self._prepare_captures(loss is None and grads is None)
        seeds, cotangents = self._seeds(loss, grads)
        # A seed is kept, or within reach of what is, unless nothing has been recorded.
        arrays = [*map(describe, self._arrays.values())]
        are_apart = bool(self._events) and self._places.are_apart(arrays)
        memory = AdjointMemory([*map(_places_of, self._events), seeds], arrays, are_apart=are_apart)
        self._memory = memory
        for place, cotangent in zip(seeds, cotangents, strict=True):
            memory.start(place, cotangent)
        self._repeatable = False
        if not retain_graph:
            self._done = True
            watching.unwatch(self)
        self._contents.look_again()
        retained = self._retained = retained_gradients(self._arrays.values(), self._places, memory)
        try:
            with watching.unrecorded():
                for event in reversed(self._events):
                    if retained is not None:
                        retained.keep_before(event)
                    if type(event) is LaunchEvent:
                        reverse_launch(event, memory, self._contents)
                    else:
                        self._reverse(event, memory)
        finally:
            memory.own()
        self._repeatable = self._reads_only_given()
        if self._repeatable:
            self._forget_contents()
        elif not retain_graph:
            self._events.clear()
            for place in self._places:
                place.reads = []
        deposit(self._arrays.values(), self._ends, memory, retained)

    def _prepare_captures(self, looks_for_gradients: bool) -> None:
        """Let a graph that is recorded keep what adjoints read: the tape lets go of that, and of copies that nobody else has.

        Going back is refused while a graph is recorded that would use memory which has gone, or where it cannot be recorded.
        """
        if not cuda_driver.driver_count():
            return
        devices, used = cuda_driver.devices(), self._streams()
        for ordinal, streams in used.items():
            current = devices.current_stream(ordinal)
            recorded = {stream for stream in (current, *streams) if devices.is_capturing(ordinal, stream)}
            if recorded and not (current in recorded and cupy_memory.holds_memory(ordinal)):
                raise NumbridgeError(
                    f"backward: somebody else records a graph on cuda:{ordinal}, which would go on using memory that is given "
                    "back after this; record it with nb.ScopedCapture, whose graph keeps that memory"
                )
            if recorded and looks_for_gradients:
                raise NumbridgeError(
                    "backward: without a loss or grads it looks for gradients that are not zero, and while a graph is recorded "
                    "there is nothing to be seen; pass grads={array: gradient}, with gradients on the device"
                )
            if recorded:
                read = [event.arguments for event in self._events if isinstance(event, LaunchEvent)]
                cupy_memory.hold(ordinal, current, read)

    def _streams(self) -> dict[int, set[int]]:
        """Return the streams on which the arrays of recorded launches are used, by each device on which the tape has arrays."""
        used: dict[int, dict[int, Any]] = {
            place.found.device_id: {} for place in self._places if place.found.is_on_cuda
        }
        for event in self._events:
            for argument, place in (
                zip(event.arguments, event.at, strict=True) if isinstance(event, LaunchEvent) else ()
            ):
                if place is not None and place.found.is_on_cuda:
                    used[place.found.device_id][id(argument)] = argument
        return {
            ordinal: {argument_stream(argument, ordinal) for argument in arguments.values()}
            for ordinal, arguments in used.items()
        }

    def _forget_contents(self) -> None:
        # What adjoints read; and everything that carries gradients, of which nobody else may set an element in between.
        for place in self._places:
            place.read = place.carried = None

    def _reads_only_given(self) -> bool:
        """Tell whether no adjoint reads what was made while recording, so that other contents only mean another point."""
        if self._kept:
            return False
        for event in self._events:
            if type(event) is not LaunchEvent and isinstance(event, _UNREPEATABLE):
                return False
        for place in self._places:
            if place.reads:
                for other in place.links:
                    if other.is_made:
                        return False
        return True

    def _seeds(self, loss: Any, grads: Any) -> tuple[list[Place], list[Any]]:
        """Return where gradients start, and what they are there."""
        seeds = pairs(grads)
        if loss is not None:
            check_loss(loss)
            seeds = [(loss, ONE), *seeds]
        if loss is None and grads is None:
            seeds = self._taken_gradients()
        if not seeds:
            raise NumbridgeValueError(
                "backward needs a loss, or grads={array: gradient}, or an array that was written and has a grad other than zero"
            )
        places, cotangents = [], []
        for array, value in seeds:
            description = floating(array)
            cotangents.append(cotangent_of(description, value))
            place, requires_grad = self._places.find(description), _requires_grad(array)
            places.append(place)
            if not (requires_grad or place.meets_varied or (self._has_empty and place.is_empty)):
                raise NumbridgeError(
                    "backward: no recorded launch has made the loss, or the array of a gradient, of anything that requires "
                    "one, so every gradient would be zero; launch in the with block, on arrays with requires_grad=True, and "
                    "pass what these launches wrote"
                )
            # By itself, on a tape of nothing, what requires a gradient has one: it is its own derivative.
            if self._events and not (place.links or place.is_empty):
                what = "the loss" if loss is not None and array is loss else "an array in grads"
                raise NumbridgeError(
                    f"backward: {what}, {type(array).__name__} of shape {full_shape(description)}, is not on this tape: nothing "
                    "that it has recorded has read or written it; pass what a launch in its with block wrote, or call backward "
                    "of the tape that recorded that launch"
                )
            if requires_grad:
                self._remember_array(array, place)
        self._objects += map(_first, seeds)
        return places, cotangents

    def _taken_gradients(self) -> list[tuple[Any, Any]]:
        """Return the arrays that the tape has written and whose own gradients are not zero, with these, which are zero then."""
        found = {id(array): array for array in (*self._arrays.values(), *self._objects) if isinstance(array, Array)}
        taken = []
        for array in map(root_of, found.values()):
            gradient = existing_gradient(array)
            if gradient is not None and self._places.find(describe(array)).is_made and gradient.numpy().any():
                taken.append((array, gradient.clone()))
                gradient.zero_()
        return taken

    def _reverse(self, event: Event, memory: AdjointMemory) -> None:
        if isinstance(event, OpaqueEvent):
            check_opaque(event, memory)
        elif isinstance(event, FunctionEvent):
            memory.own()
            with watching.recorded():
                reverse_function(event, memory)
            self._contents.look_again()
        elif isinstance(event, FillEvent):
            clear(memory.adjoint(event.places[0]))
        elif isinstance(event, CopyEvent):
            reverse_copy(event, memory)

    @property
    def gradients(self) -> Gradients:
        """The gradient of every array that was recorded, after `backward`."""
        return Gradients(self._memory, self._objects, self._retained)

    def zero(self) -> None:
        """Set the gradients of all arrays that were recorded to zero; one that does not exist yet is not made."""
        for array in self._arrays.values():
            gradient = existing_gradient(array)
            if gradient is not None:
                gradient.zero_()
        self._memory = self._retained = None

    def reset(self) -> None:
        """Forget everything that was recorded, and set the gradients of its arrays to zero, as Warp does.

        Entering a tape that is used up forgets, too, and leaves gradients, to which the next `backward` adds.
        """
        self.zero()
        self._forget()

    def _forget(self) -> None:
        watching.unwatch(self)
        self._has_empty = self._done = self._repeatable = False
        self._kept, self._memory, self._retained = 0, None, None
        self.__init__(self._check_contents)  # type: ignore[misc]
        if self._thread is not None:
            watching.watch(self)


def _recorded_on(
    stream: int, found: Sequence[Description], record: Callable[..., None], *, has_raised: bool = False
) -> None:
    """Record a launch that has run on a stream of its own."""
    wait_for_launch(stream, found)
    record(has_raised=has_raised)
    let_launch_wait(stream, found)


def _touched(event: Event) -> Sequence[Place]:
    """Return where an event loads from what gradients pass through, and where it stores to that."""
    return event.touched if isinstance(event, LaunchEvent) else event.places


def _hold(place: Place, argument: Any) -> None:
    """Hold the memory that is recorded: its checksum is looked at also when a tensor has been given other memory."""
    if place.holder is None:
        place.holder = argument if type(argument) is Array else native().capture(argument)


def _labelled(labels: Any) -> list[tuple[Any, Any]]:
    return [] if labels is None else list(labels.items() if isinstance(labels, Mapping) else labels)


def scope(name: str) -> Callable[[], None]:
    """Begin a scope of the tape that records what this thread does, if there is one; return what ends it."""
    tape = next(reversed(_recording.stack), None)
    if tape is None:
        return lambda: None
    tape.record_scope_begin(name)

    def end() -> None:
        # The tape may have been reset meanwhile.
        if tape.open_scopes:
            tape.record_scope_end()

    return end


def _requires_grad(argument: Any) -> bool:
    if type(argument) is Array:
        return (argument._extra is not None or argument._source is not None) and is_required(argument)
    room = bridge_for_type(type(argument))
    return room is not None and room.requires_grad_of(argument)


def _copy(array: Any) -> Any:
    """Return a copy of an array's contents, to be launched with in its place."""
    if isinstance(array, np.ndarray) and array.dtype.fields is not None:
        return array.copy()
    whole = asarray(array)
    made, element = moved(whole, row_of(whole), whole.device), element_of(whole)
    return made if element is None else packed(made, element)
