"""The commands, their options and what they print; the work is done by the other modules of this room.

Errors are one line, unless ``--debug`` asks for the traceback. Tables go to standard output, progress and errors to standard
error. Exit statuses: 0, 1 for what failed, 2 for a command line that cannot be understood.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from typer.exceptions import TyperException

from numbridge.bridges.installed import version
from numbridge.command_line import cache_files
from numbridge.command_line import information as facts

if TYPE_CHECKING:
    from numbridge.command_line.work import Row

__all__ = ["app", "main"]

app = typer.Typer(
    name="numbridge",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="What this installation of numbridge is and has, whether it works, and how fast it is.",
)


def _in_a_folder(file: Path | None) -> Path | None:
    """Refuse a file that could not be written, before minutes are spent on what it is to hold."""
    if file is not None and not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        raise typer.BadParameter(f"{str(file.parent)!r} is no folder that can be written to")
    return file


def _two_files(output: Path | None) -> Path | None:
    """Refuse a name of which one of the two files is a folder."""
    for file in [] if output is None else [_beside(output, ".json"), _beside(output, ".svg")]:
        if file.is_dir():
            raise typer.BadParameter(f"{str(file)!r} is a folder; name another file")
    return _in_a_folder(output)


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Svg = Annotated[
    Path | None, typer.Option("--svg", help="Also draw it into this file.", dir_okay=False, callback=_in_a_folder)
]


def _console(*, stderr: bool = False) -> Console:
    """Return where to print; without a terminal, lines are long enough for the tables."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=max(found.width, 120))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = _console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _show_version(asked: bool) -> None:
    if asked:
        print(version("numbridge"))
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """What this installation of numbridge is and has, whether it works, and how fast it is."""
    # The frameworks warn of much that is no business of a table's.
    if not debug:
        warnings.simplefilter("ignore")
        logging.getLogger("jax").setLevel(logging.WARNING)


@app.command()
def info(as_json: Json = False) -> None:
    """Versions, devices, the cache, threads, and what is missing with the line that brings it."""
    found = facts.information()
    _print_json(found) if as_json else facts.show(_console(), found)


@app.command()
def matrix(
    as_json: Json = False,
    svg: Svg = None,
    device: Annotated[str, typer.Option(help="Where the arrays lie: cpu, cuda or such as cuda:1.")] = "cpu",
) -> None:
    """Every pair of frameworks: which dtypes share memory, why others do not, and what a conversion costs.

    Fails if anything was copied.
    """
    from numbridge.command_line import pairs
    from numbridge.command_line.drawing import table_svg

    names, missing = pairs.usable()
    found = pairs.measure(names, device)
    report = pairs.report(found, missing, device)
    if svg is not None:
        svg.write_text(table_svg(pairs.cells(found), f"zero-copy dtypes on {device}, and the time of a conversion"))
    _print_json(report) if as_json else pairs.show(_console(), report, found)
    if not report["zero_copy"]:
        raise typer.Exit(1)


@app.command()
def check(as_json: Json = False) -> None:
    """Test this installation: each framework into a kernel, gradients, JAX, CUDA if there.

    Fails if a check does. What is not installed is skipped.
    """
    from numbridge.command_line import checks

    outcomes = []
    listed = checks.checks()
    with _progress() as progress:
        task = progress.add_task("checking", total=len(listed))
        for one in listed:
            progress.update(task, description=one.name)
            outcomes.append(checks.run(one))
            progress.advance(task)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    if as_json:
        _print_json({"passed": not failed, "checks": [asdict(outcome) for outcome in outcomes]})
    else:
        _show_outcomes(outcomes, len(failed))
    if failed:
        raise typer.Exit(1)


def _show_outcomes(outcomes: Sequence[Any], failed: int) -> None:
    colours = {"passed": "green", "failed": "bold red", "skipped": "dim"}
    table = Table("check", "", "seconds", Column("what was seen", overflow="fold"))
    for outcome in outcomes:
        state = f"[{colours[outcome.state]}]{outcome.state}[/]"
        detail = escape(outcome.detail.partition("\n")[0])
        table.add_row(outcome.name, state, f"{outcome.seconds:.2f}", detail)
    console = _console()
    console.print(table)
    skipped = sum(outcome.state == "skipped" for outcome in outcomes)
    passed = len(outcomes) - failed - skipped
    console.print(f"{passed} passed, {failed} failed, {skipped} skipped", style="red" if failed else "green")


@app.command()
def bench(
    as_json: Json = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write OUTPUT.json and OUTPUT.svg.", dir_okay=False, callback=_two_files),
    ] = None,
    only: Annotated[str, typer.Option(help="Measure only work whose name contains this.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Take fewer rounds.")] = False,
) -> None:
    """Compare with whatever of Warp, tvm-ffi, NumPy, Numba, torch, JAX, CuPy and Triton is installed: in turns, on the CPU, and
    on a CUDA device if there is one. The exit status is 1 if something could not be measured that should have been."""
    from numbridge.command_line import comparison
    from numbridge.command_line.drawing import bars_svg

    rounds = 3 if quick else 11
    rows, missing, failed = _measured(only, rounds)
    found = comparison.facts(rows, missing, rounds) | {"failed": failed}
    if output is not None:
        _beside(output, ".json").write_text(json.dumps(found, indent=1) + "\n")
        if rows:
            _beside(output, ".svg").write_text(bars_svg(rows, f"numbridge, {found['date']}", found["machine"]))
    _print_json(found) if as_json else _show_rows(found)
    if failed:
        raise typer.Exit(1)


def _beside(output: Path, suffix: str) -> Path:
    """Return the file of a name and a suffix; what follows another point is part of the name, as in ``run-1.2``."""
    name = output.stem if output.suffix in (".json", ".svg") else output.name
    return output.with_name(f"{name}{suffix}")


def _measured(only: str, rounds: int) -> tuple[list[Row], dict[str, str], dict[str, str]]:
    from numbridge.command_line import comparison

    rows, failed, works = [], {}, comparison.works()
    wanted = [work for work in works if only in work.name]
    if not wanted:
        listed = "\n  ".join(work.name for work in works)
        raise typer.BadParameter(f"--only {only!r} is in no name of what is measured, which is\n  {listed}")
    missing = {work.name: work.missing for work in wanted if work.missing is not None}
    with _progress() as progress:
        task = progress.add_task("measuring", total=len(wanted))
        for work in wanted:
            progress.update(task, description=work.name)
            if work.missing is None:
                try:
                    rows += work.rows(rounds)
                except Exception as error:  # noqa: BLE001 - what a peer raises must not lose what others have measured
                    failed[work.name] = f"{type(error).__name__}: {error}"
            progress.advance(task)
    return rows, missing, failed


def _show_rows(found: dict[str, Any]) -> None:
    table = Table("work", "contestant", "figure", "ours / theirs", title=f"medians of {found['rounds']} rounds")
    for row in found["rows"]:
        (_, ours), *_ = row["values"].items()
        for k, (name, value) in enumerate(row["values"].items()):
            colour = "red" if ours > value else "green"
            ratio = f"[{colour}]{ours / value:.3f}[/]" if k and value else ""
            table.add_row("" if k else row["work"], name, f"{value:.4g} {row['unit']}", ratio)
    console = _console()
    console.print(table)
    console.print(", ".join(f"{name} {version}" for name, version in found["versions"].items() if version))
    for work, why in found["missing"].items():
        console.print(f"{work}: {why}", markup=False, highlight=False)
    for work, why in found["failed"].items():
        console.print(f"{work} failed: {why}", markup=False, highlight=False, style="red")


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove what numbridge has stored there.")] = False,
    as_json: Json = False,
) -> None:
    """Where compiled code is kept, and how much of it there is; with --clear, remove it."""
    found = cache_files.clear() if clear else cache_files.contents()
    if as_json:
        _print_json(found | {"cleared": clear})
        return
    console = _console()
    for name, text in cache_files.lines(found):
        console.print(f"{name:<7} {text}", markup=False, highlight=False, soft_wrap=True)
    if clear:
        console.print("removed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = app(given, prog_name="numbridge", standalone_mode=False)
    except TyperException as error:
        show = getattr(error, "show", None)
        show() if show is not None else print(f"error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", 2))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if "--debug" in given:
            raise
        name = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        print(f"error: {name}{error}\n(numbridge --debug ... shows where)", file=sys.stderr)
        return 1
    return int(status or 0)
