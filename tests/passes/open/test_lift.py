"""Plans made at typical sizes, carried over to all sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilestitch.compiler.ir.claims import Claim
from tilestitch.compiler.ir.sizes import Symbol, size_of, typical
from tilestitch.compiler.ir.substitute import data_at, graph_at
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.compiler.ir.types import TensorType
from tilestitch.passes.contract import PassContext
from tilestitch.passes.errors import PassError
from tilestitch.passes.open.lift import joined
from tilestitch.passes.open.typical import typical_sizes
from tilestitch.passes.plan.cpu.schedules import CpuLoopSchedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan

B, S = (size_of(Symbol(name, 1, 100)) for name in "bs")
LAYERS = """graph @main[b=1..64, s=1..](%x: float32[b,s,96], %w: float32[96]) -> (%y, %z) {
  %a = mul(%x, %w) : float32[b,s,96]
  %e = exp(%a) : float32[b,s,96]
  %y = transpose(%e) {perm=[0,2,1]} : float32[b,96,s]
  %m = reduce_max(%a) {axes=[2], keepdims=true} : float32[b,s,1]
  %z = sub(%a, %m) : float32[b,s,96]
}"""


@pytest.mark.parametrize(
    ("extents", "typical", "shape", "expected"),
    [
        ((679, 96), (97, 7, 96), (B, S, 96), (B * S, 96)),
        ((65184,), (97, 7, 96), (B, S, 96), (96 * B * S,)),
        ((97, 672), (97, 1, 7, 96), (B, 1, S, 96), (B, 96 * S)),
        ((96, 679), (97, 7, 96), (B, S, 96), None),
        ((97,), (97, 7), (B, S), None),
    ],
)
def test_joined_dimensions_are_products_of_the_same_runs(
    extents: tuple[int, ...], typical: tuple[int, ...], shape: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    assert joined(extents, typical, shape) == expected


def test_typical_sizes_are_new_to_the_graph_and_in_range() -> None:
    graph = parse_graph("graph @g[n=1.., m=1..8](%x: float32[n,97,m]) -> (%y) { %y = neg(%x) : float32[n,97,m] }")
    sizes = typical_sizes(graph)
    assert sizes["n"] not in (97, sizes["m"])
    assert sizes["m"] == 8


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        (Claim(B % 4, exact=True), lambda b, s: b % 4 == 0),
        (Claim(size_of(Symbol("b", 1)) % 224, exact=True), lambda b, s: b % 224 == 0),
        (Claim(B - S, exact=False), lambda b, s: b >= s),
        (Claim(S % 8, exact=True), lambda b, s: s == 8),
        (Claim(S - B, exact=False), lambda b, s: s >= b),
        (Claim(size_of(Symbol("b")) - S - 200, exact=False), lambda b, s: b >= s + 200),
    ],
    ids=["multiples", "multiples of much", "order", "short range", "no larger than a short range", "more than others"],
)
def test_typical_sizes_are_as_the_graph_claims(claim: Claim, holds: Callable[[int, int], bool]) -> None:
    graph = parse_graph("graph @g[b=1.., s=1..9] (%x: float32[b,s]) -> (%y) { %y = neg(%x) : float32[b,s] }")
    graph.claims = (claim,)
    sizes = typical_sizes(graph)
    assert holds(sizes["b"], sizes["s"]), sizes


@pytest.mark.parametrize("ranges", ["b=1..6, n=1..", "b=1.., n=1..6"])
def test_a_short_range_of_one_of_two_equal_sizes_makes_no_other_size_small(ranges: str) -> None:
    graph = parse_graph(
        f"graph @g[{ranges}, s=1..] (%x: float32[b,s,2,3,5]) -> (%y) {{ %y = neg(%x) : float32[b,s,2,3,5] }}"
    )
    b, n, _ = map(size_of, graph.symbols)
    graph.claims = (Claim(b - n, exact=True),)
    sizes = typical_sizes(graph)
    assert sizes["b"] == sizes["n"] == 6 and sizes["s"] >= 97


def test_results_differ_at_typical_sizes_in_how_many_elements_they_have() -> None:
    """At 97 pixels 160 by half as many, rounded up twice, are as many as 80 by a quarter, and in one kernel."""
    h = size_of(Symbol("h", 1))
    wide, narrow = 160 * ((h + 63) // 64), 80 * ((h + 31) // 32)
    assert typical(wide, {"h": 97}) == typical(narrow, {"h": 97})
    graph = parse_graph(
        "graph @g[h=1..] (%x: float32[h]) -> (%y, %z) {\n  %y = neg(%x) : float32[h]\n  %z = exp(%x) : float32[h]\n}"
    )
    for node, extent in zip(graph.nodes, (wide, narrow), strict=True):
        node.outputs[0].type = TensorType("float32", (extent,))
    sizes = typical_sizes(graph)
    assert typical(wide, sizes) != typical(narrow, sizes)
    assert typical_sizes(graph, {"h": 97}) == {"h": 97}


def test_results_of_sizes_that_only_a_run_can_tell_are_not_counted() -> None:
    graph = parse_graph("graph @g[n=1..] (%x: float32[n]) -> (%y) { %y = neg(%x) : float32[n] }")
    graph.nodes[0].outputs[0].type = TensorType("float32", ("found",))
    assert typical_sizes(graph)["n"] > 1


def test_products_that_claims_say_are_equal_have_typical_sizes() -> None:
    """Rows and columns of patches, repeated for as many images as the data says, must be as many as a table has."""
    names = "abcdef"
    graph = parse_graph(
        f"graph @g[{', '.join(f'{name}=1..' for name in names)}] (%x: float32[{','.join(names)}]) -> (%y) {{"
        f" %y = neg(%x) : float32[{','.join(names)}] }}"
    )
    a, b, c, d, e, f = map(size_of, graph.symbols)
    claims = (a * b - c * d, e * f - a * b, e * f - c * d, 96 - e * f)
    graph.claims = tuple(Claim(size, exact=True) for size in claims)
    sizes = typical_sizes(graph)
    assert {typical(product, sizes) for product in (a * b, c * d, e * f)} == {96}


def test_sizes_that_no_claim_allows_are_none() -> None:
    graph = parse_graph("graph @g[b=1.., s=1..8] (%x: float32[b,s]) -> (%y) { %y = neg(%x) : float32[b,s] }")
    graph.claims = (Claim(S - 9, exact=False),)
    with pytest.raises(PassError, match=r"no typical sizes .* s - 9 >= 0"):
        typical_sizes(graph)


def test_the_plan_at_some_sizes_is_one_of_the_graph_at_these() -> None:
    graph = parse_graph(LAYERS)
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2, isa="avx512")))
    assert not plan.host_groups
    small, sizes = graph_at(graph, {"b": 3, "s": 5}), {"b": 3, "s": 5}
    at = data_at(plan, sizes)
    assert small.outputs[0].shape == (3, 96, 5)
    values = {o.name: o for n in small.nodes for o in n.outputs}
    assert all(buffer.nbytes == values[buffer.value].tensor_type.nbytes for buffer in at.buffers.buffers)
    assert all(launch.grid[0] >= 1 for launch in at.launches or ())


def test_what_is_alive_together_overlaps_at_no_size() -> None:
    graph = parse_graph(LAYERS)
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2, isa="avx512"), options={"planner": "none"}))
    assert plan.buffers.buffers
    for sizes in ({"b": 1, "s": 1}, {"b": 64, "s": 3}, {"b": 2, "s": 4097}):
        data_at(plan.buffers, sizes)  # raises PlanError for buffers that overlap


@pytest.mark.parametrize(
    ("axis", "places"),
    [(2, {"cuts": (64,), "branches": ()}), (0, {"cuts": (), "branches": ()})],
)
def test_loops_are_cut_at_places_that_are_known(axis: int, places: dict[str, tuple[int, ...]]) -> None:
    """Where one operand of a concatenation ends along a dimension of known size."""
    sizes = {2: ("b,s,64", "b,s,32", "b,s,96"), 0: ("b,s,96", "s,s,96", "b + s,s,96")}[axis]
    graph = parse_graph(
        f"""graph @main[b=1.., s=1..](%x: float32[{sizes[0]}], %w: float32[{sizes[1]}]) -> (%y) {{
  %y = concat(%x, %w) {{axis={axis}}} : float32[{sizes[2]}]
}}"""
    )
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2, isa="avx512")))
    schedules = [group.schedule for group in plan.groups]
    assert all(isinstance(schedule, CpuLoopSchedule) for schedule in schedules)
    assert [{name: getattr(schedule, name) for name in places} for schedule in schedules] == [places]


def loops_of_padded(perm: str, made: str) -> CpuLoopSchedule:
    graph = parse_graph(
        f"""graph @main[b=1.., h=1.., w=1..](%x: float32[b,3,h,w]) -> (%y) {{
  %p = pad(%x) {{before=[0,0,0,0], after=[0,0,1,1], mode="constant"}} : float32[b,3,h + 1,w + 1]
  %y = transpose(%p) {{perm=[{perm}]}} : float32[{made}]
}}"""
    )
    (group,) = make_plan(graph, PassContext(TargetInfo("cpu", 2, isa="avx512"))).groups
    assert isinstance(group.schedule, CpuLoopSchedule)
    return group.schedule


def test_moved_elements_of_few_channels_have_lines_with_one_open_dimension() -> None:
    """Their places in all other dimensions are found once a line, not by a quotient for each element."""
    schedule = loops_of_padded("0,3,2,1", "b,w + 1,h + 1,3")
    assert str(schedule.extents[-1]) == "3 * h + 3" and schedule.chunk == schedule.extents[-1]


def test_few_channels_are_interleaved_along_an_open_dimension() -> None:
    schedule = loops_of_padded("0,2,3,1", "b,h + 1,w + 1,3")
    assert [*map(str, schedule.extents)] == ["b", "h + 1", "3", "w + 1"] and schedule.order == (0, 1, 3, 2)
    assert str(schedule.chunk) == "w + 1"
