"""The command line: each command as a program, readable and as JSON, and what it says when something is wrong."""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import numbridge as nb
from fake_cuda import cuda_array, fake_cuda
from numbridge.command_line import adjoint_work, cache_files, checks, comparison, cuda_work, drawing, pairs, timing
from numbridge.command_line.adjoint_work import ADJOINTS
from numbridge.command_line.app import _beside, main
from numbridge.command_line.information import information
from numbridge.command_line.memory_work import Memory
from numbridge.command_line.process_work import FirstLaunch
from numbridge.command_line.work import Row, Work

MODULE = "import runpy; runpy.run_module('numbridge', run_name='__main__', alter_sys=True)"


def program(*arguments: str, hidden: tuple[str, ...] = (), expected: int = 0, **environment: str):
    """Run ``python -m numbridge`` where the hidden modules cannot be imported."""
    code = f"import sys; sys.modules.update(dict.fromkeys({hidden!r}))\n{MODULE}"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
    )
    assert done.returncode == expected, done.stderr + done.stdout
    assert "Traceback" not in done.stdout and ("--debug" in arguments or "Traceback" not in done.stderr)
    return done


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split() == [information()["packages"]["numbridge"]]


# info


def test_without_cuda_info_says_what_is_missing(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    assert "the NVIDIA driver (libcuda.so.1)" in printed
    for name in ("numbridge", "numba-cuda", "torch", "cache", "tbb"):
        assert name in printed
    assert "\x1b" not in printed


def test_with_cuda_info_lists_the_devices(capsys):
    with fake_cuda():
        main(["info", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["cuda"] == {
        "usable": True,
        "devices": [{"device": f"cuda:{k}", "name": f"Fake {k}", "capability": "9.0"} for k in range(2)],
    }
    assert found["missing"] == []


def test_info_as_a_program():
    found = json.loads(program("info", "--json").stdout)
    assert found["packages"] == information()["packages"]
    assert found["cache"]["bytes"] > 0


def test_info_without_a_framework_shows_what_brings_it():
    hidden = ("paddle", "cuda.core", "tbb")
    found = json.loads(program("info", "--json", hidden=hidden).stdout)
    assert found["frameworks"]["paddle"] is None
    lines = {item["what"]: item["install"] for item in found["missing"]}
    assert lines["paddle"] == "pip install 'numbridge[paddle]'"
    assert lines["the CUDA toolkit wheels (cuda-bindings, cuda-core)"] == "pip install 'numbridge[cuda13]'"
    assert "numbridge[paddle]" in program("info", hidden=hidden).stdout


def test_info_reports_a_broken_cache_folder_and_goes_on(tmp_path):
    tmp_path.chmod(0o777)
    found = json.loads(program("info", "--json", NUMBRIDGE_CACHE_DIR=str(tmp_path)).stdout)
    assert "chmod go-w" in found["cache"]["error"]


# cache


def test_cache_is_counted_and_cleared_and_nothing_else_is(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    ours = [folder / f"{'0' * 32}.o", folder / f"saxpy_{'1' * 32}.py", folder / "tmpabc_12.tmp"]
    theirs = [folder / "notes.py", folder / "libm.o", folder / "tmpyoung.tmp"]
    for file in [*ours, *theirs]:
        file.write_text("x" * 10)
    os.utime(ours[2], (0, 0))
    where = {"NUMBRIDGE_CACHE_DIR": str(folder)}
    found = json.loads(program("cache", "--json", **where).stdout)
    assert found == {"folder": str(folder), "files": 3, "bytes": 30, "cleared": False}
    assert "removed" in program("cache", "--clear", **where).stdout
    assert sorted(folder.iterdir()) == sorted(theirs)
    assert json.loads(program("cache", "--json", **where).stdout)["files"] == 0


def test_a_process_goes_on_after_its_cache_was_cleared(tmp_path, monkeypatch):
    monkeypatch.setattr(nb.config, "kernel_cache_dir", tmp_path / "cache")
    x = np.ones(3)
    nb.launch(_doubled, 3, [x])
    assert cache_files.clear()["files"] > 0
    nb.launch(_doubled, 3, [x])
    nb.launch(_doubled, 3, [x.astype(np.float32)])
    assert x.tolist() == [4, 4, 4] and cache_files.contents()["files"] > 0


@nb.kernel
def _doubled(x):
    i = nb.tid()
    x[i] = 2 * x[i]


def test_a_cache_folder_that_cannot_be_used_is_an_error_in_one_line():
    done = program("cache", expected=1, NUMBRIDGE_CACHE_DIR="/proc/nowhere")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and error.endswith("cannot be written to; name another")
    assert hint == "(numbridge --debug ... shows where)"


def test_the_self_test_fails_where_compiled_code_cannot_be_kept():
    where = {"NUMBRIDGE_CACHE_DIR": "/proc/nowhere"}
    found = json.loads(program("check", "--json", expected=1, hidden=("torch", "paddle", "jax"), **where).stdout)
    assert not found["passed"]
    assert found["checks"][0]["state"] == "failed" and "cannot be written to" in found["checks"][0]["detail"]


def test_debug_shows_the_traceback():
    done = program("--debug", "cache", expected=1, NUMBRIDGE_CACHE_DIR="/proc/nowhere")
    assert "Traceback" in done.stderr and "cannot be written to" in done.stderr


# the command line itself


def test_a_wrong_command_line_is_told_apart():
    assert "No such command 'inf'" in program("inf", expected=2).stderr
    assert "No such option: --loud" in program("info", "--loud", expected=2).stderr
    assert "Usage" in program("--help").stdout
    assert "Usage: numbridge bench" in program("bench", "-h").stdout


def test_the_script_is_the_same_program():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"numbridge": f"{main.__module__}:{main.__name__}"}


# matrix


def test_every_pair_is_zero_copy_or_says_why(tmp_path):
    drawn = tmp_path / "matrix.svg"
    found = json.loads(program("matrix", "--json", "--svg", str(drawn)).stdout)
    names = ["numbridge", "numpy", "torch", "paddle", "jax"]
    assert [(p["source"], p["target"]) for p in found["pairs"]] == [(s, t) for s in names for t in names]
    for pair in found["pairs"]:
        assert pair["copied"] == []
        assert set(pair["shared"]) | set(pair["refused"]) == set(found["dtypes"])
        assert set(pair["refused"]) == ({"uint16"} if "paddle" in (pair["source"], pair["target"]) else set())
        assert pair["microseconds"] > 0
    assert (
        "Paddle has no dtype uint16" in next(p for p in found["pairs"] if p["target"] == "paddle")["refused"]["uint16"]
    )
    assert list(found["missing"]) == ["cupy"]
    text = "".join(ET.parse(drawn).getroot().itertext())
    assert "from \\ to" in text and "16 of 16 shared" in text


def test_matrix_goes_on_without_a_framework(capsys):
    done = program("matrix", hidden=("paddle", "jax", "torch"))
    assert "jax: not installed; pip install 'numbridge[jax]'" in done.stdout
    assert "every pair and dtype that both sides have is zero-copy" in done.stdout


def test_a_copy_would_be_found(monkeypatch, capsys):
    real = nb.convert
    monkeypatch.setattr(nb, "convert", lambda x, to: real(x, to).copy() if to == "numpy" else real(x, to))
    monkeypatch.setattr(pairs, "usable", lambda: (["numbridge", "numpy"], {}))
    assert main(["matrix"]) == 1
    assert "NOT everything was shared" in capsys.readouterr().out


def test_matrix_on_a_device_that_is_not_there():
    assert "needs CUDA; missing here" in program("matrix", "--device", "cuda", expected=1).stderr


# check


def _time_of_children() -> float:
    """Return how many seconds of the CPU this process's children have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_the_self_test_passes_within_a_minute():
    start = _time_of_children()
    found = json.loads(program("check", "--json").stdout)
    # By the clock it would take longer where other tests run beside it.
    assert _time_of_children() - start < 60
    states = {item["name"]: item["state"] for item in found["checks"]}
    assert found["passed"]
    assert {name for name, state in states.items() if state == "skipped"} == {
        "a kernel on cupy tensors",
        "a kernel on CUDA",
    }
    assert len(states) == len(checks.checks())


def test_the_self_test_skips_what_is_not_installed():
    done = program("check", hidden=("torch", "paddle", "jax"))
    assert "pip install 'numbridge[torch]'" in done.stdout
    assert "0 failed, 9 skipped" in done.stdout


def test_a_wrong_result_fails_the_self_test(monkeypatch, capsys):
    monkeypatch.setattr(checks, "saxpy", nb.kernel(_wrong))
    monkeypatch.setattr(checks, "FRAMEWORKS", ("numpy",))
    monkeypatch.setattr(checks, "absent", lambda name: None if name == "numpy" else "hidden")
    assert main(["check"]) == 1
    printed = capsys.readouterr().out
    assert "2 x + x: wanted" in printed
    assert "failed" in printed


def _wrong(x, y, a):
    i = nb.tid()
    y[i] = a * x[i]


# bench


def test_bench_writes_what_it_measured(tmp_path):
    file = tmp_path / "here"
    done = program("bench", "--quick", "--json", "--only", "1 numpy", "-o", str(file))
    found = json.loads(done.stdout)
    assert found == json.loads(file.with_suffix(".json").read_text())
    fast, launched = found["rows"]
    assert fast["work"] == "1 numpy tensor, empty kernel, forall"
    assert list(fast["values"]) == ["numbridge", "tvm-ffi C++ function", "Numba njit"]
    assert list(launched["values"]) == ["numbridge", "wp.launch, tensors direct"]
    assert all(value > 0 for row in found["rows"] for value in row["values"].values())
    assert found["versions"]["numbridge"] and found["machine"]
    assert "wp.launch" in "".join(ET.parse(file.with_suffix(".svg")).getroot().itertext())


def test_what_follows_a_point_in_the_name_of_the_output_is_part_of_it(tmp_path):
    names = {"run-1.2": "run-1.2.svg", "run.json": "run.svg", "run.svg": "run.svg", "run": "run.svg"}
    assert {name: _beside(Path(name), ".svg").name for name in names} == names
    (tmp_path / "run-1.2.svg").mkdir()
    done = program("bench", "-o", str(tmp_path / "run-1.2"), expected=2)
    assert "run-1.2.svg" in done.stderr.replace("\n", "") and "is a folder" in done.stderr


def test_bench_without_peers(tmp_path):
    hidden = ("warp", "tvm_ffi", "torch", "paddle", "jax")
    done = program("bench", "--quick", "--only", "1 ", "-o", str(tmp_path / "here"), hidden=hidden)
    assert "1 torch tensor, empty kernel, forall: not installed" in done.stdout
    assert "1 numpy tensor, empty kernel, forall" in done.stdout
    assert "tvm-ffi C++" not in done.stdout and "Warp" not in done.stdout


def test_bench_measures_memory_in_processes_of_their_own():
    growth, peak = Memory("from", "numpy").rows(1)
    assert growth.work == "memory: 10,000 results of from_numpy, kept, growth" and growth.unit == "KiB"
    assert list(growth.values) == ["numbridge", "Warp"]
    # Ten thousand objects are kept, each of more than 50 bytes.
    assert all(50 * 10_000 / 1024 < growth.values[name] <= peak.values[name] for name in growth.values)


def test_bench_measures_what_a_first_launch_takes():
    # Of the contestants, the one that compiles fastest; ours compiles its machine room as well. Memory of this process must not
    # count as its.
    ballast = np.ones(1 << 27)
    cold, warm, memory = FirstLaunch(contestants=("Numba prange",)).rows(1)
    assert 0 < warm.values["Numba prange"] < cold.values["Numba prange"]
    assert memory.unit == "KiB" and 10_000 < memory.values["Numba prange"] < ballast.nbytes >> 10


def test_what_cannot_be_measured_is_said_and_loses_nothing_else(monkeypatch, capsys):
    def broken():
        raise RuntimeError("no compiler")

    works = [Work("bad", broken), Work("good", lambda: {"numbridge": lambda: None})]
    monkeypatch.setattr(comparison, "works", lambda: works)
    assert main(["bench", "--quick", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["work"] for row in found["rows"]] == ["good"]
    assert found["failed"] == {"bad": "RuntimeError: no compiler"}
    assert main(["bench", "--quick"]) == 1
    assert "bad failed: RuntimeError: no compiler" in capsys.readouterr().out


def test_rows_for_cuda_need_a_device_and_what_they_compare():
    assert {work.missing for work in cuda_work.cuda_works()} == {"there is no CUDA device here"}
    with fake_cuda():
        missing = {work.name: work.missing for work in cuda_work.cuda_works()}
    # The peers' own frameworks ask the real driver.
    assert missing["CUDA: 3 cupy arrays, empty kernel, forall"] is None
    assert missing["CUDA: from_torch"] == "torch: installed without CUDA"


class FakeCupy:
    """What the rows for CUDA ask of CuPy, on a recording driver; between two events lie 2.5 milliseconds."""

    def __init__(self, fake):
        self.marks = []
        self.cuda = SimpleNamespace(
            Event=lambda: SimpleNamespace(record=lambda: self.marks.append(len(fake.launches)), synchronize=int),
            get_current_stream=lambda: SimpleNamespace(synchronize=int),
            get_elapsed_time=lambda first, last: 2.5,
        )
        self.RawKernel = self.ElementwiseKernel = lambda *arguments: None

    def ones(self, shape, dtype):
        return apart(shape if isinstance(shape, tuple) else (shape,), dtype)

    zeros = ones


PLACES = itertools.count(0x7000_0000_0000, 1 << 32)


def apart(shape, dtype=np.float32):
    """Return an array that shares memory with no other."""
    return cuda_array(shape, dtype, address=next(PLACES))


WITH_CUPY = [work for work in cuda_work.cuda_works() if work.frameworks == ("cupy",)]


@pytest.mark.parametrize("work", WITH_CUPY, ids=lambda work: work.name)
def test_our_side_of_the_rows_for_cuda_is_launched_and_timed(work, monkeypatch):
    with fake_cuda() as fake:
        cupy = FakeCupy(fake)
        monkeypatch.setattr(cuda_work, "cupy", lambda: cupy)
        monkeypatch.setattr(cuda_work, "warp_kernels", lambda: None)
        monkeypatch.setattr(adjoint_work, "is_there", lambda name: False)
        monkeypatch.setattr(adjoint_work, "_moved", lambda arrays, device: [apart(a.shape) for a in arrays])
        prepared = work.prepare()
        assert next(iter(prepared)) == "numbridge"
        (row,) = replace(work, prepare=lambda: {"numbridge": prepared["numbridge"]}).rows(rounds=2)
        if work.on_device:
            assert row.values["numbridge"] == 250.0
            assert np.diff(cupy.marks).tolist() == [10, 0, 10]
        else:
            assert len(fake.launches) == 1 + 2 * cuda_work.LAUNCHES
            assert row.values["numbridge"] > 0


def test_every_row_of_the_comparison_has_a_name_of_its_own():
    names = [work.name for work in comparison.works()]
    assert len(set(names)) == len(names) > 30


def test_every_adjoint_that_is_compared_is_right():
    for name, (kernel, reads, shape, more) in ADJOINTS.items():
        small = (6,) * len(shape)
        random = np.random.default_rng(0)
        given = [random.random(small, np.float32).astype(np.float64) for _ in range(reads + 1)]
        adjoints = [np.zeros(small) for _ in range(reads)] + [np.ones(small)]
        nb.launch(kernel, small, [*given, *more], adj_inputs=[*adjoints, *[None] * len(more)], adjoint=True)
        step = 1e-6
        both = []
        for sign in (1, -1):
            out = np.zeros(small)
            moved = [array + sign * step for array in given[:-1]]
            nb.launch(kernel, small, [*moved, out, *more])
            both.append(out.sum())
        difference = (both[0] - both[1]) / (2 * step)
        assert np.isclose(sum(array.sum() for array in adjoints[:-1]), difference, rtol=1e-6), name


def test_bench_into_a_folder_that_is_not_there(tmp_path):
    for command in (["bench", "--quick", "-o"], ["matrix", "--svg"]):
        done = program(*command, str(tmp_path / "no" / "here"), expected=2)
        assert "is no folder that can be written to" in done.stderr.replace("\n", " ") and not done.stdout


def test_calls_that_are_slow_at_first_do_not_make_rounds_short(monkeypatch):
    clock, calls = [0.0], []

    def run():
        calls.append(clock[0])
        clock[0] += 1e-4 if len(calls) < 20 else 1e-5

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    assert timing.alternating({"": run}, rounds=3, seconds=0.01) == {"": pytest.approx(10)}
    # So long took the three rounds, after calls that only tell how many there are in one.
    assert sum(1 for call in calls if call >= clock[0] - 0.03) == pytest.approx(3000, rel=0.01)


def test_bench_of_no_work_names_what_there_is():
    done = program("bench", "--only", "no such work", expected=2)
    assert "'no such work' is in no name of what is measured" in done.stderr and not done.stdout
    assert all(work.name in done.stderr for work in comparison.works())


# drawing


def test_bars_tell_a_loss_from_a_win():
    rows = [Row("won", {"ours": 1.0, "theirs": 9.0}), Row("lost", {"ours": 9.0, "theirs": 1.0})]
    drawn = drawing.bars_svg(rows, "a & b", "where")
    classes = [node.get("class") for node in ET.fromstring(drawn).iter() if node.tag.endswith("rect")]
    assert classes == ["paper", "ours", "theirs", "lost", "theirs"]


def test_a_bar_beside_the_contestants_loses_to_nobody():
    rows = [
        Row("won", {"ours": 2.0, "theirs": 9.0, "a part": 1.0}),
        Row("lost", {"ours": 9.0, "theirs": 8.0, "a part": 1.0}),
    ]
    drawn = drawing.bars_svg(rows, "a & b", beside=("a part",))
    classes = [node.get("class") for node in ET.fromstring(drawn).iter() if node.tag.endswith("rect")]
    assert classes == ["paper", "ours", "theirs", "theirs", "lost", "theirs", "theirs"]


def test_the_folder_that_takes_nothing_is_described(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert cache_files.described(str(tmp_path)) == f"{tmp_path}, which cannot be written to"


def test_cache_lines_are_for_people():
    assert cache_files.lines({"folder": "/a", "files": 2, "bytes": 1_500_000}) == [
        ("folder", "/a"),
        ("files", "2, 1.5 MB"),
    ]


def test_figures_are_shown_in_the_unit_that_suits_them():
    rows = [Row("time", {"a": 0.5, "b": 1.0, "c": 20_700.0, "d": 2e6}), Row("memory", {"a": 0, "b": 2048.0}, "KiB")]
    drawn = drawing.bars_svg(rows, "title")
    texts = [node.text for node in ET.fromstring(drawn).iter() if node.tag.endswith("text")]
    assert texts[4:12:2] == ["0.500 µs", "1.00 µs", "20.7 ms", "2.00 s"]
    assert texts[13::2] == ["0 KiB", "2.00 MiB"]


def test_a_picture_in_a_page_takes_the_colours_of_the_page():
    drawn = drawing.bars_svg([Row("work", {"a": 1.0})], "a & b", alone=False)
    assert "<style>" not in drawn and ET.fromstring(drawn)[0].get("aria-label") == "a & b"
    # The page has a heading above it.
    assert [node.text for node in ET.fromstring(drawn).iter("text")][:2] == ["logarithmic; shorter is better", "work"]
