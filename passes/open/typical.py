"""Sizes that a plan of an open graph is made at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.sizes import Symbol

FIRST = 97
"""Where to look for a size that a range says nothing of: kernels then have some work, and no size is special."""


def typical_sizes(graph: Graph, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """A size for each symbol, in its range if that allows: what is given, else primes that the graph has not already,
    so that nothing holds at these sizes that does not hold at others.
    """
    taken = {d for node in graph.nodes for v in node.outputs if isinstance(v.type, TensorType) for d in v.type.shape}
    primes = (p for p in _primes(FIRST) if p not in taken)
    return {s.name: _in_range(s, (given or {}).get(s.name) or next(primes)) for s in graph.symbols}


def _in_range(symbol: Symbol, size: int) -> int:
    return min(max(size, symbol.low), symbol.high)


def _primes(first: int) -> Iterator[int]:
    return (n for n in count(first) if all(n % d for d in range(2, int(n**0.5) + 1)))
