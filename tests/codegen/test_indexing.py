"""Index arithmetic: what was divided comes back whole."""

from __future__ import annotations

import pytest
import tvm.sym
from tvm import tirx
from tvm.ir import Range

from tilestitch.codegen.compute.indexing import ravel, unravel
from tilestitch.codegen.compute.narrow_sizes import in_int64
from tilestitch.compiler.ir.in_kernel import lowering
from tilestitch.compiler.ir.sizes import Symbol, size_of


@pytest.mark.parametrize("shape", [(28, 28), (3, 7, 11), (2, 3, 5, 7)])
@pytest.mark.parametrize("offset", [0, 4, 16, 48])
def test_a_position_survives_division_and_simplification(shape: tuple[int, ...], offset: int) -> None:
    """The simplifier alone leaves (p + 48) // 28 * 28 + (p + 20) % 28 as it is, which reads one element at a time."""
    step, lane = tirx.Var("step", "int32"), tirx.Var("lane", "int32")
    analyzer = tvm.sym.Analyzer()
    analyzer.bind(step, Range(0, 12))
    analyzer.bind(lane, Range(0, 16))
    position = step * 64 + offset + lane
    entries = [e if isinstance(e, int) else analyzer.simplify(e) for e in unravel(position, (1000, *shape))]
    assert analyzer.can_prove_equal(ravel(entries, (1000, *shape)), position)
    assert "%" not in str(analyzer.simplify(ravel(entries, (1000, *shape))))


def test_what_does_not_belong_together_stays_apart() -> None:
    p, q = tirx.Var("p", "int32"), tirx.Var("q", "int32")
    for pair in ((p // 7, q % 7), (p // 7, (p + 3) % 7), (p // 5, p % 7), (p % 3, p % 7)):
        assert "%" in str(ravel(pair, (9, 7)))
    evaluated = ravel((tirx.FloorMod(p // 7, tirx.IntImm("int32", 3)), p % 7), (3, 7))
    for number in (0, 6, 7, 20, 21, 100):
        analyzer = tvm.sym.Analyzer()
        analyzer.bind(p, Range(number, number + 1))
        assert int(analyzer.simplify(evaluated).value) == number // 7 % 3 * 7 + number % 7


def test_sizes_that_are_sums_are_found_in_any_form() -> None:
    t, p = tirx.Var("t", "int64"), tirx.Var("p", "int64")
    size, doubled = 2 * size_of(Symbol("t", 2)) - 2, (t - 1) * 2
    with lowering(lambda other: in_int64(other, {"t": t})):
        entries = tirx.FloorDiv(p, doubled), tirx.FloorMod(p, doubled)
        assert ravel(entries, (9, size)).same_as(p)
        assert "%" in str(ravel(entries, (9, size + 1)))
