"""Dead code elimination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.symbol_uses import remove_dead
from tilestitch.passes.contract import PassContext, PassResult


@dataclass(frozen=True)
class DeadCode:
    """Remove nodes whose outputs, and sizes they define, no node uses and that are no graph outputs."""

    name: ClassVar[str] = "dce"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = remove_dead(graph)
        return PassResult.counted(graph, count, "nodes removed")
