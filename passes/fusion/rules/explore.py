"""Exploration as a fusion rule: candidates, beam search, the full estimate for the finalists.

Unlike the other rules it does not look for what it knows, but scores whatever legality allows; see docs/fusion.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.bitsets import bits
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.builtin import Epilogue, Fuse, FusionRule, Inline, Rows
from tilestitch.passes.fusion.rules.gates import Gates
from tilestitch.passes.fusion.search.beam import beam_search
from tilestitch.passes.fusion.search.candidates import OutOfTime, candidates
from tilestitch.passes.fusion.search.climb import climb
from tilestitch.passes.fusion.search.cover import Cover
from tilestitch.passes.fusion.search.space import Space
from tilestitch.passes.fusion.stitcher import attempt, combined
from tilestitch.passes.plan import WhyNot
from tilestitch.passes.schedule.device import device_of

SEEDS: tuple[FusionRule, ...] = (Epilogue(), Gates(), Rows(), Inline())
"""What these rules make is one of the finalists."""


@dataclass(frozen=True)
class Found:
    """A plan, its full estimate, and whether the time sufficed."""

    cover: Cover
    predicted_us: float
    in_time: bool = True


@dataclass(frozen=True)
class Explore:
    """Proposes the partition of the graph with the least predicted latency that it finds.

    k: patterns kept for each node. beam: sets of patterns kept. budget_s: seconds after which exploration ends with
    what it has; the result is the same in every run unless that happens, and then the plan says so. seeded: the
    partition that the other rules make is a finalist, too. then: the rules that come after this one; each finalist is
    judged by what they make of it, views and packing included. model: what predicts.
    """

    k: int = 3
    beam: int = 3
    budget_s: float = 60.0
    seeded: bool = True
    then: tuple[FusionRule, ...] = ()
    model: LatencyModel = field(default_factory=AnalyticalModel)
    name: ClassVar[str] = "explore"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        space = Space(state, self.model, device_of(state.target))
        found = self.search(space)
        if not found.in_time:
            reason = "the time budget ended the exploration; another run may find another plan"
            state.remarks.append(WhyNot(state.graph.name, self.name, reason, {"budget_s": self.budget_s}))
        yield from _proposals(state, found.cover)

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None

    def search(self, space: Space) -> Found:
        """The best partition found in `space`."""
        deadline = time.monotonic() + self.budget_s
        in_time = True
        try:
            patterns = candidates(space, self.k, deadline)
        except OutOfTime as stop:
            patterns, in_time = list(stop.found.values()), False
        finalists: list[Sequence[int]] = list(beam_search(space, patterns, self.beam))
        placed = [p.mask for p in patterns]
        if self.seeded:
            finalists.append(seed(space))
        starts = [Cover(space, masks) for masks in finalists]
        improved = [climb(cover.copy(), placed, deadline) for cover in starts]
        found = {cover.key: cover for cover in (*improved, *(starts[-1:] if self.seeded else ()))}
        judged = self._with_what_follows_us if self.then and len(found) > 1 else _total_us
        ranked = sorted(found.values(), key=lambda cover: (cover.total_us, cover.key))
        further = climb(ranked[0].copy(), placed, deadline, joining=True)
        best = min((*ranked, further), key=lambda cover: (judged(cover), cover.key))
        return Found(best, best.total_us, in_time and time.monotonic() <= deadline)

    def _with_what_follows_us(self, cover: Cover) -> float:
        """The full estimate of what the rules after this one make of a plan."""
        space = cover.space
        state, rules = space.state.fork(), (*space.state.rules, *self.then)
        for proposal in _proposals(state, cover):
            attempt(state, self, proposal, rules)
        for rule in self.then:
            for proposal in rule.propose(state):
                attempt(state, rule, proposal, rules)
        kernels, _ = combined(state, self.then)
        return sum(kernels.latency_us(g, self.model) for g in kernels.groups.values())


def _total_us(cover: Cover) -> float:
    return cover.total_us


def _proposals(state: Fusion, cover: Cover) -> list[Fuse]:
    """The kernels of several atoms. What is not stored belongs to the kernel that alone computes it."""
    atoms, found = cover.space.atoms, list[Fuse]()
    for part, mask in cover.kernels.items():
        owned = {n for i in bits(mask) if part >> i & 1 or len(cover.computing[i]) == 1 for n in atoms[i].owned}
        copies = {n for i in bits(mask) for n in atoms[i].owned} - owned
        if mask & (mask - 1):
            found.append(Fuse(tuple(state.in_order(owned)), tuple(state.in_order(copies)), forced=True))
    return found


def seed(space: Space) -> list[int]:
    """The partition that the rules of the default planner make, without copies, as far as it consists of patterns."""
    state = space.state.fork()
    for rule in SEEDS:
        for proposal in rule.propose(state):
            attempt(state, rule, proposal, (*state.rules, *SEEDS))
    return [m for m in space.partition_of(state) if space.is_pattern(m)]
