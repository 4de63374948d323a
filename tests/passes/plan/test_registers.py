"""Registers are estimated from a schedule: more sums take more, and a block's size bounds them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.gemm.tiles import GemvTile, MmaTile, SimtTile, Tile, WgmmaTile
from tilestitch.passes.plan.registers import most_alive, most_registers, registers_of, registers_of_group
from tilestitch.passes.plan.schedules import ElementwiseSchedule, GemmSchedule, Schedule
from tilestitch.passes.plan.view import look_up


def gemm(dtype: str = "float16", m: int = 1024) -> tuple[Graph, Group]:
    graph = Graph("g")
    a, b = (graph.add_input(name, TensorType(dtype, shape)) for name, shape in (("a", (m, 512)), ("b", (512, 1024))))
    node = graph.add("matmul", [a, b], {})
    graph.outputs = [node.output]
    group = Group(
        "p", GroupKind.CONTRACTION, (node.name,), node.name, (a.name, b.name), (), (node.output.name,),
        schedule=GemmSchedule(SimtTile(64, 64, 16, 4, 4)),
    )  # fmt: skip
    return graph, group


def registers(tile: Tile, dtype: str = "float16", m: int = 1024) -> int:
    graph, group = gemm(dtype, m)
    view = look_up({node.name: node for node in graph.nodes}, group)
    return registers_of(view, group.kind, GemmSchedule(tile))


@pytest.mark.parametrize(("threads", "blocks", "most"), [
    (32, 1, 255), (256, 1, 255), (384, 1, 168), (1024, 1, 64), (1000, 1, 64), (256, 2, 128), (256, 5, 48), (256, 6, 40),
])  # fmt: skip
def test_a_block_bounds_the_registers_of_its_threads(threads: int, blocks: int, most: int) -> None:
    assert most_registers(threads, blocks) == most


@pytest.mark.parametrize(("small", "large"), [
    (SimtTile(64, 64, 16, 4, 4), SimtTile(128, 128, 8, 8, 8)),
    (MmaTile(64, 64, 32, 2, 2), MmaTile(128, 128, 32, 2, 4)),
    (WgmmaTile(64, 64, 1, False, 4), WgmmaTile(128, 64, 1, False, 4)),
])  # fmt: skip
def test_more_sums_take_more_registers(small: Tile, large: Tile) -> None:
    assert registers(small) < registers(large) <= 255


def test_sums_alone_are_fewer_than_all() -> None:
    assert registers(SimtTile(128, 128, 8, 8, 8)) > 64
    assert registers(SimtTile(64, 64, 16, 4, 4), "float64") > registers(SimtTile(64, 64, 16, 4, 4), "float32")


def test_rows_of_few_are_sums_of_a_thread() -> None:
    tile = GemvTile(8, 64, 512, along_k=False)
    assert registers(tile, m=1) < registers(tile, m=4) < registers(tile, m=8)


def test_warpgroups_that_move_registers_begin_with_all_of_the_block() -> None:
    assert registers(WgmmaTile(128, 256, 2, False, 4)) == most_registers(384)


def test_a_stitched_group_takes_what_its_hungriest_part_takes() -> None:
    graph, group = gemm("float32")
    by_name = {node.name: node for node in graph.nodes}
    tiles = (SimtTile(64, 64, 16, 4, 4), SimtTile(128, 128, 8, 8, 8))
    parts = [replace(group, name=f"p{i}", schedule=GemmSchedule(tile)) for i, tile in enumerate(tiles)]
    both = replace(group, kind=GroupKind.STITCHED, anchor=None, stages=(tuple(parts),), schedule=None)
    assert registers_of_group(by_name, both) == registers_of_group(by_name, parts[1])


def elementwise(depth: int, schedule: Schedule, dtype: str = "float32") -> int:
    graph = Graph("g")
    value = x = graph.add_input("x", TensorType(dtype, (1 << 20,)))
    for _ in range(depth):
        value = graph.add("add", [value, x], {}).output
    graph.outputs = [value]
    names = tuple(node.name for node in graph.nodes)
    group = Group("e", GroupKind.INJECTIVE, names, None, ("x",), (), (value.name,))
    return registers_of(look_up({node.name: node for node in graph.nodes}, group), group.kind, schedule)


def test_elements_of_a_thread_take_registers_and_a_longer_expression_does_not() -> None:
    narrow, wide = ElementwiseSchedule(256, 1), ElementwiseSchedule(256, 4, 4)
    assert elementwise(3, narrow) < elementwise(3, wide)
    assert elementwise(3, wide) == elementwise(30, wide)
    assert elementwise(3, wide, "float64") > elementwise(3, wide)
    assert elementwise(3, ElementwiseSchedule(1024, 8, 8)) == 64


def test_values_that_are_read_again_stay_alive() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("float32", (4,)))
    terms = [graph.add("exp", [x], {}).output for _ in range(5)]
    total = terms[0]
    for term in terms[1:]:
        total = graph.add("add", [total, term], {}).output
    assert most_alive(graph.nodes, [total]) == 6
    assert most_alive(graph.nodes[:1], [terms[0]]) == 1
    assert most_alive([], []) == 0
