"""Values of ONNX attributes by their kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnx import AttributeProto

from .onnx_types import from_type_proto
from .tensors import to_array

_VALUES: dict[int, Callable[[AttributeProto, Path | None], Any]] = {
    AttributeProto.INT: lambda attribute, _: int(attribute.i),
    AttributeProto.FLOAT: lambda attribute, _: float(attribute.f),
    AttributeProto.STRING: lambda attribute, _: _text(attribute.s),
    AttributeProto.TENSOR: lambda attribute, folder: to_array(attribute.t, folder),
    AttributeProto.GRAPH: lambda attribute, _: attribute.g,
    AttributeProto.TYPE_PROTO: lambda attribute, _: from_type_proto(attribute.tp),
    AttributeProto.SPARSE_TENSOR: lambda attribute, _: attribute.sparse_tensor,
    AttributeProto.INTS: lambda attribute, _: tuple(int(v) for v in attribute.ints),
    AttributeProto.FLOATS: lambda attribute, _: tuple(float(v) for v in attribute.floats),
    AttributeProto.STRINGS: lambda attribute, _: tuple(_text(s) for s in attribute.strings),
    AttributeProto.TENSORS: lambda attribute, folder: tuple(to_array(t, folder) for t in attribute.tensors),
    AttributeProto.GRAPHS: lambda attribute, _: tuple(attribute.graphs),
}


def is_supported(attribute: AttributeProto) -> bool:
    return attribute.type in _VALUES


def value_of(attribute: AttributeProto, folder: Path | None) -> Any:
    """Return the value of a supported attribute: int, float, str (bytes if it is no UTF-8), ndarray, GraphProto, IR
    Type or a tuple of these. ``folder``: of external tensors.
    """
    return _VALUES[attribute.type](attribute, folder)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data
