"""The README is true: its examples run, and its second command is what CI runs."""

from __future__ import annotations

from pathlib import Path

from documents import blocks, run_page

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def test_examples_run(tmp_path: Path) -> None:
    assert run_page(README, tmp_path)["y"].shape == (1000,)


def test_ci_runs_the_second_command() -> None:
    assert blocks(README, "sh")[1].text.strip() == (ROOT / ".ci" / "run").read_text().splitlines()[-1]
