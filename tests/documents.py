"""The code in Markdown files: a page's Python blocks run in order, in one namespace, and print what the page says.

A fence ``python`` runs. A fence ``output`` is what the blocks before it print, since the last one. A fence ``{code-block}
python`` with ``:class: needs-gpu`` runs where there is a CUDA GPU, and is compiled elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Block", "blocks", "run_page"]

_FENCE = re.compile(r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE)
_FOR_A_GPU = ":class: needs-gpu\n"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what is in it, and the line that it starts on."""

    language: str
    text: str
    line: int


def blocks(page: Path, language: str = "") -> list[Block]:
    """Return the fenced blocks of a page, of one language if it is given."""
    text = page.read_text()
    found = [
        Block(_language(match), match["body"].removeprefix(_FOR_A_GPU), text.count("\n", 0, match.start("body")) + 1)
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if language in ("", block.language)]


def _language(match: re.Match[str]) -> str:
    language = match["info"].strip().replace("{code-block} ", "")
    return "python on a GPU" if language == "python" and match["body"].startswith(_FOR_A_GPU) else language


def run_page(page: Path, folder: Path, *, gpu: bool = False) -> dict[str, Any]:
    """Run a page's blocks, compare what they print, and return their namespace."""
    taken = [block for block in blocks(page) if block.language in ("python", "output", "python on a GPU")]
    for block in taken:
        if block.language == "python on a GPU":
            compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    runs = ("python", "python on a GPU") if gpu else ("python",)
    printed: dict[int, str] = {}
    buffer = io.StringIO()

    def ended(number: int) -> None:
        printed[number] = buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()

    # Kernels are read from a file, so the blocks become one; each is on the line where the page has it.
    file = folder / f"{page.stem}_page.py"
    file.write_text(_lined_up(taken, runs))
    with contextlib.redirect_stdout(buffer):
        namespace = runpy.run_path(str(file), {"__ended__": ended})
    for number, (wanted, found) in enumerate(_outputs(taken, printed)):
        assert found.strip() == wanted.strip(), (
            f"{page.name}, output {number + 1}: the page says\n{wanted}\nand got\n{found}"
        )
    return namespace


def _lined_up(taken: list[Block], runs: tuple[str, ...]) -> str:
    lines: list[str] = []
    for number, block in enumerate(taken):
        lines += [""] * (block.line - 1 - len(lines))
        if block.language in runs:
            lines += block.text.splitlines()
        if block.language == "output":
            lines.append(f"__ended__({number})")
    return "\n".join(lines) + "\n"


def _outputs(taken: list[Block], printed: dict[int, str]) -> Iterator[tuple[str, str]]:
    for number, block in enumerate(taken):
        if block.language == "output":
            yield block.text, printed[number]
