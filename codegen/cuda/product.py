"""What every contraction is to its templates: ``result[b, m, n] = sum over k of a(b, m, k) * b(b, n, k)``.

Matrix products and convolutions differ only in where an operand has the element (batch, row, k), and where the result
(batch, m, n) goes. Both operands are described alike, row by reduction index, so that they can change places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, compute_dtype, from_storage, storage_bits
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.compiler.ir.graph import Value

from .strides import Strided
from .surroundings import Surroundings
from .units import Units

At = Callable[[Expr, Expr, Expr], tuple[Expr, ...]]
Inside = Callable[[Expr, Expr, Expr], "Expr | None"]


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

    def corner(self, row: Expr) -> tuple[Expr, ...]:
        """Image and output pixel where the patch that a row belongs to begins."""
        numbers = unravel(row // prod(self.patch), self.counts)
        return tuple(number * size for number, size in zip(numbers, self.patch, strict=True))

    def pixel(self, row: Expr) -> tuple[Expr, ...]:
        """Image and output pixel of a row; it may lie outside."""
        within = unravel(row % prod(self.patch), self.patch)
        return tuple(first + own for first, own in zip(self.corner(row), within, strict=True))


@dataclass(frozen=True)
class Operand:
    """One operand: `index(batch, row, k)` is where its tensor has an element.

    inside: whether there is such an element at all; where not (padding) it counts as zero, and None says that there
    always is. contiguous: which of "row" and "k" runs along memory. run: so many elements along it, from a multiple of
    `run` on, lie together in memory and are all inside or all outside. memory: how the tensor lies in an input of the
    group; None for what a prologue computes, which is never read in vectors. plane: the same if it is evenly spaced;
    pictures: if it is images that a convolution reads.
    """

    value: Value
    rows: int
    index: At
    contiguous: str
    run: int
    memory: Strided | None
    inside: Inside = lambda batch, row, k: None
    plane: Plane | None = None
    pictures: Pictures | None = None

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def vector(self, most_bytes: int = 16) -> int:
        """Elements that one load may read: a power of two."""
        width = 1
        while (
            self.memory is not None
            and self.run % (2 * width) == 0
            and 2 * width * storage_bits(self.dtype) <= 8 * most_bytes
        ):
            width *= 2
        return width

    def element(self, around: Surroundings, batch: Expr, row: Expr, k: Expr, dtype: str) -> Expr:
        """The element as `dtype`. It must be inside."""
        if self.memory is None:
            return widen(around.load(self.value, self.index(batch, row, k)), self.dtype, dtype)
        buffer, position = self.cell(around, batch, row, k)
        return widen(from_storage(buffer[position], self.dtype), self.dtype, dtype)

    def cell(self, around: Surroundings, batch: Expr, row: Expr, k: Expr) -> tuple[Any, Expr]:
        """The flat buffer that an operand in memory lies in, and the position of the element."""
        assert self.memory is not None
        position = self.memory.position(self.index(batch, row, k))
        return around.flat[self.memory.root], around.evaluator.simplify(position)


@dataclass(frozen=True)
class Product:
    """`batch` products with the operands a [m, k] and b [n, k]; `place(batch, m, n)` is the index of a result.

    The sum is kept in acc_dtype: float32 for half floats, int32 for small integers. tf32: float32 operands may be
    rounded to TF32 (10 bits of mantissa). there(m): whether there is such a row; None says that there always is.
    gated: how the n columns are ordered where they are gates; `place` is asked for units instead of columns then.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    place: At
    acc_dtype: str
    tf32: bool = False
    there: Callable[[Expr], Expr | None] = lambda m: None
    gated: Units | None = None

    @property
    def units(self) -> Units:
        """What the epilogue is run for."""
        return self.gated or Units.plain(self.n)

    @property
    def elements(self) -> int:
        return self.batch * self.m * self.n

    def swapped(self) -> Product:
        """The same product with the operands in each other's place."""
        return replace(self, m=self.n, n=self.m, a=self.b, b=self.a, place=lambda b, m, n: self.place(b, n, m))


def widen(value: Expr, dtype: str, acc_dtype: str) -> Expr:
    """`value`, an element of `dtype` in its compute dtype, in the dtype of the sum."""
    return value if compute_dtype(dtype) == acc_dtype else T.cast(value, acc_dtype)


def step_of(around: Surroundings, number: Expr, bk: int, within: Expr) -> Expr:
    """The step of the reduction that is `within` the bk steps with a number, as a sum that the simplifier can divide.

    So a kernel position, where channels are a multiple of bk, is seen to be the same for all of them.
    """
    for variable, end in ((number, 1 << 30), (within, bk)):
        if isinstance(variable, tirx.Var):
            around.evaluator.assume(variable, 0, end)
    return number * bk + within


def simplified(around: Surroundings, condition: Expr | None) -> Expr | None:
    """A condition made simpler by what is assumed of the variables in it; None stands for true."""
    return None if condition is None else around.evaluator.simplify(condition)


def both(*conditions: Expr | None) -> Expr | None:
    """All of the conditions; None stands for true."""
    result: Expr | None = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else T.And(result, condition)
    return result


def below(index: Expr, end: int, reached: int) -> Expr | None:
    """Whether `index < end`; None if indices stay below `reached <= end` anyway."""
    return None if reached <= end else index < end
