"""What the search of the default planner finds, beside the plans of its rules: predicted latency, and time to plan.

    python -m benchmarks.searched_plans [MODEL.onnx ...] [--graphs N] [--write]

Random graphs, the models of `benchmarks/replay`, and those named are planned by the rules, and by rules and search as
`compile` does. Latencies are the full estimate that `explain` gives. `--write` writes
benchmarks/results/searched_plans.json, docs/measurements/searched_plans.md. Exit code 3 if any plan is
predicted to be slower than that of the rules.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean

from onnx import ModelProto

from benchmarks.turns import markdown, write_results
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, explain_plan, make_plan, run_pipeline

from .fusion_gap import random_graphs
from .replay.catalogue import MODELS

PAGE = Path(__file__).parents[1] / "docs" / "measurements" / "searched_plans.md"
TARGETS = {
    "cpu": TargetInfo("cpu", 1, isa="avx512"),
    "sm_80": TargetInfo("cuda:sm_80"),
    "sm_90a": TargetInfo("cuda:sm_90a"),
}
RANDOM = "random graphs"
STEPS = 10
"""Of a random graph at most, each one or two nodes."""


@dataclass(frozen=True)
class Row:
    """A graph on a target: predicted latencies, and CPU seconds of planning without and with the search."""

    model: str
    target: str
    nodes: int
    rules_us: float
    plan_us: float
    rules_s: float
    plan_s: float

    @property
    def ratio(self) -> float:
        return self.plan_us / self.rules_us if self.rules_us else 1.0


def compared(name: str, graph: Graph, target: str) -> Row:
    rules_us, rules_s = _planned(graph, target, search=False)
    plan_us, plan_s = _planned(graph, target, search=True)
    return Row(name, target, len(graph.nodes), rules_us, plan_us, rules_s, plan_s)


def _planned(graph: Graph, target: str, *, search: bool) -> tuple[float, float]:
    start = time.process_time()
    plan = make_plan(graph, PassContext(TARGETS[target], {"search": search}))
    seconds = time.process_time() - start
    return total_us(graph, plan, target), round(seconds, 3)


def total_us(graph: Graph, plan: StitchPlan, target: str) -> float:
    """The full estimate, with the plans of nested graphs once each."""
    explained = explain_plan(graph, plan, target=TARGETS[target])
    nested = explained["bodies"].values()
    return float(explained["prediction"]["total_us"]) + sum(float(one["prediction"]["total_us"]) for one in nested)


def rows_of(model: ModelProto | Path, name: str) -> Iterator[Row]:
    graph = import_model(model).graph
    for target, info in TARGETS.items():
        yield compared(name, run_pipeline(graph, PassContext(info)), target)


def page(rows: Sequence[Row]) -> str:
    random, models = [r for r in rows if r.model == RANDOM], [r for r in rows if r.model != RANDOM]
    changed = list(dict.fromkeys(r.model for r in models if r.ratio < 1.0))
    counts = len(random) // len(TARGETS), len({r.model for r in models})
    return "\n\n".join([
        "# The search against the rules",
        "<!-- written by: python -m benchmarks.searched_plans --write -->",
        "Predicted latency (analytical model, full estimate of the whole plan) of the default planner's plan, "
        f"relative to that of its rules alone: {counts[0]} random graphs, and {counts[1]} models. "
        f"Slower than the rules: {sum(r.ratio > 1.0 for r in rows)} of {len(rows)} plans.",
        markdown(("graphs", "target", "plans", "better", "geometric mean", "least"), [
            _summary(what, target, [r for r in part if r.target == target])
            for what, part in ((RANDOM, random), ("models", models)) if part for target in TARGETS
        ]),
        "Models whose plan changes:",
        markdown(("model", *TARGETS), [(n, *(_ratio(models, n, target) for target in TARGETS)) for n in changed]),
        "Planning time of the largest models in CPU seconds, with rules alone and in total:",
        markdown(("model", "target", "nodes", "rules s", "all s"), [
            (r.model, r.target, r.nodes, f"{r.rules_s:.2f}", f"{r.plan_s:.2f}")
            for r in sorted(models, key=lambda r: -r.nodes)[: 10 * len(TARGETS)]
        ]),
    ]) + "\n"  # fmt: skip


def _summary(what: str, target: str, rows: Sequence[Row]) -> tuple[object, ...]:
    ratios = [row.ratio for row in rows]
    better = sum(ratio < 1.0 for ratio in ratios)
    return what, target, len(rows), better, f"{geometric_mean(ratios):.3f}", f"{min(ratios):.3f}"


def _ratio(rows: Sequence[Row], name: str, target: str) -> str:
    return next((f"{row.ratio:.2f}" for row in rows if (row.model, row.target) == (name, target)), "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.searched_plans", description="Search against rules.")
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--graphs", type=int, default=300, metavar="N", help="random graphs (default 300)")
    parser.add_argument("--write", action="store_true", help="write the results and the page")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for graph in random_graphs(options.graphs, STEPS, most=2 * STEPS):
        rows += [compared(RANDOM, graph, target) for target in TARGETS]
    print(f"{len(rows)} plans of random graphs", file=sys.stderr, flush=True)
    models = {name: make() for name, make in MODELS.items()} | {path.stem: path for path in options.models}
    for name, model in models.items():
        found = list(rows_of(model, name))
        rows += found
        print(name, [round(row.ratio, 3) for row in found], file=sys.stderr, flush=True)
    text = page(rows)
    print(text)
    if options.write:
        print(f"written to {write_results('searched_plans', [asdict(row) for row in rows])}")
        PAGE.write_text(text, encoding="utf-8")
    return 3 if any(row.ratio > 1.0 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
