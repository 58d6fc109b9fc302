"""Random kernels whose threads work together, and their adjoints, run thread by thread as plain Python in memory that sees races.

A thread is a generator that yields where it waits. Memory of the block and of the launch remembers who touched what since all
waited. A kernel whose own threads race is no kernel; whatever its adjoint then does at the same time is the adjoint's fault. The
memory allows what CUDA does: several threads may store the same number, and atomic operations do not race with each other.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from adjoint_as_python import RUNTIME, Stack, copied, program_of
from adjoint_programs import declared
from numbridge.kernels.adjoint.emit import program_text
from numbridge.kernels.adjoint.ir import Program
from numbridge.kernels.adjoint.reverse import reverse
from numbridge.kernels.adjoint.uniform import check_meetings

THREADS = 6
_STEP = "step"
_WANTED = ("x", "y", "e")


class RaceError(Exception):
    """Threads touched one element at the same time, or waited at different places."""


class Memory:
    """An array that knows which threads have touched which of its elements since all waited."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape
        self._touched: dict[tuple[int, ...], list[tuple[int, str, float]]] = {}
        self.thread = 0

    def wait(self) -> None:
        """Forget what happened."""
        self._touched.clear()

    def touch(self, index: Any, how: str, value: float = 0.0) -> None:
        """Note that the current thread loads, stores (what), or changes an element atomically; raise if another is at it."""
        place = index if isinstance(index, tuple) else (index,)
        place = tuple(int(k) % n for k, n in zip(place, self.shape, strict=True))
        noted = self._touched.setdefault(place, [])
        for thread, other, stored in noted:
            alike = how == other and (how in ("load", "atomic") or (how == "store" and value == stored))
            if thread != self.thread and not alike:
                raise RaceError(f"element {place}: {other} by thread {thread}, {how} by thread {self.thread}")
        noted.append((self.thread, how, value))

    def __getitem__(self, index: Any) -> Any:
        self.touch(index, "load")
        return self.array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.touch(index, "store", float(value))
        self.array[index] = value

    def add(self, index: Any, value: Any) -> None:
        """Add to an element atomically."""
        self.touch(index, "atomic")
        self.array[index] += value

    def exchange(self, index: Any, value: Any) -> Any:
        """Store into an element atomically, and return what it held."""
        self.touch(index, "atomic")
        held = self.array[index]
        self.array[index] = value
        return held


class _AsThread(ast.NodeTransformer):
    """Makes a generator of a function, which yields where it waits, and before each statement, where others may run."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        for inner in [node, *(n for n in ast.walk(node) if isinstance(n, ast.If | ast.For | ast.While))]:
            inner.body = _in_steps(inner.body)
            if isinstance(inner, ast.If):
                inner.orelse = _in_steps(inner.orelse)
        node.decorator_list = []
        node.args.args[:0] = [ast.arg("_nb_crew"), ast.arg("_nb_thread")]
        node.body[:0] = ast.parse("if False:\n    yield").body
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name):
            return node
        if node.func.id.startswith("_nb_block_"):
            operation = ast.Constant(node.func.id.removeprefix("_nb_block_"))
            return ast.Yield(ast.Tuple([operation, ast.Tuple(node.args[2:], ast.Load())], ast.Load()))
        return node


def _in_steps(body: list[ast.stmt]) -> list[ast.stmt]:
    return [line for statement in body for line in (*ast.parse(f"yield {_STEP!r}, ()").body, statement)]


def _remember_other(log: Stack, array: Any, index: Any, value: Any) -> None:
    found = _exchanged(array, index, value)
    if found != value:
        log.push((index, found))


def _undo_among_others(log: Stack, array: Any, height: int) -> None:
    while len(log) > height:
        _exchanged(array, *log.pop())


def _exchanged(array: Any, index: Any, value: Any) -> Any:
    if isinstance(array, Memory):
        return array.exchange(index, value)
    found, array[index] = array[index], value
    return found


_ANSWERS: dict[str, Callable[[list[Any]], Any]] = {
    "syncthreads": lambda given: None,
    "syncthreads_count": lambda given: sum(map(bool, given)),
    "syncthreads_and": lambda given: int(all(given)),
    "syncthreads_or": lambda given: int(any(given)),
}


def run(
    text: str, program: Program, name: str, arguments: Sequence[Any], order: Callable[[list[int]], int] = min
) -> None:
    """Run a text as a block of threads; `order` says which of those that do not wait takes the next step."""
    memory = [Memory(a) if isinstance(a, np.ndarray) else a for a in arguments]
    shared: dict[Any, Memory] = {}

    def of_block(crew: Any, place: Any, given: Any, shape: Any, dtype: Any) -> Memory:
        return shared.setdefault(place, Memory(np.full(shape, 77.0)))

    names = {**program.namespace, **RUNTIME, "math": math, "_nb_shared": of_block}
    names |= {"_nb_add": Memory.add, "_nb_add_in_block": Memory.add, "_nb_atomic_exch": Memory.exchange}
    names |= {"_nb_exchanged": _exchanged, "_nb_stack_remember_other": _remember_other}
    names["_nb_stack_undo_among_others"] = _undo_among_others
    exec(compile(ast.fix_missing_locations(_AsThread().visit(ast.parse(text))), name, "exec"), names)
    extents = {"_nb_b0": THREADS, "_nb_b1": 1, "_nb_b2": 1, "_nb_g0": 1}
    hidden = [value.name for value in program.hidden]
    threads: dict[int, Iterator[Any]] = {
        t: names[name](None, t, *({**extents, "_nb_i0": t}[h] for h in hidden), *memory) for t in range(THREADS)
    }
    answer = None
    while threads:
        answers, waiting = dict.fromkeys(threads, answer), {}
        running = sorted(threads)
        while running:
            t = order(running)
            for each in (*(m for m in memory if isinstance(m, Memory)), *shared.values()):
                each.thread = t
            try:
                asked = threads[t].send(answers[t])  # type: ignore[attr-defined]
            except StopIteration:
                del threads[t]
                running.remove(t)
                continue
            answers[t] = None
            if asked[0] != _STEP:
                waiting[t] = asked
                running.remove(t)
        operations = {operation for operation, _ in waiting.values()}
        if waiting and (len(operations) > 1 or len(waiting) < THREADS):
            raise RaceError(f"threads wait at different places: {waiting}")
        for operation in operations:
            answer = _ANSWERS[operation]([asked[0] for _, asked in waiting.values() if asked])
        for each in (*(m for m in memory if isinstance(m, Memory)), *shared.values()):
            each.wait()


class BlockWriter:
    """Writes one kernel; whether its threads race is left to chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._names = 0

    def _choose(self, *values: str) -> str:
        return self._random.choice(values)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _line(self, depth: int, text: str) -> None:
        self._lines.append("    " * depth + text)

    def _fresh(self) -> str:
        self._names += 1
        return f"j{self._names}"

    def _place(self, *indices: str) -> str:
        return self._choose(
            *("t", "t", "t", "5 - t", "(t + 1) % 6", "(t + k) % 6", "(t + n) % 6", *indices, *indices),
            *("0", "5", "t % 3", "n % 6", "-1", "t // 2"),
        )

    def _element(self, *indices: str) -> str:
        place = self._place(*indices)
        column = self._choose("0", "1", *(f"{index} % 2" for index in indices))
        return self._choose(
            f"s[{place}]", f"s[{place}]", f"e[{place}]", f"e[{place}]", f"g[{place} + 6]", f"m[{place}, {column}]"
        )

    def _number(self) -> str:
        """Return a number, of the thread or the same for all."""
        return self._choose(
            *("math.sin(total)", "total * 0.7", "math.cos(total + k)", "x[t] * total", "u * total", "x[t]"),
            *("0.5", "0.3 * n", "math.sin(x[2])", "x[1] * x[k % 6]", "x[0]"),
        )

    def _of_threads(self) -> str:
        return self._choose("t < 3", "t == 0", "t == 0", "t > 2", "t % 2 == 0", "total > 0.4", "t == k % 6")

    def _of_block(self) -> str:
        return self._choose("n > 2", "k % 2 == 0", "k > 0", "cuda.syncthreads_or(int(total > 0.5)) > 0", "n == 4")

    def _store(self, depth: int) -> None:
        chance = self._random.random()
        if chance < 0.3:
            self._line(depth, f"if {self._of_threads()}:")
            self._line(depth + 1, f"{self._element()} = {self._number()}")
        elif chance < 0.42:
            j = self._fresh()
            self._line(
                depth, f"for {j} in range({self._choose('t, 12, 6', 't, 12, cuda.blockDim.x', '2 * t, 2 * t + 2')}):"
            )
            self._line(depth + 1, f"g[{j}] = {self._number()} * (1 + {j})")
        elif chance < 0.5:
            self._line(depth, f"{self._choose('s[t]', 'm[t, 0]', 'e[t]', 'e[5 - t]')} *= math.cos({self._number()})")
        else:
            self._line(depth, f"{self._element()} = {self._number()}")

    def _load(self, depth: int) -> None:
        if self._chance(0.3):
            j = self._fresh()
            self._line(depth, f"for {j} in range({self._choose('6', '3', 'n % 4', 't + 1')}):")
            self._line(
                depth + 1, f"total = 0.8 * total + 0.2 * math.sin({self._element(j)} * {self._choose('total', '1.1')})"
            )
        else:
            name = self._choose("total", "total", "u")
            self._line(
                depth, f"{name} = 0.7 * total + math.sin({self._element()} * {self._choose('total', 'u', '1.2')})"
            )

    def _wait(self, depth: int, probability: float = 1.0) -> None:
        if self._chance(probability):
            self._line(depth, "cuda.syncthreads()")

    def _body(self, depth: int, level: int, *, in_loop: bool) -> None:
        self._line(depth, "u = math.sin(u) + 0.1")
        for _ in range(self._random.randint(1, 3)):
            chance = self._random.random()
            if chance < 0.35:
                self._store(depth)
            elif chance < 0.62:
                self._load(depth)
            elif chance < 0.74 and level:
                self._line(depth, f"for {self._fresh()} in range({self._choose('2', 'n', '3', 'k % 3')}):")
                self._body(depth + 1, level - 1, in_loop=True)
                self._wait(depth + 1, 0.8)
            elif chance < 0.86 and level:
                self._line(depth, f"if {self._of_block()}:")
                self._body(depth + 1, level - 1, in_loop=in_loop)
                if self._chance(0.4):
                    self._line(depth, "else:")
                    self._body(depth + 1, level - 1, in_loop=in_loop)
            elif chance < 0.89 and in_loop:
                self._line(depth, f"if cuda.syncthreads_and(int(u > {self._choose('0.3', '2.0')})) > 0:")
                self._line(depth + 1, self._choose("break", "continue"))
            self._wait(depth, 0.7)

    def program(self) -> str:
        """Return the kernel."""
        self._line(0, "def generated(x, y, e, n):")
        for line in (
            *("t, i, k = cuda.threadIdx.x, cuda.grid(1), 1", "total, u = x[i], 0.4 * x[1]"),
            *("s = cuda.shared.array(6, float64)", "g = cuda.shared.array(12, float64)"),
            *(
                "m = cuda.shared.array((6, 2), float64)",
                "s[t], g[t], g[t + 6] = x[t], 0.5, u",
                "m[t, 0], m[t, 1] = 0.3, total",
            ),
            "cuda.syncthreads()",
        ):
            self._line(1, line)
        for _ in range(self._random.randint(1, 2)):
            self._line(1, f"for k in range({self._choose('n', 'n', '5', 'n + 1')}):")
            self._body(2, 2, in_loop=True)
            self._wait(2, 0.8)
            if self._chance(0.5):
                self._body(1, 1, in_loop=False)
        self._wait(1)
        self._line(1, f"y[i] = total + math.sin(u) + {self._choose('0.0', 's[t]', 'e[5 - t]', 'm[t, 1]', 'g[3]')}")
        return "\n".join(self._lines) + "\n"


def values(seed: int) -> list[Any]:
    """Return arguments of a kernel."""
    uniform = np.random.default_rng(seed).uniform
    return [uniform(0.1, 1.3, THREADS), np.zeros(THREADS), uniform(0.1, 1.3, THREADS), seed % 6]


def results(kernel: Any, given: Sequence[Any], order: Callable[[list[int]], int] = min) -> list[np.ndarray]:
    """Return what a kernel leaves in its arrays."""
    program, arguments = program_of(kernel, given), copied(given)
    run(program_text(program, "program"), program, "program", arguments, order)
    return [a for a in arguments if isinstance(a, np.ndarray)]


def is_kernel(kernel: Any, given: Sequence[Any]) -> bool:
    """Tell whether the threads of a kernel do not race."""
    try:
        found = [results(kernel, given, order) for order in (min, max)]
    except RaceError:
        return False
    return all(np.isfinite(a).all() and np.array_equal(a, b) for a, b in zip(*found, strict=True))


def check(seed: int) -> tuple[str, int] | None:
    """Check the adjoint of a random kernel for races and against differences; return its text and stacks, or None for no kernel.

    Raises
    ------
    KernelUnsupportedError
        If it is refused.
    """
    return check_text(BlockWriter(seed).program(), seed)


def check_text(text: str, seed: int) -> tuple[str, int] | None:
    """Check the adjoint of a kernel `generated(x, y, e, n)` in the same way, with values of a seed."""
    kernel, given = declared(text), values(seed)
    if not is_kernel(kernel, given):
        return None
    weights = [np.random.default_rng(seed).normal(size=THREADS) for _ in _WANTED]
    for slots in (1024, 2):
        for order in (min, max, random.Random(seed).choice):
            program = program_of(kernel, given)
            check_meetings(program)
            made = reverse(program, _WANTED, "adjoint", slots=slots)
            arrays, adjoints = copied(given), copied(weights)
            run(made.text, program, made.name, [*arrays, *adjoints], order)
            assert all(map(np.array_equal, arrays, given)), made.text
            way, step = [np.random.default_rng(seed + 1).normal(size=THREADS) for _ in _WANTED], 1e-6
            ends = [
                results(kernel, [*(a + sign * step * w for a, w in zip(given, way, strict=False)), given[-1]])
                for sign in (1, -1)
            ]
            change = sum(((a - b) * w).sum() for a, b, w in zip(*ends, weights, strict=True)) / (2 * step)
            found = sum((a * w).sum() for a, w in zip(adjoints, way, strict=True))
            assert abs(found - change) <= 2e-5 * max(abs(change), 1), (found, change, made.text)
    return made.text, made.stacks
