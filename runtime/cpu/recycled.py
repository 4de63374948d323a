"""Memory of large results, reused when the caller has dropped them.

The C library maps memory anew for every large array, and the operating system clears each page when a kernel first
writes to it: for the 206 MB of logits of GPT-2 with 1024 tokens that took half as long as computing them, and for the
twelve caches of 130 KB each of a small decoder a fourth of its step.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import address_of
from tilestitch.runtime.hostmemory import allocated
from tilestitch.runtime.program import Heap, ValueSpec
from tilestitch.runtime.types import TensorType

LEAST_BYTES = 1 << 17
"""Size from which the C library maps memory for each allocation (M_MMAP_THRESHOLD of glibc); it serves smaller arrays
from its heap.
"""


class Recycled:
    """Memory for a succession of results; at most one block is kept while unused.

    Taking and giving back needs no lock: `pop` and `append` of a list are atomic.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._free: list[np.ndarray] = []

    def take(self, nbytes: int, room: int = 0) -> Any:
        """Return a buffer of at least so many undefined, 64-byte aligned bytes, which is given back when no array
        refers to it any more. A new block has capacity for `room` more.

        Raises `ExecutionError` when memory runs out.
        """
        try:
            block = self._free.pop()
        except IndexError:
            block = None
        if block is None or block.size < nbytes or block.size > 4 * nbytes:
            block = allocated(nbytes + room, self._what)
        lease = _lease_of(block.size).from_address(address_of(block))
        lease.block, lease.free = block, self._free
        return lease


@lru_cache(64)
def _lease_of(nbytes: int) -> Any:
    """Return the type of the base objects of arrays in a block: numpy keeps such an object alive as long as one of them
    lives. An array of ctypes is made in a fourth of the time that an object with `__array_interface__` takes.
    """
    return type("Lease", (ctypes.c_char * nbytes,), {"__del__": _give_back})


def _give_back(lease: Any) -> None:
    if not lease.free:
        lease.free.append(lease.block)


def recycled(value: ValueSpec) -> Recycled | None:
    """Return recycled memory for the results of a value if they are large and of known size, else None."""
    if not isinstance(value.location, Heap) or not isinstance(value.type, TensorType) or not value.type.is_static:
        return None
    return Recycled(f"value {value.name!r}") if value.type.nbytes >= LEAST_BYTES else None
