"""Shows the plan of an artifact, compares two plans, or checks that a plan fits a model.

  tilestitch plan show model.tsm > plan.json
  tilestitch plan diff model.tsm plan.json
  tilestitch plan check plan.json model.onnx --target cuda:h200

A plan is the plan.json of an artifact; an artifact is accepted wherever a plan is read. `check` generates the code of
all kernels from the plan, and writes nothing. It takes the options of `compile`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import add_json
from tilestitch.compiler.cli.compile import add_compile_options, compile_with
from tilestitch.compiler.cli.output import Progress, give, say
from tilestitch.compiler.cli.paths import existing

if TYPE_CHECKING:
    from tilestitch.passes.plan import StitchPlan

SUMMARY = "show, compare or check plans"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print a plan as JSON")
    show.add_argument("plan", metavar="PLAN", help="a plan.json, or an artifact")
    diff = actions.add_parser("diff", help="show what two plans decide differently")
    diff.add_argument("before", metavar="PLAN", help="a plan.json, or an artifact")
    diff.add_argument("after", metavar="OTHER_PLAN", help="the plan to compare with it")
    add_json(diff)
    check = actions.add_parser("check", help="generate the code of all kernels from a plan, and write nothing")
    check.add_argument("plan_file", metavar="PLAN", help="a plan.json, or an artifact")
    check.add_argument("model", metavar="MODEL.onnx", help="the model that the plan is for")
    add_compile_options(check)
    add_json(check)


def run(options: argparse.Namespace) -> int:
    return {"show": _show, "diff": _diff, "check": _check}[options.action](options)


def _show(options: argparse.Namespace) -> int:
    from tilestitch.compiler.plan_files import read_plans

    plans = [plan.to_json() for plan in read_plans(existing(options.plan))]
    say(json.dumps(plans[0] if len(plans) == 1 else plans, indent=1, ensure_ascii=False))
    return errors.OK


def _diff(options: argparse.Namespace) -> int:
    from tilestitch.compiler.plan_files import read_plans
    from tilestitch.passes.plan.difference import differences

    before, after = (read_plans(existing(path)) for path in (options.before, options.after))
    found: list[dict[str, Any]] = [
        {"specialisation": number, "sizes": sizes, "path": path, "before": old, "after": new}
        for number, sizes, pair in _pairs(before, after)
        for path, old, new in differences(*pair)
    ]
    if options.json:
        give({"differences": found})
        return errors.OK
    for one in found:
        where = f"{one['sizes'] or one['specialisation']}: " if len(before) + len(after) > 2 else ""
        say(f"{where}{one['path']}: {_short(one['before'])} -> {_short(one['after'])}")
    if not found:
        say("the plans decide the same")
    return errors.OK


def _pairs(
    before: Sequence[StitchPlan], after: Sequence[StitchPlan]
) -> Iterator[tuple[int, str, tuple[StitchPlan | None, StitchPlan | None]]]:
    """Yield plans for the same sizes in pairs, with these sizes, and then the remaining ones by order, as plans without
    a scope. None stands for a missing one.
    """
    if any(plan.scope is None for plan in (*before, *after)):
        for number, pair in enumerate(zip_longest(before, after)):
            yield number, "", pair
        return
    others = list(after)
    alone = []
    for number, plan in enumerate(before):
        same = next((other for other in others if _sizes(other) == _sizes(plan)), None)
        if same is None:
            alone.append(plan)
            continue
        others.remove(same)
        yield number, _sizes(plan), (plan, same)
    for one, other in zip_longest(alone, others):
        number = after.index(other) if one is None else before.index(one)
        yield number, _sizes(one or other), (one, other)


def _sizes(plan: StitchPlan) -> str:
    return "" if plan.scope is None else f"{plan.scope}{' (favoured)' * plan.scope.favoured}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _check(options: argparse.Namespace) -> int:
    options.plan = options.plan_file
    with Progress() as progress:
        compiled = compile_with(existing(options.model), options, progress)
    kernels = sum(each.plan.kernel_count for each in compiled.specialisations)
    if options.json:
        give({"plan": options.plan_file, "model": options.model, "target": options.target, "kernels": kernels})
    else:
        say(f"{options.plan_file} fits {options.model}: {kernels} kernels for {options.target}")
    return errors.OK
