"""A9: on a share of the multiprocessors, is a plan for the share faster than the plan for the whole GPU?

Both run on the same partition, in turns in one process, so that they meet the same clocks; the rest of the GPU is idle.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.cards import told_for
from benchmarks.device.case import Case, Setup
from benchmarks.device.feeds import feeds_of, seeded_weights
from benchmarks.device.gpu import Gpu
from benchmarks.device.ours import uploaded
from benchmarks.device.share_models import SHARES, WHOLE
from benchmarks.device.timing import Timer
from tilestitch.runtime import load
from tilestitch.runtime.cuda.partition import Partition
from tilestitch.runtime.errors import DeviceError, PartitionWarning

ROUNDS = 3
LIMIT_S = 40.0


def time_plans(setup: Setup, entry: dict[str, Any], share: int) -> dict[str, Any]:
    """Median device time of either plan on the share, and what is gained, beside what was predicted."""
    gpu = Gpu(setup.kernels("launch"))
    forms = {form: entry["forms"][form] for form in (WHOLE, str(share))}
    with Partition(gpu.device, share) as partition, ExitStack() as stack:
        runs: dict[str, Callable[[], Any]] = {}
        for form, one in forms.items():
            try:
                runs[form] = _loaded(setup, gpu, one["artifact"], partition, stack)
            except DeviceError:  # its blocks wait for each other and do not fit
                if form != WHOLE:
                    raise
        timer = Timer(gpu, setup)
        rounds = [{form: timer.times(run)["device_us"] for form, run in runs.items()} for _ in range(ROUNDS)]
    whole_us, share_us = (
        statistics.median(one[form] for one in rounds) if form in runs else None for form in (WHOLE, str(share))
    )
    return {
        "multiprocessors": partition.multiprocessors,
        "whole_plan_us": whole_us,
        "share_plan_us": share_us,
        "gain": _gain(whole_us, share_us),
        "predicted_gain": _gain(*(told_for(gpu.device.name, one["on_share_us"][str(share)]) for one in forms.values())),
    }


def _loaded(setup: Setup, gpu: Gpu, artifact: str, partition: Partition, stack: ExitStack) -> Callable[[], Any]:
    """What queues one run of the artifact on the partition."""
    path = setup.bundle / f"{artifact}.tsm"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartitionWarning)  # that is the question
        module = load(path, device="cuda", weights=seeded_weights(path), verify=False, multiprocessors=partition)
    stack.enter_context(module)
    given = {name: uploaded(gpu, array) for name, array in feeds_of(module, np.random.default_rng(2)).items()}
    results = module.run(given, on_device=True)
    return partial(module.run, given, out=results, stream=gpu.stream)


def _gain(before_us: float | None, after_us: float | None) -> float | None:
    """The part of the time that is saved."""
    return None if before_us is None or after_us is None else 1 - after_us / before_us


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("shares"):
        for share in SHARES:
            key = {"model": entry["model"], "share": share, "by": "tilestitch"}
            yield Case(part, key, partial(time_plans, setup, entry, share), LIMIT_S, fingerprint=entry["digest"])
