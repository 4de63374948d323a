"""Reader and writer of the safetensors format: 8 bytes with the header's length, a JSON header, the tensors' bytes.

Tensors begin on 64-byte boundaries. The format allows no holes, so padding is stored as tensors named `__pad__.N`.
Types that the format lacks (int4, complex128, …) are stored as bytes; the manifest records their type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .dtypes import ITEM_BYTES, dtype_name
from .errors import ArtifactSchemaError
from .jsonfields import Fields, parse_json
from .types import check_sizes

ALIGNMENT = 64
_PAD = "__pad__."
_CHUNK_BYTES = 1 << 24
_HEADER_LIMIT = 1 << 28

_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}
_CODE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8, "F16": 2, "BF16": 2,
    "F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file: `nbytes` at `offset` of the file. `dtype` is our name of its type if it has
    one.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class TensorOnDemand:
    """A tensor that `make` creates anew on each access, so that large ones need not all be in memory."""

    dtype: np.dtype
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        made = self.make()
        if (made.dtype, made.shape) != (self.dtype, self.shape):
            raise ValueError(f"a tensor {self.dtype} {self.shape} was announced, and {made.dtype} {made.shape} made")
        return made if dtype is None else made.astype(dtype, copy=False)


Tensor: TypeAlias = np.ndarray | TensorOnDemand


class TensorWriter:
    """The bytes of a safetensors file for the given arrays, in order of their names."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._arrays: list[Tensor] = []
        header: dict[str, Any] = {}
        position = 0
        for number, name in enumerate(sorted(tensors)):
            if name == "__metadata__" or name.startswith(_PAD):
                raise ValueError(f"a tensor cannot be named {name!r}: the format uses this name itself")
            array = tensors[name]
            header[name], position = _entry(array, position), position + array.nbytes
            self._arrays.append(array)
            padding = np.zeros(-position % ALIGNMENT, np.uint8)
            if padding.size:
                header[f"{_PAD}{number}"], position = _entry(padding, position), position + padding.nbytes
                self._arrays.append(padding)
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        self._head = len(text).to_bytes(8, "little") + text
        self.size = len(self._head) + position

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the file's bytes, piece by piece."""
        yield self._head
        for array in self._arrays:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            for start in range(0, len(raw), _CHUNK_BYTES):
                yield raw[start : start + _CHUNK_BYTES]


def bytes_of(name: str, array: Tensor) -> int:
    """Return the bytes that a tensor takes in such a file, with its padding and its entry of the header."""
    return array.nbytes + -array.nbytes % ALIGNMENT + len(json.dumps({name: _entry(array, 0)}))


def stored_type(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the type and shape under which a tensor is stored: as bytes, with one more axis, where the format lacks
    the type.
    """
    if dtype in _CODES:
        return dtype, shape
    return "uint8", shape + ((ITEM_BYTES[dtype],) if ITEM_BYTES[dtype] > 1 else ())


def _entry(array: Tensor, position: int) -> dict[str, Any]:
    if array.dtype.hasobject:
        raise ValueError("strings cannot be stored as tensors; make them literals of the program")
    dtype, shape = stored_type(dtype_name(array.dtype), array.shape)
    return {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [position, position + array.nbytes]}


def read_header(data: memoryview) -> dict[str, Stored]:
    """Return the tensors of a safetensors file by name, padding left out. Raises `ArtifactSchemaError` for a malformed
    file.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_HEADER_LIMIT, len(data) - 8):
        raise ArtifactSchemaError("the tensor file's header is damaged")
    try:
        header = parse_json(data[8 : 8 + length])
    except ValueError as error:
        raise ArtifactSchemaError(f"the tensor file's header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise ArtifactSchemaError("the tensor file's header is no JSON object")
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            stored = _read_entry(Fields(entry, f"tensor {name!r}"), 8 + length, len(data))
            if not name.startswith(_PAD):
                tensors[name] = stored
    return tensors


def _read_entry(fields: Fields, start: int, end: int) -> Stored:
    code = fields.one_of("dtype", frozenset(_CODE_BYTES))
    shape = fields.integers("shape")
    offsets = fields.integers("data_offsets")
    fields.done()
    check_sizes(shape, fields.where)
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= end - start:
        raise ArtifactSchemaError(f"{fields.where} lies outside of the file")
    nbytes = offsets[1] - offsets[0]
    if math.prod(shape) * _CODE_BYTES[code] != nbytes:
        raise ArtifactSchemaError(f"{fields.where} of type {code} and shape {list(shape)} has {nbytes} bytes")
    return Stored(_NAMES.get(code, "uint8"), shape, start + offsets[0], nbytes)
