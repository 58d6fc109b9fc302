"""Random expressions of kernels whose numbers are exact, for `forward_programs`.

Integers stay far below 2**63, and floats have so few digits that float32 holds them. Each expression knows its bounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# What each name holds at most: integers, floats, and how many binary digits behind the point
WHOLE, LARGE, DIGITS = 100, 32, 2
ROW, TABLE_SIZE = 4, 16
_MANTISSA, _WIDEST = 1 << 22, 1 << 40


@dataclass(frozen=True)
class E:
    """An expression, how large it may be, and how many binary digits it may have behind the point."""

    text: str
    most: int = 1
    digits: int = 0

    def __str__(self) -> str:
        return self.text


@dataclass
class Names:
    """What can be read: names, rows of ROW elements, tuples of three integers; and what can be written."""

    integers: dict[str, int] = field(default_factory=dict)
    floats: list[str] = field(default_factory=list)
    bools: list[str] = field(default_factory=list)
    complexes: list[str] = field(default_factory=list)
    vectors: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    float_rows: list[str] = field(default_factory=list)
    tuples: list[str] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    own_rows: list[str] = field(default_factory=list)

    def copy(self) -> Names:
        return Names(**{name: type(value)(value) for name, value in vars(self).items()})


def _power_of_two(a: int, b: int) -> int:
    return 2 << max(a, b).bit_length()


def _either(a: int, b: int) -> int:
    return max(a, b)


# Forms of two integers, a condition, a small integer and a divisor, and how large the result may be
_Bound = Callable[[int, int], int]
_INTEGERS: tuple[tuple[tuple[str, ...], _Bound], ...] = (
    (("({a} + {b})", "({a} - {b})"), lambda a, b: a + b),
    (("({a} + {b})", "({a} - {b})"), lambda a, b: a + b),
    (("({a} * {b})",), lambda a, b: a * b),
    (("min({a}, {b})", "max({a}, {b})", "np.minimum({a}, {b})", "np.maximum({a}, {b})", "min({a}, {b}, 3)"), _either),
    (("({a} // {by})", "({a} % {by})", "np.floor_divide({a}, {by})", "np.mod({a}, {by})"), lambda a, b: a + b + 17),
    (("divmod({a}, {by})[0]", "divmod({a}, {by})[1]"), lambda a, b: a + b + 17),
    (("np.clip({a}, -5, 9)", "np.clip({a}, a_max=9, a_min=None)"), lambda a, b: max(a, 9)),
    (("({a} & {b})", "({a} | {b})", "({a} ^ {b})"), _power_of_two),
    (("({a} >> 1)", "({a} >> ({small} & 3))", "({a} >> (abs({small}) % 5))"), lambda a, b: a + 1),
    (("({a} << 3)", "({a} << ({small} & 3))", "({a} << (abs({small}) % 5))"), lambda a, b: a << 4),
    (
        (
            "({a} if {c} else {b})",
            "np.where({c}, {a}, {b})",
            "({a} and {b})",
            "({a} or {b})",
            "({a}, {b})[-1]",
            "({a}, {b})[0]",
        ),
        _either,
    ),
    (("({a}) ** 2", "pow({a}, 3)", "({a}) ** 3"), lambda a, b: max(a, 1) ** 3),
    (("2 ** (abs({small}) % 5)", "(-2) ** (abs({small}) % 5)"), lambda a, b: 16),
    (
        ("({a} + ({c}))", "-{a}", "+{a}", "~{a}", "abs({a})", "np.abs({a})", "np.sign({a})", "int({a})"),
        lambda a, b: a + 1,
    ),
    (("np.int8({a})", "nb.int16({a})", "np.int64(np.uint8({a}))", "np.int64(np.uint16({a}))"), lambda a, b: 1 << 16),
    (("np.int32({a})", "nb.int32({a})"), lambda a, b: min(a, 1 << 31)),
    (("({a} + np.uint8({b}))",), lambda a, b: a + 256),
    (("int(not {a})", "int({c})"), lambda a, b: 1),
    (
        ("pair_of({a}, {b})[0]", "pair_of({a}, b={b})[-1]", "turned_of({a}, {b})[0]", "turned_of(*({a}, {b}))[1]"),
        _either,
    ),
    (("count_of(*SIZES[:1], {few})", "count_of(*SIZES[:2], 3)", "count_of({few}, 3, LEVEL)"), lambda a, b: 3),
)
_BY = ("3", "-5", "16", "({b} | 1)", "(abs({b}) + 1)", "LEVEL", "(2 if {c} else -7)")
# On CUDA math.floor gives a float.
_ROUNDED = ("int({0})", "round({0})", "int(math.floor({0}))", "int(math.ceil({0}))", "int(math.trunc({0}))")
_UNSIGNED = (
    *("({0} + {1})", "({0} * {1})", "({0} // ({1} | {2}))", "({0} % ({1} | {2}))", "({0} & {1})", "({0} ^ {1})"),
    *("min({0}, {1})", "max({0}, {1})", "({0} >> {2})", "np.uint32({0})", "({0} if {0} > {1} else {1})"),
)
_OF_ROWS = (
    "np.sum({0})",
    "{0}.sum()",
    "np.max({0})",
    "{0}.min()",
    "sum_of({0})",
    "span_of({0})",
    "alternating_of({0})",
    "sum(v for v in {0})",
    "sum(v & 3 for v in {0} if v > 1)",
    "sum(v * w // 64 for v in {0} for w in (3, -2) if (v + w) % 3)",
)
_IN_TABLE = ("{0} % 16", "{0} & 15", "-1 - ({0} & 15)", "-3", "abs({0}) % 16", "np.uint8({0}) % 16")
_IN_ROW = (
    *("0", "1", "-1", "-4", "{0} % 4", "{0} & 3", "-1 - ({0} & 3)", "min(max({0}, -4), 3)"),
    "np.int8({0}) % 4",
)
_CUTS = ("", "", "[1:]", "[::-1]", "[:{0}]", "[{0}:]", "[::2]", "[1:3]", "[-1::-2]")
# Forms of one float that change neither its size nor its digits, and such as leave no digits behind the point
_KEPT = ("abs({0})", "-{0}", "math.fabs({0})", "np.abs({0})", "float({0})", "np.float32({0})", "np.float64({0})")
_WHOLE = ("np.floor({0})", "np.ceil({0})", "np.rint({0})", "np.trunc({0})", "np.sign({0})")
_CHOSEN = (
    "min({0}, {1})",
    "max({0}, {1})",
    "np.minimum({0}, {1})",
    "np.fmax({0}, {1})",
    "({0} if {2} else {1})",
    "np.where({2}, {0}, {1})",
)
_CONDITIONS = (
    *(
        "{i} {r} {k}",
        "{i} {r} {k}",
        "{f} {r} {g}",
        "{i} < {k} {r} 5",
        "{i} {r} {f}",
        "{i} & 1",
        "bool({i})",
        "{i} % 3 == 1",
    ),
    *("bool({f})", "int({i}) in (1, 3, 7)", "{i} > 0", "({i} {r} {k} and {f} {r} {g})", "({i} > 0 or {k} {r} 3)"),
    *("any(v {r} {k} for v in range(3))", "all({i} {r} v for v in range(4) if v != 1)"),
    *("not {i} {r} {k}", "(({i} {r} {k}) & ({f} > 2))", "(({f} {r} {g}) ^ ({i} > 2))", "({i} > 1) == ({k} > 1)"),
)
_COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")
_COMPLEX = (
    *("tamed({0} + {1})", "tamed({0} - {1})", "tamed({0} * {1})", "{0}.conjugate()", "-{0}", "({0} if {2} else {1})"),
    *("tamed({0} * 2)", "tamed({0} + 1j)", "tamed(abs({0}.real) * {1})"),
)
_VECTORS = (
    *("bent({0} + {1})", "bent({0} - {1})", "-{0}", "bent(nb.cross({0}, {1}))", "bent({0} * 0.5)", "bent(2.0 * {0})"),
    *("({0} if {2} else {1})", "bent(nb.cw_mul({0}, {1}))", "bent({0} / 2.0)"),
    *("cycled({0})", "nb.vec3({0}[1:], {1}[0])", "nb.vec3(most_of({0}), {1}[::-2])"),
)


class Expressions:
    """Writes expressions; `pick(n)` is the next choice, below `n`."""

    def __init__(self, pick: Callable[[int], int]) -> None:
        self.pick = pick
        self.names = Names()
        self._counts = itertools.count()
        # Device functions, of integers and of floats
        self.functions: dict[str, list[str]] = {"i": [], "f": []}
        # Elements of arrays
        self.loads: dict[str, list[str]] = {"i": [], "f": [], "u": []}
        self.windows: list[str] = []
        self.in_function = False

    def one_of(self, *forms: Any) -> Any:
        return forms[self.pick(len(forms))]

    def name(self, prefix: str) -> str:
        return f"{prefix}{next(self._counts)}"

    def integer(self, depth: int = 2) -> E:
        if not depth or not self.pick(5):
            return self._integer_leaf()
        a, b = self.integer(depth - 1), self.integer(depth - 1)
        if not self.pick(4):
            return self._other_integer(a, b)
        forms, bound = self.one_of(*_INTEGERS)
        most = bound(min(a.most, 1 << 32), min(b.most, 1 << 32))
        if max(a.most, b.most) > 1 << 32 or most > _WIDEST:
            return a
        condition, small = self.condition(), self.within(b, 7)
        by = self.one_of(*_BY).format(b=b, c=condition)
        few = self.one_of("3", "LEVEL", "SIZES[0]")
        return E(self.one_of(*forms).format(a=a, b=b, c=condition, small=small, by=by, few=few), most)

    def _other_integer(self, a: E, b: E) -> E:
        """Write an integer down that is made of something else, such as a float, a row, or a call."""
        kind, names = self.pick(7), self.names
        if kind < 2:
            f = self.float(1)
            return E(self.one_of(*_ROUNDED).format(f), f.most + 1)
        if kind == 2 and self.functions["i"]:
            name, one, two = self.one_of(*self.functions["i"]), self.within(a, WHOLE), self.within(b, WHOLE)
            calls = ("{0}({1}, {2})", "{0}({1})", "{0}({1}, b={2})", "applied({0}, {1}, {2})", "{0}(*({1}, {2}))")
            return E(self.one_of(*calls).format(name, one, two), WHOLE)
        if kind == 3 and self.loads["u"]:
            u = self.unsigned(1)
            return E(self.one_of(f"np.int64({u})", f"np.int64({u} + {self.unsigned(0)})"), u.most + WHOLE)
        if kind == 4 and names.rows:
            row = self.one_of(self.one_of(*names.rows), self.cut(self.one_of(*names.rows)))
            forms = _OF_ROWS if row in names.rows else _OF_ROWS[4:]
            return E(self.one_of(*forms, "len({0})", "{0}.shape[0]").format(row), 2 * ROW * WHOLE)
        if kind == 5 and self.windows:
            return E(
                f"{self.one_of('sum_of', 'span_of', 'np.sum', 'len')}({self.one_of(*self.windows)})", 2 * ROW * WHOLE
            )
        if kind == 6 and names.tuples:
            return E(f"{self.one_of('sum', 'max', 'min')}({self.one_of(*names.tuples)})", 3 * WHOLE)
        return a

    def _integer_leaf(self) -> E:
        kind, names = self.pick(14), self.names
        if kind < 5 and names.integers:
            name = self.one_of(*names.integers)
            return E(name, names.integers[name])
        if kind < 7 and self.loads["i"]:
            return E(self.one_of(*self.loads["i"]), WHOLE)
        if kind == 7 and names.rows:
            return E(f"{self.one_of(*names.rows)}[{self.in_row()}]", WHOLE)
        if kind == 8 and names.tuples:
            return E(f"{self.one_of(*names.tuples)}[{self.one_of('0', '1', '2', '-1')}]", WHOLE)
        if kind == 9 and not self.in_function:
            return E(f"{self.one_of('TABLE', 'table')}[{self.in_table()}]", WHOLE)
        if kind == 10:
            known = ("LEVEL", "Kind.HIGH", "Kind.LOW.value", "Settings.offset", "SIZES[2]", "len(SIZES)")
            return E(self.one_of(*known), 16)
        if kind == 11 and names.bools:
            return E(f"({self.one_of(*names.bools)} + {self.one_of('1', '0', '2')})", 3)
        return E(self.one_of("0", "1", "2", "3", "7", "-1", "-4", "11", "50"), 50)

    def in_table(self) -> str:
        return self.one_of(*_IN_TABLE).format(self.integer(0))

    def in_row(self) -> str:
        return self.one_of(*_IN_ROW).format(self.integer(0))

    def cut(self, row: str) -> str:
        return row + self.one_of(*_CUTS).format(self.within(self.integer(0), 3))

    def unsigned(self, depth: int) -> E:
        if not depth or not self.loads["u"]:
            return E(self.one_of(*(self.loads["u"] or ["np.uint8(9)"])), WHOLE)
        a, b = self.unsigned(depth - 1), self.unsigned(depth - 1)
        return E(self.one_of(*_UNSIGNED).format(a, b, "np.uint8(3)"), max(a.most + b.most, a.most * b.most, 512))

    def float(self, depth: int = 2) -> E:
        if not depth or not self.pick(5):
            return self._float_leaf()
        a, b = self.float(depth - 1), self.float(depth - 1)
        n = self.integer(1)
        kind, digits = self.pick(13), max(a.digits, b.digits)
        made = a
        if kind < 3:
            made = E(f"({a} {self.one_of('+', '-')} {b})", a.most + b.most, digits)
        elif kind == 3:
            made = E(f"({a} * {b})", a.most * b.most, a.digits + b.digits)
        elif kind == 4:
            made = E(self.one_of(*_CHOSEN).format(a, b, self.condition()), max(a.most, b.most), digits)
        elif kind == 5:
            made = E(self.one_of(*_KEPT, "math.copysign({0}, -1.0)").format(a), a.most, a.digits)
        elif kind == 6:
            made = E(f"({a} {self.one_of('/ 2', '* 0.25', '/ 4.0', '/ -2.0')})", a.most, a.digits + 2)
        elif kind == 7:
            by = self.one_of("3", "2.5", "-4.0", f"(abs({b}) + 1)")
            made = E(f"({a} {self.one_of('//', '%')} {by})", a.most + b.most + 4, max(digits, 1))
        elif kind == 8:
            form = self.one_of("({0} + {1})", "({1} - {0})", "({0} + float({1}))")
            made = E(form.format(a, n), a.most + n.most, a.digits)
        elif kind == 9:
            form = self.one_of("({0} / 4)", "({0} * 0.5)", "float({0})", "np.float32({0})", "({0} / 2.0)")
            made = E(form.format(n), n.most, 2)
        elif kind == 10:
            made = E(self.one_of(*_WHOLE).format(a), a.most + 1)
        elif kind == 11:
            form = self.one_of("({0}) ** 2", "math.sqrt(({0}) ** 2)", "({0}) * ({0})")
            made = E(form.format(a), max(a.most, 1) ** 2, 2 * a.digits)
        else:
            made = self._other_float(a)
        # An intermediate result, such as the difference of a remainder, may be twice as large.
        return made if made.most << made.digits < _MANTISSA else a

    def _other_float(self, a: E) -> E:
        kind, names = self.pick(5), self.names
        if kind == 0 and names.complexes:
            return E(f"{self.one_of(*names.complexes)}.{self.one_of('real', 'imag')}", LARGE, DIGITS)
        if kind == 1 and names.vectors:
            p, q = self.one_of(*names.vectors), self.one_of(*names.vectors)
            form = self.one_of("{0}[0]", "{0}[-1]", "nb.dot({0}, {1})", "nb.length_sq({0})", "most_of({0})")
            return E(form.format(p, q), 3 * LARGE**2, 2 * DIGITS)
        if kind == 2 and self.functions["f"]:
            name, one, two = self.one_of(*self.functions["f"]), self.small_float(1), self.small_float(0)
            calls = ("{0}({1}, {2})", "{0}({1})", "applied({0}, {1}, {2})", "{0}(b={2}, a={1})")
            return E(self.one_of(*calls).format(name, one, two), LARGE, DIGITS)
        if kind == 3 and names.float_rows:
            return E(self.one_of(*_OF_ROWS[:4]).format(self.one_of(*names.float_rows)), ROW * LARGE, DIGITS)
        return E(f"math.fmod({a}, {self.one_of('8.0', '2.5')})", a.most, max(a.digits, 1))

    def _float_leaf(self) -> E:
        kind, names = self.pick(12), self.names
        if kind < 4 and names.floats:
            return E(self.one_of(*names.floats), LARGE, DIGITS)
        if kind < 7 and self.loads["f"]:
            return E(self.one_of(*self.loads["f"]), LARGE, DIGITS)
        if kind == 7 and names.float_rows:
            return E(f"{self.one_of(*names.float_rows)}[{self.in_row()}]", LARGE, DIGITS)
        if kind == 8 and not self.in_function:
            return E(f"HALVES[{self.in_table()}]", LARGE, DIGITS)
        if kind == 9:
            return E("SLOPE" if self.in_function or self.pick(2) else "a", 4, DIGITS)
        return E(self.one_of("0.5", "2.0", "-1.25", "3.0", "0.0", "16.0"), 16, DIGITS)

    def small_float(self, depth: int) -> E:
        """Write a float down that a name may hold."""
        return self.small(self.float(depth))

    def small(self, value: E) -> E:
        if value.digits > DIGITS:
            value = E(f"{self.one_of('np.floor', 'np.rint', 'np.ceil')}({value})", value.most + 1)
        if value.most > LARGE:
            forms = ("({0}) % 32.0", "min(max({0}, -32.0), 32.0)", "clamped({0}, 32.0)", "math.fmod({0}, 16.0)")
            value = E(self.one_of(*forms).format(value), LARGE, value.digits)
        return value

    def within(self, value: E, most: int) -> E:
        """Return an expression that is no larger than `most`."""
        if value.most <= most:
            return value
        bits = (1 << most.bit_length() - 1) - 1
        forms = ("({0}) % {1}", "min(max({0}, -{1}), {1})", f"(({{0}}) & {bits})", "clamped({0}, {1})")
        return E(self.one_of(*forms).format(value, most), most)

    def small_integer(self, depth: int) -> E:
        return self.within(self.integer(depth), WHOLE)

    def condition(self) -> str:
        if self.names.bools and not self.pick(6):
            return self.one_of(*self.names.bools)
        numbers = {"i": self.integer(0), "k": self.integer(0), "f": self.float(0), "g": self.float(0)}
        return self.one_of(*_CONDITIONS).format(**numbers, r=self.one_of(*_COMPARISONS))

    def complex(self, depth: int = 1) -> str:
        known = self.names.complexes
        if known and self.pick(4):
            a = self.one_of(*known)
            return self.one_of(*_COMPLEX).format(a, self.complex(0), self.condition()) if depth else a
        return f"complex({self.small_float(1)}, {self.small_float(0)})"

    def vector(self, depth: int = 1) -> str:
        known = self.names.vectors
        if known and self.pick(4):
            a = self.one_of(*known)
            return self.one_of(*_VECTORS).format(a, self.vector(0), self.condition()) if depth else a
        return f"nb.vec3({self.small_float(1)}, {self.small_float(0)}, {self.small_float(0)})"
