"""Bytes that a launch moves between its threads and global memory, counted access by access."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Traffic", "traffic_of", "traffic_records"]


@dataclass(frozen=True)
class Traffic:
    """Bytes of the argument `name` (of a model: the value's name) that the threads of one launch read and wrote.

    `bytes_read` and `bytes_written` count every access of every thread, and those of the copy engine; the distinct ones
    count each byte of the argument once, however often it was accessed. Atomic updates are writes. Accesses that the
    C++ compiler merges, such as two reads of one element by one thread, count as one: CUDA compilers do the same.
    """

    name: str
    bytes_read: int
    bytes_written: int
    distinct_bytes_read: int
    distinct_bytes_written: int


class _Record(ctypes.Structure):
    """`Traffic` of native/device.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("read", "written", "distinct_read", "distinct_written"))


def traffic_records(arguments: int) -> ctypes.Array[_Record]:
    """Allocate memory for the counts of so many arguments."""
    return (_Record * max(1, arguments))()


def traffic_of(names: Iterable[str], records: ctypes.Array[_Record]) -> tuple[Traffic, ...]:
    """Return the counts of the arguments called `names`."""
    return tuple(
        Traffic(name, record.read, record.written, record.distinct_read, record.distinct_written)
        for name, record in zip(names, records)
    )
