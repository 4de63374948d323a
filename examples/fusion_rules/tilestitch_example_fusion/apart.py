"""A fusion rule that forbids groups: one operator of the model stays a kernel of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Node
from tilestitch.passes import WhyNot
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules import Fuse


@dataclass(frozen=True)
class KeepApart:
    """Forbids whatever would put the ONNX node `node` into a kernel with others: to look at its result, or its time.

    By default ("") it forbids nothing.
    """

    node: str = ""
    name: ClassVar[str] = "keep_apart"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        wanted = [n for n in nodes if self.node and self.node in (n.name, *n.origins)]
        others = [n for n in nodes if n not in wanted]
        if not wanted or not others:
            return None
        return WhyNot(f"{wanted[0].name} + {others[0].name}", self.name, f"{self.node} is to be a kernel of its own")
