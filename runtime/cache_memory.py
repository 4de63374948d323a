"""Growable buffers for caches as numpy arrays, for devices that write to host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from .buffers import address_of
from .device import Worker
from .feeds import dlpack_view
from .types import with_size


class HostCacheMemory:
    """Cache buffers on the host. Users hold a view of a buffer, whose base tells its capacity, or a whole buffer."""

    def given(self, value: Any, dtype: str, stream: Any) -> np.ndarray:
        if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
            value = dlpack_view(value, dtype)
        array = np.asarray(value)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def room(self, array: np.ndarray, axis: int) -> np.ndarray | None:
        if not array.flags.writeable:
            return None
        base = array.base
        buffer = base if base is not None and _is_start(array, base, axis) else array
        return buffer if buffer.flags.c_contiguous and buffer.flags.writeable and buffer.flags.aligned else None

    def place(self, array: Any) -> tuple[int, int]:
        return (address_of(array), array.nbytes) if isinstance(array, np.ndarray) else (0, 0)

    def grown(self, array: np.ndarray, axis: int, capacity: int, worker: Worker) -> np.ndarray:
        buffer = np.empty(with_size(array.shape, axis, capacity), array.dtype)
        _rows(buffer, axis, array.shape[axis])[...] = array
        return buffer

    def copied(self, array: np.ndarray, worker: Worker) -> np.ndarray:
        return array.copy()

    def result(
        self, buffer: np.ndarray, axis: int, length: int, worker: Worker, *, stays: bool, on_device: bool
    ) -> np.ndarray:
        return _rows(buffer, axis, length)


def _is_start(array: np.ndarray, base: np.ndarray, axis: int) -> bool:
    """Return whether an array is the first rows along the axis of its base."""
    if not isinstance(base, np.ndarray) or base.dtype != array.dtype or base.ndim != array.ndim:
        return False
    is_wide = base.shape == with_size(array.shape, axis, base.shape[axis])
    return is_wide and base.ctypes.data == array.ctypes.data and base.strides == array.strides


def _rows(buffer: np.ndarray, axis: int, length: int) -> np.ndarray:
    return buffer[(slice(None),) * axis + (slice(length),)]
