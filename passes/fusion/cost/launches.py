"""Independent kernels in one launch, and their predicted time, memoised."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

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
    dependences. `find_cost`: evaluated once, and lazily, as most kernels can be paired with no other.
    """

    names: tuple[str, ...]
    place: int
    first: int
    last: int
    mask: int
    above: int
    parts: int
    find_cost: Callable[[], Cost]

    @cached_property
    def cost(self) -> Cost:
        return self.find_cost()

    @property
    def latency_us(self) -> float:
        return self.cost.latency_us

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

    def can_meet(self, a: Launch, b: Launch) -> bool:
        """Return whether there is a step in which both could run, and neither depends on the other."""
        return max(a.first, b.first) <= min(a.last, b.last) and not (a.above & b.mask or b.above & a.mask)

    def latency_us(self, a: Launch, b: Launch) -> float | None:
        """Return the predicted time of two launches, in the order of their positions, as one; None if it is too
        large.
        """
        if a.parts + b.parts > MOST_PARTS:
            return None
        pair = self._pair(a, b)
        if pair not in self._latencies:
            operands = len(a.cost.values) + len(b.cost.values) - len(pair[2])
            self._latencies[pair] = self._find_latency(a, b, operands)
        return self._latencies[pair]

    def _find_latency(self, a: Launch, b: Launch, operands: int) -> float | None:
        if operands > MOST_OPERANDS:
            return None
        return latency_us(self.model, self._joined_facts(a, b), self.kernels.device)

    def _joined_facts(self, a: Launch, b: Launch) -> KernelFacts:
        return joined([[a.cost.facts, b.cost.facts]], self.kernels.target)

    def _pair(self, a: Launch, b: Launch) -> Pair:
        ours, theirs = a.cost.values, b.cost.values
        shared = sorted([(ours[v], theirs[v]) for v in ours.keys() & theirs.keys()])
        return a.cost.form, b.cost.form, tuple(shared)

    def _alone(self, name: str) -> Launch:
        group, reach = self.kernels.groups[name], self.kernels.reach[name]
        return Launch(
            (name,), self.place[name], *self._window[name], reach.mask, reach.above, len(group.parts) or 1,
            lambda: self._cost(group),
        )  # fmt: skip

    def _cost(self, group: Group) -> Cost:
        facts = self.kernels.facts(group, self.model)
        named = (*(t.value for t in facts.reads), *group.inputs, *group.constants, *group.outputs)
        values = {value: number for number, value in enumerate(dict.fromkeys(named))}
        form = self._form((len(group.parts) or 1, len(values), _unnamed(facts, values)))
        return Cost(values, form, facts, self.kernels.latency_us(group, self.model))

    def _join(self, a: Launch, b: Launch, names: tuple[str, ...]) -> Launch:
        latency_us, pair = self.latency_us(a, b), self._pair(a, b)
        assert latency_us is not None
        values = {value: number for number, value in enumerate(dict.fromkeys((*a.cost.values, *b.cost.values)))}
        cost = Cost(values, self._form(pair), self._joined_facts(a, b), latency_us)
        return Launch(
            names, a.place, max(a.first, b.first), min(a.last, b.last), a.mask | b.mask, a.above | b.above,
            a.parts + b.parts, lambda: cost,
        )  # fmt: skip

    def _form(self, what: Hashable) -> int:
        return self._forms.setdefault(what, len(self._forms))


def _unnamed(facts: KernelFacts, values: Mapping[str, int]) -> KernelFacts:
    """Return the facts with numbers in place of values' names."""
    return facts.renamed(lambda name: str(values.get(name, "")))
