"""Layouts of constant right operands of contractions on CPUs: panels [k, columns], one after the other."""

from dataclasses import dataclass, field
from typing import Any

from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.sizes import largest
from tilestitch.compiler.ir.types import compute_dtype, storage_bytes

from .tiling import align


@dataclass(frozen=True)
class Packing:
    """How a constant right operand [groups, k, n] is stored: [groups, panels, k, columns], padded with zeros."""

    groups: int
    k: int
    n: int
    columns: int
    dtype: str

    @property
    def neighbours(self) -> int:
        """Steps of the reduction whose elements of a column are contiguous."""
        return 1

    @property
    def panels(self) -> int:
        return -(-self.n // self.columns)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.groups, self.panels, -(-self.k // self.neighbours), self.columns * self.neighbours)

    def place(self, row: Any, column: Any) -> Any:
        """Return where an element of the first group lies, as a number or expression."""
        steps, together = self.shape[2], self.neighbours
        step = (column // self.columns * steps + row // together) * self.columns + column % self.columns
        return step if together == 1 else step * together + row % together

    @property
    def panel_bytes(self) -> int:
        """Workspace of one panel, in the compute dtype."""
        return align(largest(1, self.k) * self.columns * storage_bytes(compute_dtype(self.dtype)))


@dataclass(frozen=True)
class DotPacking(Packing):
    """Packing for an instruction that multiplies `group` steps at once: [groups, panels, steps, columns * group]."""

    group: int = 4
    whole: int = 1
    """The number of steps is padded to a multiple of this."""

    @property
    def neighbours(self) -> int:
        return self.group

    @property
    def shape(self) -> tuple[int, int, int, int]:
        groups, panels, steps, columns = super().shape
        return (groups, panels, -(-steps // self.whole) * self.whole, columns)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel as stored: an instruction reads it in that form."""
        _, _, steps, columns = self.shape
        return align(largest(1, steps) * columns * storage_bytes(self.dtype))


@dataclass(frozen=True)
class BlockPacking(Packing):
    """Blockwise-quantised weights [groups, n, blocks, bytes] as panels of bytes: words [steps, columns] of adjacent
    codes, scales [blocks, columns], and zero points [blocks, columns], two vectors of `lanes` 4-bit ones in one of
    bytes.
    """

    form: BlockFormat = field(kw_only=True)
    lanes: int = field(kw_only=True)
    halved: bool = field(default=False, kw_only=True)
    """Whether the low nibbles of a word's bytes are its first codes and the high ones its last, in order."""

    @property
    def scales_at(self) -> int:
        """Offset of the scales in a panel."""
        return self.form.blocks * self.form.code_bytes * self.columns

    @property
    def zeros_at(self) -> int:
        return self.scales_at + self.form.blocks * self.form.scale_bytes * self.columns

    @property
    def zeros_bytes(self) -> int:
        """Bytes of the zero points of a block, over all columns."""
        if not self.form.zeros:
            return 0
        vectors = self.columns // self.lanes
        return self.lanes * (vectors if self.form.bits == 8 else -(-vectors // 2))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.groups, self.panels, 1, align(self.zeros_at + self.form.blocks * self.zeros_bytes))

    @property
    def panel_bytes(self) -> int:
        return self.form.blocks * self.form.block * self.columns * storage_bytes("float32")
