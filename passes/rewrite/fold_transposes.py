"""A transpose of the last two axes in front of a matmul becomes its trans_a or trans_b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.contract import PassContext, PassResult

from .driver import Replacement, apply_patterns, emit_like, produced_by


@dataclass(frozen=True)
class FoldTransposes:
    """Let matmul read its operands transposed instead of transposing them before."""

    name: ClassVar[str] = "fold_transposes"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = apply_patterns(graph, {"matmul": [_read_transposed]})
        return PassResult(graph, count > 0, (f"fold_transposes: {count} operands",) if count else ())


def _read_transposed(graph: Graph, node: Node) -> Replacement | None:
    for position, flag in enumerate(("trans_a", "trans_b")):
        inner = produced_by(node.inputs[position], "transpose")
        if inner is None:
            continue
        perm = tuple(inner.attrs["perm"])
        rank = len(perm)
        if perm != (*range(rank - 2), rank - 1, rank - 2):
            continue
        operands = [inner.inputs[0] if i == position else v for i, v in enumerate(node.inputs)]
        attrs = {**node.attrs, flag: not node.attrs.get(flag, False)}
        return [emit_like(graph, node, "matmul", *operands, **attrs)]
    return None
