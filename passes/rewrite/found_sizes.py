"""Sizes of results that only a run could tell, known as soon as other values take the place of the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilestitch.compiler.ir import Graph, Node, TensorType
from tilestitch.compiler.ir.claims import Claim
from tilestitch.compiler.ir.sizes import Size, Symbol, is_open, size_of
from tilestitch.compiler.ir.substitute import put_sizes
from tilestitch.compiler.ir.symbol_uses import Symbols, made_by, symbols_of_type, symbols_of_values
from tilestitch.compiler.ir.types import Type, types_compatible


def found_sizes(graph: Graph, node: Node, results: Sequence[Type]) -> dict[str, Size] | None:
    """Return what the symbols are that the node makes, where values of these types take the place of its outputs; None
    where readers of the outputs were promised other types.
    """
    made, found = made_by(node, symbols_of_values(graph.inputs)) & set(graph.symbols), dict[str, Size]()
    for result, output in zip(results, node.outputs, strict=True):
        if not types_compatible(result, output.type) or not _find(made, result, output.type, found):
            return None
    return found


def _find(made: Symbols, result: Type, promised: Type, found: dict[str, Size]) -> bool:
    """Add to `found` what symbols of a promised type are; no where that is not known."""
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
    """Give the graph what is put into it: the sizes that are known now, what is taken for granted, and the symbols."""
    graph.claims = tuple(dict.fromkeys((*graph.claims, *claims)))
    graph.symbols = tuple(dict.fromkeys((*graph.symbols, *symbols)))
    if sizes:
        put_sizes(graph, sizes)
        graph.claims = tuple(claim for claim in graph.claims if is_open(claim.size) or not claim.holds({}))
