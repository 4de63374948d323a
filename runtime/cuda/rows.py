"""Caches in a GPU's memory: buffers with room for more rows, and views of their rows for users."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilestitch.runtime.cache_memory import HostCacheMemory
from tilestitch.runtime.device import OnDevice
from tilestitch.runtime.types import with_size

from . import dlpack
from .array import DeviceArray
from .driver import Device, host_address
from .queue import LEGACY_STREAM


class Worker(Protocol):
    """The part of a GPU's worker that makes buffers (`backend.CudaWorker`)."""

    def empty(self, dtype: np.dtype, shape: tuple[int, ...]) -> DeviceArray: ...

    def write(self, target: OnDevice, source: np.ndarray | OnDevice) -> None: ...

    def read(self, source: OnDevice, target: np.ndarray) -> None: ...

    def queued(self, array: DeviceArray, shape: tuple[int, ...]) -> DeviceArray: ...

    def copy_pitched(self, target: Pitched, source: Pitched, rows: int) -> None: ...


class DeviceRows:
    """The first rows along `axis` of a buffer in a GPU's memory. Passed back as a donated cache, the next run stores
    its rows after them. Other libraries access them through DLPack or `__cuda_array_interface__`, with strides.
    """

    def __init__(self, buffer: DeviceArray, axis: int, length: int) -> None:
        self.buffer, self.axis = buffer, axis
        self.dtype, self.shape = buffer.dtype, with_size(buffer.shape, axis, length)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return tuple(prod(self.buffer.shape[axis + 1 :]) for axis in range(self.ndim))

    def numpy(self) -> np.ndarray:
        """Return a copy in host memory, made after all work queued before."""
        result, device = np.empty(self.shape, self.dtype), self.buffer.device
        with device.current():
            device.call("cuCtxSynchronize")
            here, there = _of_host(result, self.axis), _of_device(self.buffer, self.axis)
            copy_pitched(device, here, there, self.shape[self.axis], LEGACY_STREAM)
            device.call("cuStreamSynchronize", LEGACY_STREAM)
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array in a GPU's memory cannot become a numpy array without a copy")
        return self.numpy().astype(dtype or self.dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = tuple(stride * self.dtype.itemsize for stride in self.strides)
        return {**self.buffer.__cuda_array_interface__, "shape": self.shape, "strides": strides}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """Return a capsule, as `DeviceArray` does."""
        self.buffer.lend(stream)
        ordinal = self.buffer.device.ordinal
        return dlpack.make(self.buffer.address, ordinal, self.dtype, self.shape, self.buffer, self.strides)

    def __repr__(self) -> str:
        room = self.buffer.shape[self.axis]
        return f"DeviceRows({self.dtype.name}{list(self.shape)}, room for {room}, on {self.buffer.device})"


class CudaCacheMemory:
    """Cache buffers on a GPU. `adopt` is the backend's."""

    def __init__(self, adopt: Callable[[Any, Any], Any]) -> None:
        self._adopt, self._host = adopt, HostCacheMemory()

    def given(self, name: str, value: Any, dtype: str, stream: Any) -> Any:
        if isinstance(value, DeviceRows):
            return DeviceRows(self._adopt(value.buffer, stream), value.axis, value.shape[value.axis])
        found = self._adopt(value, stream)
        return self._host.given(name, value, dtype, stream) if found is None else found

    def room(self, array: Any, axis: int) -> DeviceArray | None:
        return array.buffer if isinstance(array, DeviceRows) and array.axis == axis else None

    def place(self, array: Any) -> tuple[int, int]:
        return (array.address, array.nbytes) if isinstance(array, OnDevice) else (0, 0)

    def grown(self, array: Any, axis: int, capacity: int, worker: Worker) -> DeviceArray:
        """Return a new buffer with these rows; rows along another axis are copied through the host."""
        if isinstance(array, DeviceRows) and array.axis != axis:
            array = array.numpy()
        buffer = worker.empty(array.dtype, with_size(array.shape, axis, capacity))
        if 0 in array.shape:
            return buffer
        there = array.buffer if isinstance(array, DeviceRows) else array
        source = _of_device(there, axis) if isinstance(there, OnDevice) else _of_host(there, axis)
        worker.copy_pitched(_of_device(buffer, axis), source, array.shape[axis])
        return buffer

    def copied(self, array: OnDevice, worker: Worker) -> DeviceArray:
        copy = worker.empty(array.dtype, array.shape)
        worker.write(copy, array)
        return copy

    def result(
        self, buffer: DeviceArray, axis: int, length: int, worker: Worker, *, stays: bool, on_device: bool
    ) -> Any:
        """Return the rows for the user. Donated rows stay on the GPU, wherever other results go; others lose the spare
        capacity.
        """
        shape = buffer.shape if stays else with_size(buffer.shape, axis, length)
        array = worker.queued(buffer, shape)
        if stays:
            return DeviceRows(array, axis, length)
        if on_device:
            return array
        host = np.empty(shape, array.dtype)
        worker.read(array, host)
        return host


def _of_device(array: OnDevice, axis: int) -> Pitched:
    return Pitched(array.address, *_rows(array, axis), on_host=False)


def _of_host(array: np.ndarray, axis: int) -> Pitched:
    host = np.ascontiguousarray(array)
    return Pitched(host_address(host), *_rows(host, axis), on_host=True, owner=host)


def _rows(array: Any, axis: int) -> tuple[int, int, int]:
    """Return the bytes of a row, the number of contiguous rows, and the number of such blocks."""
    return array.dtype.itemsize * prod(array.shape[axis + 1 :]), array.shape[axis], prod(array.shape[:axis])


class Pitched(NamedTuple):
    """`times` contiguous blocks of `rows` contiguous rows of `row_bytes` each, on the host or on the GPU. `owner` keeps
    the memory alive.
    """

    address: int
    row_bytes: int
    rows: int
    times: int
    on_host: bool
    owner: Any = None


def copy_pitched(device: Device, target: Pitched, source: Pitched, rows: int, stream: int) -> None:
    """Queue a copy of the first `rows` rows of each of the `times` blocks; the context must be current."""
    api = device.api
    copy = api.CUDA_MEMCPY2D()
    copy.srcMemoryType, copy.dstMemoryType = (
        api.CUmemorytype.CU_MEMORYTYPE_HOST if end.on_host else api.CUmemorytype.CU_MEMORYTYPE_DEVICE
        for end in (source, target)
    )
    copy.srcHost, copy.srcDevice = (source.address, 0) if source.on_host else (0, source.address)
    copy.dstHost, copy.dstDevice = (target.address, 0) if target.on_host else (0, target.address)
    copy.srcPitch, copy.dstPitch = source.row_bytes * source.rows, target.row_bytes * target.rows
    copy.WidthInBytes, copy.Height = target.row_bytes * rows, target.times
    if copy.WidthInBytes and copy.Height:
        device.call("cuMemcpy2DAsync", copy, stream)
