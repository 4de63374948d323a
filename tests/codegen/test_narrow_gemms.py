"""GEMMs of few columns: what is cheap is computed as their rows are fetched; against numpy."""

import numpy as np
import pytest

from tests.codegen.test_contraction_groups import Sketch
from tilestitch.compiler.ir import TensorType
from tilestitch.passes import PassContext, make_plan
from tilestitch.passes.fusion.rules.builtin import Epilogue, Inline, Views


@pytest.mark.parametrize("columns", [1, 7, 80])
def test_a_row_is_put_together_from_tables_and_differences_as_it_is_fetched(columns: int) -> None:
    s = Sketch()
    table = s.weight(11, 6)
    ids = s.graph.add_input("ids", TensorType("int64", (5, 3)))
    a, b = s.graph.emit("gather", table, ids, axis=0), s.input(5, 3, 6)
    rows = s.graph.emit("concat", a, b, s.graph.emit("sub", a, b), s.graph.emit("mul", a, b), axis=2)
    y = s.graph.emit("tanh", s.graph.emit("matmul", rows, s.weight(24, columns)))
    rules = (Epilogue(), Inline(), Views(gathers=True))
    s.check(y, pipeline="", rules=rules)
    (group,) = make_plan(s.graph, PassContext(rules=rules)).groups
    assert group.kind.value == "contraction" and "concat" in group.nodes


def test_wide_gemms_read_rows_that_are_stored() -> None:
    s = Sketch()
    rows = s.graph.emit("concat", s.input(4, 3), s.input(4, 3), axis=1)
    s.graph.outputs = [s.graph.emit("matmul", rows, s.graph.constant(np.ones((6, 1024), np.float32)))]
    assert len(make_plan(s.graph, PassContext()).groups) == 2
