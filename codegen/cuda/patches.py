"""Images that a convolution reads, as the copy engine of Hopper GPUs (TMA) brings them.

The rows of a tile are a patch of neighbouring output pixels. For one kernel position, the input pixels that they meet
are a box of the images, maybe with a stride, which begins where the position says: 128 bytes of channels are one copy.
Padding lies outside of the tensor, where TMA fills in zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.runtime.tensor_map import TensorMap

from .planes import ALIGNMENT_BYTES, MOST_DIMENSIONS, TMA_DTYPES, item_bytes, line, padded
from .product import Operand, Pictures, Product, both

MOST_SPAN = 256
"""Of a box, in elements of the tensor."""
MOST_STRIDE = 8
MOST_PADDING = 1.5
"""How much longer the reduction may become, so that every kernel position begins with a line of its own."""


def why_not_patches(operand: Operand) -> str | None:
    """Why TMA cannot bring the images of a convolution; None if it can."""
    pictures, name = operand.pictures, operand.value.name
    assert pictures is not None
    if operand.dtype not in TMA_DTYPES:
        return f"{name} is {operand.dtype}, none of {', '.join(TMA_DTYPES)}"
    if operand.memory is None:
        return f"{name} is computed where it is read"
    *strides, last = operand.memory.strides
    if last != 1:
        return f"the channels of {name} do not run along memory"
    places = [item_bytes(operand.dtype) * count for count in (*strides, operand.memory.offset)]
    if any(nbytes % ALIGNMENT_BYTES for nbytes in places) or min(strides) <= 0:
        return f"pixels of {name} do not lie multiples of {ALIGNMENT_BYTES} bytes apart"
    whole, filled = line(operand.dtype), padded(pictures.channels, operand.dtype)
    if pictures.channels % whole and pictures.groups > 1:
        return f"a group has {pictures.channels} channels of {name}, no multiple of {whole}"
    if pictures.taps > 1 and filled > MOST_PADDING * pictures.channels:
        return f"{name} has {pictures.channels} channels, which leave much of {filled} empty for every kernel position"
    if 2 + len(pictures.output) > MOST_DIMENSIONS:
        return f"{name} has more than {MOST_DIMENSIONS} dimensions"
    if max(pictures.strides) > MOST_STRIDE:
        return f"the convolution has strides {pictures.strides}, more than {MOST_STRIDE}"
    return None


def cut_to_patches(product: Product, rows: int) -> Product:
    """The product of a convolution with patches for the tiles' rows: `rows` numbers each, whether there is a pixel or
    not. Other products stay as they are.
    """
    pictures = product.a.pictures
    if pictures is None:
        return product
    patch = _best_patch(pictures, rows)
    cut = replace(pictures, patch=patch)

    def place(batch: Expr, m: Expr, n: Expr) -> tuple[Expr, ...]:
        return (*cut.pixel(m), batch * (product.n if pictures.groups > 1 else 0) + n)

    def there(m: Expr) -> Expr | None:
        limits = zip(cut.pixel(m), pictures.extents, cut.counts, patch, strict=True)
        return both(*(at < limit if count * size > limit else None for at, limit, count, size in limits))

    m = math.prod(cut.counts) * rows
    k = pictures.taps * padded(pictures.channels, product.a.dtype) if pictures.taps > 1 else product.k
    return replace(product, m=m, k=k, a=replace(product.a, rows=m, pictures=cut), place=place, there=there)


def _best_patch(pictures: Pictures, rows: int) -> tuple[int, ...]:
    """The patch of so many pixels that takes the fewest to cover all; the widest of these."""
    strides = (1, *pictures.strides)
    fitting = [
        patch
        for patch in _factors(rows, len(strides))
        if all(size * stride <= MOST_SPAN for size, stride in zip(patch, strides, strict=True))
    ]

    def cost(patch: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        count = math.prod(-(-extent // size) for extent, size in zip(pictures.extents, patch, strict=True))
        return count, tuple(-size for size in reversed(patch))

    return min(fitting, key=cost)


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a power of two as a product of so many."""
    if count == 1:
        yield (number,)
        return
    first = 1
    while first <= number:
        yield from ((first, *rest) for rest in _factors(number // first, count - 1))
        first *= 2


@dataclass(frozen=True)
class PatchCopies:
    """How patches come to shared memory: one copy each. The same interface as `planes.Copies`."""

    pictures: Pictures
    tensor_map: TensorMap
    offset_bytes: int
    tap_steps: int
    contiguous: str = "k"
    boxes: int = 1

    @property
    def box_bytes(self) -> int:
        return self.tensor_map.tile_bytes

    def box(self, number: int, batch: Expr, row: Expr, k: Expr) -> list[Expr]:
        """Where the box for the patch that begins at `row`, and for k, begins in the images, innermost index first."""
        pictures = self.pictures
        steps = self.tap_steps
        tap, channel = (0, k) if pictures.taps == 1 else (k // steps, k % steps)
        image, *position = pictures.corner(row)
        at: list[Expr] = []
        for place, stride, step, dilation, before in zip(
            position, pictures.strides, unravel(tap, pictures.kernel), pictures.dilations, pictures.before, strict=True
        ):
            at.append(place * stride + (step * dilation - before))
        first = channel if pictures.groups == 1 else batch * pictures.channels + channel
        return [first, *reversed(at), image]


def patch_copies(operand: Operand) -> PatchCopies:
    """How TMA brings the patches of an operand that `why_not_patches` has nothing against."""
    pictures, memory = operand.pictures, operand.memory
    assert pictures is not None and memory is not None and pictures.patch
    strides = (1, *pictures.strides)
    box = [size * stride for size, stride in zip(pictures.patch, strides, strict=True)]
    nbytes = item_bytes(operand.dtype)
    tensor_map = TensorMap(
        TMA_DTYPES[operand.dtype],
        _innermost_first(memory.shape),
        tuple(stride * nbytes for stride in _innermost_first(memory.strides)[1:]),
        (line(operand.dtype), *reversed(box)),
        (1, *reversed(strides)),
        swizzle="128B",
    )
    return PatchCopies(pictures, tensor_map, memory.offset * nbytes, padded(pictures.channels, operand.dtype))


def _innermost_first(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(reversed(sizes))


__all__ = ["PatchCopies", "cut_to_patches", "patch_copies", "why_not_patches"]
