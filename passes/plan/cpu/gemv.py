"""A matrix that is known at run time only, times a vector, on a CPU, as scheduled: every element is read once."""

from collections.abc import Iterator
from dataclasses import dataclass

from tilestitch.compiler.ir.sizes import bounds_of, ceil_div, is_open, largest
from tilestitch.compiler.ir.types import storage_bytes

from .limits import LONGEST_SUM, tile_reasons
from .schedules import CpuGemvSchedule
from .tiling import align


@dataclass(frozen=True)
class GemvShape:
    """`batch` matrices [rows, k] times vectors [k]; along_k: the matrix lies along k."""

    rows: int
    k: int
    batch: int
    along_k: bool
    matrix_dtype: str = "float32"
    vector_dtype: str = "float32"
    acc_dtype: str = "float32"


@dataclass(frozen=True)
class GemvPlan:
    """A matrix times a vector and its schedule, and what follows from both."""

    shape: GemvShape
    schedule: CpuGemvSchedule

    @property
    def block(self) -> int:
        """Most results per task."""
        most = self.schedule.block
        return most if is_open(self.shape.rows) else min(self.shape.rows, most)

    @property
    def blocks(self) -> int:
        return ceil_div(self.shape.rows, self.block)

    @property
    def tasks(self) -> int:
        return self.shape.batch * self.blocks

    @property
    def vector_bytes(self) -> int:
        return align(largest(1, self.shape.k) * storage_bytes(self.shape.acc_dtype))

    @property
    def sums_bytes(self) -> int:
        return align(self.block * storage_bytes(self.shape.acc_dtype))

    @property
    def part(self) -> int | None:
        """Steps of the reduction (whole vectors, or streams of them) after which partial sums of floats are added up;
        None: all of them, for every size.
        """
        most = LONGEST_SUM * (self.schedule.lanes if self.shape.along_k else 1)
        exact = "int" in self.shape.acc_dtype
        return None if exact or bounds_of(self.shape.k)[1] <= most else most

    @property
    def scratch_bytes(self) -> int:
        totals = self.sums_bytes if self.part is not None and not self.shape.along_k else 0
        return self.vector_bytes + self.sums_bytes + totals

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel computes it as scheduled."""
        yield from tile_reasons(self.schedule.streams, 1, self.schedule.lanes)
        if not self.schedule.block:
            yield "a task has 0 results; it has at least one"
