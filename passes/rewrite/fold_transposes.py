"""Transposes before a matmul become its trans_a or trans_b, as far as they move the innermost axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.contract import PassContext, PassResult

from .driver import Replacement, apply_patterns, emit_like, produced_by, transposed


@dataclass(frozen=True)
class FoldTransposes:
    """Let matmul read its operands transposed instead of transposing them before.

    What is left of the transpose keeps the innermost axis where it is; often nothing is left.
    """

    name: ClassVar[str] = "fold_transposes"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = apply_patterns(graph, {"matmul": [_read_transposed]})
        return PassResult(graph, count > 0, (f"{count} operands",) if count else ())


def _read_transposed(graph: Graph, node: Node) -> Replacement | None:
    for position, flag in enumerate(("trans_a", "trans_b")):
        inner = produced_by(node.inputs[position], "transpose")
        if inner is None:
            continue
        perm = tuple(inner.attrs["perm"])
        rank = len(perm)
        if perm[-2] != rank - 1:
            continue
        rest = (*perm[:-2], perm[-1], perm[-2])
        source = transposed(graph, node, inner.inputs[0], rest, inner.origins)
        operands = [source if i == position else v for i, v in enumerate(node.inputs)]
        attrs = {**node.attrs, flag: not node.attrs.get(flag, False)}
        return [emit_like(graph, node, "matmul", *operands, **attrs)]
    return None
