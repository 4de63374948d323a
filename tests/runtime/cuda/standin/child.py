"""Runs a function in a forked child with the stand-in in place of the driver: the process of the test stays without."""

from __future__ import annotations

import ctypes
import gc
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class StandIn:
    """The library as tests see it, in the process that loaded it."""

    def __init__(self, library: Path) -> None:
        # By its soname the loader finds it again when cuda-bindings ask for libcuda.so.1.
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        for name in ("standin_leaks", "standin_last_reason", "standin_widths"):
            getattr(self._library, name).restype = ctypes.c_char_p

    def leaks(self) -> str:
        """What was made and not given back; empty when all was."""
        gc.collect()
        return bytes(self._library.standin_leaks()).decode()

    def forget(self) -> None:
        """Count nothing as left behind: a context that a fault broke takes nothing back."""
        self.leaks = str  # type: ignore[method-assign]

    def last_reason(self) -> str:
        """Why the last call that failed was refused."""
        return bytes(self._library.standin_last_reason()).decode()

    def widths(self) -> list[int]:
        """The numbers of multiprocessors on which kernels have run since the last call."""
        return [int(width) for width in self._library.standin_widths().decode().split()]

    def execute(self, function: Any) -> None:
        """Have this function of `standin.execution` execute what is launched."""
        self._execute = function
        self._library.standin_execute(function)

    def driver_version(self, number: int) -> None:
        """Be a driver of another version of CUDA, such as 12030; what it has stays the same."""
        self._library.standin_driver_version(number)

    def seed(self, number: int) -> None:
        """Choose another order of what may run in any."""
        self._library.standin_seed(number)


def run(library: Path, function: Callable[[StandIn], Any]) -> None:
    """Call `function` in a child. Raises AssertionError with the child's traceback, or with what killed it; also when
    something was not given back to the driver.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os._exit(_report(library, function, writer))
    os.close(writer)
    with open(reader, "rb") as stream:
        text = stream.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if status:
        raise AssertionError(text or f"the child ended with status {os.waitstatus_to_exitcode(status)}")


def _report(library: Path, function: Callable[[StandIn], Any], writer: int) -> int:
    gc.freeze()  # what the parent made is not looked at, and so not copied, where garbage is collected here
    try:
        stand_in = StandIn(library)
        function(stand_in)
        leaks = stand_in.leaks()
        assert not leaks, f"not given back: {leaks}"
    except BaseException:  # noqa: BLE001 (the parent raises it)
        os.write(writer, traceback.format_exc().encode())
        return 1
    return 0
