"""Sequences and optionals: lists and absent values, which only host steps handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilestitch.compiler.frontend.builder import normalize_axis
from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, OptionalType, SequenceType, TensorType, Type, Value

from .growing_sequences import rows_of
from .host_types import constant_ints, join_all, join_types, operands, present
from .indexing import gathered

MOST_PARTS = 32
"""Limit on the parts of a split that are taken one by one."""


def _element(ctx: Context, value: Value) -> Type:
    if not isinstance(value.type, SequenceType):
        raise ctx.fail(f"%{value.name} is of type {value.type}, not a sequence")
    return value.type.element


def sequence_construct(ctx: Context) -> Sequence[Value]:
    values = [ctx.input(i) for i in range(len(ctx.inputs))]
    if not values:
        raise ctx.fail("at least one operand is required; SequenceEmpty makes an empty sequence")
    return ctx.host("SequenceConstruct", values, [SequenceType(join_all(v.type for v in values))])


def sequence_empty(ctx: Context) -> Sequence[Value]:
    return ctx.host("SequenceEmpty", (), [SequenceType(AnyRankTensor(ctx.dtype_attr("dtype", "float32")))])


def _items(ctx: Context, sequence: Value) -> list[Value] | None:
    """Return the items of a list to which nodes add one after the other, or of the parts of a split with constant
    sizes; None for any other.
    """
    added: list[Value] = []
    node = sequence.producer
    if node is not None and node.op == "host.SplitToSequence" and len(node.inputs) == 2:
        return _parts(ctx, *node.inputs, node.attrs.get("axis", 0))
    while node is not None and node.op == "host.SequenceInsert" and len(node.inputs) == 2:
        added.append(node.inputs[1])
        node = node.inputs[0].producer
    if node is None or node.op not in ("host.SequenceEmpty", "host.SequenceConstruct"):
        return None
    return [*node.inputs, *reversed(added)]


def _parts(ctx: Context, x: Value, split: Value, axis: int) -> list[Value] | None:
    sizes = constant_ints(split)
    if not isinstance(x.type, TensorType) or not x.type.is_static or x.dtype == "string" or not sizes:
        return None
    axis = ctx.axis(x, axis)
    whole = ctx.dim(x, axis)
    if not split.tensor_type.rank and sizes[0] > 0:
        sizes = tuple(min(sizes[0], whole - start) for start in range(0, whole, sizes[0]))
    return list(ctx.split(x, axis, sizes)) if sum(sizes) == whole and len(sizes) <= MOST_PARTS else None


def sequence_at(ctx: Context) -> Value | Sequence[Value]:
    sequence, position = ctx.input(0), ctx.input(1)
    rows = rows_of(ctx, sequence)
    if rows is not None:
        return gathered(ctx, rows, position, 0)
    items, place = _items(ctx, sequence) or (), constant_ints(position)
    if place is not None and -len(items) <= place[0] < len(items):
        return items[place[0]]
    return ctx.host("SequenceAt", (sequence, position), [_element(ctx, sequence)])


def sequence_insert(ctx: Context) -> Sequence[Value]:
    sequence, item = ctx.input(0), ctx.input(1)
    type_ = SequenceType(join_types(_element(ctx, sequence), item.type))
    return ctx.host("SequenceInsert", operands(ctx, (sequence, item, ctx.optional(2))), [type_])


def sequence_erase(ctx: Context) -> Sequence[Value]:
    sequence = ctx.input(0)
    _element(ctx, sequence)
    return ctx.host("SequenceErase", operands(ctx, (sequence, ctx.optional(1))), [sequence.type])


def sequence_length(ctx: Context) -> Sequence[Value]:
    sequence = ctx.input(0)
    _element(ctx, sequence)
    items = _items(ctx, sequence)
    if items is not None:
        return [ctx.constant(len(items), "int64")]
    rows = rows_of(ctx, sequence)
    if rows is not None:
        return [ctx.size(ctx.dim(rows, 0))]
    return ctx.host("SequenceLength", (sequence,), [TensorType("int64", ())])


def concat_from_sequence(ctx: Context) -> Value | Sequence[Value]:
    sequence, axis = ctx.input(0), ctx.attr("axis")
    element, rows, items = _element(ctx, sequence), rows_of(ctx, sequence), _items(ctx, sequence)
    if rows is not None:
        return _joined(ctx, rows, axis, bool(ctx.attr("new_axis", 0)))
    if items and isinstance(element, TensorType):
        place = normalize_axis(axis, element.rank + ctx.attr("new_axis", 0))
        return ctx.concat([ctx.expand_dims(v, (place,)) for v in items] if ctx.attr("new_axis", 0) else items, place)
    return ctx.host(
        "ConcatFromSequence",
        (sequence,),
        [_joined_type(element, axis, ctx.attr("new_axis", 0))],
        **present(ctx, "axis", "new_axis"),
    )


def _joined(ctx: Context, rows: Value, axis: int, new_axis: bool) -> Value:
    """Return the elements that are stacked along the first axis, concatenated along one of their own axes, or along a
    new one.
    """
    rank = ctx.rank(rows) - (0 if new_axis else 1)
    place = normalize_axis(axis, rank)
    moved = ctx.transpose(rows, (*range(1, place + 1), 0, *range(place + 1, ctx.rank(rows))))
    if new_axis:
        return moved
    shape = moved.shape
    return ctx.reshape(moved, (*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :]))


def _joined_type(element: Type, axis: int, new_axis: int) -> Type:
    if not isinstance(element, TensorType):
        return element
    shape = list(element.shape)
    place = axis + len(shape) + (1 if new_axis else 0) if axis < 0 else axis
    if new_axis:
        shape.insert(place, UNKNOWN)
    else:
        shape[place] = UNKNOWN
    return element.with_shape(tuple(shape))


def split_to_sequence(ctx: Context) -> Sequence[Value]:
    x, split = ctx.input(0), ctx.optional(1)
    type_ = x.type
    if isinstance(type_, TensorType):
        axis = ctx.axis(x, ctx.attr("axis", 0))
        shape = list(type_.shape)
        size = _part_size(shape[axis], split)
        if split is None and not ctx.attr("keepdims", 1):
            del shape[axis]
        else:
            shape[axis] = size
        type_ = type_.with_shape(tuple(shape))
    return ctx.host(
        "SplitToSequence", operands(ctx, (x, split)), [SequenceType(type_)], **present(ctx, "axis", "keepdims")
    )


def _part_size(size: int | str, split: Value | None) -> int | str:
    """Return the size of every part, if all are equal."""
    if split is None:
        return 1
    sizes = constant_ints(split)
    if sizes is None or not sizes:
        return UNKNOWN
    if isinstance(split.type, TensorType) and split.type.rank:
        return sizes[0] if len(set(sizes)) == 1 else UNKNOWN
    return sizes[0] if isinstance(size, int) and sizes[0] > 0 and size % sizes[0] == 0 else UNKNOWN


# -- optionals -----------------------------------------------------------------------------------------------------


def optional(ctx: Context) -> Sequence[Value]:
    value = ctx.optional(0)
    if value is not None:
        return ctx.host("Optional", (value,), [OptionalType(value.type)])
    return ctx.host("Optional", (), [OptionalType(ctx.attr("type", None))])


def optional_get_element(ctx: Context) -> Value | Sequence[Value]:
    value = ctx.input(0)
    if not isinstance(value.type, OptionalType):
        return value
    assert value.type.element is not None  # `input` treats the absent optional as a missing operand
    return ctx.host("OptionalGetElement", (value,), [value.type.element])


def optional_has_element(ctx: Context) -> Value | Sequence[Value]:
    value = ctx.optional(0)
    if value is None or not isinstance(value.type, OptionalType):
        return ctx.constant(value is not None, "bool")
    return ctx.host("OptionalHasElement", (value,), [TensorType("bool", ())])


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "SequenceConstruct": [(11, sequence_construct)],
    "SequenceEmpty": [(11, sequence_empty)],
    "SequenceAt": [(11, sequence_at)],
    "SequenceInsert": [(11, sequence_insert)],
    "SequenceErase": [(11, sequence_erase)],
    "SequenceLength": [(11, sequence_length)],
    "ConcatFromSequence": [(11, concat_from_sequence)],
    "SplitToSequence": [(11, split_to_sequence)],
    "Optional": [(15, optional)],
    "OptionalGetElement": [(15, optional_get_element)],
    "OptionalHasElement": [(15, optional_has_element)],
}
