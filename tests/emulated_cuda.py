"""CUDA devices whose kernels run, where there is no GPU: their PTX on the CPU, over host memory that says that it is a device's.

What runs is what NVVM made of a kernel, with the parameters that the compiled launch passed. What ptxas makes of the PTX, and
how a GPU schedules it, is not tested by this.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fake_cuda import PTX, FakeDriver, Launched, cuda_array, fake_cuda
from numbridge.kernels.errors import DeviceError
from numbridge.kernels.launch import launch
from ptx_emulator.execution import Machine, machine

_running: list[Emulation] = []
_LAUNCH_FAILED = 719


def is_emulated() -> bool:
    """Tell whether there are emulated devices now."""
    return bool(_running)


class Emulation:
    """What launches, copies and allocations on the emulated devices come to; `printed` is what kernels print."""

    def __init__(self, driver: FakeDriver, *, races: bool = False) -> None:
        self._driver, self._races = driver, races
        self._memory: dict[int, tuple[int, bool, Any]] = {}
        self.errors: list[Exception] = []
        self.printed: list[str] = []

    def on_device(self, array: np.ndarray, dtype: Any = None) -> Any:
        """Return an array that has the memory of a NumPy array, and lies on CUDA device 0.

        Kernels may touch that memory and no other, and write to it if the NumPy array may be written to.
        """
        begin, end = np.lib.array_utils.byte_bounds(array) if array.size else (array.ctypes.data,) * 2
        self._memory[begin] = (end, array.flags.writeable, array)
        kind = dtype or array.dtype
        strides = tuple(stride // array.dtype.itemsize for stride in array.strides)
        return cuda_array(array.shape, kind, address=array.ctypes.data, strides=strides)

    def protect(self, array: np.ndarray) -> None:
        """Let no kernel write to the memory of an array from now on."""
        begin = np.lib.array_utils.byte_bounds(array)[0]
        end, _, owner = self._memory[begin]
        self._memory[begin] = (end, False, owner)

    def allocate(self, size: int) -> int:
        # Bytes that no memory of the device holds by accident
        memory = np.full(size, 0xA5, np.uint8)
        self._memory[memory.ctypes.data] = (memory.ctypes.data + size, True, memory)
        return memory.ctypes.data

    def free(self, address: int) -> None:
        del self._memory[address]

    def does(self, what: str, *given: Any) -> int:
        """Launch, copy, fill or call; return a CUresult."""
        work: Any = {
            "launch": self._launch,
            "copy": ctypes.memmove,
            "fill": ctypes.memset,
            "call": lambda done: done(),
        }[what]
        return self._tried(lambda: work(*given))

    def _tried(self, work: Callable[[], Any]) -> int:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised when the context ends: through compiled code it cannot go
            self.errors.append(error)
            return _LAUNCH_FAILED
        return 0

    def _launch(self, launched: Launched) -> None:
        ready = self._machine(*self._driver.loaded[launched.kernel])
        memory = [(begin, end, free) for begin, (end, free, _) in self._memory.items()]
        show, races = self.printed.append, self._races
        ready.run(launched.grid, launched.block, launched.parameters, memory, show, launched.shared, races)

    def _machine(self, cubin: bytes, symbol: str) -> Machine:
        return machine(PTX[cubin], symbol)


@contextlib.contextmanager
def emulated_cuda(*, races: bool = True) -> Iterator[Emulation]:
    """Let this process have CUDA devices whose kernels run, within a ``with`` block; what goes wrong in one is raised.

    With `races`, so is an access of a thread to what another of its block accesses at the same time, or in no certain order.
    """
    with fake_cuda() as fake:
        fake.emulation = Emulation(fake, races=races)
        _running.append(fake.emulation)
        try:
            yield fake.emulation
        except DeviceError:
            if fake.emulation.errors:
                raise fake.emulation.errors[0] from None
            raise
        finally:
            errors, fake.emulation = fake.emulation.errors, None
            _running.clear()
        if errors:
            raise errors[0]


def on_both(kernel: Any, dim: Any, values: Any) -> tuple[Any, Any]:
    """Launch on the CPU and on an emulated device, and return what both leave in the last array."""
    here, there = ([value.copy() for value in values] for _ in range(2))
    launch(kernel, dim, here)
    with emulated_cuda() as device:
        launch(kernel, dim, [device.on_device(value) for value in there])
    return here[-1], there[-1]
