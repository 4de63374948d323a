"""Loops that append a tensor to a sequence in every iteration, converted to scans where all tensors have one shape.

Exporters produce them for sums of embeddings, recurrences, and lists that a model fills and then concatenates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilestitch.compiler.frontend.builder import Builder, normalize_axis
from tilestitch.compiler.frontend.context import Context
from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, Graph, Node, SequenceType, TensorType, Value
from tilestitch.compiler.ir.sizes import Size, bounds_of
from tilestitch.compiler.ir.symbol_uses import remove_dead

from ..symbols import is_found
from .host_types import stacked

TURN = TensorType("int64", ())


@dataclass(frozen=True)
class LoopParts:
    """Parts of a Loop. The inputs of `body` are the iteration number, the condition, the state and the captures."""

    max_trip: Value | None
    condition: Value | None
    carried: Sequence[Value]
    body: Graph
    captures: Sequence[Value]


def scanned_sequences(ctx: Context, loop: LoopParts) -> list[Value] | None:
    """Return the final state of a loop with sequences that it appends to; its other states are tensors, one of which
    may count iterations. None for any other loop; the body is then unchanged.
    """
    body, count = loop.body, len(loop.carried)
    state, results = body.inputs[2 : 2 + count], body.outputs[1 : 1 + count]
    sequences = [at for at, value in enumerate(loop.carried) if isinstance(value.type, SequenceType)]
    others = [at for at in range(count) if at not in sequences]
    rows = [_appended(body, loop.carried[at], state[at], results[at]) for at in sequences]
    known = [row for row in rows if row is not None]
    if len(body.outputs) != 1 + count or not sequences or len(known) < len(rows):
        return None
    if not all(isinstance(state[at].type, TensorType) for at in others):
        return None
    counts = {at: _counted(ctx, loop, at) for at in others}
    counter = next((at for at in others if counts[at] is not None), None)
    trips = _trips(loop) if counter is None else counts[counter]
    if trips is None:
        return None
    kept = [at for at in others if at != counter]
    if counter is not None:
        body.replace_uses(state[counter], body.inputs[0])
    body.outputs = [body.constant(np.array(True)), *(body.outputs[1 + at] for at in kept), *known]
    remove_dead(body)
    body.inputs[2 : 2 + count] = [state[at] for at in kept]
    types = [*(state[at].type for at in kept), *(stacked(_size(trips), row.type) for row in known)]
    carried = [loop.carried[at] for at in kept]
    attrs = {"body": body, "num_carried": len(kept)}
    found = ctx.emit_many("loop", (trips, ctx.none(), *carried, *loop.captures), attrs, types)
    final = dict(zip(kept, found, strict=False))
    final |= {at: _as_sequence(ctx, rows) for at, rows in zip(sequences, found[len(kept) :], strict=True)}
    return [final.get(at, trips) for at in range(count)]


def rows_of(b: Builder, sequence: Value) -> Value | None:
    """Return the tensor whose parts along its first axis are the elements of a sequence; None for a sequence that is
    no list of such parts.
    """
    node = sequence.producer
    if node is None or node.op != "host.SplitToSequence" or len(node.inputs) != 1:
        return None
    x = node.inputs[0]
    if not isinstance(x.type, TensorType) or not x.type.is_sized or x.dtype == "string":
        return None
    axis = normalize_axis(node.attrs.get("axis", 0), x.type.rank)
    rows = b.transpose(x, (axis, *(other for other in range(x.type.rank) if other != axis)))
    return b.expand_dims(rows, (axis + 1,)) if node.attrs.get("keepdims", 1) else rows


def _as_sequence(ctx: Context, rows: Value) -> Value:
    element = TensorType(rows.dtype, rows.shape[1:])
    return ctx.host("SplitToSequence", (rows,), [SequenceType(element)], axis=0, keepdims=0)[0]


def _appended(body: Graph, first: Value, before: Value, after: Value) -> Value | None:
    """Return what an iteration appends to a sequence that is initially empty and not read otherwise; its shape is
    known.
    """
    insert = after.producer
    if first.producer is None or first.producer.op != "host.SequenceEmpty" or insert is None:
        return None
    if insert.op != "host.SequenceInsert" or len(insert.inputs) != 2 or insert.inputs[0] is not before:
        return None
    if [n for n in body.nodes if before in n.inputs] != [insert] or any(after in n.inputs for n in body.nodes):
        return None
    row, sequence = insert.inputs[1], insert.output.type
    if not isinstance(row.type, TensorType) or not isinstance(sequence, SequenceType):
        return None
    alike = isinstance(sequence.element, TensorType | AnyRankTensor) and sequence.element.dtype == row.dtype
    alike = alike and row.type.is_sized and not any(map(is_found, row.shape))
    return row if alike else None


# -- how many turns ----------------------------------------------------------------------------------------------------


def _trips(loop: LoopParts) -> Value | None:
    """Return the iterations of a loop that its condition never ends."""
    starts = loop.condition is None or _number(loop.condition) == 1
    again = loop.body.outputs[0]
    return loop.max_trip if starts and (again is loop.body.inputs[1] or _number(again) == 1) else None


def _counted(ctx: Context, loop: LoopParts, place: int) -> Value | None:
    """Return the iterations of a loop that continues while the next number, counted from zero, is less than a bound."""
    body, first = loop.body, loop.carried[place]
    number, following, again = body.inputs[2 + place], body.outputs[1 + place], body.outputs[0].producer
    one = _other(following.producer, "add", number)
    if loop.max_trip is not None or first.type != TURN or _number(first) != 0 or one is None or _number(one) != 1:
        return None
    limit = again.inputs[1] if again is not None and again.op == "less" and again.inputs[0] is following else None
    outer = None if limit is None else _outside(ctx, loop, limit)
    if outer is None or outer.type != TURN or loop.condition is None:
        return None
    start, goes = loop.condition.producer, _number(loop.condition)
    asks = start is not None and start.op == "less" and start.inputs[1] is outer and _number(start.inputs[0]) == 0
    return outer if asks or (goes is not None and goes is _is_positive(outer)) else None


def _outside(ctx: Context, loop: LoopParts, value: Value) -> Value | None:
    """Return the outer value of a body's value that the body does not compute."""
    captured = loop.body.inputs[2 + len(loop.carried) :]
    if value in captured:
        return loop.captures[captured.index(value)]
    return None if value.data is None else ctx.constant(value.data)


def _other(node: Node | None, op: str, operand: Value) -> Value | None:
    """Return the other operand of an operator of two."""
    if node is None or node.op != op or operand not in node.inputs:
        return None
    return node.inputs[1 - list(node.inputs).index(operand)]


def _number(value: Value) -> Any:
    return value.data.reshape(()).item() if value.data is not None and value.data.size == 1 else None


def _is_positive(value: Value) -> bool | None:
    """Return whether a value is positive; None if unknown."""
    size = _size(value)
    if isinstance(size, str):
        return None
    low, high = bounds_of(size)
    return True if low >= 1 else False if high < 1 else None


def _size(value: Value) -> Size | str:
    """Return a single integer, if it is known."""
    if value.data is not None:
        return int(value.data.reshape(()))
    made = value.producer
    return made.attrs["values"][0] if made is not None and made.op == "sizes" else UNKNOWN
