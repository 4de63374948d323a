"""Work in a process of its own, so that a crash, a hang and too much memory are failures like others.

A worker is a module that is run with the first seed and the number of seeds as last arguments. It prints each seed
before it begins with it, and `FAILED` and a reason after one that failed.
"""

from __future__ import annotations

import queue
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 8 << 30


def work(first: int, count: int, original: Callable[[], None], one: Callable[[int], None]) -> None:
    """What a worker does: `one` for every seed, in limited memory; whatever it raises is a failure.

    `original` does the same with what the mutants are made of. If it fails, all of them would.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    original()
    for seed in range(first, first + count):
        print(seed, flush=True)
        try:
            one(seed)
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAILED {type(error).__name__}: {error!s:.300} ({where.filename}:{where.lineno})", flush=True)


def failures(module: str, arguments: list[str], first: int, count: int, seconds: float) -> dict[int, str]:
    """What went wrong by seed; a worker that dies, or is silent for `seconds`, is started again after the seed."""
    found: dict[int, str] = {}
    seed, end = first, first + count
    while seed < end:
        command = [sys.executable, "-W", "ignore", "-m", module, *arguments, str(seed), str(end - seed)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            current, hung = _follow(process.stdout, process, seconds, found)
            complaint = process.stderr.read()
            code = process.wait()
        if code == 0 and not hung:
            return found
        if current is None:
            raise AssertionError(f"the worker {module} does not start: {complaint}")
        found[current] = f"no answer within {seconds} s" if hung else f"died with {_ending(code)}: {complaint[-500:]}"
        seed = current + 1
    return found


def _follow(
    lines: IO[str], process: subprocess.Popen[str], seconds: float, found: dict[int, str]
) -> tuple[int | None, bool]:
    """Read until the worker ends; the last seed that it began with, and whether it had to be killed."""
    said: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in lines:
            said.put(line)
        said.put("")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    current: int | None = None
    while True:
        try:
            line = said.get(timeout=seconds if current is not None else 120)
        except queue.Empty:
            process.kill()
            reader.join()
            return current, True
        if not line:
            return current, False
        if line.startswith("FAILED") and current is not None:
            found[current] = line.strip()
        elif line.strip().isdigit():
            current = int(line)


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
