"""A fusion rule: the normalisation of a long softmax is a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.passes.api import Node, PlannerView, Rule, WhyNot


@dataclass(frozen=True)
class SeparateSoftmax(Rule):
    """Keep reduction and normalisation of a softmax apart if a row has more than `row` elements.

    One kernel keeps its row in a buffer between its two passes over it. A person who knows that the buffer does not
    pay on their machine from some length on says so with this rule: it proposes nothing, and forbids the union.
    """

    row: int = 4096
    name: ClassVar[str] = "separate_softmax"
    api_version: ClassVar[int] = 1

    def forbid(self, state: PlannerView, nodes: Sequence[Node]) -> WhyNot | None:
        together = set(nodes)
        for division in nodes:
            if division.op != "div":
                continue
            total = division.inputs[1].producer
            if total is None or total.op != "reduce_sum" or total not in together:
                continue
            length = division.inputs[0].tensor_type.num_elements // max(1, total.output.tensor_type.num_elements)
            if length > self.row:
                subject = f"{total.name} -> {division.name}"
                return WhyNot(subject, self.name, "the row is too long", {"elements": length, "limit": self.row})
        return None
