"""Elements of global arrays are constants of compiled code: what is written into one is noticed, and compiled anew."""

import numpy as np
import pytest

from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch

DENSE = np.arange(6.0).reshape(2, 3)
TABLES = {
    "dense": DENSE.copy(),
    "Fortran order": np.asfortranarray(DENSE),
    "strided": np.arange(12.0).reshape(2, 6)[:, ::2],
    "reversed": DENSE.copy()[::-1],
}


def reader_of(table):
    @kernel
    def read(out):
        i, j = tid()
        out[i, j] = table[i, j]

    return read


@pytest.mark.parametrize("name", TABLES)
def test_what_is_written_into_a_global_array_is_compiled_anew(name):
    table, out = TABLES[name], np.zeros((2, 3))
    read = reader_of(table)
    run = read.forall((2, 3))
    run(out)
    assert out.tolist() == table.tolist()
    for change in (70.0, 80.0):
        table[1, 2] = change
        run(out)
        assert out.tolist() == table.tolist()
        out[:] = 0
        launch(read, (2, 3), [out])
        assert out.tolist() == table.tolist()


def test_so_is_an_array_in_a_tuple():
    pair = (np.array([1.0]), 2)

    @kernel
    def read(out):
        i = tid()
        out[i] = pair[0][i] * pair[1]

    out, run = np.zeros(1), read.forall(1)
    run(out)
    pair[0][0] = 5
    run(out)
    assert out.tolist() == [10.0]


def test_an_array_that_is_written_back_needs_no_new_code():
    table, out = np.array([[1.0]]), np.zeros((1, 1))
    read = reader_of(table)
    for value in (1.0, 2.0, 1.0):
        table[0, 0] = value
        launch(read, (1, 1), [out])
        assert out[0, 0] == value
    assert read.explain(out).variant.source_file == reader_of(np.array([[1.0]])).explain(out).variant.source_file
