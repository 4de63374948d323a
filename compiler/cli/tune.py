"""Compiles a model, with schedules that are the fastest of many that are measured on this machine.

  tilestitch tune model.onnx -o model.tsm --seconds 300
  tilestitch tune model.onnx -o model.tsm --shape ids=1x128 --threads 1 --input ids=ids.npy
  tilestitch tune model.onnx --plan model.tsm -o better.tsm
  tilestitch tune model.onnx --target cuda:h200 -o model.tsm

Each kernel is measured by itself, on the operands that it has in the model. Tuners work side by side, each on cores of
its own; on a GPU they compile side by side, and take turns in measuring. What they find is kept if it is faster in the
whole model, too. An interrupt (Ctrl-C) ends the search, and the
best schedules until then are taken. All options of `compile` apply; --plan says where to start.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import add_json, natural, positive
from tilestitch.compiler.cli.compile import add_compile_options, add_report, compile_arguments, output_files
from tilestitch.compiler.cli.inputs import input_files, read_inputs
from tilestitch.compiler.cli.output import Progress, give, say, table, warn
from tilestitch.compiler.cli.paths import existing, writable

if TYPE_CHECKING:
    from tilestitch.compiler.tune.tune import TunedPlan, TunedTask

SUMMARY = "compile a model with schedules that are measured on this machine"
HEADER = ("kernel", "us", "kernels", "tried", "alone", "in model", "kept")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx", help="the model to tune")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.tsm", help="the artifact to write")
    group = parser.add_argument_group("tuning")
    group.add_argument(
        "--seconds", type=_seconds, default=120.0, metavar="S",
        help="how long schedules are tried; compiling and confirming take more (default: 120)",
    )  # fmt: skip
    group.add_argument(
        "--shares", type=positive, metavar="N",
        help="tuners that work side by side, each on cores of its own (default: as many as there are cores for, if "
        "each has as many as --threads says; for a GPU, one for each core, and at most 8)",
    )  # fmt: skip
    group.add_argument(
        "--device", default="cuda:0", metavar="cuda:N", help="the GPU to measure on, for GPU targets (default: cuda:0)"
    )
    group.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy",
        help="an array for this input; inputs that are not given are random",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=natural, default=0, metavar="N",
        help="seed of the random inputs, and of what is tried (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--save-records", metavar="FILE", help="add the measured kernels to this file, for --records of other models"
    )
    add_compile_options(parser)
    add_report(parser)
    add_json(parser)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; give 0 or more")
    return value


def run(options: argparse.Namespace) -> int:
    read = input_files(options.input)
    target, report = output_files(options, read)
    if options.save_records is not None:
        if not options.target.startswith("cpu"):
            raise errors.UsageError(
                f"records are of kernels for CPUs, not for {options.target}; leave --save-records out"
            )
        writable(options.save_records, [options.model, options.plan, *read, *_written(options, report)])
    source, arguments = existing(options.model), compile_arguments(options)
    inputs = read_inputs(options.input)
    from tilestitch.compiler.tune.tune import tune_model
    from tilestitch.cost_model.records import Records

    start = time.perf_counter()
    if options.save_records is not None:
        with Records.open(options.save_records) as saved:
            saved.check_writable()
    with Progress() as progress:
        tuned = tune_model(
            source, options.target, seconds=options.seconds, shares=options.shares, inputs=inputs, seed=options.seed,
            device=options.device, report=report, progress=progress, **arguments,
        )  # fmt: skip
        progress("writing the artifact")
        tuned.model.save(target)
        if options.save_records is not None:
            with Records.open(options.save_records) as saved:
                saved.add(record for plan in tuned.plans for record in plan.records)
    seconds = time.perf_counter() - start
    for lost in (lost for plan in tuned.plans for lost in plan.lost):
        trying = "" if lost.trying is None else f" while it tried {lost.trying.name}"
        warn(f"a process of a tuner ended{trying}: {lost.reason}")
    if options.json:
        give({"artifact": str(target), "seconds": round(seconds, 3), "plans": [_facts(plan) for plan in tuned.plans]})
        return errors.OK
    for plan in tuned.plans:
        _say_plan(plan)
    say(f"{target}: tuned in {seconds:.0f} s")
    return errors.OK


def _written(options: argparse.Namespace, report: Path | None) -> list[Path | None]:
    """Return the files that the command writes besides records."""
    from tilestitch.runtime.artifact_writer import weights_path

    weights = weights_path(Path(options.output)) if options.strip_weights else None
    return [Path(options.output), weights, report]


def _say_plan(plan: TunedPlan) -> None:
    if plan.untuned:
        say(f"not tuned: {plan.untuned}")
        return
    say(table([[_text(one) for one in _row(task).values()] for task in plan.tasks], HEADER))
    tried = sum(task.tried for task in plan.tasks)
    ratio = plan.after_us / plan.before_us if plan.before_us else 1.0
    what = "the model takes" if plan.plan.target.is_gpu else "all kernels take"
    change = f"{plan.before_us:.1f} us before, {plan.after_us:.1f} us after"
    say(f"{tried} schedules tried; {what} {change} ({ratio:.3f} of the time)")


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else value


def _row(task: TunedTask) -> dict[str, Any]:
    return {
        "kernel": task.task.kernel.name,
        "us": round(task.task.latency_us, 1),
        "kernels": len(task.task.groups),
        "tried": task.tried,
        "alone": round(task.alone, 3),
        "in_model": None if task.in_model is None else round(task.in_model, 3),
        "kept": task.kept,
    }


def _facts(plan: TunedPlan) -> dict[str, Any]:
    lost = [one.reason for one in plan.lost]
    return {
        "untuned": plan.untuned, "before_us": plan.before_us, "after_us": plan.after_us, "lost": lost,
        "tasks": [{**_row(task), "failed": task.failed} for task in plan.tasks],
    }  # fmt: skip
