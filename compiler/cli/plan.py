"""Shows the plan of an artifact, compares two plans, or checks that a plan fits a model.

  tilestitch plan show model.tsm > plan.json
  tilestitch plan diff model.tsm plan.json
  tilestitch plan check plan.json model.onnx --target cuda:h200

A plan is the plan.json of an artifact; the artifact itself may be given wherever a plan is read. `check` makes the code
of all kernels by the plan, and writes nothing. It takes the options of `compile`.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import add_json
from tilestitch.compiler.cli.compile import add_compile_options, compile_with
from tilestitch.compiler.cli.output import Progress, give, say
from tilestitch.compiler.cli.paths import existing

SUMMARY = "show, compare or check plans"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print a plan as JSON")
    show.add_argument("plan", metavar="PLAN")
    diff = actions.add_parser("diff", help="what two plans decide differently")
    diff.add_argument("before", metavar="PLAN")
    diff.add_argument("after", metavar="OTHER_PLAN")
    add_json(diff)
    check = actions.add_parser("check", help="make the code of all kernels by a plan, and write nothing")
    check.add_argument("plan_file", metavar="PLAN")
    check.add_argument("model", metavar="MODEL.onnx")
    add_compile_options(check)
    add_json(check)


def run(options: argparse.Namespace) -> int:
    return {"show": _show, "diff": _diff, "check": _check}[options.action](options)


def _show(options: argparse.Namespace) -> int:
    from tilestitch.compiler.driver import read_plans

    plans = [plan.to_json() for plan in read_plans(existing(options.plan))]
    say(json.dumps(plans[0] if len(plans) == 1 else plans, indent=1, ensure_ascii=False))
    return errors.OK


def _diff(options: argparse.Namespace) -> int:
    from tilestitch.compiler.driver import read_plans
    from tilestitch.passes.plan.difference import differences

    before, after = (read_plans(existing(path)) for path in (options.before, options.after))
    if len(before) != len(after):
        raise errors.UsageError(
            f"{options.before} has {len(before)} specialisations, {options.after} {len(after)}; give plans of as many"
        )
    found: list[dict[str, Any]] = [
        {"specialisation": number, "path": path, "before": old, "after": new}
        for number, pair in enumerate(zip(before, after, strict=True))
        for path, old, new in differences(*pair)
    ]
    if options.json:
        give({"differences": found})
        return errors.OK
    for one in found:
        where = f"{one['specialisation']}: " if len(before) > 1 else ""
        say(f"{where}{one['path']}: {_short(one['before'])} -> {_short(one['after'])}")
    if not found:
        say("the plans decide the same")
    return errors.OK


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _check(options: argparse.Namespace) -> int:
    options.plan = options.plan_file
    with Progress() as progress:
        compiled = compile_with(existing(options.model), options, progress)
    kernels = sum(len(each.plan.groups) for each in compiled.specialisations)
    if options.json:
        give({"plan": options.plan_file, "model": options.model, "target": options.target, "kernels": kernels})
    else:
        say(f"{options.plan_file} fits {options.model}: {kernels} kernels for {options.target}")
    return errors.OK
