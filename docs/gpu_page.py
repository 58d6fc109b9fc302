"""Writes what GPUs have run and measured, from what `tests/gpu/run.sh` wrote: docs/benchmarks/<gpu>.json, one for each GPU.

What `tests/gpu/bench.py` knows and no such file has, is said to be not yet run, and so is everything where there is no file. That
program is read, and not imported, because it imports torch.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numbridge.command_line.cuda_work import cuda_works
from numbridge.command_line.drawing import bars_svg, shown
from numbridge.command_line.work import Row

__all__ = ["NOT_YET_RUN", "limits", "ran", "results", "write"]

ROOT = Path(__file__).parents[1]
NOT_YET_RUN = "not yet run"
NO_BREAK = "\N{NO-BREAK SPACE}"
# What a row compares with that is nobody else: the same in other words, or a part of the work.
NO_CONTESTANTS = (
    "numbridge, one id after the other",
    "numbridge, of cupy arrays",
    "a copy, which moves 2/3 of it",
    "a copy, which moves as much",
    "bare cuLaunchKernel",
    "bare, parameters in one piece",
    "bare, of its CUfunction",
    "bare, of RawKernel's",
)
OUTCOMES = ("passed", "failed", "skipped", "not run")
ALWAYS = ("passed", "failed")


def results(benchmarks: Path) -> list[dict[str, Any]]:
    """Return what was written on machines with a GPU."""
    found = [json.loads(path.read_text()) for path in sorted(benchmarks.glob("*.json"))]
    return [facts for facts in found if facts.get("gpu")]


def limits() -> dict[str, dict[str, float]]:
    """Return what ratios must be, at most: work → contestant → limit."""
    for node in ast.parse((ROOT / "tests" / "gpu" / "bench.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LIMITS":
            found: dict[str, dict[str, float]] = eval(compile(ast.Expression(node.value), "bench.py", "eval"), {})
            return found
    raise LookupError("tests/gpu/bench.py has no LIMITS")


def _plain(text: str) -> str:
    """Return text as it is, for a table or a list: one line, in which nothing is Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>|$~])", r"\\\1", text.partition("\n")[0])


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _work(name: str) -> str:
    return _plain(name.removeprefix("CUDA: "))


def _figure(row: Mapping[str, Any], whose: str) -> str:
    """Return a figure that stays on one line with its unit."""
    return shown(row[whose], row["unit"]).replace(" ", NO_BREAK)


def _at_most(limit: float | None) -> str:
    return "" if limit is None else f"≤{NO_BREAK}{limit:.3g}"


def _rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every row, also those that should be there and are not, work by work."""
    rows, works, most = list(facts.get("rows", [])), [work.name for work in cuda_works()], limits()
    for work in works:
        there = {row["against"] for row in rows if row["work"] == work}
        # Where a whole piece of work failed, a row without a contestant says why.
        failed = any(row["against"] is None and "error" in row for row in rows if row["work"] == work)
        wanted = [] if failed else most.get(work, {None: None} if not there else {}).items()
        rows += [
            {"work": work, "against": name, "limit": limit, "error": None}
            for name, limit in wanted
            if name not in there
        ]
    order = {work: k for k, work in enumerate(works)}
    return sorted(rows, key=lambda row: order.get(row["work"], len(order)))


def _missing(row: Mapping[str, Any]) -> bool:
    return "error" in row and row["error"] is None


def _compared(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows that have a contestant as a table."""
    lines = []
    for row in rows:
        limit = _at_most(row.get("limit"))
        start = _work(row["work"]), _plain(row["against"])
        if _missing(row):
            lines.append([*start, "", "", "", limit, NOT_YET_RUN])
            continue
        holds = {True: "yes", False: "**missed**", None: ""}[row["holds"]]
        lines.append([*start, _figure(row, "ours"), _figure(row, "theirs"), f"{row['ratio']:.3f}", limit, holds])
    return _table(["work", "against", "ours", "theirs", "ratio", "must be", "holds"], lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _judged(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many limits are kept."""
    judged = [row["holds"] for row in rows if row.get("holds") is not None]
    return f"{_count(len(judged), 'limit')}, {sum(judged)} are kept and {len(judged) - sum(judged)} missed"


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the table of comparisons comes to, and what is not in it."""
    sentences = []
    measured = any("ratio" in row for row in rows)
    if measured:
        sentences.append(f"Of {_judged(rows)}")
    if waiting := sum(map(_missing, rows)):
        sentences.append(f"{_count(waiting, 'row')} {'is' if waiting == 1 else 'are'} {NOT_YET_RUN}")
    if measured and not any(re.search(r"\b(warp|wp)\b", row["against"] or "", re.IGNORECASE) for row in rows):
        sentences.append("No row compares with Warp")
    return "".join(f"{sentence}. " for sentence in sentences).rstrip()


def _bar(name: str) -> str:
    """Return a name that fits beside a bar."""
    return name.removeprefix("numbridge, ")


def _plots(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Draw what was compared: times of the host, and of the device, each on a scale of its own."""
    beside = [_bar(name) for name in NO_CONTESTANTS]
    for title, on_device in (("on the host", False), ("on the device", True)):
        works = {work.name for work in cuda_works() if work.on_device is on_device}
        found: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["work"] in works and "ratio" in row:
                name = row["work"].removeprefix("CUDA: ")
                found.setdefault(name, {"numbridge": row["ours"]})[_bar(row["against"])] = row["theirs"]
        if found:
            drawn = bars_svg([Row(*one) for one in found.items()], title, alone=False, beside=beside)
            yield f"Times {title}:\n\n```{{raw}} html\n{drawn}```\n"


def _measurements(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    compared = [row for row in rows if row["against"] is not None and ("ratio" in row or _missing(row))]
    alone = [row for row in rows if row["against"] is None and ("ours" in row or _missing(row))]
    failed = [row for row in rows if row.get("error")]
    yield "### Against others\n"
    yield _verdict(rows) + "\n"
    yield _compared(compared)
    yield from _plots(compared)
    if alone:
        yield "### With nobody to compare with\n"
        lines = [[_work(row["work"]), NOT_YET_RUN if _missing(row) else _figure(row, "ours")] for row in alone]
        yield _table(["work", "ours"], lines)
    if failed:
        yield "### What could not be measured\n"
        lines = [[_work(row["work"]), _plain(row["against"] or ""), _plain(row["error"])] for row in failed]
        yield _table(["work", "against", "why"], lines)


def _what(file: str) -> str:
    """Return the first line of what a file of tests says that it is."""
    path = ROOT / file
    text = ast.get_docstring(ast.parse(path.read_text())) if path.is_file() else None
    return (text or "").partition("\n")[0]


def _total(files: Mapping[str, Mapping[str, int]], what: str) -> int:
    return sum(counts.get(what, 0) for counts in files.values())


def _said_of_tests(files: Mapping[str, Mapping[str, int]]) -> str:
    """Return what all tests came to."""
    parts = [f"{_total(files, what)} {what}" for what in OUTCOMES if what in ALWAYS or _total(files, what)]
    return f"{_count(_total(files, 'tests'), 'test')}, of which {', '.join(parts[:-1])} and {parts[-1]}"


def _failures(failures: Mapping[str, str]) -> Iterator[str]:
    """Return failed tests with what they said, as a list; the cases of one test that said the same are one item."""
    found: dict[tuple[str, str], list[str]] = {}
    for test, said in failures.items():
        name, _, case = test.partition("[")
        found.setdefault((name.removeprefix("tests/gpu/"), said.partition("\n")[0]), []).append(case.removesuffix("]"))
    for (name, said), cases in found.items():
        of = f" ({', '.join(cases)})" if any(cases) else ""
        yield f"- `{name}`{_plain(of)}: {_plain(said)}\n"


def _tests(tests: Mapping[str, Any]) -> Iterator[str]:
    files = tests.get("files", {})
    yield "### Tests\n"
    yield f"{_said_of_tests(files)}.\n" if files else f"The tests are {NOT_YET_RUN}.\n"
    columns = [what for what in OUTCOMES if what in ALWAYS or _total(files, what)]
    here = (path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    lines = []
    for file in sorted({*files, *here}):
        counts = files.get(file)
        figures = [str(counts.get(what, 0)) for what in ("tests", *columns)] if counts else [NOT_YET_RUN]
        lines.append([f"`{Path(file).name}`", _plain(_what(file)), *figures, *[""] * (len(columns) + 1 - len(figures))])
    yield _table(["file", "what it is about", "tests", *columns], lines)
    if tests.get("failures"):
        yield "What failed, and said:\n"
        yield "".join(_failures(tests["failures"]))
    yield from _sanitizers(tests)


def _sanitizers(tests: Mapping[str, Any]) -> Iterator[str]:
    """Say what compute-sanitizer's tools have looked at, and what they reported."""
    found = tests.get("sanitizers", {})
    if not found:
        yield f"`compute-sanitizer` is {NOT_YET_RUN} here.\n"
    for tool, facts in found.items():
        ran = facts["tests"] - facts["not run"]
        reports = [f"{count} times `{what}`" for what, count in facts["reports"].items()]
        failed = f", of which {len(facts['failures'])} failed or took too long there" if facts["failures"] else ""
        yield (
            f"`compute-sanitizer --tool {tool}` looked at {ran} of {_count(facts['tests'], 'test')}{failed}, and reported "
            f"{'; '.join(reports) if reports else 'nothing'}.\n"
        )
        if facts["failures"]:
            yield "".join(_failures(facts["failures"]))


def _versions(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)


def _when(facts: Mapping[str, Any]) -> str:
    commit = f" at commit `{facts['commit'][:12]}`" if facts.get("commit") else ""
    return f"{facts['date'][:10]}{commit}"


def ran(found: Sequence[Mapping[str, Any]]) -> str:
    """Return which GPUs have run what, and when, a sentence for each."""
    if not found:
        return f"No GPU: the tests and benchmarks for one are {NOT_YET_RUN}.\n"
    sentences = []
    for facts in found:
        files = facts["tests"].get("files", {})
        tests = _said_of_tests(files) if files else f"tests {NOT_YET_RUN}"
        measured = any("ratio" in row for row in facts["rows"])
        rows = f"of the benchmarks' {_judged(facts['rows'])}" if measured else f"benchmarks {NOT_YET_RUN}"
        sentences.append(f"{facts['gpu']}, {_when(facts)}: {tests}; {rows}.")
    return "\n\n".join(sentences) + "\n"


def _part(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {facts['gpu']}\n"
    driver = f", driver {facts['driver']}" if facts.get("driver") else ""
    yield f"Measured on {_when(facts)}, on one {facts['gpu']}{driver}, with Python {facts['python']}; {_versions(facts)}.\n"
    if facts["tests"].get("date"):
        yield f"The tests ran on {_when(facts['tests'])}.\n"
    yield from _tests(facts["tests"])
    yield from _measurements(_rows(facts))


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the part of each GPU; without any, what would be there."""
    if found:
        return "\n".join(text for facts in found for text in _part(facts))
    return "\n".join([f"## On any GPU: {NOT_YET_RUN}\n", *_tests({}), *_measurements(_rows({}))])


def write(benchmarks: Path, made: Path) -> None:
    """Write the page's generated part, and the sentence that other pages show."""
    found = results(benchmarks)
    (made / "gpu.md").write_text(page(found))
    (made / "gpu_ran.md").write_text(ran(found))
