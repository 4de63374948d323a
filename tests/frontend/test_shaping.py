"""Operators that only rearrange."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.checks import assert_close, check_node, floats, host_steps, ints, node_model, run
from tilestitch.compiler.frontend import ConversionError, import_model


@pytest.mark.parametrize(("shape", "target", "attrs"), [
    ((2, 3, 4), (6, 4), {}), ((2, 3, 4), (0, -1), {}), ((2, 3, 4), (-1,), {}), ((2, 3, 4), (0, 0, 2, 2), {}),
    ((0, 3), (0, 7), {"allowzero": 1}), ((0, 3), (3, 0, -1), {}), ((), (1, 1), {}), ((1,), (), {}),
])  # fmt: skip
def test_reshape(shape: tuple[int, ...], target: tuple[int, ...], attrs: dict[str, int]) -> None:
    x = np.asarray(floats(*shape))
    expected = run(node_model("Reshape", [x, ints(*target)], attrs, constants={1}), {"x0": x})[0]
    if 0 in shape:
        assert expected.size == 0
        return
    check_node("Reshape", [x, ints(*target)], attrs, constants={1})


def test_reshape_to_the_wrong_size_names_the_node() -> None:
    with pytest.raises(ConversionError, match="the_node"):
        import_model(_reshape_without_inference(ints(5)))


def _reshape_without_inference(target: np.ndarray) -> object:
    node = helper.make_node("Reshape", ["x", "s"], ["y"], name="the_node")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5])],
        [numpy_helper.from_array(target, "s")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("axis", [0, 1, 3, -1])
def test_flatten(axis: int) -> None:
    check_node("Flatten", [floats(2, 3, 4)], {"axis": axis})


@pytest.mark.parametrize("perm", [None, [0, 1, 2], [2, 0, 1]])
def test_transpose(perm: list[int] | None) -> None:
    check_node("Transpose", [floats(2, 3, 4)], {} if perm is None else {"perm": perm})


def test_squeeze_and_unsqueeze_in_both_forms() -> None:
    x = floats(1, 3, 1, 2)
    check_node("Squeeze", [x])
    check_node("Squeeze", [x, ints(0, -2)], constants={1})
    check_node("Squeeze", [x], {"axes": [2]}, opset=11)
    check_node("Unsqueeze", [x, ints(0, -1, 3)], constants={1})
    check_node("Unsqueeze", [x], {"axes": [1, 4]}, opset=11)


def test_concat_and_split() -> None:
    check_node("Concat", [floats(2, 3), floats(2, 0), floats(2, 5, seed=1)], {"axis": -1})
    check_node("Split", [floats(7, 2)], {"num_outputs": 3}, outputs=3, opset=18)
    check_node("Split", [floats(7, 2), ints(0, 5, 2)], outputs=3, constants={1})
    check_node("Split", [floats(2, 6)], {"axis": 1}, outputs=2, opset=13)
    check_node("Split", [floats(2, 6)], {"axis": 1, "split": [1, 5]}, outputs=2, opset=11)


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), [
    ((1,), (3,), None, None), ((-3,), (1000,), (1,), None), ((0, 4), (1000, 0), (0, 1), (2, -2)),
    ((4,), (-1000,), (1,), (-1,)),
    ((3,), (1,), (0,), None), ((1, 1), (2, 2), (-1, -2), (1, 1)), ((0,), (-1,), (2,), (3,)),
])  # fmt: skip
def test_slice(starts: object, ends: object, axes: object, steps: object) -> None:
    given = [None if v is None else np.array(v, np.int64) for v in (starts, ends, axes, steps)]
    while given[-1] is None:
        given.pop()
    imported = check_node("Slice", [floats(4, 5, 7), *given], constants=range(1, 5))
    assert not host_steps(imported)


def test_slice_before_opset_10() -> None:
    check_node("Slice", [floats(4, 5)], {"starts": [1, -2], "ends": [3, 100], "axes": [0, 1]}, opset=9)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_modes(mode: str) -> None:
    check_node("Pad", [floats(3, 4), ints(1, 2, 0, 3)], {"mode": mode}, constants={1})


def test_pad_with_value_axes_and_negative_amounts() -> None:
    x, value = floats(3, 5), np.float32(7).reshape(())
    check_node("Pad", [x, ints(2, 1), value, ints(-1)], constants={1, 2, 3})
    (y,) = run(node_model("Pad", [x, ints(-1, 1, 1, -2), value], constants={1, 2}), {"x0": x})
    assert_close(y, np.pad(x[1:, :3], ((0, 1), (1, 0)), constant_values=7))
    check_node("Pad", [x], {"pads": [1, 0, 0, 2], "value": 2.0}, opset=2)


def test_expand_and_tile() -> None:
    check_node("Expand", [floats(3, 1), ints(2, 1, 5)], constants={1})
    check_node("Expand", [floats(3, 4), ints(1)], constants={1})
    check_node("Tile", [floats(2, 3), ints(2, 3)], constants={1})
    check_node("Tile", [floats(2, 3), ints(1, 0)], constants={1})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    check_node("DepthToSpace", [floats(2, 8, 3, 5)], {"blocksize": 2, "mode": mode}, opset=13)


def test_space_to_depth() -> None:
    check_node("SpaceToDepth", [floats(2, 3, 4, 6)], {"blocksize": 2}, opset=13)


def test_shapes_of_static_tensors_are_constants() -> None:
    x = floats(2, 3, 5)
    for attrs in ({}, {"start": 1}, {"start": -2, "end": -1}, {"end": 100}):
        assert not check_node("Shape", [x], attrs).graph.nodes
    assert not check_node("Size", [x]).graph.nodes


def test_generators() -> None:
    check_node("EyeLike", [floats(3, 5)], {"k": 1, "dtype": TensorProto.INT32})
    check_node("Trilu", [floats(2, 3, 5)], {"upper": 0})
    check_node("Trilu", [floats(3, 5), np.int64(-1).reshape(())], {"upper": 1}, constants={1})
    check_node("CenterCropPad", [floats(5, 4), ints(3, 7)], constants={1})
