"""Networks with SiLU after each convolution, of random weights, to be quantised: one like EfficientNet (depthwise
convolutions, squeeze and excite) and one like YOLO (Split, Concat, pools, Resize).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 2, 2, 5))
"""Of EfficientNet-B0, with fewer blocks: expansion, channels, blocks, stride and kernel."""


class Net:
    """Nodes and weights; methods give the name of a value."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []

    def constant(self, data: Any) -> str:
        name = f"c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attrs))
        return name

    def conv(self, x: str, channels: int, filters: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
        shape = (filters, channels // groups, kernel, kernel)
        weights = self.random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        bias = self.random.standard_normal(filters) * 0.1
        operands = (self.constant(weights.astype(np.float32)), self.constant(bias.astype(np.float32)))
        window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": groups}
        return self.node("Conv", x, *operands, **window)

    def silu(self, x: str) -> str:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def excited(self, x: str, channels: int, squeezed: int) -> str:
        pooled = self.silu(self.conv(self.node("GlobalAveragePool", x), channels, squeezed))
        return self.node("Mul", x, self.node("Sigmoid", self.conv(pooled, squeezed, channels)))

    def halves(self, x: str, half: int) -> tuple[str, str]:
        first = self.node("Split", x, self.constant(np.array([half, half])), axis=1)
        self.nodes[-1].output.append(f"{first}_rest")
        return first, f"{first}_rest"

    def model(self, y: str, side: int) -> onnx.ModelProto:
        told = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, side, side))
        result = helper.make_tensor_value_info(y, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "net", [told], [result], self.stored)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return onnx.shape_inference.infer_shapes(made)


def efficientnet_like() -> onnx.ModelProto:
    net = Net()
    x, channels = net.silu(net.conv("x", 3, 32, 3, 2)), 32
    for expansion, filters, blocks, stride, kernel in STAGES:
        for block in range(blocks):
            wide = channels * expansion
            y = net.silu(net.conv(x, channels, wide)) if expansion > 1 else x
            y = net.silu(net.conv(y, wide, wide, kernel, 1 if block else stride, wide))
            y = net.conv(net.excited(y, wide, channels // 4), wide, filters)
            x, channels = net.node("Add", x, y) if block else y, filters
    x = net.node("Flatten", net.node("GlobalAveragePool", net.silu(net.conv(x, channels, 640))))
    weights = net.constant((net.random.standard_normal((640, 1000)) / 25).astype(np.float32))
    return net.model(net.node("Gemm", x, weights, net.constant(np.zeros(1000, np.float32))), 224)


def yolo_like() -> onnx.ModelProto:
    net = Net()
    x, channels = net.silu(net.conv(net.silu(net.conv("x", 3, 16, 3, 2)), 16, 32, 3, 2)), 32
    for filters, blocks in ((64, 1), (128, 2), (256, 1)):
        half = channels // 2
        parts = list(net.halves(net.silu(net.conv(x, channels, channels)), half))
        for _ in range(blocks):
            inner = net.silu(net.conv(net.silu(net.conv(parts[-1], half, half, 3)), half, half, 3))
            parts.append(net.node("Add", parts[-1], inner))
        x = net.silu(net.conv(net.node("Concat", *parts, axis=1), half * (2 + blocks), channels))
        x, channels = net.silu(net.conv(x, channels, filters, 3, 2)), filters
    pools = [net.silu(net.conv(x, channels, 128))]
    for _ in range(3):
        pools.append(net.node("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
    x = net.silu(net.conv(net.node("Concat", *pools, axis=1), 512, 256))
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = net.silu(net.conv(net.node("Resize", x, "", scales, **attrs), 256, 64, 3))
    return net.model(net.conv(x, 64, 84), 320)
