"""What it is worth on a CPU that tasks of independent launches are one list: against a barrier after every launch.

    python -m benchmarks.cpu_packing [NAME ...] [--threads N] [--rounds N] [--cpu-time]

The speed-up is the median over rounds of the ratio within a round. Both ways take turns. Writes
benchmarks/results/cpu_packing.json; with --cpu-time, for machines that others use as well, cpu_packing_cpu_time.json:
the processor time of all threads, which has what packing costs, and of what it gains the spinning at barriers only.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.doctor import examine
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.compiler.cli.output import table
from tilestitch.compiler.driver import CompiledModel
from tilestitch.runtime import load
from tilestitch.runtime.program import NativeStep, Program

from . import models
from .planners import paired

NAMES = ("googlenet", "inception_v3", *models.BRANCHY, "dien", "bert_base", "resnet50")
RESULTS = Path(__file__).parent / "results"
LEAST = 0.98
"""Of the speed of launches one at a time: no model may be slower."""
HEADER = ("model", "launches", "of them packed", "packed ms", "one at a time ms", "times as fast")


def one_at_a_time(compiled: CompiledModel) -> CompiledModel:
    """The same kernels and launches with a barrier after each."""
    programs = tuple(map(_apart, compiled.contents.programs))
    return replace(compiled, contents=replace(compiled.contents, programs=programs))


def _apart(program: Program) -> Program:
    steps = [
        NativeStep(tuple(replace(launch, packed=False) for launch in step.launches))
        if isinstance(step, NativeStep) else step
        for step in program.steps
    ]  # fmt: skip
    return replace(program, steps=tuple(steps))


def measure(name: str, threads: int, rounds: int, repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    compiled = compile_model(models.export(name), "cpu", num_threads=threads)
    launches = [launch for s in compiled.specialisations for launch in s.plan.launches or ()]
    both = {"packed": compiled, "apart": one_at_a_time(compiled)}
    modules = {way: load(one.to_bytes(), device="cpu", num_threads=threads) for way, one in both.items()}
    inputs = make_inputs(modules["packed"], {}, seed=0)
    runners = {way: lambda module=module: module.run(inputs) for way, module in modules.items()}
    paired(runners, 1, 2)  # warm up
    gc.disable()
    times = paired(runners, rounds, repeats, clock)
    gc.enable()
    return {
        "model": name, "threads": threads, "launches": len(launches), "packed": sum(one.beside for one in launches),
        "median_us": {way: median(own) for way, own in times.items()},
        "speedup": median(b / a for a, b in zip(times["packed"], times["apart"], strict=True)),
        "speedup_of_minima": min(times["apart"]) / min(times["packed"]),
    }  # fmt: skip


def row(one: dict[str, Any]) -> tuple[object, ...]:
    times = (f"{one['median_us'][way] / 1e3:.2f}" for way in ("packed", "apart"))
    return one["model"], one["launches"], one["packed"], *times, f"{one['speedup']:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table and writes the file; exit code 3 if a model is slower than it may be."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_packing", description="Race packed launches.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(NAMES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3, help="runs in a row (default 3)")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, not the time that passes")
    options = parser.parse_args(given)
    clock = time.process_time if options.cpu_time else time.perf_counter
    names = options.names or NAMES
    results = [measure(name, options.threads, options.rounds, options.repeats, clock) for name in names]
    print(table(list(map(row, results)), HEADER))
    if not options.names:
        now = datetime.datetime.now(datetime.timezone.utc)
        command = " ".join(["python -m benchmarks.cpu_packing", *given])
        content = {
            "date": now.isoformat(timespec="seconds"), "command": command,
            "cpu_time": options.cpu_time, "cpu": examine()["cpu"], "load_average_1min": os.getloadavg()[0],
            "results": results,
        }  # fmt: skip
        result = RESULTS / ("cpu_packing_cpu_time.json" if options.cpu_time else "cpu_packing.json")
        result.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 3 if any(one["speedup"] < LEAST for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
