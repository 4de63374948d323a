"""Resize: all modes and coordinate transforms through constant tables."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tests.frontend.checks import assert_close, check_node, floats, host_steps, ints, node_model, run, run_ort
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.frontend.errors import ConversionError
from tilestitch.runtime import load

COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
X = floats(1, 2, 5, 7)


def scales(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("factors", [(2.0, 3.0), (0.6, 0.55), (1.0, 1.7)])
def test_scales(mode: str, coordinates: str, factors: tuple[float, float]) -> None:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
    imported = check_node("Resize", [X, None, scales(1, 1, *factors)], attrs, constants={2})
    assert not host_steps(imported)


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_modes(nearest: str) -> None:
    attrs = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": "half_pixel"}
    check_node("Resize", [X, None, None, ints(1, 2, 8, 4)], attrs, constants={3})


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_weights_are_those_of_onnx_runtime(coordinates: str) -> None:
    """It computes places in float32, whose last bits count in images of many columns."""
    x = np.arange(211, dtype=np.float32)[None, None, None] * np.ones((2, 1), np.float32)
    attrs = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    model = node_model("Resize", [x, None, None, ints(1, 1, 2, 320)], attrs, constants={3})
    np.testing.assert_allclose(run(model, {"x0": x})[0], run_ort(model, {"x0": x})[0], rtol=5e-7, atol=1e-7)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
def test_antialias_and_exclude_outside(mode: str, exclude: int) -> None:
    attrs = {"mode": mode, "antialias": 1, "exclude_outside": exclude}
    check_node("Resize", [X, None, scales(0.4, 0.3)], attrs | {"axes": [2, 3]}, constants={2})


def test_crop_and_extrapolate() -> None:
    attrs = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    roi = np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7], np.float32)
    check_node("Resize", [X, roi, None, ints(1, 2, 3, 3)], attrs, constants={1, 3})


@pytest.mark.parametrize("sizes", [(3, 3), (1, 4), (1, 1), (0, 2)])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crops_whose_corners_a_run_tells(mode: str, sizes: tuple[int, int]) -> None:
    """As of TensorFlow's crop_and_resize."""
    attrs = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    for corners in ([0.0, 0.0, 1.0, 1.0], [0.13, 0.62, 1.23, 1.71], [-0.4, 0.3, 0.2, 0.3], [0.9, 0.8, 0.1, -0.1]):
        roi = np.array([0, 0, *corners[:2], 1, 1, *corners[2:]], np.float32)
        imported = check_node("Resize", [X, roi, None, ints(1, 2, *sizes)], attrs, constants={3})
        assert not host_steps(imported)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratio(policy: str) -> None:
    attrs = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    check_node("Resize", [X, None, None, ints(9, 9)], attrs, constants={3})


def test_integers_are_rounded_and_saturated() -> None:
    x = np.random.default_rng(0).integers(0, 255, (1, 1, 5, 5)).astype(np.uint8)
    check_node("Resize", [x, None, scales(1, 1, 2.5, 2.5)], {"mode": "cubic"}, constants={2})


def test_opset_10_and_upsample_are_asymmetric() -> None:
    expected = X.repeat(2, 2).repeat(2, 3)
    model = node_model("Resize", [X, scales(1, 1, 2, 2)], {"mode": "nearest"}, opset=10, constants={1})
    assert_close(run(model, {"x0": X})[0], expected)
    model = node_model("Upsample", [X, scales(1, 1, 2, 2)], {"mode": "nearest"}, opset=9, constants={1})
    assert_close(run(model, {"x0": X})[0], expected)
    model = node_model("Upsample", [X], {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 2.0]}, opset=7)
    assert_close(run(model, {"x0": X})[0], expected)


@pytest.mark.parametrize("factors", [(0.6, 0.9), (0.2, 1.2), (0.4, 1.0000001)])
def test_before_opset_11_axes_that_become_shorter_are_rounded_up(factors: tuple[float, float]) -> None:
    x = floats(1, 1, 10, 30)
    model = node_model("Resize", [x, scales(1, 1, *factors)], {"mode": "nearest"}, opset=10, constants={1})
    assert_close(run(model, {"x0": x})[0], run_ort(model, {"x0": x})[0])


@pytest.mark.parametrize("coordinates", ["pytorch_half_pixel", "align_corners", "half_pixel_symmetric"])
def test_a_length_is_the_side_but_for_rounding(coordinates: str) -> None:
    x, attrs = floats(1, 1, 49, 5), {"mode": "linear", "coordinate_transformation_mode": coordinates}
    check_node("Resize", [x, None, None, ints(1, 1, 1, 9)], attrs, constants={3}, against="onnxruntime")
    for factor in (1.8, 0.2):
        operands = [x, None, scales(1, 1, 1, factor)]
        check_node("Resize", operands, attrs, constants={2}, against="onnxruntime")


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_side_of_one_pixel_is_the_first_one_in_pytorch(mode: str, antialias: int) -> None:
    """onnx's reference takes what lies half a pixel before it."""
    x, ways = floats(1, 1, 7, 9), {"coordinate_transformation_mode": "pytorch_half_pixel", "antialias": antialias}
    operands = [x, None, None, ints(1, 1, 1, 4)]
    check_node("Resize", operands, {"mode": mode, **ways}, constants={3}, against="onnxruntime")


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "floor", "ceil"])
def test_nearest_elements_as_tensorflow_takes_them(nearest: str) -> None:
    attrs = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    for factors in [(2.0, 1.5), (0.5, 0.75)]:
        operands = [X, np.zeros(0, np.float32), scales(1, 1, *factors)]
        model = node_model("Resize", operands, attrs, opset=11, constants={1, 2})
        assert_close(run(model, {"x0": X})[0], run_ort(model, {"x0": X})[0])


@pytest.mark.parametrize("coordinates", ["asymmetric", "tf_half_pixel_for_nn"])
@pytest.mark.parametrize("given", ["fixed", "computed", "open"])
def test_the_nearest_element_is_not_that_of_a_rounded_scale(given: str, coordinates: str) -> None:
    """A third in float32 is more than a third, and 11 / 24 is more, too: an element before is the nearest to those."""
    x, asymmetric = np.arange(24, dtype=np.float32)[None, None, None], coordinates == "asymmetric"
    side, expected = (8, 3 * np.arange(8)) if asymmetric else (11, (np.arange(11) * 2 + 1) * 12 // 11)
    attrs = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": coordinates}
    operands = [x, np.zeros(0, np.float32), scales(1, 1, 1, side / 24)]
    constants = {1} if given == "computed" else {1, 2}
    model = node_model("Resize", operands, attrs, opset=11, constants=constants)
    if given == "open":
        model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "columns"
        model.graph.output[0].type.tensor_type.shape.dim[3].dim_param = "pixels"
    feeds = {"x0": x} if given != "computed" else {"x0": x, "x2": operands[2]}
    found = run(model, feeds)[0]
    assert found.reshape(-1).tolist() == expected.tolist()
    assert_close(found, run_ort(model, feeds)[0])


def test_sides_are_products_in_float32() -> None:
    model = node_model("Upsample", [X, scales(1, 1, 8.2, 40 / 7)], opset=9, constants={1})
    assert run(model, {"x0": X})[0].shape == run_ort(model, {"x0": X})[0].shape == (1, 2, 41, 40)


@pytest.mark.parametrize("attribute", ["mode", "coordinate_transformation_mode", "nearest_mode"])
def test_a_way_that_is_not_known_is_refused(attribute: str) -> None:
    with pytest.raises(ConversionError, match=f"'the_node'.*{attribute} is 'other', none of "):
        import_model(node_model("Resize", [X, None, scales(1, 1, 2, 2)], {attribute: "other"}, constants={2}))


def test_few_taps_are_gathers_and_many_are_a_gemm() -> None:
    def ops(factor: float) -> set[str]:
        attrs = {"mode": "linear", "antialias": 1, "axes": [3]}
        return {n.op for n in check_node("Resize", [X, None, scales(factor)], attrs, constants={2}).graph.nodes}

    assert ops(2.0) <= {"gather", "mul", "add"}
    assert "matmul" in ops(0.3)


@pytest.mark.parametrize("factor", [0.6, 1.2])
def test_before_opset_11_open_sides_and_computed_scales_round_as_fixed_ones(factor: float) -> None:
    x = floats(1, 1, 10, 30)
    operands, feeds = [x, scales(1, 1, factor, factor)], {"x0": x}
    fixed = node_model("Resize", operands, {"mode": "nearest"}, opset=10, constants={1})
    expected = run_ort(fixed, feeds)[0]
    computed = node_model("Resize", operands, {"mode": "nearest"}, opset=10)
    assert_close(run(computed, {**feeds, "x1": operands[1]})[0], expected)
    for size, name in zip(fixed.graph.input[0].type.tensor_type.shape.dim, "abcd"):
        size.dim_param = name
    del fixed.graph.output[0].type.tensor_type.shape.dim[:]
    for name in "abcd":
        fixed.graph.output[0].type.tensor_type.shape.dim.add().dim_param = f"out_{name}"
    assert_close(run(fixed, feeds)[0], expected)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_integers_are_rounded_once_where_one_side_is_open(mode: str) -> None:
    """Between the axes a value of uint8 may be no integer, and beyond 255."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        g (uint8[1, 2, 5, W] x) => (uint8[1, 2, 13, V] y) <float[4] s = {{1.0, 1.0, 2.7, 1.7}}>
        {{ y = Resize <mode = "{mode}"> (x, , s) }}""")
    feeds = {"x": np.random.default_rng(0).integers(0, 256, (1, 2, 5, 9)).astype(np.uint8)}
    (fixed,) = run(model, feeds, shapes={"x": (1, 2, 5, 9)})
    (found,) = load(compile_model(model, dims={"W": (1, 16)}).to_bytes(), device="cpu").run(feeds).values()
    assert np.mean(found != fixed) < 0.01  # ties may be rounded either way
