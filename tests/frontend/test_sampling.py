"""GridSample, AffineGrid, regions of interest, determinants."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import assert_close, check_node, floats, host_steps, ints, node_model, run


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    grid = 1.3 * floats(2, 4, 5, 2, seed=1)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    check_node("GridSample", [floats(2, 3, 5, 6), grid], attrs)


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


def test_max_roi_pool() -> None:
    rois = np.concatenate([np.array([[0], [1], [1]], np.float32), ROIS], 1)
    attrs = {"pooled_shape": [2, 3], "spatial_scale": 0.9}
    check_node("MaxRoiPool", [floats(2, 3, 8, 9), rois], attrs, opset=21, against="onnxruntime")


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_det(size: int) -> None:
    x = floats(4, size, size)
    (y,) = run(node_model("Det", [x]), {"x0": x})
    assert_close(y, np.linalg.det(x))
