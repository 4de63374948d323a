"""The built-in planners: their fusion rules, in order."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.rules.attention import Attention
from tilestitch.passes.fusion.rules.builtin import Copies, Epilogue, FusionRule, Inline, Rows, Views
from tilestitch.passes.fusion.rules.combining import Bands, BlockStitching, GlobalStitching, Packing
from tilestitch.passes.fusion.rules.explore import Explore
from tilestitch.passes.fusion.rules.gates import Gates, OperandViews
from tilestitch.passes.fusion.rules.inplace import InPlace

from .xla import DotMerger, KernelLimits, LibraryCalls, MultiOutputFusion, Normalisations, PriorityFusion

REMOTE: tuple[FusionRule, ...] = (InPlace(), Bands(), BlockStitching(), GlobalStitching(), Packing())

VIEWED: tuple[FusionRule, ...] = (Copies(), OperandViews(), Views(narrow=0))

XLA: tuple[FusionRule, ...] = (
    KernelLimits(), LibraryCalls(), Views(narrow=0), Normalisations(), PriorityFusion(),
    MultiOutputFusion(), DotMerger(),
)  # fmt: skip

AFTER: tuple[FusionRule, ...] = (Copies(), OperandViews(), Views(), *REMOTE)

PLANNERS: dict[str, tuple[FusionRule, ...]] = {
    "none": (),
    "injective": (Inline(),),
    "xla": XLA,
    "stitch": (Attention(), Epilogue(), Gates(), Rows(), Inline(), *AFTER),
    "explore": (Attention(), Explore(then=(*VIEWED, *REMOTE)), *VIEWED, *REMOTE),
}
"""Planners by name: `none` gives every operator a kernel, `injective` fuses element-wise chains, `xla` is a baseline to
compare with, `stitch` is the default, `explore` searches by predicted latency.
"""

SEARCHES: dict[str, tuple[FusionRule, ...]] = {"stitch": (Attention(), Explore(then=AFTER), *AFTER)}
"""Searches for better plans than a planner's rules make: they climb from that plan, and from patterns if the graph is
small.
"""

LEAST_WORK, WORK_A_NODE = 4000, 4
"""Budget of this search where no seconds are given, in kernels evaluated: on a small graph, and on a large one per
node; about twice as long as the rules take.
"""


def default_work(nodes: int) -> int:
    """Return the budget for a graph with so many nodes."""
    return max(LEAST_WORK, WORK_A_NODE * nodes)


def asking(
    rules: Sequence[FusionRule], model: LatencyModel, budget_s: float | None = None, work: int | None = None
) -> tuple[FusionRule, ...]:
    """Return built-in rules that use `model`, also in the rules that they try. `budget_s`: of those that search, in
    seconds, instead of a limit of work; `work`: that limit, in kernels, if it is not their own.
    """
    return tuple(_asking(rule, model, budget_s, work) for rule in rules)


def _asking(rule: Any, model: LatencyModel, budget_s: float | None, work: int | None) -> Any:
    names = {f.name for f in dataclasses.fields(rule)}
    changes: dict[str, Any] = {"model": model} if "model" in names else {}
    if "budget_s" in names and budget_s is not None:
        changes |= {"budget_s": budget_s, "work": 0}
    elif "work" in names and work is not None:
        changes["work"] = work
    if "then" in names:
        changes["then"] = asking(rule.then, model, budget_s, work)
    return dataclasses.replace(rule, **changes) if changes else rule
