"""Convolutions compute channels-last (NXC), which vectorises over channels; the transposes around them are moved and
cancel.
"""

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.contract import PassContext, PassResult

from .driver import Replacement, apply_patterns, emit_like, is_tensor, transposed


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
