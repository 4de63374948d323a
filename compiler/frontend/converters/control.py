"""If, Loop, Scan and SequenceMap: their bodies become graphs of their own, with captured values as extra operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import GraphProto, helper, numpy_helper

from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.ir import UNKNOWN, Graph, OptionalType, SequenceType, TensorType, Type, Value

from ..compared_sizes import claimed_condition
from ..symbols import meet_in_body
from .growing_sequences import LoopParts, scanned_sequences
from .host_types import join_types, stacked


def convert_if(ctx: Context) -> Sequence[Value]:
    condition = ctx.input(0)
    branches: list[GraphProto] = [ctx.attr("then_branch"), ctx.attr("else_branch")]
    if condition.data is not None:
        taken = branches[0] if bool(condition.data.reshape(())) else branches[1]
        return ctx.inline_subgraph(taken, ())
    (then_graph, else_graph), captures = ctx.convert_branches(branches)
    if len(then_graph.outputs) != len(else_graph.outputs):
        raise ctx.fail(f"the branches have {len(then_graph.outputs)} and {len(else_graph.outputs)} outputs")
    pairs = list(zip(then_graph.outputs, else_graph.outputs, strict=True))
    if any(_ranks_differ(one.type, other.type) for one, other in pairs):
        claimed = claimed_condition(condition, ctx.scope.is_nested)
        if claimed is not None:
            return ctx.inline_subgraph(branches[0] if claimed else branches[1], ())
    types = [join_types(one.type, other.type) for one, other in pairs]
    return ctx.emit_many("if", (condition, *captures), {"then_graph": then_graph, "else_graph": else_graph}, types)


def _ranks_differ(a: Type, b: Type) -> bool:
    return isinstance(a, TensorType) and isinstance(b, TensorType) and a.rank != b.rank


# -- Loop ----------------------------------------------------------------------------------------------------------

_MOST_LISTED = 16
"""Most turns of a loop over lists that is unrolled."""
_MOST_WIDENINGS = 64
"""Limit of widening passes. Each makes a type wider until nothing is known of it; more are a fault of the compiler."""


def convert_loop(ctx: Context) -> Sequence[Value]:
    proto = _counting_in_scalars(ctx.attr("body"))
    max_trip, condition = ctx.optional(0), ctx.optional(1)
    carried = [ctx.input(i) for i in range(2, len(ctx.inputs))]
    count = len(carried)
    if len(proto.output) <= count or len(proto.input) != count + 2:
        raise ctx.fail(
            f"{count} carried values do not fit a body of {len(proto.input)} inputs and {len(proto.output)} outputs"
        )
    head: list[Type] = [TensorType("int64", ()), TensorType("bool", ())]
    body, captures, types = _settled(ctx, proto, head, [v.type for v in carried], (), results_from=1)
    scanned_instead = scanned_sequences(ctx, LoopParts(max_trip, condition, carried, body, captures))
    if scanned_instead is not None:
        return scanned_instead
    trips = _trip_count(max_trip, condition, body)
    grows = len(body.outputs) == 1 + count and any(isinstance(t, SequenceType) for t in types)
    if grows and isinstance(trips, int) and 0 < trips <= _MOST_LISTED:  # each item has a shape of its own then
        for turn in range(trips):
            _, *carried = ctx.inline_subgraph(
                proto, (ctx.constant(np.array(turn)), ctx.constant(np.array(True)), *carried)
            )
        return carried
    scanned = [stacked(trips, v.type) for v in body.outputs[1 + count :]]
    finals = [_final_type(v.type, t, r.type, trips) for v, t, r in zip(carried, types, body.outputs[1:], strict=False)]
    values = [ctx.none() if v is None else v for v in (max_trip, condition)]
    return ctx.emit_many(
        "loop", (*values, *carried, *captures), {"body": body, "num_carried": count}, [*finals, *scanned]
    )


def _counting_in_scalars(proto: GraphProto) -> GraphProto:
    """Return a loop's body whose iteration number is a scalar. It may be declared as a vector of one element, which is
    made of the scalar then.
    """
    if not proto.input or len(proto.input[0].type.tensor_type.shape.dim) != 1:
        return proto
    changed, vector = GraphProto(), proto.input[0].name
    changed.CopyFrom(proto)
    changed.input[0].name, shape = f"{vector}//scalar", f"{vector}//shape"
    changed.initializer.append(numpy_helper.from_array(np.array([1]), shape))
    changed.node.insert(0, helper.make_node("Reshape", [changed.input[0].name, shape], [vector]))
    return changed


def _settled(
    ctx: Context,
    proto: GraphProto,
    head: Sequence[Type],
    state: Sequence[Type],
    tail: Sequence[Type],
    results_from: int,
) -> tuple[Graph, list[Value], list[Type]]:
    """Return the body, converted for state types that hold in every iteration, its captures, and those types.

    The formal inputs are `head`, the state, `tail`; the new state begins at output `results_from`. A dimension or rank
    that changes from one iteration to the next becomes unknown.
    """
    types = list(state)
    for _ in range(_MOST_WIDENINGS):
        body, captures = ctx.convert_subgraph(proto, (*head, *types, *tail))
        results = body.outputs[results_from : results_from + len(types)]
        wider = [join_types(a, b.type) for a, b in zip(types, results, strict=True)]
        if wider == types:
            formals = (value.type for value in body.inputs[len(head) :])
            meet_in_body(body.claims, zip(state, formals, strict=False))
            return body, captures, types
        types = wider
    raise ctx.fail("the types of the carried values do not settle; give them the same type in every iteration")


def _trip_count(max_trip: Value | None, condition: Value | None, body: Graph) -> int | str:
    """Return how often the body runs, if that is certain: a constant count, and no condition that ends it early."""
    if max_trip is None or max_trip.data is None:
        return UNKNOWN
    count = max(0, int(max_trip.data.reshape(())))
    starts = condition is None or (condition.data is not None and bool(condition.data.reshape(())))
    again = body.outputs[0]
    continues = again is body.inputs[1] or (again.data is not None and bool(again.data.reshape(())))
    return count if not count or (starts and (continues or count == 1)) else UNKNOWN


def _final_type(initial: Type, always: Type, result: Type, trips: int | str) -> Type:
    """Return the type of a carried value after the loop: the body's result if it ran, else the initial one.

    An optional that the body turns into its element counts as an element: ONNX gives the loop the type of the result.
    """
    ran = isinstance(trips, int) and trips > 0
    unwrapped = isinstance(initial, OptionalType) and not isinstance(result, OptionalType)
    return result if ran or unwrapped else always


# -- Scan ----------------------------------------------------------------------------------------------------------


def convert_scan(ctx: Context) -> Sequence[Value]:
    values = [ctx.input(i) for i in range(len(ctx.inputs))]
    num_scanned = ctx.attr("num_scan_inputs")
    state, scanned = values[: len(values) - num_scanned], values[len(values) - num_scanned :]
    axes = ctx.attr("scan_input_axes", (0,) * num_scanned)
    axes = tuple(ctx.axis(v, a) for v, a in zip(scanned, axes, strict=True))
    types = [(v.type, axis) for v, axis in zip(scanned, axes, strict=True)]
    attrs, captures, outputs = _scan(
        ctx, [v.type for v in state], types,
        reverse=_flags(ctx, "scan_input_directions", num_scanned),
        output_axes=ctx.attr("scan_output_axes", None),
    )  # fmt: skip
    return ctx.emit_many("scan", (*state, *scanned, *captures), attrs, outputs)


def _flags(ctx: Context, name: str, count: int) -> tuple[bool, ...]:
    flags = ctx.attr(name, (0,) * count)
    if len(flags) != count:
        raise ctx.fail(f"attribute {name!r} has {len(flags)} entries, not {count}")
    return tuple(bool(f) for f in flags)


def _scan(
    ctx: Context,
    state: Sequence[Type],
    scanned: Sequence[tuple[Type, int]],
    *,
    reverse: tuple[bool, ...],
    output_axes: tuple[int, ...] | None,
) -> tuple[dict[str, object], list[Value], list[Type]]:
    """Return attributes, captures and output types of a `scan` over operands of these types and axes."""
    proto: GraphProto = ctx.attr("body")
    elements = [_without_axis(t, axis) for t, axis in scanned]
    body, captures, types = _settled(ctx, proto, (), state, elements, results_from=0)
    results = body.outputs[len(state) :]
    output_axes = (0,) * len(results) if output_axes is None else output_axes
    lengths = [t.shape[a] for t, a in scanned if isinstance(t, TensorType)]
    steps = next((n for n in lengths if isinstance(n, int)), lengths[0] if lengths else UNKNOWN)
    places = tuple(_output_axis(v.type, a) for v, a in zip(results, output_axes, strict=True))
    outputs = [*types, *(_with_axis(v.type, a, steps) for v, a in zip(results, places, strict=True))]
    attrs: dict[str, object] = {
        "body": body, "num_state": len(state), "num_scanned": len(scanned), "input_axes": tuple(a for _, a in scanned),
        "input_reverse": reverse, "output_axes": places,
        "output_reverse": _flags(ctx, "scan_output_directions", len(results)),
    }  # fmt: skip
    return attrs, captures, outputs


def _without_axis(type_: Type, axis: int) -> Type:
    if not isinstance(type_, TensorType):
        return type_
    return type_.with_shape((*type_.shape[:axis], *type_.shape[axis + 1 :]))


def _output_axis(type_: Type, axis: int) -> int:
    return axis + type_.rank + 1 if axis < 0 and isinstance(type_, TensorType) else axis


def _with_axis(type_: Type, axis: int, size: int | str) -> Type:
    if not isinstance(type_, TensorType):
        return type_
    return type_.with_shape((*type_.shape[:axis], size, *type_.shape[axis:]))


def convert_scan_8(ctx: Context) -> Sequence[Value]:
    """Convert Scan of opset 8: the first axis of every operand is a batch, over which an outer scan runs."""
    if ctx.optional(0) is not None:
        raise ctx.fail("sequence_lens is not supported; convert the model to opset 9 or newer")
    values = [ctx.input(i) for i in range(1, len(ctx.inputs))]
    num_scanned = ctx.attr("num_scan_inputs")
    for value in values:
        ctx.rank(value)
    elements = [_without_axis(v.type, 0) for v in values]
    split = len(values) - num_scanned
    attrs, captures, outputs = _scan(
        ctx, elements[:split], [(t, 0) for t in elements[split:]],
        reverse=_flags(ctx, "directions", num_scanned), output_axes=None,
    )  # fmt: skip
    batch = Graph("batch")
    inner = [batch.add_input(v.name, t) for v, t in zip(values, elements, strict=True)]
    inner += [batch.add_input(v.name, v.type) for v in captures]
    batch.outputs = list(batch.add("scan", inner, attrs, types=outputs, origins=ctx.origins).outputs)
    outer = {
        "body": batch, "num_state": 0, "num_scanned": len(values), "input_axes": (0,) * len(values),
        "input_reverse": (False,) * len(values), "output_axes": (0,) * len(outputs),
        "output_reverse": (False,) * len(outputs),
    }  # fmt: skip
    size = values[0].tensor_type.shape[0]
    return ctx.emit_many("scan", (*values, *captures), outer, [_with_axis(t, 0, size) for t in outputs])


# -- SequenceMap ---------------------------------------------------------------------------------------------------


def convert_sequence_map(ctx: Context) -> Sequence[Value]:
    values = [ctx.input(i) for i in range(len(ctx.inputs))]
    if not isinstance(values[0].type, SequenceType):
        raise ctx.fail(f"operand 0 is of type {values[0].type}, not a sequence")
    elements = [v.type.element if isinstance(v.type, SequenceType) else v.type for v in values]
    body, captures = ctx.convert_subgraph(ctx.attr("body"), elements)
    types = [SequenceType(v.type) for v in body.outputs]
    return ctx.emit_many("sequence_map", (*values, *captures), {"body": body, "num_inputs": len(values)}, types)


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "If": [(1, convert_if)],
    "Loop": [(1, convert_loop)],
    "Scan": [(8, convert_scan_8), (9, convert_scan)],
    "SequenceMap": [(17, convert_sequence_map)],
}
