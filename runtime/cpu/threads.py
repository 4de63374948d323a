"""The number of threads to use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from tilestitch.runtime.errors import DeviceError

ALIAS = "TILESTITCH_NUM_THREADS"
"""Environment variable that is read where the argument `num_threads` is not given."""

MAX_THREADS = 1024


def thread_count(requested: int | None) -> int:
    """Return the argument if given, else `TILESTITCH_NUM_THREADS`, else the physical cores that this process may use.

    Raises `DeviceError` when it is not a whole number from 1 to 1024.
    """
    if requested is not None:
        return _checked(requested, "num_threads")
    text = os.environ.get(ALIAS, "").strip()
    if text:
        return _checked(int(text) if text.isdecimal() else text, ALIAS)
    return available_cores()


def _checked(count: object, source: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_THREADS:
        raise DeviceError(f"{source} is {count!r}; give a number of threads from 1 to {MAX_THREADS}")
    return count


def available_cores() -> int:
    """Return the number of physical cores in this process's CPU affinity, limited by its control group's share of CPU
    time.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota()))


def _siblings(cpu: int) -> str:
    """Return what identifies the physical core of a logical CPU."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota() -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return MAX_THREADS
    return MAX_THREADS if quota == "max" else max(1, math.ceil(int(quota) / int(period)))
