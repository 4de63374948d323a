"""S0: one case of each kernel family, loaded, run, profiled and unloaded, against what the emulated device recorded.

It says within a minute whether our code runs on the GPU at all. Inputs are the recorded ones; outputs are full of NaN
bits before each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np

from benchmarks.device.case import Case, Setup
from benchmarks.device.differences import differences
from benchmarks.device.feeds import poisoned, relative_error, sample, static_shape
from benchmarks.device.limits import tolerance
from tilestitch.runtime import load
from tilestitch.runtime.dtypes import numpy_dtype


def smoke(setup: Setup, entry: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """Raises `WrongResult` where a run differs from the record by more than rounding."""
    with np.load(setup.bundle / f"{entry['name']}.recorded.npz") as recorded:
        arrays = dict(recorded)
    with load(setup.bundle / f"{entry['name']}.tsm", device=device) as module:
        feeds = {i.name: _typed(arrays[f"in.{i.name}"], i).reshape(static_shape(i)) for i in module.inputs}
        outputs = module.outputs
        expected = [_typed(arrays[f"out.{i.name}"], i) for i in outputs]
        results = [sample(result) for _ in range(2) for result in module.run(feeds, out=poisoned(module)).values()]
        launches = len(module.profile(feeds))
    pairs = list(zip(results, 2 * expected, strict=True))
    same = all(ours.tobytes() == record.tobytes() for ours, record in pairs)
    error, limit = relative_error(pairs), tolerance(entry)
    if setup.executes and not error <= limit:
        for run in range(2):
            for info, ours, record in zip(outputs, results[run * len(outputs) :], expected):
                _say(f"run {run}: {info.name}", ours, record, static_shape(info), limit)
    return {**setup.judged(error, limit), "same_bytes": same, "launches": launches}


def _say(name: str, ours: np.ndarray, record: np.ndarray, shape: tuple[int, ...], limit: float) -> None:
    """Where a result is wrong, to the log; by its axes, unless it is a sample."""
    shape = shape if ours.size == prod(shape) else ours.shape
    print(*differences(name, ours.reshape(shape), record.reshape(shape), limit), sep="\n", flush=True)


def _typed(raw: np.ndarray, info: Any) -> np.ndarray:
    return raw.view(numpy_dtype(info.dtype))


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("cases"):
        if entry["smoke"]:
            key = {"name": entry["name"], "kernels": " ".join(entry["kinds"] + entry["features"])}
            yield Case(part, key, partial(smoke, setup, entry), fingerprint=entry["digest"])
