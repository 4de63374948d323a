"""Attributes below what an operator can be computed with are refused, with the node's name and the attribute's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.checks import check_node, floats, ints, node_model, run
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.frontend.errors import ConversionError

IMAGE, KERNEL = floats(1, 4, 4, 4), floats(4, 4, 3, 3)
BOXES = (IMAGE, floats(1, 4), ints(0))


def recurrent(gates: int) -> tuple[np.ndarray, ...]:
    return floats(3, 2, 4), floats(1, 3 * gates, 4), floats(1, 3 * gates, 3)


REFUSED: dict[str, tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = {
    **{f"{op} {name}": (op, (IMAGE, KERNEL), {name: value})
       for op in ("Conv", "ConvTranspose")
       for name, value in (("dilations", [0, 0]), ("strides", [0, 1]), ("group", 0), ("pads", [-1, 0, 0, 0]))},
    "ConvTranspose output_padding": ("ConvTranspose", (IMAGE, KERNEL), {"output_padding": [-1, 0]}),
    "DeformConv dilations": ("DeformConv", (IMAGE, KERNEL, floats(1, 18, 2, 2)), {"dilations": [0, 0]}),
    **{f"{op} {name}": (op, (IMAGE,), {"kernel_shape": [2, 2], name: value})
       for op in ("MaxPool", "AveragePool", "LpPool")
       for name, value in (("kernel_shape", [0, 0]), ("dilations", [0, 0]), ("strides", [0, 0]), ("pads", [-1] * 4))},
    "LpPool p": ("LpPool", (IMAGE,), {"kernel_shape": [2, 2], "p": 0}),
    "RoiAlign output_height": ("RoiAlign", BOXES, {"output_height": 0}),
    "RoiAlign sampling_ratio": ("RoiAlign", BOXES, {"sampling_ratio": -1}),
    **{f"{op} {name}": (op, recurrent(gates), {"hidden_size": 3, name: value})
       for op, gates in (("RNN", 1), ("LSTM", 4), ("GRU", 3))
       for name, value in (("hidden_size", -3), ("hidden_size", 5), ("clip", -1.0))},
    "DepthToSpace blocksize": ("DepthToSpace", (IMAGE,), {"blocksize": -2}),
    "GroupNormalization num_groups": ("GroupNormalization", (IMAGE, floats(4), floats(4)), {"num_groups": -2}),
    "LRN size": ("LRN", (IMAGE,), {"size": 0}),
}  # fmt: skip


@pytest.mark.parametrize("case", list(REFUSED))
def test_attributes_out_of_range_are_refused(case: str) -> None:
    op, operands, attrs = REFUSED[case]
    model = node_model(op, operands, attrs, outputs=["y0"])
    with pytest.raises(ConversionError, match=rf"'the_node'.*{case.split()[1]}"):
        import_model(model)


def test_recurrent_weights_must_fit_the_number_of_states() -> None:
    x, w, r = recurrent(3)
    with pytest.raises(ConversionError, match="3 gates"):
        import_model(node_model("GRU", (x, w[:, :-1], r), {"hidden_size": 3}, outputs=["y0"]))


@pytest.mark.parametrize("pads", [[3, -2], [-2, 3], [4, -4]])
def test_pads_that_crop_more_than_there_is_crop_the_padding_of_the_other_end(pads: list[int]) -> None:
    model = node_model("Pad", (floats(1), ints(*pads), floats()), constants=(1,))
    (result,) = run(model, {"x0": floats(1), "x2": floats()})
    np.testing.assert_array_equal(result, np.full(1 + sum(pads), floats(), np.float32))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize(("size", "pads"), [(0, [1, 1]), (2, [4, -2]), (2, [-2, 1])])
def test_modes_that_repeat_elements_refuse_an_axis_without_any(mode: str, size: int, pads: list[int]) -> None:
    with pytest.raises(ConversionError, match="pads"):
        import_model(node_model("Pad", (floats(size), ints(*pads)), {"mode": mode}, constants=(1,)))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_an_axis_without_elements_needs_none_where_nothing_is_padded(mode: str) -> None:
    model = import_model(node_model("Pad", (floats(2), ints(-1, -1)), {"mode": mode}, constants=(1,)))
    assert model.graph.outputs[0].tensor_type.shape == (0,)


@pytest.mark.parametrize(("pads", "attrs"), [([-2, 0], {}), ([3, -2], {"mode": "edge"}), ([4, -5], {"mode": "wrap"})])
def test_pads_that_leave_less_than_nothing_or_nothing_to_repeat_are_refused(
    pads: list[int], attrs: dict[str, str]
) -> None:
    with pytest.raises(ConversionError, match="pads"):
        import_model(node_model("Pad", (floats(1), ints(*pads)), attrs, constants=(1,)))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizing_to_nothing_gives_nothing(mode: str) -> None:
    model = node_model("Resize", (IMAGE, None, None, ints(1, 4, 0, 4)), {"mode": mode}, constants=(3,))
    (result,) = run(model, {"x0": IMAGE})
    assert result.shape == (1, 4, 0, 4)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_are_no_positive_numbers_are_refused(scale: float) -> None:
    scales = np.array([1, 1, scale, 1], np.float32)
    with pytest.raises(ConversionError, match="scales"):
        import_model(node_model("Resize", (IMAGE, None, scales), constants=(2,)))


def test_nothing_cannot_be_resized_to_something() -> None:
    with pytest.raises(ConversionError, match="axis 2 of 0 elements"):
        import_model(node_model("Resize", (floats(1, 4, 0, 4), None, None, ints(1, 4, 2, 4)), constants=(3,)))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_places_that_are_not_finite_change_no_other_result(mode: str, padding: str) -> None:
    grid = np.random.default_rng(0).uniform(-1.5, 1.5, (1, 3, 3, 2)).astype(np.float32)
    attrs = {"mode": mode, "padding_mode": padding}
    (expected,) = run(node_model("GridSample", (IMAGE, grid), attrs), {"x0": IMAGE, "x1": grid})
    wrong = grid.copy()
    wrong[0, 0, 0], wrong[0, 1, 1], wrong[0, 2, 2] = np.nan, np.inf, [-np.inf, 3e38]
    (actual,) = run(node_model("GridSample", (IMAGE, grid), attrs), {"x0": IMAGE, "x1": wrong})
    sound = np.isfinite(wrong).all(-1)[0]
    np.testing.assert_array_equal(actual[..., sound], expected[..., sound])
    if padding == "zeros":  # an infinite place lies outside of the picture
        assert (actual[..., 1, 1] == 0).all() and (actual[..., 2, 2] == 0).all()


def test_a_window_of_one_element_is_still_allowed() -> None:
    check_node("MaxPool", (IMAGE,), {"kernel_shape": [1, 1], "strides": [1, 1], "dilations": [1, 1]})
