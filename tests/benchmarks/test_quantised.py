"""Turns of engines that are measured beside quantised models."""

from __future__ import annotations

import time

import pytest

from benchmarks import quantised


def test_a_run_that_counts_follows_one_of_the_same_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    ways = {"ours": lambda: ran.append("ours"), "theirs": lambda: ran.append("theirs")}
    assert set(quantised.least_ms(ways, 2)) == set(ways)
    assert ran == ["ours", "ours", "theirs", "theirs"] * 2
    monkeypatch.setattr(quantised, "SETTLE_S", 0.01)
    ran.clear()
    start = time.perf_counter()
    quantised.least_wall_ms(ways, 1)
    assert time.perf_counter() - start >= 0.02, "while threads of the other engine may hold a core yet"
    assert ran == sorted(ran)
