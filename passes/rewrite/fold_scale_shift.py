"""Folding of scales after a convolution or GEMM into its constant weights (batch normalisation)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes.contract import PassContext, PassResult

from .driver import single_reader
from .quantised import counts_bytes
from .reassociation import product_in_any_order

FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class FoldScaleShift:
    """conv(x, W) followed by per-channel add, sub, mul and div by constants becomes conv(x, W*s) + b.

    For conv, conv_transpose without groups, and matmul with a constant second operand; every value in between has one
    reader. Not applied where there is no scale, where a folded weight would not be finite, or to integer products,
    whose sums are exact.
    """

    name: ClassVar[str] = "fold_scale_shift"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = sum(_fold(graph, node) for node in graph.nodes if node.op in ("conv", "conv_transpose", "matmul"))
        return PassResult.counted(graph, count, "contractions")


def _channel_axes(node: Node) -> tuple[int, int] | None:
    """Return the axes of output channels in the result and in the weights, or None if the weights cannot be scaled."""
    weight, rank = node.inputs[1], len(node.output.shape)
    if weight.data is None or weight.dtype not in FLOATS or node.output.dtype not in FLOATS:
        return None
    if node.op == "matmul":
        return rank - 1, len(weight.shape) - (2 if node.attrs.get("trans_b") else 1)
    first = node.attrs["layout"] == "NCX"
    if node.op == "conv_transpose":
        return ((1, 1) if first else (rank - 1, rank - 1)) if node.attrs["groups"] == 1 else None
    return (1, 0) if first else (rank - 1, rank - 1)


def _fold(graph: Graph, node: Node) -> bool:
    if not all(t.is_sized for t in (node.inputs[0].tensor_type, node.output.tensor_type)):
        return False
    axes = _channel_axes(node)
    if axes is None or counts_bytes(node):
        return False
    out_axis, weight_axis = axes
    channels, rank = node.output.shape[out_axis], len(node.output.shape)
    scale, shift = np.ones(channels), np.zeros(channels)
    last, chain, scaled = node.output, list[Node](), False
    while True:
        step = _next_step(graph, last, out_axis, channels, rank)
        if step is None:
            break
        reader, constant = step
        if reader.op in ("mul", "div"):
            with np.errstate(all="ignore"):
                factor = constant if reader.op == "mul" else 1.0 / constant
                if scaled and not product_in_any_order(scale, factor, node.output.dtype):
                    break
                scale, shift, scaled = scale * factor, shift * factor, True
        else:
            shift = shift + (constant if reader.op == "add" else -constant)
        chain.append(reader)
        last = reader.output
    if not scaled:
        return False
    return _rewrite(graph, node, chain, scale, shift, out_axis, weight_axis)


def _next_step(graph: Graph, value: Value, axis: int, channels: int, rank: int) -> tuple[Node, np.ndarray] | None:
    """Return the single reader of `value` if it is arithmetic with a per-channel constant, and that constant by
    channel.
    """
    if not single_reader(graph, value):
        return None
    reader, position = next(iter(value.uses))
    if reader.op not in ("add", "mul", "sub", "div") or reader.output.type != value.type:
        return None
    if position == 1 and reader.op in ("sub", "div"):
        return None
    data = reader.inputs[1 - position].data
    if data is None:
        return None
    shape = (1,) * (rank - data.ndim) + data.shape
    if any(d != 1 for i, d in enumerate(shape) if i != axis):
        return None
    wide = np.broadcast_to(data.astype(np.float64).reshape(-1), (channels,))
    if reader.op == "div" and (wide == 0).any():
        return None
    return reader, wide


def _rewrite(
    graph: Graph, node: Node, chain: list[Node], scale: np.ndarray, shift: np.ndarray, out_axis: int, weight_axis: int
) -> bool:
    weight = node.inputs[1]
    assert weight.data is not None
    along = [1] * weight.data.ndim
    along[weight_axis] = -1
    with np.errstate(all="ignore"):
        folded = (weight.data.astype(np.float64) * scale.reshape(along)).astype(weight.data.dtype)
        bias = shift.astype(to_numpy_dtype(node.output.dtype))
    if not (np.isfinite(folded.astype(np.float64)).all() and np.isfinite(bias.astype(np.float64)).all()):
        return False
    last, rank = chain[-1], len(node.output.shape)
    scaled_weight = graph.constant(folded, name=weight.name)
    origins = tuple(dict.fromkeys(o for n in (node, *chain) for o in n.origins))
    value = graph.emit(
        node.op, node.inputs[0], scaled_weight, origins=origins, insert_before=last, **node.attrs
    )  # fmt: skip
    if shift.any():
        shape = [1] * rank
        shape[out_axis] = -1
        offset = graph.constant(bias.reshape(shape), name="bias")
        value = graph.emit("add", value, offset, origins=origins, insert_before=last)
    graph.replace(last, [value])
    for dead in (*reversed(chain[:-1]), node):
        graph.remove(dead)
    return True
