"""If, Loop, Scan and SequenceMap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

from tests.frontend.host_models import check, model, ops, tensor
from tilestitch.compiler.frontend.errors import ConversionError, ModelError
from tilestitch.compiler.frontend.importer import import_model
from tilestitch.compiler.ir import AnyRankTensor, TensorType
from tilestitch.compiler.ir.evaluate import evaluate

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def info(name: str, dtype: int = TensorProto.FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def graph(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> GraphProto:
    return helper.make_graph(nodes, "body", inputs, outputs)


# --- If --------------------------------------------------------------------------------------------------------------


def branches(then_op: str = "Neg", else_op: str = "Exp") -> dict[str, GraphProto]:
    return {
        "then_branch": graph([helper.make_node(then_op, ["x"], ["a"])], [], [info("a")]),
        "else_branch": graph([helper.make_node(else_op, ["x"], ["b"])], [], [info("b")]),
    }


def if_model(constants: dict[str, Any] | None = None, **bodies: GraphProto) -> Any:
    inputs = {"x": tensor(X)} | ({} if constants else {"c": tensor(np.array(True))})
    nodes = [helper.make_node("If", ["c"], ["any"], **bodies), helper.make_node("Identity", ["any"], ["y"])]
    return model(nodes, inputs, ["y"], constants, declared={"y": tensor(X, shape=(None, None))})


@pytest.mark.parametrize("condition", [False, True])
def test_if_captures_outer_values(condition: bool) -> None:
    result = check(if_model(**branches()), {"x": X, "c": np.array(condition)})
    assert ops(result) == ["if"]
    assert result.outputs[0].type == TensorType("float32", (2, 3))


@pytest.mark.parametrize("condition", [False, True])
def test_a_constant_condition_picks_its_branch_at_once(condition: bool) -> None:
    result = check(if_model({"c": np.array(condition)}, **branches()), {"x": X})
    assert ops(result) == ["neg" if condition else "exp"]


def test_branches_of_different_shapes_give_unknown_dimensions() -> None:
    bodies = branches()
    bodies["else_branch"] = graph([helper.make_node("Concat", ["x", "x"], ["b"], axis=0)], [], [info("b")])
    proto = if_model(**bodies)
    for condition in (False, True):
        result = check(proto, {"x": X, "c": np.array(condition)})
    assert result.outputs[0].type == TensorType("float32", ("?", 3))


def test_branches_of_different_ranks_give_an_unknown_rank() -> None:
    bodies = branches()
    bodies["else_branch"] = graph([helper.make_node("ReduceSum", ["x"], ["b"], keepdims=0)], [], [info("b")])
    nodes = [helper.make_node("If", ["c"], ["any"], **bodies), helper.make_node("Size", ["any"], ["y"])]
    flag = np.array(False)
    result = check(model(nodes, {"x": tensor(X), "c": tensor(flag)}, ["y"]), {"x": X, "c": flag})
    assert result.nodes[0].output.type == AnyRankTensor("float32")


def test_branches_may_return_constants_and_captures_as_they_are() -> None:
    bodies = {
        "then_branch": graph([helper.make_node("Identity", ["x"], ["a"])], [], [info("a")]),
        "else_branch": graph([helper.make_node("Constant", [], ["b"], value_float=3.0)], [], [info("b")]),
    }
    node = helper.make_node("If", ["c"], ["any"], **bodies)
    proto = model(
        [node, helper.make_node("Add", ["any", "x"], ["y"])],
        {"x": tensor(X), "c": tensor(np.array(True))},
        ["y"],
        declared={"y": tensor(X)},
    )
    for condition in (False, True):
        check(proto, {"x": X, "c": np.array(condition)})


def test_branches_that_capture_a_value_under_two_names() -> None:
    bodies = branches()
    bodies["then_branch"] = graph([helper.make_node("Add", ["x", "same"], ["a"])], [], [info("a")])
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("If", ["c"], ["any"], **bodies),
        helper.make_node("Identity", ["any"], ["y"]),
    ]
    declared = {"y": tensor(X, shape=(None, None))}
    proto = model(nodes, {"x": tensor(X), "c": tensor(np.array(True))}, ["y"], declared=declared)
    for condition in (False, True):
        result = check(proto, {"x": X, "c": np.array(condition)})
    assert len(result.nodes[0].inputs) == 2


@pytest.mark.parametrize("inside", [1.0, 9.0])
def test_an_initialiser_of_a_branch_that_is_named_like_another_value_outside_must_be_equal(inside: float) -> None:
    bodies = branches("Add")
    bodies["then_branch"].node[0].input.append("w")
    bodies["then_branch"].initializer.append(numpy_helper.from_array(np.float32(inside), "w"))
    proto = if_model(**bodies)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(1), "w"))
    if inside == 1:
        check(proto, {"x": X, "c": np.array(True)})
        return
    with pytest.raises(ModelError, match=r"node 'If_0': initialiser 'w' of its body .* give one of them another name"):
        import_model(proto)


def test_branches_of_different_dtypes_are_an_error() -> None:
    bodies = branches()
    bodies["else_branch"] = graph([helper.make_node("Size", ["x"], ["b"])], [], [info("b", TensorProto.INT64)])
    with pytest.raises(ConversionError, match="cannot be of type"):
        import_model(if_model(**bodies))


def test_nested_ifs_capture_through_two_levels() -> None:
    inner = helper.make_node("If", ["d"], ["z"], **branches())
    bodies = branches()
    bodies["then_branch"] = graph([inner], [], [info("z")])
    node = helper.make_node("If", ["c"], ["y"], **bodies)
    flag = tensor(np.array(True))
    proto = model([node], {"x": tensor(X), "c": flag, "d": flag}, ["y"])
    for c, d in ((True, True), (True, False), (False, True)):
        check(proto, {"x": X, "c": np.array(c), "d": np.array(d)})


# --- Loop ------------------------------------------------------------------------------------------------------------


def loop_body(nodes: list[Any], carried_out: str, scanned: list[str], condition: str = "go") -> GraphProto:
    inputs = [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("s")]
    return graph(nodes, inputs, [info(condition, TensorProto.BOOL, []), info(carried_out), *map(info, scanned)])


def loop_model(body: GraphProto, outputs: list[str], constants: dict[str, Any] | None = None) -> Any:
    inputs = {"x": tensor(X)}
    if "m" not in (constants or {}):
        inputs |= {"m": tensor(np.array(1))}
    node = helper.make_node("Loop", ["m", "yes", "x"], outputs, body=body)
    constants = {"yes": np.array(True)} | (constants or {})
    free = [tensor(X, shape=(None, 3)), tensor(X, shape=(None, 2, 3))]
    return model([node], inputs, outputs, constants, declared=dict(zip(outputs, free)))


ADD = loop_body(
    [
        helper.make_node("Add", ["s", "x"], ["t"]),
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("Neg", ["t"], ["n"]),
    ],
    "t",
    ["n"],
    "on",
)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_loop_carries_and_stacks(trips: int) -> None:
    result = import_model(loop_model(ADD, ["y", "stack"])).graph
    assert [v.type for v in result.outputs] == [TensorType("float32", (2, 3)), TensorType("float32", ("?", 2, 3))]
    carried, stack = evaluate(result, [X, np.array(trips)])
    np.testing.assert_array_equal(carried, (trips + 1) * X)
    assert stack.shape == (trips, 2, 3)


def test_a_certain_trip_count_gives_the_stack_its_size() -> None:
    result = import_model(loop_model(ADD, ["y", "stack"], {"m": np.array(3)})).graph
    assert result.outputs[1].type == TensorType("float32", (3, 2, 3))
    np.testing.assert_array_equal(evaluate(result, [X])[1], np.stack([-2 * X, -3 * X, -4 * X]))


def test_a_body_may_end_the_loop() -> None:
    nodes = [
        helper.make_node("Add", ["s", "x"], ["t"]),
        helper.make_node("ReduceMax", ["t"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "limit"], ["on"]),
    ]
    proto = loop_model(loop_body(nodes, "t", [], "on"), ["y"], {"limit": np.array(22, np.float32)})
    result = check(proto, {"x": X, "m": np.array(10)})
    assert ops(result)[-1] == "loop"


def test_an_absent_condition_is_true_and_an_absent_count_is_no_limit() -> None:
    """onnx's reference does not run such loops."""
    for operands in (["m", "", "x"], ["", "", "x"]):
        nodes = [
            helper.make_node("Add", ["s", "x"], ["t"]),
            helper.make_node("ReduceMax", ["t"], ["top"], keepdims=0),
            helper.make_node("Less", ["top", "limit"], ["on"]),
        ]
        loop = helper.make_node("Loop", operands, ["y"], body=loop_body(nodes, "t", [], "on"))
        constants = {"limit": np.array(22, np.float32), "m": np.array(100)}
        proto = model([loop], {"x": tensor(X)}, ["y"], constants, declared={"y": tensor(X)})
        np.testing.assert_array_equal(evaluate(import_model(proto).graph, [X])[0], 5 * X)


def test_a_shape_that_grows_becomes_unknown() -> None:
    nodes = [helper.make_node("Concat", ["s", "x"], ["t"], axis=0), helper.make_node("Identity", ["go"], ["on"])]
    result = check(loop_model(loop_body(nodes, "t", [], "on"), ["y"]), {"x": X, "m": np.array(3)})
    assert result.outputs[0].type == TensorType("float32", ("?", 3))


def test_a_rank_that_grows_becomes_unknown() -> None:
    nodes = [helper.make_node("Unsqueeze", ["s", "zero"], ["t"]), helper.make_node("Identity", ["go"], ["on"])]
    loop = helper.make_node("Loop", ["m", "yes", "x"], ["any"], body=loop_body(nodes, "t", [], "on"))
    nodes = [loop, helper.make_node("Shape", ["any"], ["y"])]
    proto = model(
        nodes, {"x": tensor(X), "m": tensor(np.array(1))}, ["y"], {"zero": np.array([0]), "yes": np.array(True)}
    )
    result = check(proto, {"x": X, "m": np.array(2)})
    assert next(n for n in result.nodes if n.op == "loop").output.type == AnyRankTensor("float32")


def test_operands_that_do_not_fit_the_body_are_an_error() -> None:
    node = helper.make_node("Loop", ["m", "", "x", "x"], ["y", "z"], body=ADD)
    with pytest.raises(ConversionError, match="2 carried values do not fit"):
        import_model(
            model([node], {"x": tensor(X), "m": tensor(np.array(1))}, ["y", "z"], declared={n: tensor(X) for n in "yz"})
        )


# --- Scan ------------------------------------------------------------------------------------------------------------

RUNNING_SUM = graph(
    [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["out"])],
    [info("s"), info("e")],
    [info("t"), info("out")],
)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize(("axis", "output_axis"), [(0, 0), (1, 1), (-1, 0), (0, -1)])
def test_scan_walks_an_axis_in_either_direction(axis: int, output_axis: int, reverse: int) -> None:
    attrs = {"scan_input_axes": [axis], "scan_output_axes": [output_axis], "scan_input_directions": [reverse]}
    attrs["scan_output_directions"] = [reverse]
    node = helper.make_node("Scan", ["zero", "x"], ["last", "sums"], body=RUNNING_SUM, num_scan_inputs=1, **attrs)
    zero = np.zeros(X.shape[1 - axis % 2], np.float32)
    result = import_model(model([node], {"x": tensor(X)}, ["last", "sums"], {"zero": zero})).graph
    last, sums = evaluate(result, [X])
    elements = np.moveaxis(X, axis, 0)
    expected = np.cumsum(elements[::-1] if reverse else elements, 0)
    np.testing.assert_array_equal(last, expected[-1])
    stacked = expected[::-1] if reverse else expected
    np.testing.assert_array_equal(sums, np.moveaxis(stacked, 0, output_axis))
    assert result.outputs[1].type == TensorType("float32", sums.shape)


def test_scan_of_opset_8_runs_over_a_batch() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    zero = np.zeros((2, 3), np.float32)
    node = helper.make_node("Scan", ["", "zero", "x"], ["last", "sums"], body=RUNNING_SUM, num_scan_inputs=1)
    result = import_model(model([node], {"x": tensor(x)}, ["last", "sums"], {"zero": zero}, opset=8)).graph
    last, sums = evaluate(result, [x])
    np.testing.assert_array_equal(sums, np.cumsum(x, 1))
    np.testing.assert_array_equal(last, x.sum(1))
    assert [v.type.shape for v in result.outputs] == [(2, 3), (2, 4, 3)]  # type: ignore[union-attr]


# --- SequenceMap -----------------------------------------------------------------------------------------------------


def test_sequence_map_pairs_items_and_passes_tensors_whole() -> None:
    body = graph(
        [helper.make_node("Mul", ["a", "b"], ["p"]), helper.make_node("Add", ["p", "bias"], ["q"])],
        [info("a"), info("b")],
        [info("q")],
    )
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0),
        helper.make_node("SequenceMap", ["parts", "scale"], ["mapped"], body=body),
        helper.make_node("ConcatFromSequence", ["mapped"], ["y"], axis=0),
    ]
    scale, bias = np.array([[1, 2, 3]], np.float32), np.array(0.5, np.float32)
    proto = model(nodes, {"x": tensor(X), "scale": tensor(scale), "bias": tensor(bias)}, ["y"])
    result = import_model(proto).graph
    (y,) = evaluate(result, [X, scale, bias])
    np.testing.assert_array_equal(y, X * scale + bias)
    assert result.outputs[0].type == TensorType("float32", ("?", 3))
