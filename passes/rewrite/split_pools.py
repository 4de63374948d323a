"""Max pooling of a convolution becomes several strided convolutions, each in the epilogue of the next, so that nothing
of the size before pooling is stored.
"""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.types import is_float
from tilestitch.cost_model.bounds import launch_bytes
from tilestitch.passes.contract import PassContext, PassResult
from tilestitch.passes.schedule.device import device_of

from .driver import Replacement, apply_patterns, is_sized, produced_by, single_reader

MONOTONE = ("add", "maximum", "minimum")
"""Operators that, with a constant per channel, are monotonic even when rounding, and thus commute with the maximum."""
BASELINES = frozenset({"none", "injective", "xla"})


@dataclass(frozen=True)
class SplitPools:
    """Rewrite the max over a window of f(conv(x)) to f(max(conv_1(x), conv_2(x), ...)), with one strided convolution
    per window position; the multiplications are the same, and each maximum is part of a convolution's kernel.

    Applied where windows do not overlap and have at most `most` positions, and where memory traffic decreases: the
    image is read once per position, but the larger result is neither written nor read. Results are bit-identical. The
    baseline planners do not support such epilogues.
    """

    most: int = 4
    name: ClassVar[str] = "split_pools"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        if context.options.get("planner", "stitch") in BASELINES:
            return PassResult(graph, False)
        least = launch_bytes(device_of(context.target))

        def split(graph: Graph, node: Node) -> Replacement | None:
            return self._split(graph, node, least)

        return PassResult.counted(graph, apply_patterns(graph, {"window_reduce": [split]}), "windows")

    def _split(self, graph: Graph, pool: Node, launch: float) -> Replacement | None:
        chain, conv = _source(graph, pool)
        places = prod(pool.attrs["kernel"])
        if conv is None or not _separate(pool) or not 1 < places <= self.most:
            return None
        image, result = conv.inputs[0].tensor_type, pool.output.tensor_type
        # Besides the first result, which is stored either way, each position writes and reads one.
        saved = 2 * pool.inputs[0].tensor_type.nbytes - 2 * (places - 1) * result.nbytes
        if saved - (places - 1) * image.nbytes <= (places - 2) * launch:
            return None
        found = [_strided(conv, pool, place) for place in product(*(range(k) for k in pool.attrs["kernel"]))]
        attrs = [a for a in found if a is not None]
        if len(attrs) < places:
            return None
        value: Value | None = None
        for convolution in attrs:
            one = graph.emit("conv", *conv.inputs, origins=conv.origins, insert_before=pool, **convolution)
            value = one if value is None else graph.emit(
                "maximum", one, value, origins=pool.origins, insert_before=pool
            )  # fmt: skip
        assert value is not None
        for node in chain:
            operands = [v if v.is_constant else value for v in node.inputs]
            value = graph.emit(node.op, *operands, origins=node.origins, insert_before=pool, **node.attrs)
        return [value]


def _source(graph: Graph, pool: Node) -> tuple[list[Node], Node | None]:
    """Return the order-preserving nodes between a convolution and `pool`, and the convolution; None if there is
    none.
    """
    chain: list[Node] = []
    value = pool.inputs[0]
    while single_reader(graph, value) and is_sized(value) and is_float(value.dtype):
        node = produced_by(value, "conv", *MONOTONE)
        if node is None:
            break
        if node.op == "conv":
            same = node.attrs["layout"] == pool.attrs["layout"] and is_sized(node.inputs[0])
            return chain[::-1], node if same else None
        constants = [v for v in node.inputs if v.is_constant]
        if len(constants) != 1 or not _by_channel(constants[0], value, pool.attrs["layout"]):
            break
        chain.append(node)
        value = next(v for v in node.inputs if not v.is_constant)
    return [], None


def _by_channel(constant: Value, value: Value, layout: str) -> bool:
    """Return whether a constant that broadcasts to `value` is uniform within each channel."""
    channel = 1 if layout == "NCX" else len(value.shape) - 1
    first = len(value.shape) - len(constant.shape)
    return all(size == 1 or first + axis == channel for axis, size in enumerate(constant.shape))


def _separate(pool: Node) -> bool:
    """Return whether the windows of a max pooling do not overlap and lie inside the image."""
    attrs = pool.attrs
    apart = all(s >= k for s, k in zip(attrs["strides"], attrs["kernel"], strict=True))
    plain = all(d == 1 for d in attrs["dilations"]) and all(p == 0 for p in (*attrs["before"], *attrs["after"]))
    return attrs["reducer"] == "max" and apart and plain and pool.output.tensor_type.num_elements > 0


def _strided(conv: Node, pool: Node, place: tuple[int, ...]) -> dict[str, object] | None:
    """Return the attributes of the convolution that computes the results at `place` of every window; None if there is
    none.
    """
    attrs, first = conv.attrs, 2 if conv.attrs["layout"] == "NCX" else 1
    weight_first = 2 if first == 2 else 0
    strides, before, after = [], [], []
    for axis, at in enumerate(place):
        size, count = conv.inputs[0].shape[first + axis], pool.output.shape[first + axis]
        reach = (conv.inputs[1].shape[weight_first + axis] - 1) * attrs["dilations"][axis]
        step = attrs["strides"][axis] * pool.attrs["strides"][axis]
        left = attrs["before"][axis] - at * attrs["strides"][axis]
        right = max(0, (count - 1) * step + reach - left - (size - 1))
        if left < 0 or (size + left + right - reach - 1) // step + 1 != count:
            return None
        strides.append(step)
        before.append(left)
        after.append(right)
    return {**attrs, "strides": tuple(strides), "before": tuple(before), "after": tuple(after)}
