"""Translates the instructions at which threads meet: each hands its operands to the scheduler, and gets an answer.

What the answers are is told in `meetings`, and who waits for whom in `scheduling`.
"""

from __future__ import annotations

from typing import Any

from ptx_emulator.instructions import Instruction, handles
from ptx_emulator.meetings import Meeting, Scope


def meet(
    body: Any, it: Instruction, scope: Scope, *given: str, mask: str = "0", aligned: bool = False
) -> tuple[str, str]:
    """Let the thread wait for others, and return the word and the predicate that it gets; what is given are 64-bit values."""
    operation = ".".join([it.operation, *(each for each in it.modifiers if each not in ("cta", "aligned"))])
    number = body.module.meeting(Meeting(operation, it.line, scope, aligned))
    words = ", ".join(f"i64 {value}" for value in [str(number), mask, *given, "0", "0", "0"][:5])
    body.do(f"call void @nb_meet(ptr %ctx, {words})")
    return body.word("answer"), body.emit(f"trunc i64 {body.word('holds')} to i1")


def _wide(body: Any, operand: str, kind: str) -> str:
    """Return an operand as a 64-bit value."""
    if kind == "pred":
        value = body.read(operand.lstrip("!"), kind)
        value = body.emit(f"xor i1 {value}, true") if operand.startswith("!") else value
        return body.emit(f"zext i1 {value} to i64")
    value = body.read(operand, kind)
    return value if kind == "b64" else body.emit(f"zext i32 {value} to i64")


def _write_word(body: Any, target: str, word: str) -> None:
    body.write(target, body.emit(f"trunc i64 {word} to i32"), "b32")


@handles("shfl", modifiers="sync up down bfly idx")
def _shfl(body: Any, it: Instruction) -> None:
    _needs_sync(it)
    target, a, b, c, mask = it.operands
    given = [_wide(body, operand, "b32") for operand in (a, b, c)]
    word, inside = meet(body, it, "warp", *given, mask=_wide(body, mask, "b32"))
    value, _, predicate = target.partition("|")
    _write_word(body, value, word)
    body.write(predicate or "_", inside, "pred")


@handles("vote", modifiers="sync all any uni ballot")
def _vote(body: Any, it: Instruction) -> None:
    _needs_sync(it)
    target, holds, mask = it.operands
    ballot, told = meet(body, it, "warp", _wide(body, holds, "pred"), mask=_wide(body, mask, "b32"))
    if it.has("ballot"):
        _write_word(body, target, ballot)
    else:
        body.write(target, told, "pred")


@handles("match", modifiers="sync any all")
def _match(body: Any, it: Instruction) -> None:
    target, value, mask = it.operands
    word, same = meet(body, it, "warp", _wide(body, value, it.kind), mask=_wide(body, mask, "b32"))
    found, _, predicate = target.partition("|")
    _write_word(body, found, word)
    body.write(predicate or "_", same, "pred")


@handles("activemask")
def _activemask(body: Any, it: Instruction) -> None:
    word, _ = meet(body, it, "active")
    _write_word(body, it.operands[0], word)


@handles("bar", "barrier", modifiers="warp cta sync red popc and or aligned")
def _barrier(body: Any, it: Instruction) -> None:
    if it.has("warp"):
        meet(body, it, "warp", mask=_wide(body, it.operands[0], "b32"))
        return
    # "bar{.cta}.sync is equivalent to barrier{.cta}.sync.aligned"
    aligned = it.operation == "bar" or it.has("aligned")
    operands = it.operands if it.has("sync") else it.operands[1:-1]
    if operands != ["0"]:
        raise NotImplementedError(f"PTX line {it.line}: a barrier of some threads, or another than the first")
    if it.has("sync"):
        meet(body, it, "block", aligned=aligned)
        return
    word, holds = meet(body, it, "block", _wide(body, it.operands[-1], "pred"), aligned=aligned)
    if it.has("popc"):
        _write_word(body, it.operands[0], word)
    else:
        body.write(it.operands[0], holds, "pred")


def _needs_sync(it: Instruction) -> None:
    if not it.has("sync"):
        raise NotImplementedError(f"PTX line {it.line}: {it.operation} without .sync, which sm_70 has no more")


@handles("call", modifiers="uni")
def _call(body: Any, it: Instruction) -> None:
    results = it.operands.pop(0).strip("()") if it.operands[0].startswith("(") else ""
    name, *given = it.operands
    places = [
        body.memory_of(part.strip()) for part in [results, *given[:1]] for part in part.strip("()").split(",") if part
    ]
    function = body.module.functions[name]
    if function.body is not None:
        body.do(f'call void @"{name}"({", ".join(["ptr %ctx", *(f"ptr {place}" for place in places)])})')
    elif name == "vprintf":
        number = body.module.meeting(Meeting(name, it.line, "thread"))
        words = ", ".join(f"i64 {body.emit(f'load i64, ptr {place}')}" for place in places[1:])
        body.do(f"call void @nb_print(ptr %ctx, i64 {number}, {words})")
        body.do(f"store i32 0, ptr {places[0]}")
    elif name == "cudaCGGetIntrinsicHandle":
        body.do(f"store i64 1, ptr {places[0]}")
    elif name == "cudaCGSynchronize":
        meet(body, it, "grid")
        body.do(f"store i32 0, ptr {places[0]}")
    else:
        raise NotImplementedError(f"PTX line {it.line}: a call of {name}")
