"""Sequences and optionals in a graph: what is known of their items."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontend.host_models import check, model, ops, tensor
from tilestitch.compiler.frontend.errors import ConversionError
from tilestitch.compiler.frontend.importer import import_model
from tilestitch.compiler.ir import SequenceType, TensorType
from tilestitch.compiler.ir.evaluate import evaluate

A, B = np.zeros((2, 3), np.float32), np.ones((4, 3), np.float32)
node = helper.make_node


def test_items_keep_the_dimensions_that_they_share() -> None:
    nodes = [
        node("SequenceConstruct", ["a", "b"], ["s"]),
        node("SequenceAt", ["s", "i"], ["item"]),
        node("SequenceLength", ["s"], ["n"]),
    ]
    proto = model(nodes, {"a": tensor(A), "b": tensor(B), "i": tensor(np.array(0))}, ["item", "n", "s"])
    result = check(proto, {"a": A, "b": B, "i": np.array(-1)})
    item = TensorType("float32", ("?", 3))
    assert [v.type for v in result.outputs] == [item, TensorType("int64", ()), SequenceType(item)]


def test_an_empty_sequence_grows_and_shrinks() -> None:
    nodes = [
        node("SequenceEmpty", [], ["s0"], dtype=TensorProto.FLOAT),
        node("SequenceInsert", ["s0", "a"], ["s1"]),
        node("SequenceInsert", ["s1", "b", "first"], ["s2"]),
        node("SequenceErase", ["s2", "first"], ["s3"]),
        node("ConcatFromSequence", ["s2"], ["y"], axis=0),
        node("SequenceLength", ["s3"], ["n"]),
    ]
    declared = {"y": tensor(A, shape=(None, 3))}
    proto = model(nodes, {"a": tensor(A), "b": tensor(B)}, ["y", "n"], {"first": np.array(0)}, declared=declared)
    check(proto, {"a": A, "b": B})


@pytest.mark.parametrize("place", [0, 1, -1, 3])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [4, "n"])
def test_rows_taken_from_a_split_are_no_sequence(rows: int | str, axis: int, keepdims: int, place: int) -> None:
    nodes = [
        node("SplitToSequence", ["b"], ["s"], axis=axis, keepdims=keepdims),
        node("SequenceAt", ["s", "i"], ["y"]),
    ]
    b = np.arange(20, dtype=np.float32).reshape(4, 5)
    proto = model(nodes, {"b": tensor(b, shape=(rows, 5)), "i": tensor(np.array(0))}, ["y"])
    check(proto, {"b": b, "i": np.array(place)})
    assert not any(n.op.startswith("host.") for n in import_model(proto, ranges={}).graph.nodes)


@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("split", [3, 2, [1, 4], [2, 2, 1]], ids=str)
def test_parts_taken_from_a_split_are_no_sequence(split: int | list[int], place: int) -> None:
    nodes = [
        node("SplitToSequence", ["b", "split"], ["s"], axis=-1),
        node("SequenceAt", ["s", "i"], ["y"]),
        node("SequenceLength", ["s"], ["n"]),
    ]
    b = np.arange(20, dtype=np.float32).reshape(4, 5)
    constants = {"split": np.array(split), "i": np.array(place)}
    graph = check(model(nodes, {"b": tensor(b)}, ["y", "n"], constants), {"b": b})
    assert not any(n.op.startswith("host.") for n in graph.nodes)


@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize("axis", [0, -1, 1])
def test_concat_knows_all_but_the_joined_axis(axis: int, new_axis: int) -> None:
    nodes = [
        node("SequenceConstruct", ["a", "a", "a"], ["s"]),
        node("SequenceErase", ["s"], ["t"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=axis, new_axis=new_axis),
    ]
    result = check(model(nodes, {"a": tensor(A)}, ["y"]), {"a": A})
    type_ = result.outputs[0].type
    assert isinstance(type_, TensorType)
    assert type_.rank == 2 + new_axis
    assert type_.shape.count("?") == 1


@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize("axis", [0, -1, 1])
def test_a_list_of_known_items_is_joined_without_it(axis: int, new_axis: int) -> None:
    """Its size is known, so what it meets in a broadcast is not taken to be as large."""
    nodes = [
        node("SequenceConstruct", ["a", "a"], ["s"]),
        node("SequenceInsert", ["s", "a"], ["t"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=axis, new_axis=new_axis),
        node("SequenceLength", ["t"], ["n"]),
    ]
    result = check(model(nodes, {"a": tensor(A)}, ["y", "n"]), {"a": A})
    assert result.outputs[0].tensor_type.is_static and result.outputs[1].data == 3


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_parts_along_an_axis_are_joined_without_a_list(axis: int, new_axis: int, keepdims: int) -> None:
    """The size along the axis is known: where it is 1, it was taken to be as large as what it meets in a broadcast."""
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=axis, keepdims=keepdims),
        node("ConcatFromSequence", ["s"], ["y"], axis=-1, new_axis=new_axis),
        node("SequenceLength", ["s"], ["n"]),
    ]
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    result = check(model(nodes, {"x": tensor(x)}, ["y", "n"]), {"x": x})
    assert result.outputs[0].tensor_type.is_static and result.outputs[1].data == x.shape[axis]


@pytest.mark.parametrize(
    ("split", "attrs", "part"),
    [
        (None, {"axis": 0}, (1, 3)),
        (None, {"axis": 1, "keepdims": 0}, (4,)),
        (np.array(2), {"axis": 0}, (2, 3)),
        (np.array(3), {"axis": 0}, ("?", 3)),
        (np.array([2, 2]), {"axis": 0}, (2, 3)),
        (np.array([1, 3]), {"axis": 0}, ("?", 3)),
    ],
)
def test_parts_of_one_size_have_a_known_size(split: np.ndarray | None, attrs: dict, part: tuple) -> None:  # type: ignore[type-arg]
    constants = {} if split is None else {"split": split}
    nodes = [node("SplitToSequence", ["b", *constants], ["s"], **attrs)]
    result = check(model(nodes, {"b": tensor(B)}, ["s"], constants), {"b": B})
    assert result.outputs[0].type == SequenceType(TensorType("float32", part))


def test_a_tensor_where_a_sequence_is_needed_is_an_error() -> None:
    with pytest.raises(ConversionError, match="not a sequence"):
        import_model(model([node("SequenceLength", ["a"], ["n"])], {"a": tensor(A)}, ["n"]))


# --- optionals -------------------------------------------------------------------------------------------------------


def test_what_is_certain_about_an_optional_is_decided_at_once() -> None:
    nodes = [node("OptionalHasElement", ["a"], ["there"]), node("OptionalGetElement", ["a"], ["y"])]
    result = check(model(nodes, {"a": tensor(A)}, ["there", "y"], opset=18), {"a": A})
    assert ops(result) == []


@pytest.mark.parametrize("value", [None, A])
def test_an_optional_input_is_asked_at_run_time(value: np.ndarray | None) -> None:
    optional = helper.make_optional_type_proto(tensor(A))
    proto = model([node("OptionalHasElement", ["o"], ["there"])], {"o": optional}, ["there"], opset=18)
    result = import_model(proto).graph
    assert evaluate(result, [value])[0] == np.array(value is not None)


def test_an_optional_is_unwrapped_to_its_element() -> None:
    optional = helper.make_optional_type_proto(tensor(A))
    proto = model([node("OptionalGetElement", ["o"], ["y"])], {"o": optional}, ["y"], opset=18)
    result = import_model(proto).graph
    assert result.outputs[0].type == TensorType("float32", (2, 3))
    np.testing.assert_array_equal(evaluate(result, [B])[0], B)


def test_wrapping_and_unwrapping_is_the_identity() -> None:
    nodes = [
        node("Optional", ["a"], ["o"]),
        node("OptionalHasElement", ["o"], ["there"]),
        node("OptionalGetElement", ["o"], ["y"]),
    ]
    result = import_model(model(nodes, {"a": tensor(A)}, ["there", "y"], opset=18)).graph
    there, y = evaluate(result, [A])
    assert there
    np.testing.assert_array_equal(y, A)


def test_an_empty_optional_has_no_element() -> None:
    type_ = tensor(A)
    nodes = [node("Optional", [], ["o"], type=type_), node("OptionalHasElement", ["o"], ["there"])]
    result = import_model(model(nodes, {}, ["there"], opset=18)).graph
    assert not evaluate(result, [])[0]
