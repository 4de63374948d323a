"""Products that must be rounded before an addition, because later operators are discontinuous."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Kind, Node, TensorType, Value, kind_of
from tilestitch.compiler.ir.types import is_float
from tilestitch.passes.contract import PassContext, PassResult

JUMPS = frozenset((
    "floor", "ceil", "round", "trunc", "sign", "mod", "fmod", "equal", "less", "less_equal", "arg_max", "arg_min",
    "top_k", "order_rows", "suppress", "roi_align",
))  # fmt: skip
"""Operators whose results jump where floats change by one bit."""
CONTINUOUS = frozenset((
    "neg", "abs", "add", "sub", "mul", "div", "maximum", "minimum", "reduce_max", "reduce_min", "select", "pad",
    "concat",
))  # fmt: skip
"""Operators that propagate small changes of floats. Others round, or sum in their own order, anyway."""
SUMS = frozenset(("add", "sub"))


@dataclass(frozen=True)
class RoundedProducts:
    """Set the attribute `rounded` on products that are added to before a discontinuous operator.

    Compilers contract x * y + z to one instruction, which rounds once. ONNX Runtime rounds twice, so that floor,
    comparisons or casts to integers, such as sampling positions in an image, may select another element.
    """

    name: ClassVar[str] = "rounded_products"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        marked = [node for node in _products(graph) if not node.attrs.get("rounded")]
        for node in marked:
            node.attrs["rounded"] = True
        return PassResult.counted(graph, len(marked), "products")


def _products(graph: Graph) -> list[Node]:
    """Return the products, by walking back from discontinuous operators to sums, and from these to their products."""
    jumping = _handed_on(v for node in graph.nodes if _jumps(node) for v in node.inputs)
    sums = [v.producer for v in jumping if v.producer is not None and v.producer.op in SUMS]
    added = _moved(v for node in sums for v in node.inputs)
    return [v.producer for v in added if v.producer is not None and v.producer.op == "mul"]


def _jumps(node: Node) -> bool:
    return node.op in JUMPS or (node.op == "cast" and not is_float(node.output.dtype))


def _handed_on(values: Iterable[Value]) -> list[Value]:
    """Return the given floats and those that they depend on through continuous operators."""
    return _back(values, CONTINUOUS)


def _moved(values: Iterable[Value]) -> list[Value]:
    """Return the given floats and those that they are copies of, up to sign."""
    return _back(values, frozenset(("neg", "select")))


def _back(values: Iterable[Value], through: frozenset[str]) -> list[Value]:
    found: dict[Value, None] = {}
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in found or not isinstance(value.type, TensorType) or not is_float(value.dtype):
            continue
        found[value] = None
        node = value.producer
        if node is not None and (node.op in through or kind_of(node.op) is Kind.VIEW or node.op == "gather"):
            stack.extend(node.inputs)
    return list(found)
