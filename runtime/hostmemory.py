"""Host memory: which values get fixed addresses, and the arena of a program, for the CPU and the emulated device."""

from __future__ import annotations

import numpy as np

from .buffers import aligned_bytes
from .dtypes import memory_dtype
from .errors import DeviceError, ExecutionError
from .program import Arena, Program, ValueSpec
from .sizes import known
from .types import TensorType
from .weights import typed_weight

SMALL_BYTES = 16384
"""Bytes that are copied in the half microsecond that asking numpy for an address takes."""


def is_small(value: ValueSpec) -> bool:
    """Return whether copying the value costs less than looking up an array's address."""
    return isinstance(value.type, TensorType) and value.type.is_static and value.type.nbytes <= SMALL_BYTES


def empty_tensor(value: ValueSpec) -> np.ndarray:
    """Return an uninitialised, 64-byte aligned array for a value whose type is static.

    Raises `ExecutionError` when there is no memory for it.
    """
    if not isinstance(value.type, TensorType) or value.type.static_shape is None:
        raise ValueError(f"value {value.name!r} of type {value.type} has no fixed size")
    memory = allocated(value.type.nbytes, f"value {value.name!r}")
    return np.ndarray(value.type.static_shape, memory_dtype(value.type.dtype), memory)


def allocated(nbytes: int, what: str) -> np.ndarray:
    """Return undefined, 64-byte aligned bytes. Raises `ExecutionError`, which names `what`, when memory runs out."""
    try:
        return aligned_bytes(nbytes)
    except (MemoryError, ValueError, OverflowError) as error:
        raise ExecutionError(f"there is no memory for {what}, {nbytes} bytes; free some") from error


class HostArena:
    """A program's arena, and views of the values in it. With symbols it is empty at first, and grows."""

    def __init__(self, program: Program, file: str) -> None:
        self._file = file
        self.raw = self._allocated(0 if program.symbols else known(program.arena_bytes))

    def reserve(self, nbytes: int) -> None:
        """Reserve at least so many bytes. If the arena grows its contents are lost; views of the old one stay valid."""
        have = self.raw.size
        if nbytes > have:
            self.raw = np.empty(0, np.uint8)  # free the old one first
            self.raw = self._allocated(max(nbytes, have + have // 4))

    def _allocated(self, nbytes: int) -> np.ndarray:
        try:
            return aligned_bytes(nbytes)
        except (MemoryError, ValueError, OverflowError) as error:
            need = f"{nbytes} bytes for intermediate values"
            raise DeviceError(f"{self._file}: there is no memory for {need}; free some") from error

    def view(self, value: ValueSpec) -> np.ndarray:
        """Return the array of an arena value."""
        if not isinstance(value.location, Arena) or not isinstance(value.type, TensorType):
            raise ValueError(f"value {value.name!r} is not in the arena")
        start = known(value.location.offset_bytes)
        raw = self.raw[start : start + value.type.nbytes]
        return typed_weight(raw, value.type.dtype, value.type.static_shape or ())

    def overlaps(self, array: np.ndarray) -> bool:
        return np.may_share_memory(array, self.raw)
