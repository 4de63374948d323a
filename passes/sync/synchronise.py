"""Dependent kernels of a plan that shall not wait for each other whole: chains of them, or all that a model has."""

from __future__ import annotations

from collections.abc import Iterator

from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.stages import Kernels
from tilestitch.passes.plan import WhyNot

from .choose import Chooser
from .policies import Wanted
from .whole import synchronise_whole


def synchronise(graph: Graph, kernels: Kernels, wanted: Wanted, model: LatencyModel) -> Iterator[WhyNot]:
    """Tie chains of `kernels`, which have schedules; yields what was refused, and why."""
    chooser = Chooser(graph, kernels, wanted, model)
    if wanted.whole:
        yield from synchronise_whole(chooser)
        return
    for name in list(kernels.order):
        if name in kernels.groups:
            yield from chooser.grow(name)
