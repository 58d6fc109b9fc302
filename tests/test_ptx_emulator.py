"""The PTX emulator against what the PTX ISA says of each instruction, in Python."""

from __future__ import annotations

import contextlib
import math
import struct

import numpy as np
import pytest

from ptx_emulator.execution import BadAccessError, Machine
from ptx_emulator.meetings import MeetingError
from ptx_emulator.races import RaceError

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"
ONES = 0xFFFFFFFF


def run(body, words, *, results=1, block=(1, 1, 1), grid=(1, 1, 1), races=False):
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
    Machine(text, "k").run(grid, block, places, memory, races=races)
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
    "sad.s32 %r5, %r1, %r2, %r3": lambda a, b, c, d: abs(_signed(a) - _signed(b)) + c,
    "sad.u32 %r5, %r1, %r2, %r3": lambda a, b, c, d: abs(a - b) + c,
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
    ("rcp.rm.f32 %r5, %r1", (3.0,), 11184810 / 2**25),
    ("rcp.rp.f32 %r5, %r1", (3.0,), 11184811 / 2**25),
    ("sqrt.rz.f32 %r5, %r1", (2.0,), 11863283 / 2**23),
    ("sqrt.rp.f32 %r5, %r1", (2.0,), 11863284 / 2**23),
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


@pytest.mark.parametrize(
    ("instruction", "given", "wanted"),
    [
        ("cvt.rm.f32.s64", -(1 << 24) - 1, -(2.0**24) - 2),
        ("cvt.rz.f32.s64", -(1 << 24) - 1, -(2.0**24)),
        ("cvt.rp.f32.u64", (1 << 64) - 1, 2.0**64),
        ("cvt.rz.f32.u64", (1 << 64) - 1, 2.0**64 - 2.0**40),
        ("cvt.rp.f32.f64", bits(1 + 2**-50, "d"), 1 + 2**-23),
        ("cvt.rm.f32.f64", bits(-1e300, "d"), -math.inf),
        ("cvt.rz.f32.f64", bits(-1e300, "d"), float(np.finfo(np.float32).min)),
    ],
)
def test_rounded_conversions(instruction, given, wanted):
    (word,) = run(f"{instruction} %r5, %a; cvt.u64.u32 %x1, %r5; st.global.u64 [%out], %x1;", [given % (1 << 64)])
    assert struct.unpack("<f", struct.pack("<I", word))[0] == wanted


def test_which_reciprocals_know_half_of_a_number():
    body = "rsqrt.approx.f64 %x1, %a; rcp.approx.ftz.f64 %x2, %a; st.global.v2.u64 [%out], {%x1, %x2};"
    root, reciprocal = run(body, [bits(3.0, "d")], results=2)
    assert root == bits(1 / math.sqrt(3), "d") and reciprocal == bits(1 / 3, "d") & ~ONES


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


# Warps and blocks: each thread has its place in %r5, that times 8 in %x7, and stores a word there.

PLACE = """mov.u32 %r5, %tid.x; mul.wide.u32 %x7, %r5, 8; add.s64 %x7, %out, %x7;"""


def run_block(body, threads, words=(), setup="", *, races=False):
    """Run a body with as many threads, and return the %r6 that each is left with."""
    text = f"{setup} {PLACE} mov.u32 %r6, 777; {body}\ncvt.u64.u32 %x6, %r6; st.global.u64 [%x7], %x6;"
    return run(text, words, results=threads, block=(threads, 1, 1), races=races)


def _sources(mode, b, c, lanes=range(32)):
    """Return the lane that each reads from, by the segments that CUDA's `width` makes of a warp: c holds 32 - width above."""
    width = 32 - (c >> 8)
    found = {}
    for lane in lanes:
        first, within = lane - lane % width, lane % width
        # "bfly" reaches back into the segments before its own.
        wanted = {"up": within - b, "down": within + b, "bfly": (lane ^ b) - first, "idx": b % width}[mode]
        inside = wanted >= 0 if mode == "up" else wanted < width
        found[lane] = first + wanted if inside else lane
    return found


@pytest.mark.parametrize("width", [32, 16, 8, 2])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles_in_segments(mode, width):
    # As CUDA C++ compiles __shfl_*_sync(mask, value, b, width)
    c = 32 - width << 8 | (0 if mode == "up" else 31)
    for b in (0, 1, 3, 7, 31):
        body = f"mul.lo.s32 %r7, %r5, 3; shfl.sync.{mode}.b32 %r6|%p1, %r7, {b}, {c}, -1; @%p1 add.s32 %r6, %r6, 1000;"
        sources = _sources(mode, b, c)
        own = {lane for lane in sources if sources[lane] == lane}
        found = run_block(body, 32)
        for lane, source in sources.items():
            # Where a lane reads its own value, the predicate tells whether it asked for that.
            assert found[lane] % 1000 == 3 * source and (lane in own or found[lane] >= 1000), (b, lane)
            in_reach = b == 0 if mode != "idx" else lane % width == b % width
            assert lane not in own or (found[lane] >= 1000) == in_reach, (b, lane)


def test_a_shuffle_without_predicate_reads_nothing_of_lanes_that_are_not_there():
    body = "shfl.sync.down.b32 %r6, %r5, 4, 31, -1;"
    nobody = [0xA5A5A5A5] * 4
    assert run_block(body, 12) == [*range(4, 12), *nobody]
    assert run_block(f"setp.lt.u32 %p1, %r5, 8; @%p1 {body}", 12) == [*range(4, 8), *nobody, *[777] * 4]


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        ("vote.sync.all.pred %p2, %p1, %r8", lambda held, group: held == group),
        ("vote.sync.all.pred %p2, !%p1, %r8", lambda held, group: not held),
        ("vote.sync.any.pred %p2, %p1, %r8", lambda held, group: bool(held)),
        ("vote.sync.uni.pred %p2, %p1, %r8", lambda held, group: held in (set(), group)),
    ],
)
def test_votes_of_groups(instruction, wanted):
    # Lanes 0 to 5 hold, of groups of four
    body = f"""setp.lt.u32 %p1, %r5, 6; and.b32 %r7, %r5, 28; shl.b32 %r8, 15, %r7; {instruction}; selp.b32 %r6, 1, 0, %p2;"""
    groups = [set(range(first, first + 4)) for first in range(0, 32, 4)]
    assert run_block(body, 32) == [int(wanted(g & set(range(6)), g)) for g in groups for _ in range(4)]


def test_ballots_have_no_bits_of_others():
    # Only the lower half meets: the upper one goes another way.
    body = "setp.ne.u32 %p1, %r5, 3; setp.lt.u32 %p2, %r5, 16; @%p2 vote.sync.ballot.b32 %r6, %p1, 0xffff;"
    assert run_block(body, 40) == [*[0xFFF7] * 16, *[777] * 24]


def test_matches():
    body = "rem.u32 %r7, %r5, 3; match.any.sync.b32 %r6, %r7, -1;"
    thirds = [sum(1 << lane for lane in range(k, 32, 3)) for k in range(3)]
    assert run_block(body, 32) == [thirds[lane % 3] for lane in range(32)]
    high = "cvt.u64.u32 %x1, %r5; shr.u64 %x1, %x1, 5; shl.b64 %x1, %x1, 40;"
    body = f"{high} match.all.sync.b64 %r6|%p1, %x1, -1; selp.b32 %r6, %r6, 5, %p1;"
    assert run_block(body, 40) == [*[ONES] * 32, *[255] * 8]
    assert run_block("match.all.sync.b32 %r6|%p1, %r5, -1; selp.b32 %r6, 5, %r6, %p1;", 32) == [0] * 32


def test_places_of_lanes():
    for name, wanted in {
        "laneid": lambda k: k % 32,
        "warpid": lambda k: k // 32,
        "nwarpid": lambda k: 2,
        "lanemask_eq": lambda k: 1 << k % 32,
        "lanemask_lt": lambda k: (1 << k % 32) - 1,
        "lanemask_le": lambda k: (2 << k % 32) - 1,
        "lanemask_gt": lambda k: ONES - ((2 << k % 32) - 1),
        "lanemask_ge": lambda k: ONES - ((1 << k % 32) - 1),
    }.items():
        assert run_block(f"mov.u32 %r6, %{name};", 40) == [wanted(k) for k in range(40)], name
    assert run_block("mov.u32 %r6, WARP_SZ;", 2) == [32, 32]


def test_active_lanes():
    assert run_block("activemask.b32 %r6;", 40) == [*[ONES] * 32, *[255] * 8]
    sides = "setp.lt.u32 %p1, %r5, 7; @%p1 bra low; activemask.b32 %r6; bra both; low: activemask.b32 %r6; both:"
    assert run_block(sides, 32) == [*[127] * 7, *[ONES - 127] * 25]


@pytest.mark.parametrize("name", ["bar", "barrier.cta"])
def test_barriers_that_reduce(name):
    # Threads that have ended are not counted, and not waited for.
    leave = "setp.gt.u32 %p3, %r5, 69; @%p3 ret;"
    for count in (0, 20, 70):
        body = f"{leave} setp.lt.u32 %p1, %r5, {count};"
        assert run_block(f"{body} {name}.red.popc.u32 %r6, 0, %p1;", 80) == [count] * 70 + [0] * 10
        for what, wanted in (("and", count == 70), ("or", count > 0)):
            found = run_block(f"{body} {name}.red.{what}.pred %p2, 0, %p1; selp.b32 %r6, 1, 0, %p2;", 80)
            assert found == [int(wanted)] * 70 + [0] * 10


def test_a_block_meets_at_its_barriers_in_the_order_of_the_program():
    # Each adds to a word between barriers: all find the same sum at each.
    step = "atom.global.add.u64 %x3, [%in], 1; bar.sync 0; ld.global.u64 %x4, [%in]; bar.sync 0; add.u64 %x5, %x5, %x4;"
    assert run_block(f"mov.u64 %x5, 0; {step * 3} cvt.u32.u64 %r6, %x5;", 50) == [50 + 100 + 150] * 50


@pytest.mark.parametrize(("barrier", "sound"), [("bar.sync 0;", True), ("bar.warp.sync -1;", True), ("", False)])
def test_a_missing_barrier_shows(barrier, sound):
    other = "xor.b32 %r7, %r5, 1; mul.wide.u32 %x5, %r7, 8; add.s64 %x5, %out, %x5;"
    body = f"{other} bar.sync 0; st.global.u64 [%x7], 5; {barrier} ld.global.u64 %x4, [%x5]; bar.sync 0; cvt.u32.u64 %r6, %x4;"
    assert (run_block(body, 32) == [5] * 32) == sound


LOW = "setp.lt.u32 %p1, %r5, 8; @%p1 bra low;"
STUCK = {
    "a barrier and a vote": (
        f"{LOW} bar.sync 0; bra both; low: vote.sync.any.pred %p2, %p1, -1; bar.sync 0; both:",
        r"for ever: threads 8 to 39 of block \(0, 0, 0\) at PTX line 10, .*; threads 0 to 7 of .* with the mask 0xffffffff",
    ),
    "masks that differ": (
        f"{LOW} bar.warp.sync 0xffffffff; bra both; low: bar.warp.sync 0x7fffffff; both:",
        "for ever: threads .* with the mask 0x7fffffff",
    ),
    "modes that differ": (
        f"{LOW} shfl.sync.up.b32 %r6, %r5, 1, 0, -1; bra both; low: shfl.sync.down.b32 %r6, %r5, 1, 31, -1; both:",
        "for ever: threads 8 to 31 of .*; threads 0 to 7 of",
    ),
    "a reduction and a barrier": (
        "setp.lt.u32 %p1, %r5, 32; @%p1 bra low; bar.sync 0; bra both; low: bar.red.popc.u32 %r6, 0, %p1; both:",
        "for ever: threads .*32 to 39",
    ),
    "two barriers for one warp": (
        f"{LOW} bar.sync 0; bra both; low: bar.sync 0; both:",
        r"warp 0 of block \(0, 0, 0\) is at different barriers at once: PTX line 10",
    ),
    "a mask without the lane": ("bar.warp.sync 0xfff0;", "lane [0-3] of .* is not in the mask 0xfff0 that it names"),
}


@pytest.mark.parametrize("name", STUCK)
def test_meetings_that_never_take_place(name):
    body, text = STUCK[name]
    with pytest.raises(MeetingError, match=text):
        run_block(body, 40)
    # Nothing of it is left.
    assert run_block("bar.sync 0; mov.u32 %r6, %r5;", 40) == [*range(40)]


def test_a_wrong_access_is_told_before_who_waits_for_whom():
    body = f"{LOW} bar.warp.sync -1; bra both; low: ld.global.u64 %x1, [%in+32]; bar.warp.sync 1; both:"
    with pytest.raises(BadAccessError, match="reads 8 bytes"):
        run_block(body, 40)


BARRIERS = ["", "bar.sync 0;", "bar.warp.sync -1;", "shfl.sync.idx.b32 %r6, %r5, 0, 31, -1;"]
# The word of the next thread is at %x5.
NEXT = "xor.b32 %r7, %r5, 1; mul.wide.u32 %x5, %r7, 8; add.s64 %x5, %out, %x5;"
# Accesses, and which barriers between them order them
RACES = {
    f"{NEXT} st.global.u64 [%x7], 5; {{}} ld.global.u64 %x4, [%x5];": BARRIERS[1:],
    f"{NEXT} ld.global.u64 %x4, [%x5]; {{}} st.global.u64 [%x7], 5;": BARRIERS[1:],
    "atom.global.add.u32 %r6, [%out], 1; {} st.global.u32 [%out], 7;": BARRIERS[1:],
    "cvt.u64.u32 %x4, %r5; st.global.u64 [%out], %x4; {} ld.global.u64 %x4, [%x7];": [],
    "{} st.global.u8 [%out+3], 1; st.global.u32 [%out], 7;": [],
}


@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize("body", RACES)
def test_races_are_found_unless_a_barrier_orders_the_accesses(body, barrier):
    text = f"{body.format(barrier)} bar.sync 0;"
    with _raced("PTX line .* and thread", found=barrier not in RACES[body]):
        run_block(text, 32, races=True)
    # Lanes wait for those of their warp only.
    if "atom" in body:
        with _raced("thread", found=barrier != BARRIERS[1]):
            run_block(text, 64, races=True)


def _raced(text, *, found):
    return pytest.raises(RaceError, match=text) if found else contextlib.nullcontext()


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.u64 %x4, [%out];",
        "st.global.u64 [%out], 5;",
        "atom.global.add.u64 %x4, [%out], 1; atom.global.exch.b64 %x4, [%out], %x7;",
        "st.volatile.global.u32 [%out], %r5; ld.relaxed.gpu.global.u32 %r6, [%out]; atom.global.inc.u32 %r6, [%out], 5;",
        "st.global.u64 [%x7], 5; ld.global.u64 %x4, [%x7]; st.global.u64 [%x7], %x4;",
    ],
)
def test_what_is_no_race(body):
    run_block(f"{body} bar.sync 0;", 40, races=True)
    run_block(f"bar.sync 0; {body} bar.sync 0;", 40, races=True)


@pytest.mark.parametrize(("met", "sound"), [("bar.warp.sync 6;", True), ("", False)])
def test_lanes_know_of_what_others_have_met(met, sound):
    # Lane 0 stores what lane 2 reads; both meet lane 1, one after the other.
    body = f"""setp.eq.u32 %p1, %r5, 0; @%p1 st.global.u64 [%out], 5; setp.gt.u32 %p1, %r5, 1; @%p1 bra second;
        bar.warp.sync 3; setp.eq.u32 %p1, %r5, 0; @%p1 bra done;
        second: setp.gt.u32 %p1, %r5, 2; @%p1 bra done; {met}
        setp.eq.u32 %p1, %r5, 2; @%p1 ld.global.u64 %x4, [%out]; done: bar.sync 0;"""
    with _raced("thread [02] .* and thread [02]", found=not sound):
        run_block(body, 4, races=True)


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


@pytest.mark.parametrize(
    "body",
    [
        "add.sat.bogus.s32 %r5, %r1, %r2;",
        "redux.sync.add.s32 %r5, %r1, -1;",
        "shfl.up.b32 %r5, %r1, 1, 0;",
        "bar.sync 1;",
        "bar.sync 0, 64;",
        "barrier.cta.arrive 0, 64;",
        "mov.u32 %r5, %smid;",
    ],
)
def test_what_it_does_not_know_is_refused(body):
    with pytest.raises(NotImplementedError, match=r"PTX line 10: |special register %smid"):
        run(body, [])
