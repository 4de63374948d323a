"""The tile order of a GEMM where others wait for rows of tiles.

With fewer rows of tiles together, a row is complete sooner, but the right operand is read from memory once per group of
rows. So there are as few as memory can feed in a fraction of the GEMM's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.devices import Device
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.partition import partitioned
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.plan.view import look_up

MOST_SHARE = 0.5
"""Most of a GEMM's time that loading its operands from memory may take."""
ROWS = (1, 2, 4)


def rows_sooner(nodes: Mapping[str, Node], part: Group, device: Device, latency_us: float) -> Group:
    """Return the part with as few rows of tiles together as that allows; unchanged if it is no GEMM of many rows.
    latency_us: its predicted time.
    """
    schedule = part.schedule
    if not isinstance(schedule, GemmSchedule) or schedule.tile_rows == 1:
        return part
    gemm = gemm_of(AnchoredGroup.of(look_up(nodes, part)))
    assert gemm is not None, "a schedule of tiles is of a GEMM"
    _, partition = partitioned(gemm, schedule)
    cluster = schedule.tile.cluster if isinstance(schedule.tile, WgmmaTile) else 1
    blocks = ceil(partition.m_blocks / cluster)
    left, right = (operand.value.tensor_type.nbytes for operand in (gemm.a, gemm.b))
    for rows in (r for r in ROWS if r < min(schedule.tile_rows, blocks)):
        times = ceil(blocks / rows) if right > device.l2_bytes // 2 else 1
        if (left + times * right) / device.dram_bytes_per_second * 1e6 <= MOST_SHARE * latency_us:
            return replace(part, schedule=replace(schedule, tile_rows=rows))
    return part
