"""Bounds of the keys that a query sees, read off masks that compare positions."""

from __future__ import annotations

import pytest

from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes.plan.attention.bounds import Bound, bounds_of
from tilestitch.passes.plan.roles import Roles, roles_of

POSITIONS = """
  %row = iota() {shape = [1,1,QUERIES,1], axis = 2, dtype = "int64"} : int64[1,1,QUERIES,1]
  %key = iota() {shape = [6], axis = 0, dtype = "int64"} : int64[6]
  %end = add(%row, %before) : int64[2,1,QUERIES,1]"""
HIDDEN = """
  %zero = constant [0.0] : float32[]
  %hidden = constant ["-inf"] : float32[]
  %bias = select(%seen, %zero, %hidden) : float32[2,1,QUERIES,6]
  %masked = add(%scores, %bias) : float32[2,3,QUERIES,6]"""


def bounds(
    *mask: str, positions: str = POSITIONS, hidden: str = HIDDEN, queries: int = 5, merged: int = 1
) -> list[tuple[str, str, str]]:
    """The bounds of an attention with this mask: its operands, and from which side the first or last query decides."""
    text = f"""graph @g(%q: float32[2,3,QUERIES,4], %k: float32[2,3,6,4], %v: float32[2,3,6,4], %before: int64[2,1,1,1],
      %heads: int64[2,3,1,1], %padded: bool[2,1,1,6]) -> (%y) {{
  %scores = matmul(%q, %k) {{trans_b = true}} : float32[2,3,QUERIES,6]{positions}
  {"; ".join(mask)}{hidden}
  %largest = reduce_max(%masked) {{axes = [3], keepdims = true}} : float32[2,3,QUERIES,1]
  %apart = sub(%masked, %largest) : float32[2,3,QUERIES,6]
  %e = exp(%apart) : float32[2,3,QUERIES,6]
  %sum = reduce_sum(%e) {{axes = [3], keepdims = true}} : float32[2,3,QUERIES,1]
  %weights = div(%e, %sum) : float32[2,3,QUERIES,6]
  %y = matmul(%weights, %v) : float32[2,3,QUERIES,4]
}}"""
    graph = parse_graph(text.replace("; ", "\n  ").replace("QUERIES", str(queries)))
    roles = roles_of(graph.nodes, graph.outputs)
    assert isinstance(roles, Roles), roles
    return [_described(bound) for bound in bounds_of(roles, merged)]


def _described(bound: Bound) -> tuple[str, str, str]:
    low, high = (path[-1][0].inputs[path[-1][1]].name for path in (bound.low, bound.high))
    side = f"{'last' if bound.of_last else 'first'} query, {'above' if bound.is_last else 'below'}"
    return low, ("<" if bound.strict else "<=") + high, side


SEEN = "%seen = {} : bool[2,1,QUERIES,6]"
SPELLINGS = {
    "k <= q + n": ([SEEN.format("less_equal(%key, %end)")], [("key", "<=end", "last query, above")]),
    "q + n > k": ([SEEN.format("less(%key, %end)")], [("key", "<end", "last query, above")]),
    "not k > q + n": (
        ["%late = less(%end, %key) : bool[2,1,QUERIES,6]", SEEN.format("logical_not(%late)")],
        [("key", "<=end", "last query, above")],
    ),
    "q + n - k >= 0": (
        [
            "%gap = sub(%end, %key) : int64[2,1,QUERIES,6]", "%none = constant [0] : int64[]",
            SEEN.format("less_equal(%none, %gap)"),
        ],
        [("none", "<=gap", "last query, above")],
    ),
    "a window": (
        [
            "%wide = constant [3] : int64[]", "%from = sub(%end, %wide) : int64[2,1,QUERIES,1]",
            "%late = less(%from, %key) : bool[2,1,QUERIES,6]", "%soon = less_equal(%key, %end) : bool[2,1,QUERIES,6]",
            SEEN.format("logical_and(%late, %soon)"),
        ],
        [("from", "<key", "first query, below"), ("key", "<=end", "last query, above")],
    ),
    "neither padded nor late": (
        [
            "%late = less(%end, %key) : bool[2,1,QUERIES,6]",
            "%none = logical_or(%late, %padded) : bool[2,1,QUERIES,6]", SEEN.format("logical_not(%none)"),
        ],
        [("key", "<=end", "last query, above")],
    ),
    "a length": (
        ["%few = less(%key, %before) : bool[2,1,1,6]", SEEN.format("broadcast_to(%few) {shape = [2,1,QUERIES,6]}")],
        [("key", "<before", "last query, above")],
    ),
    "backwards": (
        ["%end2 = sub(%before, %row) : int64[2,1,QUERIES,1]", SEEN.format("less_equal(%key, %end2)")],
        [("key", "<=end2", "first query, above")],
    ),
    "in 32 bits": (
        [
            '%short = iota() {shape = [6], axis = 0, dtype = "int32"} : int32[6]',
            '%long = cast(%short) {to = "int64"} : int64[6]',
            SEEN.format("less_equal(%long, %end)"),
        ],
        [("long", "<=end", "last query, above")],
    ),
    # What says nothing of all queries and keys.
    "late or padded": (
        ["%soon = less_equal(%key, %end) : bool[2,1,QUERIES,6]", SEEN.format("logical_or(%soon, %padded)")], [],
    ),
    "every second key": (
        ["%twice = add(%key, %key) : int64[6]", SEEN.format("less_equal(%twice, %end)")], [],
    ),
    "equal": ([SEEN.format("equal(%key, %end)")], []),
    "sums in 32 bits, which may overflow": (
        [
            '%short = cast(%row) {to = "int32"} : int32[1,1,QUERIES,1]',
            '%near = cast(%before) {to = "int32"} : int32[2,1,1,1]', "%far = add(%short, %near) : int32[2,1,QUERIES,1]",
            '%long = cast(%far) {to = "int64"} : int64[2,1,QUERIES,1]', SEEN.format("less_equal(%key, %long)"),
        ],
        [],
    ),
    "constants whose differences overflow": (
        [
            "%keys = constant [126, 127, -128, -127, -126, -125] : int8[6]",
            '%near = cast(%before) {to = "int8"} : int8[2,1,1,1]', "%few = less_equal(%keys, %near) : bool[2,1,1,6]",
            SEEN.format("broadcast_to(%few) {shape = [2,1,QUERIES,6]}"),
        ],
        [],
    ),
    "a narrow cast": (
        [
            '%short = cast(%end) {to = "int32"} : int32[2,1,QUERIES,1]',
            '%near = cast(%key) {to = "int32"} : int32[6]', SEEN.format("less_equal(%near, %short)"),
        ],
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_comparisons_of_positions(name: str) -> None:
    mask, expected = SPELLINGS[name]
    assert bounds(*mask) == expected


def test_a_mask_that_is_read_twice_at_each_of_many_steps() -> None:
    """Each is looked at once; by way of all readers there are more paths than there is time for."""
    steps = [f"%seen{i + 1} = logical_and(%seen{i}, %seen{i}) : bool[2,1,QUERIES,6]" for i in range(40)]
    mask = ["%seen0 = less_equal(%key, %end) : bool[2,1,QUERIES,6]", *steps]
    assert bounds(*mask, SEEN.format("logical_and(%seen40, %seen40)")) == [("key", "<=end", "last query, above")]


def test_a_score_that_is_replaced_is_none_that_is_masked() -> None:
    seen = SEEN.format("less_equal(%key, %end)")
    hidden = (
        HIDDEN.replace("%masked", "%first")
        + """
  %masked = select(%padded, %first, %zero) : float32[2,3,QUERIES,6]"""
    )
    assert bounds(seen, hidden=hidden) == []
    assert bounds(seen, hidden=hidden.replace("%zero) : float32[2,3", "%hidden) : float32[2,3")) != []


def test_large_numbers_hide_no_key_from_a_query_that_sees_none() -> None:
    assert bounds(SEEN.format("less_equal(%key, %end)"), hidden=HIDDEN.replace('"-inf"', "-3e38")) == []


def test_positions_may_be_constants() -> None:
    positions = POSITIONS.replace(
        '%key = iota() {shape = [6], axis = 0, dtype = "int64"}', "%key = constant [0, 1, 2, 3, 4, 5]"
    )
    seen = SEEN.format("less_equal(%key, %end)")
    assert bounds(seen, positions=positions) == [("key", "<=end", "last query, above")]
    assert bounds(seen, positions=positions.replace("4, 5", "4, 6")) == []


def test_of_heads_that_are_rows_of_one_tile_all_have_the_same_bound() -> None:
    seen = SEEN.format("less_equal(%key, %end)")
    assert bounds(seen, queries=1, merged=3) == [("key", "<=end", "last query, above")]
    assert bounds(seen, queries=1, merged=2) == []  # a tile has heads of two batches
    apart = ["%end3 = add(%end, %heads) : int64[2,3,1,1]", "%seen3 = less_equal(%key, %end3) : bool[2,3,1,6]"]
    hidden = HIDDEN.replace("%seen", "%seen3").replace("%bias = select", "%bias = select").replace("[2,1,", "[2,3,")
    assert bounds(*apart, queries=1, merged=3, hidden=hidden) == []
    assert bounds(*apart, queries=1, hidden=hidden) == [("key", "<=end3", "last query, above")]
