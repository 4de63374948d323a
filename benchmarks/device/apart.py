"""A fusion rule for comparisons: products and the rows behind them stay launches of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, kind_of
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules import Fuse
from tilestitch.passes.plan import WhyNot


@dataclass(frozen=True)
class NoBands:
    """Forbids kernels with one product and reductions; attention has two products."""

    name: ClassVar[str] = "no_bands"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        kinds = [kind_of(node.op) for node in nodes]
        if kinds.count(Kind.CONTRACTION) != 1 or Kind.REDUCTION not in kinds:
            return None
        return WhyNot(f"{nodes[0].name} -> {nodes[-1].name}", self.name, "two launches are to be measured")
