"""Plans for a share of a GPU beside plans for all of it, both predicted on the share; prints a table.

    python -m benchmarks.shares [--gpu h200] [--share 32] [--precision fp16] [MODEL.onnx ...]

Without models: those that `python -m benchmarks.models` has made. No GPU is needed, and nothing is measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, StitchPlan, make_plan, run_pipeline
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.passes.schedule.makespan import plan_us

MADE = Path(__file__).parent / "models"
MODEL = AnalyticalModel()


def planned(source: Path, target: TargetInfo, precision: str) -> tuple[Graph, StitchPlan]:
    options = {"planner": "stitch", "precision": precision, "search": True}
    context = PassContext(target, options=options, cost_model=MODEL)
    graph = run_pipeline(import_model(source).graph, context)
    return graph, make_plan(graph, context)


def predicted_us(graph: Graph, plan: StitchPlan, target: TargetInfo) -> float:
    """What a plan, for whatever machine it was made, takes on that of `target`."""
    nodes, device = {node.name: node for node in graph.nodes}, device_of(target)
    facts = {group.name: group_facts(nodes, group, target) for group in plan.groups}
    found = dict(zip(facts, MODEL.predict(list(facts.values()), device), strict=True))
    return plan_us(plan, facts, {name: one.latency_us for name, one in found.items()}, device)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shares", description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--share", type=int, default=32, metavar="N", help="multiprocessors")
    parser.add_argument("--precision", default="fp16")
    options = parser.parse_args()
    whole = parse_cuda_target(f"cuda:{options.gpu}").planned_for
    share = parse_cuda_target(f"cuda:{options.gpu}/{options.share}").planned_for
    print(f"| model | all, on all | all, on {options.share} | {options.share}, on {options.share} | gain |")
    print("|---|---|---|---|---|")
    for source in options.models or sorted(MADE.glob("*.onnx")):
        for_all, for_share = (planned(source, target, options.precision) for target in (whole, share))
        there, mine = predicted_us(*for_all, share), predicted_us(*for_share, share)
        alone = predicted_us(*for_all, whole)
        print(f"| {source.stem} | {alone:.1f} | {there:.1f} | {mine:.1f} | {there / mine:.2f} |", flush=True)


if __name__ == "__main__":
    main()
