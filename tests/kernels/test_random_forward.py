"""Random kernels of general code leave what their text leaves in Python, on the CPU and, some of them, on an emulated device.

NUMBRIDGE_FORWARD_PROGRAMS is how many programs, and may be followed by a comma and the first one's number.
"""

import os

import pytest

import forward_checks

COUNT, FIRST = map(int, [*os.environ.get("NUMBRIDGE_FORWARD_PROGRAMS", "2,4").split(","), "0"][:2])
PROGRAMS = range(FIRST, FIRST + COUNT)
ON_CUDA = [number for number in PROGRAMS[::4] if forward_checks.runs_on_cuda(number)]


@pytest.mark.parametrize("number", PROGRAMS)
def test_a_kernel_leaves_what_its_text_does(number):
    forward_checks.check(number)


@pytest.mark.parametrize("number", ON_CUDA)
def test_a_kernel_leaves_the_same_on_an_emulated_device(number):
    forward_checks.check(number, device=True)
