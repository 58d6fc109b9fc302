"""``print`` in a kernel on the CPU: what Python does with the numbers that compiled code hands over.

Each number is three words: its kind, and one or two words of value. `cpu_printing` writes them.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["KINDS", "NAMED", "WORDS", "print_line"]

WORDS = 3
# The kind of a number, and how its two words are read; that of an element is above these by how many components it has, and its
# first word is where the name of its type lies.
KINDS = {"int": 0, "uint": 1, "bool": 2, "float64": 3, "float32": 4, "complex128": 5, "complex64": 6}
NAMED = 16


def print_line(template: str, address: int, count: int) -> None:
    """Print a line as Python would.

    Parameters
    ----------
    template : str
        A JSON list: strings, and None wherever a number goes.
    address : int
        Where the numbers lie.
    count : int
        How many there are, with each component of an element counted.
    """
    words = ctypes.string_at(address, 8 * WORDS * count)
    values = _values(struct.iter_unpack("=q8s8s", words))
    print(*(next(values) if piece is None else piece for piece in json.loads(template)))


def _values(numbers: Iterator[Any]) -> Iterator[Any]:
    for kind, first, second in numbers:
        if kind < NAMED:
            yield _number(kind, first, second)
            continue
        name = ctypes.string_at(int.from_bytes(first, sys.byteorder)).decode()
        parts = [_number(*next(numbers)) for _ in range(kind - NAMED)]
        yield f"{name}({', '.join(map(str, parts))})"


def _number(kind: int, first: bytes, second: bytes) -> Any:
    if kind <= KINDS["bool"]:
        value = int.from_bytes(first, "little", signed=kind == KINDS["int"])
        return bool(value) if kind == KINDS["bool"] else value
    (real,), (imaginary,) = struct.unpack("=d", first), struct.unpack("=d", second)
    if kind in (KINDS["float32"], KINDS["float64"]):
        # A float32 is shown by the digits that tell it from other float32 numbers.
        return np.float32(real) if kind == KINDS["float32"] else real
    number = complex(real, imaginary)
    return np.complex64(number) if kind == KINDS["complex64"] else number
