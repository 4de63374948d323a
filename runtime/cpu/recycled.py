"""Memory of large results, used again when the caller has dropped them.

The C library maps memory anew for every large array, and the operating system clears each page when a kernel first
writes to it: for the 206 MB of logits of GPT-2 with 1024 tokens that took half as long as computing them, and for the
twelve caches of 130 KB each of a small decoder a fourth of its step.
"""

from __future__ import annotations

import numpy as np

from tilestitch.runtime.hostmemory import allocated
from tilestitch.runtime.program import Heap, ValueSpec
from tilestitch.runtime.types import TensorType

LEAST_BYTES = 1 << 17
"""From here on the C library maps memory (M_MMAP_THRESHOLD of glibc); smaller arrays come from what it keeps."""


class Recycled:
    """Memory for one result after the other; what is not in use is one block at most.

    Taking and giving back needs no lock: `pop` and `append` of a list are atomic.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._free: list[np.ndarray] = []

    def take(self, nbytes: int, room: int = 0) -> np.ndarray:
        """Undefined bytes at a 64-byte boundary, which come back when no array lies in them any more. A new block has
        `room` for more.

        Raises `ExecutionError` when there is no memory for them.
        """
        try:
            block = self._free.pop()
        except IndexError:
            block = None
        if block is None or block.size < nbytes or block.size > 4 * nbytes:
            block = allocated(nbytes + room, self._what)
        return np.asarray(_Lease(block, self._free))[:nbytes]


class _Lease:
    """What arrays in a block have for a base: numpy keeps it as long as one of them is there."""

    def __init__(self, block: np.ndarray, free: list[np.ndarray]) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        if not self._free:
            self._free.append(self._block)


def recycled(value: ValueSpec) -> Recycled | None:
    """Memory for the results of a value, if they are large."""
    if not isinstance(value.location, Heap) or not isinstance(value.type, TensorType) or not value.type.is_static:
        return None
    return Recycled(f"value {value.name!r}") if value.type.nbytes >= LEAST_BYTES else None
