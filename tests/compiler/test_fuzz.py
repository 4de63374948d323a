"""Random graphs: every planner's kernels compute what numpy computes."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.compiled import assert_close, run_graph
from tests.strategies import feeds, graphs
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.evaluate import evaluate


@pytest.mark.parametrize("planner", ["none", "injective", "stitch"])
@given(graph=graphs())
@settings(suppress_health_check=list(HealthCheck))
def test_kernels_agree_with_numpy(planner: str, graph: Graph) -> None:
    inputs = feeds(graph)
    for actual, expected in zip(run_graph(graph, inputs, planner), evaluate(graph, inputs), strict=True):
        assert_close(actual, expected, 2e-5)
