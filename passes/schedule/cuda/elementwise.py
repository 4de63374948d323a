"""Schedules of element-wise groups, data movement and views on GPUs."""

from collections.abc import Iterator, Sequence
from math import ceil, prod

from tilestitch.compiler.ir import Kind, Node, Value, is_elementwise, kind_of, op_spec
from tilestitch.compiler.ir.accesses import Access, Walk, elementwise_walk
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.vectors import accesses_along, lanes_of
from tilestitch.passes.plan.schedules import ElementwiseSchedule, TransposeSchedule

WARP = 32
MOST_THREADS = 256
FEW_BRANCHES = 12
"""So many operands of a concat have separate code each."""
MOST_BRANCHES = 128
"""Limit on pieces of separate code for more operands. A piece of several neighbours loads an element of each, and
selects.
"""
MOST_LONG_BRANCHES = 24
"""The same limit where every piece computes elementary functions, which are long."""
BRANCHES_OF_WARP = 4
"""About so many pieces the threads of a warp may be in, whose branches it takes one after the other."""
ENOUGH_THREADS = 1024
"""Threads per SM from which each may have several vectors."""
LEAST_EDGE = 16
"""Least elements along either dimension for which a tile pays."""
MOST_TILE_BYTES = 48 * 1024


def elementwise_schedules(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], sm_count: int
) -> list[ElementwiseSchedule | TransposeSchedule]:
    """Return the candidate schedules of a group with non-empty outputs.

    Where tiles in shared memory transpose an operand, there is no choice: latency models get the bytes that loads
    request, not that each load takes a whole sector.
    """
    extents, walk = elementwise_walk(inputs, outputs)
    tiles = _transpose(nodes, inputs, extents, walk)
    return [tiles] if tiles is not None else [*_vectors(nodes, extents, walk, sm_count)]


def choose_vectors(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], sm_count: int
) -> ElementwiseSchedule:
    """Return the default schedule without tiles in shared memory."""
    return next(_vectors(nodes, *elementwise_walk(inputs, outputs), sm_count))


def _vectors(
    nodes: Sequence[Node], extents: tuple[int, ...], walk: Walk, sm_count: int
) -> Iterator[ElementwiseSchedule]:
    """Yield schedules with several vectors per thread where there are enough threads, the most vectors first."""
    dear = sum(op_spec(node.op).expensive for node in nodes)
    widest = lanes_of([a.value for a in walk.accesses if a.strides is None or a.strides[-1] != 0])
    cut_axis, places = _places(walk.cuts, extents)
    lanes = _dividing(widest, extents[-1], *(places if cut_axis == len(extents) - 1 else ()))
    run = prod(extents[cut_axis:]) // (len(places) + 1)
    cuts = _cuts(
        places, MOST_LONG_BRANCHES if dear else MOST_BRANCHES, ceil(WARP * lanes / max(1, run * BRANCHES_OF_WARP))
    )
    if not cuts:
        cut_axis, lanes = 0, _dividing(widest, extents[-1])
    count = prod(extents) // lanes
    threads = min(MOST_THREADS, ceil(count / WARP) * WARP)
    for vectors in (4, 2):
        enough = count >= vectors * sm_count * ENOUGH_THREADS
        if enough and not cuts and vectors * lanes * (1 + dear) <= 32:
            yield ElementwiseSchedule(threads, lanes, vectors)
    yield ElementwiseSchedule(threads, lanes, 1, cut_axis, cuts)


def _dividing(lanes: int, *sizes: int) -> int:
    """Return `lanes`, halved until it divides all sizes."""
    while any(size % lanes for size in sizes):
        lanes //= 2
    return lanes


def _places(found: frozenset[tuple[int, int]], extents: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return the axis with most cuts, and the cuts inside it."""
    by_axis = {d: sorted(at for axis, at in found if axis == d and 0 < at < extents[d]) for d, _ in found}
    axis = max(by_axis, key=lambda d: len(by_axis[d]), default=0)
    return axis, tuple(by_axis.get(axis, ()))


def _cuts(places: Sequence[int], most: int, least: int) -> tuple[int, ...]:
    """Return the places to cut at, so that there are at most `most` pieces, and of more than few operands, `least` or
    more make a piece.
    """
    count = len(places) + 1
    step = 1 if count <= FEW_BRANCHES else max(ceil(count / most), least)
    return tuple(places[step - 1 :: step])


def _transpose(
    nodes: Sequence[Node], inputs: Sequence[Value], extents: tuple[int, ...], walk: Walk
) -> TransposeSchedule | None:
    """Return the tiles of a group, or None if none of its operands requires them.

    An operand must be read at one position per element, regardless of values: otherwise data may not be in the tile.
    """
    if not all(kind_of(node.op) is Kind.VIEW or is_elementwise(node.op) for node in nodes):
        return None
    if len(extents) < 2 or extents[-1] < LEAST_EDGE or any(a.strides is None for a in walk.accesses):
        return None
    found: dict[int, list[Access]] = {}
    for axis in range(len(extents) - 1):
        along = accesses_along(axis, extents, walk, inputs)
        if along and extents[axis] >= LEAST_EDGE:
            found[axis] = along
    if not found:
        return None
    first = min(found, key=lambda d: (-len(found[d]), _order(walk, found[d][0])))
    schedule = TransposeSchedule(first)
    nbytes = sum(schedule.edge * (schedule.edge + 1) * storage_bytes(a.value.dtype) for a in found[first])
    return schedule if nbytes <= MOST_TILE_BYTES else None


def _order(walk: Walk, access: Access) -> int:
    return next(i for i, a in enumerate(walk.accesses) if a is access)
