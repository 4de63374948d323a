"""The models of single operators."""

from __future__ import annotations

import pytest

from benchmarks.operators import SIZES, Case, cases


@pytest.mark.parametrize("known", [False, True])
def test_every_case_is_written_for_open_and_known_sizes(known: bool) -> None:
    for name, case in cases():
        model = case.model(known)
        dims = [dim for given in model.graph.input for dim in given.type.tensor_type.shape.dim]
        open_sizes = {dim.dim_param for dim in dims if dim.HasField("dim_param")}
        assert open_sizes <= (set() if known else set(SIZES)), name


def test_names_of_inputs_are_no_sizes() -> None:
    model = Case("float[p,n] x, bool[p,n] q", "y = Where(q, x, x)").model(True)
    assert [given.name for given in model.graph.input] == ["x", "q"]
