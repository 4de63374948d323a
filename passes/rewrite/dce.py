"""Dead code: nodes that nothing reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph
from tilestitch.passes.contract import PassContext, PassResult


@dataclass(frozen=True)
class DeadCode:
    """Remove nodes whose outputs are read by no node and are no outputs of the graph."""

    name: ClassVar[str] = "dce"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        kept = set(graph.outputs)
        count = 0
        for node in reversed(graph.nodes):
            if not any(out.uses or out in kept for out in node.outputs):
                graph.remove(node)
                count += 1
        return PassResult(graph, count > 0, (f"{count} nodes removed",) if count else ())
