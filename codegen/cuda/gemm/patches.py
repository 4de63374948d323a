"""Images of a convolution, as the copy engine of Hopper GPUs (TMA) brings them.

The rows of a tile are a patch of neighbouring output pixels. For one kernel position, their input pixels are a box of
the images, possibly with a stride, whose start depends on the position: 128 bytes of channels are one copy. Padding
lies outside the tensor, where TMA fills in zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm, Operand
from tilestitch.codegen.cuda.positions import both
from tilestitch.passes.plan.gemm import patches as plan
from tilestitch.passes.plan.gemm.gemm import Pictures
from tilestitch.passes.plan.gemm.planes import TMA_DTYPES, item_bytes, line, padded
from tilestitch.runtime.tensor_map import TensorMap


def cut_to_patches(gemm: IndexedGemm, rows: int) -> IndexedGemm:
    """Cut a GEMM as `passes.plan.patches.cut_to_patches` does, with the positions of results."""
    cut = plan.cut_to_patches(gemm, rows)
    pictures = cut.a.pictures
    if pictures is None or not isinstance(cut, IndexedGemm):
        return gemm
    patch, counts = pictures.patch, pictures.counts

    def place(batch: Expr, m: Expr, n: Expr) -> tuple[Expr, ...]:
        return (*pictures.pixel(m), batch * (gemm.n if pictures.groups > 1 else 0) + n)

    def there(m: Expr) -> Expr | None:
        limits = zip(pictures.pixel(m), pictures.extents, counts, patch, strict=True)
        return both(*(at < limit if count * size > limit else None for at, limit, count, size in limits))

    return replace(cut, place=place, there=there)


@dataclass(frozen=True)
class PatchCopies:
    """TMA copies of patches, one each. The same interface as `planes.Copies`."""

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
        """Return the start of the box, in the images, for the patch that begins at `row`, and for k, innermost index
        first.
        """
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
    """Return the TMA copies of an operand for which `why_not_patches` has no objection."""
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
