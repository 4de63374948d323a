"""Where a module's work is queued: a stream of its own, or the user's; and copies in that order."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilestitch.runtime.device import OnDevice

from .driver import Device, host_address

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


class Queue:
    """Orders runs whatever stream each is in: they share memory. `stream` is the handle of the run under way's."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.run_number = 0
        with device.current():
            # A stream that the legacy default stream waits for, and the other way round: most libraries work there.
            self._own_stream = int(device.call("cuStreamCreate", 0))
            self._done = device.call("cuEventCreate", _NO_TIMING)
        self.stream = self._own_stream
        self.owner: Any = None

    def begin(self, stream: int | None, owner: Any) -> None:
        """Start a run in `stream`, None for an own one; the GPU's context is the thread's current one until `end`.
        `owner` keeps the stream.
        """
        before, self.stream = self.stream, self._own_stream if stream is None else stream
        self.owner = owner
        self.run_number += 1
        self.device.enter()
        # A run in the own stream is over when it ends.
        if before != self.stream and before != self._own_stream:
            try:
                self.device.call("cuStreamWaitEvent", self.stream, self._done, 0)
            except BaseException:
                self.device.leave()
                raise

    def end(self) -> None:
        """End a run; wait for its work when it was in the own stream."""
        try:
            if self.stream == self._own_stream:
                self.device.call("cuStreamSynchronize", self.stream)
            else:
                self.device.call("cuEventRecord", self._done, self.stream)
        finally:
            self.device.leave()

    @property
    def is_asynchronous(self) -> bool:
        """Whether the run under way may return before its work is done."""
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
        """Set fresh memory to 0 and wait for it; no run is under way."""
        with self.device.current():
            self.device.call("cuMemsetD8Async", address, 0, nbytes, self._own_stream)
            self.device.call("cuStreamSynchronize", self._own_stream)

    def read(self, address: int, target: np.ndarray) -> None:
        """Copy to a host array what is there after all that is queued."""
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
