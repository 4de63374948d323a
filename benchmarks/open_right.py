"""Models with open dimensions, compiled once with no option at all, against ONNX Runtime at twelve sizes each.

    python -m benchmarks.open_right [NAME ...] [--exporters script dynamo keras] [--threads N] [--points N] [--keep DIR]

The sizes are the ends of the dimensions' ranges, primes and powers of two. Every output has to be as near to ONNX
Runtime's as the tests demand of a model, and nothing may run on the host. Models that are not there are exported
first. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.open_models.artifacts import Compiled, compiled, input_names
from benchmarks.open_models.catalogue import MODELS
from benchmarks.open_models.comparison import difference_of, error_of, in_order_of, is_no_further
from benchmarks.open_models.model import EXPORTERS, OpenModel, export
from benchmarks.turns import write_results
from tests.open_models.sizes import Feeds, Sizes, spread
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.output import table
from tilestitch.runtime.errors import TilestitchRuntimeError

HEADER = ("model", "compiled in s", "kernels", "host steps", "sizes right", "worst error", "")


class Rival:
    """ONNX Runtime with its optimisations, and without them where that is asked for."""

    def __init__(self, path: Path, threads: int) -> None:
        self._path, self._threads = path, threads
        self.run = rivals.onnxruntime(path, threads)

    @cached_property
    def as_written(self) -> rivals.Run:
        return rivals.onnxruntime(self._path, self._threads, as_written=True)


def what_is_wrong(got: Sequence[Any], wanted: Sequence[Any], rival: Rival, feeds: Feeds) -> str:
    """ "" where results are right."""
    difference = difference_of(got, wanted)
    if not difference or is_no_further(got, wanted, rival.as_written(feeds)):
        return ""
    ordered = in_order_of(got, wanted)
    return "" if ordered is not None and not difference_of(ordered, wanted) else f"wrong values: {difference}"


def examined(model: OpenModel, path: Path, threads: int, points: int, keep: Path | None) -> dict[str, Any]:
    ours, rival, names = compiled(path, threads, keep), Rival(path, threads), input_names(path)
    rows = [
        row(ours, rival, model.feeds(sizes, np.random.default_rng(0)), names, sizes)
        for sizes in spread(model.ranges, points)
    ]
    right = sum(not one["wrong"] for one in rows)
    errors = [one["error"] for one in rows if one["error"] is not None]
    found = {"model": path.stem, "threads": threads, **ours.facts, "sizes_right": right, "sizes_tried": len(rows)}
    return {**found, "worst_error": max(errors, default=None), "rows": rows}


def row(ours: Compiled, rival: Rival, given: Feeds, names: set[str], sizes: Sizes) -> dict[str, Any]:
    """One size. `error` is None where there are no results to compare."""
    feeds = {name: array for name, array in given.items() if name in names}
    if ours.run is None:
        return {"sizes": dict(sizes), "error": None, "wrong": "not compiled"}
    try:
        got = ours.run(feeds)
    except TilestitchRuntimeError as error:
        return {"sizes": dict(sizes), "error": None, "wrong": f"{type(error).__name__}: {error}"}
    wanted = rival.run(feeds)
    wrong = what_is_wrong(got, wanted, rival, feeds)
    alike = len(got) == len(wanted) and all(one.shape == other.shape for one, other in zip(got, wanted, strict=True))
    return {"sizes": dict(sizes), "error": error_of(got, wanted) if alike else None, "wrong": wrong}


def line(found: dict[str, Any]) -> tuple[object, ...]:
    if "failure" in found:
        return found["model"], "-", "-", "-", f"0 of {found['sizes_tried']}", "-", found["failure"][:80]
    worst = "-" if found["worst_error"] is None else f"{found['worst_error']:.1e}"
    wrong = next((f"{one['sizes']}: {one['wrong'][:80]}" for one in found["rows"] if one["wrong"]), "")
    right = f"{found['sizes_right']} of {found['sizes_tried']}"
    return found["model"], found["compile_s"], found["kernels"], found["host_steps"], right, worst, wrong


def arguments(name: str, about: str) -> argparse.ArgumentParser:
    """Which models, exporters and sizes, and where artifacts and results go."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; all when none is named")
    parser.add_argument("--exporters", nargs="+", choices=[*EXPORTERS, "keras"], default=[*EXPORTERS, "keras"])
    parser.add_argument("--points", type=int, default=12, metavar="N", help="sizes of each model (default 12)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="of artifacts, compiled where they are not there")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    return parser


def chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[tuple[OpenModel, Path]]:
    """The models that were asked for, exported where they are not there."""
    unknown = [name for name in options.names if name not in MODELS]
    if unknown:
        parser.error(f"no model named {', '.join(unknown)}; there are {', '.join(MODELS)}")
    for name in options.names or MODELS:
        for exporter in MODELS[name].exporters:
            if exporter in options.exporters:
                yield MODELS[name], export(MODELS[name], name, exporter)


def main() -> int:
    """Prints a table and writes a file; exit code 3 when a value is wrong, a model refused, or a step the host's."""
    parser = arguments("open_right", __doc__)
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    options = parser.parse_args()
    results = []
    for model, path in chosen(parser, options):
        results.append(examined(model, path, options.threads, options.points, options.keep))
        print("  ".join(map(str, line(results[-1]))), file=sys.stderr, flush=True)
    print(table([line(result) for result in results], HEADER))
    print(f"written to {write_results('open_right', results, options.output)}")
    fine = all(r["sizes_right"] == r["sizes_tried"] and r["host_steps"] == 0 for r in results if "failure" not in r)
    return 0 if fine and not any("failure" in result for result in results) else 3


if __name__ == "__main__":
    sys.exit(main())
