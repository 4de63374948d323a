"""Launches of attention: one, or two where the keys are split, of which the second combines the parts."""

from dataclasses import replace

from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.attention.operands import AttentionShape, attention_of, lanes_of_sums, result_lanes
from tilestitch.passes.plan.attention.pieces import pieces_of, stage_bytes
from tilestitch.passes.plan.attention.tiles import AttentionMmaTile
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES, Emitted
from tilestitch.passes.plan.own_kernels import Temporary
from tilestitch.passes.plan.schedules import AttentionSchedule, OpenAttentionSchedule

JOIN_THREADS = 128


def attention(group: AnchoredGroup, schedule: AttentionSchedule) -> tuple[Emitted, ...]:
    """Return the launch of blocks of queries, and the combining launch if there is one."""
    what, tile = attention_of(group), schedule.tile
    if isinstance(tile, AttentionMmaTile):
        shared_bytes = stage_bytes(tile, pieces_of(what.query, what.key, what.value, tile))
    else:
        shared_bytes = tile.shared_bytes
    parts = what.parts(schedule)
    blocks = what.tiles(schedule) * parts
    everything = (*group.inputs, *group.outputs)
    if isinstance(schedule, OpenAttentionSchedule) and schedule.kept_rows:
        kept = _sums(what, schedule.kept_rows)
        launch = Emitted.of(tile.template, blocks, tile.threads, (*everything, kept), part=True)
        counter_bytes = COUNTER_BYTES * (schedule.kept_rows // tile.bm)
        return (replace(launch, shared_bytes=shared_bytes, counter_bytes=counter_bytes),)
    if parts == 1:
        launch = Emitted.of(tile.template, blocks, tile.threads, everything, part=True)
        return (replace(launch, shared_bytes=shared_bytes),)
    sums = _sums(what, parts * what.batch * what.rows)
    first = Emitted.of(tile.template, blocks, tile.threads, (*group.read_before(), sums), part=True)
    lanes = min(result_lanes(group, what), lanes_of_sums(what))
    results = what.batch * what.rows * what.columns
    join = Emitted.of("join", ceil_div(results, lanes * JOIN_THREADS), JOIN_THREADS, (*everything, sums), part=True)
    return replace(first, shared_bytes=shared_bytes), join


def _sums(what: AttentionShape, rows: int) -> Temporary:
    """Return the temporary for the sums, the maximum score and the sum of exponentials of so many rows."""
    return Temporary("sums", rows * (what.columns + 2) * storage_bytes(what.acc_dtype))
