"""Stream-K GEMMs in Triton, a peer of tied GEMMs: it, too, leaves no multiprocessor idle in the last wave.

Osama et al., "Stream-K: Work-Centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP
2023, section 5.2, the hybrid of two tiles: what whole waves leave over, and one wave more, is cut into equal shares of
steps, so that a tile may be shared; the other tiles have a program each. The kernels are our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Tile:
    """What a program computes at a time, and how: elements, warps, and pieces on their way."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


TILES = (
    Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 4, 4), Tile(64, 256, 64, 4, 4), Tile(64, 128, 64, 4, 4),
    Tile(16, 128, 128, 4, 5), Tile(16, 64, 256, 4, 4),
)  # fmt: skip
"""The fastest of these is taken, by measurement."""
TOGETHER = 8
"""Rows of tiles, of which a column is computed after the other: what they read stays in the L2 cache."""


def streamed_tiles(tiles: int, programs: int) -> int:
    """How many of the tiles are cut into shares: none where all waves are full, otherwise the last wave and the one
    before it.
    """
    rest = tiles % programs
    return min(tiles, rest + programs) if rest else 0


@cache
def multiprocessors(device: torch.device) -> int:
    """How many programs there are: all of them are resident, as waiting for one another asks."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _workspace(device: torch.device, programs: int, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tile and a flag for every program. A flag is 0 again when its tile has been taken."""
    import torch

    sums = torch.empty(programs * elements, dtype=torch.float32, device=device)
    return sums, torch.zeros(programs, dtype=torch.int32, device=device)


def gemm(x: torch.Tensor, w: torch.Tensor, tile: Tile, *, gelu: bool = False, programs: int = 0) -> torch.Tensor:
    """`x` [tokens, width] times `w` [width, columns], and GELU (its tanh form) of that. programs: at a time; 0 for
    as many as there are multiprocessors.
    """
    import torch

    from benchmarks.device import stream_k_kernels

    (tokens, width), columns = x.shape, w.shape[1]
    programs = programs or multiprocessors(x.device)
    y = torch.empty(tokens, columns, dtype=x.dtype, device=x.device)
    partial, flags = _workspace(x.device, programs, tile.rows * tile.columns)
    streamed = streamed_tiles(-(-tokens // tile.rows) * -(-columns // tile.columns), programs)
    stream_k_kernels.gemm[(programs,)](
        x, w, y, partial, flags, tokens, width, columns, streamed, tile.rows, tile.columns, tile.depth, gelu, TOGETHER,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y


def gated(both: torch.Tensor) -> torch.Tensor:
    """SiLU of the left half of the columns, times the right half."""
    import torch

    from benchmarks.device import stream_k_kernels

    tokens, hidden = both.shape[0], both.shape[1] // 2
    y = torch.empty(tokens, hidden, dtype=both.dtype, device=both.device)
    size = 1024
    stream_k_kernels.gate[(-(-y.numel() // size),)](both, y, hidden, y.numel(), size)
    return y
