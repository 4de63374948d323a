"""Which groups are so alike that they share a kernel."""

from __future__ import annotations

import pytest

from tilestitch.codegen.signature import signature
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes.contract import PassContext
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan

TEXT = """graph @main[SYMBOLS](%x: float32[n,4], %u: float32[m,4]) -> (%y) {
  %y = exp(%x) : float32[n,4]
}"""


def key(symbols: str) -> tuple[object, ...]:
    graph = parse_graph(TEXT.replace("SYMBOLS", symbols))
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2, isa="avx512")))
    (group,) = plan.groups
    return signature(graph, group).key


@pytest.mark.parametrize("other", ["m=1..9, n=1..9", "n=1..9, m=2..9", "n=0.or.1..9, m=1..9"])
def test_kernels_find_symbols_by_their_place_so_graphs_with_others_share_none(other: str) -> None:
    assert key("n=1..9, m=1..9") == key("n=1..9, m=1..9")
    assert key("n=1..9, m=1..9") != key(other)
