"""ScopedTimer: elapsed milliseconds, nested output, collected times."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest

import numbridge as nb
import numbridge.timer
from fake_cuda import fake_cuda


def test_it_times_prints_and_collects(capsys):
    times: dict[str, list[float]] = {}
    with nb.ScopedTimer("outer", dict=times):
        for _ in range(2):
            with nb.ScopedTimer("inner", dict=times) as timer:
                time.sleep(0.002)
    assert timer.elapsed >= 2
    assert [len(times["inner"]), len(times["outer"])] == [2, 1]
    assert times["outer"][0] >= sum(times["inner"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" took")[0] for line in lines] == ["  inner", "  inner", "outer"]


def test_an_inactive_or_silent_timer_says_nothing(capsys):
    with nb.ScopedTimer("off", active=False) as timer:
        time.sleep(0.001)
    assert timer.elapsed == 0
    with nb.ScopedTimer("silent", print=False):
        pass
    assert capsys.readouterr().out == ""


def test_what_is_to_be_added_is_printed_and_all_may_be_switched_off(capsys, monkeypatch):
    with nb.ScopedTimer("work") as timer:
        timer.extra_msg = "(3 steps)"
    assert re.fullmatch(r"work took [\d.]+ ms \(3 steps\)\n", capsys.readouterr().out)
    monkeypatch.setattr(nb.ScopedTimer, "enabled", False)
    with nb.ScopedTimer("work") as timer:
        pass
    assert capsys.readouterr().out == "" and timer.elapsed == 0


@pytest.mark.parametrize(("given", "wanted"), [("cyan", 0xFF00FFFF), (0xFF123456, 0xFF123456), ("rapids", 0xFF7400FF)])
def test_a_range_of_a_profiler_has_a_colour(given, wanted, monkeypatch):
    ranges = []
    nvtx = SimpleNamespace(RangePushC=lambda *told: ranges.append(told), RangePop=lambda: ranges.append("end"))
    monkeypatch.setattr(numbridge.timer, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(nvtx=nvtx)))
    with fake_cuda(), nb.ScopedTimer("work", use_nvtx=True, color=given):
        pass
    assert ranges == [("work", wanted), "end"]


def test_a_colour_that_is_none_is_refused():
    with pytest.raises(
        nb.NumbridgeValueError, match="color is 'mauve'; it must be a number, 0xAARRGGBB, or one of black"
    ):
        nb.ScopedTimer("work", color="mauve")


def test_times_are_collected_in_a_dictionary_only():
    with pytest.raises(nb.NumbridgeTypeError, match="dict is 3; it must be a dictionary"):
        nb.ScopedTimer("work", dict=3)


def test_a_detailed_timer_prints_a_profile(capsys):
    with nb.ScopedTimer("work", detailed=True):
        sum(range(10))
    assert "function calls" in capsys.readouterr().out


def test_synchronize_waits_for_every_device_at_both_ends():
    with fake_cuda() as driver, nb.ScopedTimer("work", print=False, synchronize=True):
        assert driver.calls == [("synchronize", 0), ("synchronize", 1)]
        del driver.calls[:]
    assert driver.calls == [("synchronize", 0), ("synchronize", 1)]
