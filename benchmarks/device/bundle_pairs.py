"""The MLPs of `pair_models` as ONNX models, from which artifacts are compiled."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from benchmarks.device.pair_models import MLPS, gates


def onnx_of(name: str, tokens: int) -> onnx.ModelProto:
    """gpt3: GELU(x A) B; llama: (SiLU(x G) * (x U)) D. Weights are inputs, so that the artifact has none."""
    width, hidden = MLPS[name]
    if gates(name):
        nodes = [
            helper.make_node("MatMul", ["x", "gate"], ["g"]), helper.make_node("Sigmoid", ["g"], ["o"]),
            helper.make_node("Mul", ["g", "o"], ["s"]), helper.make_node("MatMul", ["x", "up"], ["u"]),
            helper.make_node("Mul", ["s", "u"], ["h"]), helper.make_node("MatMul", ["h", "down"], ["y"]),
        ]  # fmt: skip
    else:
        nodes = [
            helper.make_node("MatMul", ["x", "up"], ["u"]),
            helper.make_node("Gelu", ["u"], ["h"], approximate="tanh"),
            helper.make_node("MatMul", ["h", "down"], ["y"]),
        ]
    shapes = {"x": (tokens, width), "up": (width, hidden), "down": (hidden, width)}
    if gates(name):
        shapes["gate"] = (width, hidden)
    kind = TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes, "pair", [helper.make_tensor_value_info(key, kind, shape) for key, shape in shapes.items()],
        [helper.make_tensor_value_info("y", kind, (tokens, width))],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
