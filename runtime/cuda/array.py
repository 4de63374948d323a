"""Arrays in a GPU's memory: our own, and views of other libraries' arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tilestitch.runtime.device import OnDevice
from tilestitch.runtime.errors import InputError

from . import dlpack
from .driver import Device, host_address
from .queue import LEGACY_STREAM, StreamMemory


class DeviceArray(OnDevice):
    """A C-contiguous array in the memory of `device`; `owner` keeps the memory alive.

    `queued_in`: handle of the stream in which work on it may be under way; None when it is finished.
    """

    def __init__(
        self,
        device: Device,
        address: int,
        dtype: np.dtype,
        shape: tuple[int, ...],
        owner: object,
        queued_in: int | None = None,
    ) -> None:
        self.device, self.address, self.dtype, self.shape = device, address, dtype, shape
        self.queued_in = queued_in
        self._owner = owner
        self._ordered = owner if isinstance(owner, StreamMemory) else None

    def use_in(self, stream: int | None) -> None:
        """Note that work on the array may be queued in this stream (None: in any), and outlast the object."""
        if self._ordered is not None and self._ordered.freed_in != stream:
            self._ordered.use_elsewhere(stream)

    def lend(self, stream: int | None) -> None:
        """Hand the memory to a consumer of DLPack that works in this stream."""
        if self.queued_in is not None and stream != -1 and stream != self.queued_in:
            self.device.synchronize()
        self.use_in(LEGACY_STREAM if stream is None else None if stream == -1 else stream)

    def written(self, shape: tuple[int, ...], queued_in: int | None) -> DeviceArray:
        """Return the array, or its first elements, after work in this stream; None for finished work."""
        return DeviceArray(self.device, self.address, self.dtype, shape, self._owner, queued_in)

    def numpy(self) -> np.ndarray:
        result = np.empty(self.shape, self.dtype)
        with self.device.current():
            self.device.call("cuCtxSynchronize")
            if result.nbytes:
                self.device.call("cuMemcpyDtoH", host_address(result), self.address, result.nbytes)
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array in a GPU's memory cannot become a numpy array without a copy")
        return self.numpy().astype(dtype or self.dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind == "V":
            raise AttributeError(f"__cuda_array_interface__ has no data type {self.dtype.name}; use DLPack")
        self.use_in(None)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self.queued_in or None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """Return a capsule. Waits for work queued in another stream than the consumer's, unless that is -1."""
        self.lend(stream)
        return dlpack.make(self.address, self.device.ordinal, self.dtype, self.shape, self)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype.name}{list(self.shape)} on {self.device})"


def adopt(device: Device, value: Any, stream: int) -> DeviceArray | None:
    """Return a view of any library's array in the memory of `device`, ready for work queued in `stream`; None for an
    array elsewhere.

    Raises `InputError` for an array of another GPU, and for one that is not C-contiguous.
    """
    if isinstance(value, DeviceArray):
        if value.device is not device and value.device.ordinal != device.ordinal:
            raise InputError(f"an array is on {value.device}, but the model on {device}; copy it there first")
        if value.queued_in is not None:
            _wait_for(device, value.queued_in, stream)
        return value
    if hasattr(value, "__dlpack_device__") and hasattr(value, "__dlpack__"):
        kind, ordinal = (int(part) for part in value.__dlpack_device__())
        if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
            return None
        _check_ordinal(device, ordinal)
        view = dlpack.read(value.__dlpack__(stream=stream or LEGACY_STREAM))
        return None if view is None else _adopt_view(device, view)
    interface = getattr(value, "__cuda_array_interface__", None)
    return None if interface is None else _adopt_interface(device, interface, value, stream)


def _adopt_view(device: Device, view: dlpack.View) -> DeviceArray:
    if not view.contiguous:
        view.release()
        raise InputError(f"an array {list(view.shape)} on the GPU is not C-contiguous; make it so first")
    lease = _Lease(view.release)
    return DeviceArray(device, view.address, view.dtype, view.shape, lease)


class _Lease:
    """Owner of another library's array, which gives it back when it is no longer used."""

    def __init__(self, release: Callable[[], None]) -> None:
        weakref.finalize(self, release)


def _adopt_interface(device: Device, interface: dict[str, Any], owner: object, stream: int) -> DeviceArray:
    dtype = np.dtype(interface["typestr"])
    shape = tuple(int(size) for size in interface["shape"])
    strides = interface.get("strides")
    if strides is not None and not dlpack.is_contiguous(shape, tuple(s // dtype.itemsize for s in strides)):
        raise InputError(f"an array {list(shape)} on the GPU is not C-contiguous; make it so first")
    address = int(interface["data"][0])
    if address and 0 not in shape and not device.owns(address):
        raise InputError(f"an array lies on another GPU than the model, which is on {device}; copy it there first")
    _wait_for(device, interface.get("stream"), stream)
    return DeviceArray(device, address, dtype, shape, owner)


def _check_ordinal(device: Device, ordinal: int) -> None:
    if ordinal != device.ordinal:
        raise InputError(f"an array is on GPU {ordinal}, but the model on {device}; copy it there first")


def _wait_for(device: Device, queued_in: int | None, stream: int) -> None:
    """Make `stream` wait for all work queued so far in another stream."""
    if queued_in is None or queued_in == stream:
        return
    with device.current():
        event = device.call("cuEventCreate", 2)  # CU_EVENT_DISABLE_TIMING
        try:
            device.call("cuEventRecord", event, queued_in)
            device.call("cuStreamWaitEvent", stream, event, 0)
        finally:
            device.call("cuEventDestroy", event)


def stream_handle(stream: Any) -> int:
    """Return the handle of any library's stream, `LEGACY_STREAM` for the default one. Raises `InputError` for other
    objects.
    """
    if isinstance(stream, (int, np.integer)) and not isinstance(stream, bool):
        return int(stream) or LEGACY_STREAM
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1]) or LEGACY_STREAM
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, Numba and cuda-core
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or LEGACY_STREAM)
    raise InputError(f"stream is a {type(stream).__name__}; give a CUDA stream's handle or an object that has one")
