"""Schedules of kernels for CPUs: register tiles, vectors, and what of the work one task has.

Sizes of tiles and tasks are the most that they have: extents are cut as evenly as these allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class CpuGemmSchedule:
    """A GEMM in register tiles of `rows` rows by a panel of columns: `vectors` vectors of `lanes`.

    A task computes `block_tiles` tiles of rows by `block_panels` panels. k_block: steps of the reduction, after which
    sums wait in the workspace for the next ones; all of them: nothing waits. stage_left: the task first copies its rows
    of the left operand into the workspace, converted and with their prologue. widen_right: it converts each packed
    panel of half floats once, for all its tiles. spill: results go through the workspace before the epilogue.
    rows_outer: the task walks tile after tile, through all panels; else panel after panel, each through all tiles.
    prefetch_next: tiles ask for the next panel; prefetch_ahead: each step of the reduction asks for later ones.
    """

    template: ClassVar[str] = "cpu_gemm"
    rows: int
    vectors: int
    lanes: int
    block_tiles: int
    block_panels: int
    k_block: int
    stage_left: bool = False
    widen_right: bool = False
    spill: bool = False
    rows_outer: bool = False
    prefetch_next: bool = False
    prefetch_ahead: bool = False


@dataclass(frozen=True)
class CpuGemvSchedule:
    """A matrix that is known at run time only, times a vector: it is read once, as it lies, in vectors of `lanes`.

    A task computes `block` results. streams: rows, or columns, of the matrix that are read at the same time.
    """

    template: ClassVar[str] = "cpu_gemv"
    block: int
    lanes: int
    streams: int = 8


@dataclass(frozen=True)
class CpuConvSchedule:
    """A convolution in register tiles of `rows` x `columns` output pixels by a panel of output channels: `vectors`
    vectors of `lanes`.

    A task computes all columns of `block_tiles` tiles of rows, by `block_panels` panels. stage: it first copies the
    input rows that it needs, with zeros for padding; else taps that meet padding are left out, by code of their own at
    the borders. The others are as in `CpuGemmSchedule`.
    """

    template: ClassVar[str] = "cpu_conv"
    rows: int
    columns: int
    vectors: int
    lanes: int
    block_tiles: int
    block_panels: int
    stage: bool = False
    widen_right: bool = False
    spill: bool = False
    rows_outer: bool = False
    prefetch_next: bool = False


@dataclass(frozen=True)
class CpuConvTransposeSchedule:
    """A transposed convolution: a task computes a row of `block_panels` panels of channels.

    Register tiles are `rows` output columns of one phase by a panel: `vectors` vectors of `lanes`.
    """

    template: ClassVar[str] = "cpu_conv_transpose"
    rows: int
    vectors: int
    lanes: int
    block_panels: int


@dataclass(frozen=True)
class CpuWindowSchedule:
    """Windows over each channel by itself: a task computes `block_rows` output rows of `block_channels` channels.

    form: `columns`: `columns` output columns by `vectors` vectors of `lanes` channels at a time, taps written out;
    `channels`: one column by such vectors, in loops; `across`: vectors run over the output columns of one channel;
    `line`: so, once the rows of a window are folded into a line in the workspace (pooling only).
    """

    template: ClassVar[str] = "cpu_window"
    form: str
    lanes: int
    vectors: int
    columns: int
    block_rows: int
    block_channels: int


@dataclass(frozen=True)
class CpuAttentionSchedule:
    """A task of attention has at most `queries` queries of one head, in blocks of at most `block`.

    scores, weighed: the GEMMs of a block, queries by keys and weights by values; each is computed by one task.
    """

    template: ClassVar[str] = "cpu_attention"
    queries: int
    block: int
    scores: CpuGemmSchedule
    weighed: CpuGemmSchedule
