"""A8: the GEMMs of an MLP, ours, one after the other and tied in every way: what does it gain to wait for tiles?

All forms of a case are timed in turns in one process, so that they meet the same clocks. Their results are compared
with those of the kernels apart: tiles differ, and so does the order in which sums are rounded.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.cards import told_for
from benchmarks.device.case import Case, Setup
from benchmarks.device.feeds import relative_error
from benchmarks.device.gpu import Gpu
from benchmarks.device.limits import TOLERANCE
from benchmarks.device.ours import uploaded
from benchmarks.device.pair_models import APART, flops, moved_bytes
from benchmarks.device.timing import Timer
from tilestitch.runtime import Module, load
from tilestitch.runtime.cuda.array import DeviceArray

ROUNDS = 3
LIMIT_S = 40.0


def time_forms(setup: Setup, entry: dict[str, Any]) -> dict[str, Any]:
    """Median device time of each form, and what it gains over the kernels apart, beside what was predicted."""
    gpu = Gpu(setup.kernels("launch"))
    forms = entry["forms"]
    with ExitStack() as stack:
        modules = {
            form: stack.enter_context(load(setup.bundle / f"{one['artifact']}.tsm", device="cuda", verify=False))
            for form, one in forms.items()
        }
        rng = np.random.default_rng(2)
        given = {v.name: uploaded(gpu, _uniform(rng, v.shape)) for v in modules[APART].inputs}
        results = {form: module.run(given, on_device=True) for form, module in modules.items()}
        judged = setup.judged(_difference(modules, given, results) if setup.executes else 0.0, TOLERANCE["float16"])
        runs = {
            form: partial(module.run, given, out=results[form], stream=gpu.stream) for form, module in modules.items()
        }
        timer = Timer(gpu, setup)
        rounds = [{form: timer.times(run)["device_us"] for form, run in runs.items()} for _ in range(ROUNDS)]
    times = {form: statistics.median(one[form] for one in rounds) for form in runs}
    best_us = min(times.values())
    return {
        **judged,
        **{f"{form}_us": us for form, us in times.items()},
        **{f"{form}_gain": 1 - us / times[APART] for form, us in times.items() if form != APART},
        **predicted_gains(gpu.device.name, forms),
        "device_us": times["auto"],
        "TFLOP_per_s": flops(entry["mlp"], entry["tokens"]) / best_us / 1e6,
        "GB_per_s": moved_bytes(entry["mlp"], entry["tokens"]) / best_us / 1e3,
    }  # fmt: skip


def predicted_gains(gpu: str, forms: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """What each form was said to gain over the kernels apart on this GPU; nothing where nothing was said."""
    predicted = {form: told_for(gpu, one["predicted_us"]) for form, one in forms.items()}
    apart = predicted.pop(APART)
    return {f"{form}_predicted_gain": 1 - us / apart for form, us in predicted.items() if us is not None and apart}


def _difference(
    modules: Mapping[str, Module], given: Mapping[str, DeviceArray], results: Mapping[str, Mapping[str, DeviceArray]]
) -> float:
    """The largest relative error against the kernels apart, in several runs of every form."""
    expected = {name: array.numpy() for name, array in results[APART].items()}
    worst = 0.0
    for form, module in modules.items():
        for _ in range(ROUNDS):
            module.run(given, out=results[form])
            worst = max(worst, relative_error((results[form][name].numpy(), y) for name, y in expected.items()))
    return worst


def _uniform(rng: np.random.Generator, shape: Any) -> np.ndarray:
    """Small enough that sums of thousands stay in range; some repeat, so that making them takes no time."""
    count = int(np.prod(shape))
    some = (rng.random(min(count, 1_000_003), np.float32) - 0.5) / 8
    return np.resize(some.astype(np.float16), count).reshape(shape)


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("pairs"):
        key = {"mlp": entry["mlp"], "tokens": entry["tokens"], "by": "tilestitch"}
        yield Case(part, key, partial(time_forms, setup, entry), LIMIT_S, fingerprint=entry["digest"])
