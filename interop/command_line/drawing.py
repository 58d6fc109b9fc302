"""Tables and bars as SVG, from plain values; the pictures follow the reader's light or dark theme."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from xml.sax.saxutils import escape

from numbridge.command_line.work import Row

__all__ = ["bars_svg", "shown", "table_svg"]

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


def _part(width: int, height: int, body: Sequence[str], label: str) -> str:
    head = f'<svg class="nb-plot" role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}">'
    return "\n".join([f'<div class="nb-frame">{head}', *body, "</svg></div>", ""])


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


# Unit → the larger ones that figures are shown in, by how much of the unit they are.
_UNITS = {
    "us": (("s", 1e6), ("ms", 1e3), ("µs", 1.0)),
    "ms": (("s", 1e3), ("ms", 1.0)),
    "KiB": (("GiB", 2.0**20), ("MiB", 2.0**10), ("KiB", 1.0)),
}


def shown(value: float, unit: str) -> str:
    """Return a figure with three digits, in the unit that suits it."""
    if not value:
        return f"0 {_UNITS[unit][-1][0]}"
    name, size = next((found for found in _UNITS[unit] if value >= found[1]), _UNITS[unit][-1])
    return f"{value / size:#.3g} {name}".replace(". ", " ")


class _Scale:
    """A logarithmic scale over the figures of one unit; nothing is a line."""

    def __init__(self, rows: Sequence[Row], unit: str, width: int) -> None:
        figures = [value for row in rows if row.unit == unit for value in row.values.values() if value > 0] or [1.0]
        self._low, self._high = math.log10(min(figures)) - 0.2, math.log10(max(figures))
        self._width = width

    def length(self, value: float) -> float:
        if value <= 0:
            return 1.0
        return max((math.log10(value) - self._low) / max(self._high - self._low, 1e-9) * self._width, 1.0)


def bars_svg(
    rows: Sequence[Row], title: str, note: str = "", *, alone: bool = True, beside: Collection[str] = ()
) -> str:
    """Return pieces of work as groups of bars on a logarithmic scale for each unit.

    The first bar of a group is ours: green where no contestant's is shorter, and orange where one is.

    Parameters
    ----------
    rows : sequence of Row
        What was measured.
    title, note : str
        What stands above, large and small.
    alone : bool
        Whether the picture is a file, with colours and a title of its own; or part of a page, whose style sheet
        and headings have them.
    beside : collection of str
        The bars that belong to no contestant, and are drawn to compare with.
    """
    left, right, width = 190, 110, 860
    body, y = ([_text(12, 22, title, "head")], 24) if alone else ([], 0)
    for line in (*filter(None, [note]), "logarithmic; shorter is better"):
        y += 18
        body.append(_text(12, y, line, "small"))
    y += 12
    scales = {unit: _Scale(rows, unit, width - left - right) for unit in _UNITS}
    for row in rows:
        body.append(_text(12, y + 14, row.work, "head"))
        y += 20
        best = min(value for k, (name, value) in enumerate(row.values.items()) if not k or name not in beside)
        for k, (name, value) in enumerate(row.values.items()):
            long = scales[row.unit].length(value)
            kind = "theirs" if k else "ours" if value == best else "lost"
            body.append(_text(left - 8, y + 12, name, "small", "end"))
            body.append(f'<rect class="{kind}" x="{left}" y="{y + 2}" width="{long:.1f}" height="12" rx="2"/>')
            body.append(_text(left + long + 6, y + 12, shown(value, row.unit), "small"))
            y += 17
        y += 8
    return _document(width, y + 6, body) if alone else _part(width, y + 6, body, title)
