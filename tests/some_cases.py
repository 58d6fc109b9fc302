"""How thorough the tests are: `nox -s tests` takes some of the cases that are much alike, `nox -s thorough` all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

__all__ = ["THOROUGH", "some"]

Case = TypeVar("Case")
THOROUGH = os.environ.get("NUMBRIDGE_THOROUGH") == "1"


def some(cases: Iterable[Case], each: int, first: int = 0) -> list[Case]:
    """Return one case of `each` many, from the `first` on; all where the tests are thorough.

    For cases that other tests look at, too, and that take longer to compile than they tell.
    """
    found = [*cases]
    return found if THOROUGH else found[first::each]
