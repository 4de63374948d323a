"""Patches of neighbouring output pixels as the rows of a convolution's tiles.

For one kernel position, the input pixels of a patch form a box of the images, possibly strided, which the copy engine
of Hopper GPUs (TMA) loads: 128 bytes of channels are one copy. Padding lies outside the tensor, where TMA fills in
zeros.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from tilestitch.passes.plan.gemm.gemm import Gemm, OperandLayout, Pictures
from tilestitch.passes.plan.gemm.planes import ALIGNMENT_BYTES, MOST_DIMENSIONS, TMA_DTYPES, item_bytes, line, padded

MOST_SPAN = 256
"""Most extent of a box, in elements of the tensor."""
MOST_STRIDE = 8
MOST_PADDING = 1.5
"""Most growth of the reduction when every kernel position is padded to begin with a line of its own."""


def why_not_patches(operand: OperandLayout) -> str | None:
    """Return why TMA cannot load the images of a convolution; None if it can."""
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


def cut_to_patches(gemm: Gemm, rows: int) -> Gemm:
    """Return the GEMM of a convolution whose rows are tiled into patches of `rows` numbers, some perhaps without a
    pixel. Other GEMMs are unchanged.
    """
    pictures = gemm.a.pictures
    if pictures is None:
        return gemm
    cut = replace(pictures, patch=_best_patch(pictures, rows))
    m = math.prod(cut.counts) * rows
    k = pictures.taps * padded(pictures.channels, gemm.a.dtype) if pictures.taps > 1 else gemm.k
    return replace(gemm, m=m, k=k, a=replace(gemm.a, rows=m, pictures=cut))


def _best_patch(pictures: Pictures, rows: int) -> tuple[int, ...]:
    """Return the patch of `rows` pixels with which the fewest patches cover everything; the widest of these."""
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
    """Yield all factorisations of a number into `count` factors, all but the last of them powers of two."""
    if count == 1:
        yield (number,)
        return
    first = 1
    while number % first == 0:
        yield from ((first, *rest) for rest in _factors(number // first, count - 1))
        first *= 2
