"""Typical sizes at which a plan of an open graph is made."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain, count, islice, permutations, product
from math import lcm
from typing import Any

from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.claims import allowed
from tilestitch.compiler.ir.sizes import Size, Symbol, divisors_of, is_open, size_of, symbols_of, typical
from tilestitch.passes.errors import PassError

FIRSTS = (97, 29, 5, 1)
"""First candidates of a size that its range does not determine: kernels then have some work, and no size is special.
The later ones serve where it must not exceed a size of a short range.
"""
FACTORS = (1, 2, 4, 8, 16, 3, 6, 12, 5, 7, 9, 10)
"""Factors to try, in order, until a size satisfies the graph's claims, such as being even."""
FEW = (5,)
"""First candidates for sizes that are multiplied by all divisors in claims, as for windows of images."""
WORK = 16
"""Least elements of a dimension that would otherwise have one or none: a kernel for one element does not generalise."""
MOST_COMPARED, MOST_TIMES = 12, 4
"""Most candidate sizes that are compared, and their largest ratio to the first ones."""
MOST_TRIED = 1 << 24
MOST_PARTS = 65
"""Most parts of a size, such as patches along an edge of an image, that are tried for a claim on two sizes."""
MOST_ORDERS = 24
"""Most permutations of the sizes among the symbols that are tried, as one may have to be less than another."""


def typical_sizes(graph: Graph, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return a size for each symbol, in its range if that allows: a given one, else a prime that does not occur in the
    graph, so that nothing holds only by coincidence, or what the claims allow. Among a few such candidates, the one at
    which most results have different numbers of elements: those that coincide only at these sizes could be fused in a
    kernel without an open form. Raises PassError if no candidate satisfies the claims.
    """
    counts = {t.num_elements for t in _types(graph) if t.is_sized and not t.is_static}
    first, best, most = None, None, 0
    for sizes in islice(_candidates(graph, given or {}), MOST_COMPARED):
        first = first or sizes
        if any(size > (1 if name in (given or {}) else MOST_TIMES) * first[name] for name, size in sizes.items()):
            continue
        different = len({typical(count, sizes) for count in counts})
        if different == len(counts):
            return sizes
        if different > most:
            best, most = sizes, different
    if best is not None:
        return best
    claims = "; ".join(f"{claim} ({claim.reason})" if claim.reason else str(claim) for claim in graph.claims)
    raise PassError(
        f"no typical sizes were found for which all holds that the model takes for granted: {claims}; give sizes with "
        "shapes (--shape), or ranges with dims (--dim) that leave fewer"
    )


def _types(graph: Graph) -> list[TensorType]:
    types = (v.type for node in graph.nodes for v in node.outputs)
    return [each for each in types if isinstance(each, TensorType)]


def _candidates(graph: Graph, given: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the sizes for which all claims hold, the best ones first."""
    taken: set[Any] = {d for type_ in _types(graph) for d in type_.shape}
    ways = (
        _multiples(graph, given, taken),
        _multiples_of_divisors(graph, taken),
        _multiples_of_others(graph, taken),
        _sums_at_least(graph, taken),
        _sums(graph, taken),
        _pairs_of_parts(graph, taken),
        _mended(graph),
    )
    return (sizes for sizes in chain.from_iterable(ways) if all(claim.holds(sizes) for claim in graph.claims))


def _multiples(graph: Graph, given: Mapping[str, int], taken: Set[Any]) -> Iterator[dict[str, int]]:
    """Yield given sizes and primes, times a factor; equal ones for symbols that claims say are equal."""
    leaders = _leaders(graph)
    joint = _joint_ranges(graph, leaders)
    only = {leaders[name]: size for name, size in _only_sizes(graph)}
    made = {s: [d for d in taken if is_open(d) and symbols_of([d]) == {s}] for s in graph.symbols}
    for order in _orders(taken, len(graph.symbols)):
        first = {s.name: given.get(s.name) or prime for s, prime in zip(graph.symbols, order, strict=True)}
        first |= {s.name: _with_work(s, made[s], first[s.name]) for s in made if s.name not in given}
        for factor in FACTORS:
            sizes = {name: _in_range(joint[leader], first[leader], factor) for name, leader in leaders.items()}
            yield sizes | {name: only[leader] for name, leader in leaders.items() if leader in only}


def _multiples_of_divisors(graph: Graph, taken: Set[Any]) -> Iterator[dict[str, int]]:
    """Yield small primes, times all that claims divide a symbol by."""
    for order in _orders(taken, len(graph.symbols), FEW):
        yield {s.name: _in_range(s, prime, _divided(graph, s)) for s, prime in zip(graph.symbols, order, strict=True)}


def _sums_at_least(graph: Graph, taken: Set[Any]) -> Iterator[dict[str, int]]:
    """Yield primes, of which some are raised to what a sum of others must not exceed."""
    for sizes in _primes_in_range(graph, _orders(taken, len(graph.symbols))):
        yield _raised(graph, sizes)


def _sums(graph: Graph, taken: Set[Any]) -> Iterator[dict[str, int]]:
    """Yield primes, of which one in each sum that a claim states is what the others leave."""
    for sizes in _primes_in_range(graph, _orders(taken, len(graph.symbols))):
        yield _settled(graph, sizes)


def _multiples_of_others(graph: Graph, taken: Set[Any]) -> Iterator[dict[str, int]]:
    """Yield small primes, but for a symbol that a claim says is a multiple of another, such a multiple of it."""
    more, times, *usual = next(_orders(taken, len(graph.symbols) + 2, FEW))
    sizes = {s.name: _in_range(s, prime, 1) for s, prime in zip(graph.symbols, usual, strict=True)}
    for claim in graph.claims:
        for whole, part in permutations(symbols_of([claim.size]), 2) if claim.exact else ():
            tried = [{**sizes, whole.name: _in_range(whole, sizes[part.name], n)} for n in (times, more)]
            if all(map(claim.holds, tried)):
                yield tried[0]


def _pairs_of_parts(graph: Graph, taken: Set[Any]) -> Iterator[dict[str, int]]:
    """Yield small multiples of divisors, but for two symbols that a claim restricts to few pairs, as for images with a
    number of patches: different ones first, and among these the most similar.
    """
    few = next(_multiples_of_divisors(graph, taken))
    for claim in graph.claims:
        pair = [symbol for symbol in graph.symbols if symbol in symbols_of([claim.size])]
        if not claim.exact or len(pair) != 2:
            continue
        steps = [_divided(graph, symbol) for symbol in pair]
        numbers = product(range(2, MOST_PARTS), repeat=2)
        for both in sorted(numbers, key=lambda both: (both[0] == both[1], abs(both[0] - both[1]))):
            sizes = {s.name: _in_range(s, number, step) for s, number, step in zip(pair, both, steps, strict=True)}
            if claim.holds(sizes):
                yield {**few, **sizes}


def _mended(graph: Graph) -> Iterator[dict[str, int]]:
    """Yield equal sizes, of which one is changed for each claim that does not hold then, as for products."""
    for first in FACTORS[::-1]:
        sizes = {s.name: _in_range(s, first, 1) for s in graph.symbols}
        for claim in graph.claims * 2:  # a change may need another one before
            changed = product(graph.symbols, range(2, MOST_PARTS))
            tried = ({**sizes, s.name: _in_range(s, size, 1)} for s, size in changed)
            mended = sizes if claim.holds(sizes) else next(filter(claim.holds, tried), None)
            if mended is None:
                break
            sizes = mended
        else:
            yield sizes


def _primes_in_range(graph: Graph, orders: Iterable[Sequence[int]]) -> Iterator[dict[str, int]]:
    for order in orders:
        yield {s.name: _in_range(s, prime, 1) for s, prime in zip(graph.symbols, order, strict=True)}


def _raised(graph: Graph, sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes with larger primes for those that must be at least some sum of others."""
    for claim in graph.claims:
        lacking = 0 if claim.exact or claim.holds(sizes) else -typical(claim.size, sizes)
        for symbol in graph.symbols if lacking > 0 else ():
            raised = {**sizes, symbol.name: next(_primes(sizes[symbol.name] + lacking))}
            if claim.holds(raised) and raised[symbol.name] <= symbol.high:
                sizes = raised
                break
    return sizes


def _is_term(size: Size, symbol: Symbol) -> bool:
    """Return whether a symbol is added to the rest of a size, or subtracted from it, and does not occur in the rest."""
    return any(symbol not in symbols_of([rest]) for rest in (size - size_of(symbol), size + size_of(symbol)))


def _settled(graph: Graph, sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes of which one in each sum that a claim states is what the others leave."""
    for claim in graph.claims:
        rest = typical(claim.size, sizes) if claim.exact else 0
        for symbol in reversed(graph.symbols) if rest else ():
            if symbol not in symbols_of([claim.size]) or not _is_term(claim.size, symbol):
                continue
            added = symbol not in symbols_of([claim.size - size_of(symbol)])
            size = sizes[symbol.name] + (-rest if added else rest)
            if symbol.low <= size <= symbol.high:
                sizes = {**sizes, symbol.name: size}
                break
    return sizes


def _with_work(symbol: Symbol, made: Iterable[Size], size: int) -> int:
    """Return a size, or a larger one if a dimension derived from it would otherwise have a single element."""
    for other in made:
        tried = max(size, symbol.low)
        if typical(other, {symbol.name: tried}) > 1:
            continue
        while tried <= min(symbol.high, MOST_TRIED) and typical(other, {symbol.name: tried}) < WORK:
            tried = next(_primes(2 * tried))
        if tried <= min(symbol.high, MOST_TRIED):
            size = tried
    return size


def _leaders(graph: Graph) -> dict[str, str]:
    """Return, for each symbol, the first one that claims say it equals; both get the same size."""
    leaders = {symbol.name: symbol.name for symbol in graph.symbols}
    for claim in graph.claims:
        pair = [symbol for symbol in graph.symbols if symbol in symbols_of([claim.size])]
        if claim.exact and len(pair) == 2 and claim.size in _differences(*pair):
            first, second = (leaders[symbol.name] for symbol in pair)
            leaders = {name: first if leader == second else leader for name, leader in leaders.items()}
    return leaders


def _joint_ranges(graph: Graph, leaders: Mapping[str, str]) -> dict[str, Symbol]:
    """Return each leader with the range that it has in common with the symbols that equal it."""
    by_name = {symbol.name: _allowed(graph, symbol) for symbol in graph.symbols}
    joint = dict(by_name)
    for name, leader in leaders.items():
        low, high = max(joint[leader].low, by_name[name].low), min(joint[leader].high, by_name[name].high)
        if low <= high:
            joint[leader] = replace(joint[leader], low=low, high=high)
    return joint


def _allowed(graph: Graph, symbol: Symbol) -> Symbol:
    """Return a symbol with the sizes that claims on it alone leave to it."""
    narrow = symbol
    for claim in graph.claims:
        if symbols_of([claim.size]) == {symbol}:
            narrow = allowed(narrow, claim)
    return narrow


def _only_sizes(graph: Graph) -> Iterator[tuple[str, int]]:
    """Yield the symbols to which a claim leaves a single size: it says that a multiple of the symbol plus a constant is
    0.
    """
    for claim in graph.claims:
        symbol, *others = symbols_of([claim.size]) or [None]
        if symbol is None or others or not claim.exact:
            continue
        one, two, far = (typical(claim.size, {symbol.name: size}) for size in (1, 2, FIRSTS[0]))
        slope = two - one
        if slope and far - one == (FIRSTS[0] - 1) * slope and one % slope == 0:
            size = 1 - one // slope
            if symbol.low <= size <= symbol.high:
                yield symbol.name, size


def _differences(a: Symbol, b: Symbol) -> tuple[Size, Size]:
    return size_of(a) - size_of(b), size_of(b) - size_of(a)


def _divided(graph: Graph, symbol: Symbol) -> int:
    """Return the least common multiple of the divisors of a symbol in claims."""
    sizes = [claim.size for claim in graph.claims if symbol in symbols_of([claim.size])]
    return lcm(*divisors_of(sizes, symbol))


def _orders(taken: Set[object], length: int, firsts: Sequence[int] = FIRSTS) -> Iterator[tuple[int, ...]]:
    """Yield permutations of unused primes, larger ones first."""
    for first in firsts:
        primes = islice((p for p in _primes(first) if p not in taken), length)
        yield from islice(permutations(primes), MOST_ORDERS)


def _in_range(symbol: Symbol, size: int, factor: int) -> int:
    """Return `size` times `factor` if it is in the range, else the largest multiple that is; an end of the range if
    there is none.
    """
    if size * factor > symbol.high:
        size = symbol.high // factor
    return max(size * factor, symbol.low)


def _primes(first: int) -> Iterator[int]:
    return (n for n in count(first) if all(n % d for d in range(2, int(n**0.5) + 1)))
