"""What stitching is worth on the CPU: each model compiled by several planners, which take turns.

    python -m benchmarks.planners [--models NAME ...] [--threads N ...] [--rounds N] [--page]

In every round each planner's module runs a few times in a row, the order of the planners changing from round to round,
and the least of them counts. A speed-up is the median over rounds of the ratio within a round: whatever slows the
machine down for longer than a round slows all of them. Writes benchmarks/results/cpu_planners.json,
anew after each model, and from it docs/measurements/planners_on_cpus.md.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.doctor import examine
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

from . import models
from .turns import markdown

LENGTHS = {
    "standard": ("bert_base", "gpt2_small", "vit_b16"),
    "full": ("bert_base_512", "gpt2_small_1024", "vit_b16_384"),
}
"""The transformers with the lengths that benchmarks mostly take (128, 64 and 197 tokens), and with all their context
(512, 1024 and 577).
"""
TRANSFORMERS = tuple(name for names in LENGTHS.values() for name in names)
OURS, RIVALS = "stitch", ("injective", "none")
GOAL = 1.3
"""Over `injective`, geometric mean over the transformers of one length."""
RESULT = Path(__file__).parent / "results" / "cpu_planners.json"
PAGE = Path(__file__).parents[1] / "docs" / "measurements" / "planners_on_cpus.md"
HEADER = ("model", "threads", *(f"{p} ms (min)" for p in (OURS, *RIVALS)), *(f"over {p}" for p in RIVALS))
Runner = Callable[[], object]


def paired(
    runners: Mapping[str, Runner], rounds: int, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Microseconds of each runner in each round, by `clock` in seconds: the least of `repeats` runs in a row."""
    names = list(runners)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            times[name].append(min(_timed(runners[name], clock) for _ in range(repeats)))
    return times


def _timed(run: Runner, clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return (clock() - start) * 1e6


def measure(name: str, threads: int, rounds: int, repeats: int) -> dict[str, Any]:
    """One row: the model NAME by every planner with THREADS threads."""
    modules, kernels = {}, {}
    for planner in (OURS, *RIVALS):
        compiled = compile_model(models.export(name), "cpu", planner=planner, num_threads=threads)
        kernels[planner] = len(compiled.explain()["kernels"])
        modules[planner] = load(compiled.to_bytes(), device="cpu", num_threads=threads)
    inputs = make_inputs(modules[OURS], {}, seed=0)
    runners: dict[str, Runner] = {p: lambda m=m: m.run(inputs) for p, m in modules.items()}  # type: ignore[misc]
    paired(runners, 1, 2)  # warm up
    gc.disable()
    times = paired(runners, rounds, repeats)
    gc.enable()
    return {
        "model": name,
        "threads": threads,
        "kernels": kernels,
        "min_us": {p: min(t) for p, t in times.items()},
        "median_us": {p: median(t) for p, t in times.items()},
        "speedup": {p: median(b / a for a, b in zip(times[OURS], times[p], strict=True)) for p in RIVALS},
        "speedup_of_minima": {p: min(times[p]) / min(times[OURS]) for p in RIVALS},
    }


def row(result: dict[str, Any]) -> tuple[object, ...]:
    times = (f"{result['median_us'][p] / 1e3:.2f} ({result['min_us'][p] / 1e3:.2f})" for p in (OURS, *RIVALS))
    return result["model"], result["threads"], *times, *(f"{result['speedup'][p]:.2f}" for p in RIVALS)


def summary(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Geometric means of the paired speed-ups over the transformers that were raced, by threads, length and rival."""
    means: dict[str, dict[str, dict[str, float]]] = {}
    for threads in sorted({r["threads"] for r in results}):
        for length, names in LENGTHS.items():
            speedups = [r["speedup"] for r in results if r["threads"] == threads and r["model"] in names]
            if speedups:
                mean = {p: geometric_mean([s[p] for s in speedups]) for p in RIVALS}
                means.setdefault(str(threads), {})[length] = mean
    return means


def save(results: Sequence[dict[str, Any]], given: Sequence[str], path: Path) -> None:
    now = datetime.datetime.now(datetime.timezone.utc)
    content = {
        "date": now.isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", "benchmarks.planners", *given]),
        "cpu": examine()["cpu"],
        "system": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("tilestitch", "numpy", "onnx", "apache-tvm")},
        },
        "load_average_1min": os.getloadavg()[0],
        "goal": GOAL,
        "geometric_mean_speedup_transformers": summary(results),
        "results": list(results),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if path == RESULT:
        PAGE.write_text(page(content), encoding="utf-8")


def page(content: Mapping[str, Any]) -> str:
    """The page of what was measured."""
    results, versions = content["results"], ", ".join(f"{name} {it}" for name, it in content["versions"].items())
    cpu, load = content["cpu"], content["load_average_1min"]
    lines = [
        "# Planners on the CPU",
        "<!-- written by: python -m benchmarks.planners -->",
        f"Speed of models planned by `{OURS}` relative to other planners: the median over rounds in which the planners "
        "alternated. Times are medians, with the minimum in brackets.",
        f"{cpu['model']}, {cpu['cores']} CPUs; {versions}; {content['date'][:10]}, load {load:.1f}.",
        markdown(HEADER, map(row, results)),
        "Geometric means over the transformers, each with the usual length of benchmarks (`standard`: 128, 64 "
        f"and 197 tokens) and with its full context (`full`: 512, 1024 and 577). The goal is {content['goal']} over "
        f"`{RIVALS[0]}`.",
        markdown(("threads", "length", *(f"over {p}" for p in RIVALS)), _means(results)),
    ]
    return "\n\n".join(lines) + "\n"


def _means(results: Sequence[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for threads, by_length in summary(results).items():
        for length, by_rival in by_length.items():
            yield threads, length, *(f"{by_rival[p]:.2f}" for p in RIVALS)


def main(arguments: list[str] | None = None) -> int:
    """Prints a table and writes the file; with --check, exit code 3 if the goal is missed."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planners", description="Race the planners on the CPU.")
    parser.add_argument("--models", nargs="+", choices=list(models.ALL), default=list(TRANSFORMERS), metavar="NAME")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=40, metavar="N", help="of full lengths a quarter (default 40)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs in a row (default 3)")
    parser.add_argument("--check", action="store_true", help="fail if the goal is missed")
    parser.add_argument("-o", "--output", type=Path, default=RESULT, metavar="OUT.json")
    parser.add_argument("--page", action="store_true", help="write the page anew from the file, and measure nothing")
    options = parser.parse_args(given)
    if options.page:
        PAGE.write_text(page(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
        return 0
    results = []
    for threads in options.threads:
        for name in options.models:
            rounds = options.rounds // 4 if name in models.LONG else options.rounds
            results.append(measure(name, threads, max(1, rounds), options.repeats))
            print("  ".join(map(str, row(results[-1]))), file=sys.stderr)
            save(results, given, options.output)
    print(table([row(result) for result in results], HEADER))
    means = summary(results)
    for threads, by_length in means.items():
        for length, by_rival in by_length.items():
            text = ", ".join(f"{speedup:.2f} times {p}" for p, speedup in by_rival.items())
            print(f"threads: {threads}, geometric mean over the transformers, {length} length: {text}")
    print(f"written to {options.output}")
    missed = any(by_rival[RIVALS[0]] < GOAL for by_length in means.values() for by_rival in by_length.values())
    print(f"the goal, {GOAL} times {RIVALS[0]} at every length, is {'missed' if missed else 'reached'}")
    return 3 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
