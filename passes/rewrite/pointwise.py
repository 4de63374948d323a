"""Conversion of one-tap convolutions over images of open size to matmuls, whose rows are the pixels of all images."""

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.contract import PassContext, PassResult

from .driver import Replacement, apply_patterns, emit_like, is_sized, reshaped


@dataclass(frozen=True)
class Pointwise:
    """Convert NXC convolutions with one tap, stride 1 and no padding to matmul, where height or width is open.

    Tiles of a convolution end with each image row, whose length is known only at run time; those of a matmul do not. A
    convolution that also transposes channels-first images is kept.
    """

    name: ClassVar[str] = "pointwise"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        return PassResult.counted(graph, apply_patterns(graph, {"conv": [_to_matmul]}), "convolutions")


def _to_matmul(graph: Graph, node: Node) -> Replacement | None:
    x, weight = node.inputs
    attrs = node.attrs
    if attrs["layout"] != "NXC" or not is_sized(x) or weight.data is None or attrs["groups"] != 1:
        return None
    *kernel, channels, out = weight.shape
    odd = any(n != 1 for n in (*kernel, *attrs["strides"])) or any(n != 0 for n in (*attrs["before"], *attrs["after"]))
    turned = x.producer is not None and x.producer.op == "transpose"
    if odd or turned or not any(map(is_open, x.shape[1:-1])):
        return None
    further = {key: attrs[key] for key in ("out_dtype", "precision") if attrs.get(key) is not None}
    return [emit_like(graph, node, "matmul", x, reshaped(graph, node, weight, (channels, out)), **further)]
