"""Nodes that form no kernel with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Node
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.builtin import AllowsAll
from tilestitch.passes.plan import WhyNot


@dataclass(frozen=True)
class KeptApart(AllowsAll):
    """Forbid each union with a node that is kept apart, by name, for the reason given with it."""

    name: ClassVar[str] = "kept_apart"
    reasons: Mapping[str, WhyNot]

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return next((self.reasons[node.name] for node in nodes if node.name in self.reasons), None)
