"""Malformed ONNX models: fields of the protobuf changed, so that the file still parses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

NUMBERS = (0, 1, -1, 2, 3, 7, 8, 16, 22, 127, 255, 999, 2**15, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -1.0, 1e30, -1e-30, float("nan"), float("inf"), float("-inf"))
NAMES = (
    "", "x", "y", "w", "/", "..", "a b", "ü", "\0", "x" * 300, "Relu", "Conv", "Loop", "If", "Identity", "ai.onnx.ml",
    "n",
)  # fmt: skip


def mutant(model: ModelProto, seed: int) -> ModelProto:
    """A model like `model`, but for one to three changes that the seed determines."""
    chooser = random.Random(seed)
    changed = ModelProto()
    changed.CopyFrom(model)
    for _ in range(chooser.choice((1, 1, 1, 2, 3))):
        chooser.choice(_CHANGES)(changed, chooser)
    return changed


def messages(message: Message) -> Iterator[Message]:
    """A message and all in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in value if _is_list(value) else (value,):
            yield from messages(part)


def _is_list(value: Any) -> bool:
    return not isinstance(value, Message | str | bytes | int | float)


def _pick(model: ModelProto, kind: type[Message], chooser: random.Random) -> Any:
    """A message of a kind; None if there is none."""
    found = [message for message in messages(model) if isinstance(message, kind)]
    return chooser.choice(found) if found else None


def _any_field(model: ModelProto, chooser: random.Random) -> None:
    """A field of any message gets another value, loses it, or gets one although it had none."""
    message = chooser.choice(list(messages(model)))
    field = chooser.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if _is_list(value):
        _change_list(message, field, value, chooser)
    elif chooser.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type is not None:
        other = _pick(model, type(value), chooser)
        value.CopyFrom(_copy(other)) if other is not None else value.SetInParent()
    else:
        setattr(message, field.name, _scalar(field, chooser))


def _change_list(message: Message, field: Any, value: Any, chooser: random.Random) -> None:
    items = list(value)
    match chooser.randrange(5):
        case 0:
            items = []
        case 1 if items:
            del items[chooser.randrange(len(items))]
        case 2 if items:
            items.insert(chooser.randrange(len(items) + 1), chooser.choice(items))
        case 3:
            chooser.shuffle(items)
        case _ if field.message_type is None:
            items.insert(chooser.randrange(len(items) + 1), _scalar(field, chooser))
    copies = [_copy(item) if isinstance(item, Message) else item for item in items]
    message.ClearField(field.name)
    value.extend(copies)


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _scalar(field: Any, chooser: random.Random) -> Any:
    """A value that a field may hold by its type in the protobuf."""
    kind = field.cpp_type
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return chooser.choice(FLOATS)
    if kind == field.CPPTYPE_ENUM:
        return chooser.choice([value.number for value in field.enum_type.values])
    if kind == field.CPPTYPE_STRING:
        name = chooser.choice(NAMES)
        return name.encode() if field.type == field.TYPE_BYTES else name
    number = chooser.choice(NUMBERS)
    if kind == field.CPPTYPE_INT32:
        return max(-(2**31), min(number, 2**31 - 1))
    return abs(number) if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) else number


def _rewire(model: ModelProto, chooser: random.Random) -> None:
    """A name in a node becomes another name of the model: cycles, results made twice, undefined values."""
    nodes = [message for message in messages(model) if isinstance(message, NodeProto)]
    names = [name for node in nodes for name in (*node.input, *node.output)] + ["nothing", ""]
    if not nodes:
        return
    node = chooser.choice(nodes)
    values = chooser.choice((node.input, node.input, node.output))
    if values:
        values[chooser.randrange(len(values))] = chooser.choice(names)


def _drop_input(model: ModelProto, chooser: random.Random) -> None:
    node = _pick(model, NodeProto, chooser)
    if node is not None and node.input:
        del node.input[chooser.randrange(len(node.input))]


def _attribute(model: ModelProto, chooser: random.Random) -> None:
    """An attribute of a node gets an absurd value, or one of another type."""
    attribute = _pick(model, AttributeProto, chooser)
    node = _pick(model, NodeProto, chooser)
    name = attribute.name if attribute is not None else chooser.choice(("axis", "axes", "perm", "k", "dilations"))
    numbers = [chooser.choice(NUMBERS) for _ in range(chooser.randrange(5))]
    values = (chooser.choice(NUMBERS), numbers, chooser.choice(FLOATS), "text", [1.5], ["a", "b"])
    made = _made(name, chooser.choice(values))
    if attribute is not None and chooser.random() < 0.7:
        attribute.CopyFrom(made)
    elif node is not None:
        node.attribute.append(made)


def _made(name: str, value: Any) -> AttributeProto:
    if value == []:
        return AttributeProto(name=name, type=AttributeProto.INTS)
    return helper.make_attribute(name, value)


def _external(model: ModelProto, chooser: random.Random) -> None:
    """A tensor says that its data lie somewhere else."""
    tensor = _pick(model, TensorProto, chooser)
    if tensor is None:
        return
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    places = ("../m.onnx", "/etc/passwd", "/dev/zero", "m.onnx", "", ".", "a/../../b", "missing", "\\..\\x", "m\0.onnx")
    for key, value in (
        ("location", chooser.choice(places)), ("offset", str(chooser.choice((*NUMBERS, "x")))),
        ("length", str(chooser.choice((*NUMBERS, "")))),
    ):  # fmt: skip
        if chooser.random() < 0.8:
            tensor.external_data.add(key=key, value=value)


def _opset(model: ModelProto, chooser: random.Random) -> None:
    for entry in model.opset_import:
        entry.version = chooser.choice((0, 1, 2, 5, 6, 7, 9, 11, 13, 999, -1, 2**31, 2**62))
    model.ir_version = chooser.choice((model.ir_version, 0, 1, 3, 99, 2**40))


def _type_of_tensor(model: ModelProto, chooser: random.Random) -> None:
    tensor = _pick(model, TensorProto, chooser)
    if tensor is None:
        return
    if chooser.random() < 0.5:
        tensor.data_type = chooser.choice((*range(30), -1, 255))
    elif tensor.dims and chooser.random() < 0.7:
        tensor.dims[chooser.randrange(len(tensor.dims))] = chooser.choice(NUMBERS)
    else:
        tensor.dims.append(chooser.choice(NUMBERS))


def _function(model: ModelProto, chooser: random.Random) -> None:
    """A function of the model's own takes the place of an operator, and may call itself."""
    node = _pick(model, NodeProto, chooser)
    if node is None:
        return
    inside = chooser.choice((node.op_type, "Own", "Other"))
    for name, called in (("Own", inside), ("Other", "Own")):
        inputs, outputs = [f"i{n}" for n in range(len(node.input))], [f"o{n}" for n in range(len(node.output))]
        body = helper.make_node(called, inputs, outputs, domain="" if called == node.op_type else "own")
        model.functions.append(FunctionProto(
            domain="own", name=name, input=inputs, output=outputs, node=[body], opset_import=list(model.opset_import),
        ))  # fmt: skip
    node.op_type, node.domain = "Own", "own"
    model.opset_import.add(domain="own", version=1)


def _nested(model: ModelProto, chooser: random.Random) -> None:
    """A graph in a node, in a graph, and so on."""
    graph = GraphProto(name="inner")
    for _ in range(chooser.choice((1, 10, 30))):
        node = helper.make_node("Loop", ["", "c"], ["y"], body=_copy(graph))
        graph = GraphProto(name="inner", node=[node])
    model.graph.node.extend(graph.node)


_CHANGES: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    _any_field, _any_field, _any_field, _any_field, _rewire, _rewire, _drop_input, _attribute, _attribute, _external,
    _opset, _type_of_tensor, _function, _nested,
)  # fmt: skip
