"""TMA copies, by the copy engine of Hopper GPUs, of operands that are evenly spaced matrices in memory, and of images.

`passes.plan.gemm.tma` says which boxes are copied, and how operands lie. The start of the box of the input pixels of a
patch depends on the kernel position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm, Operand
from tilestitch.codegen.cuda.positions import both
from tilestitch.passes.plan.gemm import tma as plan
from tilestitch.passes.plan.gemm.gemm import Pictures
from tilestitch.passes.plan.gemm.tiles import ROW_BOX
from tilestitch.passes.plan.gemm.tma import MOST_ROWS, TMA_DTYPES, item_bytes, line, padded
from tilestitch.runtime.tensor_map import TensorMap


@dataclass(frozen=True)
class Copies:
    """Copies of pieces [rows, 64] of an operand to shared memory: `boxes` adjacent boxes, one copy each.

    `order`: the dimensions of the tensor map after the first: "along" for the other one of rows and k, "tap", or the
    number of a dimension of `batch`, to whose extents the batch number unravels. `tap_steps`: steps of k from one tap
    to the next.
    """

    tensor_map: TensorMap
    offset_bytes: int
    contiguous: str
    order: tuple[str | int, ...]
    batch: tuple[int, ...]
    boxes: int
    tap_steps: int | None = None

    @property
    def box_bytes(self) -> int:
        return self.tensor_map.tile_bytes

    def box(self, number: int, batch: Expr, row: Expr, k: Expr) -> list[Expr]:
        """Return the start in the tensor of box `number` of the piece that begins at (row, k), innermost index
        first.
        """
        tap, k = (0, k) if self.tap_steps is None else (k // self.tap_steps, k % self.tap_steps)
        first, along = (k, row) if self.contiguous == "k" else (row + number * ROW_BOX, k)
        named, index = {"along": along, "tap": tap}, unravel(batch, self.batch)
        return [first, *(named[which] if isinstance(which, str) else index[which] for which in self.order)]


@dataclass(frozen=True)
class _Dimension:
    stride: int
    extent: int
    what: str | int


def copies(operand: Operand, rows: int) -> Copies:
    """Return the TMA copies of pieces of `rows` rows of an operand for which `refusal` has no objection."""
    plane = operand.plane
    assert plane is not None
    in_k = operand.contiguous == "k"
    inner, (extent, stride) = (
        (plane.k, (plane.rows, plane.row_stride)) if in_k else (plane.rows, (plane.k, plane.k_stride))
    )
    # One line has no stride; TMA requires one nevertheless.
    along = _Dimension(stride if extent > 1 else padded(inner, operand.dtype), extent, "along")
    kept = [_Dimension(stride, extent, i) for i, (extent, stride) in enumerate(plane.batch) if stride]
    taps, tap_stride = plane.taps
    kept += [_Dimension(tap_stride, taps, "tap")] if taps > 1 else []
    # In the order of their strides, as the driver's manual describes tensors.
    outer = sorted([along, *kept], key=lambda dimension: dimension.stride)
    size = min(rows, MOST_ROWS) if in_k else ROW_BOX
    nbytes = item_bytes(operand.dtype)
    tensor_map = TensorMap(
        TMA_DTYPES[operand.dtype],
        (inner, *(dimension.extent for dimension in outer)),
        tuple(dimension.stride * nbytes for dimension in outer),
        (line(operand.dtype), *(size if dimension is along else 1 for dimension in outer)),
        swizzle="128B",
    )
    return Copies(
        tensor_map, plane.offset * nbytes, operand.contiguous, tuple(dimension.what for dimension in outer),
        tuple(extent for extent, _ in plane.batch), 1 if in_k else rows // ROW_BOX,
        padded(plane.k, operand.dtype) if taps > 1 else None,
    )  # fmt: skip


def cut_to_patches(gemm: IndexedGemm, rows: int) -> IndexedGemm:
    """Cut a GEMM as `passes.plan.gemm.tma.cut_to_patches` does, with the positions of results."""
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
