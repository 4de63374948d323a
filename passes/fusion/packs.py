"""Which independent kernels go side by side in a launch: hill climbing over whole launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from tilestitch.cost_model.joined import joined_facts
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import Group

from .profit import MOST_OPERANDS
from .stages import MOST_PARTS, Kernels

NEAR = 48
"""Kernels that are so many places apart in the order of launches are not looked at together."""
LEAST_GAIN_US = 1e-9
MOST_ROUNDS = 10

Launch = frozenset[str]


class Packs:
    """Kernels as launches. No launch waits for itself, and the longest chain of launches gets no longer."""

    def __init__(
        self, kernels: Kernels, fitting: Callable[[Group], bool], model: LatencyModel, *, forced: bool = False
    ) -> None:
        """fitting: which kernels may go side by side. forced: join launches whether or not that is faster."""
        self.kernels, self.model, self.forced = kernels, model, forced
        self.window = kernels.slack()
        self.steps = max((first for first, _ in self.window.values()), default=0)
        self.home: dict[str, Launch] = {name: frozenset({name}) for name in kernels.order}
        self.fitting = [n for n in kernels.order if n in kernels.groups and fitting(kernels.groups[n])]
        self.place = {name: i for i, name in enumerate(self.fitting)}
        self._latencies: dict[Launch, float | None] = {}

    def climb(self) -> list[Launch]:
        """Join two launches, the best pair first; then move kernels between launches while that helps. The packs."""
        refused: set[frozenset[Launch]] = set()
        while (pair := self._best_pair(refused)) is not None:
            if not self._put([pair[0] | pair[1]]):
                refused.add(frozenset(pair))
        for _ in range(0 if self.forced else MOST_ROUNDS):
            if not sum(map(self._move, self.fitting)):
                break
        packs = {launch for launch in self.home.values() if len(launch) > 1}
        return sorted(packs, key=lambda launch: min(self.place[n] for n in launch))

    def latency_us(self, launch: Launch) -> float | None:
        """What a launch is predicted to take; None if it would be too large."""
        if launch not in self._latencies:
            names = sorted(launch, key=self.place.__getitem__)
            self._latencies[launch] = self._find_latency([self.kernels.groups[n] for n in names])
        return self._latencies[launch]

    def _find_latency(self, groups: list[Group]) -> float | None:
        if len(groups) == 1:
            return self.kernels.latency_us(groups[0], self.model)
        operands = {v for g in groups for v in (*g.inputs, *g.constants, *g.outputs)}
        if sum(len(g.parts) or 1 for g in groups) > MOST_PARTS or len(operands) > MOST_OPERANDS:
            return None
        facts = joined_facts([[self.kernels.facts(g) for g in groups]])
        return self.model.latency_us(facts, self.kernels.device)

    def gain_us(self, new: Iterable[Launch]) -> float | None:
        """Microseconds saved by launches `new` in place of those that hold the same kernels."""
        new = list(new)
        old = {self.home[name] for launch in new for name in launch}
        after = [self.latency_us(launch) for launch in new]
        known = [us for us in after if us is not None]
        before = sum(self.latency_us(launch) or 0.0 for launch in sorted(old, key=sorted))
        return before - sum(known) if len(known) == len(after) else None

    def _best_pair(self, refused: set[frozenset[Launch]]) -> tuple[Launch, Launch] | None:
        best: tuple[float, list[str], Launch, Launch] | None = None
        for a, b in self._pairs():
            if frozenset((a, b)) in refused:
                continue
            gain = self.gain_us([a | b])
            if gain is not None and (self.forced or gain > LEAST_GAIN_US):
                option = -gain, sorted(a | b), a, b
                best = min(best or option, option, key=lambda o: o[:2])
        return best[2:] if best else None

    def _pairs(self) -> Iterator[tuple[Launch, Launch]]:
        seen: set[frozenset[Launch]] = set()
        for number, first in enumerate(self.fitting):
            for second in self.fitting[number + 1 : number + NEAR]:
                a, b = self.home[first], self.home[second]
                pair = frozenset((a, b))
                if a != b and pair not in seen:
                    seen.add(pair)
                    if self._can_meet(a | b):
                        yield a, b

    def _can_meet(self, launch: Launch) -> bool:
        """Whether there is a step in which all could run, and none depends on another."""
        first, last = max(self.window[n][0] for n in launch), min(self.window[n][1] for n in launch)
        return first <= last and all(self.kernels.independent(a, b) for a, b in combinations(sorted(launch), 2))

    def _move(self, name: str) -> bool:
        """The best of: a kernel alone, or in another launch."""
        mine, one = self.home[name], frozenset({name})
        place = self.place[name]
        near = self.fitting[max(0, place - NEAR) : place + NEAR]
        others = sorted({self.home[n] for n in near} - {mine}, key=sorted)
        options = [[mine - one, other | one] for other in others] + [[mine - one, one]]
        gains = []
        for new in ([launch for launch in option if launch] for option in options):
            gain = self.gain_us(new) if all(map(self._can_meet, new)) else None
            if gain is not None and gain > LEAST_GAIN_US:
                gains.append((-gain, [sorted(launch) for launch in new], new))
        return any(self._put(new) for _, _, new in sorted(gains, key=lambda g: g[:2]))

    def _put(self, new: Iterable[Launch]) -> bool:
        """Let launches be `new`, if they can be put in an order without a longer chain."""
        before = dict(self.home)
        for launch in new:
            self.home.update((name, launch) for name in launch)
        if self._chain() > self.steps:
            self.home = before
            return False
        return True

    def _chain(self) -> float:
        """Steps of the longest chain of launches; infinite if one waits for itself."""
        waits: dict[Launch, set[Launch]] = {}
        for name in self.kernels.order:
            waits.setdefault(self.home[name], set()).update(self.home[p] for p in self.kernels.producers[name])
        step: dict[Launch, int] = {}
        while len(step) < len(waits):
            ready = [launch for launch, needs in waits.items() if launch not in step and all(n in step for n in needs)]
            if not ready:
                return float("inf")
            step.update((launch, max((step[n] + 1 for n in waits[launch]), default=0)) for launch in ready)
        return max(step.values(), default=0)
