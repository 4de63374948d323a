"""Conversion of the graph IR's types to those of the artifact's program."""

from __future__ import annotations

from collections.abc import Iterable

from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, Graph, MapType, OptionalType, SequenceType, TensorType, Type
from tilestitch.compiler.ir.sizes import Size, is_open, surely, symbols_of
from tilestitch.compiler.ir.types import Dim
from tilestitch.passes.plan.access.positions import INT32_ELEMENTS
from tilestitch.runtime import program as rt
from tilestitch.runtime.symbols import NO_LIMIT

TOO_MANY = (
    "kernels count elements in 32 bits where a dimension was given no range, in 64 where ranges ask for it (--dim "
    "NAME=LOW..HIGH)"
)


class SymbolNames:
    """Names for unknown dimensions: equal symbols of a program are equal sizes, while two unknown ones need not be."""

    def __init__(self) -> None:
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"unknown_{self.count}"


def runtime_size(size: Size) -> rt.Size:
    """Return a size in a program's form: a number, or the text of an expression over the program's symbols."""
    return str(size) if is_open(size) else size


def runtime_symbols(graph: Graph) -> tuple[rt.Symbol, ...]:
    """Return the symbols of a graph in a program's form."""
    return tuple(rt.Symbol(s.name, 0 if s.or_empty else s.low, min(s.high, NO_LIMIT)) for s in graph.symbols)


def runtime_checks(graph: Graph) -> tuple[rt.SizeCheck, ...]:
    """Return the conditions on the symbols that a run must satisfy."""
    left = [claim for claim in graph.claims if is_open(claim.size)]
    return tuple(
        rt.SizeCheck(runtime_size(claim.size), "==", 0, claim.reason) if claim.exact
        else rt.SizeCheck(0, "<=", runtime_size(claim.size), claim.reason)
        for claim in left
    )  # fmt: skip


def limits(sizes: Iterable[Size]) -> tuple[rt.SizeCheck, ...]:
    """Return checks that these sizes are less than `INT32_ELEMENTS`, without those implied by others."""
    kept: list[Size] = []
    for size in dict.fromkeys(sizes):
        if not any(_is_at_most(size, other) for other in kept):
            kept = [*(other for other in kept if not _is_at_most(other, size)), size]
    return tuple(rt.SizeCheck(runtime_size(size), "<=", INT32_ELEMENTS - 1, TOO_MANY) for size in kept)


def _is_at_most(size: Size, other: Size) -> bool:
    return not any(symbol.or_empty for symbol in symbols_of([other])) and surely(lambda: size <= other)


def runtime_type(type_: Type, symbols: SymbolNames) -> rt.ValueType:
    """Return the runtime's counterpart of a graph type; the element type of an always absent optional does not
    matter.
    """
    match type_:
        case TensorType(dtype, shape):
            return rt.TensorType(dtype, tuple(symbols.fresh() if d == UNKNOWN else _dimension(d) for d in shape))
        case AnyRankTensor(dtype):
            return rt.TensorType(dtype, None)
        case SequenceType(element):
            return rt.SequenceType(runtime_type(element, symbols))
        case OptionalType(element):
            absent = rt.TensorType("float32", None)
            return rt.OptionalType(absent if element is None else runtime_type(element, symbols))
        case MapType(key, value):
            return rt.MapType(key, value)
    raise TypeError(f"no runtime type for {type_!r}")


def _dimension(dim: Dim) -> rt.Size:
    return dim if isinstance(dim, str) else runtime_size(dim)
