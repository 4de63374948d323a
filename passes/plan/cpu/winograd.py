"""Winograd's F(2x2, 3x3) on a CPU, as scheduled.

It computes 2 x 2 output pixels from 4 x 4 input pixels with 16 multiplications instead of 36 (Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks", 2016, section 4.1): pixels and filters are transformed, multiplied
element by element, summed over the channels, which is 16 GEMMs over tiles of pixels, and transformed back. Each output
depends on the same pixels as without it, so that NaN stays where it was; an infinity becomes an infinity or NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from tilestitch.compiler.ir.sizes import Size, ceil_div
from tilestitch.compiler.ir.types import storage_bytes

from .conv import ConvPlan
from .images import ConvShape
from .limits import task_reasons, tile_reasons
from .schedules import CpuWinogradSchedule
from .tiling import LINE_BYTES, RegisterTile, align, meet_in_a_set

OUTPUTS, PIXELS = 2, 4
"""Output and input pixels of a tile, along rows and along columns."""
GEMMS = PIXELS * PIXELS
FILTERS = ("float32", "bfloat16")
"""Permitted dtypes of filters: transformed filters may be more than twice as large, which float16 might not hold."""


@dataclass(frozen=True)
class WinogradPlan(ConvPlan):
    """The plan that follows from a shape and a schedule. The workspace of a task holds, one after the other, the input
    pixels of its tiles, channels last and with zeros around; these transformed [GEMMS, tiles, channels]; the results of
    a panel [GEMMS, tiles, columns]; and those of one tile transformed back [OUTPUTS * OUTPUTS, columns].
    """

    schedule: CpuWinogradSchedule

    @staticmethod
    def of(shape: ConvShape, schedule: CpuWinogradSchedule) -> WinogradPlan:  # type: ignore[override]
        return WinogradPlan(shape.in_planes(), shape.rank, schedule)

    @property
    def tile(self) -> RegisterTile:
        return RegisterTile(self.schedule.tiles, self.schedule.vectors, self.schedule.lanes)

    @property
    def steps(self) -> int:
        """Steps of all GEMMs: the panels of their filters are stored one after the other."""
        return GEMMS * self.shape.group_in

    @property
    def parts(self) -> int:
        """Register tiles of a whole task, for an image of fixed size."""
        return -(-self.schedule.block_tiles * self.x.parts // self.schedule.tiles)

    @property
    def block_width(self) -> Size:
        """Tiles of a task, rounded up to whole register tiles."""
        return ceil_div(self.schedule.block_tiles * self.x.parts, self.schedule.tiles) * self.schedule.tiles

    @property
    def staged_shape(self) -> tuple[int, int, int]:
        rows, columns = self.schedule.block_tiles, self.x.parts
        return 1, OUTPUTS * rows + 2, (OUTPUTS * columns + 2) * self.room

    @property
    def pitch(self) -> int:
        """Elements from the channels of one transformed pixel to those of the next tile's: padded by a cache line where
        those of a register tile would share a cache set.
        """
        element = storage_bytes(self.shape.acc_dtype)
        meet = meet_in_a_set(self.tile.rows, self.shape.group_in * element)
        return self.shape.group_in + (LINE_BYTES // element if meet else 0)

    @property
    def transformed(self) -> Size:
        """Elements of a plane of transformed pixels; padded so that planes do not begin in the same cache set."""
        return self.block_width * self.pitch + LINE_BYTES // storage_bytes(self.shape.acc_dtype)

    @property
    def multiplied(self) -> Size:
        """Elements of a plane of results."""
        return self.block_width * self.tile.columns + LINE_BYTES // storage_bytes(self.shape.acc_dtype)

    @property
    def offsets(self) -> tuple[Size, Size, Size, Size]:
        """Byte offsets of the parts of the workspace after the first, and its total size."""
        element = storage_bytes(self.shape.acc_dtype)
        transformed = self.staged_bytes
        multiplied = transformed + align(GEMMS * self.transformed * element)
        results = multiplied + align(GEMMS * self.multiplied * element)
        return transformed, multiplied, results, results + align(OUTPUTS * OUTPUTS * self.tile.columns * element)

    @property
    def scratch_bytes(self) -> Size:
        return self.offsets[-1]

    @property
    def saved(self) -> float:
        """Multiplications of the GEMMs relative to direct convolution; tiles may extend beyond the image."""
        height, width = self.shape.output[-2:]
        return self.y.parts * self.x.parts * GEMMS / max(1, height * width * 9)

    def reasons(self) -> Iterator[str]:
        schedule = self.schedule
        tile = tile_reasons(schedule.tiles, schedule.vectors, schedule.lanes)
        odd = why_not_winograd(self.shape, self.spatial_rank) or next(chain(task_reasons(schedule), tile), None)
        if odd is not None:
            yield odd
            return
        if (schedule.rows, schedule.columns) != (OUTPUTS, OUTPUTS):
            yield f"a tile of Winograd's has 2 x 2 pixels, not {schedule.rows} x {schedule.columns}"
        if not schedule.stage or not schedule.spill:
            yield "pixels are copied before they are transformed, and results transformed in the workspace"
        if schedule.widen_right or schedule.rows_outer:
            yield "GEMMs go panel by panel, of float32, one after the other: nothing is widened"
        yield from self.prefetch_reasons()


def why_not_winograd(shape: ConvShape, spatial_rank: int) -> str | None:
    """Return why Winograd's F(2x2, 3x3) cannot compute a convolution; None if it can."""
    ones = (1, 1)
    if spatial_rank != 2 or (shape.kernel, shape.strides, shape.dilations) != ((3, 3), ones, ones):
        return "Winograd's F(2x2, 3x3) is of 3 x 3 taps in two dimensions, without strides or dilations"
    if not shape.packed or shape.w_dtype not in FILTERS or shape.acc_dtype != "float32":
        return "Winograd's filters are transformed when a model is compiled: constants, of float32 or bfloat16"
    return None
