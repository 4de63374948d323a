"""The streams in which a module's work is queued, its own or the user's, and copies in that order."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilestitch.runtime.device import OnDevice

from .driver import Device, host_address

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


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
