"""Operators on PyTorch's DTensors, in two processes of one program (see `two_processes`)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "two_processes.py"
NAMES = [
    node.name.removeprefix("check_")
    for node in ast.parse(PROGRAM.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the checks print in each of the processes."""
    meeting = tmp_path_factory.mktemp("meeting") / "file"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(meeting)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return [process.communicate(timeout=300)[0] for process in running]
    finally:
        for process in running:
            process.kill()


@pytest.mark.parametrize("name", NAMES)
def test_on_two_processes(name, printed):
    for text in printed:
        assert f"ok {name}\n" in text, text
