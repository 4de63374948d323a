"""A fusion rule that proposes groups: reductions of one tensor over the same axes read it together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, kind_of
from tilestitch.passes import WhyNot
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules import Fuse


@dataclass(frozen=True)
class SiblingReductions:
    """Proposes that reductions with one operand and the same axes become one kernel.

    The built-in rules follow values from producer to reader; siblings are connected by no such value. Legality still
    has the last word, and so has the question whether it pays: the proposals are not `forced`.
    """

    name: ClassVar[str] = "sibling_reductions"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        first: dict[tuple[object, ...], Node] = {}
        for node in state.nodes:
            if kind_of(node.op) is Kind.REDUCTION and "axes" in node.attrs:
                other = first.setdefault((node.inputs[0], tuple(node.attrs["axes"])), node)
                if other is not node:
                    yield Fuse((other, node))

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None
