"""ONNX's checker, and how a model is presented to it."""

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper

from .errors import ModelError
from .functions import schema_of
from .scope import canonical_domain
from .walks import all_nodes, all_tensors

MOST_MESSAGE_BYTES = (1 << 31) - 1
"""Limit of a serialised protobuf message."""

MOST_CHECKED_ELEMENTS = 1 << 10
"""Tensors of more elements, as bytes, are not given to the checker."""

TYPED_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")

FOREIGN = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators that ONNX Runtime's tools write into ONNX's domain for operator sets that lack them."""

FOREIGN_DOMAIN = "com.microsoft"

FIRST_WITH_INITIALIZERS_APART = 4
"""First version of ONNX's format in which an initialiser need not be an input."""


def check_model(proto: ModelProto, path: Path | None) -> None:
    """Run ONNX's checker; by path where there is one, since a model with its external data may exceed 2 GB.

    Raises ModelError with the checker's complaint.
    """
    try:
        onnx.checker.check_model(_checkable(proto, path))
    except onnx.checker.ValidationError as error:
        raise ModelError(f"the ONNX checker rejects the model: {str(error).strip()}") from error
    except (ValueError, EncodeError, UnicodeDecodeError, RuntimeError) as error:
        raise ModelError(
            f"the ONNX checker cannot read the model ({error}); save it with its weights as external data"
        ) from error


def _checkable(proto: ModelProto, path: Path | None) -> ModelProto | str:
    """Return the checker's input. The checker requires shapes of all inputs and outputs, which are optional in ONNX,
    and types of outputs, which tools that add outputs omit; before IR version 4, an input for each initialiser. It
    accepts no message beyond 2 GB.

    Operators that ONNX Runtime writes into ONNX's domain, which the checker rejects, are replaced by others. A copy
    belongs to no folder, so its external tensors, which are checked when they are mapped, are emptied; so are large
    tensors, which the checker would copy several times, and which are checked when they are read.
    """
    typed = all(output.type.WhichOneof("value") for output in proto.graph.output)
    tensors = [v.type.tensor_type for v in (*proto.graph.input, *proto.graph.output) if v.type.HasField("tensor_type")]
    shaped = all(t.HasField("shape") for t in tensors)
    apart = _has_initializers_apart(proto)
    foreign = any(True for _ in _foreign_nodes(proto))
    external = any(t.data_location == TensorProto.EXTERNAL for t in all_tensors(proto.graph))
    as_it_is = typed and shaped and not (foreign or apart)
    if as_it_is and external and path is not None:
        return str(path)
    small = [tensor for tensor in proto.graph.initializer if not _is_large_tensor(tensor)]
    if as_it_is and not external and len(small) == len(proto.graph.initializer) and not is_large(proto):
        return proto
    return _relaxed_copy(proto, small, apart=apart)


def _relaxed_copy(proto: ModelProto, small: Sequence[TensorProto], *, apart: bool) -> ModelProto:
    """Return a copy that the checker accepts if the model is right, with what it requires beyond the standard."""
    copy = _without_initializers(proto)
    if apart:
        copy.ir_version = FIRST_WITH_INITIALIZERS_APART
    large = sum(tensor.ByteSize() for tensor in small) > MOST_MESSAGE_BYTES
    copy.graph.initializer.extend(_emptied(t) if large or _is_large_tensor(t) else t for t in proto.graph.initializer)
    _add_types(copy)
    _rename_foreign(copy)
    for tensor in all_tensors(copy.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(_emptied(tensor))
    return copy


def _add_types(copy: ModelProto) -> None:
    """Give outputs without a type one, and tensors without a shape one of any rank."""
    for output in copy.graph.output:
        if not output.type.WhichOneof("value"):
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    for info in (*copy.graph.input, *copy.graph.output):
        if info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.SetInParent()


def _rename_foreign(copy: ModelProto) -> None:
    """Move foreign operators to a domain that the checker does not know."""
    for holder, node in list(_foreign_nodes(copy)):
        node.domain = FOREIGN_DOMAIN
        if not any(entry.domain == FOREIGN_DOMAIN for entry in holder.opset_import):
            holder.opset_import.append(onnx.helper.make_opsetid(FOREIGN_DOMAIN, 1))


def _foreign_nodes(proto: ModelProto) -> Iterator[tuple[ModelProto | FunctionProto, NodeProto]]:
    """Yield the nodes of operators that ONNX Runtime defines in ONNX's domain, where the operator set in force lacks
    them.

    Each with the model or function that states the operator sets.
    """
    for holder, nodes in ((proto, proto.graph.node), *((function, function.node) for function in proto.functions)):
        versions = [entry.version for entry in holder.opset_import if not canonical_domain(entry.domain)]
        for node in all_nodes(nodes):
            if canonical_domain(node.domain) or node.op_type not in FOREIGN:
                continue
            if not any(schema_of(node.op_type, version, "") for version in versions):
                yield holder, node


def _has_initializers_apart(proto: ModelProto) -> bool:
    """Return whether some initialisers are not inputs, in a model of a version that requires it."""
    inputs = {info.name for info in proto.graph.input}
    early = 0 < proto.ir_version < FIRST_WITH_INITIALIZERS_APART
    return early and any(tensor.name not in inputs for tensor in proto.graph.initializer)


def is_large(proto: ModelProto) -> bool:
    """Return whether a message is beyond what protobuf can serialise or copy whole."""
    try:
        size: int = proto.ByteSize()
    except EncodeError:  # protobuf counts by serialising
        return True
    return size > MOST_MESSAGE_BYTES


def _without_initializers(proto: ModelProto) -> ModelProto:
    """Return a copy of what the checker reads, without initialisers. Piece by piece: a message beyond 2 GB cannot be
    copied whole.
    """
    graph = proto.graph
    copy = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    copy.graph.name = graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(copy.graph, field).extend(getattr(graph, field))
    return copy


def _is_large_tensor(tensor: TensorProto) -> bool:
    """Return whether a tensor has many elements, as bytes alone: of the other fields the checker compares sizes."""
    return prod(tensor.dims) > MOST_CHECKED_ELEMENTS and not any(len(getattr(tensor, name)) for name in TYPED_FIELDS)


def _emptied(tensor: TensorProto) -> TensorProto:
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0], raw_data=b"")


def with_foreign_set(proto: ModelProto) -> ModelProto:
    """Return the model itself, or a copy that imports ONNX Runtime's operator set, of which there is one version.

    Functions must import it themselves, also in ONNX Runtime. A message that is too large to copy stays as it is.
    """
    named = any(entry.domain == FOREIGN_DOMAIN for entry in proto.opset_import)
    used = any(node.domain == FOREIGN_DOMAIN for node in all_nodes(proto.graph.node))
    if named or not used or is_large(proto):
        return proto
    copy = ModelProto()
    copy.CopyFrom(proto)
    copy.opset_import.append(helper.make_opsetid(FOREIGN_DOMAIN, 1))
    return copy
