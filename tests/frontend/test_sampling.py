"""GridSample, AffineGrid, regions of interest, determinants."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import assert_close, check_node, floats, host_steps, ints, node_model, run
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.passes.plan.index_checks import pending_checks
from tilestitch.runtime import load


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    grid = 1.3 * floats(2, 4, 5, 2, seed=1)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    check_node("GridSample", [floats(2, 3, 5, 6), grid], attrs)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_places_of_a_grid_need_no_checks(mode: str, padding: str) -> None:
    model = node_model("GridSample", [floats(1, 2, 5, 7), floats(1, 3, 1, 2)], {"mode": mode, "padding_mode": padding})
    assert not pending_checks(import_model(model).graph.nodes)


def test_a_place_that_is_no_number_is_none_of_the_image() -> None:
    grid = np.array([np.nan, np.inf, -np.inf, 0, 1, -1], np.float32)
    grid = np.stack(np.broadcast_arrays(grid[:, None], grid[None]), -1)[None]
    check_node("GridSample", [floats(1, 17, 3, 3), grid[:, 3:, 3:]], {"mode": "linear"})
    (y,) = run(node_model("GridSample", [floats(1, 17, 3, 3), grid], {"mode": "linear"}), {
        "x0": floats(1, 17, 3, 3), "x1": grid,
    })  # fmt: skip
    assert y.shape == (1, 17, 6, 6) and np.isfinite(y[..., 3:, 3:]).all()


def test_grid_sample_of_volumes() -> None:
    check_node("GridSample", [floats(1, 2, 3, 4, 5), 1.2 * floats(1, 2, 3, 2, 3, seed=1)], {"mode": "linear"})


@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (1, 1, 3, 4, 5), (2, 1, 1, 3)])
@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(sizes: tuple[int, ...], align: int) -> None:
    spatial = len(sizes) - 2
    theta = floats(sizes[0], spatial, spatial + 1)
    imported = check_node("AffineGrid", [theta, ints(*sizes)], {"align_corners": align}, constants={1})
    assert not host_steps(imported)


ROIS = np.array([[0, 0, 7, 7], [1.5, 2, 5, 6.5], [3, 3, 3.5, 3.2]], np.float32)


@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
def test_roi_align(ratio: int, mode: str, transform: str) -> None:
    attrs = {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "mode": mode, "spatial_scale": 0.9,
             "coordinate_transformation_mode": transform}  # fmt: skip
    check_node("RoiAlign", [np.abs(floats(2, 3, 8, 9)), ROIS, ints(0, 1, 1)], attrs, opset=16)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_of_no_regions(mode: str) -> None:
    attrs = {"mode": mode, "output_height": 3, "output_width": 2, "sampling_ratio": 2}
    check_node("RoiAlign", [floats(2, 3, 8, 9), np.zeros((0, 4), np.float32), ints()], attrs)


def test_max_roi_pool() -> None:
    rois = np.concatenate([np.array([[0], [1], [1]], np.float32), ROIS], 1)
    attrs = {"pooled_shape": [2, 3], "spatial_scale": 0.9}
    check_node("MaxRoiPool", [floats(2, 3, 8, 9), rois], attrs, opset=21, against="onnxruntime")


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_det(size: int) -> None:
    x = floats(4, size, size)
    (y,) = run(node_model("Det", [x]), {"x0": x})
    assert_close(y, np.linalg.det(x))


def test_det_of_matrices_whose_width_is_open() -> None:
    model = node_model("Det", [floats(4, 3, 3)])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "width"
    with load(compile_model(model, num_threads=1).to_bytes()) as module:
        assert module.inputs[0].type.shape == (4, 3, 3)
