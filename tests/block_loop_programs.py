"""Random kernels whose threads wait for their block, or for their warp together, as text; what tells whether both of the CPU's
roads agree.

Threads of such a kernel need no coroutines (`kernels/cpu_backend/blocks/parts.py`), and must compute to the last bit what
coroutines compute: also what depends on the order of threads, such as a sum of floats that atomics add up. `check` runs a kernel
and its derivatives both ways, in blocks of some shape.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import block_gradient_programs
import numbridge as nb
from block_gradient_programs import SIZE
from numbridge.kernels.geometry import Geometry, geometry_of
from numbridge.kernels.launch import launcher
from numbridge.kernels.variant import variants_of

SHAPES = ((SIZE,), (8, 5), (2, 20), (20, 2), (2, 4, 5))
"""Shapes of a block, all of as many threads."""
DYNAMIC = 4 * 4 * SIZE
"""How many bytes of dynamic shared memory each block has."""
_THREAD = ("cuda.threadIdx.x", "cuda.blockDim.x * {}", "cuda.blockDim.x * cuda.blockDim.y * {}")


class Program(block_gradient_programs.Program):
    """A program of one block size, in which lanes come to operations of their warp together, or whole warps do.

    Attributes
    ----------
    text : str
        A module with the kernel ``program``, and ``alone``, which is the same with a coroutine for each thread.
    shape : tuple of int
        The shape of its blocks.
    """

    def __init__(self, seed: int, shape: tuple[int, ...], real: str, *, derived: bool) -> None:
        # What an atomic returned cannot be had again on the way back, and dynamic memory has no derivative.
        self._derived = derived
        self._dynamic = not derived and seed % 2 == 0
        super().__init__(seed)
        self.shape = shape
        text = self.text.replace("cuda.laneid", "t % 32")
        terms = [f.format(f"cuda.threadIdx.{axis}") for f, axis in zip(_THREAD, "xyz"[: len(shape)], strict=False)]
        grid = "cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)"
        block = "cuda.blockIdx.x" if len(shape) == 1 else f"cuda.blockIdx.x + {grid}"
        if len(shape) == 2:
            block = "cuda.blockIdx.x + cuda.gridDim.x * cuda.blockIdx.y"
        head = "t, i, lane = cuda.threadIdx.x, cuda.grid(1), t % 32"
        assert head in text
        corner = [f"_ = cuda.grid({len(shape)})"] if len(shape) > 1 else ["_ = cuda.grid(1)"]
        lines = [*corner, f"t = {' + '.join(terms)}", f"i = ({block}) * {SIZE} + t", "lane = t % 32"]
        lines += ["counter = cuda.shared.array(2, np.int32)", "many = cuda.shared.array(4, np.float64)"]
        lines += [
            f"sw = cuda.shared.array({SIZE}, np.float64)",
            "sw[t] = 0.5",
            "many_lanes = cuda.shared.array(2, np.float64)",
        ]
        lines += ["many_lanes[t % 2] = 0.25"]
        lines += ["own = cuda.local.array((3, 2), np.float64)", "flag = False"]
        lines += ["for z in range(3):", "    own[z, 0] = 0.1 * z", "    own[z, 1] = x[i]"]
        lines += ["if t < 4:", "    counter[t % 2] = 0", "    many[t] = 0.0"]
        begin, _, rest = text.partition(head)
        text = begin + "\n    ".join(lines) + rest.replace("cuda.blockIdx.x", f"({block})")
        text = text.replace("float64", real).replace("vec3d", "vec3d" if real == "float64" else "vec3")
        if not derived and self._random.random() < 0.5:
            end = "out[i] = a + 0.7 * b + 0.3 * c"
            assert end in text
            text = text.replace(end, "\n    ".join([*self._in_turns(), end]))
        if self._dynamic:
            static = (f"s1 = cuda.shared.array({SIZE}, np.{real})", f"numbers = cuda.shared.array({SIZE}, np.int32)")
            dynamic = (f"s1 = cuda.shared.array(0, np.{real})", "bits = cuda.shared.array(0, np.int32)")
            assert all(line in text for line in static)
            text = text.replace(static[0], "\n    ".join(dynamic)).replace(static[1], f"numbers = bits[{2 * SIZE}:]")
        first, _, kernel = text.partition("@nb.kernel\n")
        twin = kernel.replace("def program(", "def alone(")
        self.text = f"{first}@nb.kernel\n{kernel}\n\n@nb.kernel(simd=False)\n{twin}"

    def _shuffled(self, depth: int) -> list[str]:
        makers = [self._scattered, self._kept, self._flagged, self._alike]
        makers += [self._bits] if self._dynamic else []
        makers += [super()._shuffled, self._reduced, self._voted, self._wrote_in_warp, self._of_warps, self._of_warps]
        return self._random.choice(makers if self._derived else [*makers, self._ordered, self._ordered])(depth)

    # Operations of warps

    def _mask(self) -> str:
        return self._choose("0xFFFFFFFF", "0xFFFFFFFF", "-1", "0xFFFF", "(1 << n) - 1", "0x8F0F0F0F")

    def _exchange(self, mask: str) -> str:
        name, shuffle = (
            self._choose("a", "b", "c"),
            self._choose("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"),
        )
        lane = self._choose("0", "1", "5", "16", "31", "n", "-3", "40", "lane % 5", "t * 3", "lane ^ 1")
        kinds = ["{}", "{}", "np.float64({})", "np.float32({})", "np.int32(100 * {})", "np.int64(100 * {})"]
        kind = self._choose(*kinds[: 2 if self._derived else 6])
        value = f"cuda.{shuffle}({mask}, {kind.format(name)}, {lane})"
        return value if "100" not in kind else f"0.01 * {value}"

    def _reduced(self, depth: int) -> list[str]:
        """Return the sum or the maximum of a warp, in whatever loop."""
        name, k, mask = self._choose("a", "b", "c"), self._name("k"), self._mask()
        lane = self._choose(f"cuda.shfl_down_sync({mask}, {name}, {k})", f"cuda.shfl_xor_sync({mask}, {name}, {k})")
        change = f"{name} = {self._choose(f'{name} * 0.6 + 0.3 * {lane}', f'max({name}, {lane})')}"
        loop = self._choose("for", "while")
        if loop == "for":
            return [f"for {k} in {self._choose('(16, 8, 4, 2, 1)', '(1, 2, 4)', 'range(1, n)')}:", f"    {change}"]
        return [f"{k} = 16", f"while {k} > 0:", f"    {change}", f"    {k} {self._choose('//= 2', '>>= 1')}"]

    def _voted(self, depth: int) -> list[str]:
        name, mask = self._choose("a", "b", "c"), self._mask()
        condition = self._choose(f"{name} > 0.5", "t % 3 == 1", "t", "lane < n", f"{name} > 9.0", "True")
        forms = [
            [f"{name} += 0.001 * (cuda.ballot_sync({mask}, {condition}) & 4095)"],
            [
                f"if cuda.{self._choose('any', 'all', 'eq')}_sync({mask}, {condition}):",
                f"    {name} = 0.3 + 0.5 * {name}",
            ],
        ]
        return self._random.choice(forms)

    def _wrote_in_warp(self, depth: int) -> list[str]:
        """Return what lanes tell each other through memory that is their warp's alone."""
        name, k = self._choose("a", "b", "c"), self._choose("1", "3", "7")
        other = f"sw[t - lane + (lane + {k}) % 8]"
        return [
            "cuda.syncwarp()",
            f"sw[t] = 0.3 + 0.5 * {name}",
            "cuda.syncwarp()",
            f"{name} = 0.5 * {name} + 0.2 * {other}",
        ]

    def _of_warps(self, depth: int) -> list[str]:
        """Return a branch that some warps take, or some lanes that name no others, up to the next barrier."""
        name = self._choose("a", "b", "c")
        tests = {
            "t < 32": "",
            "t // 32 == 0": "",
            "t >= 32": "",
            "t // 32 == n - 2": "",
            "lane < 8": "0xFF",
            "t < 20": "0xFFFFF",
        }
        test = self._choose(*tests)
        mask = tests[test] or self._mask()
        inner = [f"{name} = 0.5 * {name} + 0.4 * {self._exchange(mask)}"]
        if self._random.random() < 0.5:
            k = self._name("k")
            inner += [
                f"for {k} in (16, 4, 1):",
                f"    {name} = 0.7 * {name} + 0.2 * cuda.shfl_down_sync({mask}, {name}, {k})",
            ]
        if self._random.random() < 0.4:
            holds = self._name("holds")
            inner += [
                f"{holds} = cuda.any_sync({mask}, {name} > 0.4)",
                f"if lane == 0 and {holds}:",
                f"    {name} += 0.125",
            ]
        if self._random.random() < 0.4:
            inner += ["if lane == 0:", f"    many_lanes[t // 32] = 0.3 * {name}"]
        other = self._choose("", f"{name} = 0.8 * {name}")
        lines = [f"if {test}:", *(f"    {line}" for line in inner), *(["else:", f"    {other}"] if other else [])]
        after = [
            *self._barrier(),
            f"{name} = {name} * 0.7 + 0.2 * many_lanes[{self._choose('0', 't % 2')}]",
            *self._barrier(),
        ]
        return [*lines, *after]

    def _ordered(self, depth: int) -> list[str]:
        """Return what depends on the order of threads."""
        name, slot, value = self._choose("a", "b", "c"), self._name("slot"), self._name("v")
        place, guard = self._choose("0", "t % 2"), self._choose("", "if t % 3 == 1:", "if a > 0.4:")
        take = f"{slot} = cuda.atomic.add(counter, {place}, 1)"
        lines = [f"{slot} = 0", *([guard, f"    {take}"] if guard else [take])]
        return [*lines, f"{value} = 0.001 * ({slot} % 7)", f"{name} = {name} + {value}", *self._barrier()]

    def _scattered(self, depth: int) -> list[str]:
        """Return sums of floats from all threads, in a loop."""
        name, k = self._choose("a", "b", "c"), self._name("k")
        index = self._choose(k, f"({k} + t) % 4", "t % 4", f"{k} if t > 9 else 1", f"3 - {k}")
        others = [f"    cuda.atomic.add(many, 0, 0.03 * {name})", f"    cuda.atomic.max(many, {k}, {name})"]
        other = self._choose("", *others[: 1 + (not self._derived)])
        loop = [
            f"for {k} in range({self._choose('4', 'n', '3, -1, -1')}):",
            f"    cuda.atomic.add(many, {index}, 0.01 * {name})",
        ]
        read = f"{self._choose('a', 'b', 'c')} += 0.01 * many[{self._choose('t % 4', '1')}]"
        return [*loop, *([other] if other else []), *self._barrier(), read, *self._barrier()]

    def _in_turns(self) -> list[str]:
        """Return what all threads add behind a branch in which some have waited; nobody waits for anything after it."""
        test = self._choose("t < 32", "t > 35", "lane % 3 == 1", "a > 0.5", "lane < 9")
        inner = f"a = 0.5 * a + 0.3 * {self._exchange(self._choose('0xFFFFFFFF', '0xFF00FF'))}"
        guard = self._choose("", "if b > 0.4:", "if t == 0:")
        add = f"cuda.atomic.add(many, {self._choose('0', 't % 3')}, 0.01 * a)"
        if not guard:
            add = f"b = 0.5 * b + {add}"
        return [f"if {test}:", f"    {inner}", *([guard, f"    {add}"] if guard else [add])]

    def _kept(self, depth: int) -> list[str]:
        """Return what a thread keeps in an array of its own."""
        name, z = self._choose("a", "b", "c"), self._choose("0", "t % 3", "n % 3", "2")
        return [
            f"own[{z}, 1] = 0.5 * {name} + 0.3 * own[{z}, 0]",
            *self._barrier(),
            f"{name} = 0.5 * {name} + 0.2 * own[1, 1]",
        ]

    def _bits(self, depth: int) -> list[str]:
        """Return what reads of one array of dynamic memory what has been written to another."""
        name = self._choose("a", "b", "c")
        return [*self._barrier(), f"{name} += 0.01 * (bits[{self._choose('t', '5')}] % 7)", *self._barrier()]

    def _flagged(self, depth: int) -> list[str]:
        name = self._choose("a", "b", "c")
        return [
            f"flag = {name} > 0.5 or flag and t > 7",
            *self._barrier(),
            f"{name} = {name} + (0.25 if flag else 0.5)",
        ]

    def _alike(self, depth: int) -> list[str]:
        """Return a branch on what all threads know, without a barrier."""
        name, k = self._choose("a", "b", "c"), self._name("m")
        return [
            f"{k} = n * 2",
            "if n > 1:",
            f"    {k} = {k} + 1",
            f"    {name} = {name} * 0.9",
            f"{name} += 0.01 * {k}",
        ]


def load(text: str, name: str, folder: Path) -> ModuleType:
    """Return a module of some text."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_loops(kernel: Any) -> bool:
    """Tell whether all variants of a kernel that were launched run in loops."""
    return all(variant.in_loops for variant in variants_of(kernel)._variants.values())


def arguments(seed: int, real: str, threads: int) -> list[Any]:
    """Return arguments for a program that runs so many threads of two blocks."""
    uniform = np.random.default_rng(seed).uniform
    x, y, g1 = (uniform(0.2, 1.1, 2 * SIZE).astype(real) for _ in range(3))
    g0 = uniform(0.2, 1.1, (2, SIZE)).astype(real)
    return [
        x[:threads].copy() if threads < SIZE else x,
        y,
        3,
        g0,
        g1,
        np.zeros(2 * SIZE, real),
        np.zeros(2 * SIZE, real),
    ]


def copies(values: Sequence[Any]) -> list[Any]:
    """Return arguments with arrays of their own."""
    return [v.copy() if isinstance(v, np.ndarray) else v for v in values]


def same(one: Sequence[Any], other: Sequence[Any], what: str) -> None:
    """Check that arrays have the same bits."""
    for k, (a, b) in enumerate(zip(one, other, strict=True)):
        if isinstance(a, np.ndarray):
            assert a.tobytes() == b.tobytes(), f"{what}, argument {k}: {np.nonzero(a != b)}, {a}, {b}"


def compare(one: Any, other: Any, where: Geometry, values: Sequence[Any], what: str) -> None:
    """Check that two kernels give the same bits."""
    results = [copies(values) for _ in range(2)]
    for kernel, given in zip((one, other), results, strict=True):
        launcher(kernel, where)(*given)
    same(*results, what)


def derivatives(kernel: Any, geometry: Geometry, values: Sequence[Any]) -> tuple[list[list[Any]], list[bool]]:
    """Return what a kernel's adjoint and tangent leave in their arguments, and whether they run in loops."""
    names = [p.name for p, v in zip(kernel.parameters, values, strict=True) if isinstance(v, np.ndarray)]
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    found, looping = [], []
    for derivative in (kernel.adjoint(names), kernel.tangent(names)):
        random = np.random.default_rng(5)
        given = [*copies(values), *(random.normal(size=a.shape).astype(a.dtype) for a in arrays)]
        derivative.over(geometry)(*given)
        found.append(given)
        looping.append(in_loops(derivative))
    return found, looping


def check(seed: int, folder: Path, *, shape: tuple[int, ...], real: str, gradients: bool) -> list[bool]:
    """Compare both roads of a random program; return whether the kernel, and its adjoint and tangent, need no coroutines."""
    program = Program(seed, shape, real, derived=gradients)
    module = load(program.text, f"loops_{seed}_{real}_{'_'.join(map(str, shape))}", folder)
    grid = (2, *[1] * (len(shape) - 1))
    whole = tuple(g * b for g, b in zip(grid, shape, strict=True))
    values = arguments(seed, real, 2 * SIZE)
    one, other = module.program, module.alone
    where = geometry_of(one, whole, shape if len(shape) > 1 else shape[0])
    where = replace(where, place=replace(where.place, shared=DYNAMIC))
    try:
        compare(one, other, where, values, program.text)
    except nb.KernelError as error:
        raise AssertionError(program.text) from error
    found = [in_loops(one)]
    assert not in_loops(other)
    if gradients:
        (made, looping), (wanted, without) = (derivatives(kernel, where, values) for kernel in (one, other))
        assert not any(without)
        found += looping
        for k, (a, b) in enumerate(zip(made, wanted, strict=True)):
            same(a, b, f"{('adjoint', 'tangent')[k]} of {program.text}")
    return found
