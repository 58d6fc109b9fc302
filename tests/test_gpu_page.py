"""The page of what a GPU has run has everything that the runs wrote, says what is missed, and what is not yet run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "docs" / "benchmarks"
SAXPY = "CUDA: saxpy, 256M float32"
FAILED = {f"tests/gpu/test_arrays.py::test_pairs[{k}-a_b]": "ValueError: a|b\nand more" for k in range(2)}
FACTS: dict[str, Any] = {
    "date": "2026-11-26T13:40:16+00:00",
    "commit": "0123456789abcdef",
    "gpu": "NVIDIA Thing",
    "python": "3.12.3",
    "versions": {"numba": "0.68.0", "triton": None},
    "tests": {
        "files": {
            "tests/gpu/test_arrays.py": {"tests": 9, "not run": 2, "passed": 5, "failed": 2},
            "tests/gpu/test_gone.py": {"tests": 1, "not run": 0, "passed": 1},
        },
        "failures": FAILED,
        "sanitizers": {
            "memcheck": {"tests": 9, "not run": 2, "failures": {}, "reports": {}},
            "racecheck": {
                "tests": 3,
                "not run": 0,
                "failures": {"test_a.py::test_b": "lost"},
                "reports": {"Warning: a|b": 2},
            },
        },
    },
    "rows": [
        {"work": SAXPY, "against": name, "ours": 10.0, "theirs": theirs, "unit": "us"}
        | {"ratio": 10 / theirs, "limit": limit, "holds": None if limit is None else 10 / theirs <= limit}
        for name, theirs, limit in [("CuPy", 20.0, 1.0), ("torch.compile", 8.0, 1.05), ("torch", 40.0, None)]
    ]
    + [
        {"work": "CUDA: adjoint of saxpy, 33554432 float32, on the device", "against": None, "ours": 3.0, "unit": "us"},
        {"work": SAXPY, "against": "numba.cuda", "error": "TypeError: no such | thing"},
        {"work": "CUDA: to_torch", "against": None, "error": "RuntimeError: no memory"},
    ],
}


@pytest.fixture
def gpu_page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import gpu_page

    return gpu_page


def cells(text: str) -> list[list[str]]:
    """Return the lines of a text's tables, without what makes text of Markdown."""
    lines = [line.replace("\\|", "¦") for line in text.splitlines() if line.startswith("| ")]
    return [
        [cell.strip().replace("\\", "").replace("\N{NO-BREAK SPACE}", " ") for cell in line.split("|")[1:-1]]
        for line in lines
    ]


def built(gpu_page: Any, benchmarks: Path, folder: Path) -> str:
    """Return the page of a folder of benchmarks, and its sentence, as Sphinx makes text of it, without a warning."""
    folder.mkdir()
    gpu_page.write(benchmarks, folder)
    (folder / "conf.py").write_text(
        "extensions = ['myst_parser']\nexclude_patterns = ['gpu*.md']\nmyst_heading_anchors = 3\n"
    )
    (folder / "index.md").write_text("# Page\n\n```{include} gpu_ran.md\n```\n\n```{include} gpu.md\n```\n")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "text",
        str(folder),
        str(folder / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return (folder / "out" / "index.txt").read_text()


def test_every_row_is_there_and_what_is_missed_is_marked(gpu_page: Any) -> None:
    text = gpu_page.page([FACTS])
    found = cells(text)
    saxpy = "saxpy, 256M float32"
    assert [row for row in found if row[0] == saxpy and row[-1] != gpu_page.NOT_YET_RUN] == [
        [saxpy, "CuPy", "10.0 µs", "20.0 µs", "0.500", "≤ 1", "yes"],
        [saxpy, "torch.compile", "10.0 µs", "8.00 µs", "1.250", "≤ 1.05", "**missed**"],
        [saxpy, "torch", "10.0 µs", "40.0 µs", "0.250", "", ""],
        [saxpy, "numba.cuda", "TypeError: no such ¦ thing"],
    ]
    assert ["adjoint of saxpy, 33554432 float32, on the device", "3.00 µs"] in found
    assert ["to_torch", "", "RuntimeError: no memory"] in found
    assert "Of 2 limits, 1 are kept and 1 missed. 15 rows are not yet run. No row compares with Warp." in text
    assert (
        "Measured on 2026-11-26 at commit `0123456789ab`, on one NVIDIA Thing, with Python 3.12.3; numba 0.68.0."
        in text
    )


def test_rows_that_were_not_reached_are_not_yet_run(gpu_page: Any) -> None:
    left = {(row[0], row[1]) for row in cells(gpu_page.page([FACTS])) if row[-1] == "not yet run" and len(row) == 7}
    known = {(work.removeprefix("CUDA: "), name) for work, names in gpu_page.limits().items() for name in names}
    measured = {
        ("saxpy, 256M float32", "CuPy"),
        ("saxpy, 256M float32", "torch.compile"),
        ("to_torch", "torch.from_dlpack"),
    }
    assert left == known - measured and measured < known


def test_tests_of_each_file_and_what_failed(gpu_page: Any) -> None:
    text = gpu_page.page([FACTS])
    found = {row[0]: row for row in cells(text)}
    assert found["file"][2:] == ["tests", "passed", "failed", "not run"]
    assert found["`test_arrays.py`"][2:] == ["9", "5", "2", "2"] and found["`test_arrays.py`"][1].startswith(
        "Arrays on"
    )
    assert found["`test_gone.py`"][1:] == ["", "1", "1", "0", "0"]
    assert found["`test_kernels.py`"][2] == "not yet run"
    assert "10 tests, of which 6 passed, 2 failed and 2 not run." in text
    assert r"- `test_arrays.py::test_pairs` (0-a\_b, 1-a\_b): ValueError: a\|b" in text
    assert "`compute-sanitizer --tool memcheck` looked at 7 of 9 tests, and reported nothing." in text
    assert "looked at 3 of 3 tests, of which 1 failed or took too long there, and reported 2 times" in text
    assert "- `test_a.py::test_b`: lost" in text and "`compute-sanitizer` is not yet run here." in gpu_page.page([])


def test_each_gpu_has_its_part(gpu_page: Any, tmp_path: Path) -> None:
    other = FACTS | {"gpu": "NVIDIA Other", "commit": "", "rows": [], "tests": {"files": {}, "failures": {}}}
    for name, facts in {"cpu": {"gpu": None, "rows": []}, "a": FACTS, "b": other}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    text = built(gpu_page, tmp_path, tmp_path / "pages")
    assert text.index("NVIDIA Thing\n===") < text.index("NVIDIA Other\n===")
    assert "NVIDIA Other, 2026-11-26: tests not yet run; benchmarks not yet run." in " ".join(text.split())


def test_without_a_gpu_s_results_everything_is_not_yet_run(gpu_page: Any, tmp_path: Path) -> None:
    (tmp_path / "cpu.json").write_bytes((BENCHMARKS / "cpu.json").read_bytes())
    text = built(gpu_page, tmp_path, tmp_path / "pages")
    assert "No GPU: the tests and benchmarks for one are not yet run." in text and "The tests are not yet run." in text
    assert "On any GPU: not yet run" in text
    rows = cells(gpu_page.page([]))
    for work, names in gpu_page.limits().items():
        for name in names:
            assert any(row[:2] == [work.removeprefix("CUDA: "), name] and row[-1] == "not yet run" for row in rows)
    assert not any(mark in row for row in rows for mark in ("yes", "**missed**"))


def test_the_page_has_every_row_of_the_runs_that_there_are(gpu_page: Any) -> None:
    for facts in gpu_page.results(BENCHMARKS):
        rows = cells(gpu_page.page([facts]))
        for row in facts["rows"]:
            start = [row["work"].removeprefix("CUDA: "), *filter(None, [row["against"]])]
            (found,) = (one for one in rows if one[: len(start)] == start)
            assert ("**missed**" in found) is (row.get("holds") is False)
            assert "ratio" not in row or f"{row['ratio']:.3f}" in found
        for test in facts["tests"]["failures"]:
            assert test.partition("[")[0].removeprefix("tests/gpu/") in gpu_page.page([facts]).replace("\\", "")


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_pages_that_are_not_made_name_a_run_that_there_is(gpu_page: Any, page: str) -> None:
    text = (ROOT / page).read_text()
    assert any(facts["gpu"] in text and facts["date"][:10] in text for facts in gpu_page.results(BENCHMARKS))
