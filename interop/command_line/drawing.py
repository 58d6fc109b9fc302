"""Tables and bars as SVG, from plain values; the pictures follow the reader's light or dark theme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

__all__ = ["bars_svg", "table_svg"]

_STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #222 } .head { font-weight: 600 } .small { font-size: 11px; fill: #666 }
.paper { fill: #fff } .line { stroke: #ccc } .ours { fill: #2a7d4f } .theirs { fill: #9aa7b4 } .lost { fill: #c0562b }
@media (prefers-color-scheme: dark) {
 text { fill: #ddd } .small { fill: #999 } .paper { fill: #16191d } .line { stroke: #444 }
 .ours { fill: #4fb27c } .theirs { fill: #66727f } .lost { fill: #e07b4c } }
</style>"""


def _document(width: int, height: int, body: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, _STYLE, f'<rect class="paper" width="{width}" height="{height}"/>', *body, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def table_svg(cells: Sequence[Sequence[str]], title: str) -> str:
    """Return a table as SVG; the first row is its head, and a cell may have several lines."""
    widths = [
        24 + 7 * max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*cells, strict=True)
    ]
    heights = [14 + 16 * max(cell.count("\n") + 1 for cell in row) for row in cells]
    width = max(sum(widths), 8 * len(title)) + 20
    body, y = [_text(12, 22, title, "head")], 34
    for k, (row, height) in enumerate(zip(cells, heights, strict=True)):
        x = 12
        for cell, wide in zip(row, widths, strict=True):
            lines = cell.split("\n")
            kinds = ["head" if not k else "", *["small"] * (len(lines) - 1)]
            body += [_text(x, y + 18 + 16 * n, line, kinds[n]) for n, line in enumerate(lines)]
            x += wide
        y += height
        body.append(f'<line class="line" x1="12" x2="{width - 12}" y1="{y}" y2="{y}"/>')
    return _document(width, y + 14, body)


def _shown(microseconds: float) -> str:
    """Return a time with three digits, in the unit that suits it."""
    sizes = (("s", 1e6), ("ms", 1e3), ("us", 1.0))
    unit, size = next((found for found in sizes if microseconds >= found[1]), sizes[-1])
    return f"{microseconds / size:#.3g} {unit}".replace(". ", " ")


def bars_svg(rows: Sequence[tuple[str, Mapping[str, float]]], title: str) -> str:
    """Return pieces of work as groups of bars on a logarithmic scale; the first bar of a group is ours.

    Parameters
    ----------
    rows : sequence of (str, mapping)
        For each piece of work its name, and the microseconds of each contestant.
    title : str
        What stands above.
    """
    times = [time for _, group in rows for time in group.values()]
    low, high = math.log10(min(times)) - 0.2, math.log10(max(times))
    left, right, width = 190, 110, 860
    body, y = [_text(12, 22, title, "head"), _text(12, 40, "time, logarithmic; shorter is better", "small")], 52
    for work, group in rows:
        body.append(_text(12, y + 14, work, "head"))
        y += 20
        best = min(group.values())
        for k, (name, time) in enumerate(group.items()):
            long = (math.log10(time) - low) / max(high - low, 1e-9) * (width - left - right)
            kind = "theirs" if k else "ours" if time == best else "lost"
            body.append(_text(left - 8, y + 12, name, "small", "end"))
            body.append(f'<rect class="{kind}" x="{left}" y="{y + 2}" width="{max(long, 1):.1f}" height="12" rx="2"/>')
            body.append(_text(left + long + 6, y + 12, _shown(time), "small"))
            y += 17
        y += 8
    return _document(width, y + 6, body)
