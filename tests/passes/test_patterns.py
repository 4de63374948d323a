"""The patterns that memory-bound kernels are made of: each is one kernel that reads every input and writes every output
once, from its ONNX form to the numbers that the compiled kernel gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

from tests.tolerances import MODELS
from tilestitch.compiler.driver import CompiledModel, compile_model
from tilestitch.runtime import load

PATTERNS = {
    "layer_norm": """(float[6,24] x, float[24] s, float[24] b) => (float[6,24] y)
        { y = LayerNormalization(x, s, b) }""",
    "layer_norm_of_two_axes": """(float[5,4,6] x, float[4,6] s, float[4,6] b) => (float[5,4,6] y)
        { y = LayerNormalization <axis = 1> (x, s, b) }""",
    "layer_norm_spelled_out": """(float[6,24] x, float[24] s, float[24] b) => (float[6,24] y)
        <float two = {2.0}, float eps = {0.00001}>
        { m = ReduceMean <axes = [-1]> (x)  d = Sub(x, m)  q = Pow(d, two)  v = ReduceMean <axes = [-1]> (q)
          e = Add(v, eps)  r = Sqrt(e)  n = Div(d, r)  t = Mul(n, s)  y = Add(t, b) }""",
    "rms_norm": """(float[6,24] x, float[24] s) => (float[6,24] y) { y = RMSNormalization(x, s) }""",
    "softmax": "(float[3,5,17] x) => (float[3,5,17] y) { y = Softmax <axis = -1> (x) }",
    "softmax_of_columns": "(float[3,5,17] x) => (float[3,5,17] y) { y = Softmax <axis = 1> (x) }",
    "log_softmax": "(float[7,33] x) => (float[7,33] y) { y = LogSoftmax(x) }",
    "gelu": """(float[4,5,20] x) => (float[4,5,20] y) { y = Gelu(x) }""",
    "gelu_of_tanh": """(float[4,5,20] x) => (float[4,5,20] y) { y = Gelu <approximate = "tanh"> (x) }""",
    "gelu_spelled_out": """(float[4,20] x) => (float[4,20] y)
        <float root = {1.4142135}, float one = {1.0}, float half = {0.5}>
        { a = Div(x, root)  e = Erf(a)  p = Add(e, one)  q = Mul(x, p)  y = Mul(q, half) }""",
    "batch_norm_and_relu": """(float[2,6,5,7] x, float[6] s, float[6] b, float[6] m, float[6] v) => (float[2,6,5,7] y)
        { n = BatchNormalization(x, s, b, m, v)  y = Relu(n) }""",
    "batch_norm_and_silu": """(float[2,6,5,7] x, float[6] s, float[6] b, float[6] m, float[6] v) => (float[2,6,5,7] y)
        { n = BatchNormalization(x, s, b, m, v)  g = Sigmoid(n)  y = Mul(n, g) }""",
    "group_norm": """(float[2,6,5,7] x, float[6] s, float[6] b) => (float[2,6,5,7] y)
        { y = GroupNormalization <num_groups = 3> (x, s, b) }""",
    "group_norm_and_silu": """(float[2,6,5,7] x, float[6] s, float[6] b) => (float[2,6,5,7] y)
        { n = GroupNormalization <num_groups = 2> (x, s, b)  g = Sigmoid(n)  y = Mul(n, g) }""",
    "group_norm_of_pytorch": """(float[2,6,5,7] x, float[6,1,1] s, float[6,1,1] b) => (float[2,6,5,7] y)
        <int64[3] rows = {0, 3, -1}, int64[4] image = {2, 6, 5, 7}, float[3] one = {1, 1, 1}, float[3] zero = {0, 0, 0}>
        { r = Reshape(x, rows)  i = InstanceNormalization(r, one, zero)  n = Reshape(i, image)
          m = Mul(n, s)  y = Add(m, b) }""",
    "group_norm_of_pytorch_and_silu": """(float[2,6,5,7] x, float[6,1,1] s, float[6,1,1] b) => (float[2,6,5,7] y)
        <int64[3] rows = {0, 2, -1}, int64[4] image = {2, 6, 5, 7}, float[2] one = {1, 1}, float[2] zero = {0, 0}>
        { r = Reshape(x, rows)  i = InstanceNormalization(r, one, zero)  n = Reshape(i, image)
          m = Mul(n, s)  a = Add(m, b)  g = Sigmoid(a)  y = Mul(a, g) }""",
    "group_norm_of_pytorch_and_residual": """(float[2,6,5,7] x, float[6,1,1] s, float[6,1,1] b, float[2,6,5,7] z)
        => (float[2,6,5,7] y)
        <int64[3] rows = {0, 3, -1}, int64[4] image = {2, 6, 5, 7}, float[3] one = {1, 1, 1}, float[3] zero = {0, 0, 0}>
        { r = Reshape(x, rows)  i = InstanceNormalization(r, one, zero)  n = Reshape(i, image)
          m = Mul(n, s)  a = Add(m, b)  y = Add(a, z) }""",
    "instance_norm": """(float[2,6,5,7] x, float[6] s, float[6] b) => (float[2,6,5,7] y)
        { y = InstanceNormalization(x, s, b) }""",
    "masked_scores": """(float[2,3,5,9] x, int64[2,9] keep) => (float[2,3,5,9] y)
        <int64[2] axes = {1, 2}, float eight = {8.0}, float low = {-10000.0}, float one = {1.0}>
        { k = Cast <to = 1> (keep)  r = Unsqueeze(k, axes)  i = Sub(one, r)  m = Mul(i, low)
          d = Div(x, eight)  a = Add(d, m)  y = Softmax <axis = -1> (a) }""",
    "causal_scores": """(float[2,3,7,7] x, bool[1,1,7,7] allowed) => (float[2,3,7,7] y) <float low = {-1e30}>
        { w = Where(allowed, x, low)  y = Softmax <axis = -1> (w) }""",
    "bias_residual_layer_norm": """(float[2,3,24] x, float[2,3,24] r, float[24] c, float[24] s, float[24] b)
        => (float[2,3,24] y) { a = Add(x, c)  z = Add(a, r)  y = LayerNormalization(z, s, b) }""",
    "bias_residual_layer_norm_that_others_need": """(float[2,3,24] x, float[2,3,24] r, float[24] c, float[24] s)
        => (float[2,3,24] y, float[2,3,24] z) { a = Add(x, c)  z = Add(a, r)  y = LayerNormalization(z, s) }""",
}


def model_of(pattern: str, dtype: str = "float32") -> onnx.ModelProto:
    """The pattern's model; its floats are of `dtype`, float32 or float16."""
    text = PATTERNS[pattern]
    opset = 17 if "axes = [-1]" in text else 23
    model = parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> g {text}')
    if dtype == "float32":
        return model
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            half = np.clip(numpy_helper.to_array(tensor), -6e4, 6e4).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for node in model.graph.node:
        if node.op_type == "Cast":
            node.attribute[0].i = TensorProto.FLOAT16
    return model


def feeds_of(model: onnx.ModelProto) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    found = {}
    for value in model.graph.input:
        like = zeros(value)
        real = rng.uniform(0.5 if value.name == "v" else -2.0, 2.0, like.shape)
        found[value.name] = (real > -1 if like.dtype.kind in "bi" else real).astype(like.dtype)
    if "allowed" in found:
        found["allowed"][..., 0] = True  # a row that sees nothing has no softmax
    return found


def one_kernel(compiled: CompiledModel) -> dict[str, Any]:
    (kernel,) = compiled.explain()["kernels"]
    return dict(kernel)


def nbytes(values: Iterable[onnx.ValueInfoProto]) -> int:
    return sum(array.nbytes for array in map(zeros, values))


def zeros(value: onnx.ValueInfoProto) -> np.ndarray:
    type_ = value.type.tensor_type
    shape = [d.dim_value for d in type_.shape.dim]
    return np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_pattern_is_one_kernel_and_right(pattern: str, dtype: str) -> None:
    model = model_of(pattern, dtype)
    compiled = compile_model(model, num_threads=2)
    kernel = one_kernel(compiled)
    assert kernel["memory_bound"]
    assert sorted(kernel["inputs"]) == sorted(v.name for v in model.graph.input)
    assert sorted(kernel["outputs"]) == sorted(v.name for v in model.graph.output)
    assert kernel["bytes_written"] == nbytes(model.graph.output)
    constants = kernel["bytes_read"] - nbytes(model.graph.input)
    assert 0 <= constants <= 64
    feeds = feeds_of(model)
    with load(compiled.to_bytes(), num_threads=2) as ours:
        actual = list(ours.run(feeds).values())
    exact = {n: f.astype(np.float32) if f.dtype == np.float16 else f for n, f in feeds.items()}
    for a, e in zip(actual, ReferenceEvaluator(model_of(pattern)).run(None, exact), strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=MODELS[dtype] * max(1.0, float(np.abs(e).max())))


@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name.startswith("group_norm")])
def test_group_norm_is_one_kernel_on_a_gpu_and_right(pattern: str) -> None:
    model = model_of(pattern)
    compiled = compile_model(model, "cuda:sm_80", keep_source=True)
    assert one_kernel(compiled)["bytes_written"] == nbytes(model.graph.output)
    feeds = feeds_of(model)
    with load(compiled.to_bytes(), device="emulator") as ours:
        (actual,) = ours.run(feeds).values()
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    within = MODELS["float32"] * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=within)
