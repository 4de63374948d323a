"""What every contraction is to its kernels: ``result[b, m, n] = sum over k of a(b, m, k) * b(b, n, k)``.

Matmuls and convolutions differ only in where an operand has the element (batch, row, k), and where the result
(batch, m, n) goes. Both operands are described alike, row by reduction index, so that they can change places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.indexing import unravel
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.strided import Strided
from tilestitch.passes.plan.gemm.codes import Codes
from tilestitch.passes.plan.gemm.units import Units


@dataclass(frozen=True)
class Plane:
    """Matrices that lie evenly spaced: element (batch, row, k) is at ``offset + row * row_stride + k * k_stride`` and
    what the batch adds. All counts are of elements.

    batch: extent and stride of each dimension that the number of the batch unravels to, the slowest first. taps: extent
    and stride of one more, for each of which k begins anew.
    """

    offset: int
    rows: int
    row_stride: int
    k: int
    k_stride: int
    batch: tuple[tuple[int, int], ...]
    taps: tuple[int, int] = (1, 0)


@dataclass(frozen=True)
class Pictures:
    """Channels-last images that a convolution reads: rows are output pixels, k is (kernel position, channel).

    Output pixel o and kernel position t meet input pixel ``o * stride + t * dilation - before``. channels: of a group.
    patch: extents of the patches of (images, output pixels) that rows are cut into, if they are: number after number of
    a patch, patch after patch.
    """

    images: int
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    channels: int
    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    patch: tuple[int, ...] = ()

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    @property
    def extents(self) -> tuple[int, ...]:
        """Of images and output pixels."""
        return (self.images, *self.output)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many patches there are along each."""
        return tuple(-(-extent // size) for extent, size in zip(self.extents, self.patch, strict=True))

    def corner(self, row: Any) -> tuple[Any, ...]:
        """Image and output pixel where the patch that a row belongs to begins."""
        numbers = unravel(row // prod(self.patch), self.counts)
        return tuple(number * size for number, size in zip(numbers, self.patch, strict=True))

    def pixel(self, row: Any) -> tuple[Any, ...]:
        """Image and output pixel of a row; it may lie outside."""
        within = unravel(row % prod(self.patch), self.patch)
        return tuple(first + own for first, own in zip(self.corner(row), within, strict=True))


@dataclass(frozen=True)
class OperandLayout:
    """One operand: how its rows and k lie in memory.

    contiguous: which of "row" and "k" runs along memory. run: so many elements along it, from a multiple of `run` on,
    lie together in memory and are all inside or all outside. memory: how the tensor lies in an input of the group; None
    for what a prologue computes, which is never read in vectors. plane: the same if it is evenly spaced; pictures: if
    it is images that a convolution reads. codes: of weights in blocks, which are made floats as they are read.
    """

    value: Value
    rows: int
    contiguous: str
    run: int
    memory: Strided | None
    plane: Plane | None = None
    pictures: Pictures | None = None
    codes: Codes | None = None

    @property
    def dtype(self) -> str:
        """Of its elements where they are multiplied."""
        return self.value.dtype if self.codes is None else self.codes.to

    @property
    def elements(self) -> int:
        """Of the whole tensor."""
        if self.codes is not None:
            return self.codes.columns * self.codes.form.depth
        return self.value.tensor_type.num_elements

    def vector(self, most_bytes: int = 16) -> int:
        """Return the elements that one load may read: a power of two."""
        width = 1
        while (
            self.memory is not None
            and self.run % (2 * width) == 0
            and 2 * width * storage_bytes(self.dtype) <= most_bytes
        ):
            width *= 2
        return width


AnyGemm = TypeVar("AnyGemm", bound="Gemm")


@dataclass(frozen=True)
class Gemm:
    """`batch` GEMMs with the operands a [m, k] and b [n, k].

    The sum is kept in acc_dtype: float32 for half floats, int32 for small integers. tf32: float32 operands may be
    rounded to TF32 (10 bits of mantissa). gated: how the n columns are ordered where they are gates.
    """

    batch: int
    m: int
    n: int
    k: int
    a: OperandLayout
    b: OperandLayout
    acc_dtype: str
    tf32: bool = False
    gated: Units | None = None

    @property
    def units(self) -> Units:
        """What the epilogue is run for."""
        return self.gated or Units.plain(self.n)

    @property
    def elements(self) -> int:
        return self.batch * self.m * self.n

    def swapped(self: AnyGemm) -> AnyGemm:
        """Return the same GEMM with the operands in each other's place."""
        return replace(self, m=self.n, n=self.m, a=self.b, b=self.a)
