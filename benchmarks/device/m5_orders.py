"""M5: models with branches as planned, without priorities, and one launch at a time: what does the order gain?

All orders of a model are timed in turns in one process, so that they meet the same clocks. They run the same kernels on
the same memory, so outputs must be the same bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.cards import told_for
from benchmarks.device.case import Case, Setup, WrongResult
from benchmarks.device.feeds import feeds_of
from benchmarks.device.gpu import Gpu
from benchmarks.device.m_models import PEER_DTYPES
from benchmarks.device.ours import queued, stripped
from benchmarks.device.timing import Timer
from tilestitch.runtime import Module

PLANNED = "planned"
ROUNDS = 3
LIMIT_S = 40.0


def time_orders(setup: Setup, entry: dict[str, Any]) -> dict[str, Any]:
    """Median device time of each order; how many times as fast as one launch at a time, and as predicted."""
    gpu = Gpu(setup.kernels("launch"))
    with ExitStack() as stack:
        modules = {
            order: stack.enter_context(stripped(setup.bundle / f"{name}.tsm"))
            for order, name in {PLANNED: entry["name"], **entry["orders"]}.items()
        }
        if setup.executes:
            check_same(modules)
        runs = {order: queued(gpu, module)[1] for order, module in modules.items()}
        timer = Timer(gpu, setup)
        rounds = [{order: timer.times(run)["device_us"] for order, run in runs.items()} for _ in range(ROUNDS)]
    planned_us, one_us = (told_for(gpu.device.name, entry[name]) for name in ("predicted_us", "one_at_a_time_us"))
    times = {f"{order}_us": statistics.median(one[order] for one in rounds) for order in runs}
    return {
        **times,
        "times_as_fast": times["one_at_a_time_us"] / times[f"{PLANNED}_us"],
        "predicted_times_as_fast": one_us / planned_us if one_us and planned_us else None,
        "same_bytes": True if setup.executes else None,
    }


def check_same(modules: Mapping[str, Module]) -> None:
    """Raises `WrongResult` where an order gives other bytes than the planned one, in one of several runs."""
    feeds = feeds_of(modules[PLANNED], np.random.default_rng(2))
    expected = modules[PLANNED].run(feeds)
    for order, module in modules.items():
        for _ in range(ROUNDS):
            for name, array in module.run(feeds).items():
                if array.tobytes() != expected[name].tobytes():
                    raise WrongResult(f"output {name!r} of order {order!r} differs from that of the planned one")


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("models"):
        if "one_at_a_time" in entry.get("orders", {}):
            key = {"model": entry["model"], "dtype": PEER_DTYPES[entry["precision"]]}
            yield Case(part, key, partial(time_orders, setup, entry), LIMIT_S, fingerprint=entry["digest"])
