"""``python -m numbridge info``: everything in one place, with and without CUDA, readable and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys

from fake_cuda import fake_cuda
from numbridge.__main__ import information, main


def test_without_cuda_it_says_what_is_missing(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    assert "the NVIDIA driver (libcuda.so.1)" in printed
    assert "pip install 'numbridge[cuda13]'" in printed
    for name in ("numbridge", "numba-cuda", "torch", "cache", "tbb"):
        assert name in printed


def test_with_cuda_it_lists_the_devices(capsys):
    with fake_cuda():
        main(["info", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["cuda"] == {
        "usable": True,
        "devices": [{"device": f"cuda:{k}", "name": f"Fake {k}", "capability": "9.0"} for k in range(2)],
    }


def test_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "numbridge", "info", "--json"], capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert found["packages"] == information()["packages"]
    assert found["cache"]["bytes"] > 0
