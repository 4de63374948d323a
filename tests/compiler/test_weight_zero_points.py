"""Convolutions by weights whose zero points make them wider than bytes multiply bytes, and take the rest from sums of
windows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.quantised_models import Sketch, unoptimised
from tests.compiler.test_quantised import check, floats
from tilestitch.compiler import compile_model
from tilestitch.passes.plan import GroupKind
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.types import TensorType

WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((1, 1), {}), "1x1 strided": ((1, 1), {"strides": [2, 2]}), "3x3": ((3, 3), {"pads": [1] * 4}),
    "3x3 strided": ((3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 2]}),
    "dilated": ((3, 2), {"pads": [2, 0, 2, 1], "dilations": [2, 1]}), "1x1 padded": ((1, 1), {"pads": [1, 0, 0, 2]}),
}  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("left", "zero"), [(("uint8", 121), 3), (("int8", -7), 201)])
def test_dequantised(window: str, left: tuple[str, int], zero: int) -> None:
    kernel, attrs = WINDOWS[window]
    s = Sketch(seed=zero)
    x = s.there_and_back("x", 0.03, left[1], left[0])
    y = s.node("Conv", x, s.weights((19, 5, *kernel), "uint8", zero, 0), s.constant(floats(19)), **attrs)
    model = s.model({"x": ("float32", (2, 5, 9, 7))}, s.there_and_back(y, 0.2, 7, "uint8"))
    check(model, {"x": floats(2, 5, 9, 7)}, 0.2)


def test_zero_points_of_each_filter() -> None:
    s = Sketch(seed=2)
    zeros = s.random.integers(0, 256, 21).astype(np.uint8)
    w = s.dequantise(s.constant(s.bytes((21, 8, 3, 3), "uint8")), s.scales(21), zeros, axis=0)
    y = s.node("Conv", s.there_and_back("x", 0.03, 90, "uint8"), w, pads=[1] * 4)
    model = s.model({"x": ("float32", (1, 8, 6, 5))}, s.there_and_back(y, 0.3, 120, "uint8"))
    check(model, {"x": floats(1, 8, 6, 5)}, 0.3)


def layers(image: tuple[int, ...], kernel: tuple[int, ...]) -> onnx.ModelProto:
    """Two convolutions with a zero point for each filter, and a ReLU between them."""
    s, y, channels = Sketch(seed=3), "x", image[1]
    for filters in (21, 19):
        zeros = s.random.integers(0, 256, filters).astype(np.uint8)
        scales = (s.scales(filters) / np.sqrt(channels)).astype(np.float32)
        w = s.dequantise(s.constant(s.bytes((filters, channels, *kernel), "uint8")), scales, zeros, axis=0)
        convolved = s.node("Conv", s.there_and_back(y, 0.03, 90, "uint8"), w, pads=[k // 2 for k in kernel] * 2)
        y, channels = s.node("Relu", convolved), filters
    return s.model({"x": ("float32", image)}, s.there_and_back(y, 0.3, 120, "uint8"))


@pytest.mark.parametrize(
    ("image", "kernel"),
    [((2, 8, 11), (3,)), ((1, 8, 6, 5), (1, 1)), ((1, 8, 6, 5), (3, 3)), ((1, 8, 4, 3, 5), (1, 3, 1))],
)
def test_layers_hand_on_bytes(image: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    """What zero points take does not keep the quantisation of the results out of the kernel of a convolution."""
    model = layers(image, kernel)
    compiled = compile_model(model, num_threads=1)
    (program,) = read_artifact(compiled.to_bytes()).programs
    dtypes = {value.name: value.type.dtype for value in program.values if isinstance(value.type, TensorType)}
    first, last = (group.outputs for group in compiled.plan.groups if group.kind is GroupKind.CONTRACTION)
    assert [dtypes[name] for name in first] == ["uint8"] and len(last) == 1
    check(model, {"x": floats(*image)}, 0.3, kernels=2)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("zero", [0, 128, 255])
def test_operators_of_integers_are_exact(window: str, zero: int) -> None:
    kernel, attrs = WINDOWS[window]
    s = Sketch(seed=zero)
    y = s.node(
        "ConvInteger", "x", s.constant(s.bytes((6, 5, *kernel), "uint8")), s.constant(np.uint8(77)),
        s.constant(np.uint8(zero)), **attrs,
    )  # fmt: skip
    model = s.model({"x": ("uint8", (1, 5, 9, 7))}, y, "int32")
    check(model, {"x": s.bytes((1, 5, 9, 7), "uint8")}, 0)


def test_extremes_are_exact() -> None:
    s = Sketch()
    y = s.node(
        "ConvInteger", "x", s.constant(np.full((3, 300, 3, 3), 255, np.uint8)), s.constant(np.uint8(0)),
        s.constant(np.uint8(0)), pads=[1] * 4,
    )  # fmt: skip
    check(s.model({"x": ("uint8", (1, 300, 3, 4))}, y, "int32"), {"x": np.full((1, 300, 3, 4), 255, np.uint8)}, 0)


def test_ranges_that_a_run_finds() -> None:
    """ConvInteger after DynamicQuantizeLinear, as dynamic quantisation writes it."""
    s = Sketch(seed=4)
    node = s.node("DynamicQuantizeLinear", "x")
    s.nodes[-1].output.extend([f"{node}_scale", f"{node}_zero"])
    y = s.node(
        "ConvInteger", node, s.constant(s.bytes((12, 5, 3, 3), "uint8")), f"{node}_zero", s.constant(np.uint8(40)),
        pads=[1] * 4,
    )  # fmt: skip
    y = s.node("Mul", s.node("Cast", y, to=1), s.node("Mul", f"{node}_scale", s.constant(np.float32(0.01))))
    model = s.model({"x": ("float32", (1, 5, 9, 7))}, y)
    feeds = {"x": floats(1, 5, 9, 7)}
    expected = unoptimised(model, feeds)
    check(model, feeds, 2e-6 * float(np.abs(expected).max()))


def test_quantised_convolution_of_integers() -> None:
    s = Sketch(seed=5)
    scales = [s.constant(np.float32(v)) for v in (0.02, 0.01, 0.9)]
    zeros = [s.constant(np.uint8(v)) for v in (9, 110, 130)]
    y = s.node(
        "QLinearConv", "x", scales[0], zeros[0], s.constant(s.bytes((16, 12, 3, 3), "uint8")), scales[1], zeros[1],
        scales[2], zeros[2], s.constant(s.random.integers(-900, 900, 16).astype(np.int32)), pads=[1] * 4,
    )  # fmt: skip
    check(s.model({"x": ("uint8", (1, 12, 8, 8))}, y, "uint8"), {"x": s.bytes((1, 12, 8, 8), "uint8")}, 1)


@pytest.mark.parametrize("left", [("uint8", 90), ("int8", -38)])
def test_groups_of_channels_are_computed_as_floats(left: tuple[str, int]) -> None:
    s = Sketch(seed=6)
    x = s.there_and_back("x", 0.03, left[1], left[0])
    y = s.node("Conv", x, s.weights((8, 4, 3, 3), "uint8", 3, 0), group=2)
    model = s.model({"x": ("float32", (1, 8, 6, 5))}, s.there_and_back(y, 0.3, 120, "uint8"))
    feeds = {"x": floats(1, 8, 6, 5)}
    (result,) = load(compile_model(model, "cpu:x86-64-v3", num_threads=1).to_bytes()).run(feeds).values()
    assert np.abs(result - unoptimised(model, feeds)).max() <= 0.3001


@pytest.mark.parametrize(
    ("low", "high", "kernels"),
    [((-255, 0), (0, 255), 1), ((-200, -100), (55, 155), 1), ((-255, -255), (255, 255), 0), ((-100, 0), (156, 9), 0)],
)
def test_weights_of_more_than_bytes_are_exact(low: tuple[int, int], high: tuple[int, int], kernels: int) -> None:
    """int32 constants of which some columns are further apart than bytes, and columns that are bytes less something."""
    s = Sketch(seed=5)
    w = np.stack([s.random.integers(least, most + 1, 40) for least, most in zip(low, high, strict=True)], axis=1)
    w[0], w[1] = low, high
    y = s.node("MatMul", s.node("Cast", "x", to=onnx.TensorProto.INT32), s.constant(w.astype(np.int32)))
    check(s.model({"x": ("uint8", (7, 40))}, y, "int32"), {"x": s.bytes((7, 40), "uint8")}, 0, kernels=kernels)
