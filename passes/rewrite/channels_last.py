"""Convolutions compute channels-last (NXC), which vectorises over channels; the transposes around them are moved and
cancel. Those of one tap over images of open size become matmuls, whose rows are the pixels of all images.
"""

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.contract import PassContext, PassResult

from .driver import Replacement, apply_patterns, emit_like, is_sized, is_tensor, reshaped, transposed


@dataclass(frozen=True)
class ChannelsLast:
    """Convert conv and conv_transpose from NCX to NXC between transposes, which `transpose_motion` then moves until
    they cancel.

    Weights become [k.., C/g, O] (conv) and [k.., C, O/g] (conv_transpose). Pooling follows its operand's layout in
    `transpose_motion`; a graph without convolutions stays as it is.
    """

    name: ClassVar[str] = "channels_last"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = apply_patterns(graph, {"conv": [_to_channels_last], "conv_transpose": [_to_channels_last]})
        return PassResult.counted(graph, count, "convolutions")


def to_nxc(rank: int) -> tuple[int, ...]:
    """Return the permutation from N, C, spatial.. to N, spatial.., C."""
    return (0, *range(2, rank), 1)


def to_ncx(rank: int) -> tuple[int, ...]:
    """Return the permutation from N, spatial.., C to N, C, spatial.."""
    return (0, rank - 1, *range(1, rank - 1))


def weight_perm(op: str, rank: int) -> tuple[int, ...]:
    """Return the permutation from NCX weights to NXC weights: O, C/g, k.. to k.., C/g, O; for conv_transpose C, O/g,
    k.. to k.., C, O/g.
    """
    return (*range(2, rank), 1, 0) if op == "conv" else (*range(2, rank), 0, 1)


def _to_channels_last(graph: Graph, node: Node) -> Replacement | None:
    x, weight = node.inputs
    if node.attrs["layout"] != "NCX" or not is_tensor(x) or not is_tensor(weight):
        return None
    rank = x.tensor_type.rank
    value = emit_like(
        graph, node, node.op, transposed(graph, node, x, to_nxc(rank)),
        transposed(graph, node, weight, weight_perm(node.op, rank)), **{**node.attrs, "layout": "NXC"},
    )  # fmt: skip
    return [transposed(graph, node, value, to_ncx(rank))]


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
