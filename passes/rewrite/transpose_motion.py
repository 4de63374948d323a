"""Transposes move towards the outputs, through operators that treat axes alike, until they meet another and cancel.

Moving down never adds a transpose of a large tensor. Adjacent ones are merged at once: otherwise each of a long chain
would move past all operators. The pass runs together with `canonicalise`, which drops what moves no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node, Value, is_elementwise
from tilestitch.passes.contract import PassContext, PassResult

from .driver import (
    Pattern,
    Replacement,
    apply_patterns,
    elements,
    emit_like,
    inverse,
    is_sized,
    is_tensor,
    produced_by,
    reshaped,
    transposed,
)
from .reshape_motion import permuted_reshape
from .views import transpose_chain

SMALL = 4
"""An operand this many times smaller than the result may get its own transpose."""


@dataclass(frozen=True)
class TransposeMotion:
    """Sink transposes through element-wise operators, reductions, windows, concat, pad, slice, gather and reshape."""

    name: ClassVar[str] = "transpose_motion"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        return PassResult.counted(graph, apply_patterns(graph, PATTERNS), "moves")


def through_elementwise(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite f(T(a), T(b), small) to T(f(a, b, T'(small)))."""
    if not is_elementwise(node.op) or not all(map(is_sized, (*node.inputs, *node.outputs))):
        return None
    shape = node.output.shape
    found = [t for v in node.inputs if len(v.shape) == len(shape) and (t := produced_by(v, "transpose"))]
    moved = _worth_moving(graph, node, found)
    if moved is None:
        return None
    perm = tuple(moved.attrs["perm"])
    operands = [_permuted_operand(graph, node, v, perm) for v in node.inputs]
    value = emit_like(graph, node, node.op, *operands, **node.attrs)
    return [transposed(graph, node, value, perm, moved.origins)]


def _worth_moving(graph: Graph, node: Node, found: Sequence[Node]) -> Node | None:
    """Return the transpose to move past a node: the largest, if all other operands can be permuted cheaply.

    It must be large itself: otherwise the move would create a larger one, or transposes of other operands that might be
    moved back again.
    """
    if not found:
        return None
    operands, size = node.inputs, elements(node.output.shape)
    largest = max(found, key=lambda t: elements(t.output.shape))
    perm = tuple(largest.attrs["perm"])
    free = all(_follows_freely(v, perm) for v in operands)
    if (_moved_elements(node, largest) if free else elements(largest.output.shape)) * SMALL <= size:
        return None
    if free or all(_follows_freely(v, perm) or elements(v.shape) * SMALL <= size for v in operands):
        return largest
    goes = _goes_away_after(graph, node, largest)
    return largest if goes and all(_follows_freely(v, perm) or _has_twin(v, perm) for v in operands) else None


def _moved_elements(node: Node, largest: Node) -> int:
    """Return the elements of the operand that a transpose yields; in a concat, of all parts from transposes like it."""
    if node.op != "concat":
        return elements(largest.output.shape)
    perm = tuple(largest.attrs["perm"])
    alike = (v for v in node.inputs if (t := produced_by(v, "transpose")) and tuple(t.attrs["perm"]) == perm)
    return sum(elements(v.shape) for v in alike)


def _follows_freely(value: Value, perm: Sequence[int]) -> bool:
    """Return whether applying the inverse of `perm` to this operand moves no data at run time."""
    if value.is_constant or sum(d != 1 for d in value.shape) <= 1:
        return True
    node = produced_by(value, "transpose")
    return node is not None and tuple(node.attrs["perm"]) == tuple(perm)


def _has_twin(value: Value, perm: Sequence[int]) -> bool:
    """Return whether the inverse of `perm` is already applied to this operand elsewhere: CSE merges that with what is
    emitted.
    """
    back = inverse(perm)
    return any(user.op == "transpose" and tuple(user.attrs["perm"]) == back for user in value.users)


def _goes_away_after(graph: Graph, node: Node, moved: Node) -> bool:
    """Return whether only `node` needs the transpose: otherwise it would remain, the move would add another, and a twin
    could be moved back for it.
    """
    result = moved.output
    return len(moved.inputs[0].uses) == 1 and all(u is node for u in result.users) and not graph.is_output(result)


def _permuted_operand(graph: Graph, node: Node, value: Value, perm: Sequence[int]) -> Value:
    """Return the operand x with T(x) = value, of full rank or a scalar."""
    producer = produced_by(value, "transpose")
    if producer is not None and tuple(producer.attrs["perm"]) == tuple(perm):
        return producer.inputs[0]
    if elements(value.shape) == 1 and value.is_constant:
        return reshaped(graph, node, value, ())
    full = (1,) * (len(perm) - len(value.shape)) + value.shape
    back = inverse(perm)
    if not value.is_constant and sum(d != 1 for d in full) <= 1:
        return reshaped(graph, node, value, tuple(full[b] for b in back))
    return transposed(graph, node, reshaped(graph, node, value, full), back)


def through_reduction(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite reduce(T(x)) to T'(reduce(x)) over the corresponding axes."""
    inner = produced_by(node.inputs[0], "transpose")
    if inner is None or not is_sized(inner.inputs[0]):
        return None
    perm = tuple(inner.attrs["perm"])
    attrs = dict(node.attrs)
    axes = attrs["axes"] if "axes" in attrs else (attrs["axis"],)
    if "axes" in attrs:
        attrs["axes"] = tuple(sorted(perm[a] for a in axes))
    else:
        attrs["axis"] = perm[attrs["axis"]]
    value = emit_like(graph, node, node.op, inner.inputs[0], **attrs)
    if attrs["keepdims"]:
        return [transposed(graph, node, value, perm, inner.origins)]
    left = [p for i, p in enumerate(perm) if i not in axes]
    rest = tuple(sorted(left).index(p) for p in left)
    return [transposed(graph, node, value, rest, inner.origins)]


def through_axis_operator(graph: Graph, node: Node) -> Replacement | None:
    """Move a transpose past operators with one `axis` that keep the rank, such as cumulative ones."""
    inner = produced_by(node.inputs[0], "transpose")
    if inner is None:
        return None
    perm = inner.attrs["perm"]
    value = emit_like(graph, node, node.op, inner.inputs[0], **{**node.attrs, "axis": perm[node.attrs["axis"]]})
    return [transposed(graph, node, value, perm, inner.origins)]


def through_gather(graph: Graph, node: Node) -> Replacement | None:
    """Move a transpose past a gather with a vector of indices, which keeps the rank."""
    x, indices = node.inputs
    inner = produced_by(x, "transpose")
    if inner is None or not is_tensor(indices) or indices.tensor_type.rank != 1:
        return None
    perm = inner.attrs["perm"]
    value = emit_like(graph, node, "gather", inner.inputs[0], indices, axis=perm[node.attrs["axis"]])
    return [transposed(graph, node, value, perm, inner.origins)]


def through_concat(graph: Graph, node: Node) -> Replacement | None:
    if not all(map(is_sized, node.inputs)):
        return None
    found = [t for v in node.inputs if (t := produced_by(v, "transpose"))]
    moved = _worth_moving(graph, node, found)
    if moved is None:
        return None
    perm = tuple(moved.attrs["perm"])
    parts = [_permuted_part(graph, node, v, perm) for v in node.inputs]
    value = emit_like(graph, node, "concat", *parts, axis=perm[node.attrs["axis"]])
    return [transposed(graph, node, value, perm, moved.origins)]


def _permuted_part(graph: Graph, node: Node, value: Value, perm: Sequence[int]) -> Value:
    producer = produced_by(value, "transpose")
    if producer is not None and tuple(producer.attrs["perm"]) == tuple(perm):
        return producer.inputs[0]
    back = inverse(perm)
    if not value.is_constant and sum(d != 1 for d in value.shape) <= 1:
        return reshaped(graph, node, value, tuple(value.shape[b] for b in back))
    return transposed(graph, node, value, back)


def through_pad(graph: Graph, node: Node) -> Replacement | None:
    inner = produced_by(node.inputs[0], "transpose")
    if inner is None:
        return None
    perm = inner.attrs["perm"]
    back = inverse(perm)
    attrs = {
        **node.attrs,
        "before": tuple(node.attrs["before"][b] for b in back),
        "after": tuple(node.attrs["after"][b] for b in back),
    }
    value = emit_like(graph, node, "pad", inner.inputs[0], *node.inputs[1:], **attrs)
    return [transposed(graph, node, value, perm, inner.origins)]


def through_slice(graph: Graph, node: Node) -> Replacement | None:
    inner = produced_by(node.inputs[0], "transpose")
    if inner is None:
        return None
    perm = inner.attrs["perm"]
    back = inverse(perm)
    attrs = {key: tuple(node.attrs[key][b] for b in back) for key in ("starts", "steps", "sizes")}
    value = emit_like(graph, node, "slice", inner.inputs[0], **attrs)
    return [transposed(graph, node, value, perm, inner.origins)]


def through_broadcast(graph: Graph, node: Node) -> Replacement | None:
    inner = produced_by(node.inputs[0], "transpose")
    shape = node.attrs["shape"]
    if inner is None or not is_sized(inner.inputs[0]) or len(shape) != len(inner.attrs["perm"]):
        return None
    perm = inner.attrs["perm"]
    value = emit_like(graph, node, "broadcast_to", inner.inputs[0], shape=tuple(shape[b] for b in inverse(perm)))
    return [transposed(graph, node, value, perm, inner.origins)]


def through_window(graph: Graph, node: Node) -> Replacement | None:
    """Let a window over NCX whose operand was just transposed from NXC work on NXC."""
    inner = produced_by(node.inputs[0], "transpose")
    if inner is None or node.attrs["layout"] != "NCX":
        return None
    perm = tuple(inner.attrs["perm"])
    rank = len(perm)
    if perm != (0, rank - 1, *range(1, rank - 1)):
        return None
    value = emit_like(graph, node, node.op, inner.inputs[0], **{**node.attrs, "layout": "NXC"})
    return [transposed(graph, node, value, perm, inner.origins)]


def into_regions(graph: Graph, node: Node) -> Replacement | None:
    """Let region operators over NCX whose operand was just transposed from NXC read NXC: the result is the same."""
    inner = produced_by(node.inputs[0], "transpose")
    if inner is None or node.attrs["layout"] != "NCX" or tuple(inner.attrs["perm"]) != (0, 3, 1, 2):
        return None
    images, *others = inner.inputs[0], *node.inputs[1:]
    return [emit_like(graph, node, node.op, images, *others, **{**node.attrs, "layout": "NXC"})]


def through_reshape(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite reshape(T(x)) to T'(reshape'(x)), where the reshape splits and merges only axes that T keeps together."""
    inner = produced_by(node.inputs[0], "transpose")
    if inner is None or not is_sized(inner.inputs[0]) or not is_sized(node.output):
        return None
    found = permuted_reshape(inner.inputs[0].shape, inner.attrs["perm"], node.output.shape)
    if found is None:
        return None
    shape, perm = found
    return [transposed(graph, node, reshaped(graph, node, inner.inputs[0], shape), perm, inner.origins)]


def up_through_reshape(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite T(reshape(S(x))) to reshape'(T'(S(x))), so that T' and S become one transpose (channel shuffle)."""
    middle = produced_by(node.inputs[0], "reshape")
    first = produced_by(middle.inputs[0], "transpose") if middle is not None else None
    if middle is None or first is None or not is_sized(middle.inputs[0]):
        return None
    # Read backwards, the chain is reshape(T^-1(result)) = source.
    result = node.output.shape
    found = permuted_reshape(result, inverse(node.attrs["perm"]), middle.inputs[0].shape)
    if found is None:
        return None
    perm = tuple(first.attrs["perm"][p] for p in inverse(found[1]))
    return [
        reshaped(graph, node, transposed(graph, node, first.inputs[0], perm, (*first.origins, *node.origins)), result)
    ]


_REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "arg_max", "arg_min")

PATTERNS: dict[str, list[Pattern]] = {
    **{op: [through_reduction] for op in _REDUCTIONS},
    "cumulative": [through_axis_operator],
    "gather": [through_gather],
    "concat": [through_concat],
    "pad": [through_pad],
    "slice": [through_slice],
    "broadcast_to": [through_broadcast],
    "window_reduce": [through_window],
    "roi_align": [into_regions],
    "reshape": [through_reshape],
    "transpose": [transpose_chain, up_through_reshape],
    "*": [through_elementwise],
}
