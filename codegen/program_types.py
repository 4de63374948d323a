"""Types of the graph IR as the artifact's program writes them."""

from __future__ import annotations

from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, OptionalType, SequenceType, TensorType, Type
from tilestitch.runtime import program as rt


class SymbolNames:
    """Names for unknown dimensions: in a program equal symbols are equal sizes, and two unknown ones need not be."""

    def __init__(self) -> None:
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"unknown_{self.count}"


def runtime_type(type_: Type, symbols: SymbolNames) -> rt.ValueType:
    """The runtime's counterpart of a graph type; the element type of an always absent optional does not matter."""
    match type_:
        case TensorType(dtype, shape):
            return rt.TensorType(dtype, tuple(symbols.fresh() if d == UNKNOWN else d for d in shape))
        case AnyRankTensor(dtype):
            return rt.TensorType(dtype, None)
        case SequenceType(element):
            return rt.SequenceType(runtime_type(element, symbols))
        case OptionalType(element):
            absent = rt.TensorType("float32", None)
            return rt.OptionalType(absent if element is None else runtime_type(element, symbols))
    raise TypeError(f"no runtime type for {type_!r}")
