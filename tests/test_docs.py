"""The documentation is true and complete: its code runs and prints what it says, it names everything, and it builds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import numbridge as nb
from documents import blocks, run_page

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if not {"_build", "_generated", "benchmarks"} & set(page.relative_to(DOCS).parts)
)
WITH_CODE = [page for page in PAGES if any(block.language.startswith("python") for block in blocks(page))]


def _name(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_code_of_a_page_runs_on_a_gpu(page: Path, tmp_path: Path) -> None:
    if nb.device_count() == 1:
        pytest.skip("no CUDA GPU")
    run_page(page, tmp_path, gpu=True)


def test_every_page_of_a_task_has_code() -> None:
    assert [_name(page) for page in PAGES if page.parent.name == "howto" and page not in WITH_CODE] == ["howto/index"]


def test_an_output_that_differs_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\nprint(x)\n```\n\n```output\n1\n```\n\n```python\nprint(x + 1)\n```\n\n```output\n3\n```\n"
    )
    with pytest.raises(AssertionError, match="output 2: the page says"):
        run_page(page, tmp_path)


def test_a_gpu_block_is_compiled_and_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```{code-block} python\n:class: needs-gpu\nraise SystemExit\n```\n")
    run_page(page, tmp_path)
    page.write_text("```{code-block} python\n:class: needs-gpu\nraise +\n```\n")
    with pytest.raises(SyntaxError):
        run_page(page, tmp_path)


def test_the_reference_names_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import api_pages

    named = [name for _, _, names in api_pages.GROUPS.values() for name in names]
    assert sorted(named) == sorted(nb.__all__)


def test_warps_names_are_numbridges_names() -> None:
    page = (DOCS / "coming_from" / "warp.md").read_text()
    cells = [line.split("|")[2] for line in page.splitlines() if line.startswith("| `wp.")]
    names = [word.partition("`")[0] for cell in cells for word in cell.split("`nb.")[1:]]
    heads = {name.partition("(")[0].partition("[")[0].split(".")[0] for name in names}
    assert len(heads) > 30
    assert sorted(name for name in heads if name not in nb.__all__) == []


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    # The builder that reads everything and resolves every link, and writes no pages: `nox -s docs` does.
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "dummy", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
