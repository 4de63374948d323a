"""Loops of element-wise work, data movement and views on a CPU.

All outputs have the same number of elements, over which the kernel iterates in the shape of the first output.
Neighbouring dimensions with uniform strides in all operands are merged; the last one is vectorised. Where an operand is
contiguous along another dimension than the output (a transpose), the two dimensions are tiled.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from tilestitch.compiler.ir import Node, Value, op_spec
from tilestitch.compiler.ir.accesses import Access, elementwise_walk
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.cpu.loops import LoopPlan, alternating, interleaves, lying_across
from tilestitch.passes.plan.cpu.schedules import CpuLoopSchedule
from tilestitch.passes.plan.cpu.tiling import lines_kept

TASK_ELEMENTS = 16384
"""Elements per task of cheap arithmetic; about ten microseconds of memory traffic."""
EDGE = 32
"""Rows of the tiles in which transposed operands are traversed, and columns; twice as many if registers transpose."""
LEAST_EDGE = 8
BRANCHES = range(4, 129)
"""Numbers of operands for which rows branch: fewer are selected from, which reads all of them."""
LEAST_INNER = 8
"""Least extent of a last dimension for which a loop pays."""


def choose_loops(nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], isa: Isa) -> CpuLoopSchedule:
    """Return the loops of a kernel with at least one element."""
    extents, walk = elementwise_walk(inputs, outputs)
    accesses = walk.accesses
    cuts = tuple(sorted(at for d, at in walk.cuts if d == len(extents) - 1 and 0 < at < extents[-1]))
    branch, branches = _branches(extents, walk.cuts)
    lanes = _lanes(nodes, isa)
    short = len(extents) > 1 and extents[-1] < min(lanes, LEAST_INNER)
    if short or interleaves(extents[-1], lanes):
        across = _across(inputs, outputs, lanes, TASK_ELEMENTS // _weight(nodes))
        if across is not None:
            return across
    if short:
        extents = (prod(extents),)
        accesses, cuts, branch, branches = (), (), 0, ()
    lanes = min(lanes, 1 << (extents[-1].bit_length() - 1))
    tiled = _tiled_dimension(extents, accesses)
    grain = max(lanes, TASK_ELEMENTS // _weight(nodes))
    inner = extents[-1]
    in_turn = 1 if len(extents) == 1 else extents[-2]
    found = CpuLoopSchedule(extents, lanes, inner, in_turn, cuts=cuts, branch=branch, branches=branches)
    together, _ = alternating(inputs, outputs, found)
    if tiled is not None and together == 1:
        tiles = _tiles(extents, lanes, 2 * EDGE, grain, tiled)
        if lying_across(inputs, outputs, tiles):
            return tiles
        return _tiles(extents, lanes, _columns_at_once(accesses, tiled, lanes), grain, tiled)
    share = max(grain // together, lanes)
    if inner >= 2 * share and not cuts:
        return replace(found, chunk=-(-share // lanes) * lanes, rows=together)
    return replace(found, rows=together * max(1, grain // (together * inner)))


def _across(inputs: Sequence[Value], outputs: Sequence[Value], lanes: int, grain: int) -> CpuLoopSchedule | None:
    """Return loops with vectors along the dimension in which operands are contiguous, where the last one is short, such
    as the channels of a channels-first image. They are interleaved if they are few, else elements are stored one by
    one, but no index needs divisions; None if there is no such dimension, or it is short, too.
    """
    extents, walk = elementwise_walk(inputs, outputs, inside=True)
    along = _tiled_dimension(extents, walk.accesses)
    if along is None or extents[along] < 2 * LEAST_INNER or extents[-1] == 1:
        return None
    lanes = min(lanes, 1 << (extents[along].bit_length() - 2))
    order = (*(d for d in range(len(extents)) if d != along), along)
    inner = extents[along]
    places = tuple(sorted(at for d, at in walk.cuts if d == along and 0 < at < inner))
    found = CpuLoopSchedule(
        tuple(extents[d] for d in order), lanes, inner, max(1, grain // inner), cuts=places, order=order
    )
    rows = LoopPlan(prod(extents), replace(found, rows=extents[-1])).interleaved
    if rows == 1:
        return found if extents[-1] < min(lanes, LEAST_INNER) else None
    chunk = -(-max(grain // rows, lanes) // lanes) * lanes
    chunk = chunk if inner >= 2 * chunk and not places else inner
    return replace(found, rows=rows * max(1, grain // (rows * inner)), chunk=chunk)


def _branches(extents: Sequence[int], cuts: Collection[tuple[int, int]]) -> tuple[int, tuple[int, ...]]:
    """Return the dimension before the last along which most operands are concatenated, and the positions, if they are
    many.
    """
    found = [(d, (0, *sorted(at for e, at in cuts if e == d and 0 < at < extents[d]), extents[d]))
             for d in range(len(extents) - 1)]  # fmt: skip
    most = max(found, key=lambda one: len(one[1]), default=None)
    return most if most is not None and len(most[1]) - 1 in BRANCHES else (0, ())


def _lanes(nodes: Sequence[Node], isa: Isa) -> int:
    """Return the elements of one vector step: a register of the widest dtype computed with, counted as at most 32
    bits.
    """
    widest = max([storage_bytes(v.dtype) for node in nodes for v in (*node.inputs, *node.outputs)] + [1])
    return isa.vector_bytes // max(1, min(4, widest))


def _tiled_dimension(extents: tuple[int, ...], accesses: Sequence[Access]) -> int | None:
    """Return the dimension along which some operand is contiguous that is not contiguous along the last; None if there
    is none.
    """
    for access in accesses:
        strides = access.strides
        if strides is None or abs(strides[-1]) <= 1:
            continue
        for d, stride in enumerate(strides[:-1]):
            if abs(stride) == 1 and extents[d] >= LEAST_EDGE:
                return d
    return None


def _tiles(extents: tuple[int, ...], lanes: int, columns: int, grain: int, tiled: int) -> CpuLoopSchedule:
    chunk = min(extents[-1], columns)
    rows = max(1, grain // (EDGE * chunk))
    return CpuLoopSchedule(extents, min(lanes, columns), chunk, rows, tiled, EDGE)


def _columns_at_once(accesses: Sequence[Access], tiled: int, lanes: int) -> int:
    """Return the columns of a tile that is read element by element: a transposed operand has a line for each, and those
    must not drive each other out of the first-level cache before their other elements are read.
    """
    apart = [
        abs(one.strides[-1]) * storage_bytes(one.value.dtype)
        for one in accesses
        if one.strides is not None and abs(one.strides[tiled]) == 1
    ]
    return min([max(EDGE, lanes), *map(lines_kept, apart)])


def _weight(nodes: Sequence[Node]) -> int:
    """Return the approximate work per element, relative to one cheap operation."""
    return 1 + sum(8 if op_spec(node.op).expensive else 0 for node in nodes) // 8 + len(nodes) // 8
