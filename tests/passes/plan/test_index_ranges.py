"""Indices that are known to be in range are not checked when a model runs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tilestitch.compiler.frontend import import_model
from tilestitch.passes.plan.index_checks import pending_checks

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g (float[5, 9] x, int64[5] i) => (float[5] y)\n'
TABLES = "<float[9] table = {1, 2, 3, 4, 5, 6, 7, 8, 9}, int64[9] next = {3, 1, 0, 8, 7, 2, -9, 5, 4}"
CONSTANTS = TABLES + ", int64 zero = {0}, int64 two = {2}, int64 four = {4}, int64 eight = {8}, int64 below = {-1}"
CONSTANTS += ", int64[1] one = {1}>\n"


def checks(body: str) -> int:
    graph = import_model(parser.parse_model(HEAD + CONSTANTS + "{" + body + "}")).graph
    return len(pending_checks(graph.nodes))


@pytest.mark.parametrize("indices", [
    "k = ArgMax<axis=1, keepdims=0>(x)",
    "low = Max(i, zero)  k = Min(low, eight)",
    "j = ArgMin<axis=1, keepdims=0>(x)  k = Gather(next, j)",
    "s = ReduceSum<keepdims=0>(x, one)  b = Cast<to=9>(s)  c = Cast<to=7>(b)  d = Add(c, two)  k = Mul(d, two)",
    "s = ReduceSum<keepdims=0>(x, one)  b = Cast<to=9>(s)  k = Where(b, eight, zero)",
    "k = BitwiseAnd(i, eight)",
    "low = Max(i, zero)  m = Min(low, eight)  k = BitwiseAnd(m, i)",
])  # fmt: skip
def test_what_is_computed_from_known_numbers_is_in_range(indices: str) -> None:
    assert checks(f"{indices}  y = Gather(table, k)") == 0


@pytest.mark.parametrize("indices", [
    "k = Identity(i)",
    "low = Max(i, zero)  k = Add(low, zero)",
    "k = BitwiseAnd(i, below)",
    "j = ArgMax<axis=1, keepdims=0>(x)  k = Add(j, two)",
    "low = Max(i, zero)  j = Min(low, eight)  k = Mul(j, four)",
    "c = Cast<to=6>(i)  low = Cast<to=7>(c)  k = Min(low, eight)",
])  # fmt: skip
def test_what_may_leave_the_range_is_checked(indices: str) -> None:
    assert checks(f"{indices}  y = Gather(table, k)") == 1


@pytest.mark.parametrize(("places", "number"), [(28, 0), (27, 1)])
def test_numbers_that_are_shifted_right(places: int, number: int) -> None:
    """Of 31 bits three or four are left: numbers to 7 or 15."""
    body = 'c = Cast<to=12>(i)  k0 = BitwiseAnd(c, most)  u = BitShift<direction = "RIGHT">(k0, places)'
    more = f"uint32 most = {{2147483647}}, uint32 places = {{{places}}}, int64[1] one"
    text = HEAD + CONSTANTS.replace("int64[1] one", more) + "{" + body + "  k = Cast<to=7>(u)  y = Gather(table, k) }"
    assert len(pending_checks(import_model(parser.parse_model(text)).graph.nodes)) == number


def test_numbers_that_wrap_may_be_anything() -> None:
    body = "j = ArgMax<axis=1, keepdims=0>(x)  b = Cast<to=3>(j)  c = Mul(b, b)  d = Mul(c, c)  k = Cast<to=7>(d)"
    assert checks(body + "  y = Gather(table, k)") == 1
    assert np.int8(8) ** 4 == 0


@pytest.mark.parametrize(("n", "number"), [(0, 1), (1, 0)])
def test_the_place_of_the_largest_of_no_elements_is_in_no_range(n: int, number: int) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g (float[{n}, 4] x, float[{n}, 4] z) => (float[1, 4] y)\n'
    text += "{ i = ArgMax<axis=0, keepdims=1>(x)  y = GatherElements<axis=0>(z, i) }"
    assert len(pending_checks(import_model(parser.parse_model(text)).graph.nodes)) == number


FLOATS = """<ir_version: 8, opset_import: ["" : 18]> g (float[5] f, float[5] other, int64[5] i) => (float[5] y)
<float[9] table = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float nought = {0}, float half = {0.5}, float seven = {7.0},
 float eight = {8.0}, float nine = {9.0}, float far = {16777216.0}>
{"""


def checks_of_floats(body: str) -> int:
    graph = import_model(parser.parse_model(FLOATS + body + "  k = Cast<to=7>(p)  y = Gather(table, k) }")).graph
    return len(pending_checks(graph.nodes))


CLAMPED = "a = Max(f, nought)  b = Min(a, eight)  n = IsNaN(b)  c = Where(n, nought, b)"


@pytest.mark.parametrize("places", [
    f"{CLAMPED}  p = Identity(c)",
    f"{CLAMPED}  p = Floor(c)",
    f"{CLAMPED}  d = Sub(eight, c)  p = Round(d)",
    f"{CLAMPED}  d = Mul(c, half)  e = Mul(c, half)  p = Add(d, e)",
    f"{CLAMPED}  r = Clip(other, nought, seven)  m = IsNaN(r)  s = Where(m, seven, r)  p = Max(c, s)",
    "a = Clip(f, nought, eight)  b = Mul(a, half)  n = IsNaN(b)  p = Where(n, half, b)",
])  # fmt: skip
def test_positions_that_are_clamped_before_they_become_indices_are_in_range(places: str) -> None:
    assert checks_of_floats(places) == 0


@pytest.mark.parametrize("places", [
    "p = Identity(f)",
    "a = Max(f, nought)  p = Min(a, eight)",
    "n = IsNaN(f)  c = Where(n, nought, f)  p = Min(c, eight)",
    "n = IsNaN(f)  c = Where(n, nought, f)  p = Max(c, nought)",
    "n = IsNaN(other)  a = Max(f, nought)  b = Min(a, eight)  p = Where(n, nought, b)",
    f"{CLAMPED}  d = Add(c, half)  p = Add(d, half)",
    f"{CLAMPED}  d = Add(c, far)  p = Sub(d, far)",
    f"{CLAMPED}  d = Mul(c, f)  p = Min(d, eight)",
    f"{CLAMPED}  d = Max(c, nine)  p = Identity(d)",
])  # fmt: skip
def test_positions_that_may_leave_the_range_or_be_no_numbers_are_checked(places: str) -> None:
    assert checks_of_floats(places) == 1


def test_infinities_may_meet_in_no_number() -> None:
    assert (
        checks_of_floats("a = Max(f, nought)  b = Max(other, nought)  d = Sub(a, b)  p = Clip(d, nought, eight)") == 1
    )
