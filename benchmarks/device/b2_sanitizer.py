"""B2: compute-sanitizer over every case of the bundle: memory, races, barriers, uninitialised memory.

The tool's exit code says what it found.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.device.case import Case, Setup

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FOUND = 9
LIMIT_S = 60.0
ONE = """
import sys
import numpy as np
from benchmarks.device.feeds import feeds_of, poisoned
from tilestitch.runtime import load
with load(sys.argv[1], device="cuda") as module:
    module.run(feeds_of(module, np.random.default_rng(0)), out=poisoned(module))
"""


def command(tool: str, sanitizer: str, artifact: Path) -> list[str]:
    options = ["--tool", tool, "--error-exitcode", str(FOUND)]
    return [sanitizer, *options, sys.executable, "-P", "-c", ONE, str(artifact)]


def verdict(code: int, output: str) -> dict[str, Any]:
    """Raises `RuntimeError` when the tool itself or the run failed."""
    lines = [line for line in output.splitlines() if line.startswith("=========")]
    summary = next((line.strip("= ") for line in reversed(lines) if "SUMMARY" in line), "")
    if code not in (0, FOUND) or not summary:
        raise RuntimeError(f"exit code {code}: {output.strip()[-200:]}")
    first = next((line.strip("= ") for line in lines if "Invalid" in line or "hazard" in line or "Error" in line), "")
    return {"clean": code == 0, "summary": summary, "first": "" if code == 0 else first}


def sanitize(setup: Setup, tool: str, name: str) -> dict[str, Any]:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise FileNotFoundError("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    called = command(tool, sanitizer, setup.bundle / f"{name}.tsm")
    done = subprocess.run(called, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return verdict(done.returncode, done.stdout)


def cases(part: str, setup: Setup) -> Iterator[Case]:
    """The small cases first, under each tool; none on a stand-in, which the tool does not know."""
    if not setup.executes:
        return
    listed = sorted(setup.listing("cases"), key=lambda entry: not entry["smoke"])
    for tool in TOOLS:
        for entry in listed:
            run = partial(sanitize, setup, tool, entry["name"])
            yield Case(part, {"tool": tool, "name": entry["name"]}, run, LIMIT_S, fingerprint=entry["digest"])
