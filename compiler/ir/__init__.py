"""The graph IR of primitives: types, graph, operator table, verifier, text form, numpy evaluation."""

from .errors import IRError, TextError, TypeRuleError, VerifyError
from .graph import Graph, Node, Value
from .ops import HOST_PREFIX, OPS, Kind, OpSpec, infer_types, is_elementwise, kind_of, op_spec, reference
from .types import UNKNOWN, AnyRankTensor, MapType, OptionalType, SequenceType, TensorType, Type

__all__ = [
    "HOST_PREFIX",
    "OPS",
    "UNKNOWN",
    "AnyRankTensor",
    "Graph",
    "IRError",
    "Kind",
    "Node",
    "OpSpec",
    "MapType",
    "OptionalType",
    "SequenceType",
    "TensorType",
    "TextError",
    "Type",
    "TypeRuleError",
    "Value",
    "VerifyError",
    "infer_types",
    "is_elementwise",
    "kind_of",
    "op_spec",
    "reference",
]
