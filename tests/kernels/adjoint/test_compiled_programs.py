"""Compiled adjoints of random programs against the same adjoints run as plain Python.

What the text of an adjoint means is checked against differences in `test_reverse`; here, that the compiler makes just that of
it. NUMBRIDGE_COMPILED_ADJOINTS is how many programs, and may be followed by a comma and the first one's number.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from adjoint_as_python import float_arrays, run_adjoint
from adjoint_programs import Writer, arguments, declared

COUNT, FIRST = map(int, [*os.environ.get("NUMBRIDGE_COMPILED_ADJOINTS", "12").split(","), "0"][:2])
THREADS = 2


def copied(values):
    return [v.copy() if isinstance(v, np.ndarray) else v for v in values]


@pytest.mark.parametrize("number", range(FIRST, FIRST + COUNT))
def test_a_compiled_adjoint_is_its_text(number):
    choices = random.Random(number)
    text, seed = Writer(choices.randrange).program(), choices.randrange(1000)
    kernel, values = declared(text), arguments(seed)
    names = [parameter.name for parameter in kernel.parameters]
    floats = [k for k, value in enumerate(values) if np.asarray(value).dtype.kind == "f"]
    normal = np.random.default_rng(seed).normal
    given = {k: normal(size=values[k].shape) for k in float_arrays(values)}

    expected = {names[k]: cotangent.copy() for k, cotangent in given.items()}
    run_adjoint(kernel, (THREADS,), copied(values), expected)

    adjoints = [given[k].copy() if k in given else np.zeros(()) if k in floats else None for k in range(len(values))]
    inputs = copied(values)
    kernel.adjoint([names[k] for k in floats]).forall(THREADS)(*inputs, *(adjoints[k] for k in floats))

    for before, after in zip(values, inputs, strict=True):
        assert np.array_equal(before, after, equal_nan=True), text
    for k in floats:
        wanted = np.asarray(expected.get(names[k], 0.0))
        scale = 1 + np.abs(wanted).max(initial=0)
        assert np.allclose(adjoints[k], wanted, rtol=1e-7, atol=1e-9 * scale, equal_nan=True), (names[k], text)
