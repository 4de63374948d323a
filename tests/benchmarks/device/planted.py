"""A queue of planted cases in a process of its own: `python -m tests.benchmarks.device.planted RESULTS`.

The first and the third measure at once; the second writes its number to RESULTS/pid and waits for the file RESULTS/go.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from benchmarks.device.case import Case
from benchmarks.device.journal import Journal
from benchmarks.device.queue_parts import Part
from benchmarks.device.run_queue import Queue, run_parts

PART = Part("X", "none", 60.0, "?")


def cases(folder: Path) -> list[Case]:
    def wait() -> dict[str, int]:
        unfinished = folder / "pid.part"
        unfinished.write_text(str(os.getpid()))
        unfinished.replace(folder / "pid")
        while not (folder / "go").exists():
            time.sleep(0.01)
        return {"n": 2}

    return [
        Case("X", {"n": 1}, lambda: {"n": 1}),
        Case("X", {"n": 2}, wait),
        Case("X", {"n": 3}, lambda: {"n": 3}),
    ]


def run(folder: Path) -> Queue:
    queue = Queue(Journal(folder, "sources"), folder / "queue.log", time.monotonic() + 60)
    run_parts(queue, [(PART, cases(folder))])
    return queue


if __name__ == "__main__":
    run(Path(sys.argv[1]))
