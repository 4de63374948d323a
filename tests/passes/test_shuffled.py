"""Plans in which unions were made at random, before the planner's own rules: legal, and they compute the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from tests.attention_graphs import Case, attention
from tests.passes.helpers import assert_close
from tests.passes.simulate import simulate
from tests.strategies import feeds
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.measure.shuffled import Shuffled
from tilestitch.passes import PassContext, check_plan, make_plan
from tilestitch.passes.fusion.clusters import Fuse, Fusion
from tilestitch.passes.fusion.rules.builtin import AllowsAll


def graph() -> Graph:
    """Attention whose heads are merged after it."""
    return attention(Case(mask="causal", merge_heads=True, queries=16, keys=16))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_was_joined_before_the_plan_is_legal(seed: int) -> None:
    made = graph()
    rules = (Shuffled(seed, (0.1, 0.3, 0.6)[seed % 3], forced=True),)
    plan = make_plan(made, PassContext(rules=rules))
    check_plan(plan, made)
    inputs = feeds(made)
    with np.errstate(all="ignore"):
        assert_close(evaluate(made, inputs), simulate(plan, made, inputs))


def test_a_seed_gives_the_same_plan_and_another_one_another() -> None:
    alone = {"planner": "none"}
    plans = [make_plan(graph(), PassContext(options=alone, rules=(Shuffled(n),))).groups for n in (1, 1, 2, 3)]
    assert plans[0] == plans[1]
    assert len({tuple(g.nodes for g in groups) for groups in plans}) > 1


@dataclass(frozen=True)
class Merged(AllowsAll):
    """The last GEMM and the transpose after it."""

    name: ClassVar[str] = "merged"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        gemm = [node for node in state.nodes if node.op == "matmul"][-1]
        yield Fuse((gemm, gemm.output.users[0]), forced=True)


def test_attention_whose_last_gemm_another_rule_has_joined_is_one_kernel() -> None:
    plan = make_plan(graph(), PassContext(rules=(Merged(),)))
    assert [group.kind.value for group in plan.groups] == ["attention"]
