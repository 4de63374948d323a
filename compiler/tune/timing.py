"""Times of plans in whole models, whose runs take turns, and whether plans compute the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import numpy as np

from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.runtime.host_runs import HOST_PREFIX
from tilestitch.runtime.session import LaunchTime

Inputs = Mapping[str, Any]
TOLERANCE = 1e-2
"""Tolerance between the results of two plans, which may round half floats at different points."""
RUNS = 10
"""Runs of a model in at least one of which what depends on random numbers is another."""


class Module(Protocol):
    """A loaded model as it is measured; results may stay on a GPU."""

    def run(self, feeds: Inputs) -> Mapping[str, Any]: ...

    def profile(self, feeds: Inputs) -> Sequence[LaunchTime]: ...

    def __enter__(self) -> Module: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


RunTime: TypeAlias = Callable[[Any, Inputs], float]


@dataclass(frozen=True)
class Times:
    """Minimum microseconds of each launch of a plan, and of whole runs; and the number of both."""

    launches_us: np.ndarray
    whole_us: float
    rounds: int


def wall_us(module: Module, feeds: Inputs) -> float:
    """Return the microseconds of a run."""
    start = time.perf_counter_ns()
    module.run(feeds)
    return (time.perf_counter_ns() - start) / 1000


def time_in_turns(
    modules: Sequence[Module], inputs: Inputs | None, rounds: int, most_s: float, run_us: RunTime = wall_us
) -> list[Times]:
    """Run each module once a round, whole and with its launches timed, until the rounds or the seconds are used up.
    run_us: times a run.

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
            whole[place] = min(whole[place], run_us(module, feeds))
            found = np.array([t.microseconds for t in module.profile(feeds) if not t.symbol.startswith(HOST_PREFIX)])
            before = launches[place]
            launches[place] = found if before is None else np.minimum(before, found)
    return [Times(us, each, done) for us, each in zip(launches, whole, strict=True) if us is not None]


def why_other_results(module: Module, reference: Module, inputs: Inputs | None) -> str | None:
    """Return which output differs from another plan's by more than rounding and summation order explain; None if none
    does. Outputs that differ from one run of the reference to the next, as of random numbers, are not compared.
    """
    feeds = inputs if inputs is not None else make_inputs(reference, {}, seed=0)
    expected, results = reference.run(feeds), module.run(feeds)
    other = [name for name, found in results.items() if not _agree(found, expected[name])]
    if not other:
        return None
    again = [reference.run(feeds) for _ in range(RUNS)]
    steady = [name for name in other if all(_agree(results[name], expected[name]) for results in again)]
    return f"output {steady[0]} differs from what the rules' plan computes" if steady else None


def _agree(found: Any, expected: Any) -> bool:
    """Return whether results agree: tensors of numbers but for rounding, and all others, such as texts, exactly."""
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(_agree, found, expected))
    if isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(_agree(found[key], expected[key]) for key in expected)
    one, other = np.asarray(found), np.asarray(expected)
    if one.shape != other.shape:
        return False
    if other.dtype.kind in "OUST":
        return bool((one == other).all())
    wide = np.complex128 if other.dtype.kind == "c" else np.float64
    one, other = one.astype(wide), other.astype(wide)
    most = np.abs(other[np.isfinite(other)]).max(initial=0.0)
    return np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * most, equal_nan=True)
