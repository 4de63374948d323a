"""The CUDA driver API with every call checked, and a GPU's primary context.

`cuda.bindings.driver` is imported when the first device is opened, never before.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import address_of
from tilestitch.runtime.errors import DeviceError

_RESTART = "the GPU's state is lost for this process: start it again"
_REMEDIES = {
    "CUDA_ERROR_NO_DEVICE": "run on a machine with an NVIDIA GPU, or load with device='emulator'",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "install a driver whose kernel module and library are of one version",
    "CUDA_ERROR_OUT_OF_MEMORY": "free memory of the GPU, or use another GPU with device='cuda:N'",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "upgrade the NVIDIA driver, or compile for this GPU's own architecture",
    "CUDA_ERROR_ILLEGAL_ADDRESS": _RESTART,
    "CUDA_ERROR_LAUNCH_FAILED": _RESTART,
    "CUDA_ERROR_MISALIGNED_ADDRESS": _RESTART,
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "compile again for this very GPU, whose multiprocessors are fewer",
}


class CudaError(DeviceError):
    """Failure of a driver call. `status` is the driver's name of the error."""

    def __init__(self, call: str, status: str) -> None:
        self.status = status
        remedy = _REMEDIES.get(status, "look the code up in NVIDIA's driver API manual, and report it as a bug")
        super().__init__(f"CUDA: {call} failed with {status}; {remedy}")


class Driver:
    """Caller of driver functions by name that raises `CudaError` for every status but success."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self._functions: dict[str, Callable[..., Any]] = {}
        self._entries: dict[str, Any] = {}

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call a function and return what it returns after its status: None, one value, or a tuple of values."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = getattr(self.api, name)
        result = function(*arguments)
        if result[0]:  # CUDA_SUCCESS is 0
            raise CudaError(name, result[0].name)
        count = len(result)
        return None if count == 1 else result[1] if count == 2 else result[1:]

    def entry(self, name: str, version: int, prototype: Callable[[int], Any]) -> Any:
        """Return a driver function for ctypes, in the form that it has had since `version`; it returns its status."""
        found = self._entries.get(name)
        if found is None:
            address, _ = self("cuGetProcAddress", name.encode(), version, 0)
            found = self._entries[name] = prototype(address)
        return found


def load_driver() -> Driver:
    """Return the driver of this machine. Raises `DeviceError` when the package, the driver or every GPU is missing."""
    try:
        api = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceError(f"GPUs need the package cuda-bindings ({error}): pip install 'tilestitch[cuda]'") from error
    driver = Driver(api)
    try:
        driver("cuInit", 0)
    except RuntimeError as error:  # the first call opens libcuda.so.1
        raise DeviceError(
            f"there is no NVIDIA driver on this machine ({str(error).strip().splitlines()[0]}); install one, or load "
            "with device='emulator'"
        ) from error
    return driver


def _release(driver: Driver, handle: Any, pools: list[Any]) -> None:
    while pools:
        driver("cuMemPoolDestroy", pools.pop())
    driver("cuDevicePrimaryCtxRelease", handle)


class Device:
    """One GPU. The object holds the primary context; arrays and modules keep the object alive."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        count = driver("cuDeviceGetCount")
        if ordinal >= count:
            known = ", ".join(f"cuda:{number}" for number in range(count)) or "none"
            raise DeviceError(f"there is no GPU number {ordinal}; there are {known}")
        self.call = driver
        self.api = driver.api
        self.ordinal = ordinal
        self.handle = driver("cuDeviceGet", ordinal)
        self.name = driver("cuDeviceGetName", 256, self.handle).split(b"\0")[0].decode(errors="replace")
        self._context = driver("cuDevicePrimaryCtxRetain", self.handle)
        self._pools: list[Any] = []
        self._pool_lock = threading.Lock()
        self._release = weakref.finalize(self, _release, driver, self.handle, self._pools)

    def attribute(self, name: str) -> int:
        """Return the value of `CU_DEVICE_ATTRIBUTE_<name>`."""
        attribute = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", attribute, self.handle))

    @property
    def capability(self) -> tuple[int, int]:
        """Major and minor version of the compute capability."""
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU's context the thread's current one for the duration of the block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Make this GPU's context the thread's current one until `leave`."""
        self.call("cuCtxPushCurrent", self._context)

    def leave(self) -> None:
        self.call("cuCtxPopCurrent")

    @cached_property
    def has_pools(self) -> bool:
        """Whether the GPU has stream-ordered memory pools; some virtual GPUs do not."""
        return self.attribute("MEMORY_POOLS_SUPPORTED") == 1

    @property
    def pool(self) -> Any:
        """Handle of a stream-ordered memory pool. Freed memory stays in it for reuse until memory runs out or the
        device is closed.
        """
        with self._pool_lock:
            if not self._pools:
                self._pools.append(self._new_pool())
            return self._pools[0]

    def _new_pool(self) -> Any:
        api = self.api
        wanted = api.CUmemPoolProps()
        wanted.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = self.ordinal
        pool = self.call("cuMemPoolCreate", wanted)
        threshold = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.call("cuMemPoolSetAttribute", pool, threshold, api.cuuint64_t(2**64 - 1))
        return pool

    def trim(self) -> bool:
        """Give the pool's unused memory back to the GPU after all work; False if there is no pool."""
        if not self._pools:
            return False
        self.synchronize()
        self.call("cuMemPoolTrimTo", self._pools[0], 0)
        return True

    def synchronize(self) -> None:
        """Wait for all work queued on the GPU by this process."""
        with self.current():
            self.call("cuCtxSynchronize")

    def owns(self, address: int) -> bool:
        """Return whether an address lies in this GPU's memory."""
        attribute = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        with self.current():
            return bool(int(self.call("cuPointerGetAttribute", attribute, address)) == self.ordinal)

    def __str__(self) -> str:
        return f"GPU {self.ordinal} ({self.name})"


class Allocation:
    """`nbytes` of a GPU's memory at `address`, 256-byte aligned; freed after all work, by `close` or with the
    object.
    """

    def __init__(self, device: Device, nbytes: int, purpose: str) -> None:
        self.device = device
        self.nbytes = nbytes
        with device.current():
            self.address = allocate(device, nbytes, purpose, "cuMemAlloc")
        self.close = weakref.finalize(self, _free, device, self.address)


def allocate(device: Device, nbytes: int, purpose: str, function: str, *arguments: Any) -> int:
    """Allocate `nbytes` with a driver function and return the address; if memory runs out, retry after trimming the
    pool.

    Raises `DeviceError` that says how much is free.
    """
    is_trimmed = False
    while True:
        try:
            return int(device.call(function, max(nbytes, 1), *arguments))
        except CudaError as error:
            if error.status != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            if is_trimmed or not device.trim():
                free, total = device.call("cuMemGetInfo")
                raise DeviceError(
                    f"{device} has no memory for {nbytes / 2**20:.1f} MiB of {purpose}: {free / 2**20:.1f} of "
                    f"{total / 2**20:.1f} MiB are free; free some, or use another GPU with device='cuda:N'"
                ) from error
            is_trimmed = True


def _free(device: Device, address: int) -> None:
    with device.current():
        device.call("cuMemFree", address)


def host_address(array: np.ndarray) -> int:
    """Return the address of a C-contiguous host array, also of an empty or read-only one."""
    return address_of(array)
