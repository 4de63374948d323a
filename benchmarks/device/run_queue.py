"""Runs what is still open of the device queue, within a time budget, and prints the tables.

    python -m benchmarks.device.run_queue --out results [--budget 540] [--only A1,A2] [--list]

Each part is a process of its own with a time-out. Parts that were stopped go on where they were at the next call.
From the root of the repository; nothing of ours need be installed. Needs Python 3.11.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.device import render
from benchmarks.device.queue_parts import BY_NAME, PARTS, Part

ROOT = Path(__file__).resolve().parents[2]
OURS = ("runtime", "compiler", "cost_model", "passes", "codegen")

GRACE_S = 20.0
"""What a part may take beyond its budget to end the measurement under way."""

LEAST_S = 15.0
"""With less time left, no further part is started."""


@dataclass(frozen=True)
class Outcome:
    part: str
    state: str  # done, open (out of time), failed, timed out
    seconds: float
    note: str = ""


def is_done(folder: Path, part: Part) -> bool:
    try:
        return bool(json.loads((folder / f"{part.name}.json").read_text())["done"])
    except (OSError, ValueError, KeyError):
        return False


def installed_tree(root: Path) -> Path:
    """A folder with `tilestitch` as it is installed, made of links into the repository at `root`."""
    folder = root / "build" / "device"
    package = folder / "tilestitch"
    package.mkdir(parents=True, exist_ok=True)
    for target in (*(root / name for name in OURS), root / "tilestitch" / "__init__.py"):
        link = package / target.name
        if not link.is_symlink():
            link.symlink_to(target)
    return folder


def environment() -> dict[str, str]:
    """The parts' environment: they find our packages, and what is benchmarked, in this repository."""
    paths = os.pathsep.join([str(installed_tree(ROOT)), str(ROOT)])
    # JAX would take most of the GPU's memory at its first use, and leave too little for the engine beside it.
    return {**os.environ, "PYTHONPATH": paths, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def command(part: Part, folder: Path, budget_s: float) -> list[str]:
    out = folder / f"{part.name}.json"
    return [sys.executable, "-P", "-m", part.module, "--out", str(out), "--budget", f"{budget_s:.0f}"]


def run_part(part: Part, folder: Path, budget_s: float) -> Outcome:
    start = time.monotonic()
    with open(folder / f"{part.name}.log", "a") as log:
        try:
            code = subprocess.run(
                command(part, folder, budget_s),
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=budget_s + GRACE_S,
                env=environment(),
            ).returncode
        except subprocess.TimeoutExpired:
            return Outcome(part.name, "timed out", time.monotonic() - start)
    seconds = time.monotonic() - start
    if code:
        last = (folder / f"{part.name}.log").read_text().strip().splitlines()[-1:]
        return Outcome(part.name, "failed", seconds, last[0][:120] if last else f"exit code {code}")
    return Outcome(part.name, "done" if is_done(folder, part) else "open", seconds)


def run_queue(
    parts: Sequence[Part],
    folder: Path,
    budget_s: float,
    run: Callable[[Part, Path, float], Outcome] = run_part,
    clock: Callable[[], float] = time.monotonic,
) -> list[Outcome]:
    """Run the open ones of `parts` in order, each with its budget or what is left of the whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    end = clock() + budget_s
    outcomes = []
    for part in parts:
        left = end - clock() - GRACE_S
        if is_done(folder, part):
            outcomes.append(Outcome(part.name, "done", 0.0, "before"))
        elif left < LEAST_S:
            outcomes.append(Outcome(part.name, "open", 0.0, "no time left"))
        else:
            print(f"{part.name}: {part.question}", file=sys.stderr, flush=True)
            outcomes.append(run(part, folder, min(part.budget_s, left)))
    return outcomes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.run_queue", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200"), metavar="FOLDER")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help="for this call (default 540)")
    parser.add_argument("--only", metavar="A1,A2", help="these parts, in this order")
    parser.add_argument("--list", action="store_true", help="say what is open and run nothing")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else [part.name for part in PARTS]
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    parts = [BY_NAME[name] for name in names]
    if options.list:
        for part in parts:
            print(f"{part.name:4} {'done' if is_done(options.out, part) else 'open'}  {part.question}")
        return 0
    outcomes = run_queue(parts, options.out, options.budget)
    print(render.text(options.out))
    for outcome in outcomes:
        print(f"{outcome.part:4} {outcome.state:10} {outcome.seconds:6.1f} s  {outcome.note}")
    return int(any(outcome.state in ("failed", "timed out") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
