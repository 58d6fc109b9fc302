"""A block of CUDA threads in Python: each thread is a generator of the kernel's own source, which yields where it waits.

It knows of no compiler, and is told nothing of how kernels run on the CPU: what lanes and blocks do is written here from CUDA's
documentation. A shuffle from a lane that does not take part, which CUDA leaves open, gives a lane its own number.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Generator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

WARP = 32
FULL = 0xFFFFFFFF
Thread = Generator[tuple[str, tuple[Any, ...]], Any, None]


class Numbers:
    """A vector or matrix of float32, a value of its own for whoever gets it."""

    def __init__(self, *given: float) -> None:
        self.held = np.array(given, np.float32)
        if len(given) == 9:
            self.held = self.held.reshape(3, 3)

    def __add__(self, other: Numbers) -> Numbers:
        return Numbers(*(self.held + other.held))

    def __getitem__(self, index: Any) -> float:
        return float(self.held[index])

    def __setitem__(self, index: Any, value: float) -> None:
        self.held[index] = value


class _Vectors:
    def __init__(self, count: int) -> None:
        self._held = np.zeros((count, 3), np.float32)

    def __getitem__(self, index: int) -> Numbers:
        return Numbers(*self._held[index])

    def __setitem__(self, index: int, value: Numbers) -> None:
        self._held[index] = value.held


class _Waits(ast.NodeTransformer):
    """Makes generators of functions, which yield the name and the arguments of what waits."""

    def __init__(self, functions: set[str]) -> None:
        self._functions = functions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list = []
        self.generic_visit(node)
        node.args.args.insert(0, ast.arg("cuda"))
        node.body[:0] = ast.parse("if False:\n    yield").body
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self._functions:
            return ast.YieldFrom(ast.Call(node.func, [ast.Name("cuda", ast.Load()), *node.args], node.keywords))
        if isinstance(node.func, ast.Attribute):
            if "sync" in node.func.attr:
                return ast.Yield(
                    ast.Tuple([ast.Constant(node.func.attr), ast.Tuple(node.args, ast.Load())], ast.Load())
                )
            if node.func.attr == "array":
                node.args.insert(0, ast.Constant(node.lineno))
        return node


def _added(array: Any, index: int, value: int) -> None:
    array[index] += value


def _axes(extents: tuple[int, ...]) -> SimpleNamespace:
    return SimpleNamespace(x=extents[0], y=extents[1], z=extents[2])


class _Cuda(SimpleNamespace):
    """What a thread sees as ``cuda``."""

    def grid(self, rank: int) -> Any:
        place = [getattr(self.blockIdx, a) * getattr(self.blockDim, a) + getattr(self.threadIdx, a) for a in "xyz"]
        return place[0] if rank == 1 else tuple(place[:rank])

    def popc(self, word: int) -> int:
        return (int(word) & FULL).bit_count()

    def lanemask_lt(self) -> int:
        return (1 << self.laneid) - 1


def _shared(memory: dict[int, Any], dynamic: int) -> Callable[..., Any]:
    def array(place: int, shape: int, dtype: Any) -> Any:
        if place not in memory:
            count = shape or dynamic // np.dtype(dtype).itemsize
            memory[place] = _Vectors(count) if dtype is Numbers else np.zeros(count, dtype)
        return memory[place]

    return array


def _mask(arguments: tuple[Any, ...]) -> int:
    return int(arguments[0]) & FULL if arguments else FULL


def _is_of_block(operation: str) -> bool:
    return operation.startswith("syncthreads")


def _bits(value: Any) -> bytes:
    return value.tobytes() if isinstance(value, np.generic) else np.int64(value).tobytes()


def _signed(lanes: Any) -> np.int32:
    return np.uint32(sum(1 << lane for lane in lanes)).astype(np.int32)


def _told(operation: str, lane: int, given: Mapping[int, tuple[Any, ...]]) -> Any:
    """Return what a lane learns of what each lane of its group gave."""
    if operation == "syncwarp":
        return None
    value = given[lane][1]
    if operation.startswith("shfl"):
        by = int(given[lane][2]) % WARP
        source = {"shfl": by, "shfl_up": lane - by, "shfl_down": lane + by, "shfl_xor": lane ^ by}[
            operation[: -len("_sync")]
        ]
        return given[source][1] if source in given else value
    alike = [k for k in given if _bits(given[k][1]) == _bits(value)]
    holds = [k for k in given if given[k][1]]
    answers: dict[str, Callable[[], Any]] = {
        "ballot_sync": lambda: _signed(holds),
        "all_sync": lambda: len(holds) == len(given),
        "any_sync": lambda: bool(holds),
        "eq_sync": lambda: len(holds) in (0, len(given)),
        "match_any_sync": lambda: _signed(alike),
        "match_all_sync": lambda: (_signed(given if len(alike) == len(given) else ()), len(alike) == len(given)),
    }
    return answers[operation]()


def _lanes(alive: Any, waits: Mapping[int, tuple[str, tuple[Any, ...]]]) -> dict[int, Any]:
    """Return which threads that wait for lanes go on, and what each of them learns."""
    found = {}
    for thread, (operation, arguments) in waits.items():
        if _is_of_block(operation):
            continue
        first = thread - thread % WARP
        mask = _mask(arguments)
        group = [lane for lane in range(WARP) if mask >> lane & 1 and first + lane in alive]
        there = [waits.get(first + lane, ("", ())) for lane in group]
        if all(other == operation and _mask(given) == mask for other, given in there):
            given = {lane: waits[first + lane][1] for lane in group}
            found[thread] = _told(operation, thread - first, given)
    return found


def _block(waits: Mapping[int, tuple[str, tuple[Any, ...]]]) -> dict[int, Any]:
    """Return what the threads of a block learn, which have all come to its barrier."""
    operations = {operation for operation, _ in waits.values()}
    assert len(operations) == 1 and all(map(_is_of_block, operations)), waits
    holds = [bool(given and given[0]) for _, given in waits.values()]
    answers = {"syncthreads": None, "syncthreads_count": sum(holds)}
    answers |= {"syncthreads_and": int(all(holds)), "syncthreads_or": int(any(holds))}
    return dict.fromkeys(waits, answers[operations.pop()])


def _run_block(threads: dict[int, Thread]) -> None:
    waits: dict[int, tuple[str, tuple[Any, ...]]] = {}
    going: dict[int, Any] = dict.fromkeys(threads)
    while threads:
        for thread, learned in going.items():
            waits.pop(thread, None)
            try:
                waits[thread] = threads[thread].send(learned)
            except StopIteration:
                del threads[thread]
        going = _lanes(threads, waits) or (_block(waits) if waits else {})


def run(text: str, grid: tuple[int, ...], block: tuple[int, ...], dynamic: int, arguments: list[Any]) -> None:
    """Run a module's function ``program`` as a kernel, block after block, in as many threads of 3 axes as CUDA would.

    Parameters
    ----------
    text : str
        The module, of which only the functions count.
    grid, block : tuple of int
        Three extents each.
    dynamic : int
        Bytes of dynamic shared memory.
    arguments : list
        What the kernel gets, and changes.
    """
    tree = ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    waits = _Waits({node.name for node in functions})
    module = ast.fix_missing_locations(ast.Module([waits.visit(node) for node in functions], []))
    names: dict[str, Any] = {"np": np, "nb": SimpleNamespace(vec3=Numbers, mat33=Numbers, atomic_add=_added)}
    exec(compile(module, "<threads in Python>", "exec"), names)
    for at in itertools.product(*(range(extent) for extent in reversed(grid))):
        memory: dict[int, Any] = {}
        threads = {}
        for number, own in enumerate(itertools.product(*(range(extent) for extent in reversed(block)))):
            cuda = _Cuda(
                threadIdx=_axes(own[::-1]),
                blockIdx=_axes(at[::-1]),
                blockDim=_axes(block),
                gridDim=_axes(grid),
                laneid=number % WARP,
                shared=SimpleNamespace(array=_shared(memory, dynamic)),
                local=SimpleNamespace(array=lambda place, shape, dtype: np.zeros(shape, dtype)),
                atomic=SimpleNamespace(add=_added),
            )
            threads[number] = names["program"](cuda, *arguments)
        _run_block(threads)
