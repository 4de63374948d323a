"""Exploration as a fusion rule: candidates, beam search, the full estimate for the finalists.

Unlike the other rules it does not match known patterns, but scores whatever is legal; see docs/fusion.md.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import ClassVar, TypeAlias

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.bitsets import bits
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.builtin import Epilogue, Fuse, FusionRule, Inline, Rows
from tilestitch.passes.fusion.rules.gates import Gates
from tilestitch.passes.fusion.search.candidates import OutOfBudget, beam_search, candidates
from tilestitch.passes.fusion.search.climb import climb
from tilestitch.passes.fusion.search.cover import Cover
from tilestitch.passes.fusion.search.sections import from_outputs, is_small, sections
from tilestitch.passes.fusion.search.space import Budget, Space
from tilestitch.passes.fusion.stitcher import attempt, combined
from tilestitch.passes.plan import WhyNot
from tilestitch.passes.schedule.device import device_of

Key: TypeAlias = tuple[tuple[int, int], ...]
"""Identity of a cover."""
SEEDS: tuple[FusionRule, ...] = (Epilogue(), Gates(), Rows(), Inline())
"""Rules whose result is one of the finalists."""


MOST_WORK = 400_000
"""Default limit of evaluated kernels."""


@dataclass(frozen=True)
class Found:
    """A plan, its full estimate, and whether the search ended by itself."""

    cover: Cover
    predicted_us: float
    in_time: bool = True
    interrupted: bool = False


@dataclass(frozen=True)
class Explore:
    """Proposes the partition of the graph with the least predicted latency that it finds.

    `k`: patterns kept for each node. `beam`: sets of patterns kept. `work`: kernels evaluated before it stops,
    deterministically; 0: no limit. `budget_s`: seconds after which it stops, too; if that happens the result is not
    reproducible, and the plan says so. `seeded`: the partition of the other rules is a finalist, too, and the first one
    that is improved. `then`: the rules after this one; each finalist is judged after they have been applied, including
    views and packing. `model`: the latency model.
    """

    k: int = 3
    beam: int = 3
    budget_s: float = inf
    work: int = MOST_WORK
    seeded: bool = True
    then: tuple[FusionRule, ...] = ()
    model: LatencyModel = ANALYTICAL
    name: ClassVar[str] = "explore"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        by_name = {node.name: node for node in state.nodes}
        late = False
        for found in self._found(state):
            late = late or not found.in_time
            for proposal in _proposals(found.cover.space.state, found.cover):
                nodes, copies = ([by_name[n.name] for n in part] for part in (proposal.nodes, proposal.copies))
                yield Fuse(tuple(nodes), tuple(copies), forced=True)
        if late:
            reason = "the time budget, or an interrupt, ended the exploration; another run may find another plan"
            figures = {"budget_s": self.budget_s} if isfinite(self.budget_s) else {}
            state.remarks.append(WhyNot(state.graph.name, self.name, reason, figures))

    def _found(self, state: Fusion) -> Iterator[Found]:
        """Yield what is found in each section of a graph, which has a share of the budget by its nodes."""
        if is_small(state):
            yield self.search(Space(state, self.model, device_of(state.target)))
            return
        left, ends_s, work = len(state.nodes), time.monotonic() + self.budget_s, self.work / len(state.nodes)
        for section in sections(state, from_outputs(_seeded(state))):
            nodes = len(section.state.nodes)
            seconds = (ends_s - time.monotonic()) * nodes / max(nodes, left) if isfinite(ends_s) else ends_s
            space = Space(section.state, self.model, device_of(state.target))
            budget = Budget.of(space, ceil(work * nodes) or None, seconds)
            found = self.search(space, budget, section.kernels)
            left -= nodes
            ends_s = 0.0 if found.interrupted else ends_s
            yield found

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None

    def search(
        self, space: Space, budget: Budget | None = None, kernels: Sequence[Iterable[Node]] | None = None
    ) -> Found:
        """Return the best partition found in `space`. `budget`: default all of this rule's; `kernels`: the partition of
        the other rules, if known.
        """
        budget = budget or Budget.of(space, self.work or None, self.budget_s)
        first = Cover(space, seed(space, kernels) if self.seeded else ())
        found = {first.key: first}
        try:
            if self.seeded:
                _note(found, climb(first.copy(), (), budget))
            placed = self._from_patterns(space, first, budget, found) if budget.is_ample else []
            best = self._best(placed, budget, found)
        except KeyboardInterrupt:
            best = min(found.values(), key=_ranked)
            return Found(best, best.total_us, in_time=False, interrupted=True)
        return Found(best, best.total_us, in_time=not budget.is_late)

    def _from_patterns(self, space: Space, first: Cover, budget: Budget, found: dict[Key, Cover]) -> list[int]:
        """Climb from the beam's combinations of the best patterns, which are returned, and, with these patterns, from
        `first`.
        """
        try:
            patterns = candidates(space, self.k, budget)
        except OutOfBudget as stop:
            patterns = list(stop.found.values())
        placed = [pattern.mask for pattern in patterns]
        starts = [Cover(space, masks) for masks in beam_search(space, patterns, self.beam)]
        for start in _distinct((*starts, *([first] if self.seeded else ()))):
            _note(found, climb(start.copy(), placed, budget))
        return placed

    def _best(self, placed: Sequence[int], budget: Budget, found: dict[Key, Cover]) -> Cover:
        """Return the best of `found`. If patterns were considered, also climb by several steps at a time, and judge
        each after the later rules.
        """
        best = min(found.values(), key=_ranked)
        if budget.is_spent or not placed:
            return best
        further = climb(best.copy(), placed, budget, joining=True)
        judged = self._with_what_follows_us if self.then else _total_us
        options = _distinct((*sorted(found.values(), key=_ranked), further))
        return min(options, key=lambda cover: (judged(cover), cover.key)) if len(options) > 1 else options[0]

    def _with_what_follows_us(self, cover: Cover) -> float:
        """Return the full estimate of a plan after the rules that follow this one."""
        space = cover.space
        state, rules = space.state.fork(), (*space.state.rules, *self.then)
        for proposal in _proposals(state, cover):
            attempt(state, self, proposal, rules)
        for rule in self.then:
            for proposal in rule.propose(state):
                attempt(state, rule, proposal, rules)
        kernels, _ = combined(state, self.then)
        return sum(kernels.latency_us(g, self.model) for g in kernels.groups.values())


def _note(found: dict[Key, Cover], cover: Cover) -> None:
    found[cover.key] = cover


def _distinct(covers: Iterable[Cover]) -> list[Cover]:
    """Return distinct plans: equal ones lead to equal results."""
    return list({cover.key: cover for cover in covers}.values())


def _ranked(cover: Cover) -> tuple[float, Key]:
    return cover.total_us, cover.key


def _total_us(cover: Cover) -> float:
    return cover.total_us


def _proposals(state: Fusion, cover: Cover) -> list[Fuse]:
    """Return the proposals for kernels of several atoms. An atom that is not stored belongs to the kernel that alone
    computes it.
    """
    atoms, found = cover.space.atoms, list[Fuse]()
    for part, mask in cover.kernels.items():
        owned = {n for i in bits(mask) if part >> i & 1 or len(cover.computing[i]) == 1 for n in atoms[i].owned}
        copies = {n for i in bits(mask) for n in atoms[i].owned} - owned
        if mask & (mask - 1):
            found.append(Fuse(tuple(state.in_order(owned)), tuple(state.in_order(copies)), forced=True))
    return found


def seed(space: Space, kernels: Iterable[Iterable[Node]] | None = None) -> list[int]:
    """Return the partition by the default planner's rules, without copies, as far as it consists of patterns.
    `kernels`: that partition, if known.
    """
    if kernels is None:
        kernels = [cluster.owned for cluster in _seeded(space.state).clusters()]
    return [mask for mask in space.masks_of(kernels) if space.is_pattern(mask)]


def _seeded(state: Fusion) -> Fusion:
    """Return a copy of a state in which the default planner's rules have fused, without copies."""
    copy = state.fork()
    for rule in SEEDS:
        for proposal in rule.propose(copy):
            attempt(copy, rule, proposal, (*copy.rules, *SEEDS))
    return copy
