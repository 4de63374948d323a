"""A fusion rule that proposes groups: reductions of one tensor over the same axes read it together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.passes.api import Fuse, Kind, Node, PlannerView, Rule, kind_of


@dataclass(frozen=True)
class SiblingReductions(Rule):
    """Proposes that reductions with one operand and the same axes become one kernel.

    The built-in rules follow values from producer to reader; siblings are connected by no such value. Legality still
    has the last word, and so has the question whether it pays: the proposals are not `forced`.
    """

    name: ClassVar[str] = "sibling_reductions"
    api_version: ClassVar[int] = 1

    def propose(self, state: PlannerView) -> Iterator[Fuse]:
        first: dict[tuple[object, ...], Node] = {}
        for node in state.nodes:
            if kind_of(node.op) is Kind.REDUCTION and "axes" in node.attrs:
                other = first.setdefault((node.inputs[0], tuple(node.attrs["axes"])), node)
                if other is not node:
                    yield Fuse((other, node))
