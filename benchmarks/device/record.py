"""Results of one part of the queue: rows in a JSON file that grows as they are measured.

A part can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc", "torch", "triton", "jax", "jaxlib")

MOST_TRIES = 2
"""A measurement that fails this often is settled: its row keeps the error."""


def provenance() -> dict[str, Any]:
    """When, on what and with what a measurement was made."""
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
        "gpu": gpu_facts(),
    }


def gpu_facts() -> dict[str, Any]:
    """Name, driver, multiprocessors and memory of GPU 0; why there are none where there is none."""
    from tilestitch.runtime.cuda.driver import Device, load_driver
    from tilestitch.runtime.errors import DeviceError

    try:
        device = Device(load_driver(), 0)
    except DeviceError as error:
        return {"problem": str(error)}
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


@dataclass
class Recorder:
    """Measures what is not in the file yet, while there is time.

    `rows` are dicts; two rows are of the same measurement when they have the same `key`.
    """

    path: Path
    part: str
    budget_s: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    failed: int = 0
    _tries: dict[str, int] = field(default_factory=dict)
    _facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        if self.path.exists():
            rows = json.loads(self.path.read_text())["rows"]
            self.rows = [row for row in rows if "error" not in row or row["tries"] >= MOST_TRIES]
            self._tries = {json.dumps(row["key"]): row["tries"] for row in rows if "error" in row}

    @property
    def remaining_s(self) -> float:
        return self.budget_s - (time.monotonic() - self._start)

    def measure(self, key: Mapping[str, Any], function: Callable[[], Mapping[str, Any]]) -> None:
        """Add the row that `function` measures, or the error that it raises; nothing when the row is there already."""
        if any(row["key"] == dict(key) for row in self.rows):
            return
        if self.remaining_s <= 0:
            self.skipped += 1
            return
        row: dict[str, Any] = {"key": dict(key)}
        started = time.monotonic()
        try:
            row.update(function())
        except Exception as error:  # noqa: BLE001 - one measurement that fails must not cost the others
            row["error"] = f"{type(error).__name__}: {error}"[:400]
            row["tries"] = self._tries.get(json.dumps(row["key"]), 0) + 1
            self.failed += row["tries"] < MOST_TRIES
        row["took_s"] = round(time.monotonic() - started, 2)
        self.rows.append(row)
        self.save(done=False)
        print(f"{self.part} {_short(row)}", flush=True)

    def save(self, done: bool) -> None:
        self._facts = self._facts or provenance()
        data = {
            "part": self.part,
            "done": done and not self.skipped and not self.failed,
            "skipped": self.skipped,
            "provenance": self._facts,
            "rows": self.rows,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps(data, indent=1))
        os.replace(unfinished, self.path)


def _short(row: Mapping[str, Any]) -> str:
    values = {name: value for name, value in row.items() if name not in ("key", "took_s")}
    return f"{json.dumps(row['key'])} {json.dumps(values)}"[:300]


def run_part(part: str, body: Callable[[Recorder], None], arguments: list[str] | None = None) -> None:
    """The command line that every part has."""
    parser = argparse.ArgumentParser(description=f"part {part} of the device queue")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--budget", type=float, default=120.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    recorder = Recorder(options.out, part, options.budget)
    recorder.save(done=False)
    body(recorder)
    recorder.save(done=True)
