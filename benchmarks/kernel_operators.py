"""Models of one operator in several sizes, for templates of which others have few kernels: windows, matrices times
vectors, deep projections, sorts, transposed convolutions, elements that are moved. Each family has the shapes that some
kind of network has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.models import Builder

OPERATORS = 6
"""Of one model, side by side."""

Built = tuple[str, tuple[int, ...]]
"""The result of an operator on an input `x`, and the shape of that."""


def _integers(b: Builder, *numbers: int) -> str:
    return b.constant(np.array(numbers, np.int64))


def _pools(kind: str, kernel: int, stride: int, pad: int, width: int = 0) -> Callable[[Builder, str, Random], Built]:
    """width: of the kernel, if it is not as high."""

    def build(b: Builder, x: str, random: Random) -> Built:
        taps = [kernel, width or kernel]
        shape = (
            1,
            random.choice((8, 17, 32, 64, 96, 192)),
            random.choice((7, 13, 14, 28, 35)),
            random.choice((14, 28, 35, 56)),
        )
        pads = [min(pad, (k - 1) // 2) for k in taps] * 2
        return b.op(kind, x, kernel_shape=taps, strides=[stride] * 2, pads=pads), shape

    return build


PYRAMID = (
    (56, (8, 16, 32, 48, 64)), (35, (16, 40, 64, 96)), (28, (24, 48, 96, 128)), (14, (64, 128, 192)), (7, (96, 256)),
)  # fmt: skip
"""Pixels along a side, and channels that images have of which networks are made."""


def _convolved(b: Builder, x: str, random: Random) -> Built:
    """3 x 3 taps, with an activation or a sum after them."""
    size, channels = random.choice(PYRAMID)
    cin, cout, side = random.choice(channels), random.choice(channels), size + random.choice((0, 0, -1, 5))
    y = b.op("Conv", x, b.weight(cout, cin, 3, 3), b.weight(cout), pads=[1] * 4)
    y = b.op("Relu", y) if random.random() < 0.5 else b.op("Add", y, b.weight(cout, 1, 1))
    return y, (1, cin, size, side)


def _depthwise(kernel: int, stride: int) -> Callable[[Builder, str, Random], Built]:
    def build(b: Builder, x: str, random: Random) -> Built:
        channels, size = random.choice((16, 24, 48, 96, 144, 240)), random.choice((7, 14, 19, 28, 40, 56))
        weight = b.weight(channels, 1, kernel, kernel)
        pads = [kernel // 2] * 4
        return b.op("Conv", x, weight, group=channels, pads=pads, strides=[stride] * 2), (1, channels, size, size)

    return build


def _scores(b: Builder, x: str, random: Random) -> Built:
    """One query against keys that are an input."""
    heads, keys, width = random.choice((1, 4, 12)), random.choice((33, 128, 500, 1024)), random.choice((32, 64, 128))
    query = b.constant(b.random.standard_normal((heads, 1, width)).astype(np.float32))
    return b.op("MatMul", query, b.op("Transpose", x, perm=[0, 2, 1])), (heads, keys, width)


def _weighed(b: Builder, x: str, random: Random) -> Built:
    """Weights of one query by values."""
    heads, keys, width = random.choice((1, 4, 12)), random.choice((33, 128, 500, 1024)), random.choice((32, 64, 128))
    weights = b.constant(b.random.random((heads, 1, keys)).astype(np.float32))
    return b.op("MatMul", weights, x), (heads, keys, width)


def _powers(b: Builder, x: str, random: Random) -> Built:
    """A matrix times a vector, as an iteration for eigenvalues has it."""
    rows, columns = random.choice((64, 100, 333, 1000)), random.choice((64, 256, 777, 2048))
    return b.op("MatMul", x, b.constant(b.random.standard_normal((columns, 1)).astype(np.float32))), (rows, columns)


def _transposed_powers(b: Builder, x: str, random: Random) -> Built:
    rows, columns = random.choice((64, 100, 333, 1000)), random.choice((64, 256, 777, 2048))
    return b.op("MatMul", b.constant(b.random.standard_normal((1, rows)).astype(np.float32)), x), (rows, columns)


def _best(most: int) -> Callable[[Builder, str, Random], Built]:
    def build(b: Builder, x: str, random: Random) -> Built:
        lines, size = random.choice((1, 4, 16, 60)), random.choice((50, 200, 1000, 4000))
        count = _integers(b, min(size, random.randint(1, most)))
        return b.op("TopK", x, count, outputs=2, axis=1)[0], (lines, size)

    return build


def _sorted(b: Builder, x: str, random: Random) -> Built:
    lines, size = random.choice((1, 3, 16)), random.choice((40, 128, 500, 1500))
    return b.op("TopK", x, _integers(b, size), outputs=2, axis=1)[0], (lines, size)


def _upsampled(kernel: int, stride: int, groups: bool = False) -> Callable[[Builder, str, Random], Built]:
    def build(b: Builder, x: str, random: Random) -> Built:
        cin, cout, size = (
            random.choice((8, 16, 32, 64)),
            random.choice((3, 8, 16, 32, 64)),
            random.choice((4, 7, 14, 20)),
        )
        pads = [(kernel - stride) // 2] * 4
        weight = b.weight(cin, 1 if groups else cout, kernel, kernel)
        options = {"group": cin} if groups else {}
        return b.op("ConvTranspose", x, weight, strides=[stride] * 2, pads=pads, **options), (1, cin, size, size)

    return build


def _deep(b: Builder, x: str, random: Random) -> Built:
    """A projection that sums up many products, as the second one of a feed-forward block."""
    rows, depth = random.choice((13, 32, 77, 128)), random.choice((768, 1000, 1024, 1024, 2048, 2048, 3072))
    return b.op("MatMul", x, b.weight(depth, random.choice((32, 96, 200, 256, 512)))), (rows, depth)


def _image(random: Random) -> tuple[int, int, int, int]:
    return 1, random.choice((8, 16, 48, 64)), 2 * random.choice((4, 7, 10, 14, 20)), 2 * random.choice((4, 7, 14, 20))


def _resized(mode: str, last: bool) -> Callable[[Builder, str, Random], Built]:
    """last: of an image whose channels come last in memory, and as such."""

    def build(b: Builder, x: str, random: Random) -> Built:
        n, c, h, w = _image(random)
        scale = random.choice((1.5, 2, 3))
        image = b.op("Relu", b.op("Transpose", x, perm=[0, 3, 1, 2]) if last else x)
        scales = b.constant(np.array([1, 1, scale, scale], np.float32))
        y = b.op("Mul", b.op("Resize", image, "", scales, mode=mode), b.weight(c, 1, 1))
        again = last and random.random() < 0.5
        return b.op("Transpose", y, perm=[0, 2, 3, 1]) if again else y, (n, h, w, c) if last else (n, c, h, w)

    return build


def _shuffled(b: Builder, x: str, random: Random) -> Built:
    """Channels become pixels, as super-resolution ends."""
    shape = _image(random)
    y = b.op("DepthToSpace", b.op("Relu", x), blocksize=2, mode=random.choice(("DCR", "CRD")))
    return b.op("Add", y, b.weight(shape[1] // 4, 1, 1)), shape


def _windowed(b: Builder, x: str, random: Random) -> Built:
    """Windows of an image, channels last, as Swin attends to them."""
    _, c, h, w = _image(random)
    n, split = random.choice((1, 2)), _integers(b, -1, h // 2, 2, w // 2, 2, c)
    y = b.op("Transpose", b.op("Reshape", b.op("Mul", x, b.weight(c)), split), perm=[0, 1, 3, 2, 4, 5])
    return b.op("Add", b.op("Reshape", y, _integers(b, -1, 2, 2, c)), b.weight(2, 2, c)), (n, h, w, c)


def _turned(b: Builder, x: str, random: Random) -> Built:
    """A sum of matrices of which one is transposed."""
    rows, columns = random.choice((12, 33, 64, 197, 512)), random.choice((16, 24, 77, 128, 300))
    y = b.op("Add", b.op("Transpose", x, perm=[1, 0]), b.weight(columns, rows))
    return b.op("Mul", b.op("Sigmoid", y), y) if random.random() < 0.5 else y, (rows, columns)


def _looked_up(b: Builder, x: str, random: Random) -> Built:
    """Rows, columns or both that constants pick, some transposed after it."""
    rows, columns = random.choice((16, 50, 128, 500)), random.choice((16, 24, 64, 256))
    y, axis = b.op("Relu", x), random.choice((0, 1, 1, 2))
    for along in (0, 1) if axis == 2 else (axis,):
        size = random.choice((12, 40, 100))
        picks = [random.randrange((rows, columns)[along]) for _ in range(size)]
        y = b.op("Gather", y, _integers(b, *picks), axis=along)
    return b.op("Transpose", y, perm=[1, 0]) if random.random() < 0.5 else b.op("Neg", y), (rows, columns)


FAMILIES: Mapping[str, Callable[[Builder, str, Random], Built]] = {
    "vgg_pools": _pools("MaxPool", 2, 2, 0),
    "resnet_pools": _pools("MaxPool", 3, 2, 1),
    "inception_pools": _pools("MaxPool", 3, 1, 1),
    "yolo_pools": _pools("MaxPool", 5, 1, 2),
    "densenet_pools": _pools("AveragePool", 2, 2, 0),
    "pyramid_pools": _pools("AveragePool", 3, 1, 1),
    "text_pools": _pools("MaxPool", 1, 1, 1, width=4),
    "pyramid": _convolved,
    "mobilenet_windows": _depthwise(3, 1),
    "strided_windows": _depthwise(3, 2),
    "efficientnet_windows": _depthwise(5, 1),
    "convnext_windows": _depthwise(7, 1),
    "decode_scores": _scores,
    "decode_values": _weighed,
    "powers": _powers,
    "transposed_powers": _transposed_powers,
    "beam": _best(8),
    "proposals": _best(200),
    "ranking": _sorted,
    "unet_ups": _upsampled(2, 2),
    "gan_ups": _upsampled(4, 2),
    "fcn_ups": _upsampled(8, 4),
    "odd_ups": _upsampled(3, 2),
    "deep": _deep,
    "linear_resizes": _resized("linear", False),
    "linear_resizes_last": _resized("linear", True),
    "nearest_resizes": _resized("nearest", False),
    "nearest_resizes_last": _resized("nearest", True),
    "shuffles": _shuffled,
    "partitions": _windowed,
    "turned": _turned,
    "look_ups": _looked_up,
}


def model_of(family: str, seed: object) -> ModelProto:
    """Operators of sizes that `seed` draws, each with an input and an output of its own."""
    random, b = Random(f"{family} {seed}"), Builder(1)
    inputs, outputs = [], []
    for number in range(OPERATORS):
        result, shape = FAMILIES[family](b, f"x{number}", random)
        inputs.append(helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, shape))
        b.nodes.append(helper.make_node("Identity", [result], [f"y{number}"], name=f"/output{number}"))
        outputs.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, [None] * len(shape)))
    return b.model(family, inputs, outputs, 20)
