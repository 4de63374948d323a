"""ONNX tensors as arrays. External data is memory-mapped, and only files inside the model's folder are opened.

Weights are read from the mapping when an artifact is written. A file that was rewritten in place since then would give
other weights, or kill the process if it became shorter: so mapped files are noted, and whether they have changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from onnx import SparseTensorProto, TensorProto, numpy_helper

from tilestitch.compiler.ir.types import storage_bytes, to_numpy_dtype

from .errors import ModelError
from .onnx_types import dtype_of


@dataclass(frozen=True)
class MappedFile:
    """A file as it was when it was mapped. `changed_ns`: the status change time of file `inode` of `device`, which
    programs cannot set back, unlike the time of the last write.
    """

    path: Path
    device: int
    inode: int
    size_bytes: int
    changed_ns: int

    @staticmethod
    def of(path: Path) -> MappedFile:
        found = path.stat()
        return MappedFile(path.resolve(), found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)

    @property
    def is_changed(self) -> bool:
        """Whether the file may have been written to; a changed mode or link counts, too. A deleted or replaced file
        still exists for those that map it; writes after a renaming are not noticed.
        """
        try:
            found = MappedFile.of(self.path)
        except OSError:
            return False
        same_file = (found.device, found.inode) == (self.device, self.inode)
        return same_file and (found.size_bytes, found.changed_ns) != (self.size_bytes, self.changed_ns)


_MAPPED: ContextVar[set[MappedFile] | None] = ContextVar("mapped", default=None)


@contextmanager
def noting_mapped_files() -> Iterator[set[MappedFile]]:
    """Collect the files that are mapped within the context."""
    files = set[MappedFile]()
    token = _MAPPED.set(files)
    try:
        yield files
    finally:
        _MAPPED.reset(token)


def note_mapped(path: Path) -> None:
    """Record that a tensor is about to be mapped from a file."""
    files = _MAPPED.get()
    if files is not None:
        files.add(MappedFile.of(path))


_PACKED_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}


def to_array(tensor: TensorProto, folder: Path | None = None) -> np.ndarray:
    """Return the tensor as an array of its shape. `folder`: of external data (None: not allowed).

    Raises ModelError if the bytes do not fit dtype and shape, or external data is missing or outside the folder.
    """
    dtype = dtype_of(tensor.data_type)
    if any(d < 0 for d in tensor.dims):
        raise ModelError(f"tensor {tensor.name!r} has a negative dimension in {tuple(tensor.dims)}")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _map_external(tensor, dtype, folder)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, UnicodeDecodeError) as error:
        raise ModelError(
            f"tensor {tensor.name!r} ({dtype}, shape {tuple(tensor.dims)}) cannot be read: {error}"
        ) from error


def to_dense(sparse: SparseTensorProto, folder: Path | None = None) -> np.ndarray:
    """Return a sparse tensor as a dense array. Indices are flat positions, or one row of coordinates for each value.

    Raises ModelError like `to_array`, and for indices that do not fit.
    """
    values, indices = to_array(sparse.values, folder), to_array(sparse.indices, folder)
    shape, name = tuple(sparse.dims), sparse.values.name
    try:
        coordinates = np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)
        places = np.ravel_multi_index(coordinates, shape)
        if len(places) != len(values):
            raise ValueError(f"{len(places)} indices for {len(values)} values")
    except (ValueError, TypeError) as error:
        raise ModelError(f"the indices of sparse tensor {name!r} do not fit its shape {shape}: {error}") from error
    dense = np.zeros(prod(shape), values.dtype)
    dense[places] = values
    return dense.reshape(shape)


@dataclass(frozen=True)
class _External:
    """Location of an external tensor; `location` is relative to the model, a `length_bytes` of None means the rest of
    the file.
    """

    location: str
    offset_bytes: int
    length_bytes: int | None


def _map_external(tensor: TensorProto, dtype: str, folder: Path | None) -> np.ndarray:
    if dtype == "string":
        raise ModelError(f"tensor {tensor.name!r}: strings cannot be external data")
    entry = _external_entry(tensor)
    if folder is None:
        raise ModelError(
            f"tensor {tensor.name!r} lies in external file {entry.location!r}; "
            "give the model as a path, or name the folder: compile_model(model, external_data=FOLDER)"
        )
    path = _contained_path(folder, entry.location, tensor.name)
    size = path.stat().st_size
    count = prod(tensor.dims)
    bits = _PACKED_BITS.get(dtype)
    needed = (count * bits + 7) // 8 if bits else count * storage_bytes(dtype)
    length = size - entry.offset_bytes if entry.length_bytes is None else entry.length_bytes
    if entry.offset_bytes + length > size or length < needed:
        raise ModelError(
            f"tensor {tensor.name!r} needs {needed} bytes at offset {entry.offset_bytes} of {path} "
            f"(stated length: {entry.length_bytes}), "
            f"but the file has {size} bytes; it is truncated or belongs to another model"
        )
    if count == 0:
        return np.zeros(tuple(tensor.dims), to_numpy_dtype(dtype))
    note_mapped(path)
    raw = np.memmap(path, np.uint8, "r", entry.offset_bytes, (needed,))
    if bits:
        return _unpack(raw, bits, count, dtype).reshape(tuple(tensor.dims))
    return raw.view(to_numpy_dtype(dtype)).reshape(tuple(tensor.dims))


def _external_entry(tensor: TensorProto) -> _External:
    fields = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset = int(fields.get("offset") or 0)
        length = int(fields["length"]) if fields.get("length") else None
    except ValueError as error:
        raise ModelError(f"tensor {tensor.name!r}: external offset or length is no integer ({error})") from error
    if offset < 0 or (length is not None and length < 0):
        raise ModelError(f"tensor {tensor.name!r}: external offset {offset} or length {length} is negative")
    return _External(fields.get("location", ""), offset, length)


def _contained_path(folder: Path, location: str, name: str) -> Path:
    """Return the path of an external file, after checks that the model cannot make us read anything outside its own
    folder.
    """
    where = f"tensor {name!r}: external file {location!r}"
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or os.path.isabs(location) or ".." in parts:
        raise ModelError(f"{where} is not a relative path inside the model's folder; move the file next to the model")
    path = folder / location
    root = folder.resolve()
    try:
        status = path.lstat()
    except OSError as error:
        raise ModelError(
            f"{where} cannot be opened ({error.strerror}); it belongs next to the model, in {folder}"
        ) from error
    if not stat.S_ISREG(status.st_mode) or not path.resolve().is_relative_to(root):
        raise ModelError(
            f"{where} is a symbolic link, no regular file, or outside the model's folder; copy it next to the model"
        )
    if path.resolve() != root / location.replace("\\", "/"):
        raise ModelError(f"{where} is reached through a symbolic link; copy it next to the model")
    if status.st_nlink > 1:
        raise ModelError(f"{where} has several hard links; copy it next to the model")
    return path


def _unpack(raw: np.ndarray, bits: int, count: int, dtype: str) -> np.ndarray:
    """Unpack sub-byte elements, lowest bits first, to one element a byte."""
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    elements = ((raw[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[:count]
    if dtype.startswith("int"):
        sign = np.uint8(1 << (bits - 1))
        elements = (elements ^ sign) - sign
        return elements.view(np.int8).astype(to_numpy_dtype(dtype))
    if dtype.startswith("uint"):
        return elements.astype(to_numpy_dtype(dtype))
    return elements.view(to_numpy_dtype(dtype))
