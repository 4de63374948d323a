"""Access relations against numpy: every place is told where the element of an operand really comes from."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mixed_graphs import mixed_graphs
from tilestitch.compiler.ir import Graph, TensorType, Value, reference
from tilestitch.compiler.ir.accesses import Access, elementwise_walk, walk_of
from tilestitch.compiler.ir.ops import Kind, kind_of


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(dtype, shape)


def only(accesses: tuple[Access, ...], value: Value) -> Access:
    (found,) = (a for a in accesses if a.value is value)
    return found


def read_places(access: Access, extents: tuple[int, ...]) -> np.ndarray:
    assert access.strides is not None
    grid = np.indices(extents).reshape(len(extents), -1)
    return access.offset + np.asarray(access.strides) @ grid


def source_of(graph: Graph, x: Value, result: Value) -> np.ndarray:
    """The number of the element of `x` that each element of `result` shows, through views only."""
    known = {x: np.arange(prod(x.shape), dtype=np.int64).reshape(x.shape)}
    for node in graph.nodes:
        known[node.output] = np.asarray(reference(node.op)([known[v] for v in node.inputs], node.attrs)[0])
    return known[result].reshape(-1)


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 5, 7), (6, 1, 1), (2, 2, 2)])
def test_views_are_followed_to_the_memory_that_they_show(shape: tuple[int, ...]) -> None:
    graph = Graph("views")
    x = graph.add_input("x", tensor(*shape))
    turned = graph.emit("transpose", x, perm=(2, 0, 1))
    y = graph.emit("reshape", turned, shape=(turned.shape[0], turned.shape[1] * turned.shape[2]))
    extents, walk = elementwise_walk([x], [y])
    assert np.array_equal(read_places(only(walk.accesses, x), extents), source_of(graph, x, y))


def test_a_reshape_after_a_transpose_is_linear_in_the_merged_dimensions() -> None:
    """GroupNorm as exported: [1, 32, 16, 16] as [8, 1024] and back, stored channels last."""
    graph = Graph("norm")
    x = graph.add_input("x", tensor(1, 8, 1024))
    y = graph.emit("transpose", graph.emit("reshape", x, shape=(1, 32, 16, 16)), perm=(0, 2, 3, 1))
    extents, walk = elementwise_walk([x], [y])
    assert extents == (256, 32)
    assert only(walk.accesses, x).strides == (1, 256)


def test_a_concat_is_cut_where_the_next_operand_begins_and_its_operands_are_clamped() -> None:
    graph = Graph("concat")
    a, b = graph.add_input("a", tensor(3, 4)), graph.add_input("b", tensor(3, 6))
    y = graph.emit("concat", a, b, axis=1)
    _, walk = elementwise_walk([a, b], [y])
    assert walk.cuts == {(1, 4)}
    assert only(walk.accesses, a).strides is None and only(walk.accesses, b).strides is None


def test_a_gather_reads_its_indices_in_order_and_its_data_anywhere() -> None:
    graph = Graph("gather")
    x, i = graph.add_input("x", tensor(50, 8)), graph.add_input("i", tensor(7, dtype="int64"))
    y = graph.emit("gather", x, i, axis=0)
    _, walk = elementwise_walk([x, i], [y])
    assert only(walk.accesses, i).strides == (1, 0)
    assert only(walk.accesses, x).strides is None


def test_a_broadcast_operand_does_not_move_along_the_dimension_it_lacks() -> None:
    graph = Graph("broadcast")
    x, b = graph.add_input("x", tensor(4, 5)), graph.add_input("b", tensor(5))
    _, walk = elementwise_walk([x, b], [graph.emit("add", x, b)])
    assert only(walk.accesses, x).strides == (5, 1)
    assert only(walk.accesses, b).strides == (0, 1)


def test_what_is_read_twice_at_one_place_is_one_access() -> None:
    graph = Graph("square")
    x = graph.add_input("x", tensor(9))
    walk = walk_of([graph.emit("mul", x, x)], [x], (9,), lambda i: [(i[0],)])
    assert [a.value is x for a in walk.accesses] == [False, True]


def test_very_deep_chains_do_not_exhaust_the_stack() -> None:
    graph = Graph("chain")
    x = graph.add_input("x", tensor(9))
    y = x
    for _ in range(5000):
        y = graph.emit("neg", y)
    _, walk = elementwise_walk([x], [y])
    assert only(walk.accesses, x).strides == (1,)


@given(mixed_graphs(), st.data())
def test_linear_accesses_of_random_graphs_are_what_numpy_reads(graph: Graph, data: st.DataObject) -> None:
    """Elements are replaced by their numbers; views, concats and pads then show where they came from."""
    views = [n for n in graph.nodes if kind_of(n.op) is Kind.VIEW and n.output.tensor_type.num_elements]
    if not views:
        return
    result = data.draw(st.sampled_from(views)).output
    root = result
    inner = Graph("inner")
    chain = []
    while root.producer is not None and kind_of(root.producer.op) is Kind.VIEW:
        chain.append(root.producer)
        root = root.producer.inputs[0]
    x = inner.add_input("x", root.tensor_type)
    y = x
    for node in reversed(chain):
        y = inner.emit(node.op, y, **node.attrs)
    extents, walk = elementwise_walk([x], [y])
    access = only(walk.accesses, x)
    if access.strides is not None:
        assert np.array_equal(read_places(access, extents), source_of(inner, x, y))


def test_a_step_is_known_along_each_dimension_that_data_does_not_decide() -> None:
    graph = Graph("picked")
    x, i = graph.add_input("x", tensor(5, 6, 24)), graph.add_input("i", tensor(7, dtype="int64"))
    turned = graph.emit("transpose", graph.emit("gather", x, i, axis=1), perm=(2, 0, 1))
    walk = walk_of([turned], [x, i], (24, 5, 7), lambda index: [tuple(index)])
    data, indices = only(walk.accesses, x), only(walk.accesses, i)
    assert data.strides is None and data.steps == (1, 144, None)
    assert indices.steps == indices.strides == (0, 0, 1)


def test_what_is_picked_by_what_was_picked_depends_on_the_same_dimension() -> None:
    graph = Graph("twice")
    x, i = graph.add_input("x", tensor(9, 8)), graph.add_input("i", tensor(7, dtype="int64"))
    j = graph.add_input("j", tensor(4, 7, dtype="int64"))
    picked = graph.emit("gather_elements", graph.emit("gather", x, graph.emit("gather", i, j, axis=0), axis=0)
                        , graph.add_input("k", tensor(4, 7, 8, dtype="int64")), axis=1)  # fmt: skip
    walk = walk_of([picked], graph.inputs, (4, 7, 8), lambda index: [tuple(index)])
    assert only(walk.accesses, x).steps == (None, None, None)
    assert only(walk.accesses, i).steps == (None, None, None)


def test_a_quotient_has_no_step_and_leaves_the_others_theirs() -> None:
    graph = Graph("quotient")
    x = graph.add_input("x", tensor(3, 4, 5))
    y = graph.emit("reshape", graph.emit("transpose", x, perm=(1, 0, 2)), shape=(12, 5))
    walk = walk_of([y], [x], (12, 5), lambda index: [tuple(index)])
    assert only(walk.accesses, x).steps == (None, 1)


def test_operands_of_a_concat_share_its_elements() -> None:
    graph = Graph("shares")
    a, b, c = (graph.add_input(name, tensor(2, size)) for name, size in (("a", 1), ("b", 3), ("c", 4)))
    inner = graph.emit("concat", a, b, axis=1)
    y = graph.emit("add", graph.emit("concat", inner, c, axis=1), graph.add_input("d", tensor(8)))
    _, walk = elementwise_walk(graph.inputs, [y])
    shares = {access.value.name: access.share for access in walk.accesses if access.value in graph.inputs}
    assert shares == {"a": 0.125, "b": 0.375, "c": 0.5, "d": 1.0}


def test_windows_of_concats_of_windows_of_concats_are_read_along_few_ways() -> None:
    """Each element lies in one of two operands 40 times over, but only 41 of the combinations exist."""
    graph = Graph("g")
    x = graph.add_input("x", tensor(64))
    result = x
    for _ in range(40):
        joined = graph.emit("concat", result, graph.emit("neg", result), axis=0)
        result = graph.emit("slice", joined, starts=(1,), steps=(1,), sizes=(64,))
    graph.outputs = [result]
    _, walk = elementwise_walk([x], [result])
    assert len([a for a in walk.accesses if a.value is x]) == 41


def slid(graph: Graph, value: Value, how: str) -> Value:
    """`value` with its elements in other places."""
    (size,) = value.shape
    part = graph.emit("slice", value, starts=(0,), steps=(1,), sizes=(size - 1,))
    fill = (graph.constant(np.float32(0)),) if how == "constant" else ()
    return graph.emit("pad", part, *fill, before=(1,), after=(0,), mode=how)


@pytest.mark.parametrize("how", ["constant", "edge", "reflect"])
def test_padded_sums_of_padded_sums_read_a_value_at_one_place_more_for_each_level(how: str) -> None:
    """Padding that is found from one index in one way is one place: not twice as many from level to level."""

    def places(levels: int) -> int:
        graph = Graph("sums")
        x = total = graph.add_input("x", tensor(67))
        for _ in range(levels):
            total = graph.emit("add", total, slid(graph, total, how))
        _, walk = elementwise_walk([x], [total])
        return sum(access.value is x for access in walk.accesses)

    assert [places(levels) for levels in (1, 2, 5, 12)] == [2, 3, 6, 13]


def test_what_different_indices_pick_are_different_places() -> None:
    graph = Graph("picked")
    x = graph.add_input("x", tensor(7))
    few, many = graph.constant(np.asarray([3, 1, 0])), graph.constant(np.asarray([2, 2, 6]))
    first, again, other = (graph.emit("gather", x, indices, axis=0) for indices in (few, few, many))
    y = graph.emit("add", graph.emit("add", first, again), other)
    _, walk = elementwise_walk([x], [y])
    assert sum(access.value is x for access in walk.accesses) == 2
