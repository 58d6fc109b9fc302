"""Every program under examples/ runs to its end, in a process of its own, without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))

# What a program is told, where alone it would run for longer than a test should.
ARGUMENTS = {"lattice_boltzmann": ("--diameter", "10", "--time", "40")}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
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


def test_the_demo_finds_every_pair_zero_copy():
    path = Path(__file__).parents[1] / "examples" / "demo.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600, check=True)
    assert "every pair and dtype that both sides have is zero-copy" in done.stdout
    assert "is immutable" in done.stdout
