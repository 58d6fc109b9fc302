"""ScopedTimer: elapsed milliseconds, nested output, collected times."""

from __future__ import annotations

import time

import numbridge as nb
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


def test_a_detailed_timer_prints_a_profile(capsys):
    with nb.ScopedTimer("work", detailed=True):
        sum(range(10))
    assert "function calls" in capsys.readouterr().out


def test_synchronize_waits_for_every_device_at_both_ends():
    with fake_cuda() as driver, nb.ScopedTimer("work", print=False, synchronize=True):
        assert driver.calls == [("synchronize", 0), ("synchronize", 1)]
        del driver.calls[:]
    assert driver.calls == [("synchronize", 0), ("synchronize", 1)]
