"""How the threads of a warp access memory together: sectors of global memory, wavefronts of shared memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Requests", "RequestRecord", "requests_of"]


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
