"""Transposes before a matmul become its trans_a or trans_b, as far as they move the innermost axis, and matrices
selected by a gather become its first operand, which kernels read in place.
"""

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.contract import PassContext, PassResult

from .driver import (
    Replacement,
    apply_patterns,
    emit_like,
    is_sized,
    produced_by,
    reshaped,
    single_reader,
    transposed,
)


@dataclass(frozen=True)
class FoldTransposes:
    """Let matmul read its operands transposed instead of transposing them before.

    The remaining transpose keeps the innermost axis in place; often nothing remains. On CPUs, a single row by each of
    several gathered matrices, such as a token's experts, becomes the transposed matrices by a column: the producer of a
    second operand is a separate kernel, which would copy the matrices.
    """

    name: ClassVar[str] = "fold_transposes"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        further = [_gathered_first] if context.target.name == "cpu" else []
        return PassResult.counted(graph, apply_patterns(graph, {"matmul": [_read_transposed, *further]}), "operands")


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


def _gathered_first(graph: Graph, node: Node) -> Replacement | None:
    a, b = node.inputs
    if not is_sized(node.output) or not _chooses_matrices(b) or _chooses_matrices(a) or not single_reader(graph, b):
        return None
    *batch, rows, columns = node.output.shape
    if rows != 1 or columns == 1:
        return None
    flags = {"trans_a": not node.attrs.get("trans_b", False), "trans_b": not node.attrs.get("trans_a", False)}
    column = emit_like(graph, node, "matmul", b, a, **{**node.attrs, **flags})
    return [reshaped(graph, node, column, (*batch, rows, columns))]


def _chooses_matrices(value: Value) -> bool:
    """Return whether a value is a gather of whole matrices, those of the last two axes."""
    node = produced_by(value, "gather", "gather_nd")
    if node is None or not is_sized(node.inputs[0]) or not is_sized(node.inputs[1]):
        return False
    rank = len(node.inputs[0].shape)
    if node.op == "gather":
        return bool(node.attrs["axis"] < rank - 2)
    depth = node.inputs[1].shape[-1]
    return not is_open(depth) and bool(node.attrs["batch_dims"] + depth <= rank - 2)
