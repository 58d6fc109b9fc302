"""What is asked of statements of a generated text for a thread that waits for its block; nothing is changed here."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from numbridge.kernels.cpu_backend.blocks.source import THREAD
from numbridge.kernels.cpu_backend.lanes import REST
from numbridge.kernels.language.parsing import parsed, parsed_expression

__all__ = [
    "AT",
    "AXES",
    "BARRIER",
    "COUNTS",
    "DYNAMIC",
    "FROM",
    "LIVE",
    "MEETING",
    "MEMORY",
    "NUMBER",
    "OWN_NAMES",
    "REFUSED",
    "REST",
    "ROW",
    "SHUFFLES",
    "SIZE",
    "SLOT",
    "STACK",
    "SYNCWARP",
    "TOLD",
    "VOTES",
    "NoPartsError",
    "blocks_of",
    "called_name",
    "calls_in",
    "changed_arrays",
    "expression",
    "heads_of",
    "is_barrier",
    "is_count",
    "is_exchange",
    "is_of_thread",
    "loaded_names",
    "made_in_block",
    "mentioned",
    "new_stack",
    "own_extents",
    "places_of",
    "read_first",
    "statement",
    "stored_here",
    "used_otherwise",
    "waits",
    "with_loops",
]

AT = "_nb_iat"
"""A part's parameter that is one more for the next thread: its place along the axis along which parts go through a block."""
LIVE, SIZE = "_nb_live", "_nb_size"
"""How many threads of the block run, and how many it may have."""
SLOT, ROW, FROM = "_nb_slot", "_nb_irow", "_nb_ifrom"
NUMBER = "_nb_inumber"
MEETING, STACK, _NEW_STACK = "_nb_block_", "_nb_crew_stack_", "_nb_crew_stack_new"
BARRIER, COUNTS = f"{MEETING}syncthreads", tuple(f"{MEETING}syncthreads_{name}" for name in ("count", "and", "or"))
SYNCWARP = f"{MEETING}syncwarp"
SHUFFLES = tuple(f"{MEETING}shfl_{name}sync" for name in ("", "up_", "down_", "xor_"))
VOTES = tuple(f"{MEETING}{name}_sync" for name in ("ballot", "all", "any", "eq"))
# What threads say, one after another.
REFUSED = ("_nb_check", "_nb_print")
DYNAMIC = "_nb_dynamic"
MEMORY = ("_nb_shared", DYNAMIC, "_nb_elements", "_nb_field")
# Of what changes memory that threads share one after another, those that are told how; the array is their second argument.
TOLD = ("_nb_add_either", "_nb_sub_either")
AXES = 3
OWN_NAMES = [AT, ROW, NUMBER, *(f"_nb_{letter}{k}" for letter in "bgkit" for k in range(AXES))]
OWN_NAMES += [f"{FROM}{k}" for k in range(AXES)]


class NoPartsError(Exception):
    """The text cannot be taken apart at its barriers."""


def is_of_thread(name: str) -> bool:
    """Tell whether a hidden name differs between threads of a block."""
    return name in (THREAD, SLOT, AT) or (name[:5] in ("_nb_i", "_nb_t") and name[5:].isdigit())


def loaded_names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))


def called_name(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Name)
    return call.func.id


def waits(node: ast.AST) -> bool:
    return any(called_name(call).startswith(MEETING) for call in calls_in(node))


def statement(text: str) -> ast.stmt:
    return parsed(text).body[0]


def expression(text: str) -> ast.expr:
    return parsed_expression(text)


def heads_of(node: ast.stmt) -> list[ast.expr]:
    match node:
        case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
            return [head]
    return []


def blocks_of(node: ast.stmt) -> list[list[ast.stmt]]:
    return [block for name in ("body", "orelse") if (block := getattr(node, name, None))]


def _is_call(node: ast.stmt, called: Collection[str]) -> bool:
    match node:
        case ast.Expr(ast.Call(ast.Name(name))):
            return name in called
    return False


def is_barrier(node: ast.stmt) -> bool:
    return _is_call(node, (BARRIER,))


def is_count(node: ast.stmt) -> bool:
    match node:
        case ast.Assign([ast.Name()], ast.Call(ast.Name(called))):
            return called in COUNTS
    return False


def is_exchange(node: ast.stmt) -> bool:
    """Tell whether a statement is an operation of warps that is known here, whose result has a name."""
    match node:
        case ast.Assign([ast.Name()], ast.Call(ast.Name(called))):
            return called in (*SHUFFLES, *VOTES)
    return _is_call(node, (SYNCWARP,))


def new_stack(node: ast.stmt) -> str | None:
    """Return the name of the stack that a statement makes, or None."""
    match node:
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name(called))) if called == _NEW_STACK:
            return name
    return None


def made_in_block(node: ast.AST) -> tuple[str, str] | None:
    """Return the name of the block's own memory that a statement makes, and which memory that is; or None."""
    match node:
        case ast.Assign([ast.Name(name)], ast.Call() as made):
            called = {called_name(call) for call in calls_in(made)}
            # Arrays of dynamic memory all begin where that begins.
            return (name, DYNAMIC) if DYNAMIC in called else (name, name) if "_nb_shared" in called else None
    return None


def own_extents(node: ast.AST) -> tuple[int, ...]:
    assert isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    found = ast.literal_eval(node.value.args[0])
    return tuple(found) if isinstance(found, tuple) else (int(found),)


def changed_arrays(node: ast.AST) -> Iterator[str]:
    """Yield the arrays to which a statement stores elements, or statements in it."""
    for part in ast.walk(node):
        match part:
            case ast.Subscript(ast.Name(name), ctx=ast.Store()):
                yield name


def used_otherwise(tree: ast.AST) -> set[str]:
    """Return the names that stand for more than one of an array's elements somewhere."""
    found: set[str] = set()
    for node in ast.walk(tree):
        inner = list(ast.iter_child_nodes(node))
        match node:
            case ast.Subscript(ast.Name(), ast.Name() | ast.BinOp() | ast.Tuple()):
                inner = [node.slice]
            case ast.Subscript(ast.Name(), ast.Constant(int())):
                inner = []
        found |= {part.id for part in inner if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    return found


def mentioned(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def stored_here(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


_Loops = tuple[ast.For | ast.While, ...]


def with_loops(body: Sequence[ast.stmt], loops: _Loops) -> Iterator[tuple[_Loops, ast.AST]]:
    """Yield simple statements and the heads of others, with the loops around them."""
    for node in body:
        blocks = blocks_of(node)
        if not blocks:
            yield loops, node
            continue
        yield from ((loops, head) for head in heads_of(node))
        around = (*loops, node) if isinstance(node, ast.For | ast.While) else loops
        for block in blocks:
            yield from with_loops(block, around)


def read_first(body: Sequence[ast.stmt], known: set[str]) -> set[str]:
    """Return the names that are read where a block has not surely assigned them yet; `known` gets those that it has."""
    found: set[str] = set()
    for node in body:
        match node:
            case ast.Assign([ast.Name(name)], value):
                found |= loaded_names(value) - known
                known.add(name)
            case ast.AugAssign(ast.Name(name), _, value):
                found |= (loaded_names(value) | {name}) - known
                known.add(name)
            case ast.If(test, then, orelse):
                found |= loaded_names(test) - known
                sides = [set(known), set(known)]
                for side, block in zip(sides, (then, orelse), strict=True):
                    found |= read_first(block, side)
                known |= sides[0] & sides[1]
            case ast.For(ast.Name(name), head, inner):
                found |= loaded_names(head) - known
                found |= read_first(inner, known | {name})
            case ast.While(test, inner):
                found |= loaded_names(test) - known
                found |= read_first(inner, set(known))
            case _:
                found |= loaded_names(node) - known
    return found


def places_of(index: ast.expr) -> list[ast.expr]:
    """Return the parts of an index that is handed on."""
    return index.elts if isinstance(index, ast.Tuple) else [index]
