"""The control among fusion rules: random unions, as far as legal and profitable."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from tilestitch.passes.fusion.clusters import Fuse, Fusion
from tilestitch.passes.fusion.rules.builtin import AllowsAll
from tilestitch.passes.plan.roles import is_native


@dataclass(frozen=True)
class Shuffled(AllowsAll):
    """Proposes this share of all pairs of producer and reader. `forced`: also where counting predicts no gain."""

    seed: int = 0
    share: float = 0.5
    forced: bool = False
    name: ClassVar[str] = "shuffled"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        random = Random(self.seed)
        edges = [pair for pair in state.cross_edges() if all(map(is_native, pair))]
        random.shuffle(edges)
        for producer, reader in edges[: round(self.share * len(edges))]:
            yield Fuse((producer, reader), forced=self.forced)
