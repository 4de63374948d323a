"""Operands that the copy engine of Hopper GPUs (TMA) can load: evenly strided matrices in memory, and images.

TMA copies boxes of a tensor of up to five dimensions to shared memory. Either an operand's rows or its k is contiguous
and the innermost dimension; lines of 64 half floats, 128 bytes, are swizzled as `wgmma` requires. Where a box extends
beyond the tensor, TMA fills in zeros, which do not change a sum.

The rows of a convolution's tile are a patch of neighbouring output pixels. For one kernel position, its input pixels
form a box of the images, possibly strided, of which 128 bytes of channels are one copy. Padding lies outside the
tensor.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilestitch.compiler.ir.types import HALVES, SMALL_FLOATS, storage_bytes
from tilestitch.passes.plan.access.strided import Strided
from tilestitch.passes.plan.gemm.gemm import Gemm, OperandLayout, Pictures, Plane
from tilestitch.passes.plan.gemm.tiles import LINE_BYTES

TMA_DTYPES = {
    "float16": "float16", "bfloat16": "bfloat16", "int8": "uint8", "uint8": "uint8",
    **dict.fromkeys(sorted(SMALL_FLOATS), "uint8"),
}  # fmt: skip
"""Tensor-map names of the types that `wgmma` multiplies here."""
MOST_ROWS = 256
"""Most rows of a box."""
ALIGNMENT_BYTES = 16
MOST_DIMENSIONS = 5

Dimensions = Sequence[tuple[int, int]]
"""Extent and stride of each dimension, outermost first."""
MOST_SPAN = 256
"""Most extent of a box, in elements of the tensor."""
MOST_STRIDE = 8
MOST_PADDING = 1.5
"""Most growth of the reduction when every kernel position is padded to begin with a line of its own."""


def matmul_plane(memory: Strided, rows: int, last: str, batch: Sequence[int]) -> Plane | None:
    """Return the plane of a matmul operand [*lead, x, y], where `last` ("k" or "row") names the axis y, if there is
    one.

    batch: what the leading axes are broadcast to; without any, they are rows too.
    """
    *lead, (x, x_stride), (y, y_stride) = zip(memory.shape, memory.strides, strict=True)
    (k, k_stride), (m, m_stride) = ((y, y_stride), (x, x_stride)) if last == "k" else ((x, x_stride), (y, y_stride))
    if not batch:
        as_one = merged([*lead, (m, m_stride)])
        if len(as_one) > 1:
            return None
        _, m_stride = as_one[0] if as_one else (1, 0)
        return Plane(memory.offset, rows, m_stride, k, k_stride, ())
    padded = [(1, 0)] * (len(batch) - len(lead)) + lead
    spread = [(extent, 0 if own == 1 else stride) for extent, (own, stride) in zip(batch, padded, strict=True)]
    return Plane(memory.offset, m, m_stride, k, k_stride, tuple(merged(spread)))


def merged(dimensions: Dimensions) -> list[tuple[int, int]]:
    """Return the same positions with as few dimensions as possible, none of extent 1."""
    found: list[tuple[int, int]] = []
    for extent, stride in dimensions:
        if extent == 1:
            continue
        if found and found[-1][1] == stride * extent:
            found[-1] = found[-1][0] * extent, stride
        else:
            found.append((extent, stride))
    return found


def item_bytes(dtype: str) -> int:
    return storage_bytes(dtype)


def line(dtype: str) -> int:
    """Return the elements per line."""
    return LINE_BYTES // item_bytes(dtype)


def padded(steps: int, dtype: str) -> int:
    """Return `steps` of k, rounded up to whole lines."""
    return -(-steps // line(dtype)) * line(dtype)


def refusal(operand: OperandLayout) -> str | None:
    """Return why TMA cannot load an operand; None if it can."""
    name, plane = operand.value.name, operand.plane
    if operand.dtype not in TMA_DTYPES:
        return f"{name} is {operand.dtype}, none of {', '.join(TMA_DTYPES)}"
    if operand.dtype not in HALVES and operand.contiguous != "k":
        return f"{name} runs along its rows; wgmma reads {operand.dtype} along k only"
    if operand.memory is None:
        return f"{name} is computed where it is read"
    if plane is None:
        return f"the rows of {name} are not evenly spaced in memory"
    inner, outer = (
        (plane.k_stride, (plane.rows, plane.row_stride))
        if operand.contiguous == "k"
        else (plane.row_stride, (plane.k, plane.k_stride))
    )
    if inner != 1:
        return f"neither rows nor k of {name} run along memory"
    strides = [stride for extent, stride in (outer, *plane.batch, plane.taps) if extent > 1 and stride]
    if outer[0] > 1 and not outer[1]:
        return f"{name} repeats one line"
    for nbytes in (item_bytes(operand.dtype) * count for count in (plane.offset, *strides)):
        if nbytes % ALIGNMENT_BYTES or nbytes < 0:
            return f"lines of {name} lie {nbytes} bytes apart, no multiple of {ALIGNMENT_BYTES}"
    if 2 + sum(stride != 0 for _, stride in (*plane.batch, plane.taps)) > MOST_DIMENSIONS:
        return f"{name} has more than {MOST_DIMENSIONS} dimensions"
    return None


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
