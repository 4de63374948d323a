"""Memory of results, reused when the caller has dropped them.

The C library maps memory anew for every large array, and the operating system clears each page when a kernel first
writes to it: for the 206 MB of logits of GPT-2 with 1024 tokens that took half as long as computing them, and for the
twelve caches of 130 KB each of a small decoder a fourth of its step.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from tilestitch.runtime.buffers import address_of
from tilestitch.runtime.dtypes import memory_dtype
from tilestitch.runtime.hostmemory import allocated
from tilestitch.runtime.program import ValueSpec
from tilestitch.runtime.types import TensorType

_Block: TypeAlias = tuple[np.ndarray, int, Any]
"""Memory, its address, and the type of its leases."""


class Recycled:
    """Memory for the results of a value, one after the other; at most one block is kept while unused.

    Taking and giving back needs no lock: `pop` and `append` of a list are atomic.
    """

    def __init__(self) -> None:
        self._free: list[_Block] = []
        self._value: ValueSpec | None = None

    def array(self, value: ValueSpec, room: float = 0) -> tuple[np.ndarray, int]:
        """Return an undefined array of the value's type, which has a fixed size, and its 64-byte aligned address. The
        memory is given back when no array refers to it any more. A new block has room for so many times more.

        Raises `ExecutionError` when memory runs out.
        """
        if value is not self._value:
            self._have(value)
        try:
            block = self._free.pop()
        except IndexError:
            block = None
        if block is None or not self._nbytes <= block[0].size <= 4 * self._nbytes:
            memory = allocated(int(self._nbytes * (1 + room)), f"value {value.name!r}")
            block = memory, address_of(memory), _lease_of(memory.size)
        _, address, lease_type = block
        lease = lease_type.from_address(address)
        lease.block, lease.free = block, self._free
        return np.ndarray(self._shape, self._dtype, lease), address

    def _have(self, value: ValueSpec) -> None:
        """Look up what is the same for all results of a type."""
        if not isinstance(value.type, TensorType) or value.type.static_shape is None:
            raise ValueError(f"value {value.name!r} of type {value.type} has no fixed size")
        self._value, self._nbytes = value, value.type.nbytes
        self._shape, self._dtype = value.type.static_shape, memory_dtype(value.type.dtype)


@lru_cache(64)
def _lease_of(nbytes: int) -> Any:
    """Return the type of the base objects of arrays in a block: numpy keeps such an object alive as long as one of them
    lives. An array of ctypes is made in a fourth of the time that an object with `__array_interface__` takes.
    """
    return type("Lease", (ctypes.c_char * nbytes,), {"__del__": _give_back})


def _give_back(lease: Any) -> None:
    if not lease.free:
        lease.free.append(lease.block)
