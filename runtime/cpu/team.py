"""A team of threads that executes segments; see `codegen/cpu/executor.c` for how they share the work."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from ctypes import byref, c_int64
from functools import partial

import numpy as np

from tilestitch.runtime.buffers import aligned_bytes
from tilestitch.runtime.errors import DeviceError

from .features import machine
from .library import Library

_FUTEX = {"x86_64": 202, "aarch64": 98}
_SPINS = 4000
"""Pauses before a thread without work sleeps: about 50 to 100 microseconds, more than between successive runs in a
loop.
"""


class Team:
    """`threads` threads, of which the caller of `run` is one; each has `scratch_bytes` of scratch memory.

    The others are Python threads that enter native code once and stay there. They end with `close`, or with the object.
    """

    def __init__(self, library: Library, threads: int, scratch_bytes: int) -> None:
        stride = -(-scratch_bytes // 64) * 64
        self._library = library
        self._threads, self._stride = threads, stride
        self._memory = aligned_bytes(library.team_bytes)
        self._memory[...] = 0
        self._scratch = self._allocated(stride)
        self._address = self._memory.ctypes.data
        spins = _SPINS if threads <= len(os.sched_getaffinity(0)) else 0
        library.init(self._address, threads, self._scratch.ctypes.data, stride, spins, _FUTEX[machine()])
        keep = (library, self._memory, self._scratch)
        workers = [
            threading.Thread(target=_work, args=(keep, index), name=f"tilestitch-{index}", daemon=True)
            for index in range(1, threads)
        ]
        self._close = weakref.finalize(self, _stop, keep, workers, os.getpid())
        try:
            for worker in workers:
                worker.start()
        except RuntimeError as error:
            self.close()
            raise DeviceError(
                f"{threads} threads cannot be started ({error}); ask for fewer with num_threads"
            ) from error

    def prepare(self, launches: int, count: int, times_ns: int = 0, loop: int = 0) -> Callable[[], None]:
        """Return a function that executes `count` launches from the table at address `launches`; `times_ns` is the
        address of count + 1 int64, or 0. `loop` is the address of a `Loop` of the executor, or 0; with one, each
        iteration has times.

        Other Python threads run meanwhile. Only one call at a time on a team, and none after `close`.
        """
        return partial(self._library.run, byref((c_int64 * 5)(self._address, launches, count, times_ns, loop)))

    def reserve(self, scratch_bytes: int) -> None:
        """Reserve at least `scratch_bytes` of scratch memory for each thread. No `run` may be under way.

        Threads read the address of their memory for every task, and so see the new one (`Team` in the executor).
        """
        stride = -(-scratch_bytes // 64) * 64
        if stride <= self._stride:
            return
        stride = max(stride, self._stride * 5 // 256 * 64)
        self._scratch = self._allocated(stride)
        self._stride = stride
        self._memory.view(np.int64)[1:3] = self._scratch.ctypes.data, stride

    def _allocated(self, stride: int) -> np.ndarray:
        try:
            return aligned_bytes(self._threads * stride)
        except (MemoryError, ValueError, OverflowError) as error:
            raise DeviceError(
                f"there is no memory for {self._threads} times {stride} bytes of scratch; ask for fewer threads with "
                "num_threads"
            ) from error

    def close(self) -> None:
        """End the threads. No `run` may be under way."""
        self._close()


_Keep = tuple[Library, np.ndarray, np.ndarray]


def _work(keep: _Keep, index: int) -> None:
    """Run as a worker thread until the team stops; keeps alive what native code uses."""
    library, memory, _ = keep
    library.worker(memory.ctypes.data, index)


def _stop(keep: _Keep, workers: list[threading.Thread], pid: int) -> None:
    """Stop the workers, unless this is a forked child, which has none."""
    if os.getpid() != pid:
        return
    library, memory, _ = keep
    library.stop(memory.ctypes.data)
    for worker in workers:
        if worker.ident is not None and worker is not threading.current_thread():
            worker.join()
