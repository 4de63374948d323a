"""The work of attention tiles on a GPU, as numbers for the latency models."""

from dataclasses import replace
from math import ceil

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Part, Traffic, kernel_of
from tilestitch.passes.plan.attention.operands import AttentionShape
from tilestitch.passes.plan.attention.tiles import ACROSS, STAGES, AttentionMmaTile, AttentionSimtTile
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.group import GroupKind
from tilestitch.passes.plan.launches.cuda.attention import attention
from tilestitch.passes.plan.launches.cuda.emitted import Emitted
from tilestitch.passes.plan.own_kernels import Temporary
from tilestitch.passes.plan.registers import registers_of
from tilestitch.passes.plan.schedules import AttentionSchedule, OpenAttentionSchedule
from tilestitch.passes.plan.view import GroupView


def multiplied(what: AttentionShape, tile: AttentionMmaTile | AttentionSimtTile, operations: int) -> Arithmetic:
    """Return the multiply-adds of both contractions; padding rows of tiles are multiplied in vain."""
    useful = useful_rows(what, tile)
    if isinstance(tile, AttentionMmaTile):
        return Arithmetic("mma", "tfloat32" if what.query.dtype == "float32" else what.query.dtype, operations, useful)
    return Arithmetic("fma", what.query.dtype, operations, useful * _fed(tile))


def useful_rows(what: AttentionShape, tile: AttentionMmaTile | AttentionSimtTile) -> float:
    """Return the fraction of the rows of tiles that are queries."""
    return what.rows / (ceil(what.rows / tile.bm) * tile.bm)


def _fed(tile: AttentionSimtTile) -> float:
    """Return the fraction of the ordinary units' rate at which shared memory can feed them.

    For four steps of the width, a warp takes 2 cycles of shared memory per key of its threads (16 keys of 16 bytes, at
    128 bytes per cycle), and one per row; multiply-adds take one per pair of key and row.
    """
    keys = tile.bn // ACROSS
    return min(1.0, tile.rows * keys / (2 * keys + tile.rows))


def trips(what: AttentionShape, schedule: AttentionSchedule) -> tuple[int, int]:
    """Return the number of key tiles that a block loads in sequence, and how many are in flight at a time."""
    return ceil(ceil(what.keys / schedule.tile.bn) / what.parts(schedule)), STAGES


def kept_bytes(what: AttentionShape, schedule: AttentionSchedule) -> int | None:
    """Return the bytes of sums that a kernel keeps which splits keys at run time; None for other kernels."""
    if not (isinstance(schedule, OpenAttentionSchedule) and schedule.kept_rows):
        return None
    parts = what.parts(schedule)
    rows = parts * what.batch * what.rows if parts > 1 else 0
    return rows * (what.columns + 2) * storage_bytes(what.acc_dtype)


def candidate_facts(
    view: GroupView, group: AnchoredGroup, what: AttentionShape, schedule: AttentionSchedule
) -> KernelFacts:
    """Return the facts of attention without fused work, which is the same for all schedules."""
    first, *joining = attention(group, schedule)
    tiles, scores = ceil(what.rows / schedule.tile.bm), what.batch * what.rows * what.keys
    query, key, value = (source.value for source in what.sources)
    exchanged = [_traffic(t, 1) for launch in joining for t in launch.arguments if isinstance(t, Temporary)]
    result = [_traffic(what.result, 1)]
    steps, ahead = trips(what, schedule)
    dtype, registers = what.query.dtype, registers_of(view, GroupKind.ATTENTION, schedule)
    work = Part(
        GroupKind.ATTENTION.value,
        dtype,
        reads=(_traffic(query, 1), _traffic(key, tiles), _traffic(value, tiles)),
        writes=tuple(exchanged or result),
        arithmetic=(
            multiplied(what, schedule.tile, scores * (what.width + what.columns)),
            Arithmetic("special", dtype, scores, useful_rows(what, schedule.tile)),
        ),
        registers=registers,
        steps=steps,
        ahead=ahead,
    )
    parts = [_launched(work, first)]
    join = Part(work.kind, dtype, tuple(exchanged), tuple(result), registers=registers)
    parts += (_launched(join, launch) for launch in joining)
    return kernel_of(*parts)


def _launched(work: Part, launch: Emitted) -> Part:
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    return replace(
        work, tasks=blocks, threads=launch.threads, shared_bytes=launch.shared_bytes,
        static_shared_bytes=launch.static_shared_bytes,
    )  # fmt: skip


def _traffic(what: Value | Temporary, times: int) -> Traffic:
    nbytes = what.nbytes if isinstance(what, Temporary) else what.tensor_type.nbytes
    return Traffic(what.name, times * nbytes, nbytes)
