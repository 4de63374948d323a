"""Facts about a scheduled group on a GPU: its launches as in the plan, and the work of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from tilestitch.compiler.ir import Kind, Node, kind_of
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Part, Traffic, kernel_of
from tilestitch.passes.plan.attention.operands import attention_of
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.group import Group, GroupKind
from tilestitch.passes.plan.launches.cuda.group import cuda_launches
from tilestitch.passes.plan.launches.launch import Launch
from tilestitch.passes.plan.registers import registers_of
from tilestitch.passes.plan.roles import Part as Place
from tilestitch.passes.plan.roles import Roles
from tilestitch.passes.plan.schedules import AttentionSchedule, GemmSchedule, OpenGemmSchedule, Schedule
from tilestitch.passes.plan.view import GroupView, levels, look_up
from tilestitch.passes.schedule.evaluations import evaluations
from tilestitch.passes.schedule.work import before, read_again, sides_of, work_of

from .attention_facts import kept_bytes, multiplied, trips, useful_rows
from .gemm_facts import Tiling, from_l2, partial_bytes, tiling_of

CHECK = "check"
"""Launches of this kind check indices before the kernel that uses them."""


def gpu_facts(nodes: Mapping[str, Node], group: Group, roles: Roles, multiprocessors: int) -> KernelFacts:
    """Return the facts of a scheduled single-part group; `nodes` are the graph's nodes by name."""
    launches, view = cuda_launches(nodes, group, multiprocessors), look_up(nodes, group)
    work = work_of(view.nodes, view.outputs, roles)
    if roles.kind is GroupKind.CONTRACTION:
        work = replace(work, arithmetic=(*work.arithmetic, *_staged(view, roles, work.dtype)))
    if not launches or group.schedule is None:
        return kernel_of(work)
    tiles = _tiles(AnchoredGroup.of(view, roles), group) if roles.anchor is not None else None
    if tiles is not None:
        assert roles.anchor is not None
        operands = roles.anchor.inputs[:2] if roles.softmax is None else (roles.softmax.key, roles.anchor.inputs[1])
        work = _tiled(work, tiles, sides_of(view.nodes, operands))
    reductions = sum(part is Place.REDUCTION for part in roles.parts.values())
    work = replace(work, registers=registers_of(view, group.kind, group.schedule), barriers=reductions)
    main = next(i for i, launch in enumerate(launches) if launch.kind != CHECK)
    kept = _kept_bytes(view, roles, group.schedule)
    traffic = _by_launch(work, group.name, launches, main, kept)
    parts = []
    for number, (launch, (reads, writes)) in enumerate(zip(launches, traffic, strict=True)):
        reads = tuple(from_l2(t, launch.blocks) for t in reads)
        own = work if number == main else Part(work.kind, work.dtype, registers=work.registers)
        parts.append(replace(
            own, reads=reads, writes=writes, tasks=launch.blocks, threads=launch.threads,
            shared_bytes=launch.shared_bytes, static_shared_bytes=launch.static_shared_bytes,
            grid_barriers=max(levels(view.nodes, roles).values()) if launch.cooperative else 0,
        ))  # fmt: skip
    return kernel_of(*parts)


def _staged(view: GroupView, roles: Roles, dtype: str) -> Iterator[Arithmetic]:
    """Yield the prologue evaluations of a contraction's operands, if there is more than views."""
    assert roles.anchor is not None
    counts, prologue = evaluations(view.nodes, view.outputs, roles), before(view.nodes, roles.anchor)
    if any(kind_of(node.op) is not Kind.VIEW for node in prologue):
        count = int(sum(counts.get(node.output, 0.0) for node in prologue if node.op != "reshape"))
        yield from (Arithmetic("scalar", dtype, each) for each in (count,) if each)


# -- memory ------------------------------------------------------------------------------------------------------------


def _by_launch(
    work: Part, name: str, launches: Sequence[Launch], main: int, kept_bytes: int | None
) -> Iterator[tuple[tuple[Traffic, ...], tuple[Traffic, ...]]]:
    """Yield what each launch reads and writes: results in the last one that mentions them, everything else in the
    first. kept_bytes: those of temporaries that are used, where that depends on sizes.
    """
    first = {value: i for i in range(len(launches) - 1, main - 1, -1) for value in launches[i].reads}
    last = {value: i for i, launch in enumerate(launches) for value in launch.writes}
    for number, launch in enumerate(launches):
        checked = launch.reads if launch.kind == CHECK else ()
        reads = [t for t in work.reads if first.get(t.value, main) == number or t.value in checked]
        writes = [t for t in work.writes if last.get(t.value, main) == number]
        for temporary in launch.temporaries:
            nbytes = temporary.nbytes if kept_bytes is None else kept_bytes
            traffic = Traffic(f"{name}.{temporary.name}", nbytes, nbytes, "temporary")
            holders = [i for i, each in enumerate(launches) if temporary in each.temporaries]
            if number == holders[0]:
                writes.append(traffic)
            if number != holders[0] or len(holders) == 1:
                reads.append(traffic)
        yield tuple(reads), tuple(writes)


def _tiled(work: Part, tiles: Tiling, sides: Mapping[str, int]) -> Part:
    def done(a: Arithmetic) -> Arithmetic:
        if a.unit == "fma":
            return replace(a, unit=tiles.unit, dtype=tiles.dtype, share=tiles.share)
        return replace(a, share=tiles.calls_share) if a.unit == "special" else a

    arithmetic = (*map(done, work.arithmetic), *tiles.widening)
    return replace(
        work, reads=read_again(work.reads, sides, tiles.again), arithmetic=arithmetic, steps=tiles.steps,
        ahead=tiles.ahead, tail=tiles.tail,
    )  # fmt: skip


def _kept_bytes(view: GroupView, roles: Roles, schedule: Schedule) -> int | None:
    """Return the bytes of sums that launches keep, where that depends on sizes, else None."""
    if isinstance(schedule, AttentionSchedule):
        return kept_bytes(attention_of(AnchoredGroup.of(view, roles)), schedule)
    if isinstance(schedule, OpenGemmSchedule):
        gemm = gemm_of(AnchoredGroup.of(view, roles))
        assert gemm is not None
        return partial_bytes(gemm, schedule)
    return None


# -- tiles -------------------------------------------------------------------------------------------------------------


def _tiles(group: AnchoredGroup, scheduled: Group) -> Tiling | None:
    match scheduled.schedule:
        case GemmSchedule():
            gemm = gemm_of(group)
            assert gemm is not None
            return tiling_of(gemm, scheduled.schedule)
        case AttentionSchedule():
            return _attention_tiles(group, scheduled.schedule)
    return None


def _attention_tiles(group: AnchoredGroup, schedule: AttentionSchedule) -> Tiling:
    what = attention_of(group)
    tiles, work = ceil(what.rows / schedule.tile.bm), multiplied(what, schedule.tile, 0)
    steps, ahead = trips(what, schedule)
    again = float(tiles), float(tiles)
    return Tiling(
        work.unit, work.dtype, work.share, steps, ahead, again, calls_share=useful_rows(what, schedule.tile)
    )  # fmt: skip
