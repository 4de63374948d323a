"""Times of plans in whole models, whose runs take turns, and whether plans compute the same."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.runtime.host_runs import HOST_PREFIX
from tilestitch.runtime.session import Module

Inputs = Mapping[str, Any]
TOLERANCE = 1e-2
"""Tolerance between the results of two plans, which may round half floats at different points."""


@dataclass(frozen=True)
class Times:
    """Minimum microseconds of each launch of a plan, and of whole runs; and the number of both."""

    launches_us: np.ndarray
    whole_us: float
    rounds: int


def time_in_turns(modules: Sequence[Module], inputs: Inputs | None, rounds: int, most_s: float) -> list[Times]:
    """Run each module once a round, whole and with its launches timed, until the rounds or the seconds are used up.

    A slowdown of the machine longer than a round affects all of them; the minimum counts.
    """
    feeds = inputs if inputs is not None else make_inputs(modules[0], {}, seed=0)
    launches: list[np.ndarray | None] = [None] * len(modules)
    whole = [float("inf")] * len(modules)
    until = time.monotonic() + most_s
    for module in modules:
        module.run(feeds)
    done = 0
    while done < rounds and (not done or time.monotonic() <= until):
        done += 1
        for place, module in enumerate(modules):
            start = time.perf_counter_ns()
            module.run(feeds)
            whole[place] = min(whole[place], (time.perf_counter_ns() - start) / 1000)
            found = np.array([t.microseconds for t in module.profile(feeds) if not t.symbol.startswith(HOST_PREFIX)])
            before = launches[place]
            launches[place] = found if before is None else np.minimum(before, found)
    return [Times(us, each, done) for us, each in zip(launches, whole, strict=True) if us is not None]


def why_other_results(module: Module, reference: Module, inputs: Inputs | None) -> str | None:
    """Return which output differs from another plan's by more than rounding and summation order explain; None if none
    does.
    """
    feeds = inputs if inputs is not None else make_inputs(reference, {}, seed=0)
    expected = reference.run(feeds)
    for name, found in module.run(feeds).items():
        one, other = (np.asarray(result, np.float64) for result in (found, expected[name]))
        most = np.abs(other[np.isfinite(other)]).max(initial=0.0)
        if not np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * most, equal_nan=True):
            return f"output {name} differs from what the rules' plan computes"
    return None
