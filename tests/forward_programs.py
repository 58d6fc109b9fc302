"""Random kernels of general code: numbers of all widths, arrays, rows, tuples, loops, functions, and every form of launch.

A program is text, made of a stream of choices. All its numbers are exact, whatever the order in which they are computed, so that
results are compared bit for bit. Each name has a bound, which assignments keep to. Each thread writes to elements of its own,
loads from nowhere else of what is written, and adds to totals that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forward_expressions import DIGITS, WHOLE, E, Expressions, Names

_IDS = ("i", "j", "g", "h")
FLOATS = ("float32", "float64", "float32", "float64", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
# What functions of njit do not know
_NOT_IN_NJIT = ("clamped", "applied", "fn", "Settings", "Kind", "_of(", "nb.", "(v ", "np.clip", "np.where")
# How one index becomes those of all axes
_SPLITS = {
    2: (
        ["i = t // x.shape[1]", "j = t % x.shape[1]"],
        ["i, j = divmod(t, x.shape[1])"],
        ["i = t // x.shape[1]", "j = t - i * x.shape[1]"],
        ["i = t % n", "j = t // n"],
    ),
    3: (
        ["i = t // (x.shape[1] * x.shape[2])", "j = t // x.shape[2] % x.shape[1]", "g = t % x.shape[2]"],
        ["t, g = divmod(t, x.shape[2])", "i, j = divmod(t, x.shape[1])"],
        ["g = t % x.shape[2]", "rest = t // x.shape[2]", "j = rest % x.shape[1]", "i = rest // x.shape[1]"],
    ),
}


@dataclass(frozen=True)
class Kept:
    """An array of a program: its dtype, and what it is for."""

    dtype: str
    use: str


@dataclass(frozen=True)
class Program:
    text: str
    arrays: dict[str, Kept]
    aliases: dict[str, str]
    rank: int
    way: str
    has_more: bool
    overlap: int | None
    # Which axis each index of a launch is of; or one index for all
    order: tuple[int, ...]
    flat: bool


# Places in the first axis of an array: of one that is only read, and of a thread's own element in one that is written
_PLACES = (
    *("-1 - i", "p[i]", "(i + 1) % n", "i - 1", "n - 1 - i", "-n", "p[p[i]]", "0", "min(i + 1, n - 1)", "np.uint64(i)"),
    *("np.uint8(i) % n", "np.int32(i) - 1", "(i ^ 1) % n", "n // 2"),
)
_MAPPED = ("p[i]", "n - 1 - i", "-1 - i", "i - n")
# Slices, the first of which have three elements at most
_SPANS = (
    "max(i - 1, 0):i + 2",
    "i:i + 3",
    "-3:",
    ":2",
    "i - 3:i",
    "5:1",
    "n - 2:",
    "max(i - 2, 0):i + 1",
    "i::-1",
    ":i:3",
    "-2:-1",
    "::n",
)
_SHORT = 8
# Which threads do nothing: by the last index, how many of them there are, and all indices
_BORDERS = (
    *(
        "{0} == 0 or {0} >= {1} - 1",
        "{0} < 1 or {0} > {1} - 2",
        "not 0 < {0} < {1} - 1",
        "i % 2 == 1",
        "{0} > i",
        "2 * i >= n",
    ),
    *("i + 1 >= n", "{0} >= m + 2", "x[{2}] < 0", "i == n // 2", "i < 1 or {0} < 2 or {0} + 1 == {1}"),
)


class Writer(Expressions):
    """Writes one program; `pick(n)` is the next choice, below `n`."""

    def __init__(self, pick: Callable[[int], int]) -> None:
        super().__init__(pick)
        self.budget = 6 + pick(16)
        # Elements that may be stored to, and numbers of what kind
        self.stores: list[tuple[str, str]] = []
        self.loops = 0
        self.strides = False
        self.ids: tuple[str, ...] = ()
        self.own = self.rest = ""
        self.arrays: dict[str, Kept] = {}
        self.aliases: dict[str, str] = {}

    def block(self, level: int, count: int = 3) -> list[str]:
        """Write a block down, whose new names end with it."""
        outside, made = self.names, []
        self.names = outside.copy()
        for _ in range(1 + self.pick(count)):
            made += self.statement(level)
        self.names = outside
        return [f"    {line}" for line in made or ["pass"]]

    def statement(self, level: int) -> list[str]:
        self.budget -= 1
        kind = self.pick(20)
        if self.budget > 0 and level < 3:
            if kind < 3:
                return self._branch(level)
            if kind < 7:
                return self._loop(level)
        if kind in (7, 8) and self.loops:
            return [f"if {self.condition()}:", f"    {self.one_of('break', 'continue')}"]
        if kind == 9 and self.loops and not self.in_function and not self.pick(2):
            return [f"if {self.condition()}:", "    return"]
        if kind < 13 and self.stores:
            return self._store()
        if kind == 13 and level == 0 and not self.in_function:
            return self._memory()
        if kind == 14 and self.names.own_rows:
            return self._row_store()
        if kind == 15:
            return self._tuple()
        if kind == 16 and level == 0 and not self.in_function and not self.strides and self.names.rows:
            return self._row()
        return self._assignment()

    def _row(self) -> list[str]:
        """Give a row a name, or the one of two of an array that a condition chooses."""
        name, one, two = self.name("row"), self.one_of(*self.names.rows), self.one_of(*self.names.rows)
        are_alike = "row" not in one + two and one.split("[")[0] == two.split("[")[0] and "::" not in one + two
        self.names.rows.append(name)
        return [f"{name} = {one} if {self.condition()} else {two}" if are_alike else f"{name} = {one}"]

    def _branch(self, level: int) -> list[str]:
        way = 2 if self.in_function else self.pick(6)
        if way == 0:
            return self._match(level)
        if way == 1:
            name, value, bound = self.name("s"), self.small_integer(1), self.integer(0)
            lines = [f"if ({name} := {value}) {self.one_of('<', '>=', '!=')} {bound}:"]
            self.names.integers[name] = WHOLE
            return [*lines, *self.block(level + 1), "else:", *self.block(level + 1)]
        lines = [f"if {self.condition()}:", *self.block(level + 1)]
        for _ in range(self.pick(2)):
            lines += [f"elif {self.condition()}:", *self.block(level + 1)]
        return [*lines, "else:", *self.block(level + 1)] if self.pick(2) else lines

    def _match(self, level: int) -> list[str]:
        """Choose a block by a number, or by two."""
        n, are_two = self.name("n"), not self.pick(3)
        number = self.within(self.integer(1), 3)
        lines = [f"match {number}, {self.within(self.integer(1), 1)}:" if are_two else f"match {number}:"]
        cases = ("(0, 1)", "(1 | 2, _)", "(_, 0 | -1)") if are_two else ("0", "1 | -1 | Kind.HIGH", "-2", "3 | 2")
        guard = f" if {self.condition()}" if not self.pick(3) else ""
        for case in dict.fromkeys(self.one_of(*cases) for _ in range(1 + self.pick(2))):
            lines += [f"    case {case}{guard}:", *(f"    {line}" for line in self.block(level + 1))]
        if not self.pick(2):
            outside = self.names
            self.names = outside.copy()
            self.names.integers[n] = 4
            last = f"({n}, _)" if are_two else n
            lines += [f"    case {last}:", *(f"    {line}" for line in self.block(level + 1))]
            self.names = outside
        return lines

    def _loop(self, level: int) -> list[str]:
        outside, k = self.names, self.name("k")
        self.names = outside.copy()
        before, head, first = self._while(k) if not self.pick(4) else self._for(k)
        if before:  # so that the name can be read after the loop
            outside.integers[k] = 20
        total = self._total() if not self.pick(3) else None
        self.loops += 1
        body = [*(f"    {line}" for line in first), *self.block(level + 1)]
        self.loops -= 1
        self.names = outside
        # What ends a loop around may stand there, beside which no condition assigns.
        other = [] if ":=" in head or self.pick(6) else ["else:", *self.block(level + 1, 1)]
        if total is None:
            return [*before, head, *body, *other]
        s, start, line, last = total
        if s[0] == "r":
            self.names.floats.append(s)
        else:
            self.names.integers[s] = WHOLE
        # A trip that `continue` ends adds nothing.
        return [*before, f"{s} = {start}", head, *body, f"    {line}", *other, last]

    def _while(self, k: str) -> tuple[list[str], str, list[str]]:
        """Write down what precedes a loop, its head, and what its body begins with."""
        limit = self.within(self.integer(1), 7)
        condition = self.one_of(
            f"{k} < {limit}", f"{k} < 6 and {self.condition()}", f"{self.condition()} and {k} < 5", "True"
        )
        step = [f"{k} {self.one_of('+= 1', '+= 2', f'= {k} + 1')}"]
        stop = [f"if {k} > 6 or {self.condition()}:", "    break"] if condition == "True" else []
        before = [f"{k} = {self.one_of('0', '-2')}"]
        self.names.integers[k] = 20
        if not self.in_function and not self.pick(4):
            return before, f"while ({k} := {k} + {self.one_of('1', '2')}) < 6:", stop
        return before, f"while {condition}:", [*step, *stop]

    def _for(self, k: str) -> tuple[list[str], str, list[str]]:
        names, kind = self.names, self.pick(8)
        if kind == 0 and names.rows:
            head = f"for {k} in {self.cut(self.one_of(*names.rows))}:"
            names.integers[k] = WHOLE
            return [], head, []
        if kind == 1 and self.windows:
            names.integers[k] = WHOLE
            return [], f"for {k} in {self.one_of(*self.windows)}:", []
        if kind == 2 and names.float_rows and names.rows:
            one, two, q = self.one_of(*names.rows), self.one_of(*names.float_rows), self.name("q")
            names.integers[k] = WHOLE
            names.floats.append(q)
            return [], f"for {k}, {q} in {self.one_of(f'enumerate({two})', f'zip({one}, {two})')}:", []
        if kind == 3:
            names.integers[k] = WHOLE
            return [], f"for {k} in {self.one_of(*names.tuples, 'SIZES', '(1, 5, 2)')}:", []
        low, high = self.within(self.integer(1), 6), self.within(self.integer(1), 9)
        spans = (
            "{1}",
            "{0}, {1}",
            "{0}, {1}, 2",
            "{1}, {0}, -1",
            "{1}, {0}, -2",
            "4",
            "abs({0}) % 4 + 1",
            "0, {1}, abs({0}) + 1",
        )
        span = self.one_of(*spans, "len(SIZES)", "3, -1, -1", "3" if self.in_function else "m").format(low, high)
        names.integers[k] = 20
        return [] if self.pick(4) else [f"{k} = {self.one_of('0', '-1', '5')}"], f"for {k} in range({span}):", []

    def _total(self) -> tuple[str, str, str, str]:
        """Write down a name that a loop adds to, which nothing else reads before the loop's end."""
        if self.pick(2):
            s, value = self.name("r"), self.small_float(1)
            return s, "0.0", f"{s} {self.one_of('+=', '-=')} {value}", f"{s} = {self.small(E(s, 1000, DIGITS))}"
        s, value = self.name("s"), self.small_integer(1)
        op = self.one_of("+=", "-=", "^=", "|=")
        return s, self.one_of("0", "1"), f"{s} {op} {value}", f"{s} = {self.within(E(s, 5000), WHOLE)}"

    def _store(self) -> list[str]:
        target, kind = self.one_of(*self.stores)
        if kind == "t":
            value = self.within(self.integer(1), 7)
            at = self.one_of(self.in_table(), self.in_table(), "0", "-1")
            call = self.one_of("nb.atomic_add", "nb.atomic_add", "cuda.atomic.add", "nb.atomic_max", "nb.atomic_min")
            # Each total is of one kind of operation, whose order does not matter.
            name = {"add": "tot", "max": "most", "min": "least"}[call[-3:]]
            return [f"{call}({name}, {at}, {value})"]
        if kind == "f":
            return [f"{target} = {self.small_float(2)}"]
        if kind == "w":
            return [f"{target} = {self.integer(2)}"]
        if kind == "u":
            value = self.unsigned(2)
            return [f"{target} = min({value}, np.uint8(90))"]
        if kind == "b":
            return [f"{target} = {self.condition()}"]
        if kind == "c":
            return [f"{target} = {self.complex()}"]
        if kind == "v":
            return (
                [f"{target} = {self.vector()}"]
                if self.pick(3)
                else [f"{target}[{self.pick(3)}] = {self.small_float(1)}"]
            )
        value = self.small_integer(2)
        return [f"{target} = {value}" if kind == "i" else f"{target} = abs({value})"]

    def _memory(self) -> list[str]:
        """Make local memory, and fill it."""
        name, k, is_float = self.name("o"), self.name("k"), bool(self.pick(2))
        dtypes = (
            ("np.float32", "np.float64", "nb.float32") if is_float else ("np.int8", "np.int16", "np.int32", "nb.int64")
        )
        dtype = self.one_of(*dtypes)
        value = self.small_float(1) if is_float else self.small_integer(1)
        kept, rows = self.names, (self.names.float_rows if is_float else self.names.rows)
        lines = [
            f"{name}_all = cuda.local.array({{}}, {dtype})",
            f"{name}_all[:] = {value}",
            f"{name} = {name}_all{{}}",
        ]
        form = self.pick(5)
        if form == 0:
            lines = [lines[0].format("(3, 4)"), lines[1], lines[2].format(self.one_of("[0]", "[2]", "[-1]"))]
        elif form == 1:
            lines = [
                lines[0].format("8"),
                lines[1],
                lines[2].format(self.one_of("[::2]", "[4:]", "[:4]", "[::-2]", "[-4:]")),
            ]
        elif form == 2 and not self.strides:
            lines = [f"{name} = np.{self.one_of('zeros', 'ones')}(4, {dtype})"]
        else:
            made = f"{name} = cuda.local.array({self.one_of('4', '(4,)', 'LENGTH')}, {dtype})"
            lines = [made, f"for {k} in range(4):", f"    {name}[{k}] = {value}"]
        rows.append(name)
        kept.own_rows.append(name)
        return lines

    def _row_store(self) -> list[str]:
        row = self.one_of(*self.names.own_rows)
        value = self.small_float(1) if row in self.names.float_rows else self.small_integer(1)
        at = self.in_row()
        kind = self.pick(6)
        if kind < 4:
            return [f"{row}[{at}] = {value}"]
        if kind == 4:
            return [f"{row}[{self.one_of('1:3', ':2', '::2', '-2:')}] = {value}"]
        if row in self.names.float_rows:
            return [f"{row}[0], {row}[3] = {row}[3], {row}[0]"]
        return [f"{row}[{at}] {self.one_of('//=', '%=')} 7"]

    def _tuple(self) -> list[str]:
        name = self.name("t")
        if self.names.tuples and not self.pick(2):
            a, b, c = (self.name("s") for _ in range(3))
            self.names.integers.update(dict.fromkeys((a, b, c), WHOLE))
            return [f"{a}, {b}, {c} = {self.one_of(*self.names.tuples)}"]
        parts = [self.small_integer(1) for _ in range(3)]
        self.names.tuples.append(name)
        return [f"{name} = ({', '.join(f'np.int64({part})' for part in parts)})"]

    def _assignment(self) -> list[str]:
        names, kind = self.names, self.pick(14)
        free = names.free
        if kind < 3 or not free:
            return self._new_name()
        name = self.one_of(*free)
        if name in names.integers:
            limit = names.integers[name]
            if kind == 3:
                others = [
                    other
                    for other in free
                    if other in names.integers and other != name and names.integers[other] == limit
                ]
                if others:
                    other = self.one_of(*others)
                    return [f"{name}, {other} = {other}, {name}"]
            if kind == 4:
                return [f"{name} {self.one_of('%=', '//=')} {self.one_of('7', '-3', '4')}"]
            if kind == 5:
                return [f"{name} {self.one_of('>>=', '&=')} {self.one_of('1', '3')}"]
            return [f"{name} = {self.within(self.integer(2), limit)}"]
        if name in names.floats:
            return [f"{name} *= -1.0" if kind == 3 else f"{name} = {self.small_float(2)}"]
        if name in names.bools:
            return [f"{name} = {self.condition()}" if kind > 3 else f"{name} = not {name}"]
        if name in names.complexes:
            return [f"{name} = {self.complex()}"]
        return [f"{name} = {self.vector()}"]

    def _new_name(self) -> list[str]:
        kind = self.pick(9)
        if kind < 3:
            name = self.name("n")
            line = f"{name} = {self.small_integer(2)}"
            self.names.integers[name] = WHOLE
        elif kind < 6:
            name = self.name("f")
            line = f"{name} = {self.small_float(2)}"
            self.names.floats.append(name)
        elif kind == 6:
            name = self.name("b")
            line = f"{name} = {self.one_of('', 'not ')}({self.condition()})"
            line = line if "not" in line else f"{name} = bool({self.condition()})"
            self.names.bools.append(name)
        elif kind == 7 and not self.in_function:
            name = self.name("z")
            line = f"{name} = {self.complex()}"
            self.names.complexes.append(name)
        elif not self.in_function:
            name = self.name("p")
            line = f"{name} = {self.vector()}"
            self.names.vectors.append(name)
        else:
            return ["pass"]
        self.names.free.append(name)
        return [line]

    def function(self) -> list[str]:
        """Write a device function down, of integers or of floats."""
        kind, name, form = self.one_of("i", "f"), self.name("fn"), self.pick(6)
        saved = self.names, self.loads, self.stores, self.budget
        self.names, self.loads, self.stores = Names(free=["a", "b"]), {"i": [], "f": [], "u": []}, []
        self.loops, self.in_function, self.budget = 0, True, 6
        if kind == "i":
            self.names.integers.update(a=WHOLE, b=WHOLE)
        else:
            self.names.floats += ["a", "b"]

        def value() -> str:
            return str(self.small_integer(2) if kind == "i" else self.small_float(2))

        head = f"def {name}(a, b={'3' if kind == 'i' else '1.5'}):"
        if form == 0:
            lines = [f"{name} = nb.func(lambda a, b=2: {value()})"]
        elif form == 1:
            rest = f"{name}({'a // 2' if kind == 'i' else 'np.floor(a) - 8.0'}, b)"
            lines = ["@nb.func", head, "    if a < 1:", f"        return {value()}", f"    return {rest}"]
        else:
            body = [f"if {self.condition()}:", f"    return {value()}"] if self.pick(2) else []
            body += [line for _ in range(1 + self.pick(3)) for line in self.statement(1)]
            body = [f"    {line}" for line in [*body, f"return {value()}"]]
            needs_kernel = any(word in line for line in body for word in _NOT_IN_NJIT)
            lines = ["@nb.func" if needs_kernel or self.pick(2) else "@njit(error_model='numpy')", head, *body]
        self.names, self.loads, self.stores, self.budget = saved
        self.in_function = False
        self.functions[kind].append(name)
        return [*lines, ""]

    def program(self) -> Program:
        rank = self.one_of(1, 1, 1, 2, 2, 3, 4)
        ways = {
            1: ("launch", "grid", "stride", "parts"),
            2: ("launch", "grid", "stride"),
            3: ("launch", "grid"),
            4: ("launch",),
        }
        way = self.one_of(*ways[rank])
        self.strides = way == "stride"
        self.ids = _IDS[:rank]
        self.own, self.rest = ", ".join(self.ids), "".join(f", {axis}" for axis in self.ids[1:])
        functions = [line for _ in range(self.pick(3)) for line in self.function()]
        self._arrays_of_numbers()
        self._outputs()
        lines = self._arrays_of_rows()
        overlap = None if self.pick(3) else self._overlapping_rows()
        has_more = not self.pick(3)
        self.names.integers.update(dict.fromkeys(self.ids, 127), n=127, m=5, depth=16)
        if has_more:
            self.names.tuples.append("ts")
            self.names.floats.append("base")
            lines += ["base = 1.5", "if opt is not None:", f"    base = opt[{self.own}]"]
        for _ in range(2 + self.pick(3)):
            lines += self._new_name()
        while self.budget > 0:
            lines += self.statement(0)
        lines += self._last_stores() or ["pass"]
        flat = 1 < rank < 4 and not self.strides and not self.pick(4)
        order = list(range(rank))
        if not (self.strides or flat or self.pick(3)):
            order = [order.pop(self.pick(len(order))) for _ in self.ids]
        head, lines = self._head("flat " + way if flat else way, order, lines)
        parameters = [*self.arrays, "n", "m", "a", *(["opt", "ts"] if has_more else []), "depth"]
        kernel = [f"def generated({', '.join(parameters)}):", *(f"    {line}" for line in [*head, *lines])]
        text = "\n".join([*functions, *kernel, ""])
        return Program(text, self.arrays, self.aliases, rank, way, has_more, overlap, tuple(order), flat)

    def _arrays_of_numbers(self) -> None:
        """Declare arrays that are read, and such as each thread has an element of, which may be the same memory."""
        own, rest = self.own, self.rest
        mapped = own if self.pick(4) else self.one_of(*_MAPPED) + rest
        self.arrays["p"] = Kept(self.one_of("int32", "int64"), "p")
        self.arrays["table"] = Kept(self.one_of(*SIGNED), "table")
        for name, also, kind, dtypes in (("x", "w", "i", SIGNED), ("y", "v", "f", FLOATS), ("u", "", "u", UNSIGNED)):
            if name == "u" and self.pick(3):
                continue
            self.arrays[name] = Kept(self.one_of(*dtypes), "read")
            places = [own, own, own, *(place + rest for place in _PLACES)]
            self.loads[kind] += [f"{name}[{place}]" for place in places]
            if rest:
                self.loads[kind].append(f"{name}[i][{rest[2:]}]")
            if not also or self.pick(2):
                continue
            self.arrays[also] = Kept(self.one_of(*dtypes), "own")
            self.stores.append((f"{also}[{mapped}]", kind))
            self.loads[kind] += [f"{also}[{mapped}]"] * 4
            if not self.pick(4):
                self.aliases[name] = also
                self.arrays[name] = Kept(self.arrays[also].dtype, "read")
                self.loads[kind] = [f"{one}[{mapped}]" for one in (name, also)]
        if "x" not in self.aliases:
            self.windows = [f"x[{span}{rest}]{'' if k < _SHORT else '[:3]'}" for k, span in enumerate(_SPANS)]
            if rest:
                axis = self.ids[-1]
                self.windows += [
                    f"x[{', '.join(self.ids[:-1])}, {span.replace('i', axis)}][:3]" for span in _SPANS[:_SHORT]
                ]

    def _outputs(self) -> None:
        own, names = self.own, self.names
        for name, dtypes, kind, known in (
            ("oi", (*SIGNED, *UNSIGNED), "w", []),
            ("of", FLOATS, "f", []),
            ("ob", ("bool",), "b", names.bools),
            ("oc", ("complex64", "complex128"), "c", names.complexes),
            ("ou", UNSIGNED, "u", []),
        ):
            if self.pick(2):
                self.arrays[name] = Kept(self.one_of(*dtypes), "own")
                self.stores.append((f"{name}[{own}]", kind))
                known.append(f"{name}[{own}]")
        if not self.pick(3):
            for name in ("tot", "most", "least"):
                self.arrays[name] = Kept(self.one_of("int32", "int64", "float32", "float64"), "totals")
            self.stores.append(("tot", "t"))
        if not self.pick(3):
            self.arrays["rec"] = Kept("record", "own")
            fields = {"flag": "a", "x": "f", "mass": "f", "kind": "i"}
            self.stores += [(f"rec[{own}].{name}", kind) for name, kind in fields.items()]
            self.loads["i"] += [f"rec[{own}].kind", f"np.int64(rec[{own}].flag)"]
            self.loads["f"] += [f"rec[{own}].x", f"rec[{own}]['mass']"]

    def _arrays_of_rows(self) -> list[str]:
        own, rest, names, lines = self.own, self.rest, self.names, []
        if not self.pick(3):
            self.arrays["r"] = Kept(self.one_of(*SIGNED), "rows")
            names.rows += [f"r[{own}]", f"r[p[i]{rest}]", f"r[-1 - i{rest}, ::-1]", "row"]
            lines.append(self.one_of(f"row = r[{own}]", f"row = r[p[i]{rest}, :]"))
        if not self.pick(3):
            self.arrays["rf"] = Kept(self.one_of("float32", "float64"), "rows")
            lines.append(f"frow = rf[{own}]")
            names.float_rows += ["frow", f"rf[{own}]"]
            names.own_rows.append(self.one_of("frow", f"rf[{own}]"))
        if len(self.ids) < 3 and not self.pick(3):
            self.arrays["q"], self.arrays["ov"] = Kept("float32", "vectors"), Kept("float32", "vectors")
            names.vectors += [f"q[{own}]", f"q[-1 - i{rest}]", f"ov[{own}]"]
            self.stores.append((f"ov[{own}]", "v"))
        return lines

    def _overlapping_rows(self) -> int:
        """Declare two arrays of one memory; return how far after its row in one a thread's row in the other begins."""
        own, dtype = self.own, self.one_of("int32", "int64", "int16")
        self.arrays["ra"], self.arrays["rb"] = Kept(dtype, "rows"), Kept(dtype, "rows")
        self.names.rows += [f"ra[{own}]", f"rb[{own}]"]
        self.names.own_rows += [f"rb[{own}]"] * 2
        self.loads["i"] += [f"ra[{own}, {k}]" for k in ("1", "-1", "3", "i % 4")]
        return self.pick(3)

    def _last_stores(self) -> list[str]:
        """Store what names hold at the end."""
        made, names = [], self.names
        known = {"f": names.floats, "b": names.bools, "c": names.complexes, "v": names.vectors}
        for name in names.free:
            for target, kind in self.stores:
                if name in known.get(kind, names.integers if kind in "iwa" else ()) and self.pick(2):
                    made.append(f"{target} = {f'abs({name})' if kind == 'a' else name}")
        return made + [line for _ in self.stores if not self.pick(3) for line in self._store()]

    def _head(self, way: str, order: list[int], lines: list[str]) -> tuple[list[str], list[str]]:
        """Write down which element a thread has; return what follows, too."""
        rank, last, width = len(self.ids), self.ids[-1], f"x.shape[{len(self.ids) - 1}]"
        ids = ", ".join(self.ids[axis] for axis in order)
        if not self.strides and not self.pick(6):
            inner = self.one_of(
                f"if 0 < {last} and {last} < {width} - 1:", f"if {last} < {width} - 2 and i > 0:", "if i != 1:"
            )
            lines = [inner, *(f"    {line}" for line in lines)]
        if not self.strides and not self.pick(3):
            lines = [f"if {self.one_of(*_BORDERS).format(last, width, self.own)}:", "    return", *lines]
        if way == "launch":
            return [f"{ids} = nb.tid()"], lines
        if way[:4] == "flat":
            head = ["t = nb.tid()"] if "launch" in way else ["t = cuda.grid(1)", "if t >= x.size:", "    return"]
            return [*head, *self.one_of(*_SPLITS[rank])], lines
        if way == "stride" and rank == 2:
            head = ["start, first = cuda.grid(2)", "step, across = cuda.gridsize(2)", "for i in range(start, n, step):"]
            return [*head, "    for j in range(first, x.shape[1], across):"], [f"        {line}" for line in lines]
        if way == "stride" and self.pick(2):
            return ["i = cuda.grid(1)", "while i < n:"], [f"    {line}" for line in [*lines, "i += cuda.gridsize(1)"]]
        if way == "stride":
            head = ["start, step = cuda.grid(1), cuda.gridsize(1)", "for i in range(start, n, step):"]
            return head, [f"    {line}" for line in lines]
        index = (
            "i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x"
            if way == "parts"
            else f"{ids} = cuda.grid({rank})"
        )
        if self.pick(3):
            outside = " or ".join(f"{axis} >= x.shape[{k}]" for k, axis in enumerate(self.ids))
            return [index, f"if {outside}:", "    return"], lines
        inside = " and ".join(f"{axis} < x.shape[{k}]" for k, axis in enumerate(self.ids))
        return [index, f"if {inside}:"], [f"    {line}" for line in lines]
