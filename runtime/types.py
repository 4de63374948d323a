"""Types of the values that a program handles: tensors, sequences, optionals and maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from .dtypes import DTYPES, ITEM_BYTES
from .errors import ArtifactSchemaError
from .jsonfields import MAX_INT, Fields, sequence

Dimension: TypeAlias = int | str
Shape: TypeAlias = tuple[Dimension, ...]
MAX_RANK = 64
MAX_ELEMENTS = 1 << 58
"""Limit on elements: with the largest data type a process cannot address more."""


@dataclass(frozen=True)
class TensorType:
    """A tensor of `dtype` (see `dtypes`). `shape` holds sizes in elements or symbol names; None is an unknown rank.

    A symbol stands for a size that is known only at run time; equal symbols in one program are equal sizes.
    """

    dtype: str
    shape: Shape | None

    @cached_property
    def is_static(self) -> bool:
        """Whether the size in bytes is known: a fixed-size data type, and integers only in the shape."""
        return self.dtype in ITEM_BYTES and self.static_shape is not None

    @cached_property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape when all of its dimensions are integers, else None."""
        if self.shape is None:
            return None
        sizes = tuple(size for size in self.shape if isinstance(size, int))
        return sizes if len(sizes) == len(self.shape) else None

    @cached_property
    def nbytes(self) -> int:
        """Size in bytes of a static tensor. Raises `ValueError` for one that is not static."""
        shape = self.static_shape
        if shape is None or self.dtype not in ITEM_BYTES:
            raise ValueError(f"{self} has no fixed size in bytes")
        return math.prod(shape) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{'?' if self.shape is None else ', '.join(map(str, self.shape))}]"

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": None if self.shape is None else list(self.shape)}


@dataclass(frozen=True)
class SequenceType:
    """A Python list whose items have the type `element`."""

    element: ValueType

    def __str__(self) -> str:
        return f"sequence<{self.element}>"

    def to_json(self) -> dict[str, Any]:
        return {"sequence": self.element.to_json()}


@dataclass(frozen=True)
class OptionalType:
    """None, or a value of the type `element`."""

    element: ValueType

    def __str__(self) -> str:
        return f"optional<{self.element}>"

    def to_json(self) -> dict[str, Any]:
        return {"optional": self.element.to_json()}


@dataclass(frozen=True)
class MapType:
    """A Python dict. `key`: `int64` (Python's int) or `string`; `value`: the data type of each value, a Python number
    or `str`.
    """

    key: str
    value: str

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"

    def to_json(self) -> dict[str, Any]:
        return {"map": {"key": self.key, "value": self.value}}


KEY_DTYPES = frozenset({"int64", "string"})
MAPPED_DTYPES = frozenset({"float32", "float64", "int64", "string"})
"""Data types of the keys and of the values of maps."""

ValueType: TypeAlias = TensorType | SequenceType | OptionalType | MapType


def holds_arrays(type_: ValueType) -> bool:
    """Return whether values of the type are or contain arrays."""
    if isinstance(type_, MapType):
        return False
    return isinstance(type_, TensorType) or holds_arrays(type_.element)


def type_from_json(data: Any, where: str) -> ValueType:
    """Read a type written by `to_json`. Raises `ArtifactSchemaError`."""
    fields = Fields(data, where)
    if isinstance(data, dict) and "sequence" in data:
        element = type_from_json(fields.take("sequence"), f"{where}.sequence")
        fields.done()
        return SequenceType(element)
    if isinstance(data, dict) and "optional" in data:
        element = type_from_json(fields.take("optional"), f"{where}.optional")
        fields.done()
        return OptionalType(element)
    if isinstance(data, dict) and "map" in data:
        of = Fields(fields.take("map"), f"{where}.map")
        fields.done()
        mapping = MapType(of.one_of("key", KEY_DTYPES), of.one_of("value", MAPPED_DTYPES))
        of.done()
        return mapping
    dtype = fields.one_of("dtype", DTYPES)
    shape = _shape(fields.take("shape"), f"{where}.shape")
    fields.done()
    return TensorType(dtype, shape)


def _shape(data: Any, where: str) -> Shape | None:
    if data is None:
        return None
    shape = sequence(data, where, _dimension)
    check_sizes([size for size in shape if isinstance(size, int)], where)
    return shape


def with_size(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    """Return a shape with another size along one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def check_sizes(sizes: Sequence[int], where: str) -> None:
    """Raise `ArtifactSchemaError` for a shape that numpy does not support. numpy ignores the other sizes of an empty
    array's bytes, but refuses those that would be too many with 1 for its axes of size 0.
    """
    if len(sizes) > MAX_RANK:
        raise ArtifactSchemaError(f"{where} has rank {len(sizes)}; numpy has no more than {MAX_RANK}")
    if math.prod(max(1, size) for size in sizes) > MAX_ELEMENTS:
        raise ArtifactSchemaError(f"{where} has too many elements")


def _dimension(data: Any, where: str) -> Dimension:
    if isinstance(data, str) and data:
        return data
    if isinstance(data, int) and not isinstance(data, bool) and 0 <= data <= MAX_INT:
        return data
    raise ArtifactSchemaError(f"{where} is {data!r}, neither a size nor the name of a symbol")
