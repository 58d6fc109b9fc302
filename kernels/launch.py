"""Launching: a geometry becomes a native plan, and a plan becomes a function that takes a kernel's arguments.

`forall` returns a built-in function: calling it runs no Python until something new has to be compiled or explained. That is
the slow road, `_Road.slow`: it specialises the kernel for the arguments (or raises) and launches again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from numbridge.kernels import watching
from numbridge.kernels.arguments import by_position, check_count
from numbridge.kernels.block_dims import BlockDim, block_axes, block_dim_of, check_hardware
from numbridge.kernels.cpu_backend.endings import ended_by
from numbridge.kernels.cpu_backend.raised import raised_at, raised_by, says
from numbridge.kernels.cpu_backend.threads import start_threads
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import Device, get_device
from numbridge.kernels.errors import KernelError, NumbridgeError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.extent_checks import check_extents
from numbridge.kernels.geometry import Geometry, bracketed, dimensions, geometry_of, most_blocks
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.language.kernel_syntax import may_raise
from numbridge.kernels.language.source import Program
from numbridge.kernels.lost_gradient import warn_of_lost_gradient
from numbridge.kernels.machine import builtin, front, machine, open_fronts
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Description, cuda_ordinal, describe, read_once
from numbridge.kernels.spread_table import SpreadTable
from numbridge.kernels.taken_over import are_understood, taking_over
from numbridge.kernels.variant import Variant, variants_of

__all__ = ["Launch", "configure", "forall", "launch", "launcher"]

_MAX_ATTEMPTS = 16
_MAX_EXTENTS = 256
_MAX_LAUNCHERS, _MAX_BLOCKS = 256, 64
# The block that is meant where none is said; and what stands for a block where a kernel remembers what was said in brackets.
# There may also stand a device's name, of launches in the usual block that name it, or a tuple of all that was asked for.
_BLOCK = 256
_BRACKETS = object()
# What stands for any extents, by how many there are
_ANY = tuple(object() for _ in range(nb.MAX_DIMS + 1))
_LISTS = frozenset({list, tuple})
# What a launch asks of `geometry_of` that says nothing of how and where it runs: block_dim, max_blocks, stream, device.
_UNASKED = (_BLOCK, 0, None, None)
_missed = object()


class _Road:
    """A launcher's Python side: its native plan, and what happens when compiled code does not know the arguments."""

    def __init__(self, kernel: Kernel, geometry: Geometry) -> None:
        self.kernel = kernel
        self.geometry, self.place = geometry, geometry.place
        self._total = math.prod(geometry.dims)
        self.variants = variants_of(kernel)
        self._table, self._threads = self.variants.table(self.place), kernel.source.threads
        self._long_enough: set[tuple[Any, ...]] = set()
        self.launcher = self._builtin(0, self.slow)

    @functools.cached_property
    def again(self) -> Any:
        """The launcher for arguments that have been looked at; it returns `_missed` where it does not know them."""
        return self._builtin(nb.PLAN_GUARDS_PASSED, _give_up)

    def _builtin(self, flags: int, slow: Any) -> Any:
        plan = _plan(self._table, self.variants.spreads(self.place), self.kernel, self.geometry, flags)
        # The array keeps the plan alive, whose address is what compiled code takes.
        answers = (plan.ctypes.data, slow, self.failed, self.refused, self.named, plan)
        return builtin(self.kernel.name, machine().addresses["numbridge_launch"], answers, named=True)

    def slow(self, *arguments: Any) -> None:
        """Specialise for these arguments, or raise what is wrong with them, and launch."""
        threads = self.kernel.source.threads
        if threads is not self._threads and threads != self._threads:
            self._refuse_threads()
        kernel, taken = self.kernel.flattened(arguments)
        if kernel is not self.kernel:
            if self.geometry.is_followed:
                raise NumbridgeTypeError(f"kernel {self.kernel.name!r} as an operator takes no tuples")
            run = launcher(kernel, self.geometry)
            run(*taken)
            names = [p.name for p in self.kernel.parameters]
            self.variants.spreads(self.place).add(
                names, arguments, kernel.structures, variants_of(kernel).table(self.place), run.__self__
            )
            return
        # An argument that stands for something else takes the launch over; it has no memory that could be launched on.
        record = taking_over(arguments)
        if record is not None:
            record(self.kernel, self.geometry, arguments)
            return
        taken, found = read_once(arguments)
        if self.place.device is None and not _has_array(found):
            # Nothing in the arguments tells the device, so it is the current one, which may be another next time.
            here = replace(self.place, device=get_device())
            launcher(self.kernel, replace(self.geometry, place=here))(*arguments)
            return
        variant = self.variants.checked(found, self.place) or self.variants.specialise(arguments, self.place, found)
        if variant.device.is_cuda:
            check_hardware(self.kernel, self.geometry.cuda_grid, self.geometry.cuda_block)
        if self._total >= variant.threads_from:
            start_threads()
        self._check_extents(variant, arguments, found)
        types, weak = variant.parameters, variant.weak_float
        afterwards = watching.announce(self.kernel, self.geometry, arguments, types, weak, found)
        if not (afterwards or self.geometry.is_followed):
            warn_of_lost_gradient(self.kernel, self.variants, types, arguments)
        # Another thread may install specialisations of its own at the same time; then ours is put in front again.
        for _ in range(_MAX_ATTEMPTS):
            try:
                is_done = self.again(*taken) is not _missed
            except BaseException:
                for action in afterwards:
                    action(has_raised=True)
                raise
            if is_done:
                for action in afterwards:
                    action()
                return
            found = [*map(describe, taken)]
            variant = self.variants.specialise(arguments, self.place, found)
            self._check_extents(variant, arguments, found)
        raise NumbridgeError(f"kernel {self.kernel.name!r}: its arguments changed while it was being launched")

    def _check_extents(self, variant: Variant, arguments: Sequence[Any], found: Sequence[Description]) -> None:
        """Refuse arrays that some thread is sure to overrun, looked at once for each of their extents."""
        # A global that changes makes new variants, and the old ones are kept, so that no other is taken for one of them.
        decides = [
            d.shape if d.is_array else a if d.kind == nb.CLASS_INT else None
            for a, d in zip(arguments, found, strict=True)
        ]
        key = (id(variant), *decides)
        if key not in self._long_enough:
            check_extents(self.kernel, variant, self.geometry, arguments, found)
            if len(self._long_enough) >= _MAX_EXTENTS:
                self._long_enough.clear()
            self._long_enough.add(key)

    def _refuse_threads(self) -> NoReturn:
        """Refuse to launch a kernel that has become one of other thread indices, or that asks for its block now."""
        if self.place.form == "masked":
            dimensions(self.kernel, self.geometry.dims)
        raise NumbridgeError(
            f"kernel {self.kernel.name!r}: something that it reads has changed, and it takes its threads' places in another "
            "way than when this launch was prepared; prepare it again, with forall, kernel[blocks, threads], a recorded "
            "launch or an operator"
        )

    def failed(self, *arguments: Any) -> None:
        """Say that a kernel ended with an exception of its own."""
        cause = raised_by([self.kernel])
        own = ended_by([self.kernel])
        if own is not None:
            try:
                raise own
            finally:
                # Its traceback has this frame, which would have it, and keep the arguments until the collector comes.
                del own
        raise KernelError(
            f"kernel {self.kernel.name!r} raised an exception in one of its threads{says(cause)}; the arrays that it writes may "
            "be partly written. On the CPU a `raise` or `assert` in a kernel ends its launch, and so do a range or a slice with "
            "a step of zero, an index beyond the end of a tuple or a shape, an array that is unpacked into another number of "
            "names, a function that returns nothing where a number is wanted, the greatest of no elements, and the product of "
            f"rows of different lengths{_raises(self.kernel, cause)}"
        ) from cause

    def named(self, *arguments: Any, **named: Any) -> None:
        """Refuse arguments that are passed by name."""
        raise by_position(f"kernel {self.kernel.name!r}", [p.name for p in self.kernel.parameters], named)

    def on_stream(self, *arguments: Any, **named: Any) -> None:
        """Launch on the stream that was asked for, and keep the arguments until the kernel has run.

        No framework knows that they are used on this stream, and would give their memory to somebody else.
        """
        kernel, taken = self.kernel.flattened(arguments)
        if kernel is not self.kernel:
            launcher(kernel, self.geometry)(*taken, **named)
            return
        self.launcher(*arguments, **named)
        stream, ordinal = self.geometry.stream, cuda_ordinal(map(describe, arguments))
        if stream is not None and ordinal is not None:
            cuda_driver.devices().keep(ordinal, stream, arguments)

    def refused(self, code: int) -> None:
        """Raise the error of the CUDA driver."""
        cuda_driver.devices().failed(self.kernel.name, code)


def _raises(kernel: Kernel, error: BaseException | None) -> str:
    """Return the places where a kernel and its device functions may have raised an exception."""
    program = Program(kernel.source)
    functions = [*program.sources, *(source for source in program.compiled_sources() if source is not None)]
    places = raised_at([(f, node) for f in functions for node in f.nodes if may_raise(node)], error)
    one = "; it may do so here" if places else ""
    return "".join([one, *(f"\n  {function.excerpt(node)}" for function, node in places)])


def _has_array(found: Sequence[Description]) -> bool:
    for description in found:  # noqa: SIM110 - a generator would take longer
        if description.is_array:
            return True
    return False


def _give_up(*arguments: Any) -> Any:
    return _missed


def _plan(table: Any, spreads: SpreadTable, kernel: Kernel, geometry: Geometry, flags: int) -> Any:
    words = [0] * (nb.PLAN_SIZE // 8)
    words[nb.PLAN_VARIANTS // 8] = table.ctypes.data
    words[nb.PLAN_SPREADS // 8] = spreads.numbers.ctypes.data
    words[nb.PLAN_TOTAL // 8] = total = math.prod(geometry.dims)
    # Without thread indices the ids are only counted.
    source = kernel.source
    dims = geometry.dims if source.index_rank else (total,)
    flags |= 0 if source.index_rank else nb.PLAN_COUNTED
    flags |= nb.PLAN_FIRST if source.asks_for_block else 0
    flags |= nb.PLAN_SHAPED if geometry.is_shaped else 0
    for offset, values in (
        (nb.PLAN_DIMS, dims),
        (nb.PLAN_BLOCK, geometry.block),
        (nb.PLAN_GRID, geometry.grid),
        (nb.PLAN_CUDA_BLOCK, geometry.cuda_block),
        (nb.PLAN_CUDA_GRID, geometry.cuda_grid),
    ):
        words[offset // 8 : offset // 8 + len(values)] = values
    words[nb.PLAN_SHARED // 8] = geometry.place.shared
    if geometry.is_followed:
        flags |= nb.PLAN_FOLLOWED
    if geometry.stream is not None:
        flags |= nb.PLAN_HAS_STREAM
        words[nb.PLAN_STREAM // 8] = geometry.stream
    words[nb.PLAN_FLAGS // 8] = flags
    return np.array(words, np.int64)


def launcher(kernel: Kernel, geometry: Geometry) -> Any:
    """Return the built-in function that launches `kernel` over `geometry` with the arguments that it is given."""
    known = variants_of(kernel).launchers
    found = known.get(geometry)
    if found is None:
        if len(known) >= _MAX_LAUNCHERS:
            known.clear()
        road = _Road(kernel, geometry)
        found = known[geometry] = road.launcher if geometry.stream is None else road.on_stream
    return found


def forall(
    kernel: Kernel,
    dim: Any,
    block_dim: BlockDim = 256,
    max_blocks: int = 0,
    stream: int | None = None,
    device: Device | None = None,
) -> Any:
    """Return a function of the kernel's arguments that runs it over `dim` threads.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    dim : int or tuple of int
        Extents of the launch, up to four; 0 runs nothing.
    block_dim : int or tuple of int
        Threads per block: along the first axis, or along each of up to three, in the order of `dim`.
    max_blocks : int
        On CUDA, the largest grid, whose threads then take several ids each; 0 for as many blocks as there are ids. Refused, on
        every device, if that is fewer blocks than the launch has and threads ask for their block or work together in it.
    stream : int, optional
        The handle of the CUDA stream to launch on; it is the caller who keeps the stream alive.
    device : Device, optional
        Where to run; by default where the arguments lie.

    Returns
    -------
    callable
        ``launcher(*arguments)``. It checks its arguments and returns None: on the CPU when the kernel has run, without the
        GIL; on CUDA when it is queued.
    """
    return launcher(kernel, geometry_of(kernel, dim, block_dim, max_blocks, stream, device))


def remembered(
    kernel: Kernel,
    dim: Any,
    block_dim: BlockDim = 256,
    max_blocks: int = 0,
    stream: int | None = None,
    device: Device | None = None,
) -> Any:
    """Return `forall` of a kernel, looked up by its dimensions where it was asked for before."""
    if not _is_plain(dim) and are_understood(dim):
        return _for_others(kernel, dim, block_dim)
    # `torch.Size`, lists and NumPy's integers are dimensions, too.
    extents = dim if _is_plain(dim) else dimensions(kernel, dim)
    block = block_dim if _is_plain(block_dim) else block_dim_of(kernel, block_dim)
    if max_blocks or stream is not None or (device is not None and block != _BLOCK):
        where: Any = (block, most_blocks(kernel, max_blocks), stream, device)
    else:
        where = block if device is None else device.name
    known = _recalled(kernel, where, extents)
    if known is None:
        known = forall(kernel, dim, block, max_blocks, stream, device)
        # Compiled code makes plans of other extents of the same, where it knows what was asked for.
        like = _ANY[1 if type(extents) is int else len(extents)]
        keys = (extents, like) if type(where) is not tuple or _is_plain(where) else (extents,)
        _keep(kernel, where, keys, known)
    return known


def _for_others(kernel: Kernel, dim: Any, block_dim: Any) -> Callable[..., None]:
    """Return what launches over extents that are no numbers, which is possible where an argument takes the launch over."""
    extents = tuple(dim) if isinstance(dim, tuple | list) else (dim,)
    block = block_axes(block_dim_of(kernel, block_dim, len(extents)))
    geometry = Geometry(extents, block, (), (), ())

    def run(*arguments: Any) -> None:
        flat, taken = kernel.flattened(arguments)
        record = taking_over(taken)
        if record is None:
            dimensions(kernel, dim)
        record(flat, geometry, taken)

    return run


def _is_plain(extents: Any) -> bool:
    """Tell whether extents are an int or a tuple of ints, and no others that are equal to these."""
    return type(extents) is int or (type(extents) is tuple and all(type(extent) is int for extent in extents))


def _recalled(kernel: Kernel, block: Any, extents: Any) -> Any:
    """Return what a kernel remembers for extents, in blocks of this shape, or None."""
    threads = kernel.source.threads
    if kernel.threads is not threads and kernel.threads != threads:
        # What it reads has changed, and with it what its launches look like.
        variants_of(kernel).launchers.clear()
        kernel.launchers.clear()
        kernel.threads = threads
    table = kernel.launchers.get(block)
    return None if table is None else table.get(extents)


def _keep(kernel: Kernel, block: Any, keys: Sequence[Any], known: Any) -> None:
    """Remember a launcher for what was asked for."""
    if len(kernel.launchers) >= _MAX_BLOCKS:
        kernel.launchers.clear()
    table = kernel.launchers.setdefault(block, {})
    if len(table) >= _MAX_LAUNCHERS:
        table.clear()
    table.update(dict.fromkeys(keys, known))


def configure(kernel: Kernel, configuration: Any) -> Any:
    """Return the launcher of ``kernel[blocks, threads, stream, shared]``: all threads of all blocks run, none is masked."""
    if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
        raise NumbridgeTypeError(
            f"kernel {kernel.name!r}: wanted kernel[blocks, threads, stream, shared memory in bytes], of which the last two may "
            f"be left out, got [{configuration!r}]"
        )
    blocks, threads, stream, shared = (*configuration, None, None)[:4]
    # numba.cuda's 0 is the default stream, which is where launches go unasked.
    handle = 0 if stream is None or (isinstance(stream, int) and stream == 0) else _stream_handle(kernel, stream)
    # The first is what compiled code looks for. A stream that is an object is known by its handle.
    plain = all(map(_is_plain, configuration))
    asked = configuration if plain else (blocks, threads, handle, 0 if shared is None else shared)
    if not all(map(_is_plain, asked)):
        return launcher(kernel, bracketed(kernel, blocks, threads, handle, shared))
    known = _recalled(kernel, _BRACKETS, asked)
    if known is None:
        known = launcher(kernel, bracketed(kernel, blocks, threads, handle, shared))
        _keep(kernel, _BRACKETS, [asked], known)
    return known


def _stream_handle(kernel: Kernel, stream: Any) -> int:
    if not cuda_driver.driver_count():
        raise cuda_driver.cuda_unavailable(f"launch of kernel {kernel.name!r} on a stream")
    return cuda_driver.handle_of(stream)


@front("numbridge_front_launch")
def launch(
    kernel: Kernel,
    dim: Any,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    adj_inputs: Sequence[Any] = (),
    adj_outputs: Sequence[Any] = (),
    device: Any = None,
    stream: Any = None,
    adjoint: bool = False,
    record_tape: bool = True,
    record_cmd: bool = False,
    max_blocks: int = 0,
    block_dim: BlockDim = 256,
) -> Launch | None:
    """Run a kernel over `dim` threads.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    dim : int or tuple of int
        Extents of the launch, up to four; threads beyond them do not run, and 0 runs nothing.
    inputs, outputs : sequence
        The kernel's arguments, in order: inputs, then outputs. Arrays of any framework go straight in, share their memory
        with the kernel, and are kept alive until it ends.
    adj_inputs, adj_outputs : sequence
        With `adjoint`: for each argument the array that holds its adjoint, of the same shape and dtype (0-d for a
        floating scalar). None stands for the ``grad`` of an `Array` that has or requires one, and otherwise for no gradient.
        Gradients are added. Of an array that the kernel only stores to, an adjoint that is passed is only read, and may be an
        expanded view; any other adjoint of an element that the kernel overwrites ends as that of what it held before.
    device : Device or str, optional
        Where to run; by default where the arguments lie, and without arrays the current device.
    stream : Stream, int or another library's stream, optional
        The CUDA stream to launch on, whatever streams the arguments are used on: their order is then the caller's business,
        as is keeping them alive until the kernel has run. By default see `Stream`. On the CPU a launch has ended when it
        returns.
    adjoint : bool
        Run the kernel's adjoint instead, from adjoints of what it writes to those of what it reads. The arguments must
        hold what they held before the kernel ran; they end as they were. `device`, `stream`, `max_blocks` and
        `block_dim` are as for the kernel itself: one that asks for its block needs the `block_dim` that it was launched with.
    record_tape : bool
        Whether a `Tape` that is recording records this launch. Without it, no gradient passes through what it writes; a
        tape that would have to carry one there raises; so it does for an adjoint, which is never recorded.
    record_cmd : bool
        Return a `Launch` that can be launched again, instead of launching now.
    max_blocks : int
        On CUDA, the largest grid, whose threads then take several ids each; 0 for no limit. The CPU has no blocks to count.
        Refused, on every device, if the launch has more blocks and threads ask for theirs or work together in it.
    block_dim : int or tuple of int
        Threads per block: along the first axis, or along each of up to three, in the order of `dim`.

    Returns
    -------
    Launch or None
        The recorded launch if `record_cmd`.

    Raises
    ------
    NumbridgeError
        If an argument does not fit; nothing has been written then.

    Examples
    --------
    >>> import numpy as np, numbridge as nb
    >>> @nb.kernel
    ... def add(x, y, out):
    ...     i, j = nb.tid()
    ...     out[i, j] = x[i, j] + y[i, j]
    >>> x, out = np.ones((2, 3), np.float32), np.empty((2, 3), np.float32)
    >>> nb.launch(add, out.shape, [x, x], [out])
    >>> out.tolist()
    [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    """
    if not isinstance(kernel, Kernel):
        raise NumbridgeTypeError(f"launch: wanted a kernel, got {kernel!r}; decorate the function with @nb.kernel")
    if type(inputs) not in _LISTS or type(outputs) not in _LISTS:
        _check_lists(kernel, inputs=inputs, outputs=outputs)
    if type(adj_inputs) not in _LISTS or type(adj_outputs) not in _LISTS:
        _check_lists(kernel, adj_inputs=adj_inputs, adj_outputs=adj_outputs)
    where = None if device is None else get_device(device)
    handle = None if stream is None else _stream_handle(kernel, stream)
    arguments: Sequence[Any] = (*inputs, *outputs)
    if adjoint or adj_inputs or adj_outputs:
        if not adjoint:
            raise NumbridgeValueError(
                f"launch of kernel {kernel.name!r}: adj_inputs and adj_outputs go with adjoint=True, and adjoint is False"
            )
        how, lists = (block_dim, max_blocks, handle, where), (inputs, outputs, adj_inputs, adj_outputs)
        if record_cmd:
            return Launch(kernel, dim, arguments, *how, adjoints=_side_by_side(*lists))
        known, arguments = _adjoint(kernel, dim, how, lists)
    elif record_cmd:
        return Launch(kernel, dim, arguments, block_dim, max_blocks, handle, where)
    else:
        known = remembered(kernel, dim, block_dim, max_blocks, handle, where)
    # What an adjoint writes has no gradient, which a tape must know whatever `record_tape` is.
    if record_tape or adjoint:
        known(*arguments)
    else:
        with watching.unrecorded():
            known(*arguments)
    return None


def _missed_by_front(kernel: Kernel, extents: Any, block_dim: Any, device: Any, *arguments: Any) -> None:
    """Launch on arguments that compiled code does not know, or on any while somebody watches; extents and block are plain."""
    known = _recalled(kernel, block_dim, extents) if device is None else None
    if known is None:
        known = remembered(kernel, extents, block_dim, device=None if device is None else get_device(device))
    known(*arguments)


# Compiled code compares the names of arguments by identity: those in calls, as these, are interned.
open_fronts(
    *(Kernel, "launchers", _BLOCK, _BRACKETS, Device, "name", _missed_by_front),
    *("kernel", "dim", "inputs", "outputs", "block_dim", "device"),
    *_ANY,
)


def _check_lists(kernel: Kernel, **given: Any) -> None:
    """Refuse an array where a list of arguments belongs: its rows would be taken for the arguments."""
    for name, value in given.items():
        is_array = any(
            hasattr(type(value), protocol) for protocol in ("__array__", "__dlpack__", "__array_interface__")
        )
        unordered = isinstance(value, str | Mapping | Set)
        if is_array or unordered or not hasattr(type(value), "__iter__"):
            listed = "adjoints, one for each argument" if name.startswith("adj_") else "the kernel's arguments"
            raise NumbridgeTypeError(
                f"launch of kernel {kernel.name!r}: {name} is of type {type(value).__name__}; it must be a list of {listed}, "
                f"such as {name}=[x, y]"
            )


@functools.cache
def _direct() -> Any:
    """Return the module of adjoints that are launched by hand; to import it again takes a tenth of such a launch."""
    from numbridge.kernels.adjoint import direct

    return direct


def _side_by_side(
    inputs: Sequence[Any], outputs: Sequence[Any], adj_inputs: Sequence[Any], adj_outputs: Sequence[Any]
) -> list[Any]:
    """Return an adjoint, or None, for each argument, in order."""
    filled = _direct().filled
    return [*filled("adj_inputs", adj_inputs, inputs), *filled("adj_outputs", adj_outputs, outputs)]


def _adjoint(kernel: Kernel, dim: Any, how: tuple[Any, ...], lists: tuple[Sequence[Any], ...]) -> Any:
    """Return what launches a kernel's adjoint, as `how` says, which are arguments of `geometry_of`; and its arguments."""
    direct = _direct()
    derivative, arguments, copied = direct.adjoint_of(kernel, *lists, stream=how[2])
    plain = how == _UNASKED
    run = derivative.forall(dim) if plain else derivative.over(geometry_of(kernel, dim, *how))
    return direct.with_copies(derivative.name, run, copied, how[2]) if copied else run, arguments


class Launch:
    """A recorded launch: a kernel, its dimensions and its arguments, to be changed and launched again.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    dim : int or tuple of int
        Extents of the launch.
    arguments : sequence
        All arguments in order; they are kept alive.
    block_dim, max_blocks, stream, device
        As for `forall`.
    adjoints : sequence, optional
        For a launch of the adjoint: an adjoint, or None, for each of the arguments.
    """

    def __init__(
        self,
        kernel: Kernel,
        dim: Any,
        arguments: Sequence[Any],
        block_dim: BlockDim = 256,
        max_blocks: int = 0,
        stream: int | None = None,
        device: Device | None = None,
        adjoints: Sequence[Any] | None = None,
    ) -> None:
        self.kernel = kernel
        self._how = (block_dim, max_blocks, stream, device)
        self._arguments = list(arguments)
        self._adjoints = None if adjoints is None else list(adjoints)
        check_count(kernel, self._arguments)
        self.set_dim(dim)

    def __reduce__(self) -> tuple[type[Launch], tuple[Any, ...]]:
        """Copy as another launch of the same arguments; deep copies and pickles have copies of the arguments."""
        return type(self), (self.kernel, self.dim, tuple(self._arguments), *self._how, self._adjoints)

    def set_dim(self, dim: Any) -> None:
        """Set the extents of the launch."""
        self._launcher = remembered(self.kernel, dim, *self._how)
        self.dim = dim

    def set_param_at_index(self, index: int, value: Any, adjoint: bool = False) -> None:
        """Set the argument at a position, or with `adjoint` its adjoint; `set_param_at_index_from_ctype` is the same."""
        if not 0 <= index < len(self._arguments):
            raise NumbridgeValueError(
                f"kernel {self.kernel.name!r} has arguments 0 to {len(self._arguments) - 1}, and there is none at {index}"
            )
        if not adjoint:
            self._arguments[index] = value
        elif self._adjoints is None:
            raise NumbridgeValueError(
                f"this launch is of kernel {self.kernel.name!r}, and has no adjoints to set; record one with adjoint=True"
            )
        else:
            self._adjoints[index] = value

    def set_param_by_name(self, name: str, value: Any, adjoint: bool = False) -> None:
        """Set the argument of a name, or with `adjoint` its adjoint; `set_param_by_name_from_ctype` is the same."""
        names = [parameter.name for parameter in self.kernel.parameters]
        if name not in names:
            raise NumbridgeValueError(
                f"kernel {self.kernel.name!r} has the parameters {', '.join(names)}, not {name!r}"
            )
        self.set_param_at_index(names.index(name), value, adjoint)

    def set_params(self, values: Sequence[Any]) -> None:
        """Set all arguments; raises NumbridgeTypeError if they are no list, or more or fewer than the kernel takes."""
        _check_lists(self.kernel, values=values)
        arguments = list(values)
        check_count(self.kernel, arguments)
        self._arguments = arguments

    # Warp's names for faster ways, which arrays that are read natively do not need
    set_param_at_index_from_ctype = set_param_at_index
    set_param_by_name_from_ctype = set_param_by_name
    set_params_from_ctypes = set_params

    def launch(self, stream: Any = None) -> None:
        """Run the kernel with the arguments as they are now.

        Parameters
        ----------
        stream : Stream, int or another library's stream, optional
            The CUDA stream to launch on this time, as for `launch`; by default the one that was recorded.
        """
        run, how, arguments = self._launcher, self._how, self._arguments
        if stream is not None:
            how = (*how[:2], _stream_handle(self.kernel, stream), how[3])
            run = remembered(self.kernel, self.dim, *how)
        if self._adjoints is not None:
            run, arguments = _adjoint(self.kernel, self.dim, how, (arguments, (), self._adjoints, ()))
        run(*arguments)
