"""B2: compute-sanitizer over every case of the bundle: memory, races, barriers, uninitialised memory.

A case is run in a process of its own under each tool; the tool's exit code says what it found.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.device.b1_ours import FOLDER
from benchmarks.device.record import Recorder, run_part

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FOUND = 9
ONE = """
import sys
import numpy as np
from benchmarks.device.b1_ours import feeds_of, poisoned
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


def sanitize(tool: str, name: str, timeout_s: float) -> dict[str, Any]:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise FileNotFoundError("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    done = subprocess.run(
        command(tool, sanitizer, FOLDER / f"{name}.tsm"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
    )  # fmt: skip
    return verdict(done.returncode, done.stdout)


def measure(recorder: Recorder) -> None:
    cases = [entry["name"] for entry in json.loads((FOLDER / "bundle.json").read_text()) if entry["kind"] == "case"]
    for tool in TOOLS:
        for name in cases:
            limit_s = min(60.0, recorder.remaining_s)
            recorder.measure({"tool": tool, "name": name}, partial(sanitize, tool, name, limit_s))


if __name__ == "__main__":
    run_part("B2", measure)
