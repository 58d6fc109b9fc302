"""Compiled: a checksum of memory, about as fast as it can be read.

Eight words are taken at a time, each into a sum of its own. A step maps different sums, and different words, to different
ones, so no change of a single word goes unseen; others go unseen about once in 2**64 times. The sums begin far apart, and are
put together in an order, so that words which change places between them are seen too.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native.memory import external, inlined, load_i64, native

intp = types.int64
address_value = external("PyLong_AsVoidPtr", intp, intp)
new_int = external("PyLong_FromLongLong", intp, intp)

FACTOR = -7046029254386353131  # 2**64 divided by the golden ratio, odd
LOW_HALF = (1 << 32) - 1
# Digits of pi, without the highest bit of each word.
FIRST, SECOND, THIRD, FOURTH = 0x243F6A8885A308D3, 0x13198A2E03707344, 0x24093822299F31D0, 0x082EFA98EC4E6C89
FIFTH, SIXTH, SEVENTH, EIGHTH = 0x452821E638D01377, 0x3E5466CF34E90C6C, 0x40AC29B7C97C50DD, 0x3F84D5B5B5470917

EXPORTS = {"numbridge_checksum": ("checksum", "int64(int64, int64, int64)")}


@inlined
def step(total, word):
    """Take a word into a sum: the product moves differences up, the shift moves them down again."""
    product = (total ^ word) * FACTOR
    return product ^ (product >> 32 & LOW_HALF)


@native
def checksum(self, arguments, count):
    """``checksum(address, words)``: the checksum of so many 64-bit words."""
    place, words = address_value(load_i64(arguments, 0)), address_value(load_i64(arguments, 8))
    first, second, third, fourth = FIRST, SECOND, THIRD, FOURTH
    fifth, sixth, seventh, eighth = FIFTH, SIXTH, SEVENTH, EIGHTH
    while words >= 8:
        first = step(first, load_i64(place, 0))
        second = step(second, load_i64(place, 8))
        third = step(third, load_i64(place, 16))
        fourth = step(fourth, load_i64(place, 24))
        fifth = step(fifth, load_i64(place, 32))
        sixth = step(sixth, load_i64(place, 40))
        seventh = step(seventh, load_i64(place, 48))
        eighth = step(eighth, load_i64(place, 56))
        place += 64
        words -= 8
    while words > 0:
        first = step(first, load_i64(place, 0))
        place += 8
        words -= 1
    total = step(step(first, FOURTH), second)
    total = step(step(total, FIRST), third)
    total = step(step(total, SECOND), fourth)
    total = step(step(total, THIRD), fifth)
    total = step(step(total, EIGHTH), sixth)
    total = step(step(total, FIFTH), seventh)
    return new_int(step(step(total, SIXTH), eighth))
