"""Random programs of JAX that call kernels, and random functions that launch them, against twins of pure jax.numpy."""

from __future__ import annotations

import os
import random
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from jax_kernels import Twins, kernels
from jax_launches import IN_OUT, LaunchWriter, of_numbridge, of_the_twin
from jax_programs import FORWARD, ON_DEVICES, REVERSE, SKIPPED, USES, JaxWriter, used

PROGRAMS = int(os.environ.get("NUMBRIDGE_JAX_PROGRAMS", "6"))
# The first differences between numbers of a kernel and of its twin, which are rounded in another order, grow on the way.
TOLERANCES = {np.float64: 1e-7, np.float32: 2e-3, np.float16: 0.02, jnp.bfloat16: 0.1}
# The floating-point type of some of 16 programs, and whether JAX has types of 64 bits meanwhile
REALS = {3: (np.float16, False), 7: (np.float32, False), 11: (np.float32, True), 15: (jnp.bfloat16, False)}
SIZES = (4, 3), (4, 3), (4, 3), (4,), (3,), (2, 3), (1, 4), (5, 3), (0, 3), (3, 0)
LARGE = 1e6
# What is done with functions that Python runs each time, which stay in their process
UNDIFFERENTIATED = [use for use in USES if use not in (*REVERSE, *FORWARD, "export")]


@pytest.fixture(scope="module")
def kernels_of():
    made = {}

    def get(real):
        if real not in made:
            made[real] = kernels(real, nb.complex128 if real is np.float64 else nb.complex64)
        return made[real]

    return get


def leaves(results):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


def exact(array):
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def is_close(one, other, tolerance):
    if one.dtype == jax.dtypes.float0:
        return True
    one, other = exact(one), exact(other)
    return bool(np.abs(one - other).max(initial=0) <= tolerance * (1 + np.abs(other).max(initial=0)))


def is_comparable(results):
    known = [exact(a) for a in results if a.dtype != jax.dtypes.float0]
    return all(np.isfinite(a).all() and np.abs(a).max(initial=0) < LARGE for a in known)


def moved(values, tolerance):
    """Return values next to some, in the rounding of their type."""
    return [
        v if v.dtype.kind in "bi" else (v * (1 + max(1e-4 * tolerance, float(jnp.finfo(v.dtype).eps)))).astype(v.dtype)
        for v in values
    ]


def compare(use, run, twin, values, tolerance, shown):
    """Compare a use of a function with that of its twin, and return whether that was possible."""
    before = [value.copy() for value in values]
    try:
        wanted = leaves(used(use, jax.jit(twin), values))
        kinds = jax.eval_shape(twin, *values)
    except SKIPPED:
        # JAX itself does not have that combination.
        return False
    if not is_comparable(wanted):
        return False
    try:
        got = leaves(used(use, run, values))
        assert [(k.shape, k.dtype, k.weak_type) for k in jax.eval_shape(run, *values)] == [
            (k.shape, k.dtype, k.weak_type) for k in kinds
        ]
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{shown}") from error
    assert all(np.array_equal(one, other) for one, other in zip(values, before, strict=True)), shown
    assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in wanted], shown
    differs = [not is_close(one, other, tolerance) for one, other in zip(got, wanted, strict=True)]
    if any(differs):
        # A program may magnify what is below the last digit of its arguments.
        near = leaves(used(use, jax.jit(twin), moved(values, tolerance)))
        if not all(is_close(one, other, tolerance) for one, other in zip(near, wanted, strict=True)):
            return False
    assert not any(differs), f"{got} is not {wanted}\n{shown}"
    return True


def check_program(number, kernels_of):
    choices = random.Random(number)
    real, is_wide = REALS.get(number % 16, (np.float64, True))
    budget = choices.choice((3, 5, 8, 12, 16)) if np.dtype(real).itemsize > 2 else 4
    devices = jax.device_count("cpu")
    writer = JaxWriter(choices.randrange, real, choices.randrange(1, 5), budget, choices.choice(SIZES), devices)
    program = writer.program()
    with jax.enable_x64(is_wide), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        run, twin = program.function(kernels_of(real)), program.function(Twins())
        return compare(program.use, run, twin, program.values(number), TOLERANCES[real], program)


def check_launches(number, kernels_of):
    choices = random.Random(number)
    function = LaunchWriter(choices.randrange).function()
    # What Python runs each time must not wait for JAX.
    modes = [
        mode
        for mode in nb.GraphMode
        if mode is not nb.GraphMode.NONE or not (function.is_aliased or "jnp" in function.text)
    ]
    mode = choices.choice(modes)
    uses = UNDIFFERENTIATED if mode is nb.GraphMode.NONE else USES
    use = choices.choice([use for use in uses if use not in ON_DEVICES or jax.device_count("cpu") >= 4])
    options = {"vmap_method": choices.choice(("broadcast_all", "sequential", "expand_dims"))}
    options["enable_backward"] = mode is not nb.GraphMode.NONE
    if mode is nb.GraphMode.JAX:
        options["fuse"] = choices.choice((None, None, False))
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        run, twin = of_numbridge(function, kernels_of(np.float64), mode, options), of_the_twin(function)
        shown = f"# {use}, {mode}, {options}, {IN_OUT}: {function.in_out}\n{function.text}"
        return compare(use, run, twin, function.values(number), TOLERANCES[np.float64], shown)


@pytest.mark.parametrize("check", [check_program, check_launches], ids=["programs", "launches"])
def test_random(check, kernels_of):
    compared = 0
    for number in range(PROGRAMS):
        compared += check(number, kernels_of)
        if number % 100 == 99:
            jax.clear_caches()
    assert compared > 0.75 * PROGRAMS, compared
