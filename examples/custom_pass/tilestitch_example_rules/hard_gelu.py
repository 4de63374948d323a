"""A graph rewrite: erf is replaced by a clipped line, for people who trade accuracy for speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.passes.api import Graph, GraphPass, PassContext, PassResult


@dataclass(frozen=True)
class HardGelu(GraphPass):
    """Replace erf(x) by min(max(slope * x, -1), 1). A slope of 0, the default, replaces nothing."""

    slope: float = 0.0
    name: ClassVar[str] = "hard_gelu"
    api_version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.slope < 0:
            raise ValueError(f"slope is {self.slope}; it must not be negative")

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        nodes = [n for n in graph.nodes if n.op == "erf"] if self.slope else []
        for node in nodes:
            value = node.inputs[0]
            for op, number in (("mul", self.slope), ("maximum", -1.0), ("minimum", 1.0)):
                constant = graph.constant(number, dtype=value.dtype)
                value = graph.emit(op, value, constant, origins=node.origins, insert_before=node)
            graph.replace(node, [value])
        return PassResult(graph, bool(nodes), tuple(f"replaced {n.name}" for n in nodes))
