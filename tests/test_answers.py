"""What another system answers wrongly, numbridge answers rightly or refuses; the list in the documentation is what was run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from answers import CASES, FILE, Case, answer
from numbridge.kernels.errors import NumbridgeError


def is_true(case: Case, found: object) -> bool:
    return not isinstance(case.truth, str) and np.allclose(found, case.truth, rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ours_is_the_true_answer_or_an_error(case: Case) -> None:
    try:
        found = case.ours()
    except NumbridgeError:
        return
    assert is_true(case, found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_theirs_is_still_what_the_documentation_says(case: Case) -> None:
    found = case.theirs()
    assert not is_true(case, found)
    recorded = {row["name"]: row for row in json.loads(FILE.read_text())["rows"]}[case.name]
    assert np.allclose(found, recorded["theirs"])
    assert (recorded["question"], recorded["truth"], recorded["documented"]) == (
        case.question,
        case.truth,
        case.documented,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ours_is_what_the_documentation_says(case: Case) -> None:
    recorded = {row["name"]: row for row in json.loads(FILE.read_text())["rows"]}[case.name]["ours"]
    found = answer(case.ours)
    assert found == recorded if isinstance(recorded, str) else np.allclose(found, recorded)
