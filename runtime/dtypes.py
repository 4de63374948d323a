"""Data types by name, as they are laid out in memory at run time.

One element takes a whole number of bytes: int4, uint4, int2, uint2 and float4 take one byte each, as `ml_dtypes` stores
them.
`string` has no fixed size and is held in object arrays that only host steps touch.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from .errors import UnsupportedError

_NUMPY_BYTES = {
    "bool": 1,
    "float16": 2, "float32": 4, "float64": 8,
    "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip

_ML_DTYPES_BYTES = {
    "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn": 1,
    "int4": 1, "uint4": 1, "int2": 1, "uint2": 1,
}  # fmt: skip

ITEM_BYTES = {**_NUMPY_BYTES, **_ML_DTYPES_BYTES}
"""Bytes of one element of each data type with a fixed size."""

DTYPES = frozenset(ITEM_BYTES) | {"string"}
"""Every data type name that an artifact may hold."""


@cache
def numpy_dtype(name: str) -> np.dtype:
    """Return the numpy data type of `name`; imports `ml_dtypes` only for types that numpy lacks.

    Raises `UnsupportedError` when `ml_dtypes` is needed and absent, or too old to have the type.
    """
    if name in _NUMPY_BYTES:
        return np.dtype(name)
    if name == "string":
        return np.dtype(object)
    if name not in _ML_DTYPES_BYTES:
        raise UnsupportedError(f"unknown data type {name!r}; known are {', '.join(sorted(DTYPES))}")
    try:
        import ml_dtypes
    except ImportError as error:
        raise UnsupportedError(f"the model has {name} tensors, which need ml_dtypes: pip install ml_dtypes") from error
    if not hasattr(ml_dtypes, name):
        raise UnsupportedError(f"ml_dtypes {ml_dtypes.__version__} has no {name}: pip install --upgrade ml_dtypes")
    return np.dtype(getattr(ml_dtypes, name))


@cache
def memory_dtype(name: str) -> np.dtype:
    """Return the numpy data type of values that only kernels read and write: `numpy_dtype`, or raw bytes under that
    name where `ml_dtypes` is needed and absent: they can be moved, not computed on. Raises `UnsupportedError` for an
    unknown name.
    """
    try:
        return numpy_dtype(name)
    except UnsupportedError:
        if name not in _ML_DTYPES_BYTES:
            raise
    return np.dtype([(name, f"V{ITEM_BYTES[name]}")])


@cache
def dtype_name(dtype: np.dtype) -> str:
    """Return the name of a numpy data type; numpy's own name for one that no artifact holds."""
    if dtype.kind in "OSUT":
        return "string"
    return dtype.name
