"""Helpers of the numpy operators: their type, widening of small dtypes, checks of axes and indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tilestitch.runtime.dtypes import dtype_name, numpy_dtype
from tilestitch.runtime.errors import HostError

Attrs = Mapping[str, Any]
HostFn = Callable[[Sequence[Any], Attrs], Sequence[Any]]

__all__ = [
    "Attrs", "HostError", "HostFn", "check_indices", "computing", "dtype_name", "ints", "narrow", "normalized_axes",
    "normalized_axis", "numpy_dtype", "optional_operand", "scalar_int", "width_bits", "widen",
]  # fmt: skip

# The dtype to compute in where numpy has no (fast or exact) arithmetic for a dtype.
_WIDER = {
    "float16": np.float32, "bfloat16": np.float32, "float8_e4m3fn": np.float32, "float8_e4m3fnuz": np.float32,
    "float8_e5m2": np.float32, "float8_e5m2fnuz": np.float32, "float8_e8m0fnu": np.float32, "float4_e2m1fn": np.float32,
    "int4": np.int8, "int2": np.int8, "uint4": np.uint8, "uint2": np.uint8,
}  # fmt: skip
_SUB_BYTE_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}


def computing() -> np.errstate:
    """Return a context without numpy's floating-point warnings: inf and NaN are results like any other."""
    return np.errstate(all="ignore")


def widen(x: np.ndarray) -> np.ndarray:
    """Return `x` in the dtype for arithmetic on it: float32 for smaller floats, 8 bits for sub-byte integers."""
    wider = _wider(x.dtype)
    return x if wider is None else x.astype(wider)


@cache
def _wider(dtype: np.dtype) -> Any:
    """Return the data type to compute in; None for the same. numpy takes a microsecond to make up a type's name."""
    return _WIDER.get(dtype.name)


def narrow(x: Any, dtype: np.dtype) -> np.ndarray:
    """Return the result of a computation as an array of `dtype`; integers wrap around."""
    return np.asarray(x).astype(dtype, copy=False)


def width_bits(dtype: np.dtype) -> int:
    """Return the bits of one element as the standard counts them (4 for int4, though it occupies a byte)."""
    return _SUB_BYTE_BITS.get(dtype.name, dtype.itemsize * 8)


def ints(values: Any) -> tuple[int, ...]:
    """Return a one-dimensional operand (or a list from JSON) as Python ints."""
    return tuple(int(v) for v in np.asarray(values).reshape(-1).tolist())


def scalar_int(value: Any) -> int:
    """Return an operand of one element as a Python int."""
    array = np.asarray(value)
    if array.size != 1:
        raise HostError(f"expected one number, got a tensor of shape {array.shape}")
    return int(array.item())


def optional_operand(inputs: Sequence[Any], index: int) -> Any:
    """Return the operand at `index`, or None when it is absent or omitted."""
    return inputs[index] if index < len(inputs) else None


def normalized_axis(axis: int, rank: int) -> int:
    """Return `axis` counted from the front. Raises `HostError` when the tensor has no such axis."""
    if not -rank <= axis < rank:
        raise HostError(f"axis {axis} is out of range for a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def normalized_axes(axes: Any, rank: int) -> tuple[int, ...]:
    """Return the axes, counted from the front. Raises `HostError` for one out of range or given twice."""
    result = tuple(normalized_axis(a, rank) for a in ints(axes))
    if len(set(result)) != len(result):
        raise HostError(f"axes {ints(axes)} name one axis twice")
    return result


def check_indices(indices: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Return indices into `size` elements, negative ones counted from the end. Raises `HostError` naming the first bad
    one.
    """
    outside = (indices < -size) | (indices >= size)
    if outside.any():
        position = np.unravel_index(int(np.argmax(outside)), indices.shape) if indices.ndim else ()
        bad = int(indices[position])
        where = f" at position {[int(p) for p in position]}" if position else ""
        raise HostError(f"index {bad}{where} is out of range for axis {axis} of size {size}")
    return np.where(indices < 0, indices + size, indices)
