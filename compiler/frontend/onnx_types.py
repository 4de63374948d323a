"""ONNX's type descriptions as types of the IR."""

from __future__ import annotations

import onnx
from onnx import TensorProto, TypeProto

from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, MapType, OptionalType, SequenceType, TensorType, Type

from .errors import ModelError

_DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.BOOL: "bool",
    TensorProto.STRING: "string",
    TensorProto.COMPLEX64: "complex64",
    TensorProto.COMPLEX128: "complex128",
    TensorProto.FLOAT8E4M3FN: "float8_e4m3fn",
    TensorProto.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    TensorProto.FLOAT8E5M2: "float8_e5m2",
    TensorProto.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
}
# Newer members of the enumeration, absent from older releases of the onnx package.
_NEWER = {
    "UINT4": "uint4",
    "INT4": "int4",
    "FLOAT4E2M1": "float4_e2m1fn",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "UINT2": "uint2",
    "INT2": "int2",
}
_DTYPES.update({TensorProto.DataType.Value(k): v for k, v in _NEWER.items() if k in TensorProto.DataType.keys()})  # noqa: SIM118
_ELEM_TYPES = {name: code for code, name in _DTYPES.items()}


def dtype_of(elem_type: int) -> str:
    """Return the IR's name of an ONNX element type; ModelError for one that is unknown or undefined."""
    if elem_type in _DTYPES:
        return _DTYPES[elem_type]
    known = elem_type in TensorProto.DataType.values()
    name = TensorProto.DataType.Name(elem_type) if known else str(elem_type)
    raise ModelError(f"element type {name} is not supported; known: {', '.join(_ELEM_TYPES)}")


def elem_type_of(dtype: str) -> int:
    """Return the ONNX element type of an IR dtype."""
    return _ELEM_TYPES[dtype]


def from_type_proto(proto: TypeProto) -> Type:
    """Return the IR type of an ONNX type; a dimension without value is its `dim_param`, or unknown.

    One that is named by a positive number has that size: PyTorch's exporter names all dimensions of inputs, the fixed
    ones too.

    Raises ModelError for sparse tensors, maps of other values than single ones, and opaque types.
    """
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        if not tensor.HasField("shape"):
            return AnyRankTensor(dtype_of(tensor.elem_type))
        return TensorType(dtype_of(tensor.elem_type), tuple(_dim(d) for d in tensor.shape.dim))
    if kind == "sequence_type":
        return SequenceType(from_type_proto(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return OptionalType(from_type_proto(proto.optional_type.elem_type))
    if kind == "map_type" and proto.map_type.value_type.WhichOneof("value") == "tensor_type":
        return MapType(dtype_of(proto.map_type.key_type), dtype_of(proto.map_type.value_type.tensor_type.elem_type))
    raise ModelError(
        f"values of ONNX type {kind or 'undefined'} are not supported; use tensors, sequences, optionals, "
        "or maps to numbers or texts"
    )


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    name = dim.dim_param
    return int(name) if name.isascii() and name.isdigit() and int(name) else name or UNKNOWN


def to_type_proto(type_: Type) -> TypeProto:
    """Return the ONNX type of an IR type; used to instantiate function bodies that depend on operand types."""
    if isinstance(type_, AnyRankTensor):
        return onnx.helper.make_tensor_type_proto(elem_type_of(type_.dtype), None)
    if isinstance(type_, TensorType):
        shape = [None if d == UNKNOWN else d if isinstance(d, int) else str(d) for d in type_.shape]
        return onnx.helper.make_tensor_type_proto(elem_type_of(type_.dtype), shape)
    if isinstance(type_, SequenceType):
        return onnx.helper.make_sequence_type_proto(to_type_proto(type_.element))
    if isinstance(type_, MapType):
        value = onnx.helper.make_tensor_type_proto(elem_type_of(type_.value), ())
        return onnx.helper.make_map_type_proto(elem_type_of(type_.key), value)
    if type_.element is None:
        raise ModelError("an absent optional of unknown element type cannot be passed to an ONNX function")
    return onnx.helper.make_optional_type_proto(to_type_proto(type_.element))
