"""Random kernels whose threads work together on floating-point numbers, as text: barriers, shared memory, lanes, at any depth.

A program does only what CUDA defines, as in `block_programs`: it remembers which shared arrays others may be reading or have
written since the last barrier. `check` compares its derivatives with differences.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from block_gradient_cases import Case, check, check_second

SIZE = 40
_HEAD = "import math\n\nimport numpy as np\nfrom numba import cuda\n\nimport numbridge as nb\n\n\n"
_BEGIN = [
    f"s0 = cuda.shared.array({SIZE}, np.float64)",
    f"s1 = cuda.shared.array({SIZE}, np.float64)",
    f"s2 = cuda.shared.array(({SIZE // 4}, 4), np.float64)",
    f"sv = cuda.shared.array({SIZE}, nb.vec3d)",
    "sums = cuda.shared.array(3, np.float64)",
    f"numbers = cuda.shared.array({SIZE}, np.int32)",
    "a, b, c = x[i], y[i], x[i] * y[i]",
    "s0[t], s1[t], numbers[t] = a, b, t * 7 % 5",
    "s2[t // 4, t % 4] = a * b",
    "sv[t] = nb.vec3d(a, b, 1.0)",
    "if t < 3:",
    "    sums[t] = 0.5",
    "cuda.syncthreads()",
]
_END = ["out[i] = a + 0.7 * b + 0.3 * c", "final[i] = sv[t][0] * sv[t][1] + sv[t][2] + s2[t // 4, t % 4]"]
_MEMORY = ("s0", "s1", "s2", "sv", "numbers", "g0", "g1")
_NUMBERS = ("s0", "s1", "g0", "g1")
"""Memory of the block, of which g0 and g1 are its part of arrays of the launch."""


class Program:
    """A program of one block size.

    Attributes
    ----------
    text : str
        A module whose kernel is ``program``.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0
        # What threads have done since the last barrier: arrays that they read, and how they wrote others
        self._read: set[str] = set()
        self._written: dict[str, str] = {}
        guard = [[], ["if i >= x.shape[0]:", "    return"]][self._random.random() < 0.3]
        body = self._body(depth=3, count=self._random.randint(3, 6))
        end = [*self._synced("s2", "sv"), *_END]
        lines = [
            "t, i, lane = cuda.threadIdx.x, cuda.grid(1), cuda.laneid",
            "base = i - t",
            *guard,
            *_BEGIN,
            *body,
            *end,
        ]
        kernel = ["@nb.kernel", "def program(x, y, n, g0, g1, out, final):", *_indented(lines), ""]
        self.text = _HEAD + "\n".join(kernel)

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _choose(self, *values: str) -> str:
        return self._random.choice(values)

    def _barrier(self) -> list[str]:
        self._read, self._written = set(), {}
        return [
            self._choose(
                "cuda.syncthreads()", "cuda.syncthreads()", "c += 0.01 * cuda.syncthreads_count(int(t % 3 == 0))"
            )
        ]

    def _synced(self, *arrays: str) -> list[str]:
        """Return a barrier, if others may have written one of some arrays since the last."""
        return self._barrier() if any(array in self._written for array in arrays) else []

    def _place(self) -> str:
        """Return the index of a thread's place, which is that of no other."""
        return self._choose(
            "t", f"{SIZE - 1} - t", f"(t + {self._random.randrange(1, SIZE)}) % {SIZE}", f"t * 7 % {SIZE}"
        )

    def _loaded(self, arrays: Sequence[str]) -> str:
        array = self._choose(*arrays)
        self._read.add(array)
        index = self._choose(
            self._place(), str(self._random.randrange(SIZE)), f"(t + numbers[(t + 1) % {SIZE}]) % {SIZE}"
        )
        if "numbers" in index:
            if "numbers" not in arrays:
                index = "t"
            else:
                self._read.add("numbers")
        if array == "sv":
            return f"sv[{index}][{self._choose('0', '1', 'numbers[t] % 3' if 'numbers' in arrays else '2')}]"
        return _element(array, index)

    def _term(self, depth: int = 2) -> str:
        """Return a number that is neither large nor far from smooth."""
        free = [array for array in _MEMORY if array not in self._written]
        if "numbers" in self._written:
            free = [array for array in free if array != "sv"]
        if depth == 0 or self._random.random() < 0.2:
            return self._choose("a", "b", "c", "0.8", self._loaded(free) if free else "a")
        one, other = self._term(depth - 1), self._term(depth - 1)
        own = [_element(array, self._written[array]) for array in _NUMBERS if array in self._written]
        if own and self._random.random() < 0.3:
            return self._choose(*own)  # what the thread itself has stored
        forms = [
            "({0} + {1})",
            "({0} - {1})",
            "{0} * {1}",
            "math.sin({0})",
            "math.cos({0} * {1})",
            "({0} if t % 3 else {1})",
        ]
        return self._choose(*forms).format(one, other)

    def _body(self, *, depth: int, count: int) -> list[str]:
        makers = [self._assigned, self._stored, self._stored, self._shuffled, self._own_loop, self._added, self._global]
        makers += [self._stored_alike]
        if depth:
            makers += [self._loop, self._loop, self._while, self._branch, self._branch_of_threads]
        return [line for _ in range(count) for line in self._random.choice(makers)(depth)]

    def _assigned(self, depth: int) -> list[str]:
        name = self._choose("a", "b", "c")
        return [f"{name} = math.sin({self._term()}) + 0.2 * {name}"]

    def _stored(self, depth: int) -> list[str]:
        array, value = self._choose(*_MEMORY), self._name("v")
        place, made = self._place(), [f"{value} = math.sin({self._term()})"]
        if array == "numbers":
            lines = [f"numbers[{place}] = (t + n) % 6"]
        elif array == "sv":
            lines = [f"sv[{place}] = nb.vec3d({value}, a, 0.5 * b)"]
        else:
            lines = [f"{_element(array, place)} = {value}"]
        if self._random.random() < 0.4:
            lines = [f"if {self._choose('t % 3 == 1', 'a > 0.4', 't < 11')}:", *_indented(lines)]
        # Who reads or writes elsewhere must be through.
        before = self._barrier() if array in self._read or array in self._written else []
        self._written[array] = place
        return [*made, *before, *lines, *(self._barrier() if self._random.random() < 0.6 else [])]

    def _stored_alike(self, depth: int) -> list[str]:
        """Return a store of one number into one element by several threads."""
        array, place = self._choose(*_NUMBERS), str(self._random.randrange(SIZE))
        free = [other for other in _NUMBERS if other not in self._written]
        self._read.update(free)
        terms = [f"x[base + {self._random.randrange(SIZE)}]", "0.4", *(_element(other, "7") for other in free)]
        value = f"math.sin({self._choose(*terms)} + {self._choose(*terms)})"
        made, before = self._name("v"), [*self._barrier()] if array in self._read or array in self._written else []
        store = f"{_element(array, place)} = {made}"
        guard = self._choose("", "if t < 9:", "if a > 0.3 or t == 3:")
        return [f"{made} = {value}", *before, *([guard, f"    {store}"] if guard else [store]), *self._barrier()]

    def _shuffled(self, depth: int) -> list[str]:
        name, other = self._choose("a", "b", "c"), self._choose("a", "b", "c")
        shuffle = self._choose("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync")
        lane = self._choose("1", "5", "n", "(t * 3) % 32" if shuffle == "shfl_sync" else "2")
        return [f"{name} = 0.6 * {name} + cuda.{shuffle}(0xFFFFFFFF, math.sin({other}), {lane})"]

    def _own_loop(self, depth: int) -> list[str]:
        k, name, array = self._name("k"), self._choose("a", "b", "c"), self._choose(*_NUMBERS)
        stores, before = self._random.random() < 0.5, []
        if stores:
            before = self._barrier() if array in self._read or array in self._written else []
            self._written[array] = "t"
        trips, element = self._choose("t % 4", "3", "n", "1, 6, 2"), _element(array, "t")
        loop = [f"for {k} in range({trips}):", f"    {name} = math.sin({name} + {self._term(1)}) + 0.1 * {k}"]
        return [*before, *loop, *([f"    {element} = {name} * {element}"] if stores else [])]

    def _added(self, depth: int) -> list[str]:
        index, name = self._choose("t % 3", "0", "(t // 5) % 3"), self._choose("a", "b", "c")
        lines = [f"cuda.atomic.add(sums, {index}, 0.1 * math.sin({self._term(1)}))", *self._barrier()]
        return [*lines, f"{name} = 0.5 * {name} + 0.01 * sums[{self._choose('t % 3', '1')}]", *self._barrier()]

    def _global(self, depth: int) -> list[str]:
        return [f"y[i] = math.sin({self._term(1)}) + 0.3 * y[i]", f"{self._choose('a', 'b', 'c')} = y[i]"]

    def _inner(self, depth: int) -> list[str]:
        """Return what stands in a loop or under a condition, between barriers."""
        before = set(self._read), dict(self._written)
        made = self._body(depth=depth - 1, count=self._random.randint(1, 3))
        self._read |= before[0]
        self._written = {**before[1], **self._written}
        return _indented(made)

    def _loop(self, depth: int) -> list[str]:
        k = self._name("k")
        trips = self._choose("2", "n", "n - 1", "3, 0, -1", "cuda.syncthreads_count(int(t % 2 == 0)) % 3")
        start = self._barrier()
        inner = self._inner(depth)
        return [*start, f"for {k} in range({trips}):", *inner, *_indented(self._barrier()), f"    c += 0.1 * {k}"]

    def _while(self, depth: int) -> list[str]:
        left = self._name("left")
        start = self._barrier()
        inner = self._inner(depth)
        test = self._choose(f"cuda.syncthreads_or(int({left} > t % 2))", f"{left} > 0")
        return [*start, f"{left} = n", f"while {test}:", *inner, *_indented(self._barrier()), f"    {left} -= 1"]

    def _branch(self, depth: int) -> list[str]:
        """Return a branch that all threads of a block take together."""
        condition = self._choose("n > 2", "n > 9", "cuda.blockIdx.x == 0", "cuda.syncthreads_and(int(a < 9.0))")
        start = self._barrier()
        one = [*self._inner(depth), *_indented(self._barrier())]
        other = [*self._inner(depth), *_indented(self._barrier())]
        return [*start, f"if {condition}:", *one, "else:", *other]

    def _branch_of_threads(self, depth: int) -> list[str]:
        """Return a branch in which threads take different ways, and do not wait."""
        name = self._choose("a", "b", "c")
        condition = self._choose("t % 2 == 0", "a > b", f"lane < {self._random.randrange(1, 32)}")
        one, other = (f"    {name} = math.sin({self._term()}) * 0.9" for _ in range(2))
        return [f"if {condition}:", one, "else:", other]


def _element(array: str, index: str) -> str:
    """Return the text of an element of a block's memory."""
    if array == "s2":
        return f"s2[({index}) // 4, ({index}) % 4]"
    return {"g0": f"g0[cuda.blockIdx.x, {index}]", "g1": f"g1[base + ({index})]"}.get(array, f"{array}[{index}]")


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def case(seed: int, folder: Path) -> Case:
    """Return a random program with arguments."""
    path = folder / f"gradients_{seed}.py"
    path.write_text(Program(seed).text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    uniform = np.random.default_rng(seed).uniform
    x, y, g1 = (uniform(0.2, 1.1, 2 * SIZE) for _ in range(3))
    g0 = uniform(0.2, 1.1, (2, SIZE))
    return module.program, 2 * SIZE, SIZE, [x, y, 3, g0, g1, np.zeros(2 * SIZE), np.zeros(2 * SIZE)]


def check_program(seed: int, folder: Path) -> None:
    """Check the derivatives of a random program."""
    made = case(seed, folder)
    check(made)
    if seed % 4 == 0:
        check_second(made)
