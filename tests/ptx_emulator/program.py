"""Reads PTX text: its variables, its functions and their statements (PTX ISA, chapters 4 to 7 and 11)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

BITS = {
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "pred": 1,
    "b128": 128,
}
_SPACE = re.compile(r"\s*")
_COMMENT = re.compile(r"//[^\n]*")
_LABEL = re.compile(r"([$\w]+):(?!:)")
_FUNCTION = re.compile(r"(?:\.(visible|extern|weak)\s+)?\.(entry|func)\b")
_VARIABLE = re.compile(r"(?:\.\w+\s+)*?\.(global|const|shared)\b([^;]*);")
_POINTER = r"(?:\.ptr\s+(?:\.(?:global|const|local|shared)\s+)?(?:\.align\s+\d+\s+)?)?"
_DECLARED = re.compile(rf"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+{_POINTER}([\w$%]+)(?:\[(\d*)\])?")


@dataclass(frozen=True)
class Variable:
    """A variable or parameter: its name, its size and alignment in bytes, and what it begins with."""

    space: str
    name: str
    size: int
    align: int
    initial: bytes | None = None

    @property
    def room(self) -> int:
        """The bytes that it gets: dynamic shared memory has no size in PTX, and gets as much as a block may have on sm_90."""
        return self.size or 227 << 10


@dataclass(frozen=True)
class Statement:
    """One statement of a body: ``kind`` is open, close, label, directive or instruction."""

    kind: str
    text: str
    line: int
    guard: str = ""


@dataclass
class Function:
    """A kernel or a device function; `body` is None where it is only declared."""

    name: str
    is_kernel: bool
    results: list[Variable]
    parameters: list[Variable]
    body: list[Statement] | None


@dataclass
class Program:
    """What a PTX text holds."""

    text: str
    variables: list[Variable] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)

    def kernel(self, name: str) -> Function:
        """Return a kernel by its name."""
        return next(f for f in self.functions if f.is_kernel and f.name == name)


def parse(text: str) -> Program:
    """Read a PTX text."""
    program = Program(text)
    plain = _COMMENT.sub("", text)
    at = 0
    while at < len(plain):
        rest = plain[at:]
        skipped = re.match(r"\s+|\.(?:version|target|address_size)[^\n]*", rest)
        if skipped:
            at += skipped.end()
        elif found := _FUNCTION.match(rest):
            function, length = _function(rest, found, plain.count("\n", 0, at) + 1)
            program.functions.append(function)
            at += length
        elif found := _VARIABLE.match(rest):
            program.variables.append(_variable(found[1], found[2]))
            at += found.end()
        else:
            raise NotImplementedError(f"PTX line {plain.count(chr(10), 0, at) + 1}: {rest[:80]!r}")
    return program


def _variable(space: str, text: str) -> Variable:
    declared, _, initial = text.partition("=")
    found = declarations(space, declared)[0]
    data = None
    if initial:
        items = [int(item, 0) for item in initial.strip().strip("{}").split(",")]
        each = found.size // max(len(items), 1) if "[" not in declared else BITS[_DECLARED.search(declared)[2]] // 8
        data = b"".join((item % (1 << 8 * each)).to_bytes(each, "little") for item in items).ljust(found.size, b"\0")
    return Variable(space, found.name, found.size, found.align, data)


def declarations(space: str, text: str) -> list[Variable]:
    """Return what a list of declarations names, such as ``.param .u64 a, .param .align 8 .b8 b[16]``."""
    found = []
    for part in text.split(","):
        match = _DECLARED.search(part.replace(f".{space}", "", 1))
        if match is None:
            raise NotImplementedError(f"the declaration {part!r}")
        align, kind, name, count = match.groups()
        each = BITS[kind] // 8
        found.append(Variable(space, name, each * (1 if count is None else int(count or 0)), int(align or each)))
    return found


def registers(text: str) -> Iterator[tuple[str, int]]:
    """Yield the names and widths that a ``.reg`` directive declares."""
    kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.S).groups()
    for name in names.split(","):
        stem, count = re.match(r"([\w$%]+)(?:<(\d+)>)?", name.strip()).groups()
        for each in [stem] if count is None else [f"{stem}{k}" for k in range(int(count))]:
            yield each, BITS[kind]


def _function(text: str, found: re.Match[str], line: int) -> tuple[Function, int]:
    head = re.compile(r"\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?\s*([^{;]*)([{;])").match(text, found.end())
    results, name, parameters, _, ends = head.groups()
    lists = [declarations("param", part) if part and part.strip() else [] for part in (results, parameters)]
    function = Function(name, found[2] == "entry", *lists, body=None)
    if ends == ";":
        return function, head.end()
    function.body = []
    depth = 1
    for statement, end in _statements(text, head.end(), line):
        depth += {"open": 1, "close": -1}.get(statement.kind, 0)
        if depth == 0:
            return function, end
        function.body.append(statement)
    raise ValueError(f"the function {name!r} does not end")


def _statements(text: str, at: int, first: int) -> Iterator[tuple[Statement, int]]:
    """Yield each statement with the place behind it."""
    line, counted = first, 0
    while True:
        at = _SPACE.match(text, at).end()
        line, counted = line + text.count("\n", counted, at), at
        if text[at] in "{}":
            yield Statement("open" if text[at] == "{" else "close", "", line), at + 1
            at += 1
        elif label := _LABEL.match(text, at):
            yield Statement("label", label[1], line), label.end()
            at = label.end()
        else:
            end = text.index(";", at)
            guard, body = re.match(r"(?:@(!?[\w$%]+)\s+)?(.*)", " ".join(text[at:end].split()), re.S).groups()
            kind = "directive" if body.startswith(".") else "instruction"
            yield Statement(kind, body, line, guard or ""), end + 1
            at = end + 1
