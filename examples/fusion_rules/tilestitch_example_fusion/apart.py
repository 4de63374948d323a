"""A fusion rule that forbids groups: one operator of the model stays a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.passes.api import Node, PlannerView, Rule, WhyNot


@dataclass(frozen=True)
class KeepApart(Rule):
    """Forbids whatever would put the ONNX node `node` into a kernel with others: to look at its result, or its time.

    By default ("") it forbids nothing.
    """

    node: str = ""
    name: ClassVar[str] = "keep_apart"
    api_version: ClassVar[int] = 1

    def forbid(self, state: PlannerView, nodes: Sequence[Node]) -> WhyNot | None:
        wanted = [n for n in nodes if self.node and self.node in (n.name, *n.origins)]
        others = [n for n in nodes if n not in wanted]
        if not wanted or not others:
            return None
        return WhyNot(f"{wanted[0].name} + {others[0].name}", self.name, f"{self.node} is to be a kernel of its own")
