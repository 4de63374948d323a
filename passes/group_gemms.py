"""Batching GEMMs of different inputs into one launch, decided by the predicted time of the whole plan with and without.

One batched GEMM competes with concurrent launches and with packed ones: each graph is planned with its best packs,
tiles, order and branches, and the fastest prediction wins.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.symbol_uses import symbols_within
from tilestitch.cost_model.protocol import hardly_slower

from .contract import PassContext, PassResult
from .planner import make_plan, predicted_us
from .rewrite.canonicalise import Canonicalise
from .rewrite.cse import DeadCode
from .rewrite.grouped_gemms import group_gemms

MOST_PLANS = 8
"""Most plans that are compared."""
PLANNERS = ("stitch", "explore")
"""Planners that choose by predicted time."""
Names = tuple[str, ...]


@dataclass(frozen=True)
class GroupGemms:
    """On GPUs: tries all families of GEMMs (`rewrite/grouped_gemms.py`) at once, then with each left out or by
    itself.
    """

    name: ClassVar[str] = "group_gemms"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        planner = context.options.get("planner", "stitch")
        if not context.target.is_gpu or symbols_within(graph) or planner not in PLANNERS:
            return PassResult(graph, False)
        every, families = _grouped(graph, None, context)
        if not families:
            return PassResult(graph, False)
        given_us = best_us = _planned_us(graph, context)
        all_us = _planned_us(every, context)
        best, chosen = graph, frozenset[Names]()
        if not hardly_slower(best_us, all_us):
            best, best_us, chosen = every, all_us, frozenset(families)
        for family in families[: MOST_PLANS - 2] if len(families) > 1 else ():
            wanted = chosen ^ {family}
            other, found = _grouped(graph, wanted, context)
            if set(found) != wanted:  # it exists only if another one does
                continue
            other_us = _planned_us(other, context)
            if not hardly_slower(best_us, other_us):
                best, best_us, chosen = other, other_us, wanted
        notes = [_note(family, family in chosen) for family in families]
        notes.append(f"predicted {best_us:.1f} us, {given_us:.1f} us with none, {all_us:.1f} us with all")
        return PassResult(best, best is not graph, tuple(notes))


def _note(family: Names, is_one: bool) -> str:
    return f"{len(family)} GEMMs {'became one' if is_one else 'stay apart'}: {', '.join(family)}"


def _grouped(graph: Graph, wanted: Collection[Names] | None, context: PassContext) -> tuple[Graph, list[Names]]:
    """Return a copy in which the wanted families (None: all) are one GEMM each, and the families found."""
    other = graph.clone()
    found = group_gemms(other, lambda names: wanted is None or names in wanted)
    for pass_ in (DeadCode(), Canonicalise(), DeadCode()):
        other = pass_.run(other, context).graph
    return other, found


def _planned_us(graph: Graph, context: PassContext) -> float:
    """Return the predicted time of the plan of the rules, without a search."""
    options = {key: one for key, one in context.options.items() if key not in ("search", "plan_budget_s")}
    plain = replace(context, options=options, listeners=())
    return predicted_us(make_plan(graph, plain), graph, plain)
