"""Stream-ordered memory, so that nothing waits when it is freed."""

from __future__ import annotations

import weakref
from typing import Any

from .driver import Device, allocate

LEGACY_STREAM = 1
"""Handle of the legacy default stream, the same in DLPack and CUDA."""


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
