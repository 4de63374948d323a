"""The operator set that a model uses and does not name: ONNX Runtime, whose tools forget it, knows it all the same."""

from __future__ import annotations

from onnx import ModelProto, helper

from .checking import FOREIGN_DOMAIN, is_large
from .walks import all_nodes


def with_foreign_set(proto: ModelProto) -> ModelProto:
    """Return the model itself, or a copy that names the set of ONNX Runtime's operators in it, of which there is one
    version.

    Functions have to name it, for ONNX Runtime as well. A message that is too large to be copied stays as it is.
    """
    named = any(entry.domain == FOREIGN_DOMAIN for entry in proto.opset_import)
    used = any(node.domain == FOREIGN_DOMAIN for node in all_nodes(proto.graph.node))
    if named or not used or is_large(proto):
        return proto
    copy = ModelProto()
    copy.CopyFrom(proto)
    copy.opset_import.append(helper.make_opsetid(FOREIGN_DOMAIN, 1))
    return copy
