"""Models with open dimensions at twelve sizes each: compiled once for all sizes, for that size alone, and ONNX Runtime.

    python -m benchmarks.open_dims [NAME ...] [--exporters script dynamo keras] [--threads N ...] [--points N]
                                   [--static N] [--seconds S] [--clock wall|cpu] [--keep DIR [--compile-only]]

The sizes are the ends of the dimensions' ranges, primes and powers of two. All engines get the same inputs and take
turns; medians count, or of CPU time, which a loaded machine disturbs less, the lower quintiles. Artifacts for one size
are compiled for N of the sizes, as each takes as long as that for all of them. Values are compared with ONNX Runtime's
as `benchmarks.open_right` does. Models that are not there are exported first. Results go to benchmarks/results/.

With --keep, artifacts are kept in a folder, and what is there is not compiled again: --compile-only fills it, on a
machine that does other things besides, and measuring takes a few minutes later.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.open_models.artifacts import Compiled, compiled, input_names
from benchmarks.open_models.model import OpenModel
from benchmarks.open_right import Rival, arguments, chosen, what_is_wrong
from benchmarks.turns import write_results
from tests.open_models.sizes import Feeds, Sizes, spread
from tilestitch.compiler.cli.output import table
from tilestitch.runtime.errors import TilestitchRuntimeError

HEADER = ("model", "threads", "sizes", "open ms", "static ms", "onnxruntime ms", "static/open", "ort/open", "values")
OPEN, STATIC, RIVAL = "open", "static", "onnxruntime"
ENGINES = (OPEN, STATIC, RIVAL)
MOST_ROUNDS, LEAST_ROUNDS = 30, 3
TURN_S = 0.02
"""Of a turn, at least: short runs are repeated."""
SETTLE_S = 0.1
"""At the beginning of a turn on two threads or more, which the threads of the engine before may disturb: ONNX
Runtime's look for work for about 50 ms. It does not count."""
PATIENCE_S = 10.0
"""An engine that needs longer for its first run takes no turns: that run is its time."""
CLOCKS: Mapping[str, tuple[Callable[[], float], Callable[[Sequence[float]], float]]] = {
    "wall": (time.perf_counter, median),
    "cpu": (time.process_time, lambda times: float(np.percentile(times, 20))),
}
"""What a clock says, and which of many times counts."""

Run = Callable[[], Sequence[Any]]


@dataclass(frozen=True)
class Row:
    """One size. `medians_us` by engine; `failures`: why an engine has none, or what was wrong with its values."""

    sizes: Sizes
    medians_us: Mapping[str, float]
    failures: Mapping[str, str]

    def ratio(self, above: str, below: str) -> float | None:
        """Of medians, if both engines have one."""
        both = [self.medians_us.get(name) for name in (above, below)]
        return both[0] / both[1] if both[0] and both[1] else None


def measured(
    engines: Mapping[str, Run], threads: int, sizes: Sizes, failures: dict[str, str], options: argparse.Namespace
) -> Row:
    """Times all engines that can run."""
    clock, statistic = CLOCKS[options.clock]
    once: dict[str, float] = {}
    for name, run in engines.items():
        start = clock()
        try:
            run()
        except TilestitchRuntimeError as error:
            failures[name] = f"{type(error).__name__}: {error}"
            continue
        once[name] = clock() - start
    quick = [name for name, taken in once.items() if taken <= PATIENCE_S]
    times = {name: [taken] for name, taken in once.items() if name not in quick} | {name: [] for name in quick}
    total = sum(max(once[name], TURN_S) + (max(once[name], SETTLE_S) if threads > 1 else 0.0) for name in quick)
    for _ in range(int(np.clip(options.seconds / max(total, 1e-9), LEAST_ROUNDS, MOST_ROUNDS)) if quick else 0):
        for name in quick:
            times[name].append(turn(engines[name], clock, SETTLE_S if threads > 1 else 0.0))
    return Row(sizes, {name: round(statistic(values) * 1e6, 1) for name, values in times.items()}, failures)


def turn(run: Run, clock: Callable[[], float], settle_s: float) -> float:
    """The time of a run, of as many as take `TURN_S`, after those that settle."""
    end = time.perf_counter() + settle_s
    while time.perf_counter() < end:
        run()
    start, count = clock(), 0
    while not count or clock() - start < TURN_S:
        run()
        count += 1
    return (clock() - start) / count


def examined(model: OpenModel, path: Path, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """All sizes of one file with so many threads."""
    ours, names = compiled(path, threads, options.keep), input_names(path)
    rival = None if options.compile_only else Rival(path, threads)
    places, rows = spread(model.ranges, options.points), []
    fixed = set(np.linspace(0, len(places) - 1, min(options.static, len(places))).round().astype(int).tolist())
    for number, sizes in enumerate(places):
        random = np.random.default_rng(0)
        feeds = {name: array for name, array in model.feeds(sizes, random).items() if name in names}
        static = compiled(path, threads, options.keep, sizes, feeds) if number in fixed else Compiled(None, {})
        if rival is None:
            continue
        engines: dict[str, Run] = {}
        failures: dict[str, str] = {}
        wanted = rival.run(feeds)
        for name, made in ((OPEN, ours), (STATIC, static)):
            if made.run is not None:
                engines[name] = bound(made.run, feeds)
                wrong = what_is_wrong(made.run(feeds), wanted, rival, feeds)
                failures |= {name: wrong} if wrong else {}
            elif "failure" in made.facts:
                failures[name] = made.facts["failure"]
        engines[RIVAL] = bound(rival.run, feeds)
        rows.append(measured(engines, threads, sizes, failures, options))
        print("  ".join(map(str, line(path.stem, threads, rows[-1]))), file=sys.stderr, flush=True)
    return {"model": path.stem, "threads": threads, **ours.facts, "summary": summary(rows), "rows": rows}


def bound(run: Callable[[Feeds], Sequence[Any]], feeds: Feeds) -> Run:
    return lambda: run(feeds)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Geometric means over the sizes at which both engines ran, and the least: above 1, the open one is faster."""
    return {
        "static_over_open": geometric_mean([row.ratio(STATIC, OPEN) for row in rows]),
        "onnxruntime_over_open": geometric_mean([row.ratio(RIVAL, OPEN) for row in rows]),
        "onnxruntime_over_static": geometric_mean([row.ratio(RIVAL, STATIC) for row in rows]),
        "least_static_over_open": min(filter(None, (row.ratio(STATIC, OPEN) for row in rows)), default=None),
        "sizes_right": sum(OPEN in row.medians_us and OPEN not in row.failures for row in rows),
        "sizes": len(rows),
    }


def geometric_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(math.exp(sum(map(math.log, known)) / len(known)), 3) if known else None


def line(name: str, threads: int, row: Row) -> tuple[object, ...]:
    times = [f"{row.medians_us[engine] / 1e3:.3f}" if engine in row.medians_us else "-" for engine in ENGINES]
    ratios = [row.ratio(STATIC, OPEN), row.ratio(RIVAL, OPEN)]
    sizes = " ".join(f"{dim}={size}" for dim, size in row.sizes.items())
    shown = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    wrong = "; ".join(f"{engine}: {reason[:60]}" for engine, reason in row.failures.items())
    return name, threads, sizes, *times, *shown, wrong or "right"


def main() -> int:
    """Prints a table and writes a file; exit code 3 when a value is wrong or a model is refused."""
    parser = arguments("open_dims", __doc__)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--static", type=int, default=12, metavar="N", help="sizes that are compiled for (default all)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of measuring one size, about")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of all threads (default wall)")
    parser.add_argument("--compile-only", action="store_true", help="fill the folder, and measure nothing")
    options = parser.parse_args()
    if options.compile_only and options.keep is None:
        parser.error("--compile-only needs a folder (--keep DIR)")
    results = [
        examined(model, path, threads, options)
        for model, path in chosen(parser, options)
        for threads in options.threads
    ]
    if options.compile_only:
        return 0
    lines = [line(result["model"], result["threads"], row) for result in results for row in result["rows"]]
    print(table(lines, HEADER))
    for threads in options.threads:
        rows = [row for result in results if result["threads"] == threads for row in result["rows"]]
        print(f"threads: {threads}: {summary(rows)}")
    plain = [{**result, "rows": [asdict(row) for row in result["rows"]]} for result in results]
    print(f"written to {write_results('open_dims', plain, options.output)}")
    return 3 if any(row.failures for result in results for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
