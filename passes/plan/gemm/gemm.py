"""The form in which kernels see every contraction: ``result[b, m, n] = sum over k of a(b, m, k) * b(b, n, k)``.

Matmuls and convolutions differ only in where an operand has the element (batch, row, k), and where the result (batch,
m, n) goes. Both operands are described alike, row by reduction index, so that they can be swapped.
"""

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
    """Evenly strided matrices: element (batch, row, k) is at ``offset + row * row_stride + k * k_stride`` plus the
    batch's offset. All counts are in elements.

    batch: extent and stride of each dimension of the batch index, outermost first. taps: extent and stride of one more
    dimension, for each index of which k restarts.
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

    Output pixel o and kernel position t meet input pixel ``o * stride + t * dilation - before``. channels: per group.
    patch: extents of the patches of (images, output pixels) that rows are tiled into, if they are; rows are numbered
    patch by patch.
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
        """Extents of images and output pixels."""
        return (self.images, *self.output)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of patches along each dimension."""
        return tuple(-(-extent // size) for extent, size in zip(self.extents, self.patch, strict=True))

    def corner(self, row: Any) -> tuple[Any, ...]:
        """Return the image and output pixel at which a row's patch begins."""
        numbers = unravel(row // prod(self.patch), self.counts)
        return tuple(number * size for number, size in zip(numbers, self.patch, strict=True))

    def pixel(self, row: Any) -> tuple[Any, ...]:
        """Return the image and output pixel of a row; it may lie outside."""
        within = unravel(row % prod(self.patch), self.patch)
        return tuple(first + own for first, own in zip(self.corner(row), within, strict=True))


@dataclass(frozen=True)
class OperandLayout:
    """One operand: how its rows and k lie in memory.

    contiguous: which of "row" and "k" is contiguous in memory. run: the length of aligned runs along it that are
    contiguous and lie entirely inside or outside. memory: the tensor's layout in an input of the group; None for
    results of a prologue, which are never read in vectors. plane: the same if it is evenly strided; pictures: if it is
    the images of a convolution. codes: of blockwise-quantised weights, which are dequantised on reading.
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
        """The dtype in which its elements are multiplied."""
        return self.value.dtype if self.codes is None else self.codes.to

    @property
    def elements(self) -> int:
        """Elements of the whole tensor."""
        if self.codes is not None:
            return self.codes.matrices * self.codes.columns * self.codes.form.depth
        return self.value.tensor_type.num_elements

    def vector(self, most_bytes: int = 16) -> int:
        """Return the most elements that one load may read, a power of two."""
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
    rounded to TF32 (10 bits of mantissa). gated: the order of the n columns where they are gates.
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
        """The units that the epilogue is run for."""
        return self.gated or Units.plain(self.n)

    @property
    def elements(self) -> int:
        return self.batch * self.m * self.n

    def swapped(self: AnyGemm) -> AnyGemm:
        """Return the same GEMM with the operands swapped."""
        return replace(self, m=self.n, n=self.m, a=self.b, b=self.a)
