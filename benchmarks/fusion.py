"""What each planner makes of the benchmark models, counted from the plans: nothing is compiled or run.

    python -m benchmarks.fusion [--models NAME ...] [--planners NAME ...] [--check]

Writes docs/fusion_table.md between its markers. A kernel is memory-bound unless a product or a convolution is in it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilestitch.compiler.cli.output import table
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, make_plan, run_pipeline
from tilestitch.passes.explain import explain_plan
from tilestitch.passes.fusion.planners import PLANNERS

from . import models

MODELS = ("resnet50", "mobilenetv2", "bert_base", "gpt2_small", "vit_b16", "crnn", "dien")
CONTRACTIONS = frozenset({"contraction", "attention"})
BASELINE, OURS = "xla", "stitch"
MOST_KERNELS = 0.35
MOST_TRAFFIC = 0.5
PAGE = Path(__file__).parent.parent / "docs" / "fusion_table.md"
BEGIN, END = "<!-- begin: python -m benchmarks.fusion -->", "<!-- end -->"
HEADER = ("model", "planner", "kernels", "memory-bound", "their traffic MB", "arena MB", "planning s")


@dataclass(frozen=True)
class Row:
    """One plan. `memory_bound_kernels` and `memory_bound_bytes` (read and written) leave out contractions."""

    model: str
    planner: str
    kernels: int
    memory_bound_kernels: int
    memory_bound_bytes: int
    arena_bytes: int
    planning_s: float

    def cells(self) -> tuple[object, ...]:
        traffic, arena = (f"{size / 1e6:.2f}" for size in (self.memory_bound_bytes, self.arena_bytes))
        seconds = f"{self.planning_s:.2f}"
        return self.model, self.planner, self.kernels, self.memory_bound_kernels, traffic, arena, seconds


def measure(name: str, planner: str, graph: Graph) -> Row:
    context = PassContext(options={"planner": planner})
    start = time.perf_counter()
    plan = make_plan(graph, context)
    planning_s = time.perf_counter() - start
    kernels = explain_plan(graph, plan)["kernels"]
    bound = [k for k in kernels if not _multiplies(k)]
    # What lies beside a product in one launch is no kernel of its own, but it moves its bytes all the same.
    beside = [p for k in kernels if _multiplies(k) for s in k["stages"] for p in s if p["kind"] not in CONTRACTIONS]
    traffic = sum(k["bytes_read"] + k["bytes_written"] for k in (*bound, *beside))
    return Row(name, planner, len(kernels), len(bound), traffic, plan.buffers.arena_bytes, planning_s)


def _multiplies(kernel: dict[str, Any]) -> bool:
    """Whether a product or a convolution is in a kernel."""
    kinds = {kernel["kind"], *(part["kind"] for stage in kernel["stages"] for part in stage)}
    return not kinds.isdisjoint(CONTRACTIONS)


def canonical(name: str) -> Graph:
    """The graph that the planners see, of the benchmark model `name`."""
    return run_pipeline(import_model(models.export(name)).graph, PassContext())


def ratios(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """For each model that has both: our memory-bound kernels and their traffic as a part of the baseline's."""
    found = []
    for theirs in (row for row in rows if row.planner == BASELINE):
        for ours in (row for row in rows if row.model == theirs.model and row.planner == OURS):
            kernels = ours.memory_bound_kernels / max(1, theirs.memory_bound_kernels)
            found.append((ours.model, kernels, ours.memory_bound_bytes / max(1, theirs.memory_bound_bytes)))
    return found


def markdown(rows: Sequence[Row]) -> str:
    """The two tables: what the planners made, and ours against the baseline."""
    return "\n\n".join((
        _grid(HEADER, [row.cells() for row in rows]),
        f"`{OURS}` against `{BASELINE}`, memory-bound kernels (goal: at most {MOST_KERNELS:.0%} of the kernels and "
        f"{MOST_TRAFFIC:.0%} of their traffic):",
        _grid(("model", "kernels", "traffic"), [(m, f"{k:.0%}", f"{t:.0%}") for m, k, t in ratios(rows)]),
    ))  # fmt: skip


def _grid(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def write(page: Path, text: str) -> None:
    """Replace what stands between the markers of `page`. Raises SystemExit if it has none."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} lacks the markers {BEGIN} and {END}; put them back")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Prints and writes the table; with --check, exit code 3 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusion", description="Count what the planners make.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--planners", nargs="+", choices=list(PLANNERS), default=list(PLANNERS), metavar="NAME")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.models:
        graph = canonical(name)
        for planner in options.planners:
            rows.append(measure(name, planner, graph))
            print("  ".join(map(str, rows[-1].cells())), file=sys.stderr)
    print(table([row.cells() for row in rows], HEADER))
    missed = [m for m, kernels, traffic in ratios(rows) if kernels > MOST_KERNELS or traffic > MOST_TRAFFIC]
    for model, kernels, traffic in ratios(rows):
        print(f"{model}: {kernels:.0%} of the kernels, {traffic:.0%} of the traffic{' MISSED' * (model in missed)}")
    if set(options.models) == set(MODELS) and set(options.planners) == set(PLANNERS):
        write(PAGE, markdown(rows))
        print(f"written to {PAGE}")
    return 3 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
