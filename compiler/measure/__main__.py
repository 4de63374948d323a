"""Measures kernels that we generate for this machine's CPU, and adds them to a file of records.

  python -m tilestitch.compiler.measure MODEL.onnx... --records FILE.db [--plans N] [--schedules N] [--rounds N]
  python -m tilestitch.compiler.measure --records FILE.db --export FILE.jsonl.gz
  python -m tilestitch.compiler.measure --records FILE.db --import FILE.jsonl.gz

For each model, the plan of the rules and random legal plans are compiled, each with the schedules of the rules and with
random legal ones, and with `--searched MODEL` the plan that a cost model chooses; their runs are interleaved. Each
kernel is timed in place, with the caches as its neighbours leave them. The minimum over all rounds counts, since other
load only makes kernels slower.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tilestitch.codegen.cpu.target import CpuTarget, parse_target
from tilestitch.compiler.cli.arguments import positive
from tilestitch.compiler.machine import machine_of
from tilestitch.compiler.tune.records import records_of
from tilestitch.compiler.tune.timing import time_in_turns, why_other_results
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.models import model_named
from tilestitch.cost_model.records import Record, Records
from tilestitch.cost_model.training.record_files import export_records, import_records
from tilestitch.passes.fusion.planners import PLANNERS
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.planner import make_plan

from .kernels import Subject
from .plans import random_plan, with_random_schedules

TOGETHER = 4
"""Plans of a model that are in memory at once, with interleaved runs."""


def measure(path: Path, target: CpuTarget, threads: int, options: argparse.Namespace) -> list[Record]:
    subject = Subject.of(path, target, threads, ANALYTICAL)
    plans = list(_plans(subject, options))
    machine, found = machine_of(target, threads), list[Record]()
    reference = subject.compiled(plans[0])
    for first in range(0, len(plans), TOGETHER):
        some = plans[first : first + TOGETHER]
        modules = [reference if plan is plans[0] else subject.compiled(plan) for plan in some]
        for plan, module in zip(some, modules, strict=True):
            odd = why_other_results(module, reference, subject.inputs)
            if odd is not None:
                numbers = f"plan {plans.index(plan)} of --seed {options.seed} --schedules {options.schedules}"
                raise MeasurementError(f"{odd} ({numbers}); report this as a bug")
        times = time_in_turns(modules, subject.inputs, options.rounds, options.seconds)
        for plan, module, its in zip(some, modules, times, strict=True):
            found += records_of(subject.graph, plan, its, machine, ANALYTICAL, subject.name)
            if module is not reference:
                module.close()
    reference.close()
    return found


def _plans(subject: Subject, options: argparse.Namespace) -> Iterator[StitchPlan]:
    for number in range(options.plans):
        seed = options.seed + number
        if number:
            plan = random_plan(subject.graph, subject.context, seed)
        else:
            given = {**subject.context.options, "planner": options.planner}
            plan = make_plan(subject.graph, replace(subject.context, options=given))
        yield plan
        for other in range(1, options.schedules):
            yield with_random_schedules(subject.graph, plan, options.schedules * seed + other)
    if options.searched:
        model = model_named(options.searched)
        given = {**subject.context.options, "search": True}
        yield make_plan(subject.graph, replace(subject.context, cost_model=model, options=given))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        with Records.open(options.records) as records:
            return _run(options, records)
    except Exception as error:
        code: int | None = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return code


def _run(options: argparse.Namespace, records: Records) -> int:
    if options.imported:
        records.add(import_records(options.imported))
    failed = 0
    target = parse_target(options.target)
    for path in options.models:
        try:
            found = measure(path, target, options.threads, options)
        except Exception as error:
            if getattr(error, "exit_code", None) is None:
                raise
            failed += 1
            print(f"{path}: left out: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            continue
        records.add(found)
        print(f"{path}: {len(found)} kernels; {len(records)} in {records.path}", file=sys.stderr, flush=True)
    if options.exported:
        print(f"{export_records(records, options.exported)} records written to {options.exported}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tilestitch.compiler.measure", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--records", required=True, metavar="FILE.db", help="the file that records are added to")
    parser.add_argument("--target", default="cpu", help="cpu, or cpu:NAME for kernels that use less of this machine")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="default: 1")
    parser.add_argument("--plans", type=positive, default=3, metavar="N", help="of each model (default: 3)")
    parser.add_argument("--schedules", type=positive, default=4, metavar="N", help="of each plan (default: 4)")
    parser.add_argument("--planner", default="stitch", choices=PLANNERS, help="whose rules make the first plan")
    parser.add_argument("--searched", metavar="MODEL", help="and the plan by this cost model: a name, or FILE.json")
    parser.add_argument("--rounds", type=positive, default=20, metavar="N", help="of each plan at most (default: 20)")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="of a turn of plans at most")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random plans")
    parser.add_argument("--import", dest="imported", metavar="FILE.jsonl", help="add these records first")
    parser.add_argument("--export", dest="exported", metavar="FILE.jsonl", help="write all records in the end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
