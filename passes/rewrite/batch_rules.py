"""Batching rules: how one operator of a loop's body is computed for all iterations at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilestitch.compiler.ir import Node, Value, is_elementwise

from .batch_integers import is_natural
from .batch_values import BatchValues, NotBatchable
from .driver import splat
from .runs import Run

Rule = Callable[[BatchValues, Node], Value]


def rule_of(node: Node) -> Rule | None:
    """Return the rule of a node's operator; None if it has none."""
    return _elementwise if is_elementwise(node.op) else _RULES.get(node.op)


def _elementwise(batch: BatchValues, node: Node) -> Value:
    rank = len(node.output.shape)
    return batch.add(node.op, *(batch.aligned(v, rank) for v in node.inputs), **node.attrs)


def _reshape(batch: BatchValues, node: Node) -> Value:
    return batch.add("reshape", batch.batch_of(node.inputs[0]), shape=batch.batched_shape(node.attrs["shape"]))


def _broadcast(batch: BatchValues, node: Node) -> Value:
    aligned = batch.aligned(node.inputs[0], len(node.output.shape))
    return batch.add("broadcast_to", aligned, shape=batch.batched_shape(node.attrs["shape"]))


def _transpose(batch: BatchValues, node: Node) -> Value:
    return batch.add("transpose", batch.batch_of(node.inputs[0]), perm=(0, *(p + 1 for p in node.attrs["perm"])))


def _reduce(batch: BatchValues, node: Node) -> Value:
    attrs = {**node.attrs, "axes": tuple(axis + 1 for axis in node.attrs["axes"])}
    return batch.add(node.op, batch.batch_of(node.inputs[0]), **attrs)


def _concat(batch: BatchValues, node: Node) -> Value:
    return batch.add("concat", *(batch.batch_of(v) for v in node.inputs), axis=node.attrs["axis"] + 1)


def _slice(batch: BatchValues, node: Node) -> Value:
    attrs = node.attrs
    return batch.add(
        "slice", batch.batch_of(node.inputs[0]), starts=(0, *attrs["starts"]), steps=(1, *attrs["steps"]),
        sizes=batch.batched_shape(attrs["sizes"]),
    )  # fmt: skip


def _gather(batch: BatchValues, node: Node) -> Value:
    x, indices = node.inputs
    table, axis = batch.shared_of(x), node.attrs["axis"]
    if table is None:
        places = batch.shared_of(indices)
        if places is None:
            raise NotBatchable
        return batch.add("gather", batch.batch_of(x), places, axis=axis + 1)
    parts = _consecutive(batch, table, axis, *batch.ranges[indices]) if indices in batch.ranges else None
    if parts is not None:
        return parts
    return _moved_to_front(batch, batch.add("gather", table, batch.batch_of(indices), axis=axis), axis)


def _slice_by_data(batch: BatchValues, node: Node) -> Value:
    """Batch a slice with data-dependent bounds, if all iterations take equally many elements."""
    x, starts, ends, *rest = node.inputs
    table, axis = batch.shared_of(x), splat(rest[0]) if rest else 0
    first, last = batch.sequences.get(starts), batch.sequences.get(ends)
    if table is None or first is None or last is None or not isinstance(axis, int | np.integer) or axis < 0:
        raise NotBatchable
    if any(splat(step) != 1 for step in rest[1:]) or first.slope != last.slope or first.slope < 0:
        raise NotBatchable
    count, extent = last.first - first.first, table.shape[axis]
    inside = is_natural(first.first) and is_natural(extent - last.first - last.slope * (batch.count - 1))
    if not isinstance(count, int) or count < 1 or not inside:
        raise NotBatchable
    parts = _consecutive(batch, table, int(axis), first, count)
    if parts is not None:
        return parts
    start = batch.add("reshape", batch.integers(first, starts), shape=(batch.count, 1))
    places = batch.add("add", start, batch.add("iota", shape=(count,), axis=0, dtype=starts.dtype))
    return _moved_to_front(batch, batch.add("gather", table, places, axis=int(axis)), int(axis))


def _consecutive(batch: BatchValues, table: Value, axis: int, first: Run, count: int) -> Value | None:
    """Return `count` elements from `first` on for each iteration, if all of them together are the whole table."""
    if first != Run(0, count * batch.number.slope) or table.shape[axis] != batch.count * count:
        return None
    head, tail = table.shape[:axis], table.shape[axis + 1 :]
    return _moved_to_front(batch, batch.add("reshape", table, shape=(*head, batch.count, count, *tail)), axis)


def _moved_to_front(batch: BatchValues, value: Value, axis: int) -> Value:
    """Return a value with the iterations moved from dimension `axis` to the front."""
    rest = [a for a in range(len(value.shape)) if a != axis]
    return batch.add("transpose", value, perm=(axis, *rest)) if axis else value


_RULES: Mapping[str, Rule] = {
    "reshape": _reshape, "broadcast_to": _broadcast, "transpose": _transpose, "concat": _concat, "gather": _gather,
    "slice": _slice, "host.Slice": _slice_by_data,
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and"), _reduce),
}  # fmt: skip
