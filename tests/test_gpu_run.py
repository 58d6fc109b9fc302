"""The run on a GPU goes on after a test that hangs, crashes or breaks the device, and after a peer that fails, and says so."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from numbridge.command_line.work import Work

HERE = Path(__file__).parent
PROGRAM = """
    import ctypes
    import time

    from numbridge.kernels.cuda_backend import cuda_driver
    from numbridge.kernels.errors import DeviceError


    def test_first():
        pass


    def test_hangs():
        time.sleep(60)


    def test_crashes():
        ctypes.string_at(8)


    def test_breaks_the_context():
        def broken(ordinal):
            raise DeviceError("CUDA_ERROR_ILLEGAL_ADDRESS")

        cuda_driver.driver().synchronize = broken


    def test_last():
        pass
"""
# The device stays for as long as the process.
DEVICES = """
    from fake_cuda import fake_cuda

    devices = fake_cuda()
    devices.__enter__()
"""


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("gpu_bench", HERE / "gpu" / "bench.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(path, text):
    path.write_text("\n".join(line[4:] for line in text.splitlines()))


def test_what_ends_a_process_costs_one_test(bench, tmp_path, monkeypatch):
    written(tmp_path / "test_odd.py", PROGRAM)
    written(tmp_path / "devices.py", DEVICES)
    for name in ("conftest.py", "pytest.ini"):
        (tmp_path / name).write_bytes((HERE / "gpu" / name).read_bytes())
    results = tmp_path / "tests.jsonl"
    paths = [str(tmp_path), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {"PYTHONPATH": os.pathsep.join(paths), "NUMBRIDGE_GPU_RESULTS": str(results)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "devices", "-n", "1", "--max-worker-restart", "9", "."]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment, **given, "NUMBRIDGE_GPU_TEST_SECONDS": "2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = done.stdout + done.stderr
    assert "in test_hangs" in said and "test_breaks_the_context broke the CUDA context" in said, said
    monkeypatch.setenv("NUMBRIDGE_GPU_RESULTS", str(results))
    found = bench.tests()
    assert found["files"] == {"test_odd.py": {"tests": 5, "not run": 0, "passed": 2, "failed": 3}}, said
    assert {*found["failures"]} == {f"test_odd.py::test_{name}" for name in ("hangs", "crashes", "breaks_the_context")}
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in found["failures"]["test_odd.py::test_breaks_the_context"]


def test_tests_that_were_never_reached_are_counted(bench, tmp_path, monkeypatch):
    lines = [{"collected": {"a.py": 3}}, {"test": "a.py::test_one", "outcome": "passed", "seconds": 1, "said": ""}]
    path = tmp_path / "tests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv("NUMBRIDGE_GPU_RESULTS", str(path))
    monkeypatch.setenv("NUMBRIDGE_COMMIT", "0123")
    found = bench.tests()
    assert found.pop("date")
    assert found == {"commit": "0123", "files": {"a.py": {"tests": 3, "not run": 2, "passed": 1}}, "failures": {}}


def test_what_tests_have_come_to_since_is_written_down_alone(bench, tmp_path, monkeypatch):
    (path := tmp_path / "there.json").write_text(json.dumps({"rows": [1], "tests": {}}))
    (results := tmp_path / "tests.jsonl").write_text(json.dumps({"collected": {"a.py": 3}}) + "\n")
    monkeypatch.setenv("NUMBRIDGE_GPU_RESULTS", str(results))
    monkeypatch.setattr(bench, "result_files", lambda folders: [path])
    monkeypatch.setattr(sys, "argv", ["bench.py", "--tests"])
    bench.main()
    found = json.loads(path.read_text())
    assert found["rows"] == [1] and found["tests"]["files"] == {"a.py": {"tests": 3, "not run": 3}}


REPORTS = """========= COMPUTE-SANITIZER
..========= Invalid __global__ read of size 4 bytes
========= Invalid __global__ read of size 4 bytes
=========     at kernel+0x10
========= Warning: Race reported between Read access at kernel+0x20
=========     and Write access at kernel+0x30
========= ERROR SUMMARY: 2 errors
"""


def test_what_compute_sanitizer_reports_is_written_down(bench, tmp_path):
    (tmp_path / "memcheck.txt").write_text(REPORTS)
    lines = [{"collected": {"a.py": 2}}, {"test": "a.py::test_one", "outcome": "failed", "seconds": 1, "said": "no"}]
    (tmp_path / "memcheck.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "racecheck.txt").write_text("========= COMPUTE-SANITIZER\n")
    (tmp_path / "racecheck.jsonl").write_text("")
    reports = {"Invalid __global__ read of size 4 bytes": 2, "Warning: Race reported between Read access": 1}
    assert bench.sanitizers(tmp_path) == {
        "memcheck": {"tests": 2, "not run": 1, "failures": {"a.py::test_one": "no"}, "reports": reports},
        "racecheck": {"tests": 0, "not run": 0, "failures": {}, "reports": {}},
    }


def nothing():
    pass


def refuses():
    raise ValueError("no such device")


def test_a_peer_that_fails_is_noted_and_the_others_are_measured(bench):
    found = bench.Bench()
    found.take(Work("work", lambda: {"numbridge": nothing, "Peer": refuses, "Other": nothing}), {"Third": refuses})
    assert [(row["against"], row.get("error")) for row in found.rows] == [
        ("Peer", "ValueError: no such device"),
        ("Third", "ValueError: no such device"),
        ("Other", None),
    ]


def test_work_without_peers_has_a_row(bench):
    found = bench.Bench()
    found.take(Work("work", lambda: {"numbridge": nothing}), {})
    (row,) = found.rows
    assert row["against"] is None and row["ours"] > 0
