"""Into how many tiles a GEMM is cut, and its reduction into how many parts."""

from __future__ import annotations

from dataclasses import dataclass

from tilestitch.compiler.ir.sizes import smallest
from tilestitch.passes.plan.gemm.gemm import Gemm


@dataclass(frozen=True)
class Partition:
    """`batch` x `m_blocks` x `n_blocks` tiles, each `parts` times with `steps` steps of the reduction.

    tile_rows: tiles of so many neighbouring rows are computed together, column after column: they share operands in the
    L2 cache.
    """

    batch: int
    m_blocks: int
    n_blocks: int
    parts: int
    steps: int
    tile_rows: int = 1

    @property
    def blocks(self) -> int:
        return self.batch * self.m_blocks * self.n_blocks * self.parts


TILE_ROWS = 8
"""Rows of tiles that the planner has computed together."""


def cut(gemm: Gemm, tile: tuple[int, int, int], parts: int, tile_rows: int = TILE_ROWS) -> Partition:
    """Return the tiles of the extents (m, n, k), with the reduction in at most `parts` parts and at most `tile_rows`
    rows of tiles together.
    """
    steps = -(-gemm.k // tile[2])
    each = -(-steps // parts)
    used = 1 if parts == 1 else -(-steps // each) if each else 1
    m_blocks, n_blocks = -(-gemm.m // tile[0]), -(-gemm.n // tile[1])
    return Partition(gemm.batch, m_blocks, n_blocks, used, each, smallest(tile_rows, m_blocks))
