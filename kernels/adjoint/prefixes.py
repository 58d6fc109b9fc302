"""What the names of adjoints and tangents begin with: with `_nb_`, which no name of a user's may begin with."""

import re

ADJOINT = "_nb_adj_"
TANGENT = "_nb_tan_"
_ANY = re.compile(r"_nb_(adj|tan\d*)_")


def tangent_prefix(level: int) -> str:
    """Return what tangents begin with: `TANGENT`, and for tangents of tangents (`level` 2 and up) a numbered one."""
    return TANGENT if level == 1 else f"_nb_tan{level}_"


def primal_of(name: str) -> str:
    """Return the parameter whose adjoint or tangent a parameter is; a parameter of the user's is its own."""
    found = _ANY.match(name)
    return name[found.end() :] if found else name


def origin_of(name: str) -> str:
    """Return the parameter of the user's that a parameter is, or is a derivative of, of whatever order."""
    while (found := primal_of(name)) != name:
        name = found
    return name
