"""Plans that latency models choose, against the rules' and random legal ones, measured on this CPU.

    python -m benchmarks.learned_plans [NAME ...] [--models MODEL.onnx ...] [--random N] [--rounds N] [--write]

Of each model (by default eight of `benchmarks/replay`, convolutional and recurrent ones among them) there are the plan
of the rules, those that search and schedules by the analytical, the learned and the random model give, as `compile
--cost-model` does, and random legal ones. One race finds the best random plan; another one, of the plans by models and
the three best random ones, gives the figures, so that no plan is chosen by the times that it is reported with. In a
race plans take turns, with two runs in a row of which the second counts, in CPU time; a plan's time is the tenth
percentile of all rounds. `--write` writes benchmarks/results/learned_plans.json, docs/measurements/learned_plans.md.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import onnx

from benchmarks.turns import RESULTS, markdown, write_results
from tilestitch.codegen.cpu.target import parse_target
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.compiler.measure.kernels import Subject
from tilestitch.compiler.measure.plans import random_plan, with_random_schedules
from tilestitch.compiler.tune.timing import why_other_results
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.models import model_named
from tilestitch.cost_model.training.record_files import read_records
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.planner import make_plan
from tilestitch.runtime.session import Module

from .replay.catalogue import MODELS

PAGE = Path(__file__).parents[1] / "docs" / "measurements" / "learned_plans.md"
TRAINED_ON = RESULTS / "cpu_kernels.jsonl.gz"
EIGHT = (
    "bert_middle", "gpt2_middle", "transformer_causal", "inception", "mobile_block", "decoder", "lstm", "gru",
)  # fmt: skip
RULES = "rules"
CHOSEN = ("analytical", "learned", "random")
"""Models that search, and choose schedules where they know what these are worth."""
FINALISTS = 3
PERCENTILE = 10
HEADER = (
    "model", "kernels", "trained on it", "rules µs", *(f"{name} / rules" for name in CHOSEN), "best random / rules",
    "learned / best random",
)  # fmt: skip


def race(path: Path, name: str, options: argparse.Namespace, trained_on: frozenset[str]) -> dict[str, Any]:
    subject = Subject.of(path, parse_target("cpu"), 1, AnalyticalModel())
    plans = {RULES: make_plan(subject.graph, subject.context)}
    for model in CHOSEN:
        given = {**subject.context.options, "search": True}
        context = replace(subject.context, cost_model=model_named(model), options=given)
        plans[model] = make_plan(subject.graph, context)
    for seed in range(1, options.random + 1):
        plan = random_plan(subject.graph, subject.context, seed)
        plans[f"random {seed}"] = with_random_schedules(subject.graph, plan, seed) if seed % 2 else plan
    modules = {which: subject.compiled(plan) for which, plan in plans.items()}
    feeds = subject.inputs if subject.inputs is not None else make_inputs(modules[RULES], {}, seed=0)
    for which, module in modules.items():
        odd = why_other_results(module, modules[RULES], feeds)
        assert odd is None, f"{name}, {which}: {odd}"
    first = times_us(modules, feeds, options.rounds // 4)
    drawn = sorted((us, which) for which, us in first.items() if which.startswith("random "))
    finalists = [RULES, *CHOSEN, *(which for _, which in drawn[:FINALISTS])]
    found = times_us({which: modules[which] for which in finalists}, feeds, options.rounds)
    for module in modules.values():
        module.close()
    best_us = min((us for which, us in found.items() if which.startswith("random ")), default=float("nan"))
    return {
        "model": name, "kernels": len(plans["learned"].groups), "trained_on": name in trained_on,
        "us": found, "drawn_us": {which: us for us, which in drawn}, "best_random_us": best_us,
        "over_rules": {which: found[which] / found[RULES] for which in CHOSEN},
        "over_best_random": {which: found[which] / best_us for which in (RULES, *CHOSEN)},
        "other_schedules": _other_schedules(plans[RULES], plans["learned"]),
    }  # fmt: skip


def times_us(modules: Mapping[str, Module], feeds: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """Microseconds of CPU time of each module in turns."""
    spent: dict[str, list[int]] = {which: [] for which in modules}
    gc.disable()
    for _ in range(max(1, rounds)):
        for which, module in modules.items():
            module.run(feeds)
            start = time.process_time_ns()
            module.run(feeds)
            spent[which].append(time.process_time_ns() - start)
    gc.enable()
    return {which: float(np.percentile(each, PERCENTILE)) / 1000 for which, each in spent.items()}


def _other_schedules(one: StitchPlan, other: StitchPlan) -> int:
    """Kernels of `other` that `one` has not, or with another schedule."""
    had = {group.nodes: group.schedule for group in one.groups}
    return sum(had.get(group.nodes) != group.schedule for group in other.groups)


def row(one: Mapping[str, Any]) -> tuple[object, ...]:
    ratios = [f"{one['over_rules'][which]:.3f}" for which in CHOSEN]
    best = f"{one['best_random_us'] / one['us'][RULES]:.3f}"
    over_best = f"{one['over_best_random']['learned']:.3f}"
    told = "yes" if one["trained_on"] else "no"
    return one["model"], one["kernels"], told, f"{one['us'][RULES]:.1f}", *ratios, best, over_best


def page(results: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> str:
    means = {which: geometric_mean([one["over_rules"][which] for one in results]) for which in CHOSEN}
    most = {which: max(one["over_best_random"][which] for one in results) for which in (RULES, *CHOSEN)}
    told = ", ".join(f"{which} {means[which]:.3f} (at most {most[which]:.3f} times the best random plan)"
                     for which in CHOSEN)  # fmt: skip
    others = [one for one in results if not one["trained_on"]]
    unseen = geometric_mean([one["over_rules"]["learned"] for one in others]) if others else float("nan")
    return "\n\n".join([
        "# Plans by latency models, measured",
        "<!-- written by: python -m benchmarks.learned_plans --write -->",
        "CPU time of a run with one thread under the plan and schedules chosen by each latency model, relative to the "
        f"plan of the rules; and the best of {options.random} random legal plans, selected by separate measurements. "
        "*Trained on it*: whether the model is in the training set of the learned model; for the others of "
        "`benchmarks/replay` the set has models of the same kind in other sizes. Tenth percentiles of "
        f"{options.rounds} interleaved rounds, on a busy machine.",
        markdown(HEADER, map(row, results)),
        f"Geometric means over the rules: {told}; learned, of models that it was not trained on, {unseen:.3f}; "
        f"the rules themselves take at most {most[RULES]:.3f} times as long as the best random plan.",
    ]) + "\n"  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned_plans", description="Race plans on this CPU.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of benchmarks/replay (default: {', '.join(EIGHT)})")
    parser.add_argument("--models", nargs="+", type=Path, default=[], metavar="MODEL.onnx", help="besides")
    parser.add_argument("--random", type=int, default=20, metavar="N", help="random legal plans (default 20)")
    parser.add_argument("--rounds", type=int, default=400, metavar="N", help="of the race that counts (default 400)")
    parser.add_argument("--write", action="store_true", help="write the results and the page")
    options = parser.parse_args(arguments)
    trained_on = frozenset(record.model for record in read_records(TRAINED_ON))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.onnx" for name in options.names or (() if options.models else EIGHT)}
        for name, path in paths.items():
            onnx.save(MODELS[name](), path)
        for name, path in (*paths.items(), *((path.stem, path) for path in options.models)):
            results.append(race(path, name, options, trained_on))
            print("  ".join(map(str, row(results[-1]))), file=sys.stderr, flush=True)
    text = page(results, options)
    print(text)
    if options.write:
        print(f"written to {write_results('learned_plans', results)}")
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
