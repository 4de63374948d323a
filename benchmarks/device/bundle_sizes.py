"""The operators of `sizes` as ONNX models. Their weights are made from a seed where they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.device.case_models import KINDS
from benchmarks.device.sizes import Size
from tilestitch.runtime.dtypes import numpy_dtype


def onnx_of(size: Size) -> onnx.ModelProto:
    """The model; inputs and weights are called as in the size, the output `y`."""
    kind = KINDS[size.dtype]
    weights = [
        numpy_helper.from_array(np.random.default_rng(1).standard_normal(shape, np.float32).astype(
            numpy_dtype(size.dtype)), name)
        for name, shape in size.weights.items()
    ]  # fmt: skip
    graph = helper.make_graph(
        _nodes(size.operator), "size",
        [helper.make_tensor_value_info(name, kind, size.declared(shape)) for name, shape in size.inputs.items()],
        [helper.make_tensor_value_info("y", kind, size.declared(size.output))], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])


def _nodes(operator: str) -> list[Any]:
    match operator:
        case "add":
            return [helper.make_node("Add", ["x", "r"], ["y"])]
        case "bias_gelu":
            return [helper.make_node("Add", ["x", "b"], ["s"]), helper.make_node("Gelu", ["s"], ["y"])]
        case "softmax":
            return [helper.make_node("Softmax", ["x"], ["y"], axis=-1)]
        case "layer_norm":
            return [helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"], axis=-1)]
        case "gemv":
            return [helper.make_node("MatMul", ["x", "w"], ["y"])]
        case "attention" | "causal_attention" | "decode" | "open_decode":
            is_causal = int(operator == "causal_attention")
            return [helper.make_node("Attention", ["x", "k", "v"], ["y"], is_causal=is_causal)]
    raise ValueError(f"there is no ONNX model of {operator!r}")
