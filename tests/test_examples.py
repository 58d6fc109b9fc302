"""Every program under examples/ runs to its end, in a process of its own, without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import numbridge as nb

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))

# What a program is told, where alone it would run for longer than a test should.
ARGUMENTS = {"lattice_boltzmann": ("--diameter", "10", "--time", "40")}


# What needs a GPU, and ends with an error that says so where there is none.
NEEDS_A_GPU = {"cupy_arrays"}


@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.stem not in NEEDS_A_GPU], ids=lambda path: path.stem
)
def test_example_runs(path):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(path), *ARGUMENTS.get(path.stem, ())],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", sorted(NEEDS_A_GPU))
def test_an_example_for_a_gpu_says_what_is_missing(name):
    path = Path(__file__).parents[1] / "examples" / f"{name}.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600, check=False)
    if nb.device_count() == 1:
        assert done.returncode == 1
        assert "DeviceError: device 'cuda:0' needs CUDA; missing here: the NVIDIA driver" in done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_the_demo_finds_every_pair_zero_copy():
    path = Path(__file__).parents[1] / "examples" / "demo.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600, check=True)
    assert "every pair and dtype that both sides have is zero-copy" in done.stdout
    assert "is immutable" in done.stdout
