"""Plans that the learned model chooses, against the rules' and random legal ones, measured on this CPU.

    python -m benchmarks.learned_plans MODEL.onnx ... [--random N] [--rounds N] [--model MODEL]

All plans of a model take turns; the least of all rounds counts. Writes benchmarks/results/learned_plans.json.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.turns import write_results
from tilestitch.codegen.cpu.target import parse_target
from tilestitch.compiler.cli.output import table
from tilestitch.compiler.measure.kernels import Subject, time_in_turns, why_other_results
from tilestitch.compiler.measure.plans import random_plan, with_random_schedules
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.models import model_named
from tilestitch.passes.planner import make_plan

TOGETHER = 6
"""Plans in memory at a time; the rules' and the learned one are among them each time."""
HEADER = ("model", "rules ms", "learned ms", "learned / rules", "best random ms", "learned / best random")


def race(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    subject = Subject.of(path, parse_target("cpu"), options.threads, AnalyticalModel())
    learned = replace(subject.context, cost_model=model_named(options.model))
    plans = [make_plan(subject.graph, subject.context), make_plan(subject.graph, learned)]
    for seed in range(1, options.random + 1):
        plan = random_plan(subject.graph, subject.context, seed)
        plans.append(with_random_schedules(subject.graph, plan, seed) if seed % 2 else plan)
    ours = [subject.compiled(plan) for plan in plans[:2]]
    least = [float("inf")] * len(plans)
    for first in range(2, max(3, len(plans)), TOGETHER):
        others = [subject.compiled(plan) for plan in plans[first : first + TOGETHER]]
        for module in (ours[1], *others):
            odd = why_other_results(module, ours[0], subject.inputs)
            assert odd is None, f"{path}: {odd}"
        times = time_in_turns([*ours, *others], subject.inputs, options.rounds, options.seconds)
        for place, found in zip((0, 1, *range(first, first + len(others))), times, strict=True):
            least[place] = min(least[place], found.whole_us)
        for module in others:
            module.close()
    rules_us, learned_us, *random_us = least
    changed = sum(a.schedule != b.schedule for a, b in zip(plans[0].groups, plans[1].groups, strict=False))
    return {
        "model": path.stem, "rules_us": rules_us, "learned_us": learned_us, "random_us": random_us,
        "over_rules": learned_us / rules_us, "over_best_random": learned_us / min(random_us, default=float("nan")),
        "other_schedules": changed, "kernels": len(plans[1].groups),
    }  # fmt: skip


def row(one: dict[str, Any]) -> tuple[object, ...]:
    best = min(one["random_us"], default=float("nan"))
    times = [f"{us / 1e3:.3f}" for us in (one["rules_us"], one["learned_us"], best)]
    ratios = [f"{one[key]:.3f}" for key in ("over_rules", "over_best_random")]
    return one["model"], times[0], times[1], ratios[0], times[2], ratios[1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned_plans", description="Race plans on this CPU.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--random", type=int, default=20, metavar="N", help="random legal plans (default 20)")
    parser.add_argument("--rounds", type=int, default=30, metavar="N")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of each turn at most")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--model", default="learned", metavar="MODEL", help="as --cost-model of compile")
    options = parser.parse_args(arguments)
    results = []
    for path in options.models:
        results.append(race(path, options))
        print("  ".join(map(str, row(results[-1]))), file=sys.stderr, flush=True)
    print(table([row(one) for one in results], HEADER))
    mean = geometric_mean([one["over_rules"] for one in results])
    print(f"geometric mean of learned over rules: {mean:.3f}")
    print(f"written to {write_results('learned_plans', results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
