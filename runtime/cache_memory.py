"""Growable buffers for caches as numpy arrays, for devices that write to host memory."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from .buffers import address_of
from .device import Worker
from .feeds import as_array
from .types import with_size


class HostCacheMemory:
    """Cache buffers on the host. Users hold a view of a buffer, whose base tells its capacity, or a whole buffer. Other
    libraries' views have no base, but begin where a buffer does.
    """

    def __init__(self) -> None:
        self._made = WeakValueDictionary[int, np.ndarray]()

    def given(self, name: str, value: Any, dtype: str, stream: Any) -> np.ndarray:
        if type(value) is np.ndarray and value.dtype.isnative:
            return value
        array = as_array(value, dtype, name)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def room(self, array: np.ndarray, axis: int) -> np.ndarray | None:
        if not array.flags.writeable:
            return None
        base: Any = array.base
        if base is not None and not isinstance(base, np.ndarray):
            base = self._made.get(_begin(array, axis))
        buffer = base if base is not None and _is_start(array, base, axis) else array
        flags = buffer.flags
        return buffer if flags.c_contiguous and flags.writeable and flags.aligned else None

    def place(self, array: Any) -> tuple[int, int]:
        return (address_of(array), array.nbytes) if isinstance(array, np.ndarray) else (0, 0)

    def grown(self, array: np.ndarray, axis: int, capacity: int, worker: Worker) -> np.ndarray:
        buffer = np.empty(with_size(array.shape, axis, capacity), array.dtype)
        _rows(buffer, axis, array.shape[axis])[...] = array
        self._made[address_of(buffer)] = buffer
        return buffer

    def copied(self, array: np.ndarray, worker: Worker) -> np.ndarray:
        return array.copy()

    def result(
        self, buffer: np.ndarray, axis: int, length: int, worker: Worker, *, stays: bool, on_device: bool
    ) -> np.ndarray:
        return buffer if length == buffer.shape[axis] else _rows(buffer, axis, length)


def _is_start(array: np.ndarray, base: np.ndarray, axis: int) -> bool:
    """Return whether an array is the first rows along the axis of its base, which has no gaps."""
    if base.dtype != array.dtype or base.strides != array.strides:
        return False
    shape = base.shape
    if shape != with_size(array.shape, axis, shape[axis]) or not base.flags.c_contiguous:
        return False
    return _begin(array, axis) == address_of(base)


def _begin(array: np.ndarray, axis: int) -> int:
    """Return an array's address. Of what has gaps numpy tells it slowly; the first block of rows has none."""
    return address_of(array if array.flags.c_contiguous else array[(0,) * axis])


def _rows(buffer: np.ndarray, axis: int, length: int) -> np.ndarray:
    return buffer[(slice(None),) * axis + (slice(length),)]
