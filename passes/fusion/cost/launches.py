"""Independent kernels in one launch, and their predicted time, memoised."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import LatencyModel, latency_us
from tilestitch.passes.fusion.cost.profit import MOST_OPERANDS
from tilestitch.passes.fusion.stages import MOST_PARTS, Kernels
from tilestitch.passes.plan import Group
from tilestitch.passes.schedule.facts import joined


@dataclass(frozen=True)
class Cost:
    """`values`: what a launch reads and writes, numbered. `form`: equal for launches whose facts differ only in the
    names of values.
    """

    values: Mapping[str, int]
    form: int
    facts: KernelFacts
    latency_us: float


@dataclass(eq=False)
class Launch:
    """Kernels in the order of their positions, none of which depends on another.

    `first`, `last`: the steps in which all could run. `mask`: their numbers among all kernels; `above`: those of their
    dependences.
    """

    names: tuple[str, ...]
    place: int
    first: int
    last: int
    mask: int
    above: int
    parts: int

    def __lt__(self, other: Launch) -> bool:
        return self.place < other.place


Pair = tuple[int, int, tuple[tuple[int, int], ...]]
"""The forms of two launches, and the values they share."""


class Launches:
    """Launches of positioned kernels, each created once."""

    def __init__(self, kernels: Kernels, place: Mapping[str, int], model: LatencyModel) -> None:
        self.kernels, self.place, self.model = kernels, place, model
        self._window = kernels.slack()
        self._known: dict[tuple[str, ...], Launch] = {}
        self._forms: dict[Hashable, int] = {}
        self._latencies: dict[Pair, float | None] = {}
        self._costs: dict[Launch, Cost] = {}

    def of(self, names: Iterable[str]) -> Launch:
        """Return the launch of kernels that can run together and are not too many."""
        ordered = tuple(sorted(names, key=self.place.__getitem__))
        if ordered not in self._known and len(ordered) > 1:
            return self.joined(self.of(ordered[:-1]), self.of(ordered[-1:]))
        if ordered not in self._known:
            self._known[ordered] = self._alone(ordered[0])
        return self._known[ordered]

    def joined(self, a: Launch, b: Launch) -> Launch:
        """Return the union of two launches that can run together, in the order of their positions, and is not too
        large.
        """
        names = tuple(sorted(a.names + b.names, key=self.place.__getitem__))
        if names not in self._known:
            self._known[names] = self._join(a, b, names)
        return self._known[names]

    def alone_us(self, launch: Launch) -> float:
        """Return the predicted time of a launch."""
        return self._cost(launch).latency_us

    def can_meet(self, a: Launch, b: Launch) -> bool:
        """Return whether there is a step in which both could run, and neither depends on the other."""
        return max(a.first, b.first) <= min(a.last, b.last) and not (a.above & b.mask or b.above & a.mask)

    def latency_us(self, a: Launch, b: Launch) -> float | None:
        """Return the predicted time of two launches, in the order of their positions, as one; None if it is too large,
        or they cannot run together.
        """
        if a.parts + b.parts > MOST_PARTS or not self.can_meet(a, b):
            return None
        pair = self._pair(a, b)
        if pair not in self._latencies:
            operands = len(self._cost(a).values) + len(self._cost(b).values) - len(pair[2])
            self._latencies[pair] = self._find_latency(a, b, operands)
        return self._latencies[pair]

    def _find_latency(self, a: Launch, b: Launch, operands: int) -> float | None:
        if operands > MOST_OPERANDS:
            return None
        return latency_us(self.model, self._joined_facts(a, b), self.kernels.device)

    def _joined_facts(self, a: Launch, b: Launch) -> KernelFacts:
        return joined([[self._cost(a).facts, self._cost(b).facts]], self.kernels.target)

    def _pair(self, a: Launch, b: Launch) -> Pair:
        one, other = self._cost(a), self._cost(b)
        ours, theirs = one.values, other.values
        shared = sorted([(ours[v], theirs[v]) for v in ours.keys() & theirs.keys()])
        return one.form, other.form, tuple(shared)

    def _alone(self, name: str) -> Launch:
        group, reach = self.kernels.groups[name], self.kernels.reach[name]
        place, window = self.place[name], self._window[name]
        return Launch((name,), place, *window, reach.mask, reach.above, len(group.parts) or 1)

    def _cost(self, launch: Launch) -> Cost:
        """Return the cost of a launch. That of a kernel alone is found when it is needed: most can be paired with no
        other.
        """
        if launch not in self._costs:
            self._costs[launch] = self._find_cost(self.kernels.groups[launch.names[0]])
        return self._costs[launch]

    def _find_cost(self, group: Group) -> Cost:
        facts = self.kernels.facts(group, self.model)
        named = (*(t.value for t in facts.reads), *group.inputs, *group.constants, *group.outputs)
        values = {value: number for number, value in enumerate(dict.fromkeys(named))}
        form = self._form((len(group.parts) or 1, len(values), _unnamed(facts, values)))
        return Cost(values, form, facts, self.kernels.latency_us(group, self.model))

    def _join(self, a: Launch, b: Launch, names: tuple[str, ...]) -> Launch:
        latency_us, pair = self.latency_us(a, b), self._pair(a, b)
        assert latency_us is not None
        named = dict.fromkeys((*self._cost(a).values, *self._cost(b).values))
        values = {value: number for number, value in enumerate(named)}
        launch = Launch(
            names, a.place, max(a.first, b.first), min(a.last, b.last), a.mask | b.mask, a.above | b.above,
            a.parts + b.parts,
        )  # fmt: skip
        self._costs[launch] = Cost(values, self._form(pair), self._joined_facts(a, b), latency_us)
        return launch

    def _form(self, what: Hashable) -> int:
        return self._forms.setdefault(what, len(self._forms))


def _unnamed(facts: KernelFacts, values: Mapping[str, int]) -> KernelFacts:
    """Return the facts with numbers in place of values' names."""
    return facts.renamed(lambda name: str(values.get(name, "")))
