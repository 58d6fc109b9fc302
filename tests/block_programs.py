"""Random kernels whose threads work together, as text: what lanes and blocks do, under branches, loops, returns and in functions.

A program does only what CUDA defines: all threads of a block that are left come to a barrier, all lanes that a mask names and
that are left come to an operation of warps, and between two barriers nobody reads what another thread writes. Numbers stay small
enough for every type. `check` compares a kernel with `block_threads`, which runs its source in Python.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import block_threads

_HEAD = "import numpy as np\nfrom numba import cuda\n\nimport numbridge as nb\n\n"
_THREAD = "cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)"
_SIZE = "cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z"
_INDICES = {
    1: ["i = cuda.grid(1)"],
    2: ["gx, gy = cuda.grid(2)", "i = gx + gy * cuda.blockDim.x * cuda.gridDim.x"],
    3: [
        "gx, gy, gz = cuda.grid(3)",
        "i = gx + cuda.blockDim.x * cuda.gridDim.x * (gy + gz * cuda.blockDim.y * cuda.gridDim.y)",
    ],
}
_BEGIN = [
    "s0 = cuda.shared.array(128, np.int32)",
    "s1 = cuda.shared.array(128, np.float64)",
    "s2 = cuda.shared.array(128, np.int16)",
    "s3 = cuda.shared.array(5, np.int64)",
    "sv = cuda.shared.array(128, nb.vec3)",
    "dynamic = cuda.shared.array(0, np.float32)",
    # What threads that have returned do not write is read all the same.
    "s0[t], s1[t], s2[t], dynamic[t] = 0, 0, 0, 0",
    "sv[t] = nb.vec3(t, 0, 0)",
    "own = cuda.local.array((4, 2), np.float64)",
    "for z in range(4):",
    "    own[z, 0] = z",
    "    own[z, 1] = 2 * z",
    "if t == 0:",
    "    for z in range(5):",
    "        s3[z] = 0",
    "cuda.syncthreads()",
    "u = nb.vec3(1, 2, 3)",
    "w = nb.mat33(1, 2, 3, 4, 5, 6, 7, 8, 9)",
    "x0, x1, x2 = int(x[i]), t * 3, i % 17",
]
_END = ["out[i] = x0 + 3 * x1 + 5 * x2", "final[i] = u[0] + 2 * u[1] + w[1, 1] + own[1, 0] + own[2, 1]"]
_EXTENTS = {
    1: [(1, 1, 1), (7, 1, 1), (32, 1, 1), (33, 1, 1), (100, 1, 1), (128, 1, 1)],
    2: [(5, 3, 1), (8, 8, 1), (16, 3, 1), (1, 1, 1)],
    3: [(3, 5, 4), (4, 2, 3), (1, 5, 1)],
}


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


class Program:
    """A program, with the number of axes that its kernel asks for.

    Attributes
    ----------
    text : str
        A module whose kernel is ``program``.
    rank : int
        How many axes its grid has.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0
        self._functions: list[list[str]] = []
        self._started = 0
        self._in_function = False
        self.rank = self._random.choice([1, 1, 2, 3])
        body = self._body("0xFFFFFFFF", ["x0", "x1", "x2"], together=True, depth=3, count=self._random.randint(3, 7))
        head = [*_INDICES[self.rank], f"t = {_THREAD}", "lane = cuda.laneid", f"size = {_SIZE}", *_BEGIN]
        kernel = ["@nb.kernel", "def program(x, out, final):", *_indented([*head, *body, *_END]), ""]
        self.text = _HEAD + "\n".join(line for lines in (*self._functions, kernel) for line in lines)

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _term(self, names: Sequence[str], depth: int = 2) -> str:
        choose = self._random.choice
        if depth == 0 or self._random.random() < 0.3:
            return choose([*names, str(self._random.randrange(-9, 30))])
        a, b = self._term(names, depth - 1), self._term(names, depth - 1)
        forms = ["({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} % 7)", "({0} // 5)", "max({0}, {1})", "({0} ^ {1})"]
        return choose([*forms, "({0} if {1} > 3 else 2)"]).format(a, b)

    def _number(self, names: Sequence[str]) -> str:
        return f"{self._term(names)} % 1009"

    def _condition(self, names: Sequence[str]) -> str:
        name, k = self._random.choice(names), self._random.choice([2, 3, 5])
        return self._random.choice([f"{name} % {k} == 1", f"lane % {k} == 0", f"{name} > {100 * k}", f"t < {9 * k}"])

    def _body(self, mask: str, names: Sequence[str], *, together: bool, depth: int, count: int) -> list[str]:
        makers: list[Callable[..., list[str]]] = [self._assigned, self._assigned, self._warp, self._warp, self._warp]
        if not self._in_function:
            makers += [self._own]
        if together:
            makers += [self._block, self._block]
        if depth:
            makers += [self._branch, self._while, self._for, self._called, self._left]
        return [
            line
            for _ in range(count)
            for line in self._random.choice(makers)(mask, names, together=together, depth=depth)
        ]

    def _inner(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        made = self._body(mask, names, together=together, depth=depth - 1, count=self._random.randint(1, 3))
        return _indented(made)

    def _assigned(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        return [f"{self._random.choice(names)} = {self._number(names)}"]

    def _own(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        v, k = self._random.choice(names), f"{self._random.choice(names)} % 3"
        return self._random.choice(
            [
                [f"own[{k}, 1] += {v}", f"{v} = int(own[{k}, 1]) % 1009"],
                [f"u = u + nb.vec3({v}, 1, 2)", "u = nb.vec3(u[0] % 64, u[1] % 64, u[2] % 64)"],
                [f"u[{k}] = {v}", f"w[{k}, 1] = u[0]"],
                [f"{v} = int(u[0] + u[{k}] + w[1, {k}]) % 1009"],
            ]
        )

    def _warp(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        choose = self._random.choice
        v, number, condition = choose(names), self._number(names), self._condition(names)
        kind = choose(["np.int32", "np.int64", "np.float32", "np.float64"])
        shuffle, lane = (
            choose(["shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"]),
            choose(["1", "9", f"{v} % 32"]),
        )
        same = self._name("same")
        return choose(
            [
                *[[f"{v} = int(cuda.{shuffle}({mask}, {kind}({number}), {lane}))"]] * 4,
                [f"{v} = ({v} + cuda.popc(cuda.ballot_sync({mask}, {condition}))) % 1009"],
                [f"if cuda.{choose(['all', 'any', 'eq'])}_sync({mask}, {condition}):", f"    {v} = {number}"],
                [f"{v} = (np.int64(cuda.match_any_sync({mask}, {kind}(({number}) % 4))) & 0xFFFFFFFF) % 1009"],
                [
                    f"{v}, {same} = cuda.match_all_sync({mask}, {kind}(({number}) % 2))",
                    f"{v} = {v} % 1009 + int({same})",
                ],
                [f"cuda.syncwarp({mask})", f"{v} = cuda.popc(cuda.lanemask_lt()) + {number}"],
            ]
        )

    def _block(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        choose = self._random.choice
        v, number = choose(names), self._number(names)
        counted = f"cuda.syncthreads_{choose(['count', 'and', 'or'])}(int({self._condition(names)}))"
        shared = "scratch" if self._in_function else choose(["s0", "s1", "s2", "dynamic"])
        turned = [f"{shared}[t] = {number}", "cuda.syncthreads()", f"{v} = int({shared}[({self._term(names)}) % size])"]
        forms = [[f"{v} = ({v} + {counted}) % 1009"], [*turned, "cuda.syncthreads()"]]
        if not self._in_function:
            add = choose(["cuda.atomic.add", "nb.atomic_add"])
            added = [f"if {self._condition(names)}:", f"    {add}(s3, ({v}) % 5, {choose(names)} % 50)"]
            forms += [[*added, "cuda.syncthreads()", f"{v} = int(s3[{v} % 5]) % 1009", "cuda.syncthreads()"]]
            vectors = [
                f"sv[t] = nb.vec3({v}, t, 1)",
                "cuda.syncthreads()",
                f"{v} = int(sv[({number}) % size][{v} % 2])",
            ]
            forms += [[*vectors, "cuda.syncthreads()"]]
        return choose(forms)

    def _branch(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        if together and self._random.random() < 0.5:
            taken = f"if cuda.syncthreads_{self._random.choice(['and', 'or'])}(int({self._condition(names)})):"
            one, other = (self._inner(mask, names, together=True, depth=depth) for _ in range(2))
            return [taken, *one, "else:", *other]
        holds, one_mask, other_mask = self._name("c"), self._name("m"), self._name("m")
        return [
            f"{holds} = {self._condition(names)}",
            f"{one_mask} = cuda.ballot_sync({mask}, {holds})",
            f"{other_mask} = cuda.ballot_sync({mask}, not {holds})",
            f"if {holds}:",
            *self._inner(one_mask, names, together=False, depth=depth),
            "else:",
            *self._inner(other_mask, names, together=False, depth=depth),
        ]

    def _while(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        left, there = self._name("n"), self._name("m")
        if together and self._random.random() < 0.5:
            loop = [f"{left} = {self._random.choice(names)}", f"while cuda.syncthreads_or(int({left} > 50)):"]
            return [*loop, *self._inner(mask, names, together=True, depth=1), f"    {left} //= 3"]
        return [
            f"{left} = {self._random.choice(names)} % 4",
            f"{there} = cuda.ballot_sync({mask}, {left} > 0)",
            f"while {left} > 0:",
            *self._inner(there, names, together=False, depth=depth),
            f"    {left} -= 1",
            f"    {there} = cuda.ballot_sync({there}, {left} > 0)",
        ]

    def _for(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        k, v = self._name("k"), self._random.choice(names)
        trips = ["1, 6, 2", "3", "2, 0, -1"]
        if together:
            trips.append(f"cuda.syncthreads_count(int({self._condition(names)})) % 3")
        loop = [f"for {k} in range({self._random.choice(trips)}):", f"    {v} = ({v} + {k}) % 1009"]
        return [*loop, *self._inner(mask, names, together=together, depth=depth)]

    def _left(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        v, condition = self._random.choice(names), self._condition(names)
        if self._in_function:
            asked = f"cuda.syncthreads_and(int({condition}))" if together else f"cuda.any_sync({mask}, {condition})"
            return [f"if {asked}:", f"    return {self._number(names)}"]
        asked = self._random.choice([f"{v} % 13 == 5", f"cuda.any_sync({mask}, {v} % 29 == 3)"])
        return [f"if {asked}:", f"    out[i] = {v} + 5000", "    return"]

    def _called(self, mask: str, names: Sequence[str], *, together: bool, depth: int) -> list[str]:
        if self._started > 4:
            return self._assigned(mask, names, together=together, depth=depth)
        v, a, b = self._random.choice(names), self._number(names), self._number(names)
        waits_for_block = together and self._random.random() < 0.5
        shared = "scratch" if self._in_function and waits_for_block else self._random.choice(["s0", "s1"])
        if self._in_function and together and not waits_for_block:
            shared = "scratch"
        function = self._function(depth - 1, together=waits_for_block)
        given = [a, shared, *self._random.choice([[], [b]])] if waits_for_block else [a, f"mask={mask}"]
        return [f"{v} = {function}({', '.join(given)}) % 1009"]

    def _function(self, depth: int, *, together: bool) -> str:
        name, outer, default = self._name("f"), self._in_function, self._random.randrange(9)
        self._started += 1
        self._in_function = True
        parameters = f"a, scratch, b={default}" if together else f"a, b={default}, mask=0xFFFFFFFF"
        mask, count = "0xFFFFFFFF" if together else "mask", self._random.randint(1, 3)
        body = self._body(mask, ["a", "b"], together=together, depth=depth, count=count)
        head = [f"t = {_THREAD}", "lane = cuda.laneid", f"size = {_SIZE}"]
        end = f"return {self._number(['a', 'b'])}"
        self._functions.append(["@nb.func", f"def {name}({parameters}):", *_indented([*head, *body, end]), "", ""])
        self._in_function = outer
        return name


def check(seed: int, folder: Path) -> None:
    """Run a random program as a kernel and in Python, with some shapes of blocks and grids, and compare what they write."""
    program = Program(seed)
    path = folder / f"program_{seed}.py"
    path.write_text(program.text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    choices = random.Random(seed)
    for block in choices.sample(_EXTENTS[program.rank], 3):
        grid = tuple(choices.randint(1, 2) if axis < program.rank else 1 for axis in range(3))
        threads = int(np.prod(block) * np.prod(grid))
        dynamic = 4 * int(np.prod(block)) + choices.randrange(4)
        x = np.random.default_rng(seed).integers(0, 1000, threads).astype(np.int32)
        found, wanted = ([x, np.zeros(threads, np.int64), np.zeros(threads)] for _ in range(2))
        module.program[grid[: program.rank], block[: program.rank], 0, dynamic](*found)
        block_threads.run(program.text, grid, block, dynamic, wanted)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(
                one, other, err_msg=f"{path}: {grid} blocks of {block} threads\n{program.text}"
            )
