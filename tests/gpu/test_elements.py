"""Vectors, matrices and quaternions, and loops over the grid, on a real GPU: values and gradients are the CPU's."""

from __future__ import annotations

import pytest

import element_cases
from element_cases import CASES, name_of


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_values_and_gradients(case):
    import cupy

    def place(values):
        there = cupy.asarray(values)
        return there, lambda: cupy.asnumpy(there)

    element_cases.check(case, place)
