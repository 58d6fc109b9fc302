"""Kernels whose threads work together in warps and blocks, on a real GPU: the answers that NumPy and the CPU give."""

from __future__ import annotations

import numpy as np
import pytest

import block_gradient_cases as gradients
from block_kernels import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case):
    import cupy

    arguments = [cupy.asarray(v) if isinstance(v, np.ndarray) else v for v in case.arguments()]
    case.kernel[case.configuration](*arguments)
    case.check([cupy.asnumpy(v) if isinstance(v, cupy.ndarray) else v for v in arguments])


@pytest.mark.parametrize("case", gradients.ON_CUDA, ids=gradients.name_of)
def test_gradients(case):
    import cupy

    gradients.check_on_cuda(case, cupy.asarray, cupy.asnumpy)
