"""Tensor maps: descriptors by which the copy engine of Hopper and later GPUs (TMA) locates a box of a tensor in memory.

A `TensorMap` has the fields of the CUDA driver's `cuTensorMapEncodeTiled` but the address, which is known when a kernel
is launched. The rules it checks are those of the driver's manual, CUDA Driver API, "Tensor Map Object Management".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from .errors import ArtifactSchemaError
from .jsonfields import Fields

ITEM_BYTES = {
    "uint8": 1, "uint16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "float32": 4, "float64": 8, "bfloat16": 2,
    "float32_ftz": 4, "tfloat32": 4, "tfloat32_ftz": 4,
}  # fmt: skip
"""Bytes of an element of each data type, in the order of `CUtensorMapDataType`. Types that are only moved may be
represented by the integer of their size: int8 and float8 by uint8.
"""

SWIZZLES = {"none": None, "32B": 32, "64B": 64, "128B": 128}
"""The bytes of shared memory that a swizzle permutes, in the order of `CUtensorMapSwizzle`."""

OOB_FILLS = ("zero", "nan")
L2_PROMOTIONS = ("none", "64B", "128B", "256B")

_MAX_STRIDE_BYTES = 2**40
_FLOATS = ("float16", "float32", "float64", "bfloat16", "float32_ftz", "tfloat32", "tfloat32_ftz")


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map of rank 1 to 5. Dimension 0 is the innermost and is contiguous.

    `dtype`: a key of `ITEM_BYTES`. `dims`: elements of each dimension. `strides_bytes`: from an element to the next one
    along dimensions 1, 2, …; one fewer than `dims`. `box`: elements of the tensor that one copy spans along each
    dimension. `element_strides`: step between copied elements; empty for 1 everywhere; dimension 0 ignores it.
    `swizzle`: how rows are permuted in shared memory. `oob_fill`: what a copy reads outside the tensor. `l2_promotion`:
    granularity of L2 fetches.

    Raises ValueError where the CUDA driver would refuse the map.
    """

    dtype: str
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: str = "none"
    oob_fill: str = "zero"
    l2_promotion: str = "128B"

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * self.rank)
        problem = _wrong_name(self) or _wrong_rank(self) or _wrong_extent(self) or _wrong_row(self)
        if problem:
            raise ValueError(f"tensor map: {problem}")

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def tile(self) -> tuple[int, ...]:
        """Elements that one copy writes to shared memory along each dimension, innermost first."""
        strides = (1, *self.element_strides[1:])
        return tuple(-(-size // stride) for size, stride in zip(self.box, strides))

    @property
    def tile_bytes(self) -> int:
        """Bytes that one copy writes to shared memory, wherever its box lies: what a barrier must expect."""
        return prod(self.tile) * self.item_bytes

    @property
    def nbytes(self) -> int:
        """Bytes from the address of the map to the end of its last element."""
        steps = zip(self.dims[1:], self.strides_bytes)
        return self.dims[0] * self.item_bytes + sum((size - 1) * stride for size, stride in steps)

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @staticmethod
    def from_json(data: Any, where: str = "tensor map") -> TensorMap:
        """Read a map. Raises `ArtifactSchemaError`, also where the CUDA driver would refuse it."""
        fields = Fields(data, where)
        names = {name: fields.string(name) for name in ("dtype", "swizzle", "oob_fill", "l2_promotion")}
        lists = {name: fields.integers(name) for name in ("dims", "strides_bytes", "box", "element_strides")}
        fields.done()
        try:
            return TensorMap(**names, **lists)  # type: ignore[arg-type]
        except ValueError as error:
            raise ArtifactSchemaError(f"{where}: {error}") from None

    def check_memory(self, address: int, nbytes: int) -> None:
        """Raise ValueError if the map does not fit `nbytes` of memory at `address`."""
        if address % 16:
            raise ValueError(f"tensor map: lies over address {address:#x}, which must be a multiple of 16")
        if nbytes < self.nbytes:
            raise ValueError(
                f"tensor map: dims {self.dims} with strides_bytes {self.strides_bytes} span {self.nbytes} bytes; "
                f"the memory has {nbytes}"
            )


def _wrong_name(tensor_map: TensorMap) -> str | None:
    for field, names in (
        ("dtype", tuple(ITEM_BYTES)), ("swizzle", tuple(SWIZZLES)), ("oob_fill", OOB_FILLS),
        ("l2_promotion", L2_PROMOTIONS),
    ):  # fmt: skip
        value = getattr(tensor_map, field)
        if value not in names:
            return f"{field} is {value!r}; give one of {', '.join(names)}"
    if tensor_map.oob_fill == "nan" and tensor_map.dtype not in _FLOATS:
        return f"oob_fill 'nan' needs a floating-point dtype, not {tensor_map.dtype}; give 'zero'"
    return None


def _wrong_rank(tensor_map: TensorMap) -> str | None:
    rank = tensor_map.rank
    if not 1 <= rank <= 5:
        return f"dims {tensor_map.dims} have rank {rank}; it must be 1 to 5"
    for field, wanted in (("strides_bytes", rank - 1), ("box", rank), ("element_strides", rank)):
        value = getattr(tensor_map, field)
        if len(value) != wanted:
            return f"{field} {value} has {len(value)} entries; dims of rank {rank} need {wanted}"
    return None


def _wrong_extent(tensor_map: TensorMap) -> str | None:
    if any(not 1 <= size <= 2**31 for size in tensor_map.dims):
        return f"dims {tensor_map.dims} must be 1 to 2^31"
    if any(not 1 <= size <= 256 for size in tensor_map.box):
        return f"box {tensor_map.box} must be 1 to 256 along each dimension"
    if any(not 1 <= stride <= 8 for stride in tensor_map.element_strides):
        return f"element_strides {tensor_map.element_strides} must be 1 to 8"
    for stride in tensor_map.strides_bytes:
        if stride % 16 or not 0 <= stride < _MAX_STRIDE_BYTES:
            return f"strides_bytes {tensor_map.strides_bytes}: {stride} must be a multiple of 16, below 2^40"
    return None


def _wrong_row(tensor_map: TensorMap) -> str | None:
    row_bytes, span = tensor_map.box[0] * tensor_map.item_bytes, SWIZZLES[tensor_map.swizzle]
    if row_bytes % 16:
        return f"a row of the box {tensor_map.box} has {row_bytes} bytes; it must be a multiple of 16"
    if span is not None and row_bytes > span:
        return (
            f"a row of the box {tensor_map.box} has {row_bytes} bytes; with swizzle {tensor_map.swizzle!r} it may have "
            f"{span}"
        )
    return None
