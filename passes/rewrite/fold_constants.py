"""Constant folding."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, IRError, Kind, Node, TensorType, Value, is_elementwise, kind_of, reference
from tilestitch.compiler.ir.types import is_static_tensor, to_numpy_dtype
from tilestitch.passes.contract import PassContext, PassResult
from tilestitch.runtime.errors import TilestitchRuntimeError


@dataclass(frozen=True)
class FoldConstants:
    """Replace nodes whose operands are all constants by their value, computed by the numpy reference.

    Guards: a result above `max_growth_bytes` may not be larger than the operands together, so that a broadcast or iota
    does not become a large constant, unless it is a contraction's weight, which is packed at compile time; work above
    `max_multiplications` is left to run time. Nodes that fail (an index out of range) are left, so that the error
    occurs when the model runs.
    """

    max_growth_bytes: int = 65536
    max_multiplications: int = 1 << 32
    name: ClassVar[str] = "fold_constants"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = 0
        for node in graph.nodes:
            values = self._folded(node)
            if values is None:
                continue
            graph.replace(node, [graph.constant(v, name=o.name) for v, o in zip(values, node.outputs, strict=True)])
            count += 1
        return PassResult.counted(graph, count, "nodes")

    def _folded(self, node: Node) -> list[np.ndarray] | None:
        if kind_of(node.op) in (Kind.HOST, Kind.CONTROL) or not all(v.is_constant for v in node.inputs):
            return None
        types = [o.type for o in node.outputs]
        if not all(is_static_tensor(t) for t in types):
            return None
        tensors = [t for t in types if isinstance(t, TensorType)]
        size = sum(t.nbytes for t in tensors)
        grows = size > self.max_growth_bytes and size > sum(v.tensor_type.nbytes for v in node.inputs)
        if grows and not is_weight(node.outputs[0]):
            return None
        if kind_of(node.op) is Kind.CONTRACTION and self._multiplications(node) > self.max_multiplications:
            return None
        try:
            with np.errstate(all="ignore"):
                results = reference(node.op)([v.data for v in node.inputs], node.attrs)
        except (IRError, TilestitchRuntimeError, ValueError, IndexError, ArithmeticError):
            return None
        arrays = [np.asarray(r) for r in results]
        fits = all(
            a.shape == t.static_shape and a.dtype == to_numpy_dtype(t.dtype)
            for a, t in zip(arrays, tensors, strict=True)
        )
        return arrays if fits else None

    def _multiplications(self, node: Node) -> int:
        """Return an upper bound: each output element sums at most as many products as the smaller operand has
        elements.
        """
        return node.outputs[0].tensor_type.num_elements * min(v.tensor_type.num_elements for v in node.inputs)


MOST_STEPS = 32
"""Most nodes between a constant and the contraction that it is a weight of."""


def is_weight(value: Value, steps: int = MOST_STEPS) -> bool:
    """Return whether a value is used only as the right operand of contractions, perhaps after views and arithmetic with
    constants that produce weights stored as integers.
    """
    if not steps:
        return False
    return bool(value.users) and all(
        is_weight(user.output, steps - 1) if _keeps_constants(user, value)
        else kind_of(user.op) is Kind.CONTRACTION and user.inputs[1] is value and user.inputs[0] is not value
        for user in value.users
    )  # fmt: skip


def _keeps_constants(node: Node, value: Value) -> bool:
    """Return whether the node is a view of the value, or computes element-wise from it and constants only."""
    if kind_of(node.op) is Kind.VIEW:
        return True
    return is_elementwise(node.op) and all(operand is value or operand.is_constant for operand in node.inputs)
