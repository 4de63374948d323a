"""Models as quantisers write them, from random weights, and what ONNX Runtime computes without optimising them."""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = os.environ["ORT_TELEMETRY_DISABLED"] = "1"

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

BYTES = {"int8": np.int8, "uint8": np.uint8}


@dataclass
class Sketch:
    """Nodes and constants of a model; every method adds some and gives the name of a value."""

    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def constant(self, data: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{len(self.nodes)}", **attrs))
        return name

    def bytes(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        info = np.iinfo(BYTES[dtype])
        return self.random.integers(info.min, info.max + 1, shape).astype(BYTES[dtype])

    def scales(self, count: int | None) -> np.ndarray:
        """One, or `count` of an axis."""
        return self.random.uniform(0.001, 0.02, () if count is None else count).astype(np.float32)

    def quantise(self, x: str, scale: float, zero: int, dtype: str) -> str:
        return self.node("QuantizeLinear", x, self.constant(np.float32(scale)), self.constant(BYTES[dtype](zero)))

    def dequantise(self, q: str, scale: Any, zero: Any, **attrs: Any) -> str:
        return self.node("DequantizeLinear", q, self.constant(scale), self.constant(zero), **attrs)

    def there_and_back(self, x: str, scale: float, zero: int, dtype: str) -> str:
        return self.dequantise(self.quantise(x, scale, zero, dtype), np.float32(scale), BYTES[dtype](zero))

    def weights(self, shape: Sequence[int], dtype: str, zero: int, axis: int | None) -> str:
        """Dequantised weights, with a scale and a zero point each of `axis`, or of all."""
        count = None if axis is None else shape[axis]
        zeros = np.full(() if count is None else count, zero, BYTES[dtype])
        attrs = {} if axis is None else {"axis": axis}
        return self.dequantise(self.constant(self.bytes(shape, dtype)), self.scales(count), zeros, **attrs)

    def model(
        self, inputs: Mapping[str, tuple[str, Sequence[int | str]]], output: str, dtype: str = "float32"
    ) -> bytes:
        kinds = {"float32": onnx.TensorProto.FLOAT, "uint8": onnx.TensorProto.UINT8, "int8": onnx.TensorProto.INT8,
                 "int32": onnx.TensorProto.INT32}  # fmt: skip
        formal = [helper.make_tensor_value_info(name, kinds[kind], shape) for name, (kind, shape) in inputs.items()]
        result = helper.make_tensor_value_info(output, kinds[dtype], None)
        graph = helper.make_graph(self.nodes, "quantised", formal, [result], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return model.SerializeToString()


def unoptimised(model: bytes, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """The output, node by node as ONNX Runtime computes it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, dict(feeds))
    return np.asarray(result)
