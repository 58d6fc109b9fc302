"""Kernels whose threads work together in warps and blocks, on the CPU: the answers of CUDA, errors, and every way to launch."""

import threading

import block_kernels
import numpy as np
import pytest
from numba import cuda, njit

import numbridge as nb

FULL = 0xFFFFFFFF


@pytest.mark.parametrize("case", block_kernels.CASES, ids=lambda case: case.name)
def test_the_cpu_gives_the_answers_of_cuda(case):
    arguments = case.arguments()
    case.kernel[case.configuration](*arguments)
    case.check(arguments)
