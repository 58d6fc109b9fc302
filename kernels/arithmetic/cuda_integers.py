"""What libdevice computes of integers and of the bits of numbers, in Python for kernels on the CPU.

Integers come as int32 and int64, also those that libdevice takes for unsigned; results are converted to the declared type. What
may be too large for its type is computed without a sign, where that is defined. Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbridge.kernels.arithmetic.cpu_cuda_functions import NAMES
from numbridge.kernels.arithmetic.scalar_code import from_bits, of_numbers, to_bits

__all__ = ["FUNCTIONS"]

_F32, _I32, _I64 = np.float32, np.int32, np.int64
_U32: Any = np.uint32
_U64: Any = np.uint64
_LOW = 0xFFFFFFFF
_brev, _clz, _ffs, _popc = (NAMES[name] for name in ("brev", "clz", "ffs", "popc"))


@of_numbers
def _unsigned(x):
    """Return 32 bits as the number that they are without a sign."""
    return _I64(x) & _LOW


@of_numbers
def _size(x):
    return _I64(_U64(0) - _U64(x)) if x < 0 else _I64(x)


@of_numbers
def _reversed(x):
    return _brev(_U32(x))


@of_numbers
def _reversed_long(x):
    return _brev(_U64(x))


@of_numbers
def _bytes_chosen(x, y, selector):
    """Return four of the bytes of two words; each is named by the lower three bits of a digit."""
    both = _unsigned(x) | (_I64(y) << 32)
    total = _I64(0)
    for place in range(4):
        byte = (both >> (8 * ((selector >> (4 * place)) & 7))) & 0xFF
        total |= byte << (8 * place)
    return total


@of_numbers
def _mean(x, y):
    return (_I64(x) + _I64(y)) >> 1


@of_numbers
def _mean_up(x, y):
    return (_I64(x) + _I64(y) + 1) >> 1


@of_numbers
def _mean_unsigned(x, y):
    return (_unsigned(x) + _unsigned(y)) >> 1


@of_numbers
def _mean_up_unsigned(x, y):
    return (_unsigned(x) + _unsigned(y) + 1) >> 1


@of_numbers
def _distance(x, y, z):
    return _size(_I64(x) - _I64(y)) + _I64(z)


@of_numbers
def _distance_unsigned(x, y, z):
    return _size(_unsigned(x) - _unsigned(y)) + _I64(z)


@of_numbers
def _low_24(x):
    """Return the lowest 24 bits as a signed number."""
    return (_I64(x) << 40) >> 40


@of_numbers
def _product_24(x, y):
    return _low_24(x) * _low_24(y)


@of_numbers
def _product_24_unsigned(x, y):
    return (_I64(x) & 0xFFFFFF) * (_I64(y) & 0xFFFFFF)


@of_numbers
def _high(x, y):
    return (_I64(x) * _I64(y)) >> 32


@of_numbers
def _high_unsigned(x, y):
    return (_U64(_unsigned(x)) * _U64(_unsigned(y))) >> _U64(32)


@of_numbers
def _high_long_unsigned(x, y):
    """Return the upper half of a product of unsigned numbers, of which each is two words."""
    low_x, low_y = _U64(x) & _U64(_LOW), _U64(y) & _U64(_LOW)
    high_x, high_y = _U64(x) >> _U64(32), _U64(y) >> _U64(32)
    middle = low_x * high_y + ((low_x * low_y) >> _U64(32))
    other = high_x * low_y + (middle & _U64(_LOW))
    return high_x * high_y + (middle >> _U64(32)) + (other >> _U64(32))


@of_numbers
def _high_long(x, y):
    more = (_U64(y) if x < 0 else _U64(0)) + (_U64(x) if y < 0 else _U64(0))
    return _high_long_unsigned(x, y) - more


@of_numbers
def _least(x, y):
    return x if x < y else y


@of_numbers
def _most(x, y):
    return x if x > y else y


@of_numbers
def _least_unsigned(x, y):
    return x if _U64(x) < _U64(y) else y


@of_numbers
def _most_unsigned(x, y):
    return x if _U64(x) > _U64(y) else y


@of_numbers
def _upper_word(x):
    return to_bits(x) >> 32


@of_numbers
def _lower_word(x):
    return to_bits(x)


@of_numbers
def _of_words(high, low):
    return from_bits((_I64(high) << 32) | _unsigned(low))


# float16 is computed with here as its bits, for not every CPU has it.


@of_numbers
def _half(x):
    """Return the bits of the nearest float16."""
    bits = _I64(to_bits(x)) & _LOW
    sign, size = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    if size > 0x7F800000:
        return _I64(0x7FFF)  # what is no number has no sign
    if size >= 0x47800000:  # 2**16
        return sign | 0x7C00
    if size < 0x38800000:  # 2**-14, from where numbers are normal
        # The addition rounds to multiples of the smallest number, which are the last bits of the sum.
        total = from_bits(_I32(size)) + _F32(0.5)
        return sign | (_I64(to_bits(total)) - 0x3F000000)
    odd = (size >> 13) & 1
    return sign | ((size + 0xFFF + odd) >> 13) - 0x1C000


@of_numbers
def _from_half(x):
    """Return the number that the bits of a float16 represent."""
    bits = _I64(x) & 0xFFFF
    sign, rest, digits = (bits & 0x8000) << 16, (bits >> 10) & 0x1F, bits & 0x3FF
    if rest == 0:
        number = _F32(digits) * _F32(2.0**-24)
        return -number if sign else number
    made = (0x7F800000 if rest == 31 else (rest + 112) << 23) | (digits << 13)
    return from_bits(_I32(sign | made))


FUNCTIONS: dict[str, Any] = {
    "abs": _size,
    "llabs": _size,
    "brev": _reversed,
    "brevll": _reversed_long,
    "byte_perm": _bytes_chosen,
    "clz": _clz,
    "clzll": _clz,
    "ffs": _ffs,
    "ffsll": _ffs,
    "popc": _popc,
    "popcll": _popc,
    "hadd": _mean,
    "rhadd": _mean_up,
    "uhadd": _mean_unsigned,
    "urhadd": _mean_up_unsigned,
    "sad": _distance,
    "usad": _distance_unsigned,
    "mul24": _product_24,
    "umul24": _product_24_unsigned,
    "mulhi": _high,
    "umulhi": _high_unsigned,
    "mul64hi": _high_long,
    "umul64hi": _high_long_unsigned,
    **dict.fromkeys(("min", "llmin"), _least),
    **dict.fromkeys(("max", "llmax"), _most),
    # The order of numbers without a sign is that of the longer ones, to which signed ones are extended.
    **dict.fromkeys(("umin", "ullmin"), _least_unsigned),
    **dict.fromkeys(("umax", "ullmax"), _most_unsigned),
    "double2hiint": _upper_word,
    "double2loint": _lower_word,
    "hiloint2double": _of_words,
    **dict.fromkeys(("double_as_longlong", "float_as_int"), to_bits),
    **dict.fromkeys(("longlong_as_double", "int_as_float"), from_bits),
    "float2half_rn": _half,
    "half2float": _from_half,
}
