"""The drawings of the documentation, as SVG from boxes and arrows; and the plots, from docs/benchmarks/*.json.

They are placed into the pages themselves, so that they take the colours of the theme.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import answers_page
import api_pages

from numbridge.command_line.drawing import bars_svg, shown
from numbridge.command_line.work import Row

__all__ = ["draw_all"]


class Drawing:
    """Boxes with lines of text, and arrows between points."""

    def __init__(self, label: str, width: int, height: int) -> None:
        self._label, self._size, self._parts = label, (width, height), list[str]()

    def box(self, x: int, y: int, width: int, lines: str, kind: str = "plain") -> None:
        """Draw a box around lines of text; the first one is its title."""
        texts = lines.split("\n")
        self._parts.append(
            f'<rect class="nb-{kind}" x="{x}" y="{y}" width="{width}" height="{14 + 17 * len(texts)}" rx="6"/>'
        )
        for k, text in enumerate(texts):
            style = "nb-title" if not k else "nb-text"
            self._parts.append(
                f'<text class="{style}" x="{x + width / 2}" y="{y + 20 + 17 * k}" text-anchor="middle">{escape(text)}</text>'
            )

    def arrow(self, points: Sequence[tuple[int, int]], text: str = "", at: tuple[int, int] | None = None) -> None:
        """Draw an arrow along points, with a word beside it."""
        path = " ".join(f"{'M' if not k else 'L'}{x} {y}" for k, (x, y) in enumerate(points))
        self._parts.append(f'<path class="nb-arrow" d="{path}" marker-end="url(#nb-head)"/>')
        if text:
            (x, y), (u, v) = points[0], points[-1]
            p, q = at or ((x + u) // 2, (y + v) // 2 - 6)
            self._parts.append(f'<text class="nb-note" x="{p}" y="{q}" text-anchor="middle">{escape(text)}</text>')

    def svg(self) -> str:
        """Return the drawing as an element of a page."""
        width, height = self._size
        head = '<defs><marker id="nb-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        tip = '<path class="nb-tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
        size = f'viewBox="0 0 {width} {height}" style="max-width: {width}px"'
        body = "\n".join(self._parts)
        frame = f'<div class="nb-frame"><svg class="nb-drawing" role="img" aria-label="{escape(self._label)}"'
        return f"{frame} {size}>\n{head}{tip}\n{body}\n</svg></div>\n"


def crossing() -> Drawing:
    """How a launch gets from tensors to machine code."""
    d = Drawing("A launch: tensors go into a compiled entry, which reads them and runs the kernel's loop", 760, 250)
    d.box(10, 20, 150, "your tensors\nNumPy, torch,\nPaddle, JAX, CuPy")
    d.box(220, 20, 230, "entry, compiled once\nreads each object natively\nrank, dtype, device, writable?", "ours")
    d.box(520, 20, 220, "the kernel, compiled\nloop over threads, or\ncuLaunchKernel", "ours")
    d.arrow([(160, 55), (218, 55)])
    d.arrow([(450, 55), (518, 55)], "as expected", (485, 44))
    d.box(220, 150, 230, "slow path, in Python\nrefuse with a message,\nor compile this variant")
    d.arrow([(335, 86), (335, 148)], "a miss", (362, 122))
    d.arrow([(450, 182), (630, 182), (630, 88)], "try again", (545, 176))
    d.box(520, 205, 220, "cache on disk")
    d.arrow([(450, 200), (485, 200), (485, 220), (518, 220)])
    return d


def ordering() -> Drawing:
    """How launches on streams of two frameworks are ordered."""
    d = Drawing("A launch with tensors on two streams waits for both and runs on one of them", 760, 230)
    d.box(10, 20, 150, "torch's stream")
    d.box(10, 130, 150, "CuPy's stream")
    d.box(210, 20, 150, "work on x")
    d.box(210, 130, 150, "work on y")
    d.box(440, 20, 150, "your kernel\nreads x, writes y", "ours")
    d.box(610, 130, 140, "next work on y")
    for y in (36, 146):
        d.arrow([(160, y), (208, y)])
    d.arrow([(360, 36), (438, 36)])
    d.arrow([(360, 146), (400, 146), (400, 55), (438, 55)], "event", (425, 110))
    d.arrow([(515, 68), (515, 146), (608, 146)], "event", (540, 110))
    d.box(10, 190, 740, "the host does not wait: it has gone on after the launch")
    return d


def ownership() -> Drawing:
    """Who keeps memory alive."""
    d = Drawing("An array and its views keep the owner of their memory alive", 760, 200)
    d.box(10, 70, 160, "memory\nof a torch tensor")
    d.box(240, 70, 160, "torch's storage\nreference count")
    d.arrow([(240, 95), (172, 95)], "owns", (206, 88))
    d.box(480, 10, 260, "nb.from_torch(t)\nholds a reference", "ours")
    d.box(480, 75, 260, "nb.to_numpy(a), a[1:], a.view(...)\nhold that one", "ours")
    d.box(480, 140, 260, "a DLPack capsule\nits deleter gives it back", "ours")
    for y in (35, 100, 165):
        d.arrow([(480, y), (430, y), (430, 95), (402, 95)])
    return d


def adjoints() -> Drawing:
    """How an adjoint runs forward and back."""
    d = Drawing(
        "An adjoint runs the kernel forward, keeping what it needs, and then its statements in reverse", 760, 230
    )
    d.box(10, 30, 150, "kernel's source\nand argument types")
    d.box(210, 30, 150, "typed IR\nloads, stores, loops", "ours")
    d.box(
        420,
        10,
        320,
        "forward sweep\nrun again; keep what the rules need:\non a stack, or every 2^k-th trip of a loop",
        "ours",
    )
    d.box(420, 120, 320, "reverse sweep\nreplay from the last kept trip;\nadd each partial derivative", "ours")
    d.arrow([(160, 55), (208, 55)])
    d.arrow([(360, 55), (418, 55)])
    d.arrow([(580, 76), (580, 118)])
    d.box(210, 130, 150, "gradients\nof what varies")
    d.arrow([(420, 155), (362, 155)])
    return d


DRAWINGS = {"crossing": crossing, "ordering": ordering, "ownership": ownership, "adjoints": adjoints}

# Plot → words of which a piece of work has one.
PLOTS = {
    "launches": ("empty kernel",),
    "conversions": ("from_", "to_"),
    "inside_jax": ("jit", "jax_", "value_and_grad"),
    "kernels": ("saxpy, 16M", "five-point stencil, 4096", "normalise", "mat33", "axpy, 16M"),
    "adjoints": ("adjoint of", "torch_op"),
}
# Plot → file of what the command line has measured.
FILES = {"processes": "processes.json", "memory": "memory.json"}


def groups(facts: dict[str, Any], name: str) -> list[Row]:
    """Return a group of the benchmarks' rows; those of one piece of work become one."""
    found: dict[str, dict[str, float]] = {}
    for row in facts["rows"]:
        work = row["work"]
        listed = any(word in work for word in PLOTS[name]) and "first launch" not in work and row["unit"] == "us"
        if listed and not (name == "kernels" and work.startswith("adjoint")):
            found.setdefault(work, {"numbridge": row["ours"]})[row["against"]] = row["theirs"]
    return [Row(work, values) for work, values in found.items()]


def about(facts: dict[str, Any]) -> str:
    """Return where and with what something was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    commit = f" at commit {facts['commit'][:12]}" if "commit" in facts else ""
    return f"{facts['date'][:10]}{commit}, {facts['machine']}, Python {facts['python']}; {versions}"


NO_BREAK = "\N{NO-BREAK SPACE}"
# What a row compares with that is nobody else: a part of the work itself.
NO_CONTESTANTS = (
    "the kernel itself",
    "a handler that does nothing",
    "the same by hand on (n, 3)",
    "the same bytes in order",
)


def losses(facts: dict[str, Any], measured: Sequence[dict[str, Any]]) -> str:
    """Return the rows in which somebody else is better, the worst first, as a table."""
    rows = {(row["work"], row["against"]): (row["ours"], row["theirs"], row["unit"]) for row in facts["rows"]}
    for row in (row for one in measured for row in one["rows"]):
        (_, ours), *peers = row["values"].items()
        # The plots show these, so they count where a full run has measured the same.
        rows |= {(row["work"], against): (ours, theirs, row["unit"]) for against, theirs in peers}
    lost = [
        (ours / theirs, work, against, shown(ours, unit), shown(theirs, unit))
        for (work, against), (ours, theirs, unit) in rows.items()
        # A limit in place of a peer is a number.
        if theirs and ours > theirs and against not in NO_CONTESTANTS and not against[0].isdigit()
    ]
    head = "| work | against | ours | theirs | ours / theirs |\n|---|---|---|---|---|\n"
    lines = [
        # A figure and its unit stay on one line.
        f"| {work} | {against} | {ours.replace(' ', NO_BREAK)} | {theirs.replace(' ', NO_BREAK)} | {ratio:.2f} |"
        for ratio, work, against, ours, theirs in sorted(lost, reverse=True)
    ]
    return head + "\n".join(lines) + "\n"


def draw_plots(benchmarks: Path, made: Path) -> None:
    """Draw the plots, and write what stands beside them."""
    facts = json.loads((benchmarks / "cpu.json").read_text())
    (made / "about.md").write_text(f"{about(facts)}.\n")
    for name in PLOTS:
        title = f"{name.replace('_', ' ')}".replace("jax", "JAX")
        (made / f"plot_{name}.svg").write_text(bars_svg(groups(facts, name), title, alone=False))
    further = {name: json.loads((benchmarks / file).read_text()) for name, file in FILES.items()}
    for name, found in further.items():
        rows = [Row(**row) for row in found["rows"]]
        (made / f"plot_{name}.svg").write_text(bars_svg(rows, name, alone=False))
        (made / f"about_{name}.md").write_text(f"{about(found)}.\n")
    answers = benchmarks / "answers.json"
    (made / "about_answers.md").write_text(f"{about(json.loads(answers.read_text()))}.\n")
    answers_page.write(answers, made / "answers.md")
    (made / "losses.md").write_text(losses(facts, list(further.values())))


def draw_all(folder: Path) -> None:
    """Draw everything, and write the pages of the API reference, into `_generated` below the documentation's folder."""
    made = folder / "_generated"
    made.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (made / f"{name}.svg").write_text(draw().svg())
    draw_plots(folder / "benchmarks", made)
    api_pages.write_all(folder / "reference")
