"""Weights of an artifact: read from its members or from what is supplied at load, checked against the manifest."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from . import safetensors
from .archive import mapped_file
from .buffers import aligned, aligned_bytes, byte_view
from .dtypes import ITEM_BYTES, dtype_name, memory_dtype
from .errors import ArtifactSchemaError, WeightsError
from .manifest import WeightInfo
from .safetensors import Tensor


def supplied_weights(
    supplied: str | os.PathLike[str] | Mapping[str, Any], expected: Mapping[str, WeightInfo], verify: bool
) -> dict[str, np.ndarray]:
    """Return the expected weights as aligned bytes, from a safetensors file (mapped) or arrays by name.

    `verify`: whether their values must be those at compile time, as far as the manifest has their SHA-256. Raises
    `WeightsError` when some are missing or do not fit.
    """
    if isinstance(supplied, Mapping):
        arrays = {str(name): np.asarray(array) for name, array in supplied.items()}
        _check_supplied({n: (dtype_name(a.dtype), a.shape) for n, a in arrays.items()}, expected, "the weights")
        raw = {name: aligned(np.frombuffer(byte_view(arrays[name]), np.uint8)) for name in expected}
    else:
        if not isinstance(supplied, str | os.PathLike):
            raise WeightsError(f"weights is {supplied!r}; give the path of a safetensors file, or arrays by name")
        data, stored = _supplied_tensors(supplied)
        check_stored(stored, expected, str(supplied))
        raw = mapped_weights(data, {name: stored[name] for name in expected})
    if verify:
        _check_hashes(raw, expected)
    return raw


def stored_tensors(data: memoryview, file: str, member: str) -> dict[str, safetensors.Stored]:
    """Return where the tensors lie in a member. Raises `ArtifactSchemaError` that names file and member."""
    try:
        return safetensors.read_header(data)
    except ArtifactSchemaError as error:
        error.file, error.member = file, member
        raise


def mapped_weights(data: memoryview, stored: Mapping[str, safetensors.Stored]) -> dict[str, np.ndarray]:
    """Return the bytes of tensors in a safetensors file by name: views, where they are aligned."""
    whole = np.frombuffer(data, np.uint8)
    return {name: aligned(whole[one.offset : one.offset + one.nbytes]) for name, one in stored.items()}


def check_stored(stored: Mapping[str, safetensors.Stored], expected: Mapping[str, WeightInfo], file: str) -> None:
    """Raise `WeightsError` unless a safetensors file has all expected weights, with their types and shapes."""
    shown = {name: (tensor.dtype, tensor.shape) for name, tensor in stored.items()}
    _check_supplied(shown, {name: _as_stored(info) for name, info in expected.items()}, file)


def byte_planes(array: Tensor) -> np.ndarray:
    """Return the bytes of an array as planes, [bytes of an element, elements]."""
    raw = np.frombuffer(byte_view(array), np.uint8)
    return np.ascontiguousarray(raw.reshape(array.size, array.itemsize).T)


def planes_of(info: WeightInfo) -> WeightInfo:
    """Return the description of a weight's byte planes, uint8 [bytes of an element, elements]."""
    return replace(info, dtype="uint8", shape=(ITEM_BYTES[info.dtype], math.prod(info.shape)))


def from_byte_planes(planes: np.ndarray, info: WeightInfo) -> np.ndarray:
    """Return the elements' bytes in memory order, from byte planes."""
    return aligned(aligned_bytes(planes.size, planes.reshape(planes_of(info).shape).T.reshape(-1)))


def typed_weight(raw: np.ndarray, dtype: str, shape: tuple[int, ...], offset_bytes: int = 0) -> np.ndarray:
    """Return a weight's bytes from `offset_bytes` on as an array of the given type and shape. Raises
    `ArtifactSchemaError` when there are too few.
    """
    numpy_type = memory_dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    end = offset_bytes + count * numpy_type.itemsize
    if end > raw.size:
        raise ArtifactSchemaError(
            f"a constant of type {dtype} {list(shape)} ends beyond its weight of {raw.size} bytes"
        )
    return raw[offset_bytes:end].view(numpy_type).reshape(shape)


def check_none_missing(found: Iterable[str], expected: Iterable[str], file: str) -> None:
    """Raise `WeightsError`, which names the first few, if some of the expected weights were not found."""
    missing = sorted(set(expected) - set(found))
    if missing:
        raise WeightsError(
            f"{file}: {len(missing)} weights are missing: {', '.join(missing[:5])}; give those of this artifact"
        )


def _as_stored(info: WeightInfo) -> WeightInfo:
    """Return a weight's description as the safetensors file has it: types that the format lacks are stored as bytes."""
    dtype, shape = safetensors.stored_type(info.dtype, info.shape)
    return replace(info, dtype=dtype, shape=shape)


def _supplied_tensors(file: str | os.PathLike[str]) -> tuple[memoryview, Mapping[str, safetensors.Stored]]:
    data = mapped_file(file)
    try:
        return data, safetensors.read_header(data)
    except ArtifactSchemaError as error:
        raise WeightsError(
            f"{os.fspath(file)} is no safetensors file, or a damaged one ({error.problem}); give the weights that were "
            "written with the artifact"
        ) from error


def _check_supplied(
    found: Mapping[str, tuple[str, tuple[int, ...]]], expected: Mapping[str, WeightInfo], file: str
) -> None:
    check_none_missing(found, expected, file)
    for name, info in expected.items():
        dtype, shape = found[name]
        if (dtype, tuple(shape)) != (info.dtype, info.shape):
            raise WeightsError(
                f"{file}: weight {name!r} is {dtype} {list(shape)}, the artifact needs {info.dtype} "
                f"{list(info.shape)}; give those that were written when it was compiled"
            )


def _check_hashes(raw: Mapping[str, np.ndarray], expected: Mapping[str, WeightInfo]) -> None:
    for name, info in expected.items():
        if info.sha256 and hashlib.sha256(raw[name].data).hexdigest() != info.sha256:
            raise WeightsError(
                f"weight {name!r} has other values than when the artifact was compiled; give the right file"
            )
