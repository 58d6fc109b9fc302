"""The PTX emulator against what the PTX ISA says of each instruction, in Python."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from ptx_emulator.execution import BadAccessError, Machine

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"
ONES = 0xFFFFFFFF


def run(body, words, *, results=1, block=(1, 1, 1), grid=(1, 1, 1)):
    """Run a body of which ``%a`` to ``%d`` are 64-bit words, and return the words that it stores at ``[%out]``."""
    text = (
        f"{HEAD}.visible .entry k(.param .u64 p0, .param .u64 p1)\n{{\n"
        ".reg .pred %p<5>; .reg .b16 %h<5>; .reg .b32 %r<9>; .reg .b64 %x<9>; .reg .b64 %a, %b, %c, %d, %in, %out;\n"
        "ld.param.u64 %in, [p0]; ld.param.u64 %out, [p1];\n"
        "ld.global.u64 %a, [%in]; ld.global.u64 %b, [%in+8]; ld.global.u64 %c, [%in+16]; ld.global.u64 %d, [%in+24];\n"
        "cvt.u32.u64 %r1, %a; cvt.u32.u64 %r2, %b; cvt.u32.u64 %r3, %c; cvt.u32.u64 %r4, %d;\n"
        f"{body}\nret;\n}}\n"
    )
    given = np.array([*words, 0, 0, 0, 0][:4], np.uint64)
    out = np.zeros(results, np.uint64)
    places = [array.ctypes.data.to_bytes(8, "little") for array in (given, out)]
    memory = [(array.ctypes.data, array.ctypes.data + array.nbytes, True) for array in (given, out)]
    Machine(text, "k").run(grid, block, places, memory)
    return [int(word) for word in out]


def bits(number, kind="f"):
    """Return a number's bits."""
    return int.from_bytes(struct.pack(f"<{kind}", number), "little")


def _permuted(a, b, c, d):
    data, total = a | b << 32, 0
    for k in range(4):
        choice = c >> 4 * k & 15
        byte = data >> 8 * (choice & 7) & 255
        total |= (byte if choice < 8 else 255 * (byte >> 7)) << 8 * k
    return total


def _signed(value, width=32):
    return value - (1 << width) if value >> (width - 1) else value


# An instruction from %r1 to %r4 into %r5: the value of these four, modulo 2**32
INTEGER = {
    "add.s32 %r5, %r1, %r2": lambda a, b, c, d: a + b,
    "sub.s32 %r5, %r1, %r2": lambda a, b, c, d: a - b,
    "mul.lo.s32 %r5, %r1, %r2": lambda a, b, c, d: a * b,
    "mul.hi.u32 %r5, %r1, %r2": lambda a, b, c, d: a * b >> 32,
    "mul.hi.s32 %r5, %r1, %r2": lambda a, b, c, d: _signed(a) * _signed(b) >> 32,
    "mad.lo.s32 %r5, %r1, %r2, %r3": lambda a, b, c, d: a * b + c,
    "div.s32 %r5, %r1, %r2": lambda a, b, c, d: int(_signed(a) / _signed(b)),
    "rem.s32 %r5, %r1, %r2": lambda a, b, c, d: int(math.fmod(_signed(a), _signed(b))),
    "div.u32 %r5, %r1, %r2": lambda a, b, c, d: a // b,
    "min.s32 %r5, %r1, %r2": lambda a, b, c, d: min(_signed(a), _signed(b)),
    "max.u32 %r5, %r1, %r2": lambda a, b, c, d: max(a, b),
    "abs.s32 %r5, %r1": lambda a, b, c, d: abs(_signed(a)),
    "neg.s32 %r5, %r1": lambda a, b, c, d: -a,
    "not.b32 %r5, %r1": lambda a, b, c, d: ~a,
    "and.b32 %r5, %r1, %r2": lambda a, b, c, d: a & b,
    "xor.b32 %r5, %r1, %r2": lambda a, b, c, d: a ^ b,
    "shl.b32 %r5, %r1, %r4": lambda a, b, c, d: a << d if d < 32 else 0,
    "shr.u32 %r5, %r1, %r4": lambda a, b, c, d: a >> d if d < 32 else 0,
    "shr.s32 %r5, %r1, %r4": lambda a, b, c, d: _signed(a) >> min(d, 31),
    "shf.l.wrap.b32 %r5, %r1, %r2, %r4": lambda a, b, c, d: (a | b << 32) << (d & 31) >> 32,
    "shf.r.wrap.b32 %r5, %r1, %r2, %r4": lambda a, b, c, d: (a | b << 32) >> (d & 31),
    "shf.l.clamp.b32 %r5, %r1, %r2, %r4": lambda a, b, c, d: (a | b << 32) << min(d, 32) >> 32,
    "prmt.b32 %r5, %r1, %r2, %r3": _permuted,
    "bfi.b32 %r5, %r1, %r2, 5, 9": lambda a, b, c, d: b & ~(0x1FF << 5) | (a & 0x1FF) << 5,
    "bfe.u32 %r5, %r1, 5, 9": lambda a, b, c, d: a >> 5 & 0x1FF,
    "bfe.s32 %r5, %r1, 5, 9": lambda a, b, c, d: _signed(a >> 5 & 0x1FF, 9),
    "clz.b32 %r5, %r1": lambda a, b, c, d: 32 - a.bit_length(),
    "popc.b32 %r5, %r1": lambda a, b, c, d: a.bit_count(),
    "brev.b32 %r5, %r1": lambda a, b, c, d: int(f"{a:032b}"[::-1], 2),
    "bfind.u32 %r5, %r1": lambda a, b, c, d: a.bit_length() - 1,
    "bfind.shiftamt.u32 %r5, %r1": lambda a, b, c, d: 32 - a.bit_length() if a else -1,
    "selp.b32 %r5, %r1, %r2, 1": lambda a, b, c, d: a,
}


@pytest.mark.parametrize("instruction", INTEGER)
def test_integers(instruction):
    numbers = np.random.default_rng(3).integers(0, 1 << 32, (6, 4))
    rows = [*numbers.tolist(), [0, 1, 0x3210, 33], [1 << 31, ONES, 0xFEDC, 31], [7, 3, 0x9BDF, 40]]
    for row in rows:
        row[3] %= 41
        found = run(f"{instruction}; cvt.u64.u32 %x1, %r5; st.global.u64 [%out], %x1;", row)
        assert found == [INTEGER[instruction](*row) & ONES], (instruction, row)


def test_a_product_of_128_bits_by_carries():
    a, b = 0xFEDCBA9876543210, 0x123456789ABCDEF1
    body = """{ .reg .u32 a0, a1, b0, b1, r0, r1, r2, r3;
        mov.b64 {a0, a1}, %a; mov.b64 {b0, b1}, %b;
        mul.lo.u32 r0, a0, b0; mul.hi.u32 r1, a0, b0;
        mad.lo.cc.u32 r1, a0, b1, r1; madc.hi.u32 r2, a0, b1, 0;
        mad.lo.cc.u32 r1, a1, b0, r1; madc.hi.cc.u32 r2, a1, b0, r2; madc.hi.u32 r3, a1, b1, 0;
        mad.lo.cc.u32 r2, a1, b1, r2; addc.u32 r3, r3, 0;
        mov.b64 %x1, {r0, r1}; mov.b64 %x2, {r2, r3}; }
        st.global.v2.u64 [%out], {%x1, %x2};"""
    low, high = run(body, [a, b], results=2)
    assert low | high << 64 == a * b
    body = """{ .reg .u32 l, h; mov.b64 {l, h}, %a; sub.cc.u32 l, l, 1; subc.u32 h, h, 0; mov.b64 %x1, {l, h}; }
        st.global.u64 [%out], %x1;"""
    assert run(body, [5 << 32]) == [(5 << 32) - 1]


NAN = float("nan")
FLOAT = [
    ("add.f32 %r5, %r1, %r2", (1.5, 2.25), 3.75),
    ("add.rz.f32 %r5, %r1, %r2", (1.0, -1e-12), float(np.nextafter(np.float32(1), np.float32(0)))),
    ("add.rp.f32 %r5, %r1, %r2", (1.0, 1e-12), float(np.nextafter(np.float32(1), np.float32(2)))),
    ("fma.rn.f32 %r5, %r1, %r2, %r3", (1 + 2**-12, 1 + 2**-12, -1.0), 2**-11 + 2**-24),
    ("fma.rm.f32 %r5, %r1, %r2, %r3", (1.0, -1e-12, 1.0), float(np.nextafter(np.float32(1), np.float32(0)))),
    ("min.f32 %r5, %r1, %r2", (NAN, 2.0), 2.0),
    ("max.f32 %r5, %r1, %r2", (-0.0, 0.0), 0.0),
    ("max.NaN.f32 %r5, %r1, %r2", (NAN, 2.0), NAN),
    ("mul.ftz.f32 %r5, %r1, %r2", (1e-40, 1e10), 0.0),
    ("copysign.f32 %r5, %r1, %r2", (-1.0, 3.0), -3.0),
    ("cvt.rni.f32.f32 %r5, %r1", (2.5,), 2.0),
    ("cvt.rmi.f32.f32 %r5, %r1", (-2.5,), -3.0),
    ("cvt.sat.f32.f32 %r5, %r1", (7.0,), 1.0),
    ("cvt.sat.f32.f32 %r5, %r1", (NAN,), 0.0),
    ("rcp.rn.f32 %r5, %r1", (4.0,), 0.25),
    ("sqrt.rn.f32 %r5, %r1", (2.0,), float(np.sqrt(np.float32(2)))),
    ("ex2.approx.ftz.f32 %r5, %r1", (3.0,), 8.0),
]


@pytest.mark.parametrize(("instruction", "given", "wanted"), FLOAT)
def test_floats(instruction, given, wanted):
    (word,) = run(f"{instruction}; cvt.u64.u32 %x1, %r5; st.global.u64 [%out], %x1;", [bits(v) for v in given])
    found = struct.unpack("<f", struct.pack("<I", word))[0]
    assert (math.isnan(found) and math.isnan(wanted)) or (found, math.copysign(1, found)) == (
        wanted,
        math.copysign(1, wanted),
    )


@pytest.mark.parametrize(
    ("instruction", "given", "wanted"),
    [
        ("cvt.rzi.s32.f64", -2.9, -2),
        ("cvt.rni.s64.f64", 3.5, 4),
        ("cvt.rzi.s32.f64", 1e20, (1 << 31) - 1),
        ("cvt.rzi.s64.f64", NAN, -(1 << 63)),
    ],
)
def test_floats_to_integers(instruction, given, wanted):
    wide = "s64" in instruction
    target = "%x1" if wide else "%r5"
    more = "" if wide else "cvt.s64.s32 %x1, %r5;"
    (word,) = run(f"{instruction} {target}, %a; {more} st.global.u64 [%out], %x1;", [bits(given, "d")])
    assert _signed(word, 64) == wanted


def test_comparisons_of_nan_and_predicates():
    body = """setp.lt.f64 %p1, %a, %b; setp.ltu.f64 %p2, %a, %b; setp.nan.f64 %p3, %a, %b; setp.ge.and.s32 %p4, 1, 2, %p3;
        mov.u64 %x1, 0; @%p1 add.s64 %x1, %x1, 1; @%p2 add.s64 %x1, %x1, 2; @%p3 add.s64 %x1, %x1, 4; @!%p4 add.s64 %x1, %x1, 8;
        st.global.u64 [%out], %x1;"""
    assert run(body, [bits(NAN, "d"), bits(1.0, "d")]) == [14]


def test_every_thread_has_its_place():
    body = """mov.u32 %r5, %tid.x; mov.u32 %r6, %tid.y; mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ntid.x;
        mad.lo.s32 %r5, %r6, %r8, %r5; mad.lo.s32 %r5, %r7, 6, %r5; mul.wide.u32 %x1, %r5, 8; add.s64 %x2, %out, %x1;
        atom.global.add.u64 %x3, [%x2], 1; st.global.u64 [%x2], %x1;"""
    assert run(body, [], results=12, block=(3, 2, 1), grid=(2, 1, 1)) == [8 * k for k in range(12)]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("ld.global.u64 %x1, [%in+32];", "reads 8 bytes"),
        ("st.global.u32 [%out+2], 1;", "writes 4 bytes"),
        ("st.u64 [%out+-8], %a;", "writes 8 bytes"),
    ],
)
def test_wrong_accesses(body, what):
    with pytest.raises(BadAccessError, match=what):
        run(body, [])


@pytest.mark.parametrize("body", ["vote.sync.any.pred %p1, %p2, -1;", "add.sat.bogus.s32 %r5, %r1, %r2;"])
def test_what_it_does_not_know_is_refused(body):
    with pytest.raises(NotImplementedError, match="PTX line 10: "):
        run(body, [])
