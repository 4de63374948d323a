"""Convolutions of one tap over images of open size are matmuls; all others stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.sizes import Size, Symbol, size_of
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan.target import TargetInfo

WIDTH = size_of(Symbol("w", 1, 99))


def convolution(width: Size, kernel: int = 1, stride: int = 1, pad: int = 0, groups: int = 1) -> Graph:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("float32", (2, 9, width, 8)))
    w = graph.constant(np.ones((kernel, kernel, 8 // groups, 16), np.float32))
    sides = {"strides": (stride,) * 2, "before": (pad,) * 2, "after": (pad,) * 2, "dilations": (1, 1)}
    y = graph.emit("conv", x, w, layout="NXC", groups=groups, **sides)
    graph.outputs = [y]
    return run_pipeline(graph, PassContext(TargetInfo("cpu")), "pointwise")


def test_one_tap_over_images_of_open_size_is_a_matmul() -> None:
    graph = convolution(WIDTH)
    (node,) = graph.nodes
    assert node.op == "matmul"
    assert node.output.shape == (2, 9, WIDTH, 16)


@pytest.mark.parametrize(
    ("width", "further"),
    [(7, {}), (WIDTH, {"kernel": 3}), (WIDTH, {"stride": 2}), (WIDTH, {"pad": 1}), (WIDTH, {"groups": 2})],
)
def test_other_convolutions_stay(width: Size, further: dict[str, int]) -> None:
    (node,) = convolution(width, **further).nodes
    assert node.op == "conv"
