"""The selection of the fastest candidate, common to all schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel, hardly_slower

Candidate = TypeVar("Candidate")


def fastest(
    candidates: Sequence[Candidate], facts: Sequence[KernelFacts], device: AnyDevice, model: LatencyModel
) -> Candidate:
    """Return the candidate that `model` predicts to be fastest; the first of those that are hardly slower."""
    if len(candidates) == 1:
        return candidates[0]
    predicted = [found.latency_us for found in model.predict(facts, device)]
    least_us = min(predicted)
    return next(each for each, us in zip(candidates, predicted, strict=True) if hardly_slower(us, least_us))
