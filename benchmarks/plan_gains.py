"""What plans are worth that the learned model finds better than the rules': what it promises, and what is measured.

    python -m benchmarks.plan_gains MODEL.onnx ... [--cost-model learned] [--rounds N] [--out FILE.json] [--add]

Models are to be none that it was trained on, and none that plans are raced on (`learned_plans`): `python -m
benchmarks.kernel_models FOLDER --seed 1` writes some. Each other plan that the model finds, however little it promises,
takes turns with the plan of the rules. `python -m tilestitch.cost_model.training.generated --plans FILE.json` learns
from the result how much a plan must promise. With `--add` the file keeps what it has of other models.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.learned_plans import times_us
from benchmarks.turns import RESULTS, write_results
from tilestitch.codegen.cpu.target import parse_target
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.compiler.measure.kernels import Subject
from tilestitch.compiler.tune.timing import Times, time_in_turns, why_other_results
from tilestitch.cost_model.analytical import ANALYTICAL, AnalyticalModel
from tilestitch.cost_model.generated.model import LearnedModel
from tilestitch.cost_model.models import model_named
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.planner import make_plan, predicted_us
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name
from tilestitch.runtime.errors import ExecutionError


def eager(name: str) -> LearnedModel:
    """The model, with plans that promise however little."""
    model = model_named(name)
    assert isinstance(model, LearnedModel), f"{name} is no learned model"
    return replace(model, facts={**model.facts, "least_gain": 0.0})


def pair(path: Path, model: LearnedModel, rounds: int) -> dict[str, Any] | None:
    """None where the model has no other plan than the rules."""
    subject = Subject.of(path, parse_target("cpu"), 1, AnalyticalModel())
    context = replace(subject.context, cost_model=model, options={**subject.context.options, "search": True})
    plans = {"rules": make_plan(subject.graph, subject.context), "learned": make_plan(subject.graph, context)}
    if plans["rules"].groups == plans["learned"].groups:
        return None
    promised = {which: predicted_us(plan, subject.graph, context) for which, plan in plans.items()}
    modules = {which: subject.compiled(plan) for which, plan in plans.items()}
    feeds = subject.inputs if subject.inputs is not None else make_inputs(modules["rules"], {}, seed=0)
    odd = why_other_results(modules["learned"], modules["rules"], feeds)
    assert odd is None, f"{path}: {odd}"
    found = times_us(modules, feeds, rounds)
    kernels = schedules_of(subject, plans, time_in_turns(list(modules.values()), feeds, rounds, 4.0), model)
    for module in modules.values():
        module.close()
    return {
        "model": path.stem, "predicted_us": promised, "us": found,
        "promised": 1 - promised["learned"] / promised["rules"], "took": found["learned"] / found["rules"],
        "schedules": kernels,
    }  # fmt: skip


def schedules_of(
    subject: Subject, plans: Mapping[str, StitchPlan], times: Sequence[Times], model: LearnedModel
) -> list[dict[str, Any]]:
    """What was promised and measured of each kernel that both plans have, with another schedule."""
    nodes, device = nodes_by_name(subject.graph), device_of(subject.context.target)
    kernels: list[dict[Any, tuple[Group, float]]] = []
    for plan, measured in zip(plans.values(), times, strict=True):
        spent: dict[str, float] = {}
        for launch, us in zip(plan.launches or (), measured.launches_us.tolist(), strict=True):
            spent[launch.group] = spent.get(launch.group, 0.0) + us
        kernels.append({group.nodes: (group, spent[group.name]) for group in plan.groups})
    rows = []
    for key in kernels[0].keys() & kernels[1].keys():
        (rule, rule_us), (other, other_us) = kernels[0][key], kernels[1][key]
        if rule.schedule == other.schedule or other.schedule is None or rule.stages or other.stages:
            continue
        facts = [group_facts(nodes, group, subject.context.target, ANALYTICAL) for group in (rule, other)]
        before, after = (one.latency_us for one in model.predict(facts, device))
        rows.append({"template": other.schedule.template, "promised": 1 - after / before, "took": other_us / rule_us})
    return sorted(rows, key=lambda row: (row["template"], row["promised"]))


def _kept(path: Path, models: Sequence[Path]) -> list[dict[str, Any]]:
    """What a file has of other models than these."""
    again = {model.stem for model in models}
    rows = json.loads(path.read_text(encoding="utf-8"))["results"] if path.is_file() else []
    return [row for row in rows if row["model"] not in again]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_gains", description="Measure what plans promise.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--cost-model", default="learned", metavar="MODEL", help="learned, or FILE.json")
    parser.add_argument("--rounds", type=int, default=150, metavar="N", help="of each pair of plans (default 150)")
    parser.add_argument("--out", type=Path, default=RESULTS / "plan_gains.json", metavar="FILE.json")
    parser.add_argument("--add", action="store_true", help="to what FILE.json has of other models")
    options = parser.parse_args(arguments)
    model, results = eager(options.cost_model), _kept(options.out, options.models) if options.add else []
    for path in options.models:
        try:
            found = pair(path, model, options.rounds)
        except ExecutionError as error:
            print(f"{path.stem}: left out: {error}", file=sys.stderr, flush=True)
            continue
        if found is None:
            print(f"{path.stem}: the rules' plan", file=sys.stderr, flush=True)
            continue
        same = next((row["model"] for row in results if row["predicted_us"] == found["predicted_us"]), None)
        if same is not None:
            print(f"{path.stem}: the plans of {same}", file=sys.stderr, flush=True)
            continue
        results.append(found)
        write_results("plan_gains", results, options.out)
        print(f"{path.stem}: promises {found['promised']:.3f}, takes {found['took']:.3f}", file=sys.stderr, flush=True)
    print(f"written to {write_results('plan_gains', results, options.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
