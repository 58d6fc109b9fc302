"""Launches on CUDA against a recording driver: parameters, grids, streams, contexts, errors. No GPU runs here."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import numbridge as nb
from fake_cuda import CONTEXTS, ExchangeTable, cuda_array, fake_cuda, parameter_kinds, parameters_of, tensor_class
from numbridge.kernels.block_dims import cuda_shapes
from numbridge.kernels.cuda_backend.grid_source import GRID, block_shape, extents, grid_shape, grid_source
from numbridge.kernels.errors import (
    BufferAccessError,
    DeviceError,
    KernelError,
    NumbridgeTypeError,
    NumbridgeValueError,
)
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.scalars import tag_of
from numbridge.kernels.variant import compile_for

X, Y = 0x7000_0000, 0x8000_0000


@pytest.fixture
def driver():
    with fake_cuda() as fake:
        yield fake


@nb.kernel
def saxpy(x, y, a):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


@nb.kernel
def write1(x):
    i = nb.tid()
    x[i] = 1.0


@nb.kernel
def write2(x):
    i, j = nb.tid()
    x[i, j] = 1.0


@nb.kernel
def write3(x):
    i, j, k = nb.tid()
    x[i, j, k] = 1.0


@nb.kernel
def write4(x):
    i, j, k, m = nb.tid()
    x[i, j, k, m] = 1.0


@nb.kernel
def read_only(x, y):
    i = nb.tid()
    y[i] = x[i]


def _array_values(address, shape, strides, itemsize):
    return [0, 0, math.prod(shape), itemsize, address, *shape, *strides]


# What the driver gets


def test_parameters_of_a_simple_launch(driver):
    nb.launch(saxpy, 1000, [cuda_array((1000,), address=X), cuda_array((1000,), address=Y), 2.5])
    done = driver.launches[-1]
    expected = [*_array_values(X, (1000,), (4,), 4), *_array_values(Y, (1000,), (4,), 4), 2.5, 1000]
    assert done.values(parameter_kinds([1, 1], [ctypes.c_float], 1)) == expected
    assert (done.grid, done.block, done.shared, done.stream) == ((4, 1, 1), (256, 1, 1), 0, 0)
    assert not done.cooperative
    assert not done.extra
    cubin, symbol = driver.loaded[done.kernel]
    assert cubin[:4] == b"\x7fELF"
    assert symbol.encode() in cubin
    # Before it is launched, since a capture could not do that
    assert (done.kernel, CONTEXTS) in driver.ready


@pytest.mark.parametrize(
    ("kernel", "shape"), [(write1, (7,)), (write2, (5, 7)), (write3, (3, 5, 7)), (write4, (2, 3, 5, 7))]
)
def test_dimensions_follow_the_parameters(driver, kernel, shape):
    rank = len(shape)
    strides = tuple(100 * 10**k for k in range(rank))
    nb.launch(kernel, shape, [cuda_array(shape, np.float64, address=X, strides=strides)])
    values = driver.launches[-1].values(parameter_kinds([rank], [], rank))
    assert values == [*_array_values(X, shape, [8 * s for s in strides], 8), *shape]


@nb.kernel
def scalars(x, a, b, c, d, e, f, g):
    i = nb.tid()
    if g:
        x[i] = a + b + c + d + e.real + f.real


def test_scalars_of_every_kind_lie_as_numba_cuda_reads_them(driver):
    arguments = [np.int8(-3), np.uint16(65535), np.float64(1e300), 2**40, np.complex64(1 + 2j), 3 - 4j, True]
    nb.launch(scalars, 4, [cuda_array((4,), np.complex128), *arguments])
    kinds = [ctypes.c_int8, ctypes.c_uint16, ctypes.c_double, ctypes.c_int64, ctypes.c_float, ctypes.c_float]
    kinds += [ctypes.c_double, ctypes.c_double, ctypes.c_uint8]
    values = driver.launches[-1].values(parameter_kinds([1], kinds, 1))
    assert values[7:16] == [-3, 65535, 1e300, 2**40, 1.0, 2.0, 3.0, -4.0, 1]


@nb.kernel
def reads_some(a, b, c, d, e, f):
    i = nb.tid()
    a[i] = b[i, 0].real + c + d + e.real


@nb.kernel
def reads_all(x, a, b):
    i = nb.tid()
    y = x[::2] if a > b else x
    y[i, i] = x.size + x.shape[0] + x.strides[1] + x.itemsize


SOME = [np.zeros(3), np.zeros((2, 2), np.complex64), np.int8(1), np.float32(1), 1 + 1j, True]


def sizes_in_cubin(cubin, symbol):
    """Return the sizes in bytes of a kernel's parameters, in order.

    Each has a KPARAM_INFO among the attributes in the section ``.nv.info.<kernel>``, as ``cuobjdump -elf`` lists them: index,
    ordinal, offset, and the size from bit 18 of the last word on. The sections are ELF's (elf.h, 64 bits).
    """
    (sections,) = struct.unpack_from("<Q", cubin, 0x28)
    count, of_names = struct.unpack_from("<HH", cubin, 0x3C)
    headers = [struct.unpack_from("<II16xQQ", cubin, sections + 64 * k) for k in range(count)]
    names = headers[of_names][2]
    (at, size), found = (
        next(where for name, _, *where in headers if cubin.startswith(f".nv.info.{symbol}\0".encode(), names + name)),
        {},
    )
    end = at + size
    while at < end:
        form, attribute, length = struct.unpack_from("<BBH", cubin, at)
        if (form, attribute) == (4, 0x17):
            _, ordinal, _, flags = struct.unpack_from("<IHHI", cubin, at + 4)
            found[ordinal] = flags >> 18
        at += 4 + (length if form == 4 else 0)
    return [found[ordinal] for ordinal in range(len(found))]


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0)])
def test_a_kernel_has_the_parameters_that_it_reads(capability):
    """Of arrays those are their data and some extents and strides; numba.cuda gives it two pointers and two counts besides."""
    code = compile_for(reads_some, SOME, capability).compiled
    declared = parameters_of(code.facts["ptx"])
    # The data of `a`, the data and the second extent of `b`, `c`, `d`, a half of `e`, and the dimension
    assert declared == [(4, 8), (11, 8), (13, 8), (16, 1), (17, 4), (18, 8), (21, 8)]
    assert sizes_in_cubin(code.objects[0], code.names["kernel"]) == [size for _, size in declared]
    # An array takes five words, two for each dimension, and so many more that the next one begins at a multiple of 16 bytes.
    assert [*code.facts["places"]] == [32, 64 + 32, 64 + 48, 144, 160, 176]
    strided = compile_for(reads_all, [np.zeros((4, 6))[:, ::2], 1.0, 2.0], capability).compiled
    numbers = [number for number, _ in parameters_of(strided.facts["ptx"])]
    assert {2, 3, 4, 5, 7, 8, 9, 10} <= {*numbers}


@nb.kernel
def reads_nothing(x, a):
    pass


def test_a_kernel_that_reads_nothing(driver):
    nb.launch(reads_nothing, 300, [cuda_array((300,)), 1.0])
    reads_nothing[2, 64](cuda_array((300,)), 1.0)
    masked, plain = driver.launches
    assert masked.numbers == [8] and masked.values([*parameter_kinds([1], [ctypes.c_double], 1)])[-1] == 300
    assert plain.numbers == [] and plain.grid == (2, 1, 1)


def test_negative_strides_offsets_and_empty_arrays(driver):
    x = machine().new_record(None, X + 36, tag_of("float32"), dl.CUDA, 0, (10,), (-1,), 0)
    nb.launch(write1, 10, [x])
    assert driver.launches[-1].values(parameter_kinds([1], [], 1)) == [0, 0, 10, 4, X + 36, 10, -4, 10]
    nb.launch(write1, 0, [cuda_array((0,), address=0)])
    assert len(driver.launches) == 1, "a launch of no threads reaches the driver"


def test_a_launch_of_more_than_2_to_the_31_threads(driver):
    count = (1 << 33) + 5
    nb.launch(write1, count, [cuda_array((count,))])
    done = driver.launches[-1]
    assert done.grid[0] * done.block[0] >= count
    assert done.values(parameter_kinds([1], [], 1))[-1] == count
    assert "mul.wide.s32" in write1.ptx(np.zeros(3, np.float32), capability=(9, 0))


def test_block_dim_and_max_blocks(driver):
    nb.launch(write1, 1000, [cuda_array((1000,))], block_dim=64)
    nb.launch(write1, 1000, [cuda_array((1000,))], block_dim=64, max_blocks=3)
    assert [(d.grid, d.block) for d in driver.launches] == [((16, 1, 1), (64, 1, 1)), ((3, 1, 1), (64, 1, 1))]
    for bad in (0, 1025):
        with pytest.raises(NumbridgeValueError, match="block_dim of kernel 'write1': wanted an int from 1 to 1024"):
            nb.launch(write1, 10, [cuda_array((10,))], block_dim=bad)
    with pytest.raises(NumbridgeValueError, match="max_blocks of kernel 'write1': wanted 0 or more, got -1"):
        nb.launch(write1, 10, [cuda_array((10,))], max_blocks=-1)


def test_the_form_of_numba_cuda(driver):
    write1[(4,), (128, 1, 1), 0x55, 2048](cuda_array((512,)))
    done = driver.launches[-1]
    assert (done.grid, done.block, done.shared, done.stream) == ((4, 1, 1), (128, 1, 1), 2048, 0x55)
    # Arrays of constant shape take a part of what a device grants unasked, and what was allowed must not become less.
    for size in (100_000, 60_000, 100_000):
        write1[4, 128, None, size](cuda_array((512,)))
    assert driver.shared == [(done.kernel, 0, size) for size in (2048, 100_000)]
    with pytest.raises(NumbridgeTypeError, match="shared memory is a number of bytes, 0 or more, got -1"):
        write1[4, 128, None, -1]


def test_both_forms_of_one_kernel_are_different_code(driver):
    write1[4, 128](cuda_array((512,)))
    nb.launch(write1, 512, [cuda_array((512,))])
    assert driver.launches[0].kernel != driver.launches[1].kernel


@nb.kernel
def cooperative(x):
    i = cuda.grid(1)
    cuda.cg.this_grid().sync()
    x[i] = x[0]


def test_a_kernel_that_synchronises_its_grid_is_launched_cooperatively(driver):
    cooperative[2, 64](cuda_array((128,)))
    assert driver.launches[-1].cooperative


# Streams


def test_the_current_stream_is_asked_for(driver):
    current = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(lambda device: 0x90 + device)
    driver.follow(ctypes.cast(current, ctypes.c_void_p).value)
    nb.launch(write1, 10, [cuda_array((10,))])
    nb.launch(write1, 10, [cuda_array((10,), ordinal=1)])
    assert [d.stream for d in driver.launches] == [0x90, 0x91]
    assert [d.context for d in driver.launches] == [CONTEXTS, CONTEXTS + 1]
    assert not [c for c in driver.calls if c[0] in ("record", "wait")]


def test_a_producer_s_stream_is_the_launch_s(driver):
    nb.launch(write1, 10, [cuda_array((10,), stream=0x77)])
    assert driver.launches[-1].stream == 0x77
    assert not [c for c in driver.calls if c[0] in ("record", "wait")]


def test_mixed_streams_are_ordered_by_events_and_never_by_waiting(driver):
    arrays = [cuda_array((10,), stream=s) for s in (0x70, 0x71)]
    nb.launch(read_only, 10, arrays)
    (event,) = {c[1] for c in driver.calls if c[0] == "record"}
    assert [c for c in driver.calls if c[0] not in ("push", "pop")] == [
        ("record", event, 0x71),
        ("wait", 0x70, event),
        ("launch", 0x70),
        ("record", event, 0x70),
        ("wait", 0x71, event),
    ]


def test_a_captured_launch_is_ordered_only_with_streams_of_captures(driver):
    driver.capturing.add(0x70)
    nb.launch(read_only, 10, [cuda_array((10,), stream=s) for s in (0x70, 0x71)])
    assert [c for c in driver.calls if c[0] not in ("push", "pop")] == [("launch", 0x70)]
    driver.capturing.add(0x71)
    nb.launch(read_only, 10, [cuda_array((10,), stream=s) for s in (0x70, 0x71)])
    assert [c[0] for c in driver.calls if c[0] not in ("push", "pop")][1:] == [
        "record",
        "wait",
        "launch",
        "record",
        "wait",
    ]


def test_a_launch_outside_is_ordered_with_a_captured_argument(driver):
    """Which takes it into the graph, as CUDA defines; the driver refuses what cannot be taken there."""
    driver.capturing.add(0x71)
    nb.launch(read_only, 10, [cuda_array((10,), stream=s) for s in (0x70, 0x71)])
    assert [c[:1] + c[2:] for c in driver.calls if c[0] == "record"] == [("record", 0x71), ("record", 0x70)]


def test_a_default_stream_that_may_not_be_asked_is_not_captured(driver):
    driver.capturing.add(0x70)
    driver.fail["is_capturing"] = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    nb.launch(read_only, 10, [cuda_array((10,), stream=s) for s in (0x71, 0x72)])
    assert [c[0] for c in driver.calls if c[0] not in ("push", "pop")] == ["record", "wait", "launch", "record", "wait"]


def test_a_chosen_stream_overrides_and_keeps_the_arguments_until_it_is_done(driver):
    x = cuda_array((10,), stream=0x70)
    before = sys.getrefcount(x)
    nb.launch(write1, 10, [x], stream=0x99)
    assert driver.launches[-1].stream == 0x99
    ((_, event, stream),) = [c for c in driver.calls if c[0] == "keep"]
    assert stream == 0x99
    assert not [c for c in driver.calls if c[0] in ("record", "wait")]
    assert sys.getrefcount(x) > before
    driver.done.add(event)
    driver.capturing.add(0x98)
    nb.launch(write1, 10, [cuda_array((10,))], stream=0x98)
    assert sys.getrefcount(x) == before
    assert len([c for c in driver.calls if c[0] == "keep"]) == 1, "a capturing stream got an event of ours"


def test_streams_of_other_libraries(driver):
    for stream in (
        SimpleNamespace(__cuda_stream__=lambda: (0, 0x31)),
        SimpleNamespace(__cuda_stream__=(0, 0x31)),
        SimpleNamespace(cuda_stream=0x31),
        SimpleNamespace(ptr=0x31),
        SimpleNamespace(handle=ctypes.c_void_p(0x31)),
        0x31,
    ):
        nb.launch(write1, 10, [cuda_array((10,))], stream=stream)
        write1[1, 10, stream](cuda_array((10,)))
    assert {d.stream for d in driver.launches} == {0x31}
    with pytest.raises(NumbridgeTypeError, match=r"stream is 'x'; it must be an nb\.Stream"):
        nb.launch(write1, 10, [cuda_array((10,))], stream="x")


def test_a_framework_is_asked_for_its_stream_once_per_launch(driver):
    table = ExchangeTable(0x4242)
    tensor = tensor_class(table)
    nb.launch(read_only, 10, [tensor(10), tensor(10, address=Y)])
    del table.asked[:]
    nb.launch(read_only, 10, [tensor(10), tensor(10, address=Y)])
    assert driver.launches[-1].stream == 0x4242
    assert table.asked == [(dl.CUDA, 0)]
    assert driver.launches[-1].values(parameter_kinds([1, 1], [], 1))[4] == X


def test_frameworks_with_different_streams_in_one_launch(driver):
    first, second = tensor_class(ExchangeTable(0x51)), tensor_class(ExchangeTable(0x52))
    nb.launch(read_only, 10, [first(10), second(10)])
    assert [c[0] for c in driver.calls if c[0] not in ("push", "pop")] == ["record", "wait", "launch", "record", "wait"]
    assert driver.launches[-1].stream == 0x51


def test_a_framework_that_does_not_know_its_stream_is_an_error(driver):
    tensor = tensor_class(ExchangeTable(0, fails=-1))
    with pytest.raises(DeviceError, match="400"):
        nb.launch(write1, 10, [tensor(10)])
    assert driver.launches == []
    assert driver.stack == []


# Contexts and devices


def test_the_caller_s_context_is_restored_and_its_own_not_pushed(driver):
    driver.stack[:] = [CONTEXTS + 1]
    nb.launch(write1, 10, [cuda_array((10,))])
    assert driver.calls == [("push", CONTEXTS), ("launch", 0), ("pop", CONTEXTS)]
    assert driver.stack == [CONTEXTS + 1]
    del driver.calls[:]
    driver.stack[:] = [CONTEXTS]
    nb.launch(write1, 10, [cuda_array((10,))])
    assert driver.calls == [("launch", 0)]


@pytest.mark.parametrize("function", ["get", "push", "launch", "pop", "record", "wait"])
def test_what_the_driver_refuses_becomes_an_error_with_its_name(driver, function):
    arrays = [cuda_array((10,), stream=s) for s in (0x70, 0x71)]
    driver.fail[function] = 719
    wanted = r"kernel 'read_only': the CUDA driver refused the launch.*CUDA_ERROR_LAUNCH_FAILED \(719\): unspecified"
    with pytest.raises(DeviceError, match=wanted):
        nb.launch(read_only, 10, arrays)
    assert driver.stack == [], "the context stays pushed"
    assert len(driver.launches) == (function in ("launch", "pop"))


def test_arguments_on_two_devices_are_listed(driver):
    wanted = r"different devices \(x: cuda:0 .*, y: cuda:1 .*\); copy them to one first"
    with pytest.raises(DeviceError, match=wanted):
        nb.launch(read_only, 10, [cuda_array((10,)), cuda_array((10,), ordinal=1)])
    host = np.zeros(10, np.float32)
    with pytest.raises(DeviceError, match=r"x: cuda:0 .*, y: cpu \(numpy.ndarray\)"):
        nb.launch(read_only, 10, [cuda_array((10,)), host])
    with pytest.raises(DeviceError, match=r"x: cuda:0 .*, and device='cuda:1' was asked for"):
        nb.launch(write1, 10, [cuda_array((10,))], device="cuda:1")
    with pytest.raises(DeviceError, match="there is no device 'cuda:2': this machine has cuda:0 to cuda:1"):
        nb.launch(write1, 10, [cuda_array((10,))], device="cuda:2")
    assert driver.launches == []


def test_a_known_specialisation_does_not_take_another_device_s_array(driver):
    nb.launch(read_only, 10, [cuda_array((10,)), cuda_array((10,))])
    nb.launch(read_only, 10, [cuda_array((10,), ordinal=1), cuda_array((10,), ordinal=1)])
    with pytest.raises(DeviceError, match="different devices"):
        nb.launch(read_only, 10, [cuda_array((10,)), cuda_array((10,), ordinal=1)])
    assert [d.context for d in driver.launches] == [CONTEXTS, CONTEXTS + 1]


def test_host_arrays_still_run_on_the_cpu(driver):
    x = np.zeros(10, np.float32)
    nb.launch(write1, 10, [x])
    assert x.tolist() == [1.0] * 10
    assert driver.launches == []


def test_managed_memory_goes_with_either_side(driver):
    managed = cuda_array((10,), device=dl.CUDA_MANAGED)
    nb.launch(read_only, 10, [cuda_array((10,)), managed])
    nb.launch(write1, 10, [managed])
    assert len(driver.launches) == 2


def test_without_arrays_the_current_device_runs_it(driver):
    @nb.kernel
    def nothing(a):
        i = nb.tid()
        if i == a:
            pass

    nb.launch(nothing, 5, [1])
    with nb.ScopedDevice("cuda:1"):
        nb.launch(nothing, 5, [1])
    assert [d.context for d in driver.launches] == [CONTEXTS, CONTEXTS + 1]
    with nb.ScopedDevice("cpu"):
        nb.launch(nothing, 5, [1])
    nb.launch(nothing, 5, [1], device="cpu")
    assert len(driver.launches) == 2


# What must not be written


def test_read_only_cuda_memory_is_refused(driver):
    for flags, what in ((dl.FLAG_READ_ONLY, "read-only"), (dl.FLAG_READ_ONLY | dl.RECORD_IMMUTABLE, "immutable")):
        with pytest.raises(BufferAccessError, match=f"parameter 'x': the kernel writes to it.*{what}"):
            nb.launch(write1, 10, [cuda_array((10,), flags=flags)])
    with pytest.raises(BufferAccessError, match="expanded view"):
        nb.launch(write1, 10, [cuda_array((10,), strides=(0,))])
    nb.launch(read_only, 10, [cuda_array((10,), flags=dl.FLAG_READ_ONLY), cuda_array((10,))])
    assert len(driver.launches) == 1


def test_what_does_not_compile_for_cuda_says_so(driver):
    @nb.kernel
    def wrong(x):
        i = nb.tid()
        nb.atomic_exch(x, i, 1)

    with pytest.raises(KernelError, match=r"(?s)does not compile for \(x: int16.*on CUDA.*32- and 64-bit"):
        nb.launch(wrong, 10, [cuda_array((10,), np.int16)])
    nb.launch(write1, 10, [cuda_array((10,), nb.bfloat16)])
    assert len(driver.launches) == 1


@pytest.mark.parametrize(
    ("operation", "dtype", "number"),
    [
        (nb.atomic_add, np.int8, "int8"),
        (nb.atomic_min, np.float16, "float16"),
        (nb.atomic_sub, nb.vector(2, nb.uint16), "uint16"),
        (nb.atomic_exch, nb.bfloat16, "bfloat16"),
    ],
)
def test_numbers_that_cuda_has_no_atomic_operations_on(operation, dtype, number):
    @nb.kernel
    def changes(x):
        operation(x, 0, x[1])

    wanted = f"{operation.__name__} works on arrays of 32- and 64-bit numbers on CUDA, not on {number}"
    with pytest.raises(KernelError, match=rf"{wanted}\n  {re.escape(__file__)}:\d+:\d+\n"):
        changes.ptx(nb.zeros(2, dtype, device="cpu"), capability=(9, 0))


def test_an_nvjitlink_that_is_older_than_nvvm_says_what_to_install(run_python):
    # In a process of its own: nvJitLink 13 takes references to nothing in whatever it links after such PTX.
    message = run_python(r"""
        from numbridge.kernels.cuda_backend import cuda
        from numbridge.kernels.errors import KernelError

        newer = ".version 99.5\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n"
        try:
            cuda.link(newer, (9, 0), "k")
        except KernelError as error:
            print(error)
    """)
    assert re.search(r"(?s)'k' does not link for .* NVVM writes PTX 99\.5, .*nvidia-nvvm==13\.", message)


def test_recorded_launches_and_explain(driver):
    x = cuda_array((10,))
    command = nb.launch(write1, 10, [x], record_cmd=True, max_blocks=2, block_dim=4)
    command.launch()
    command.set_dim(4)
    command.launch()
    assert [d.grid for d in driver.launches] == [(2, 1, 1), (1, 1, 1)]
    assert "on cuda:0" in str(write1.explain(x))


def test_without_cuda_every_question_has_one_answer():
    for use in (lambda: nb.launch(write1, 10, [np.zeros(10)], stream=5), lambda: write1[1, 1, 5], nb.Stream):
        with pytest.raises(DeviceError, match=r"needs CUDA; missing here: .*pip install 'numbridge\[cuda13\]'"):
            use()


# Which thread runs which ids


def _ran(rank, dims, block, grid, first_along_x):
    """Return the ids that the masked form runs, thread by thread, in plain Python."""
    hidden = [f"_nb_i{k}" for k in range(rank)]
    source = grid_source("body", [], rank, hidden, "masked", first_along_x=first_along_x)
    found = []
    here = SimpleNamespace(gridDim=_xyz(grid), blockDim=_xyz(block))
    names = {"body": lambda *ids: found.append(ids), "_nb_cuda": here, "_nb_nonnegative": lambda index: index}
    exec(source, names)
    for b in itertools.product(*(range(extent) for extent in grid)):
        for t in itertools.product(*(range(extent) for extent in block)):
            here.blockIdx, here.threadIdx = _xyz(b), _xyz(t)
            names[GRID](*dims)
    return found


def _xyz(values):
    return SimpleNamespace(x=values[0], y=values[1], z=values[2])


@settings(max_examples=60, deadline=None)
@given(
    dims=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    block_dim=st.sampled_from([1, 2, 3, 8, 12]),
    max_blocks=st.integers(0, 3),
    first=st.booleans(),
)
def test_every_id_runs_once_on_any_grid(dims, block_dim, max_blocks, first):
    along = extents(dims, first_along_x=first)
    block = block_shape(along, block_dim, first_along_x=first)
    assert math.prod(block) == block_dim
    grid = grid_shape(along, block, max_blocks)
    assert not max_blocks or math.prod(grid) <= max_blocks
    ran = _ran(len(dims), dims, block, grid, first)
    assert sorted(ran) == sorted(itertools.product(*(range(extent) for extent in dims)))


@nb.kernel
def asking(x):
    i, j = nb.tid()
    x[i, j] = cuda.threadIdx.y


@settings(max_examples=60, deadline=None)
@given(
    dims=st.lists(st.integers(0, 6), min_size=2, max_size=2),
    block_dim=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    max_blocks=st.integers(0, 3),
    kernel=st.sampled_from([write2, asking]),
)
def test_every_id_runs_once_in_blocks_of_a_shape(dims, block_dim, max_blocks, kernel):
    grid, block = cuda_shapes(kernel, dims, tuple(block_dim), max_blocks)
    assert math.prod(block) == math.prod(block_dim) and (not max_blocks or math.prod(grid) <= max_blocks)
    ran = _ran(2, dims, block, grid, kernel is asking)
    assert sorted(ran) == sorted(itertools.product(*map(range, dims)))


def test_neighbouring_threads_are_neighbours_in_memory():
    along = extents((1000, 2000), first_along_x=False)
    assert along[0] == 2000
    assert block_shape(along, 256, first_along_x=False) == (256, 1, 1)
    assert block_shape(extents((1_000_000, 3), first_along_x=False), 256, first_along_x=False) == (4, 64, 1)
    assert grid_shape(extents((1 << 20, 1 << 20), first_along_x=False), (256, 1, 1), 0) == (4096, 65535, 1)


@pytest.mark.parametrize("form", ["masked", "plain"])
def test_sums_over_threads_are_added_once_per_thread(form):
    """The gradient of a scalar is the sum of what its threads return."""
    block, grid, dims = (4, 1, 1), (2, 1, 1), (13,)
    source = grid_source(
        "body", ["x", "total"], 1, ["_nb_i0", "_nb_b0", "_nb_g0"], form, first_along_x=False, sums=[("total", "")]
    )
    here = SimpleNamespace(gridDim=_xyz(grid), blockDim=_xyz(block))
    added, seen = [], []

    def body(i, threads, blocks, x):
        seen.append(i)
        assert (threads, blocks) == (4, 2)
        return (x[i],)

    names = {"body": body, "_nb_cuda": here, "_nb_nonnegative": lambda index: index}
    names |= {"_nb_row": lambda array: ("row", array), "_nb_add": lambda *what: added.append(what)}
    exec(source, names)
    x, total = np.arange(13.0), object()
    for b in range(grid[0]):
        for t in range(block[0]):
            here.blockIdx, here.threadIdx = _xyz((b, 0, 0)), _xyz((t, 0, 0))
            names[GRID](x, total, *(dims if form == "masked" else ()))
    ran = range(13) if form == "masked" else range(8)
    assert sorted(seen) == list(ran)
    assert all(what[:2] == (("row", total), 0) for what in added) and len(added) == 8
    assert sum(what[2] for what in added) == sum(x[list(ran)])


class _At:
    """An array somewhere, which remembers where; `_nb_moved` makes another."""

    def __init__(self, name, place):
        self.name, self.place = name, place


@settings(max_examples=60, deadline=None)
@given(
    dims=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    batch=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    blocks=st.integers(1, 3),
    steps=st.lists(st.integers(0, 100), min_size=6, max_size=6),
)
def test_every_id_of_every_element_of_a_batch_runs_once(dims, batch, blocks, steps):
    """On the arrays of that element, whatever the grid is."""
    rank, levels = len(dims), len(batch)
    along = extents(dims, first_along_x=False)
    block = block_shape(along, 8, first_along_x=False)
    whole = grid_shape(along, block, 2)
    grid = (*whole[:2], blocks if rank < 3 else whole[2])
    hidden = [f"_nb_i{k}" for k in range(rank)]
    source = grid_source(
        "body", ["x", "s", "y"], rank, hidden, "masked", first_along_x=False, batched=["x", "y"], levels=levels
    )
    here, found = SimpleNamespace(gridDim=_xyz(grid), blockDim=_xyz(block)), []
    names = {"_nb_cuda": here, "_nb_nonnegative": lambda index: index}
    names["_nb_moved"] = lambda array, distance: _At(array.name, array.place + distance)
    names["body"] = lambda *a: found.append((a[:rank], a[rank].place, a[rank + 1], a[rank + 2].place))
    exec(source, names)
    first, second = steps[:levels], steps[3 : 3 + levels]
    for b in itertools.product(*(range(extent) for extent in grid)):
        for t in itertools.product(*(range(extent) for extent in block)):
            here.blockIdx, here.threadIdx = _xyz(b), _xyz(t)
            names[GRID](_At("x", 1000), 7, _At("y", 5000), *dims, math.prod(batch), *batch[1:], *first, *second)
    wanted = [
        (ids, 1000 + int(np.dot(at, first)), 7, 5000 + int(np.dot(at, second)))
        for at in itertools.product(*(range(extent) for extent in batch))
        for ids in itertools.product(*(range(extent) for extent in dims))
    ]
    assert sorted(found) == sorted(wanted)


# Compiled code makes the plan of extents that are new of that of others.


@nb.kernel
def by_blocks(x):
    i = nb.tid()
    x[i] = cuda.blockDim.x


@nb.kernel
def two_by_blocks(x):
    i, j = nb.tid()
    x[i, j] = cuda.blockDim.x


@nb.kernel
def counted(x):
    nb.atomic_add(x, 0, 1.0)


PLANNED = {1: (write1, by_blocks, counted), 2: (write2, two_by_blocks), 3: (write3,), 4: (write4,)}
EXTENT = st.one_of(st.integers(0, 70), st.integers(60_000, 70_000), st.just(1 << 20))


@st.composite
def planned_launches(draw):
    rank = draw(st.integers(1, 4))
    kernel = draw(st.sampled_from(PLANNED[rank]))
    block = draw(
        st.one_of(st.sampled_from([32, 64, 96, 100, 256, 1000, 1024]), st.tuples(*[st.integers(1, 8)] * min(rank, 3)))
    )
    # An array of so many has bytes that 64 bits can count.
    extents = st.tuples(*[EXTENT] * rank).filter(lambda dims: math.prod(dims) < 1 << 61)
    return kernel, block, draw(st.lists(extents, min_size=1, max_size=6))


@settings(max_examples=60, deadline=None)
@given(planned_launches())
def test_new_extents_have_the_grid_that_python_gives_them(launches):
    kernel, block, extents = launches
    rank = len(extents[0])
    if kernel is write4 and isinstance(block, tuple):
        block = (*block[:2], 1)
    with fake_cuda() as driver:
        nb.launch(kernel, (3,) * rank, [cuda_array((3,) * rank, address=X)], block_dim=block)
        assert len(driver.launches) == 1
        for dims in extents:
            nb.launch(kernel, dims, [cuda_array(dims, address=X)], block_dim=block)
            grid, threads = cuda_shapes(kernel, dims, block)
            assert len(driver.launches) == 1 + bool(math.prod(dims)), dims
            if math.prod(dims):
                done = driver.launches.pop()
                assert (done.grid, done.block) == (grid, threads), dims
                if kernel is not counted:
                    values = done.values(parameter_kinds([rank], [], rank))
                    assert tuple(values[-rank:]) == dims
