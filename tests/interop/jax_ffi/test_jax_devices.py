"""Kernels on several devices: eight of one process (see `eight_devices`), and two processes."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
TESTS = FOLDER.parents[1]
EXAMPLES = TESTS.parent / "examples"
PROGRAM = FOLDER / "eight_devices.py"
NAMES = [
    node.name.removeprefix("check_")
    for node in ast.parse(PROGRAM.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module", params=["shardy", "gspmd"])
def printed(request: pytest.FixtureRequest) -> str:
    """What the checks print with one of JAX's partitioners."""
    command = [sys.executable, str(PROGRAM), request.param]
    beside = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": beside}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    return f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("name", NAMES)
def test_on_eight_devices(name, printed):
    assert f"ok {name}\n" in printed, printed


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("example", ["jax_multiply_by_two.py", "jax_sharded_matmul.py"])
def test_on_two_processes(example):
    port = free_port()
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, str(EXAMPLES / example), f"localhost:{port}", "2"]
    running = [
        subprocess.Popen(
            [*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=120)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], printed
    assert "running on 4 device(s) of 2 process(es)" in printed[0] and "all right" in printed[0]
    assert "running on" not in printed[1]
