"""Row-wise work after a GEMM in the same launch, as numbers for the latency models."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil, prod

from tilestitch.compiler.ir import Node, Value, op_spec
from tilestitch.cost_model.counts import operations
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Part, Tail, Traffic, kernel_of
from tilestitch.cost_model.joined import banded_facts
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.access.row_loops import REGISTER_ELEMENTS, RowLoops
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.partition import partitioned
from tilestitch.passes.plan.gemm.rows_after import WARP_ROWS, Band, RowsAfter
from tilestitch.passes.plan.gemm.tiles import WARP, GemvTile, Tile, WgmmaTile
from tilestitch.passes.plan.parts import Part as Place
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import BandSchedule, GemmSchedule, RowSchedule
from tilestitch.passes.plan.view import look_up

from .gemm_facts import RESULT


def writer_threads(tile: Tile) -> int:
    """Return the threads that jointly store and process rows of a band: a block, or a warp for wgmma."""
    return WARP if isinstance(tile, WgmmaTile) else tile.threads


def band_of(gemm: Gemm, schedule: GemmSchedule, after: RowsAfter) -> Band:
    """Return the band of rows that a block, or a warp of wgmma, stores of a tile."""
    tile, (_, partition) = schedule.tile, partitioned(gemm, schedule)
    assert not isinstance(tile, GemvTile), "blocks of gemv have no bands of rows"
    if isinstance(tile, WgmmaTile):
        return after.band(WARP_ROWS * tile.rows, partition.n_blocks, WARP, warps=True)
    return after.band(min(tile.bm, gemm.m), partition.n_blocks, tile.threads)


def tail_of(rows: int, rows_each: int, share_rows: int, work: RowLoops, second: Part) -> Tail:
    """Return the tail that the last share of a band is: `share_rows` of the GEMM's `rows`, each with `rows_each` rows
    of the following work. Teams process them iteration by iteration, and rows that exceed the registers piece by piece.
    second: the work as a separate kernel.
    """
    share = min(share_rows, rows)
    pieces = ceil(work.steps * work.lanes / REGISTER_ELEMENTS)
    moved = sum(_of_share(t, share, rows) for t in (*second.reads, *second.writes))
    return Tail(ceil(share * rows_each / work.rows) * pieces, moved, ceil(rows / share), second.barriers)


def _of_share(traffic: Traffic, share: int, rows: int) -> int:
    """Return the bytes of a tensor that a share of the rows moves; all bytes of what every row reads."""
    if traffic.bytes_requested > traffic.footprint_bytes:
        return traffic.footprint_bytes
    return traffic.footprint_bytes * share // rows


def banded_candidate(gemm: Gemm, schedule: GemmSchedule, alone: KernelFacts, after: RowsAfter) -> KernelFacts:
    """Return the facts of a GEMM (`alone` without the rows) and the rows after it."""
    work = after.work(writer_threads(schedule.tile))
    reductions = sum(part is Place.REDUCTION for part in after.roles.parts.values())
    rows, made = gemm.batch * gemm.m, {value.name for value in after.made}
    second = Part(
        GroupKind.ROWWISE.value,
        gemm.acc_dtype,
        reads=tuple(replace(t, value=RESULT) if t.value in made else t for t in _traffic(after.inputs, work)),
        writes=tuple(_traffic(after.outputs, work)),
        arithmetic=tuple(_arithmetic(after.nodes, gemm.acc_dtype)),
        tasks=ceil(work.row_count / work.rows),
        threads=work.team * work.rows,
        barriers=reductions,
    )
    tail = tail_of(rows, after.rows_each, band_of(gemm, schedule, after).share_rows, work, second)
    return banded_facts(alone, kernel_of(second), tail)


def _arithmetic(nodes: Iterable[Node], dtype: str) -> Iterable[Arithmetic]:
    """Yield the arithmetic: rows are kept, so that every value is computed once."""
    calls = cheap = 0
    for node in nodes:
        if op_spec(node.op).expensive:
            calls += node.output.tensor_type.num_elements
        else:
            cheap += operations(node)
    return (Arithmetic("alu", dtype, cheap), Arithmetic("special", dtype, calls))


def _traffic(values: Iterable[Value], work: RowLoops) -> Iterable[Traffic]:
    """Yield the traffic: values of whole rows are moved once; smaller ones are read by every row."""
    full = work.row_count * prod(work.line_extents)
    for value in values:
        nbytes, elements = value.tensor_type.nbytes, value.tensor_type.num_elements
        again = 1 if elements >= full else work.row_count
        yield Traffic(value.name, again * nbytes, nbytes, "weight" if value.is_constant else "activation")


# -- a band as planned -------------------------------------------------------------------------------------------------


def facts_of_band(nodes: Mapping[str, Node], group: Group, facts: tuple[KernelFacts, KernelFacts]) -> KernelFacts:
    """Return the facts of a scheduled GEMM with rows after it in one launch; `facts` are those of the two
    separately.
    """
    gemm, after = group.parts
    assert isinstance(group.schedule, BandSchedule) and isinstance(after.schedule, RowSchedule)
    rows, columns, length = band_extents(nodes, gemm, after)
    work = RowsAfter.of(look_up(nodes, after), columns).walk.scheduled(after.schedule)
    tail = tail_of(rows, columns // length, group.schedule.share_rows, work, facts[1].parts[-1])
    return banded_facts(*facts, tail)


def band_extents(nodes: Mapping[str, Node], gemm: Group, after: Group) -> tuple[int, int, int]:
    """Return the rows and columns of a GEMM, and the row length of the work after it. Both must be legal."""
    assert gemm.anchor is not None
    result, view = nodes[gemm.anchor].output, look_up(nodes, after)
    rows = roles_of(view.nodes, view.outputs, after.name)
    assert isinstance(rows, Roles) and rows.rows is not None, rows
    columns = result.shape[-1]
    return result.tensor_type.num_elements // columns, columns, rows.rows.length
