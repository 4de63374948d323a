"""Aligned buffers in host memory, and the addresses of arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .archive import ALIGNMENT
from .safetensors import Tensor

_nothing, _address = (ctypes.c_char * 0).from_buffer, ctypes.addressof


def address_of(array: Any) -> int:
    """Return the address of a C-contiguous array. numpy's own way (`array.ctypes`) takes three times as long."""
    if array.flags.writeable and array.dtype.isbuiltin == 1:
        return _address(_nothing(array))
    address: int = array.__array_interface__["data"][0]
    return address


def aligned_bytes(size: int, source: np.ndarray | None = None) -> np.ndarray:
    """Return a new 64-byte aligned uint8 array of `size` bytes, filled from `source` if given, else undefined."""
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    start = -address_of(buffer) % ALIGNMENT
    result = buffer[start : start + size]
    if source is not None:
        result[...] = source
    return result


def aligned(raw: np.ndarray) -> np.ndarray:
    """Return bytes (uint8, one-dimensional) read-only and 64-byte aligned, copied only if it is not aligned."""
    if raw.ctypes.data % ALIGNMENT and raw.size:
        raw = aligned_bytes(raw.size, raw)
    view = raw.view()
    view.flags.writeable = False
    return view


def byte_view(array: Tensor) -> memoryview:
    """Return the bytes of an array's elements in C order, copied only if the array is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
