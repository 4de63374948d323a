"""Run-time sizes of results, which become known once other values replace the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilestitch.compiler.ir import Graph, Node, TensorType
from tilestitch.compiler.ir.claims import Claim
from tilestitch.compiler.ir.sizes import Size, Symbol, is_open, size_of
from tilestitch.compiler.ir.substitute import put_sizes
from tilestitch.compiler.ir.symbol_uses import Symbols, made_by, symbols_of_type, symbols_of_values
from tilestitch.compiler.ir.types import Type, types_compatible


def found_sizes(graph: Graph, node: Node, results: Sequence[Type]) -> dict[str, Size] | None:
    """Return the values of the symbols that the node defines, if values of these types replace its outputs; None if
    readers of the outputs were promised other types.
    """
    made, found = made_by(node, symbols_of_values(graph.inputs)) & set(graph.symbols), dict[str, Size]()
    for result, output in zip(results, node.outputs, strict=True):
        if not types_compatible(result, output.type) or not _find(made, result, output.type, found):
            return None
    return found


def _find(made: Symbols, result: Type, promised: Type, found: dict[str, Size]) -> bool:
    """Add the symbols of a promised type to `found`; return False where one is not determined."""
    lacking = (made & symbols_of_type(promised)) - symbols_of_type(result)
    if not isinstance(result, TensorType) or not isinstance(promised, TensorType):
        return not lacking
    for symbol in lacking:
        sizes = {known for known, size in zip(result.shape, promised.shape, strict=True) if size == size_of(symbol)}
        sizes |= {found[symbol.name]} if symbol.name in found else set()
        if len(sizes) != 1:
            return False
        size = sizes.pop()
        if isinstance(size, str):
            return False
        found[symbol.name] = size
    return True


def settle(graph: Graph, sizes: Mapping[str, Size], claims: Iterable[Claim], symbols: Iterable[Symbol] = ()) -> None:
    """Update the graph with known sizes, assumed claims, and symbols."""
    graph.claims = tuple(dict.fromkeys((*graph.claims, *claims)))
    graph.symbols = tuple(dict.fromkeys((*graph.symbols, *symbols)))
    if sizes:
        put_sizes(graph, sizes)
        graph.claims = tuple(claim for claim in graph.claims if is_open(claim.size) or not claim.holds({}))
