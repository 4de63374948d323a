"""Convolutions in all dimensions, paddings and groups."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import assert_close, check_node, floats, ints, node_model, run
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError

OPSET = 21


@pytest.mark.parametrize(("x", "w", "attrs"), [
    ((2, 3, 11), (4, 3, 3), {}),
    ((1, 3, 7, 9), (5, 3, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((1, 4, 7, 7), (6, 2, 3, 3), {"group": 2, "dilations": [2, 1]}),
    ((1, 5, 6, 6), (5, 1, 3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"strides": [1, 2, 1], "pads": [0, 1, 0, 1, 1, 1]}),
    ((1, 2, 8, 7), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 2, 8, 7), (3, 2, 2, 2), {"auto_pad": "SAME_LOWER"}),
    ((1, 2, 8, 7), (3, 2, 3, 3), {"auto_pad": "VALID", "strides": [3, 2]}),
])  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
def test_conv(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, object], bias: bool) -> None:
    operands = [floats(*x), floats(*w, seed=1)] + ([floats(w[0], seed=2)] if bias else [])
    check_node("Conv", operands, attrs, opset=OPSET, against="onnxruntime", constants={1, 2})


@pytest.mark.parametrize(("x", "w", "attrs"), [
    ((1, 3, 7), (3, 2, 3), {}),
    ((2, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 3], "pads": [1, 1, 0, 2], "output_padding": [1, 0]}),
    ((1, 4, 5, 5), (4, 2, 3, 3), {"group": 2, "dilations": [2, 1]}),
    ((1, 2, 3, 3), (2, 3, 3, 3), {"strides": [3, 2], "output_shape": [10, 8]}),
    ((1, 2, 3, 4), (2, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3, 4), (2, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), {"strides": [2, 1, 2]}),
])  # fmt: skip
def test_conv_transpose(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, object]) -> None:
    groups = int(attrs.get("group", 1))  # type: ignore[call-overload]
    operands = [floats(*x), floats(*w, seed=1), floats(w[1] * groups, seed=2)]
    check_node("ConvTranspose", operands, attrs, opset=OPSET, against="onnxruntime", constants={1, 2})


def test_a_transposed_convolution_that_crops_all_rows_is_empty() -> None:
    """Of fewer rows than it crops, it was compiled to an artifact that could not be loaded."""
    operands = [floats(1, 2, 2, 5), floats(2, 4, 1, 1, seed=1)]
    proto = node_model("ConvTranspose", operands, {"pads": [2, 1, 0, 2]})
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "rows"
    with load(compile_model(proto).to_bytes()) as module:
        for rows in (2, 3, 9):
            assert module.run({"x0": floats(1, 2, rows, 5), "x1": operands[1]})["y0"].shape == (1, 4, rows - 2, 2)
        with pytest.raises(InputError, match="rows"):
            module.run({"x0": floats(1, 2, 1, 5), "x1": operands[1]})


@pytest.mark.parametrize("zero_points", [(0, 0), (3, 0), (3, 2)])
def test_conv_integer_pads_with_the_zero_point(zero_points: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(0, 20, s).astype(np.uint8) for s in ((1, 2, 5, 5), (3, 2, 3, 3)))
    zeros = [np.array(z, np.uint8) for z in zero_points]
    check_node(
        "ConvInteger", [x, w, *zeros], {"pads": [1, 1, 1, 1]}, opset=OPSET, against="onnxruntime", constants={1, 2, 3}
    )


def test_col2im_inverts_disjoint_blocks() -> None:
    image = floats(2, 3, 6, 4)
    blocks = image.reshape(2, 3, 3, 2, 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(2, 12, 6)
    model = node_model("Col2Im", [blocks, ints(6, 4), ints(2, 2)], {"strides": [2, 2]}, constants={1, 2})
    assert_close(run(model, {"x0": blocks})[0], image)


def test_deform_conv_without_displacement_is_a_convolution() -> None:
    x, w = floats(2, 4, 6, 7), floats(6, 2, 3, 3, seed=1)
    attrs = {"group": 2, "pads": [1, 1, 1, 1], "strides": [1, 2]}
    offset = np.zeros((2, 2 * 9 * 2, 6, 4), np.float32)
    model = node_model("DeformConv", [x, w, offset], attrs | {"offset_group": 2})
    (expected,) = run(node_model("Conv", [x, w], attrs), {"x0": x, "x1": w})
    assert_close(run(model, {"x0": x, "x1": w, "x2": offset})[0], expected)
