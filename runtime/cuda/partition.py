"""A GPU's multiprocessors divided among models: each partition is a green context, and no two share a multiprocessor.

Only kernels belong to a partition: as nodes of a graph with its context, or in a stream of its own. Memory, other
streams and events are of the primary context. So arrays pass between partitions, and from and to other libraries, as
they do on the whole GPU.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilestitch.runtime.errors import DeviceError

from .driver import CudaError, Device

SINCE_CUDA = 12040
"""The first driver with green contexts, by the version of CUDA that it reports."""

_DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM, which drivers before CUDA 13.1 require
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, which streams of green contexts must be


class Units(NamedTuple):
    """The least sets of multiprocessors that the driver separates, as its resources. All are of one split, as only such
    can be put together.
    """

    resources: list[Any]
    size: int

    @property
    def multiprocessors(self) -> int:
        return len(self.resources) * self.size


class Partition:
    """At least so many multiprocessors of one GPU, which no other partition has. Models that are loaded on the same
    partition share it.
    """

    def __init__(self, device: Device, multiprocessors: int) -> None:
        if isinstance(multiprocessors, bool) or not isinstance(multiprocessors, int) or multiprocessors < 1:
            raise DeviceError(f"multiprocessors is {multiprocessors!r}; give a whole number of at least 1")
        self.device, self.asked = device, multiprocessors
        self._models = 0
        shares = _shares_of(device)
        taken = shares.take(device, multiprocessors)
        self.multiprocessors = len(taken) * shares.units.size
        try:
            resources = [shares.units.resources[number] for number in taken]
            description = device.call("cuDevResourceGenerateDesc", resources, len(resources))
            green = device.call("cuGreenCtxCreate", description, device.handle, _DEFAULT_STREAM)
        except BaseException:
            shares.give_back(taken)
            raise
        self._green = green
        self._destroy = weakref.finalize(self, _destroy, device, green, shares, taken)
        self.context = device.call("cuCtxFromGreenCtx", green)
        """The context of nodes of a graph that run here, whatever stream the graph is launched in."""

    def new_stream(self) -> int:
        """Return a stream whose kernels run here, ordered with no other. Destroy it before the partition is closed."""
        return int(self.device.call("cuGreenCtxStreamCreate", self._green, _NON_BLOCKING, 0))

    def add_model(self) -> None:
        """Keep the partition until `remove_model`: graphs have its context. Raises `DeviceError` if it is closed."""
        if not self._destroy.alive:
            raise DeviceError(f"the partition of {self} is closed; load on another")
        self._models += 1

    def remove_model(self) -> None:
        self._models -= 1

    def close(self) -> None:
        """Give the multiprocessors back. Raises `DeviceError` while models are loaded on them."""
        if self._models:
            raise DeviceError(f"the partition of {self} is in use ({self._models} loaded models); close them first")
        self._destroy()

    def __enter__(self) -> Partition:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"{self.multiprocessors} multiprocessors of {self.device}"


@dataclass(frozen=True)
class Lease:
    """A model's use of a partition, which ends with it if it is its own; None for the whole GPU."""

    partition: Partition | None
    is_own: bool = False

    @staticmethod
    def of(device: Device, wanted: int | Partition | None) -> Lease:
        """Return the lease of so many multiprocessors or of a partition. Raises `DeviceError` if it cannot be had."""
        if wanted is None:
            return Lease(None)
        is_own = not isinstance(wanted, Partition)
        partition = wanted if isinstance(wanted, Partition) else Partition(device, wanted)
        if partition.device is not device:
            raise DeviceError(f"the partition of {partition} is given, and the model is loaded on {device}")
        partition.add_model()
        return Lease(partition, is_own)

    def end(self) -> None:
        if self.partition is not None:
            self.partition.remove_model()
            if self.is_own:
                self.partition.close()


def _destroy(device: Device, green: Any, shares: _Shares, taken: list[int]) -> None:
    device.call("cuGreenCtxDestroy", green)
    shares.give_back(taken)


class _Shares:
    """Which units of a GPU no partition has."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self._lock = threading.Lock()
        self._free = list(range(len(units.resources)))

    def take(self, device: Device, multiprocessors: int) -> list[int]:
        """Take units with at least so many multiprocessors. Raises `DeviceError` if there are not that many free."""
        size, most = self.units.size, self.units.multiprocessors
        wanted = -(-multiprocessors // size)
        if wanted * size > most:
            raise DeviceError(
                f"{multiprocessors} multiprocessors were asked for, and {device} gives partitions of {size} and its "
                f"multiples up to {most}, of {device.attribute('MULTIPROCESSOR_COUNT')}; ask for fewer, or leave "
                "multiprocessors out for the whole GPU"
            )
        with self._lock:
            free = len(self._free) * size
            if wanted * size > free:
                raise DeviceError(
                    f"{multiprocessors} multiprocessors were asked for, which take {wanted * size} of {device}, and "
                    f"{free} of {most} are free; close models or partitions that have the others, or ask for fewer"
                )
            taken, self._free = self._free[:wanted], self._free[wanted:]
        return taken

    def give_back(self, taken: list[int]) -> None:
        with self._lock:
            self._free = sorted([*self._free, *taken])


_shares: weakref.WeakKeyDictionary[Device, _Shares] = weakref.WeakKeyDictionary()
_shares_lock = threading.Lock()


def _shares_of(device: Device) -> _Shares:
    with _shares_lock:
        if device not in _shares:
            _shares[device] = _Shares(_split(device))
        return _shares[device]


def divisible(device: Device) -> Units:
    """Return the least sets of multiprocessors. Raises `DeviceError` where the driver or GPU cannot separate any."""
    return _shares_of(device).units


def _split(device: Device) -> Units:
    """Split all multiprocessors into the least sets. Raises `DeviceError` where the driver or GPU has no such thing."""
    version = int(device.call("cuDriverGetVersion"))
    if version < SINCE_CUDA:
        raise DeviceError(
            f"partitions of multiprocessors need a driver of CUDA 12.4, this one is of CUDA {version // 1000}."
            f"{version % 1000 // 10}; upgrade the NVIDIA driver, or leave multiprocessors out"
        )
    kind = device.api.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    try:
        everything = device.call("cuDeviceGetDevResource", device.handle, kind)
        count = int(everything.sm.smCount)
        # As many groups of one multiprocessor as there could be: the driver rounds both to what the GPU allows.
        groups, count, _ = device.call("cuDevSmResourceSplitByCount", count, everything, 0, 1)
    except CudaError as error:
        raise DeviceError(
            f"{device} cannot be divided ({error.status}); leave multiprocessors out for the whole GPU"
        ) from error
    resources = list(groups[: int(count)])
    return Units(resources, int(resources[0].sm.smCount))
