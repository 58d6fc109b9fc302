"""Writes the list of programs that another system answers wrongly: from what was recorded, and from the programs' own source."""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path
from typing import Any

__all__ = ["write"]

TESTS = Path(__file__).parents[1] / "tests"
MODULES = {"Warp": "answers_warp.py", "tvm-ffi": "answers_exchange.py"}


def _functions(module: str) -> dict[str, str]:
    text = (TESTS / module).read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return found


def _shown(value: Any) -> str:
    """Return an answer; numbers with seven digits, and an error as it is."""
    if isinstance(value, str):
        return value if value == "an error" else f"`{value}`"

    def rounded(item: Any) -> Any:
        return [rounded(one) for one in item] if isinstance(item, list) else float(f"{item:.7g}")

    return f"`{rounded(value)}`"


def _entry(row: dict[str, Any], source: str) -> str:
    return "\n".join(
        [
            f"### {row['question'][0].upper()}{row['question'][1:]}",
            "",
            f"| true | {row['system']} | numbridge |",
            "|---|---|---|",
            f"| {_shown(row['truth'])} | {_shown(row['theirs'])} | {_shown(row['ours'])} |",
            "",
            row["documented"],
            "",
            "```python",
            textwrap.dedent(source),
            "```",
            "",
        ]
    )


def write(record: Path, page: Path) -> None:
    """Write the entries of a record as a page's text."""
    rows = json.loads(record.read_text())["rows"]
    parts = []
    for system, module in MODULES.items():
        programs = _functions(module)
        parts.append(f"## {system}\n")
        if system == "Warp":
            parts.append("Some of the programs call these:\n\n```python")
            parts.append("\n\n\n".join(programs[name] for name in ("gradients", "numbers", "sevens")) + "\n```\n")
        parts += [_entry(row, programs[row["name"]]) for row in rows if row["system"] == system]
    page.write_text("\n".join(parts))
