"""Convolutional networks with open batch, or with open batch, height and width, as PyTorch exports them."""

from __future__ import annotations

from functools import partial

import numpy as np
from onnx import TensorProto, helper

from tests.open_models.fixture import OpenFixture
from tests.open_models.sizes import Feeds, Sizes
from tests.open_models.styles import Style

SIDE, CLASSES = 32, 10


def convolved(b: Style, x: str, cin: int, cout: int, kernel: int, stride: int = 1, group: int = 1) -> str:
    """With the bias that a folded batch normalisation leaves."""
    return b.op(
        "Conv", x, b.weight(cout, cin // group, kernel, kernel), b.weight(cout, scale=0.1), group=group,
        strides=[stride] * 2, pads=[kernel // 2] * 4, kernel_shape=[kernel] * 2, dilations=[1, 1],
    )  # fmt: skip


def pooled_scores(b: Style, x: str, channels: int) -> str:
    """The mean over the image, and a dense layer of it."""
    if b.name == "script":
        flat = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    else:
        flat = b.op("Reshape", b.mean(x, [-1, -2]), b.ints(-1, channels))
    return b.op("Gemm", flat, b.weight(CLASSES, channels, scale=0.5), b.weight(CLASSES, scale=0.1), transB=1)


def residual_network(style: type[Style], open_sides: bool) -> OpenFixture:
    """ResNet's blocks: a wide stride-2 convolution and pooling, one block that keeps the shape, one that changes it."""
    b = style(seed=6)
    x = b.op("Relu", convolved(b, "image", 3, 8, 7, 2))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=0)
    body = convolved(b, b.op("Relu", convolved(b, x, 8, 8, 3)), 8, 8, 3)
    x = b.op("Relu", b.op("Add", body, x))
    body = convolved(b, b.op("Relu", convolved(b, x, 8, 12, 3, 2)), 12, 12, 3)
    x = b.op("Relu", b.op("Add", body, convolved(b, x, 8, 12, 1, 2)))
    return _finished(b, "resnet", pooled_scores(b, x, 12), open_sides)


def inverted_residuals(style: type[Style], open_sides: bool) -> OpenFixture:
    """MobileNetV2's blocks: expand, depthwise, project; activations are cut off at 6."""
    b = style(seed=7)

    def cut(x: str) -> str:
        return b.op("Clip", x, b.number(0), b.number(6))

    x = cut(convolved(b, "image", 3, 8, 3, 2))
    for cin, cout, stride in ((8, 8, 1), (8, 12, 2)):
        body = cut(convolved(b, x, cin, 4 * cin, 1))
        body = cut(convolved(b, body, 4 * cin, 4 * cin, 3, stride, 4 * cin))
        body = convolved(b, body, 4 * cin, cout, 1)
        x = b.op("Add", x, body) if stride == 1 else body
    return _finished(b, "mobilenet", pooled_scores(b, x, 12), open_sides)


def _finished(b: Style, name: str, scores: str, open_sides: bool) -> OpenFixture:
    b.nodes.append(helper.make_node("Identity", [scores], ["logits"], name="/logits"))
    sides: list[str | int] = ["height", "width"] if open_sides else [SIDE, SIDE]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, *sides])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])
    model = b.model(f"{name}_{b.name}", [image], [logits], b.opset)
    ranges = {"batch": (1, 6), **({"height": (16, 48), "width": (16, 48)} if open_sides else {})}
    return OpenFixture(model, ranges, partial(_images, SIDE))


def _images(side: int, sizes: Sizes, random: np.random.Generator) -> Feeds:
    shape = (sizes["batch"], 3, sizes.get("height", side), sizes.get("width", side))
    return {"image": random.standard_normal(shape, np.float32)}
