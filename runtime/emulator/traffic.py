"""Bytes that a launch moves between its threads and global memory, counted access by access."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


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


@dataclass(frozen=True)
class Requests:
    """Memory requests of one line of a kernel's text, over all warps of a launch.

    `requests`: instructions of a warp. `bytes`: distinct ones of each request. `transactions`: of global memory the
    sectors of 32 bytes that requests touch, of shared memory the wavefronts that serve them: a bank gives 4 bytes at a
    time, and requests of 8 and 16 bytes a thread are served by halves and quarters of a warp. `least_transactions`: as
    many as those bytes take if they are contiguous, or without bank conflicts.
    """

    source: str
    line: int
    space: str  # "global" or "shared"
    is_write: bool
    requests: int
    bytes: int
    transactions: int
    least_transactions: int

    @property
    def excess(self) -> float:
        """Transactions over the least possible; 1 is best."""
        return self.transactions / self.least_transactions


class RequestRecord(ctypes.Structure):
    """`Counted` of native/requests.cc."""

    _fields_ = (
        ("pc", ctypes.c_uint64), ("requests", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
        ("transactions", ctypes.c_uint64), ("least", ctypes.c_uint64), ("write", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
    )  # fmt: skip


def requests_of(
    records: Sequence[RequestRecord], locate: Callable[[Sequence[int]], Sequence[tuple[str, int]]]
) -> tuple[Requests, ...]:
    """Sum records by line of text. `locate` gives the source and line of each of some places in the code."""
    sums: dict[tuple[str, int, str, bool], list[int]] = {}
    for record, (source, line) in zip(records, locate([record.pc for record in records])):
        key = source, line, "shared" if record.shared else "global", bool(record.write)
        total = sums.setdefault(key, [0, 0, 0, 0])
        for i, number in enumerate((record.requests, record.bytes, record.transactions, record.least)):
            total[i] += number
    return tuple(Requests(*key, *total) for key, total in sorted(sums.items()))
