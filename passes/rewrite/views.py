"""Canonical form of views and data movement: no-ops are removed, chains merged."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of
from tilestitch.compiler.ir.sizes import perhaps_empty

from .driver import Pattern, Replacement, emit_like, is_sized, produced_by

MOST_SHARED = 32
"""Most operands of a concat that several others also include."""
MOST_CONCATENATED = 128
"""Most operands of a concat."""


def reshape_chain(graph: Graph, node: Node) -> Replacement | None:
    (x,) = node.inputs
    if is_sized(x) and is_sized(node.output) and x.shape == node.output.shape:
        return [x]
    inner = produced_by(x, "reshape")
    if inner is None:
        return None
    if is_sized(node.output):
        return [emit_like(graph, node, "reshape", inner.inputs[0], shape=node.output.shape)]
    return [emit_like(graph, node, "reshape", inner.inputs[0], shape=node.attrs["shape"])]


def reshape_of_broadcast(graph: Graph, node: Node) -> Replacement | None:
    """Move a reshape that only adds or drops axes of size 1 before a broadcast_to."""
    inner = produced_by(node.inputs[0], "broadcast_to")
    if inner is None or not is_sized(inner.inputs[0]) or not is_sized(node.output):
        return None
    source, wide, target = inner.inputs[0].shape, inner.output.shape, node.output.shape
    if [d for d in wide if d != 1] != [d for d in target if d != 1] or 0 in wide:
        return None
    padded = (1,) * (len(wide) - len(source)) + source
    kept = [s for s, w in zip(padded, wide, strict=True) if w != 1]
    sizes = iter(kept)
    shape = tuple(next(sizes) if d != 1 else 1 for d in target)
    narrow = emit_like(graph, node, "reshape", inner.inputs[0], shape=shape)
    return [emit_like(graph, node, "broadcast_to", narrow, shape=target)]


def transpose_chain(graph: Graph, node: Node) -> Replacement | None:
    (x,) = node.inputs
    perm = node.attrs["perm"]
    if tuple(perm) == tuple(range(len(perm))):
        return [x]
    inner = produced_by(x, "transpose")
    if inner is not None:
        return [emit_like(graph, node, "transpose", inner.inputs[0], perm=tuple(inner.attrs["perm"][p] for p in perm))]
    return None


def transpose_of_unit_axes(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite a transpose that only moves axes of size 1 to a reshape."""
    (x,) = node.inputs
    if not is_sized(x):
        return None
    moved = [p for p in node.attrs["perm"] if x.shape[p] != 1]
    if moved != sorted(moved):
        return None
    return [emit_like(graph, node, "reshape", x, shape=node.output.shape)]


def broadcast_chain(graph: Graph, node: Node) -> Replacement | None:
    (x,) = node.inputs
    if is_sized(x) and is_sized(node.output) and x.shape == node.output.shape:
        return [x]
    inner = produced_by(x, "broadcast_to")
    if inner is not None:
        return [emit_like(graph, node, "broadcast_to", inner.inputs[0], shape=node.attrs["shape"])]
    return None


def slice_chain(graph: Graph, node: Node) -> Replacement | None:
    (x,) = node.inputs
    starts, steps, sizes = node.attrs["starts"], node.attrs["steps"], node.attrs["sizes"]
    if is_sized(x) and x.shape == tuple(sizes) and all(s == 1 or d <= 1 for s, d in zip(steps, x.shape, strict=True)):
        return [x]
    inner = produced_by(x, "slice")
    if inner is None:
        return None
    first, stride = inner.attrs["starts"], inner.attrs["steps"]
    return [
        emit_like(
            graph, node, "slice", inner.inputs[0],
            starts=tuple(f + k * s if size else 0 for f, k, s, size in zip(first, stride, starts, sizes, strict=True)),
            steps=tuple(k * s for k, s in zip(stride, steps, strict=True)),
            sizes=tuple(sizes),
        )
    ]  # fmt: skip


def slice_of_concat(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite a slice within one operand of a concat to a slice of that operand."""
    inner = produced_by(node.inputs[0], "concat")
    if inner is None or not all(map(is_sized, inner.inputs)) or 0 in node.attrs["sizes"]:
        return None
    axis, starts = inner.attrs["axis"], list(node.attrs["starts"])
    ends = (starts[axis], starts[axis] + node.attrs["steps"][axis] * (node.attrs["sizes"][axis] - 1))
    first, last = perhaps_empty(min(ends)), perhaps_empty(max(ends))
    offset = 0
    for part in inner.inputs:
        size = part.shape[axis]
        if perhaps_empty(offset) <= first and last < perhaps_empty(offset + size):
            starts[axis] -= offset
            attrs = {"starts": tuple(starts), "steps": node.attrs["steps"], "sizes": node.attrs["sizes"]}
            return [emit_like(graph, node, "slice", part, **attrs)]
        offset += size
    return None


def concat_of_few(graph: Graph, node: Node) -> Replacement | None:
    """Drop operands without elements; replace a concat of one operand by it; flatten concats read only here."""
    axis = node.attrs["axis"]
    if not all(map(is_sized, node.inputs)):
        return None
    parts = [v for v in node.inputs if v.shape[axis] > 0] or [node.inputs[0]]
    if len(parts) == 1:
        return [parts[0]]
    flat = [v for part in parts for v in _flattened(graph, part, axis)]
    if len(flat) > MOST_CONCATENATED:
        flat = parts
    merged = _merge_slices(graph, node, flat, axis)
    if len(merged) == len(node.inputs) and all(a is b for a, b in zip(merged, node.inputs, strict=True)):
        return None
    return [merged[0] if len(merged) == 1 else emit_like(graph, node, "concat", *merged, axis=axis)]


def _flattened(graph: Graph, part: Value, axis: int) -> Sequence[Value]:
    """Return the operands of a concat that others do not need as a whole; else the value itself."""
    inner = produced_by(part, "concat")
    if inner is None or inner.attrs["axis"] != axis or graph.is_output(part):
        return [part]
    if len(part.uses) == 1 or (len(inner.inputs) < MOST_SHARED and all(_reads_parts(n, axis) for n in part.users)):
        return inner.inputs
    return [part]


def _reads_parts(node: Node, axis: int) -> bool:
    """Return whether a reader of a concat is element-wise, or a concat along the same axis."""
    return node.attrs["axis"] == axis if node.op == "concat" else kind_of(node.op) is Kind.INJECTIVE


def concat_of_many(graph: Graph, node: Node) -> Replacement | None:
    """Split a concat of very many operands into nested ones: a kernel has separate code for each operand."""
    count = len(node.inputs)
    if count <= MOST_CONCATENATED:
        return None
    size = ceil(count / ceil(count / MOST_CONCATENATED))
    runs = [node.inputs[first : first + size] for first in range(0, count, size)]
    parts = [run[0] if len(run) == 1 else emit_like(graph, node, "concat", *run, **node.attrs) for run in runs]
    return [emit_like(graph, node, "concat", *parts, **node.attrs)]


def _merge_slices(graph: Graph, node: Node, parts: Sequence[Value], axis: int) -> list[Value]:
    """Merge neighbouring slices of a tensor that continue each other along `axis`."""
    merged: list[Value] = []
    for part in parts:
        joined = _joined(graph, node, merged[-1], part, axis) if merged else None
        if joined is not None:
            merged[-1] = joined
        else:
            merged.append(part)
    return merged


def _joined(graph: Graph, node: Node, a: Value, b: Value, axis: int) -> Value | None:
    x, y = produced_by(a, "slice"), produced_by(b, "slice")
    if x is None or y is None or x.inputs[0] is not y.inputs[0] or x.attrs["steps"] != y.attrs["steps"]:
        return None
    step, size = x.attrs["steps"][axis], x.attrs["sizes"][axis]
    expected = tuple(s + step * size if i == axis else s for i, s in enumerate(x.attrs["starts"]))
    if step != 1 or tuple(y.attrs["starts"]) != expected:
        return None
    sizes = tuple(s + y.attrs["sizes"][axis] if i == axis else s for i, s in enumerate(x.attrs["sizes"]))
    attrs = {"starts": x.attrs["starts"], "steps": x.attrs["steps"], "sizes": sizes}
    return graph.emit("slice", x.inputs[0], origins=(*x.origins, *y.origins), insert_before=node, **attrs)


def pad_nothing(graph: Graph, node: Node) -> Replacement | None:
    return [node.inputs[0]] if all(p == 0 for p in (*node.attrs["before"], *node.attrs["after"])) else None


VIEW_PATTERNS: dict[str, list[Pattern]] = {
    "reshape": [reshape_chain, reshape_of_broadcast],
    "transpose": [transpose_chain, transpose_of_unit_axes],
    "broadcast_to": [broadcast_chain],
    "slice": [slice_chain, slice_of_concat],
    "concat": [concat_of_few, concat_of_many],
    "pad": [pad_nothing],
}
