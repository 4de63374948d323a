"""A synchronisation policy of one's own: a semaphore for each half of a row of tiles.

compile_model("mlp.onnx", target="cuda:sm_80", sync=HalfRows())

What tiles wait for follows from the analysis of the kernels. A policy that makes them wait for too little is refused,
naming the tile that would race; see docs/tile_sync.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilestitch.passes.plan.sync.edges import Grouping
from tilestitch.passes.plan.sync.grid import Grid
from tilestitch.passes.sync.dependence import Needs


@dataclass(frozen=True)
class HalfRows:
    """Of GEMMs, whose blocks are numbered over parts of the reduction, batch, rows and columns of tiles."""

    name: ClassVar[str] = "half_rows"

    def semaphores(self, producer: Grid, needs: Needs) -> tuple[Grouping, ...] | None:
        if not producer.tile_rows:
            return None
        parts, batch, rows, columns = producer.dims
        return Grouping(parts, parts), Grouping(batch), Grouping(rows), Grouping(columns, -(-columns // 2))
