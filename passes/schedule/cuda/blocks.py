"""Schedules, and facts, of groups whose blocks each compute a slab of all stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.facts import KernelFacts, Part, Traffic, kernel_of, merged
from tilestitch.cost_model.protocol import LatencyModel, fastest
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.access.row_loops import row_loops
from tilestitch.passes.plan.launches.cuda.blocks import PLACE_BYTES, Blocking, SlabPart, axes_of_slabs
from tilestitch.passes.plan.launches.cuda.stitched import MOST_STATIC_SHARED_BYTES
from tilestitch.passes.plan.parts import Part as Place
from tilestitch.passes.plan.registers import registers_of
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import BlockSchedule, ElementwiseSchedule, RowSchedule, SharedPlace
from tilestitch.passes.schedule.work import work_of

from .elementwise import choose_vectors
from .gpu import Gpu
from .rows import LEAST_COLUMN, WARP

THREADS = (128, 256, 512, 1024)
"""Candidate threads per block."""
ROW_COST = 4
"""Steps of a pass that the warps of a block take to combine their results."""


def choose_blocks(nodes: Mapping[str, Node], group: Group, gpu: Gpu, model: LatencyModel) -> Group:
    """Return the group, whose parts share axes (`axes_of_slabs`), with the schedule that `model` predicts to be
    fastest.
    """
    groups, facts = zip(*scheduled_blocks(nodes, group, gpu), strict=True)
    chosen: Group = fastest(groups, facts, gpu.device, model)
    return chosen


def scheduled_blocks(nodes: Mapping[str, Node], group: Group, gpu: Gpu) -> Iterator[tuple[Group, KernelFacts]]:
    """Yield the group with each candidate schedule, and its facts."""
    for axes in axes_of_slabs(nodes, group):
        bare = Blocking.of(nodes, group, axes)
        assert isinstance(bare, Blocking), bare
        for scheduled in _scheduled(bare):
            yield from _with_places(group, scheduled, axes, gpu)


def _scheduled(blocking: Blocking) -> Iterator[Blocking]:
    """Yield versions with more and more threads, as long as there is work for them."""
    known: set[tuple[object, ...]] = set()
    for threads in THREADS:
        parts = tuple(
            replace(part, group=replace(part.group, schedule=_schedule(part, threads))) for part in blocking.parts
        )
        key = tuple(part.group.schedule for part in parts)
        if key not in known:
            known.add(key)
            yield replace(blocking, parts=parts)


def _with_places(
    group: Group, blocking: Blocking, axes: tuple[int, ...], gpu: Gpu
) -> Iterator[tuple[Group, KernelFacts]]:
    """Yield versions with as much in shared memory as fits, and with nothing there."""
    static = blocking.static_shared_bytes
    stages = tuple((part.group,) for part in blocking.parts)
    room = gpu.machine.shared_bytes_per_block - static
    choices = dict.fromkeys((shared_places(blocking, room), ()))
    for places in choices if static <= MOST_STATIC_SHARED_BYTES else ():
        schedule = BlockSchedule(axes, places)
        yield replace(group, stages=stages, schedule=schedule), facts_of_blocks(blocking, schedule)


# -- threads -----------------------------------------------------------------------------------------------------------


def _schedule(part: SlabPart, threads: int) -> ElementwiseSchedule | RowSchedule:
    """Return the schedule of a part in a block of at most `threads` threads."""
    view = part.slab
    if part.roles.rows is None:
        usual = choose_vectors(view.nodes, view.inputs, view.stored, 1)
        vectors = view.stored[0].tensor_type.num_elements // usual.lanes
        return replace(usual, threads=min(threads, ceil(vectors / WARP) * WARP), vectors=1)
    loops = row_loops(view.nodes, part.roles, view.inputs, view.stored)
    if loops.columns:
        rows = min(ceil(loops.row_count / WARP) * WARP, threads)
        team = 1
        while 2 * team * rows <= threads and 2 * team * LEAST_COLUMN <= loops.vectors and team < WARP:
            team *= 2
        return RowSchedule(loops.lanes, team, rows)
    if loops.vectors <= WARP:
        team = 1 << max(0, loops.vectors - 1).bit_length()
        return RowSchedule(loops.lanes, team, threads // team)
    by_warps = ceil(loops.row_count * WARP / threads) * ceil(loops.vectors / WARP)
    by_blocks = loops.row_count * (ceil(loops.vectors / threads) + ROW_COST)
    if by_warps <= by_blocks:
        return RowSchedule(loops.lanes, WARP, threads // WARP)
    return RowSchedule(loops.lanes, min(threads, ceil(loops.vectors / WARP) * WARP), 1)


# -- shared memory -----------------------------------------------------------------------------------------------------


def shared_places(blocking: Blocking, room: int) -> tuple[SharedPlace, ...]:
    """Return the shared-memory places of values that only the parts need, as far as there is room. Values with disjoint
    live ranges share bytes.

    Stages run in sequence, so that first and last stages determine live ranges. Values read more often, and smaller
    ones, are placed first; those that do not fit stay in global memory.
    """
    lifetimes, nbytes = blocking.lifetimes, {}
    for number in lifetimes:
        nbytes[number] = ceil(blocking.slabs.nbytes(blocking.stored[number]) / PLACE_BYTES) * PLACE_BYTES
    reads = {n: sum(blocking.stored[n] in part.whole.inputs for part in blocking.parts) for n in lifetimes}
    places: dict[int, int] = {}
    for number in sorted(lifetimes, key=lambda n: (-reads[n], nbytes[n], n)):
        at = _first_gap(number, places, lifetimes, nbytes)
        if at + nbytes[number] <= room:
            places[number] = at
    return tuple(SharedPlace(number, places[number]) for number in sorted(places))


def _first_gap(
    number: int, places: Mapping[int, int], lifetimes: Mapping[int, tuple[int, int]], nbytes: Mapping[int, int]
) -> int:
    """Return the lowest place for a value that does not overlap values alive at the same time."""
    first, last = lifetimes[number]
    beside = [n for n in places if lifetimes[n][0] <= last and first <= lifetimes[n][1]]
    at = 0
    for other in sorted(beside, key=places.__getitem__):
        if at + nbytes[number] <= places[other]:
            break
        at = max(at, places[other] + nbytes[other])
    return at


# -- facts -------------------------------------------------------------------------------------------------------------


def facts_of_blocks(blocking: Blocking, schedule: BlockSchedule) -> KernelFacts:
    """Return the facts, as one part whose blocks make the stages' round trips to memory in sequence."""
    shared = {value.name for value in blocking.shared(schedule)}
    works = [_work(part) for part in blocking.parts]
    launch = blocking.launch(schedule)
    largest = max(works, key=lambda work: work.elements)
    tiles = [part.launch.grid[0] for part in blocking.parts]
    barriers = sum(tile * work.barriers for tile, work in zip(tiles, works, strict=True)) + len(works) - 1
    outside = [_outside(work.reads, shared) for work in works]
    return kernel_of(Part(
        "rowwise", largest.dtype, reads=merged(t for reads in outside for t in reads),
        writes=_outside([t for work in works for t in work.writes], shared),
        arithmetic=tuple(a for work in works for a in work.arithmetic), elements=largest.elements,
        tasks=launch.grid[0], threads=launch.threads, registers=max(map(_registers, blocking.parts)),
        shared_bytes=launch.shared_bytes, static_shared_bytes=launch.static_shared_bytes, barriers=barriers,
        steps=max(1, sum(map(_trips, blocking.parts, outside))),
    ))  # fmt: skip


def _work(part: SlabPart) -> Part:
    view = part.whole
    roles = roles_of(view.nodes, view.outputs, view.name)
    assert isinstance(roles, Roles), roles
    reductions = sum(each is Place.REDUCTION for each in roles.parts.values())
    return replace(work_of(view.nodes, view.stored, roles), barriers=reductions)


def _outside(traffic: Sequence[Traffic], shared: set[str]) -> tuple[Traffic, ...]:
    return tuple(t for t in traffic if t.value not in shared)


def _registers(part: SlabPart) -> int:
    assert part.group.schedule is not None
    return registers_of(part.slab, part.group.kind, part.group.schedule)


def _trips(part: SlabPart, reads: Sequence[Traffic]) -> int:
    """Return the sequential round trips of a block to global memory for a part."""
    if not reads:
        return 0
    schedule, tiles = part.group.schedule, part.launch.grid[0]
    if not isinstance(schedule, RowSchedule):
        return tiles
    loops = row_loops(part.slab.nodes, part.roles, part.slab.inputs, part.slab.stored).scheduled(schedule)
    return tiles * (1 if loops.unrolled else loops.steps)
