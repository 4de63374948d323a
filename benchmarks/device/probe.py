"""Whether the GPU answers, what it is, and with which versions it is measured; each asked in a process of its own."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.device.case import Case
from benchmarks.device.processes import POLL_S, Outcome, start

PACKAGES = ("numpy", "cuda-bindings", "torch", "triton", "jax", "jaxlib")
LIMIT_S = 20.0
WORDS = 1 << 20


def provenance() -> dict[str, Any]:
    """When, with what and by which command is measured."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "packages": versions,
    }


def facts(log: Path) -> dict[str, Any]:
    """Name, driver, multiprocessors and memory of GPU 0; under `problem`, why there are none."""
    outcome = _ended("facts", _facts, log)
    return outcome.row if outcome.state == "measured" else {"problem": outcome.error}


def answers(log: Path) -> bool:
    """Whether a new process can use the GPU."""
    return _ended("a sign of life", _round_trip, log).state == "measured"


def _ended(what: str, run: Callable[[], dict[str, Any]], log: Path) -> Outcome:
    running = start(Case("probe", {"what": what}, run, LIMIT_S), log)
    while (outcome := running.outcome()) is None:
        time.sleep(POLL_S)
    return outcome


def _facts() -> dict[str, Any]:
    from tilestitch.runtime.cuda.driver import Device, load_driver

    device = Device(load_driver(), 0)
    with device.current():
        free, total = device.call("cuMemGetInfo")
    return {
        "name": device.name,
        "driver_api": device.call("cuDriverGetVersion"),
        "capability": list(device.capability),
        "multiprocessors": device.attribute("MULTIPROCESSOR_COUNT"),
        "l2_bytes": device.attribute("L2_CACHE_SIZE"),
        "memory_bytes": int(total),
        "free_bytes": int(free),
    }


def _round_trip() -> dict[str, Any]:
    import numpy as np

    from tilestitch.runtime.cuda.driver import Allocation, Device, load_driver

    device = Device(load_driver(), 0)
    sent, came = np.arange(WORDS, dtype=np.uint32), np.zeros(WORDS, np.uint32)
    with device.current():
        memory = Allocation(device, sent.nbytes, "a sign of life")
        device.call("cuMemcpyHtoD", memory.address, sent.ctypes.data, sent.nbytes)
        device.call("cuMemcpyDtoH", came.ctypes.data, memory.address, came.nbytes)
    if not (sent == came).all():
        raise RuntimeError("memory came back changed")
    return {}
