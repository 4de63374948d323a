"""Adds the import of ONNX Runtime's operator set to models that use it without naming it, as its tools write them."""

from __future__ import annotations

from onnx import ModelProto, helper

from .checking import FOREIGN_DOMAIN, is_large
from .walks import all_nodes


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
