"""Models with open dimensions at twelve sizes each: compiled once for all sizes, for that size alone, and ONNX Runtime.

    python -m benchmarks.open_dims [NAME ...] [--exporters script dynamo keras] [--threads N ...] [--points N]
                                   [--no-static] [--seconds S]

The sizes are the ends of the dimensions' ranges, primes and powers of two. All engines get the same inputs and take
turns; medians count. Values are compared with ONNX Runtime's by the tests' tolerances. Models that are not there are
exported first. Results go to benchmarks/results/.
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

from benchmarks.open_models.catalogue import MODELS
from benchmarks.open_models.model import EXPORTERS, OpenModel, export
from benchmarks.turns import write_results
from tests.compiled import assert_close
from tests.open_models.sizes import Feeds, Sizes, spread
from tests.tolerances import MODELS as TOLERANCES
from tilestitch.codegen.errors import CodegenError
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.bench import interleaved
from tilestitch.compiler.cli.output import Progress, table
from tilestitch.compiler.errors import HostStepsError
from tilestitch.compiler.frontend.errors import FrontendError
from tilestitch.passes.errors import PassError
from tilestitch.runtime import load
from tilestitch.runtime.errors import TilestitchRuntimeError

REFUSALS = (FrontendError, PassError, CodegenError, HostStepsError, TilestitchRuntimeError)
HEADER = ("model", "threads", "sizes", "open ms", "static ms", "onnxruntime ms", "static/open", "ort/open", "values")
OPEN, STATIC, RIVAL = "open", "static", "onnxruntime"
ENGINES = (OPEN, STATIC, RIVAL)
MOST_ROUNDS = 40
PATIENCE_S = 10.0
"""An engine that needs longer for its first run takes no turns: that run is its time."""

OWN_DIFFERENCES = 4.0

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


@dataclass(frozen=True)
class Compiled:
    """What compiling gave: a function that runs it, or why there is none."""

    run: Callable[[Feeds], Sequence[Any]] | None
    facts: Mapping[str, Any]


def compiled(path: Path, threads: int, shapes: Mapping[str, Sequence[int]] | None = None) -> Compiled:
    start = time.perf_counter()
    try:
        made = compile_model(path, num_threads=threads, shapes=shapes)
        model = load(made.to_bytes(), device="cpu", num_threads=threads)
    except REFUSALS as error:
        return Compiled(None, {"failure": f"{type(error).__name__}: {error}"})
    told = made.explain()
    facts = {
        "compile_s": round(time.perf_counter() - start, 2),
        "kernels": len(told["kernels"]),
        "host_steps": told["host"]["steps"],
        "sizes": [one["sizes"] for one in (told, *told.get("specialisations", ()))],
    }
    return Compiled(lambda feeds: list(model.run(feeds).values()), facts)


def measured(
    engines: Mapping[str, Run], as_written: Run, sizes: Sizes, failures: dict[str, str], seconds: float
) -> Row:
    """Compares the values of all engines with ONNX Runtime's, and times those that can run. as_written: ONNX Runtime
    without its optimisations.
    """
    wanted = engines[RIVAL]()
    once: dict[str, float] = {}
    for name, run in engines.items():
        start = time.perf_counter()
        try:
            got = run()
        except TilestitchRuntimeError as error:
            failures[name] = f"{type(error).__name__}: {error}"
            continue
        once[name] = time.perf_counter() - start
        try:
            for actual, expected in zip(got, wanted, strict=True):
                assert_close(actual, expected, TOLERANCES.get(str(expected.dtype), 0.0))
        except AssertionError as error:
            if not is_no_further(got, wanted, as_written()):
                failures[name] = f"wrong values: {str(error).strip().splitlines()[0]}"
    quick = [name for name, taken in once.items() if taken <= PATIENCE_S]
    times = {name: [taken * 1e6] for name, taken in once.items() if name not in quick}
    if quick:
        rounds = int(np.clip(seconds / sum(once[name] for name in quick), 3, MOST_ROUNDS))
        with Progress() as progress:
            times |= interleaved({name: engines[name] for name in quick}, rounds, 1, progress)
    return Row(sizes, {name: round(median(values), 1) for name, values in times.items()}, failures)


def is_no_further(got: Sequence[Any], wanted: Sequence[Any], as_written: Sequence[Any]) -> bool:
    """Whether results differ from ONNX Runtime's about as much as these do with and without its optimisations: a
    detector with random weights has boxes of nearly the same score, which rounding puts in one order or the other.
    """
    for ours, one, other in zip(got, wanted, as_written, strict=True):
        if not ours.shape == one.shape == other.shape or ours.dtype != one.dtype:
            return False
        if min(apart(ours, one), apart(ours, other)) > OWN_DIFFERENCES * apart(one, other):
            return False
    return True


def apart(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max(initial=0.0))


def examined(model: OpenModel, path: Path, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """All sizes of one file with so many threads."""
    rival, as_written = rivals.onnxruntime(path, threads), rivals.onnxruntime(path, threads, as_written=True)
    ours = compiled(path, threads)
    names = input_names(path)
    rows = []
    for sizes in spread(model.ranges, options.points):
        random = np.random.default_rng(0)
        feeds = {name: array for name, array in model.feeds(sizes, random).items() if name in names}
        static = Compiled(None, {})
        if options.static:
            static = compiled(path, threads, {name: array.shape for name, array in feeds.items()})
        engines, failures = {}, {}
        for name, made in ((OPEN, ours), (STATIC, static)):
            if made.run is not None:
                engines[name] = bound(made.run, feeds)
            elif "failure" in made.facts:
                failures[name] = made.facts["failure"]
        engines[RIVAL] = bound(rival, feeds)
        rows.append(measured(engines, bound(as_written, feeds), sizes, failures, options.seconds))
        print("  ".join(map(str, line(path.stem, threads, rows[-1]))), file=sys.stderr, flush=True)
    return {"model": path.stem, "threads": threads, **ours.facts, "summary": summary(rows), "rows": rows}


def bound(run: Callable[[Feeds], Sequence[Any]], feeds: Feeds) -> Run:
    return lambda: run(feeds)


def input_names(path: Path) -> set[str]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    return {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Geometric means over the sizes at which both engines ran: above 1, the open artifact is the faster one."""
    return {
        "static_over_open": geometric_mean([row.ratio(STATIC, OPEN) for row in rows]),
        "onnxruntime_over_open": geometric_mean([row.ratio(RIVAL, OPEN) for row in rows]),
        "onnxruntime_over_static": geometric_mean([row.ratio(RIVAL, STATIC) for row in rows]),
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_dims", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; all when none is named")
    parser.add_argument("--exporters", nargs="+", choices=[*EXPORTERS, "keras"], default=["script", "keras"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--points", type=int, default=12, metavar="N", help="sizes of each model (default 12)")
    parser.add_argument("--no-static", dest="static", action="store_false", help="do not compile for each size")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of measuring one size, about")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in MODELS]
    if unknown:
        parser.error(f"no model named {', '.join(unknown)}; there are {', '.join(MODELS)}")
    results = []
    for name in options.names or MODELS:
        for exporter in MODELS[name].exporters:
            if exporter in options.exporters:
                path = export(MODELS[name], name, exporter)
                results += [examined(MODELS[name], path, threads, options) for threads in options.threads]
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
