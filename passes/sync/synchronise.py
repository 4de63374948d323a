"""Tile-level synchronisation of dependent kernels of a plan: chains of them, or all kernels of a model."""

from __future__ import annotations

from collections.abc import Iterator

from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.stages import Kernels
from tilestitch.passes.plan import WhyNot

from .choose import Chain, Chooser
from .policies import Wanted
from .whole import synchronise_whole


def synchronise(graph: Graph, kernels: Kernels, wanted: Wanted, model: LatencyModel) -> Iterator[WhyNot]:
    """Tie chains of scheduled `kernels`; yield what was refused, and why."""
    chooser = Chooser(graph, kernels, wanted, model)
    if wanted.whole:
        yield from synchronise_whole(chooser)
        return
    yield from _in_order(chooser) if wanted.forced else _best_first(chooser)


def _in_order(chooser: Chooser) -> Iterator[WhyNot]:
    """Tie every possible chain, from the first kernel on; yield the refusals."""
    kernels = chooser.kernels
    for name in list(kernels.order):
        if name not in kernels.groups:
            continue
        chain, refusals = chooser.grow(name)
        yield from refusals
        if chain is not None:
            kernels.replace(chain.tied.group)


def _best_first(chooser: Chooser) -> Iterator[WhyNot]:
    """Tie, among overlapping chains that pay, the one that saves most first, so that each kernel follows its
    predecessor tile by tile or as a whole, whichever is better overall; yield the refusals.
    """
    kernels = chooser.kernels
    grown: dict[str, Chain | None] = {}
    refusals: dict[tuple[str, str, str], WhyNot] = {}
    while True:
        for name in kernels.order:
            if name in kernels.groups and name not in grown:
                grown[name], more = chooser.grow(name)
                refusals.update({(why.subject, why.rule, why.reason): why for why in more})
        best = max((c for c in grown.values() if c is not None), key=lambda chain: chain.saved_us, default=None)
        if best is None:
            break
        if not chooser.fits(best):
            del grown[best.names[0]]
            continue
        kernels.replace(best.tied.group)
        taken = set(best.names)
        grown[best.tied.group.name] = None
        grown = {
            name: chain for name, chain in grown.items()
            if name not in taken and not (chain and taken & set(chain.names))
        }  # fmt: skip
    yield from refusals.values()
