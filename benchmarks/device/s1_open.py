"""S1: kernels over open dimensions, from one artifact at all sizes of a case, against what the emulated device
recorded. Sizes come twice, so that a graph is made for each, updated in place for others, and used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.case import Case, Setup, WrongResult
from benchmarks.device.feeds import relative_error
from benchmarks.device.limits import tolerance
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError


def judge(setup: Setup, entry: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """The largest relative error. Raises `WrongResult` where a run differs from the record by more than rounding."""
    with np.load(setup.bundle / f"{entry['name']}.recorded.npz") as recorded:
        arrays = dict(recorded)
    worst = 0.0
    with load(setup.bundle / f"{entry['name']}.tsm", device=device, donate=entry["donate"]) as module:
        for number in (*range(entry["points"]), *range(entry["points"])):
            try:
                results = module.run(_of(arrays, f"{number}.in."))
            except ExecutionError:
                if setup.executes:
                    raise
                continue  # a size that kernels compute is not there where kernels do nothing
            expected = _of(arrays, f"{number}.out.")
            if setup.executes:
                _check_alike(results, expected, number)
                found = relative_error((results[name], expected[name]) for name in expected)
                worst = found if np.isnan(found) else max(worst, found)
    return {**setup.judged(worst, tolerance(entry)), "points": entry["points"]}


def _of(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _check_alike(results: dict[str, Any], expected: dict[str, np.ndarray], number: int) -> None:
    for name, wanted in expected.items():
        if results[name].shape != wanted.shape:
            raise WrongResult(f"{name} is {results[name].shape}, not {wanted.shape}, at point {number}")
        if wanted.dtype.kind != "f" and not np.array_equal(results[name], wanted):
            raise WrongResult(f"{name} differs at point {number}")


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("open"):
        key = {"name": entry["name"], "kernels": " ".join(entry["kinds"] + entry["features"])}
        yield Case(part, key, partial(judge, setup, entry), fingerprint=entry["digest"])
