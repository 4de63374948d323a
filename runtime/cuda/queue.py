"""The streams in which a module's work is queued, its own or the user's, copies in that order, and memory in the order
of a stream, so that nothing waits when it is freed.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tilestitch.runtime.device import OnDevice

from .driver import Device, allocate, host_address

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
LEGACY_STREAM = 1
"""Handle of the legacy default stream, the same in DLPack and CUDA."""


class Queue:
    """Orders runs across streams, since they share memory. `stream` is the handle of the stream of the run under
    way.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.run_number = 0
        with device.current():
            # A blocking stream, which synchronises with the legacy default stream both ways: most libraries work there.
            self._own_stream = int(device.call("cuStreamCreate", 0))
            self._done = device.call("cuEventCreate", _NO_TIMING)
        self.stream = self._own_stream
        self.owner: Any = None

    def begin(self, stream: int | None, owner: Any) -> None:
        """Begin a run in `stream` (None: the module's own); the GPU's context is the thread's current one until `end`.
        `owner` keeps the stream alive.
        """
        before, self.stream = self.stream, self._own_stream if stream is None else stream
        self.owner = owner
        self.run_number += 1
        self.device.enter()
        # A run in the module's own stream is finished when it ends.
        if before != self.stream and before != self._own_stream:
            try:
                self.device.call("cuStreamWaitEvent", self.stream, self._done, 0)
            except BaseException:
                self.device.leave()
                raise

    def end(self) -> None:
        """End a run; wait for its work if it was in the module's own stream."""
        try:
            if self.stream == self._own_stream:
                self.device.call("cuStreamSynchronize", self.stream)
            else:
                self.device.call("cuEventRecord", self._done, self.stream)
        finally:
            self.device.leave()

    @property
    def is_asynchronous(self) -> bool:
        """Whether the run under way may return before its work is finished."""
        return self.stream != self._own_stream

    def write(self, address: int, source: np.ndarray | OnDevice) -> None:
        """Queue a copy to the GPU."""
        if isinstance(source, OnDevice):
            if source.nbytes:
                self.device.call("cuMemcpyDtoDAsync", address, source.address, source.nbytes, self.stream)
            return
        host = np.ascontiguousarray(source)
        if host.nbytes:
            self.device.call("cuMemcpyHtoDAsync", address, host_address(host), host.nbytes, self.stream)

    def clear(self, address: int, nbytes: int) -> None:
        """Zero fresh memory and wait; no run may be under way."""
        with self.device.current():
            self.device.call("cuMemsetD8Async", address, 0, nbytes, self._own_stream)
            self.device.call("cuStreamSynchronize", self._own_stream)

    def read(self, address: int, target: np.ndarray) -> None:
        """Copy to a host array after all queued work."""
        host = target if target.flags.c_contiguous else np.empty(target.shape, target.dtype)
        if host.nbytes:
            self.device.call("cuMemcpyDtoHAsync", host_address(host), address, host.nbytes, self.stream)
            self.device.call("cuStreamSynchronize", self.stream)
        if host is not target:
            np.copyto(target, host)

    def wait(self) -> None:
        """Wait for the last run."""
        with self.device.current():
            self.device.call("cuEventSynchronize", self._done)

    def close(self) -> None:
        with self.device.current():
            self.device.call("cuEventDestroy", self._done)
            self.device.call("cuStreamDestroy", self._own_stream)


class StreamMemory:
    """`nbytes` of the GPU's pool, for work in `stream` from now on; the context must be current. Freed with the object.

    `freed_in`: the stream whose work until then precedes the free. When others may have queued work on the memory, all
    work does. `owner` is kept alive until then.
    """

    def __init__(self, device: Device, nbytes: int, purpose: str, stream: int, freed_in: int, owner: Any) -> None:
        self.address = allocate(device, nbytes, purpose, "cuMemAllocFromPoolAsync", device.pool, stream)
        self.freed_in = freed_in
        self._others: list[int | None] = []
        weakref.finalize(self, _free, device, self.address, freed_in, self._others, owner)

    def use_elsewhere(self, stream: int | None) -> None:
        """Note that work on the memory may be queued in this stream besides `freed_in`; None for an unknown stream."""
        if not self._others:
            self._others.append(stream)


def _free(device: Device, address: int, stream: int, others: list[int | None], owner: Any) -> None:
    with device.current():
        if others:
            device.call("cuCtxSynchronize")
        device.call("cuMemFreeAsync", address, stream)
