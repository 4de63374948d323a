"""Resize and its like; Fourier transforms and windows."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.runtime.host.reference import check_against_onnx, onnx_outputs, run
from tilestitch.runtime.host import TABLE, HostError

IMAGE = np.random.default_rng(8).normal(size=(1, 2, 5, 7)).astype(np.float32)
MODES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]


# 0.25 rather than 0.2: onnx's reference takes 5 * float32(0.2) for more than 1.
@pytest.mark.parametrize("scales", [(1.0, 1.0, 0.6, 0.8), (1.0, 1.0, 2.0, 1.5), (1.0, 1.0, 0.25, 3.0)])
@pytest.mark.parametrize("transform", MODES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("extra", [{}, {"antialias": 1}, {"exclude_outside": 1}])
def test_resize_interpolates_as_onnx(
    extra: dict[str, Any], mode: str, transform: str, scales: tuple[float, ...]
) -> None:
    attrs = dict(extra, mode=mode, coordinate_transformation_mode=transform)
    check_against_onnx("Resize", IMAGE, None, np.array(scales, np.float32), rtol=2e-5, **attrs)


@pytest.mark.parametrize("scale", [0.8, 0.6, 1.3])
def test_symmetric_half_pixels_keep_the_centre(scale: float) -> None:
    """onnx's reference picks a wrong neighbour here when a position is an integer but for rounding."""
    ramp = np.arange(7, dtype=np.float64).reshape(1, 7)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}
    result = run("Resize", ramp, None, np.array([1, scale], np.float32), **attrs)[0]
    assert len(result) == int(7 * scale)
    np.testing.assert_allclose(result + result[::-1], 6, atol=1e-6)
    np.testing.assert_allclose(np.diff(result[1:-1]), 1 / np.float32(scale), atol=1e-6)


NEAREST: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda place: ceil(place - Fraction(1, 2)),
    "round_prefer_ceil": lambda place: floor(place + Fraction(1, 2)),
    "floor": floor,
    "ceil": ceil,
}


def place_in(transform: str, at: int, size: int, out: int) -> Fraction:
    """Where an element of `out` ones comes from, without rounding."""
    if transform == "asymmetric":
        return Fraction(at * size, out)
    if transform == "align_corners":
        return Fraction(at * (size - 1), max(1, out - 1))
    if transform == "pytorch_half_pixel" and out == 1:
        return Fraction(0)
    return Fraction((2 * at + 1) * size - out, 2 * out)


@pytest.mark.parametrize("nearest", NEAREST)
@pytest.mark.parametrize("transform", MODES)
@pytest.mark.parametrize("sizes", [(3, 9), (5, 7), (1, 1), (11, 2)])
def test_resize_takes_the_nearest_element(sizes: tuple[int, int], transform: str, nearest: str) -> None:
    """Not that of a scale that is rounded: so onnx's reference has it, and by other rounding ONNX Runtime."""
    places = [[place_in(transform, i, size, out) for i in range(out)] for size, out in zip((5, 7), sizes, strict=True)]
    rows, columns = (
        np.clip([NEAREST[nearest](place) for place in axis], 0, size - 1)
        for axis, size in zip(places, (5, 7), strict=True)
    )
    attrs = {"mode": "nearest", "coordinate_transformation_mode": transform, "nearest_mode": nearest}
    result = run("Resize", IMAGE, None, None, np.array((1, 2, *sizes)), **attrs)
    np.testing.assert_array_equal(result, IMAGE[:, :, rows][:, :, :, columns])


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_resize_of_some_axes_keeps_the_aspect_ratio_if_asked(policy: str) -> None:
    sizes = np.array([7, 8])
    attrs = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    check_against_onnx("Resize", IMAGE, None, None, sizes, **attrs)


def test_crop_and_resize_fills_what_lies_outside() -> None:
    roi = np.array([0, 0, 0.4, -0.2, 1, 1, 1.2, 0.7], np.float32)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
    check_against_onnx("Resize", IMAGE, roi, None, np.array([1, 2, 4, 4]), **attrs)


def test_integer_images_are_rounded_and_clamped() -> None:
    x = np.array([[[[0, 255], [255, 0]]]], np.uint8)
    result = run("Resize", x, None, None, np.array([1, 1, 5, 5]), mode="cubic")
    assert result.dtype == np.uint8
    assert (result.min(), result.max()) == (0, 255)


def test_resize_needs_scales_or_sizes() -> None:
    with pytest.raises(HostError, match="scales or sizes"):
        run("Resize", IMAGE, None, None, None)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 3, 4, 2)])
def test_affine_grid_agrees_with_onnx(size: tuple[int, ...], align: int) -> None:
    rank = len(size) - 2
    theta = np.random.default_rng(9).normal(size=(size[0], rank, rank + 1)).astype(np.float32)
    check_against_onnx("AffineGrid", theta, np.array(size), align_corners=align)


@pytest.mark.parametrize(
    ("image", "block", "attrs"),
    [
        ((5, 5), (1, 5), {}),
        ((5, 6), (2, 3), {"strides": [2, 1], "pads": [1, 0, 0, 2]}),
        ((6, 6), (2, 2), {"dilations": [1, 3]}),
        ((3, 4, 5), (1, 2, 2), {}),
    ],
)
def test_col2im_adds_up_overlapping_blocks(
    image: tuple[int, ...], block: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    rank = len(image)
    pads = attrs.get("pads", [0] * (2 * rank))
    counts = [
        (n + pads[i] + pads[rank + i] - attrs.get("dilations", [1] * rank)[i] * (k - 1) - 1)
        // attrs.get("strides", [1] * rank)[i]
        + 1
        for i, (n, k) in enumerate(zip(image, block))
    ]
    x = np.random.default_rng(10).normal(size=(2, 3 * int(np.prod(block)), int(np.prod(counts)))).astype(np.float32)
    check_against_onnx("Col2Im", x, np.array(image), np.array(block), **attrs)


def test_max_unpool_puts_values_back() -> None:
    x, indices = np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([[[[5, 7], [13, 15]]]])
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check_against_onnx("MaxUnpool", x, indices, **attrs)
    check_against_onnx("MaxUnpool", x, indices, np.array([1, 1, 5, 5]), **attrs)
    with pytest.raises(HostError, match="index 16"):
        run("MaxUnpool", x, indices + 1, **attrs)


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", [None, 4, 9])
@pytest.mark.parametrize("axis", [0, -2, 2])
@pytest.mark.parametrize("attrs", [{}, {"onesided": 1}, {"inverse": 1}])
def test_dft_agrees_with_onnx(attrs: dict[str, int], axis: int, length: int | None, parts: int) -> None:
    x = np.random.default_rng(11).normal(size=(3, 5, 6, parts)).astype(np.float32)
    if parts == 2 and attrs.get("onesided"):
        pytest.skip("the one-sided transform of a complex signal is not defined")
    size = None if length is None else np.array(length)
    check_against_onnx("DFT", x, size, np.array(axis), rtol=1e-4, **attrs)


def test_one_sided_inverse_is_real() -> None:
    signal = np.random.default_rng(12).normal(size=(2, 8, 1))
    spectrum = run("DFT", signal, None, np.array(1), onesided=1)
    back = run("DFT", spectrum, None, np.array(1), onesided=1, inverse=1)
    np.testing.assert_allclose(back, signal, atol=1e-12)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("step", [3, 8])
def test_stft_agrees_with_onnx(step: int, onesided: int) -> None:
    signal = np.random.default_rng(13).normal(size=(2, 37, 1)).astype(np.float32)
    window = np.hanning(8).astype(np.float32)
    check_against_onnx("STFT", signal, np.array(step), window, np.array(8), rtol=1e-4, onesided=onesided)


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [2, 7, 10])
@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_agree_with_onnx(name: str, size: int, periodic: int) -> None:
    (expected,) = onnx_outputs(name, [np.array(size)], periodic=periodic, output_datatype=TensorProto.DOUBLE)
    np.testing.assert_allclose(run(name, np.array(size), periodic=periodic, dtype="float64"), expected, atol=1e-6)


def test_mel_weight_matrix_agrees_with_onnx() -> None:
    operands = [np.array(8), np.array(64), np.array(8192), np.array(20.0, np.float32), np.array(4096.0, np.float32)]
    (expected,) = onnx_outputs("MelWeightMatrix", operands)
    np.testing.assert_allclose(TABLE["MelWeightMatrix"](operands, {})[0], expected, atol=1e-6)
