"""The drawings of the documentation, as SVG from boxes and arrows; and the plots, from docs/benchmarks/*.json.

They are placed into the pages themselves, so that they take the colours of the theme.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import answers_page
import api_pages
import gpu_page

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
    d = Drawing("A launch: tensors go into a compiled entry, which reads them and runs the kernel's loop", 760, 222)
    d.box(10, 20, 130, "your tensors\nNumPy, torch,\nPaddle, JAX, CuPy")
    d.box(180, 20, 230, "entry, compiled once\nreads each object natively\nrank, dtype, device, writable?", "ours")
    d.box(550, 20, 200, "the kernel, compiled\nloop over threads, or\ncuLaunchKernel", "ours")
    d.arrow([(140, 52), (178, 52)])
    d.arrow([(410, 52), (548, 52)], "as expected")
    d.box(180, 145, 230, "slow path, in Python\nrefuse with a message,\nor compile this variant")
    d.arrow([(240, 86), (240, 143)], "a miss", (212, 118))
    d.arrow([(350, 145), (350, 87)], "try again", (384, 118))
    d.box(550, 162, 200, "cache on disk")
    d.arrow([(410, 177), (548, 177)], "keep, or find")
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
    d.box(10, 75, 150, "memory\nof a torch tensor")
    d.box(230, 75, 150, "torch's storage\nreference count")
    d.arrow([(230, 99), (162, 99)], "owns", (196, 92))
    d.box(450, 10, 300, "nb.from_torch(t)\nholds a reference", "ours")
    d.box(450, 75, 300, "nb.to_numpy(a), a[1:], a.view(...)\nhold that one", "ours")
    d.box(450, 140, 300, "a DLPack capsule\nits deleter gives it back", "ours")
    for y in (34, 99, 164):
        d.arrow([(450, y), (415, y), (415, 99), (382, 99)])
    return d


def adjoints() -> Drawing:
    """How an adjoint runs forward and back."""
    d = Drawing(
        "An adjoint runs the kernel forward, keeping what it needs, and then its statements in reverse", 760, 194
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

# Plot → words of which a piece of work has one, and the units of its figures.
PLOTS = {
    "launches": (("empty kernel",), ("us",)),
    "conversions": (("from_", "to_"), ("us",)),
    "inside JAX": (("jit", "jax_", "value_and_grad"), ("us",)),
    "kernels": (("saxpy, 16M", "five-point stencil, 4096", "normalise", "mat33", "axpy, 16M"), ("us",)),
    "adjoints": (("adjoint of", "torch_op"), ("us",)),
    "processes": (("of a process",), ("us", "KiB")),
    "memory": (("growth",), ("KiB",)),
}


def groups(facts: dict[str, Any], name: str) -> list[Row]:
    """Return a group of the benchmarks' rows; those of one piece of work become one."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    words, units = PLOTS[name]
    for row in facts["rows"]:
        work, unit = row["work"], row["unit"]
        if any(word in work for word in words) and unit in units:
            found.setdefault((work, unit), {"numbridge": row["ours"]})[row["against"]] = row["theirs"]
    return [Row(work, values, unit) for (work, unit), values in found.items()]


def about(facts: dict[str, Any]) -> str:
    """Return where and with what something was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    commit = f" at commit {facts['commit'][:12]}" if "commit" in facts else ""
    return f"{facts['date'][:10]}{commit}, {facts['machine']}, Python {facts['python']}; {versions}"


NO_BREAK = "\N{NO-BREAK SPACE}"
# What a row compares with that is nobody else: a part of the work itself, or the same in other words.
NO_CONTESTANTS = (
    "the kernel itself",
    "a handler that does nothing",
    "a sum in each thread",
    "a thread for each element",
    "the same by hand on (n, 3)",
    "the same bytes in order",
    "the same without tuples",
)
# The least that a process can grow by; by which it grows now and then, whoever it runs.
PAGE_OF_MEMORY = 4


def losses(facts: dict[str, Any]) -> str:
    """Return the rows in which somebody else is better, the worst first, as a table."""
    lost = [
        (row["ratio"] or math.inf, row)
        for row in facts["rows"]
        # A limit in place of a peer is a number.
        if row["ours"] > row["theirs"] and row["against"] not in NO_CONTESTANTS and not row["against"][0].isdigit()
        if row["unit"] != "KiB" or row["ours"] - row["theirs"] > PAGE_OF_MEMORY
    ]
    head = "| work | against | ours | theirs | ours / theirs |\n|---|---|---|---|---|\n"
    lines = [
        # A figure and its unit stay on one line.
        f"| {row['work']} | {row['against']} "
        + " ".join(f"| {shown(row[whose], row['unit']).replace(' ', NO_BREAK)}" for whose in ("ours", "theirs"))
        + f" | {ratio:.2f} |"
        for ratio, row in sorted(lost, key=lambda one: -one[0])
    ]
    return head + "\n".join(lines) + "\n"


def draw_plots(benchmarks: Path, made: Path) -> None:
    """Draw the plots, and write what stands beside them."""
    facts = json.loads((benchmarks / "cpu.json").read_text())
    (made / "about.md").write_text(f"{about(facts)}.\n")
    for name in PLOTS:
        drawn = bars_svg(groups(facts, name), name, alone=False, beside=NO_CONTESTANTS)
        (made / f"plot_{name.replace(' ', '_')}.svg").write_text(drawn)
    (made / "losses.md").write_text(losses(facts))
    answers = benchmarks / "answers.json"
    (made / "about_answers.md").write_text(f"{about(json.loads(answers.read_text()))}.\n")
    answers_page.write(answers, made / "answers.md")
    gpu_page.write(benchmarks, made)


def draw_all(folder: Path) -> None:
    """Draw everything, and write the pages of the API reference, into `_generated` below the documentation's folder."""
    made = folder / "_generated"
    made.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (made / f"{name}.svg").write_text(draw().svg())
    draw_plots(folder / "benchmarks", made)
    api_pages.write_all(folder / "reference")
