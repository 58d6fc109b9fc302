"""Random programs of launches on arrays of every framework: see `launch_programs`."""

from __future__ import annotations

import os
import sys
import threading

import jax
import numpy as np
import pytest

import launch_programs as programs

COUNT = int(os.environ.get("NUMBRIDGE_LAUNCH_PROGRAMS", "0"))
# Each kernel is compiled for each dtype, rank and layout, so that a few programs have to do with a few.
FEW = {
    "kernels": (programs.rows, programs.floats, programs.vectors, programs.told_all),
    "dtypes": tuple(map(np.dtype, ("f4", "u1"))),
}
SAMPLE = 80

# What frameworks say of the arrays that they are asked for here, and numbridge of gradients that are lost
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def wide_jax():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def test_random_programs_of_launches():
    made = [programs.run(number, **({} if COUNT else FEW)) for number in range(COUNT or SAMPLE)]
    launched = sum(len(program.steps) for program in made)
    refused = sum(len(program.messages) for program in made)
    assert launched > 4 * len(made)
    assert len(made) < refused < launched


def test_random_programs_of_launches_in_threads_at_once():
    """The same kernels, whose tables of types and specialisations all threads share."""
    numbers, errors = iter(range(COUNT // 4 or SAMPLE // 4)), []

    def work():
        for number in numbers:
            try:
                programs.run(number, **({} if COUNT else FEW))
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
                errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
