"""Programs as Python text that the back ends compile: lines, and the text of each operation."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from numba import types

from numbridge.kernels.adjoint.inference import element_of
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Compute,
    Custom,
    Effect,
    If,
    Load,
    Loop,
    Meet,
    Op,
    Program,
    Raise,
    Region,
    Shape,
    Store,
    Value,
    defined_by,
    walk,
)
from numbridge.kernels.cpu_backend.blocks.source import CREW, THREAD
from numbridge.kernels.element_types.elements import scalar_in_memory
from numbridge.kernels.language.parsing import parsed_expression
from numbridge.kernels.language.rewriting import CUDA_FUNCTION, CUDA_MODULE, LIBDEVICE

__all__ = [
    "Lines",
    "Values",
    "element",
    "field_views",
    "for_crew",
    "for_cuda",
    "for_reader",
    "index_text",
    "meeting",
    "moves",
    "operation",
    "own_array",
    "program_text",
]


_BRANCH = re.compile(r"^( *if )(\w+):$", re.MULTILINE)
_MEETING = re.compile(rf"_nb_block_(\w+)\({CREW}, {THREAD}(?:, )?")
_FUNCTION = re.compile(rf"\b{CUDA_FUNCTION}(?=[a-z]+\()")
_LIBDEVICE = re.compile(rf"\b{LIBDEVICE}(?=\w+\()")
_PRINTED = re.compile(r"_nb_print\(.*\)$", re.MULTILINE)
_SHARED = re.compile(rf"_nb_shared\({CREW}, \d+, \(\), ")


class Values(Protocol):
    """A set of values."""

    def __contains__(self, value: object) -> bool:
        """Tell whether a value is in it."""


class Lines:
    """Lines of Python at a depth."""

    def __init__(self, depth: int = 1) -> None:
        self.lines: list[str] = []
        self._depth = depth

    def add(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append a compound statement around what is appended meanwhile."""
        self.add(head)
        before = len(self.lines)
        self._depth += 1
        yield
        if len(self.lines) == before:
            self.add("pass")
        self._depth -= 1

    @contextmanager
    def optional(self, head: str) -> Iterator[None]:
        """Append a compound statement, unless nothing is appended meanwhile."""
        self.add(head)
        before = len(self.lines)
        self._depth += 1
        yield
        self._depth -= 1
        if len(self.lines) == before:
            self.lines.pop()


def index_text(index: Sequence[Value]) -> str:
    """Return an index as one expression."""
    names = [value.name for value in index]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def element(array: str, index: Sequence[Value]) -> str:
    """Return the text of an element."""
    return f"{array}[{', '.join(value.name for value in index) or '()'}]"


def operation(op: Op) -> str:
    """Return the text of an operation that holds no regions."""
    match op:
        case Compute():
            return f"{op.result.name} = {op.function.text.format(*(a.name for a in op.arguments))}"
        case Shape():
            return f"{op.result.name} = {op.array.name}.shape[{op.axis}]"
        case Load():
            held = element(op.array.name, op.index)
            return f"{op.result.name} = {f'_nb_{op.array.dtype}({held})' if op.array.narrow else held}"
        case Store():
            return f"{element(op.array.name, op.index)} = {op.value.name}"
        case Atomic():
            given = ", ".join([op.array.name, index_text(op.index), *(v.name for v in op.values)])
            return f"{op.result.name} = _nb_atomic_{op.operation}({given})"
        case Meet():
            called = meeting(op.operation, *(v.name for v in op.arguments))
            return called if op.result is None else f"{op.result.name} = {called}"
        case Effect():
            return op.text.format(*(a.name for a in op.arguments))
        case Raise():
            return op.text
    raise TypeError(f"{op!r} is no simple operation")


def meeting(operation: str, *arguments: str) -> str:
    """Return the call of an operation by which threads of a block wait for each other."""
    return f"_nb_block_{operation}({', '.join([CREW, THREAD, *arguments])})"


def moves(lines: Lines, pairs: Sequence[tuple[Value, Value]]) -> None:
    """Assign several values at once: none is overwritten before it has been read."""
    pairs = [(target, source) for target, source in pairs if target.name != source.name]
    targets = {target.name for target, _ in pairs}
    if any(source.name in targets for _, source in pairs):
        for k, (_, source) in enumerate(pairs):
            lines.add(f"_nb_move_{k} = {source.name}")
        for k, (target, _) in enumerate(pairs):
            lines.add(f"{target.name} = _nb_move_{k}")
    else:
        for target, source in pairs:
            lines.add(f"{target.name} = {source.name}")


def own_array(lines: Lines, name: str, array: Array, *, zero: str = "", place: int | None = None) -> None:
    """Write what makes an array of the thread's, filled with `zero` if that is given, or of the block's, at a `place`."""
    held = element_of(array.dtype)
    extents: object = array.extents[0] if len(array.extents) == 1 else array.extents
    dtype = array.dtype_text
    if held is not None:
        extents, dtype = (*array.extents, held.count), f"_nb_{scalar_in_memory(held).__name__}"
    memory = f"_nb_local_array({extents}, {dtype})"
    if array.kind == "shared":
        memory = f"_nb_shared({CREW}, {array.place if place is None else place}, (), {extents}, {dtype})"
    if array.is_dynamic:
        memory = f"_nb_dynamic({CREW}, {dtype})"
    lines.add(f"{name} = {memory if held is None else f'_nb_elements({memory}, {array.dtype_text})'}")
    if zero or array.zeroed:
        lines.add(f"{name}[...] = {zero or (0 if held is None else f'{array.dtype_text}()')}")


def field_views(lines: Lines, fields: Sequence[Array], prefix: str = "") -> None:
    """Write what makes arrays of the fields of records, or of their adjoints."""
    for array in fields:
        owner = f"{prefix}{array.parameter}"
        lines.add(f"{prefix}{array.name} = _nb_field({owner}, {array.leaf})  # {array.label}")


def for_cuda(text: str) -> str:
    """Return generated text with what numba.cuda calls memory and meetings; a name that is replaced is reserved.

    Numba must not see which branches are never taken: it would drop them, and then not know the variables that they define.
    """
    text = _BRANCH.sub(r"\1_nb_decided(\2):", text)
    text = _PRINTED.sub(_printed, text)
    text = _LIBDEVICE.sub(f"{CUDA_MODULE}.libdevice.", _FUNCTION.sub(f"{CUDA_MODULE}.", text))
    text = text.replace("_nb_local_array(", f"{CUDA_MODULE}.local.array(")
    text = text.replace("_nb_add_in_block(", "_nb_add(")
    text = _SHARED.sub(f"{CUDA_MODULE}.shared.array(", _MEETING.sub(rf"{CUDA_MODULE}.\1(", text))
    if THREAD not in text:
        return text
    at, size = (f"{CUDA_MODULE}.{what}" for what in ("threadIdx", "blockDim"))
    number = f"    {THREAD} = {at}.x + {size}.x * ({at}.y + {size}.y * {at}.z)"
    return text.replace("):\n", f"):\n{number}\n", 1)


def _printed(found: re.Match[str]) -> str:
    """Return what numba.cuda calls printing: it takes strings and numbers in turn."""
    call = parsed_expression(found[0])
    assert isinstance(call, ast.Call)
    template, numbers = call.args
    assert isinstance(template, ast.Call) and isinstance(numbers, ast.Call)
    (text,), (values,) = template.args, numbers.args
    assert isinstance(values, ast.Tuple)
    given = iter(values.elts)
    pieces = json.loads(ast.literal_eval(text))
    made = [next(given) if piece is None else ast.Constant(piece) for piece in pieces]
    return f"print({', '.join(map(ast.unparse, made))})"


def for_crew(text: str) -> str:
    """Return the text of a function as that of a coroutine on the CPU, for a thread of a block."""
    head, body = text.split("):\n", 1)
    head = head.replace("(", f"({CREW}, {THREAD}, ", 1)
    end = f"_nb_finish({CREW}, {THREAD})"
    lines = [f"    _nb_start({CREW}, {THREAD})", body, f"    {end}"]
    # One worker runs all threads of a block, so that none can come in between.
    made = "\n".join(lines).replace("_nb_add_in_block(", "_nb_add_private(")
    made = made.replace("_nb_stack_new()", f"_nb_stack_new({CREW})").replace("_nb_stack_", "_nb_crew_stack_")
    return f"{head}):\n{made}"


def for_reader(text: str) -> str:
    """Return text for a thread of a block as a person reads it, with what numba.cuda calls memory and meetings."""
    text = re.sub(rf" *_nb_(?:start|finish)\({CREW}, {THREAD}\)\n?", "", text)
    text = text.replace(f"({CREW}, {THREAD}, _nb_i", "(_nb_i", 1).replace("_nb_crew_stack_", "_nb_stack_")
    text = text.replace(f"_nb_stack_new({CREW})", "_nb_stack_new()")
    return _SHARED.sub("cuda.shared.array(", _MEETING.sub(r"cuda.\1(", text))


class Primal:
    """Writes a program as it is."""

    def __init__(self, program: Program, lines: Lines) -> None:
        self.program = program
        self.lines = lines

    def region(self, region: Region) -> None:
        """Write a region."""
        for op in region:
            self._op(op)

    def _op(self, op: Op) -> None:
        match op:
            case If():
                for head, inner, side in ((f"if {op.condition.name}:", op.then, 0), ("else:", op.orelse, 1)):
                    with self.lines.block(head):
                        self.region(inner)
                        moves(self.lines, [(m.result, (m.then, m.orelse)[side]) for m in op.merges])
            case Loop():
                self._loop(op)
            case Custom():
                self.region(op.body)
                moves(self.lines, list(zip(op.results, op.inner, strict=True)))
            case _:
                self.lines.add(operation(op))

    def _loop(self, op: Loop) -> None:
        moves(self.lines, [(c.phi, c.initial) for c in op.carried])
        with self.lines.block(loop_head(op)):
            start_trip(self.lines, op)
            self.region(op.test)
            if op.condition is not None:
                self.lines.add(f"if not {op.condition.name}: break")
            self.region(op.body)
            moves(self.lines, [(c.phi, c.following) for c in op.carried])
            if op.leave is not None:
                self.lines.add(f"if {op.leave.name}: break")
        moves(self.lines, [(c.result, c.phi) for c in op.carried])


def loop_head(op: Loop) -> str:
    """Return the first line of a loop."""
    if op.index is None:
        return "while True:"
    counter = op.index.name if op.index.type == types.int64 else f"_nb_at_{op.index.name}"
    start, stop, step = op.bounds
    given = [stop] if (start.constant, step.constant) == (0, 1) else [start, stop] if step.constant == 1 else op.bounds
    return f"for {counter} in range({', '.join(bound.name for bound in given)}):"


def start_trip(lines: Lines, op: Loop) -> None:
    """Give the loop's variable its type, where that is not the counter's."""
    if op.index is not None and op.index.type != types.int64:
        lines.add(f"{op.index.name} = _nb_{op.index.type}(_nb_at_{op.index.name})")


def program_text(program: Program, name: str) -> str:
    """Return a program as a function."""
    lines = Lines()
    field_views(lines, program.fields)
    for array in program.locals:
        own_array(lines, array.name, array)
    Primal(program, lines).region(program.body)
    lines.add("pass")
    parameters = [v.name for v in program.hidden] + [p.name for p in program.parameters]
    return "\n".join(["@_nb_device", f"def {name}({', '.join(parameters)}):", *lines.lines])


def computes(region: Region, values: Values) -> bool:
    """Tell whether a region, with what it holds, defines one of some values."""
    return any(value in values for op in walk(region) for value in defined_by(op))
