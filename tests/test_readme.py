"""The README is true: its examples run, and its second command is what CI runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_examples_run(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text("\n".join(blocks("python")))
    assert runpy.run_path(str(file))["y"].shape == (1000,)


def test_ci_runs_the_second_command() -> None:
    assert blocks("sh")[1].strip() == (ROOT / ".ci" / "run").read_text().splitlines()[-1]
