"""Translates PTX instructions to LLVM IR (PTX ISA, chapter 9), and refuses those that it does not know.

Approximate instructions (``sin.approx``) give the nearest value here, where a GPU may be some units in the last place off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ptx_emulator.program import BITS

# LLVM's names of PTX's floating types; everything else is an integer there
LLVM = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}
# The values of llvm.set.rounding (LLVM language reference; C's FLT_ROUNDS)
_ROUNDING = {"rz": 0, "rp": 2, "rm": 3}
_HANDLERS: dict[str, tuple[Callable[..., None], frozenset[str]]] = {}


@dataclass
class Instruction:
    """One instruction: its operation, what stands behind dots, its operands, and its line in the text."""

    operation: str
    modifiers: list[str]
    operands: list[str]
    line: int

    @property
    def kinds(self) -> list[str]:
        return [each for each in self.modifiers if each in BITS]

    @property
    def kind(self) -> str:
        return self.kinds[-1]

    @property
    def bits(self) -> int:
        return BITS[self.kind]

    @property
    def is_float(self) -> bool:
        return self.kind in LLVM

    @property
    def type(self) -> str:
        """The LLVM type of the values."""
        return LLVM.get(self.kind) or f"i{self.bits}"

    def has(self, *modifiers: str) -> bool:
        return any(each in self.modifiers for each in modifiers)


def translate(body: Any, text: str, line: int) -> None:
    """Add the translation of one instruction to a body."""
    head, _, rest = text.partition(" ")
    operation, *modifiers = re.split(r"\.|::", head)
    handler, known = _HANDLERS.get(operation, (None, frozenset()))
    unknown = [each for each in modifiers if each not in BITS and each not in known]
    if handler is None or unknown:
        raise NotImplementedError(f"PTX line {line}: {text}")
    handler(body, Instruction(operation, modifiers, _operands(rest), line))


def _operands(text: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{}\[\]()])+", text)
    return [part.strip() for part in parts if part.strip()]


def handles(*operations: str, modifiers: str = "") -> Callable[[Any], Any]:
    def register(handler: Any) -> Any:
        for operation in operations:
            _HANDLERS[operation] = (handler, frozenset(modifiers.split()))
        return handler

    return register


def _reads(body: Any, it: Instruction, *which: int) -> list[str]:
    return [_flushed(body, it, body.read(it.operands[k], it.kind)) for k in which or range(1, len(it.operands))]


def _writes(body: Any, it: Instruction, value: str) -> None:
    value = _flushed(body, it, value)
    if it.has("sat"):
        value = _saturated(body, it.type, it.kind, value)
    body.write(it.operands[0], value, it.kind)


def _flushed(body: Any, it: Instruction, value: str) -> str:
    """Return a float32 with ``.ftz``: zero of the same sign instead of a subnormal number."""
    if not (it.has("ftz") and it.kind == "f32"):
        return value
    size = body.emit(f"call float @llvm.fabs.f32(float {value})")
    small = body.emit(f"fcmp olt float {size}, 0x3810000000000000")
    zero = body.emit(f"call float @llvm.copysign.f32(float 0.0, float {value})")
    return body.emit(f"select i1 {small}, float {zero}, float {value}")


def _saturated(body: Any, kind: str, suffix: str, value: str) -> str:
    # NaN becomes zero: of NaN and a number, maximumnum is the number.
    low = body.emit(f"call {kind} @llvm.maximumnum.{suffix}({kind} {value}, {kind} 0.0)")
    return body.emit(f"call {kind} @llvm.minimumnum.{suffix}({kind} {low}, {kind} 1.0)")


def _rounded(body: Any, it: Instruction, operation: str, values: list[str], source: str = "") -> str:
    """Return a floating-point operation, or a conversion from `source`, that is not rounded to the nearest."""
    way = next(each for each in it.modifiers if each in _ROUNDING)
    kind = LLVM[it.kinds[0]]
    of, suffix = (_llvm_type(source), f"{it.kinds[0]}.{_suffix(source)}") if source else (kind, it.kinds[0])
    name = f"nb_{operation}_{way}_{suffix}"
    given = ", ".join(f"{of} %v{k}" for k in range(len(values)))
    text = (
        f"define internal {kind} @{name}({given}) noinline strictfp {{\n"
        f"  call void @llvm.set.rounding(i32 {_ROUNDING[way]}) strictfp\n"
        f"  %r = call {kind} @llvm.experimental.constrained.{operation}.{suffix}({given}, "
        'metadata !"round.dynamic", metadata !"fpexcept.ignore") strictfp\n'
        f"  call void @llvm.set.rounding(i32 1) strictfp\n  ret {kind} %r\n}}"
    )
    helper = body.module.helper(name, text)
    return body.emit(f"call {kind} {helper}({', '.join(f'{of} {v}' for v in values)})")


def _llvm_type(kind: str) -> str:
    return LLVM.get(kind) or f"i{BITS[kind]}"


def _suffix(kind: str) -> str:
    return kind if kind in LLVM else f"i{BITS[kind]}"


_ARITHMETIC = "rn rz rm rp ftz sat approx full lo hi wide cc noftz"


@handles("add", "sub", "addc", "subc", modifiers=_ARITHMETIC)
def _add(body: Any, it: Instruction) -> None:
    if it.operation.endswith("c") or it.has("cc"):
        _carried(body, it, *_reads(body, it), it.operation[:3])
        return
    left, right = _reads(body, it)
    name = ("f" if it.is_float else "") + it.operation
    if it.is_float and it.has(*_ROUNDING):
        _writes(body, it, _rounded(body, it, name, [left, right]))
    else:
        _writes(body, it, body.emit(f"{name} {it.type} {left}, {right}"))


def _carried(body: Any, it: Instruction, left: str, right: str, operation: str) -> None:
    """Add or subtract with the carry flag: into it with ``.cc``, and from it with a ``c`` at the operation's end."""
    bits, wide = it.bits, 2 * it.bits
    parts = [body.emit(f"zext i{bits} {value} to i{wide}") for value in (left, right)]
    total = body.emit(f"{operation} i{wide} {parts[0]}, {parts[1]}")
    if it.operation.endswith("c"):
        carry = body.emit(f"zext i1 {body.emit('load i1, ptr %carry')} to i{wide}")
        total = body.emit(f"{operation} i{wide} {total}, {carry}")
    if it.has("cc"):
        out = body.emit(f"trunc i{wide} {body.emit(f'lshr i{wide} {total}, {bits}')} to i1")
        body.do(f"store i1 {out}, ptr %carry")
    body.write(it.operands[0], body.emit(f"trunc i{wide} {total} to i{bits}"), it.kind)


def _product(body: Any, it: Instruction, left: str, right: str) -> tuple[str, str]:
    """Return a product's low or high half, or the whole, and the PTX type that it has."""
    if it.has("lo") or not it.has("hi", "wide"):
        return body.emit(f"mul {it.type} {left}, {right}"), it.kind
    bits, wide = it.bits, 2 * it.bits
    widen = "sext" if it.kind[0] == "s" else "zext"
    parts = [body.emit(f"{widen} i{bits} {value} to i{wide}") for value in (left, right)]
    whole = body.emit(f"mul i{wide} {parts[0]}, {parts[1]}")
    if it.has("wide"):
        return whole, f"{it.kind[0]}{wide}"
    return body.emit(f"trunc i{wide} {body.emit(f'lshr i{wide} {whole}, {bits}')} to i{bits}"), it.kind


@handles("mul", modifiers=_ARITHMETIC)
def _mul(body: Any, it: Instruction) -> None:
    left, right = _reads(body, it)
    if not it.is_float:
        value, kind = _product(body, it, left, right)
        body.write(it.operands[0], value, kind)
    elif it.has(*_ROUNDING):
        _writes(body, it, _rounded(body, it, "fmul", [left, right]))
    else:
        _writes(body, it, body.emit(f"fmul {it.type} {left}, {right}"))


@handles("fma", "mad", "madc", modifiers=_ARITHMETIC)
def _fma(body: Any, it: Instruction) -> None:
    if not it.is_float:
        product, kind = _product(body, it, *_reads(body, it, 1, 2))
        third = body.read(it.operands[3], kind)
        if it.has("cc") or it.operation == "madc":
            _carried(body, it, product, third, "add")
        else:
            body.write(it.operands[0], body.emit(f"add i{BITS[kind]} {product}, {third}"), kind)
        return
    values = _reads(body, it)
    if it.has(*_ROUNDING):
        _writes(body, it, _rounded(body, it, "fma", values))
    else:
        given = ", ".join(f"{it.type} {value}" for value in values)
        _writes(body, it, body.emit(f"call {it.type} @llvm.fma.{it.kind}({given})"))


@handles("div", "rem", modifiers=_ARITHMETIC)
def _div(body: Any, it: Instruction) -> None:
    left, right = _reads(body, it)
    if it.is_float:
        value = _rounded(body, it, "fdiv", [left, right]) if it.has(*_ROUNDING) else None
        _writes(body, it, value or body.emit(f"fdiv {it.type} {left}, {right}"))
        return
    # "Division by zero yields an unspecified, machine-specific value": all bits set here; and the CPU would stop at the
    # smallest number by -1 too, whose quotient wraps to itself.
    zero = body.emit(f"icmp eq {it.type} {right}, 0")
    signed = it.kind[0] == "s"
    minus = body.emit(f"icmp eq {it.type} {right}, -1") if signed else "false"
    unsafe = body.emit(f"or i1 {zero}, {minus}")
    safe = body.emit(f"select i1 {unsafe}, {it.type} 1, {it.type} {right}")
    value = body.emit(f"{'s' if signed else 'u'}{it.operation} {it.type} {left}, {safe}")
    if signed:
        other = "0" if it.operation == "rem" else body.emit(f"sub {it.type} 0, {left}")
        value = body.emit(f"select i1 {minus}, {it.type} {other}, {it.type} {value}")
    body.write(it.operands[0], body.emit(f"select i1 {zero}, {it.type} -1, {it.type} {value}"), it.kind)


@handles("abs", "neg", modifiers="ftz")
def _sign(body: Any, it: Instruction) -> None:
    (value,) = _reads(body, it)
    if it.is_float:
        done = f"call {it.type} @llvm.fabs.{it.kind}({it.type} {value})" if it.operation == "abs" else None
        _writes(body, it, body.emit(done or f"fneg {it.type} {value}"))
    elif it.operation == "abs":
        body.write(
            it.operands[0], body.emit(f"call {it.type} @llvm.abs.i{it.bits}({it.type} {value}, i1 false)"), it.kind
        )
    else:
        body.write(it.operands[0], body.emit(f"sub {it.type} 0, {value}"), it.kind)


@handles("sad")
def _distance(body: Any, it: Instruction) -> None:
    left, right, third = _reads(body, it)
    order = "slt" if it.kind[0] == "s" else "ult"
    less = body.emit(f"icmp {order} {it.type} {left}, {right}")
    over, under = (body.emit(f"sub {it.type} {a}, {b}") for a, b in ((left, right), (right, left)))
    size = body.emit(f"select i1 {less}, {it.type} {under}, {it.type} {over}")
    body.write(it.operands[0], body.emit(f"add {it.type} {size}, {third}"), it.kind)


@handles("min", "max", modifiers="ftz NaN")
def _extreme(body: Any, it: Instruction) -> None:
    left, right = _reads(body, it)
    if it.is_float:
        name = f"{it.operation}imum{'' if it.has('NaN') else 'num'}"
        suffix = it.kind
    else:
        name = f"{'s' if it.kind[0] == 's' else 'u'}{it.operation}"
        suffix = f"i{it.bits}"
    _writes(body, it, body.emit(f"call {it.type} @llvm.{name}.{suffix}({it.type} {left}, {it.type} {right})"))


_FUNCTIONS = {"sqrt": "sqrt", "ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}


@handles("sqrt", "ex2", "lg2", "sin", "cos", "tanh", modifiers="approx rn rz rm rp ftz")
def _function(body: Any, it: Instruction) -> None:
    (value,) = _reads(body, it)
    if it.has(*_ROUNDING):
        _writes(body, it, _rounded(body, it, it.operation, [value]))
        return
    _writes(body, it, body.emit(f"call {it.type} @llvm.{_FUNCTIONS[it.operation]}.{it.kind}({it.type} {value})"))


@handles("rcp", "rsqrt", modifiers="approx rn rz rm rp ftz")
def _reciprocal(body: Any, it: Instruction) -> None:
    (value,) = _reads(body, it)
    if it.has(*_ROUNDING):
        _writes(body, it, _rounded(body, it, "fdiv", ["1.0", value]))
        return
    if it.operation == "rsqrt":
        value = body.emit(f"call {it.type} @llvm.sqrt.{it.kind}({it.type} {value})")
    done = body.emit(f"fdiv {it.type} 1.0, {value}")
    if it.kind == "f64" and it.has("ftz"):
        # This knows the upper half of a float64 only: the lower is zero.
        bits = body.emit(f"and i64 {body.emit(f'bitcast double {done} to i64')}, -4294967296")
        done = body.emit(f"bitcast i64 {bits} to double")
    _writes(body, it, done)


@handles("copysign")
def _copysign(body: Any, it: Instruction) -> None:
    sign, size = _reads(body, it)
    _writes(body, it, body.emit(f"call {it.type} @llvm.copysign.{it.kind}({it.type} {size}, {it.type} {sign})"))


# The bits of llvm.is.fpclass
_CLASSES = {"infinite": 0x204, "finite": 0x1F8, "number": 0x3FC, "notanumber": 3, "normal": 0x108, "subnormal": 0x90}


@handles("testp", modifiers=" ".join(_CLASSES))
def _testp(body: Any, it: Instruction) -> None:
    (value,) = _reads(body, it)
    classes = _CLASSES[it.modifiers[0]]
    done = body.emit(f"call i1 @llvm.is.fpclass.{it.kind}({it.type} {value}, i32 {classes})")
    body.write(it.operands[0], done, "pred")


# Bits


@handles("and", "or", "xor")
def _logic(body: Any, it: Instruction) -> None:
    left, right = _reads(body, it)
    body.write(it.operands[0], body.emit(f"{it.operation} {it.type} {left}, {right}"), it.kind)


@handles("not")
def _not(body: Any, it: Instruction) -> None:
    (value,) = _reads(body, it)
    body.write(it.operands[0], body.emit(f"xor {it.type} {value}, -1"), it.kind)


@handles("shl", "shr")
def _shift(body: Any, it: Instruction) -> None:
    (value,), bits = _reads(body, it, 1), it.bits
    amount = body.read(it.operands[2], "u32")
    # "Shift amounts greater than the register width N are clamped to N."
    inside = body.emit(f"icmp ult i32 {amount}, {bits}")
    signed = it.operation == "shr" and it.kind[0] == "s"
    small = body.emit(f"select i1 {inside}, i32 {amount}, i32 {bits - 1}")
    if bits != 32:
        small = body.emit(f"{'zext' if bits > 32 else 'trunc'} i32 {small} to i{bits}")
    name = "shl" if it.operation == "shl" else "ashr" if signed else "lshr"
    done = body.emit(f"{name} i{bits} {value}, {small}")
    if not signed:
        done = body.emit(f"select i1 {inside}, i{bits} {done}, i{bits} 0")
    body.write(it.operands[0], done, it.kind)


def _both(body: Any, low: str, high: str) -> str:
    """Return two words of 32 bits as one of 64."""
    wide = [body.emit(f"zext i32 {each} to i64") for each in (low, high)]
    return body.emit(f"or i64 {wide[0]}, {body.emit(f'shl i64 {wide[1]}, 32')}")


@handles("shf", modifiers="l r wrap clamp")
def _funnel(body: Any, it: Instruction) -> None:
    low, high, amount = _reads(body, it)
    whole = _both(body, low, high)
    by = body.emit(f"and i32 {amount}, 31")
    if it.has("clamp"):
        by = body.emit(f"call i32 @llvm.umin.i32(i32 {amount}, i32 32)")
    by = body.emit(f"zext i32 {by} to i64")
    if it.has("l"):
        moved = body.emit(f"lshr i64 {body.emit(f'shl i64 {whole}, {by}')}, 32")
    else:
        moved = body.emit(f"lshr i64 {whole}, {by}")
    body.write(it.operands[0], body.emit(f"trunc i64 {moved} to i32"), it.kind)


@handles("prmt")
def _permute(body: Any, it: Instruction) -> None:
    low, high, choice = _reads(body, it)
    both = _both(body, low, high)
    total = "0"
    for place in range(4):
        wanted = body.emit(f"lshr i32 {choice}, {4 * place}")
        bit = body.emit(f"shl i32 {body.emit(f'and i32 {wanted}, 7')}, 3")
        shift = body.emit(f"zext i32 {bit} to i64")
        byte = body.emit(f"trunc i64 {body.emit(f'lshr i64 {both}, {shift}')} to i8")
        # With bit 3, the byte's sign in every bit
        sign = body.emit(f"ashr i8 {byte}, 7")
        signed = body.emit(f"trunc i32 {body.emit(f'lshr i32 {wanted}, 3')} to i1")
        byte = body.emit(f"select i1 {signed}, i8 {sign}, i8 {byte}")
        moved = body.emit(f"shl i32 {body.emit(f'zext i8 {byte} to i32')}, {8 * place}")
        total = body.emit(f"or i32 {total}, {moved}")
    body.write(it.operands[0], total, it.kind)


def _field(body: Any, it: Instruction, place: str, length: str) -> tuple[str, str, str]:
    """Return a bit field's place, length and mask, in bits of the type; both are of 8 bits in PTX."""
    bits = it.bits
    found = []
    for operand in (place, length):
        value = body.emit(f"and i32 {body.read(operand, 'u32')}, 255")
        value = body.emit(f"call i32 @llvm.umin.i32(i32 {value}, i32 {bits})")
        found.append(body.emit(f"zext i32 {value} to i128"))
    ones = body.emit(f"sub i128 {body.emit(f'shl i128 1, {found[1]}')}, 1")
    return found[0], found[1], ones


@handles("bfi")
def _insert(body: Any, it: Instruction) -> None:
    new, old = _reads(body, it, 1, 2)
    place, _, ones = _field(body, it, it.operands[3], it.operands[4])
    mask = body.emit(f"trunc i128 {body.emit(f'shl i128 {ones}, {place}')} to i{it.bits}")
    wide = body.emit(f"shl i128 {body.emit(f'zext i{it.bits} {new} to i128')}, {place}")
    moved = body.emit(f"and i{it.bits} {body.emit(f'trunc i128 {wide} to i{it.bits}')}, {mask}")
    kept = body.emit(f"and i{it.bits} {old}, {body.emit(f'xor i{it.bits} {mask}, -1')}")
    body.write(it.operands[0], body.emit(f"or i{it.bits} {kept}, {moved}"), it.kind)


@handles("bfe")
def _extract(body: Any, it: Instruction) -> None:
    (value,) = _reads(body, it, 1)
    place, length, ones = _field(body, it, it.operands[2], it.operands[3])
    widen = "sext" if it.kind[0] == "s" else "zext"
    moved = body.emit(f"lshr i128 {body.emit(f'{widen} i{it.bits} {value} to i128')}, {place}")
    found = body.emit(f"and i128 {moved}, {ones}")
    if it.kind[0] == "s":
        empty = body.emit(f"icmp eq i128 {length}, 0")
        up = body.emit(f"sub i128 128, {body.emit(f'select i1 {empty}, i128 1, i128 {length}')}")
        found = body.emit(f"ashr i128 {body.emit(f'shl i128 {found}, {up}')}, {up}")
    body.write(it.operands[0], body.emit(f"trunc i128 {found} to i{it.bits}"), it.kind)


@handles("clz", "popc", "brev")
def _count(body: Any, it: Instruction) -> None:
    (value,) = _reads(body, it)
    name = {"clz": "ctlz", "popc": "ctpop", "brev": "bitreverse"}[it.operation]
    more = ", i1 false" if it.operation == "clz" else ""
    done = body.emit(f"call {it.type} @llvm.{name}.i{it.bits}({it.type} {value}{more})")
    if it.operation != "brev" and it.bits == 64:
        done = body.emit(f"trunc i64 {done} to i32")
    body.write(it.operands[0], done, it.kind if it.operation == "brev" else "u32")


@handles("bfind", modifiers="shiftamt")
def _highest(body: Any, it: Instruction) -> None:
    (value,) = _reads(body, it)
    kind, bits = it.type, it.bits
    if it.kind[0] == "s":
        # The highest bit that is not the sign
        value = body.emit(f"xor {kind} {value}, {body.emit(f'ashr {kind} {value}, {bits - 1}')}")
    place = body.emit(f"call {kind} @llvm.ctlz.i{bits}({kind} {value}, i1 false)")
    if not it.has("shiftamt"):
        place = body.emit(f"sub {kind} {bits - 1}, {place}")
    none = body.emit(f"icmp eq {kind} {value}, 0")
    found = body.emit(f"select i1 {none}, {kind} -1, {kind} {place}")
    body.write(it.operands[0], found if bits == 32 else body.emit(f"trunc i64 {found} to i32"), "u32")


# Comparisons and choices


_INTEGERS = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


@handles("setp", modifiers="eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan ftz and or xor")
def _setp(body: Any, it: Instruction) -> None:
    comparison, *rest = it.modifiers
    left, right = _reads(body, it, 1, 2)
    if it.is_float:
        name = {"num": "ord", "nan": "uno", "ne": "one", "neu": "une"}.get(comparison)
        name = name or (f"u{comparison[:2]}" if comparison.endswith("u") else f"o{comparison}")
        done = body.emit(f"fcmp {name} {it.type} {left}, {right}")
    else:
        sign = "s" if it.kind[0] == "s" else "u"
        name = comparison if comparison in ("eq", "ne") else sign + _INTEGERS[comparison]
        done = body.emit(f"icmp {name} {it.type} {left}, {right}")
    both = [done, body.emit(f"xor i1 {done}, true")]
    if rest[0] in ("and", "or", "xor"):
        other = it.operands[3]
        third = body.read(other.lstrip("!"), "pred")
        third = body.emit(f"xor i1 {third}, true") if other.startswith("!") else third
        both = [body.emit(f"{rest[0]} i1 {each}, {third}") for each in both]
    for target, value in zip(it.operands[0].split("|"), both, strict=False):
        body.write(target, value, "pred")


@handles("selp")
def _selp(body: Any, it: Instruction) -> None:
    one, other = _reads(body, it, 1, 2)
    holds = body.read(it.operands[3], "pred")
    body.write(it.operands[0], body.emit(f"select i1 {holds}, {it.type} {one}, {it.type} {other}"), it.kind)


# Moves and conversions


@handles("mov", "cvta", modifiers="to global local shared const param")
def _mov(body: Any, it: Instruction) -> None:
    target, source = it.operands
    if source.startswith("{"):
        parts = _members(source)
        each = it.bits // len(parts)
        total = "0"
        for k, part in enumerate(parts):
            value = body.emit(f"zext i{each} {body.read(part, f'b{each}')} to i{it.bits}")
            total = body.emit(f"or i{it.bits} {total}, {body.emit(f'shl i{it.bits} {value}, {k * each}')}")
        body.write(target, total, f"b{it.bits}")
    elif target.startswith("{"):
        parts = _members(target)
        each = it.bits // len(parts)
        value = body.read(source, f"b{it.bits}")
        for k, part in enumerate(parts):
            moved = body.emit(f"lshr i{it.bits} {value}, {k * each}")
            body.write(part, body.emit(f"trunc i{it.bits} {moved} to i{each}"), f"b{each}")
    else:
        kind = it.kind if it.kind == "pred" else f"b{it.bits}"
        body.write(target, body.read(source, kind), kind)


def _members(text: str) -> list[str]:
    return [part.strip() for part in text.strip("{}").split(",")]


_TO_INTEGER = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@handles("cvt", modifiers="rn rz rm rp rni rzi rmi rpi ftz sat")
def _cvt(body: Any, it: Instruction) -> None:
    target, source = it.kinds
    value = body.read(it.operands[1], source)
    if source in LLVM and target in LLVM:
        value = _between_floats(body, it, value, source, target)
    elif source in LLVM:
        value = _float_to_integer(body, it, value, source, target)
    elif target in LLVM:
        name = f"{'s' if source[0] == 's' else 'u'}itofp"
        if it.has(*_ROUNDING):
            value = _rounded(body, it, name, [value], source)
        else:
            value = body.emit(f"{name} i{BITS[source]} {value} to {LLVM[target]}")
    elif it.has("sat"):
        raise NotImplementedError(f"PTX line {it.line}: saturation of an integer")
    elif BITS[target] > BITS[source]:
        value = body.emit(f"{'sext' if source[0] == 's' else 'zext'} i{BITS[source]} {value} to i{BITS[target]}")
    elif BITS[target] < BITS[source]:
        value = body.emit(f"trunc i{BITS[source]} {value} to i{BITS[target]}")
    body.write(it.operands[0], value, target)


def _between_floats(body: Any, it: Instruction, value: str, source: str, target: str) -> str:
    kind = LLVM[target]
    if BITS[target] < BITS[source] and it.has(*_ROUNDING):
        value = _rounded(body, it, "fptrunc", [value], source)
    elif BITS[target] != BITS[source]:
        name = "fpext" if BITS[target] > BITS[source] else "fptrunc"
        value = body.emit(f"{name} {LLVM[source]} {value} to {kind}")
    for way, name in _TO_INTEGER.items():
        if it.has(way):
            value = body.emit(f"call {kind} @llvm.{name}.{target}({kind} {value})")
    if it.has("sat"):
        value = _saturated(body, kind, target, value)
    if it.has("ftz"):
        value = _flushed(body, Instruction("cvt", ["ftz", target], [], it.line), value)
    return value


def _float_to_integer(body: Any, it: Instruction, value: str, source: str, target: str) -> str:
    kind, bits = LLVM[source], BITS[target]
    way = next(name for each, name in _TO_INTEGER.items() if it.has(each))
    rounded = body.emit(f"call {kind} @llvm.{way}.{source}({kind} {value})")
    sign = "s" if target[0] == "s" else "u"
    done = body.emit(f"call i{bits} @llvm.fpto{sign}i.sat.i{bits}.{source}({kind} {rounded})")
    if source == "f64" or bits == 64:
        # "In float-to-integer conversion, NaN inputs are converted to 0", but where either has 64 bits: the highest bit
        strange = body.emit(f"fcmp uno {kind} {value}, {value}")
        done = body.emit(f"select i1 {strange}, i{bits} {-(1 << (bits - 1))}, i{bits} {done}")
    return done


# Memory


_SPACES = ("global", "local", "shared", "const", "param")
_ACCESS = "volatile relaxed acquire release acq_rel weak sys gpu cta cluster nc v2 v4 ca cg cs lu cv wb wt " + " ".join(
    _SPACES
)


def _address(body: Any, operand: str) -> str:
    base, _, offset = operand.strip("[]").partition("+")
    value = body.read(base.strip(), "u64")
    return body.emit(f"add i64 {value}, {int(offset)}") if offset else value


def _place(
    body: Any, it: Instruction, operand: str, count: int, *, stored: Sequence[str] | None = None, atomic: bool = False
) -> str:
    """Return a pointer to what an operand names, after a check of its alignment and, but for local memory, its bounds.

    What is to be stored there are integers, if they are known.
    """
    space = next((each for each in _SPACES if it.has(each)), "generic")
    if space == "param":
        name, _, offset = operand.strip("[]").partition("+")
        return body.emit(f"getelementptr i8, ptr {body.memory_of(name)}, i64 {int(offset or 0)}")
    size = it.bits // 8 * count
    stack_too = int(space in ("generic", "local"))
    address = _address(body, operand)
    # A volatile access is a relaxed one, and so strong, as atomics are (PTX ISA, "Memory Consistency Model").
    strong = atomic or it.has("volatile", "relaxed", "acquire", "release")
    how = int(stored is not None) + 2 * strong
    value = _as_one(body, it, stored or ())
    given = f"ptr %ctx, i64 {address}, i64 {size}, i64 {how}, i64 {it.line}, i64 {stack_too}, i64 {value}"
    return body.emit(f"call ptr @nb_place({given})")


def _as_one(body: Any, it: Instruction, values: Sequence[str]) -> str:
    """Return a number of 64 bits that tells apart what is stored: the number itself if it is one, else one made of several."""
    made = "0"
    for value in values:
        wide = value if it.bits == 64 else body.emit(f"zext i{it.bits} {value} to i64")
        made = wide if made == "0" else body.emit(f"add i64 {body.emit(f'mul i64 {made}, 1000003')}, {wide}")
    return made


def _offset(body: Any, place: str, it: Instruction, k: int) -> str:
    return body.emit(f"getelementptr i8, ptr {place}, i64 {k * it.bits // 8}") if k else place


@handles("ld", "ldu", modifiers=_ACCESS)
def _load(body: Any, it: Instruction) -> None:
    targets = _members(it.operands[0])
    place = _place(body, it, it.operands[1], len(targets))
    for k, target in enumerate(targets):
        value = body.emit(f"load i{it.bits}, ptr {_offset(body, place, it, k)}, align 1")
        kind = it.kind if it.kind[0] == "s" else f"b{it.bits}"
        body.write(target, value, kind)


@handles("st", modifiers=_ACCESS)
def _store(body: Any, it: Instruction) -> None:
    sources = _members(it.operands[1])
    values = [body.read(source, f"b{it.bits}") for source in sources]
    place = _place(body, it, it.operands[0], len(sources), stored=values)
    for k, value in enumerate(values):
        body.do(f"store i{it.bits} {value}, ptr {_offset(body, place, it, k)}, align 1")


_ATOMIC = {"exch": "xchg", "and": "and", "or": "or", "xor": "xor", "inc": "uinc_wrap", "dec": "udec_wrap"}


@handles("atom", "red", modifiers=f"{_ACCESS} noftz add min max cas {' '.join(_ATOMIC)}")
def _atom(body: Any, it: Instruction) -> None:
    operands = it.operands if it.operation == "atom" else ["_", *it.operands]
    target, where, *values = operands
    if target.startswith("{"):
        raise NotImplementedError(f"PTX line {it.line}: a vector atomic")
    operation = next(each for each in it.modifiers if each in ("add", "min", "max", "cas", *_ATOMIC))
    place = _place(body, it, where, 1, stored=(), atomic=True)
    read = [body.read(value, it.kind) for value in values]
    if operation == "cas":
        pair = body.emit(f"cmpxchg ptr {place}, {it.type} {read[0]}, {it.type} {read[1]} seq_cst seq_cst")
        done = body.emit(f"extractvalue {{ {it.type}, i1 }} {pair}, 0")
    else:
        name = _ATOMIC.get(operation) or (
            f"f{operation}" if it.is_float else operation if operation == "add" else _extreme_name(it, operation)
        )
        done = body.emit(f"atomicrmw {name} ptr {place}, {it.type} {read[0]} seq_cst")
    body.write(target, done, it.kind)


def _extreme_name(it: Instruction, operation: str) -> str:
    return operation if it.kind[0] == "s" else f"u{operation}"


# Control


@handles("bra", modifiers="uni")
def _bra(body: Any, it: Instruction) -> None:
    body.end(f'br label %"{it.operands[0]}"')


@handles("ret", "exit", modifiers="uni")
def _ret(body: Any, it: Instruction) -> None:
    body.end("ret void")


@handles("trap")
def _trap(body: Any, it: Instruction) -> None:
    # Noted as an access that no memory allows; the launch fails with it.
    body.emit(f"call ptr @nb_place(ptr %ctx, i64 0, i64 1, i64 0, i64 {it.line}, i64 0, i64 0)")
    body.end("ret void")


@handles("membar", "fence", "nanosleep", modifiers="sc acq_rel acquire release sys gpu cta gl cluster")
def _nothing(body: Any, it: Instruction) -> None:
    """Threads of a block run one after another, or by turns: each finds memory as the one before has left it."""
