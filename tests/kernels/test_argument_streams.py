"""What Python says of the stream of a launch and of its arguments is what compiled code does."""

from __future__ import annotations

import numpy as np
import pytest

import numbridge as nb
from fake_cuda import cuda_array, fake_cuda
from numbridge.kernels import cuda_driver
from numbridge.kernels.argument_streams import argument_stream, launch_streams
from numbridge.kernels.readers import describe


@nb.kernel
def filled(x):
    i = nb.tid()
    x[i] = 1.0


class Producer:
    """An array of another library, which says on which stream it works."""

    def __init__(self, stream):
        place = {"data": (0x7000_0000, False), "version": 3, "stream": stream}
        self.__cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", **place}


ARGUMENTS = {
    "record": lambda: cuda_array((4,), stream=0x77),
    "record without a stream": lambda: cuda_array((4,)),
    "interface": lambda: Producer(0x55),
    "interface on the default stream": lambda: Producer(1),
    "array of an interface": lambda: nb.asarray(Producer(0x55)),
    "view of one": lambda: nb.asarray(Producer(0x55))[1:],
    "array": lambda: nb.asarray(cuda_array((4,))),
}


@pytest.mark.parametrize("current", [0, 0x99])
@pytest.mark.parametrize("what", ARGUMENTS)
def test_a_launch_goes_where_it_is_said(monkeypatch, what, current):
    with fake_cuda() as driver:
        argument = ARGUMENTS[what]()
        other = cuda_array((4,), np.float32, address=0x7100_0000, stream=0x33)
        monkeypatch.setattr(cuda_driver.devices(), "current_stream", lambda ordinal: current)
        chosen, streams = launch_streams([argument, 3, other], [describe(a) for a in (argument, 3, other)])
        assert streams == [argument_stream(argument, 0), 0x33] and chosen == (current or streams[0])
        if not current:
            driver.parameters = 8
            nb.launch(filled, 3, [argument])
            assert [call for call in driver.calls if call[0] == "launch"] == [("launch", chosen)]
