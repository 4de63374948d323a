"""NaN is quantised to the least integer, as ONNX Runtime does; where there can be none, nothing asks for it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.quantised_models import Sketch, unoptimised
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.runtime import load

X = np.array([np.nan, np.inf, -np.inf, 1.2, -0.0, *[np.nan] * 32, 7, -9], np.float32)


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_nan_becomes_the_least_integer(dtype: str, zero: int, target: str) -> None:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    stored = [numpy_helper.from_array(np.float32(0.5), "s"), numpy_helper.from_array(np.asarray(zero, dtype), "z")]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    told = [[helper.make_tensor_value_info(n, t, X.shape)] for n, t in (("x", TensorProto.FLOAT), ("q", kind))]
    graph = helper.make_graph(nodes, "g", *told, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    device = "emulator" if target == "emulator" else "cpu"
    (result,) = load(compile_model(model, target).to_bytes(), device=device).run({"x": X}).values()
    np.testing.assert_array_equal(result, unoptimised(model, {"x": X}))


def asked(model: bytes) -> int:
    graph = import_model(onnx.load_from_string(model)).graph
    graph = run_pipeline(graph, PassContext(TargetInfo(isa="avx512", dot="vpdpbusd")))
    return sum(node.op == "is_nan" for node in graph.nodes)


def test_sums_of_integers_pools_and_parts_are_not_asked() -> None:
    """Of convolutions (one of them depthwise, as floats), a residual, a matmul, pools, Concat, Pad and Slice, only the
    input may be NaN.
    """
    s = Sketch()
    x = s.there_and_back("x", 0.03, 128, "uint8")
    y = s.there_and_back(s.node("Conv", x, s.weights((5, 5, 3, 3), "int8", 0, 0), pads=[1] * 4), 0.3, 120, "uint8")
    z = s.there_and_back(s.node("Add", x, y), 0.3, 99, "uint8")
    parts = [z, y, s.node("MaxPool", z, kernel_shape=[3, 3], pads=[1] * 4)]
    parts.append(s.node("AveragePool", y, kernel_shape=[3, 3], pads=[1] * 4))
    z = s.there_and_back(s.node("Concat", *parts, axis=1), 0.3, 99, "uint8")
    z = s.there_and_back(
        s.node("Relu", s.node("Slice", z, *(s.constant(np.array([v])) for v in (1, 9, 1)))), 0.2, 1, "uint8"
    )
    z = s.node("Conv", z, s.weights((8, 1, 3, 3), "int8", 0, 0), pads=[1] * 4, group=8)
    z = s.node("MatMul", s.there_and_back(z, 0.2, 1, "uint8"), s.weights((8, 6), "int8", 0, None))
    z = s.there_and_back(s.node("GlobalAveragePool", s.there_and_back(z, 0.2, 1, "uint8")), 0.02, 9, "uint8")
    assert asked(s.model({"x": ("float32", (1, 5, 8, 8))}, z)) == 1


def test_floats_are_asked() -> None:
    s = Sketch()
    y = s.there_and_back(s.node("Sqrt", s.there_and_back("x", 0.03, 128, "uint8")), 0.3, 120, "uint8")
    model = s.model({"x": ("float32", (4, 33))}, y)
    x = np.linspace(-2, 2, 132, dtype=np.float32).reshape(4, 33)
    (result,) = load(compile_model(model, "cpu:x86-64-v3").to_bytes()).run({"x": x}).values()
    np.testing.assert_allclose(result, unoptimised(model, {"x": x}), atol=1e-6)
