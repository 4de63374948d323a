"""A convolutional network as converters of Keras write it for operator set 9: images are NHWC, the batch is `unk__616`.

Transposes stand around the convolutions, padding is SAME_UPPER, slices and squeezes have attributes. A dense layer on
four dimensions goes through matrices, with a shape that is put together from the gathered outer and inner sizes;
Flatten takes the batch out of the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.models import Builder
from tests.open_models.sizes import Feeds, Sizes

OPSET = 9
BATCH = "unk__616"


def keras_cnn(
    widths: Sequence[int] = (8, 16), size: int = 16, units: int = 12, classes: int = 10, seed: int = 0
) -> ModelProto:
    """Each of WIDTHS is a block of a depthwise and a pointwise convolution that halves the image."""
    b = Builder(seed)
    x = b.op("Transpose", "image", perm=[0, 3, 1, 2])
    x = _activated(b, _convolved(b, x, 3, widths[0], 3, 2), widths[0])
    channels, side = widths[0], -(-size // 2)
    for width in widths:
        depthwise = _convolved(b, x, channels, channels, 3, 1, channels)
        x = b.op("Add", x, _activated(b, depthwise, channels))
        x = _activated(b, _convolved(b, x, channels, width, 1, 1), width)
        x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER")
        channels, side = width, -(-side // 2)
    x = b.op("Transpose", x, perm=[0, 2, 3, 1])
    x = b.op("Relu", _dense_on_images(b, x, channels, units))
    flat = b.op("Reshape", x, _shape_of_flat(b, x))
    scores = b.op("Add", b.op("MatMul", flat, b.weight(side * side * units, classes)), b.weight(classes, scale=0.1))
    b.nodes.append(helper.make_node("Softmax", [scores], ["probabilities"], name="/softmax", axis=1))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [BATCH, size, size, 3])
    result = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["unk__617", classes])
    return b.model("keras_cnn", [image], [result], OPSET)


def _convolved(b: Builder, x: str, cin: int, cout: int, kernel: int, stride: int, group: int = 1) -> str:
    weight = b.weight(cout, cin // group, kernel, kernel)
    return b.op(
        "Conv", x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2, group=group, auto_pad="SAME_UPPER"
    )  # fmt: skip


def _activated(b: Builder, x: str, channels: int) -> str:
    statistics = (b.around_one(channels), b.weight(channels, scale=0.1), b.weight(channels, scale=0.1))
    x = b.op("BatchNormalization", x, *statistics, b.around_one(channels), epsilon=1e-3)
    return b.op("Clip", x, min=0.0, max=6.0)


def _dense_on_images(b: Builder, x: str, cin: int, cout: int) -> str:
    """A tensordot over the last axis: rows are [product of outer sizes, cin]; then the outer sizes come back."""
    shape = b.op("Cast", b.op("Shape", x), to=TensorProto.INT32)
    outer = b.op("Gather", shape, b.constant(np.array([0, 1, 2], np.int64)), axis=0)
    inner = b.op("Gather", shape, b.constant(np.array([3], np.int64)), axis=0)
    rows, columns = (_product(b, sizes) for sizes in (outer, inner))
    matrix = b.op("Cast", b.op("Concat", rows, columns, axis=0), to=TensorProto.INT64)
    y = b.op("MatMul", b.op("Reshape", x, matrix), b.weight(cin, cout))
    whole = b.op("Concat", outer, b.constant(np.array([cout], np.int32)), axis=0)
    y = b.op("Reshape", y, b.op("Cast", whole, to=TensorProto.INT64))
    return b.op("Add", y, b.weight(cout, scale=0.1))


def _product(b: Builder, sizes: str) -> str:
    return b.op("Unsqueeze", b.op("ReduceProd", sizes, axes=[0], keepdims=0), axes=[0])


def _shape_of_flat(b: Builder, x: str) -> str:
    shape = b.op("Cast", b.op("Shape", x), to=TensorProto.FLOAT)  # tf2onnx slices floats where integers had no kernel
    batch = b.op("Squeeze", b.op("Slice", shape, axes=[0], starts=[0], ends=[1]), axes=[0])
    first = b.op("Unsqueeze", b.op("Cast", batch, to=TensorProto.INT32), axes=[0])
    both = b.op("Concat", first, b.constant(np.array([-1], np.int32)), axis=0)
    return b.op("Cast", both, to=TensorProto.INT64)


def images(size: int, sizes: Sizes, random: np.random.Generator) -> Feeds:
    return {"image": random.standard_normal((sizes[BATCH], size, size, 3), np.float32)}


small_images = partial(images, 16)
