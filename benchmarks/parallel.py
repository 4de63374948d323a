"""Launches side by side: what orders of them are predicted to take, by model, GPU and way to order.

    python -m benchmarks.parallel [NAME ...] [--device H200 ...] [--seconds N]

All figures are predictions of the makespan law (docs/parallel_launches.md); no GPU is involved. Writes
benchmarks/results/parallel.json and docs/measurements/parallel_launches.md. Needs OR-tools (`pip install ortools`) for
the exact schedules of parts of at most 40 launches.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tilestitch.compiler.cli.output import table
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import fingerprint
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import find_device
from tilestitch.cost_model.laws.makespan import Span, makespan_us
from tilestitch.passes.contract import PassContext
from tilestitch.passes.group_gemms import GroupGemms
from tilestitch.passes.pipeline import default_pipeline, run_pipeline
from tilestitch.passes.plan import StitchPlan, wholes_of
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan
from tilestitch.passes.schedule.makespan import launch_works, spans_of
from tilestitch.passes.schedule.order import segments_of
from tilestitch.passes.schedule.parallel.alternatives import Alternatives
from tilestitch.passes.schedule.parallel.arrange import (
    Arrangement,
    arranged,
    graphs_by_data,
    one_at_a_time_bytes,
    placed,
    works_of_plan,
)
from tilestitch.passes.schedule.parallel.explore import explored
from tilestitch.passes.schedule.parallel.graph import LaunchGraph, spans_in
from tilestitch.passes.schedule.parallel.orders import as_given, by_longest_path, opara
from tilestitch.passes.schedule.parallel.search import best_order

from . import models
from .exact_schedules import exact_us

NAMES = ("googlenet", "inception_v3", *models.BRANCHY, "dien", "bert_base", "resnet50")
DEVICES = ("H200", "A100 40GB", "T4")
OPARA = (
    ("googlenet", "RTX 2080 Super", 1, 1.68), ("inception_v3", "RTX 2080", 1, 1.41),
    ("inception_v3_32", "RTX 2080", 32, 1.09), ("googlenet", "A100 40GB", 1, None),
    ("inception_v3", "A100 40GB", 1, None),
)  # fmt: skip
"""Model, GPU, batch, and how many times as fast as a sequential CUDA graph Opara was measured to be; None: not
published. Opara, IEEE Transactions on Computers 2025, and its repository's log.
"""
EXACT = 40
"""Launches of a part at most, for an exact schedule."""
WITHIN, PROOF_NODES = 0.05, 100_000
"""How near to the shortest schedule orders are shown to be, and what the search for a shorter one may take."""
RESULT = Path(__file__).parent / "results" / "parallel.json"
PAGE = Path(__file__).parent.parent / "docs" / "measurements" / "parallel_launches.md"
HEADER = (
    "model", "GPU", "launches", "one at a time µs", "as given µs", "Opara's order µs", "ours µs", "times as fast",
    "within 5 %", "at most", "ours / CP-SAT", "longest path µs", "GEMMs apart µs", "best alone µs", "of the plan µs",
    "seconds",
    "memory MiB", "one at a time MiB",
)  # fmt: skip
OPARA_HEADER = ("model", "GPU", "batch", "Opara, measured", "ours", "ours, unfused", "order alone, unfused")


def context_of(device: str, planner: str = "stitch", **more: object) -> PassContext:
    """more: further options."""
    gpu = find_device(device)
    target = TargetInfo("cuda", 1, gpu.name, (gpu.architecture,), gpu.sm_count)
    return PassContext(target, options={"planner": planner, "precision": "fp32", **more})


def planned(name: str, device: str, planner: str = "stitch", **more: object) -> tuple[StitchPlan, Graph]:
    """The plan of a model as it is made, and the graph that it is for. more: further options of the pass context."""
    context = context_of(device, planner, **more)
    graph = run_pipeline(import_model(models.export(name)).graph, context)
    return make_plan(graph, context), graph


def ungrouped_us(name: str, device: str, grouped: Graph, grouped_us: float) -> float:
    """Microseconds of the plan in which each GEMM has a launch of its own, or part of one."""
    context = context_of(device)
    passes = default_pipeline("cuda").removesuffix(f",{GroupGemms.name}")
    graph = run_pipeline(import_model(models.export(name)).graph, context, passes)
    if fingerprint(graph) == fingerprint(grouped):
        return grouped_us
    return predicted(make_plan(graph, context), graph)[0]


def in_model_order(plan: StitchPlan, graph: Graph) -> StitchPlan:
    """The plan before its launches are ordered."""
    positions = {node.name: number for number, node in enumerate(graph.nodes)}
    position = {group.name: max(positions[node] for node in group.nodes) for group in plan.groups}
    position.update((group.name, positions[group.name]) for group in plan.host_groups)
    wholes = wholes_of(plan.buffers.places)
    segments = segments_of(plan.groups, plan.host_groups, plan.buffers.aliases, position, wholes)
    return placed(plan, graph, Arrangement(segments))


def predicted(plan: StitchPlan, graph: Graph) -> tuple[float, float]:
    """Microseconds of a plan, and of its launches one at a time."""
    works = works_of_plan(plan, graph, AnalyticalModel())
    one_at_a_time = sum(work.alone_us for work in launch_works(plan.launches or (), works))
    return makespan_us(spans_of(plan, works)), one_at_a_time


def measure(name: str, device: str, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    plan, graph = planned(name, device)
    alone = make_plan(graph, context_of(device, alone=True))
    given = in_model_order(plan, graph)
    model = AnalyticalModel()
    works = works_of_plan(plan, graph, model)
    start = time.process_time()
    arranged(in_model_order(alone, graph), graph, model)
    Alternatives(graph, alone.target, model, alone.buffers.aliases, wholes_of(alone.buffers.places)).best(alone.groups)
    arranged(given, graph, model)
    took = time.process_time() - start
    found: dict[str, float] = dict.fromkeys(("given", "opara", "ours", "path"), 0.0)
    best_alone, alone_us = predicted(alone, graph)
    plan_us = makespan_us(spans_of(plan, works))
    judged = {"ours": 0.0, "exact": 0.0}
    proven = True
    proofs: list[Proof] = []
    for whole in graphs_by_data(given, graph, works):
        found["given"] += makespan_us(spans_in(whole, as_given(whole)))
        found["opara"] += makespan_us(spans_in(whole, opara(whole)))
        ours = spans_in(whole, best_order(whole))
        found["ours"] += makespan_us(ours)
        found["path"] += max(whole.rest_us, default=0.0)
        for numbers, part_us in zip(whole.parts(), parts_us(whole, ours), strict=True):
            if len(numbers) > 1:
                proofs.append(proof(whole.part(numbers), part_us))
            if len(numbers) <= EXACT:
                exact, optimal = _exact_us(whole.part(numbers), seconds)
                judged["exact"] += exact
                judged["ours"] += part_us
                proven &= optimal
    return {
        "model": name, "device": device, "launches": len(plan.launches or ()), "alone_us": round(alone_us, 2),
        **{f"{key}_us": round(us, 2) for key, us in found.items()},
        "best_alone_us": round(best_alone, 2),
        "plan_us": round(plan_us, 2),
        "ungrouped_us": round(ungrouped_us(name, device, graph, plan_us), 2),
        "ours_over_exact": round(judged["ours"] / judged["exact"], 4) if judged["exact"] else None,
        "exact_is_proven": proven if judged["exact"] else None,
        "exact_covers": round(judged["ours"] / found["ours"], 3) if found["ours"] else 0.0,
        "parts": len(proofs), "parts_within": sum(one.is_within for one in proofs),
        "longest_ratio": round(max((one.at_most for one in proofs if not one.is_within), default=1 + WITHIN), 3),
        "scheduling_seconds": round(took, 3), "arena_bytes": plan.buffers.arena_bytes,
        "one_at_a_time_bytes": one_at_a_time_bytes(given, graph),
    }  # fmt: skip


class Proof(NamedTuple):
    """at_most: no schedule of the part is shorter than ours over that. is_within: it is 1 + WITHIN, proven."""

    at_most: float
    is_within: bool


def proof(part: LaunchGraph, ours_us: float) -> Proof:
    """By what is used in all and by the longest path; else by a search through all schedules that would be shorter."""
    at_most = ours_us / part.least_us if part.least_us else 1.0
    if at_most <= 1 + WITHIN:
        return Proof(at_most, True)
    if len(part.works) > EXACT:
        return Proof(at_most, False)
    found = explored(part, ours_us / (1 + WITHIN), PROOF_NODES)
    return Proof(1 + WITHIN if found.is_proven else at_most, found.is_proven)


def parts_us(whole: LaunchGraph, found: Sequence[Span]) -> list[float]:
    """What each part takes of a schedule of the whole: from the end of the part before it to its own."""
    ends_us = [max(found[number].end_us for number in numbers) for numbers in whole.parts()]
    return [end - start for start, end in zip([0.0, *ends_us], ends_us)]


def is_worse(one: Mapping[str, Any]) -> bool:
    """Whether a row has an order worse than the model's or Opara's, a plan worse than these or than that of kernels
    that are best alone or of GEMMs apart, or an order more than a twentieth longer than the exact schedule."""
    others_us = min(one["given_us"], one["opara_us"])
    return (
        max(one["ours_us"], one["plan_us"]) > 1.001 * others_us
        or one["plan_us"] > min(one["best_alone_us"], one["ungrouped_us"])
        or (one["ours_over_exact"] or 0.0) > 1 + WITHIN
    )


def _exact_us(part: LaunchGraph, seconds: float) -> tuple[float, bool]:
    if len(part.works) == 1:
        return part.works[0].alone_us, True
    return exact_us(part, seconds)


def against_opara(name: str, device: str, batch: int, measured: float | None) -> dict[str, Any]:
    """How many times as fast a model is predicted to be as one launch at a time, with our kernels and with one for
    each operator, as Opara has them; and by the order alone, the best one over the worst that is looked at.
    """
    gains = {}
    for planner in ("stitch", "none"):
        plan, graph = planned(name, device, planner)
        _, alone_us = predicted(*planned(name, device, planner, alone=True))
        gains[planner] = alone_us / predicted(plan, graph)[0]
    works = works_of_plan(plan, graph, AnalyticalModel())
    wholes = list(graphs_by_data(in_model_order(plan, graph), graph, works))
    orders = [
        [makespan_us(spans_in(whole, way(whole))) for whole in wholes] for way in (as_given, opara, by_longest_path)
    ]
    ours = sum(makespan_us(spans_in(whole, best_order(whole))) for whole in wholes)
    return {
        "model": name, "device": device, "batch": batch, "measured": measured, "ours": round(gains["stitch"], 3),
        "unfused": round(gains["none"], 3), "order_alone": round(max(map(sum, orders)) / ours, 3),
    }  # fmt: skip


def opara_row(one: dict[str, Any]) -> tuple[object, ...]:
    gains = (f"{one[key]:.2f}" for key in ("ours", "unfused", "order_alone"))
    measured = "-" if one["measured"] is None else f"{one['measured']:.2f}"
    return one["model"].removesuffix("_32"), one["device"], one["batch"], measured, *gains


def row(one: dict[str, Any]) -> tuple[object, ...]:
    exact = "-" if one["ours_over_exact"] is None else f"{one['ours_over_exact']:.3f}"
    times = (f"{one[f'{key}_us']:.1f}" for key in ("alone", "given", "opara", "ours"))
    plans = (f"{one[f'{key}_us']:.1f}" for key in ("path", "ungrouped", "best_alone", "plan"))
    return (
        one["model"], one["device"], one["launches"], *times, f"{one['alone_us'] / one['plan_us']:.2f}",
        f"{one['parts_within']} of {one['parts']}", f"{one['longest_ratio']:.3f}", exact, *plans,
        f"{one['scheduling_seconds']:.2f}",
        f"{one['arena_bytes'] / 2**20:.1f}", f"{one['one_at_a_time_bytes'] / 2**20:.1f}",
    )  # fmt: skip


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, one)) + " |" for one in rows)])


def page(results: Sequence[dict[str, Any]], published: Sequence[dict[str, Any]]) -> str:
    return f"""# Predictions for concurrent launches

Predicted by the model of [parallel_launches.md](../parallel_launches.md); none of it was measured on a GPU.
Generated by `python -m benchmarks.parallel`. Batch 1 for images and BERT (128 tokens), 16 for experts and towers,
64 for DIEN; float32.

"As given", "Opara's order" and "ours" are orders by data dependences alone; "of the plan" is the plan's time with its
memory plan, and "times as fast" compares that with sequential launches. "Best alone" is the plan whose packed
kernels and tiles are optimal if each launch has the GPU to itself; "one at a time" is for its launches.
"GEMMs apart" is the plan without batching of GEMMs with different inputs; where it equals that of the plan,
there are none.
"Longest path" is a lower bound for every order. "Within 5 %" counts the parts of several launches for which no schedule
that the model allows is shorter by more than that: because of the longest path, or of the total use of a resource,
or, up to {EXACT} launches, because an exhaustive search for shorter ones found none
(`passes/schedule/parallel/explore.py`; {PROOF_NODES} nodes). "At most" bounds the length of any other part relative to
its optimum, by the first two bounds. "Ours / CP-SAT" covers the parts of at most {EXACT}
launches, with an external solver (`benchmarks/exact_schedules.py`): below 1 where launches that slow each other
down end sooner than any schedule without slowdowns. Seconds are processor time of ordering on one core,
including the choice of packed kernels and tiles. "One at a time" is the arena for sequential launches.

{markdown(HEADER, map(row, results))}

## Against Opara's measurements

Speedup over sequential launches: measured by Opara with the kernels of PyTorch and cuDNN (IEEE
Transactions on Computers, 2025), and predicted here with our kernels, and with one kernel per operator ("unfused").
"Order alone" is the slowest of the model's order, Opara's and that by longest path, relative to ours; Opara reports up
to 1.29 on an RTX 2080 Super and up to 1.10 on an A100 for GoogLeNet. For the A100 it has no figures against a
sequential CUDA graph.

{markdown(OPARA_HEADER, map(opara_row, published))}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and writes both files; exit code 3 where `is_worse` says so of a row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description="Predict launches side by side.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(NAMES)}")
    parser.add_argument("--device", nargs="+", default=list(DEVICES), metavar="GPU")
    parser.add_argument("--seconds", type=float, default=5.0, help="for the exact schedule of a part (default 5)")
    options = parser.parse_args(arguments)
    results = []
    for name in options.names or NAMES:
        for device in options.device:
            results.append(measure(name, device, options.seconds))
            print(results[-1], file=sys.stderr)
    print(table(list(map(row, results)), HEADER))
    published = [against_opara(*one) for one in OPARA] if not options.names else []
    print(table(list(map(opara_row, published)), OPARA_HEADER) if published else "")
    if not options.names and options.device == list(DEVICES):
        RESULT.write_text(
            json.dumps({"predicted": True, "results": results, "opara": published}, indent=1) + "\n", encoding="utf-8"
        )
        PAGE.write_text(page(results, published), encoding="utf-8")
    return 3 if any(map(is_worse, results)) else 0


if __name__ == "__main__":
    sys.exit(main())
