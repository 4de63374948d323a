"""Whole models with every kind of tile synchronisation: what is planned and predicted, and that no plan is refused.

    python -m benchmarks.tied_models [--match TEXT] [--targets cuda:sm_80,cuda:sm_90a] [--write]

The models are those of benchmarks/replay. Every plan is checked as it is when an artifact is made; the code of its
kernels is made, too, but not compiled to machine code. Raises where a plan is refused, or where `auto` is predicted to
take longer than `off`. `--write` writes benchmarks/results/tied_models.json. No GPU is needed, and nothing is timed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from benchmarks.replay.catalogue import MODELS
from benchmarks.turns import RESULTS, write_results
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, StitchPlan, check_plan, make_plan, run_pipeline
from tilestitch.passes.explain import explain_plan

TICKETS = ("auto", "tile", "row", "strided", "kernel", "model", "model/queues")
LAUNCHES = ("auto/launches", "tile/launches", "row/launches")
"""Programmatic edges, which GPUs have from sm_90 on."""
SYNCS = {"cuda:sm_80": TICKETS, "cuda:sm_90a": (*TICKETS, *LAUNCHES)}
RESULT = RESULTS / "tied_models.json"
SLACK = 1.0001
"""Sums of the same numbers in another order."""


def planned(graph: Graph, target: str, sync: str) -> StitchPlan:
    """The plan, checked."""
    context = PassContext(parse_cuda_target(target).planned_for, {"sync": sync}, cost_model=AnalyticalModel())
    plan = make_plan(graph, context)
    check_plan(plan, graph)
    return plan


def row(name: str, target: str, sync: str) -> dict[str, Any]:
    """One model and one way of synchronisation, beside the same model without any."""
    gpu = parse_cuda_target(target)
    graph = run_pipeline(import_model(MODELS[name]()).graph, PassContext(gpu.planned_for))
    plans = {how: planned(graph, target, how) for how in ("off", sync)}
    emitted = [launch for group in plans[sync].groups for launch in lower_group(graph, group, gpu)]
    apart_us, tied_us = (explain_plan(graph, plan)["prediction"]["total_us"] for plan in plans.values())
    if sync.startswith("auto") and tied_us > SLACK * apart_us:
        raise ValueError(f"{name} {target} {sync}: {apart_us:.1f} us apart, {tied_us:.1f} us tied")
    return {
        "model": name, "target": target, "sync": sync, "launches_apart": len(plans["off"].launches or ()),
        "launches": len(emitted), "tied": dict(Counter(g.tie for g in plans[sync].groups if g.tie)),
        "predicted_apart_us": round(apart_us, 3), "predicted_us": round(tied_us, 3),
        "refusals": dict(Counter(why.rule for why in plans[sync].refusals if why.rule.startswith("sync"))),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tied_models", description=__doc__)
    parser.add_argument("--match", default="", metavar="TEXT", help="models whose name has this text")
    parser.add_argument("--targets", default=",".join(SYNCS), metavar="TARGET,TARGET", help="only these")
    parser.add_argument("--write", action="store_true", help="write the results, which should be those of all models")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in (each for each in MODELS if options.match in each):
        for target in options.targets.split(","):
            for sync in SYNCS[target]:
                rows.append(found := row(name, target, sync))
                print(f"{name} {target} {sync}: {found['launches_apart']} -> {found['launches']} launches, "
                      f"{found['predicted_apart_us']} -> {found['predicted_us']} us predicted", flush=True)  # fmt: skip
    if options.write:
        print(f"written to {write_results('tied_models', rows)}")


if __name__ == "__main__":
    main()
