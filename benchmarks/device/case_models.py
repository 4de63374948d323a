"""Small ONNX models of single kernel families, in any data type that the family has; sizes are odd on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.networks import half
from tilestitch.runtime.dtypes import numpy_dtype

SEED = 20261
KINDS = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32, "int64": TensorProto.INT64,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
}  # fmt: skip


def model_of(
    nodes: list[Any], inputs: dict[str, tuple[int, ...]], output: tuple[int, ...], dtype: str, opset: int = 20,
    results: Mapping[str, tuple[str, tuple[int, ...]]] | None = None, given: Mapping[str, np.ndarray] | None = None,
    **weights: Any,
) -> onnx.ModelProto:  # fmt: skip
    """Inputs and weights, given by their shapes, are of `dtype`. So is the output `y`, unless there are other
    `results`, by name. given: further weights.
    """
    rng = np.random.default_rng(SEED)
    made = [numpy_helper.from_array(_weight(rng, dtype, shape), name) for name, shape in weights.items()]
    made += [numpy_helper.from_array(array, name) for name, array in (given or {}).items()]
    outputs = results or {"y": (dtype, output)}
    graph = helper.make_graph(
        nodes, "case",
        [helper.make_tensor_value_info(name, KINDS[dtype], shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, KINDS[kind], shape) for name, (kind, shape) in outputs.items()], made,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    onnx.checker.check_model(model)
    return model


def _weight(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if "int" in dtype:
        return rng.integers(-100 if dtype == "int8" else 0, 100, shape).astype(dtype)
    return (rng.standard_normal(shape) / max(shape[0], 1) ** 0.5).astype(numpy_dtype(dtype))


def _scalar(number: float, dtype: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(number, numpy_dtype(dtype)))


def softmax(dtype: str, rows: int = 999, columns: int = 1000) -> onnx.ModelProto:
    shape = (rows, columns)
    return model_of([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": shape}, shape, dtype)


def softmax_sums(dtype: str, batch: int = 137, rows: int = 37, columns: int = 53) -> onnx.ModelProto:
    """Softmax along one axis, then sums along another."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], axis=-1),
        helper.make_node("ReduceSum", ["s", "axes"], ["y"], keepdims=0),
    ]
    model = model_of(
        nodes[:1], {"x": (batch, rows, columns)}, (), dtype, results={"s": (dtype, (batch, rows, columns))}
    )
    graph = model.graph
    graph.node.append(nodes[1])
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    graph.ClearField("output")
    graph.output.append(helper.make_tensor_value_info("y", KINDS[dtype], (batch, columns)))
    onnx.checker.check_model(model)
    return model


def layer_norm(dtype: str, rows: int = 513, columns: int = 768) -> onnx.ModelProto:
    shape = (rows, columns)
    nodes = [
        helper.make_node("Add", ["x", "r"], ["s"]),
        helper.make_node("LayerNormalization", ["s", "g", "b"], ["y"], axis=-1),
    ]
    return model_of(nodes, {"x": shape, "r": shape}, shape, dtype, g=(columns,), b=(columns,))


def linear_gelu(dtype: str, rows: int = 130, width: int = 384, hidden: int = 520) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Gelu", ["s"], ["y"]),
    ]
    return model_of(nodes, {"x": (rows, width)}, (rows, hidden), dtype, w=(width, hidden), b=(hidden,))


def mlp(dtype: str, rows: int = 512, width: int = 512, hidden: int = 2048) -> onnx.ModelProto:
    """Two dependent GEMMs."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    return model_of(nodes, {"x": (rows, width)}, (rows, width), dtype, w=(width, hidden), v=(hidden, width))


def dense_norm(dtype: str, rows: int = 128, width: int = 512) -> onnx.ModelProto:
    """What follows attention in a transformer: projection, bias, residual, LayerNorm."""
    shape = (rows, width)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Add", ["s", "r"], ["t"]),
        helper.make_node("LayerNormalization", ["t", "g", "h"], ["y"], axis=-1),
    ]
    column = (width,)
    return model_of(nodes, {"x": shape, "r": shape}, shape, dtype, w=(width, width), b=column, g=column, h=column)


def decode_gemm(dtype: str) -> onnx.ModelProto:
    return linear_gelu(dtype, 1, 512, 1000)


def attention(dtype: str, heads: int = 4, length: int = 129, width: int = 64) -> onnx.ModelProto:
    shape = (2, heads, length, width)
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["c"]),
        helper.make_node("Softmax", ["c"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    nodes.insert(0, helper.make_node("Constant", [], ["scale"], value=_scalar(width**-0.5, dtype)))
    return model_of(nodes, {"q": shape, "k": shape, "v": shape}, shape, dtype)


def wide_gemm(dtype: str, m: int = 1032, k: int = 512, n: int = 2056) -> onnx.ModelProto:
    """Both operands are inputs: a large GEMM whose weights need not travel."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    return model_of(nodes, {"x": (m, k), "w": (k, n)}, (m, n), dtype)


def wide_conv(dtype: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return model_of(nodes, {"x": (2, 128, 57, 55)}, (2, 192, 29, 28), dtype, w=(192, 128, 3, 3), b=(192,))


def causal_attention(
    dtype: str, heads: int = 6, kv_heads: int = 2, queries: int = 200, keys: int = 333, width: int = 128
) -> onnx.ModelProto:
    """Query heads that share keys; each query sees the keys up to its own position, counted from the first key."""
    shape, cache = (1, heads, queries, width), (1, kv_heads, keys, width)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    return model_of([node], {"q": shape, "k": cache, "v": cache}, shape, dtype, 23)


def decode_attention(
    dtype: str, heads: int = 8, kv_heads: int = 2, keys: int = 2050, width: int = 64
) -> onnx.ModelProto:
    """One query a head against a long cache: the keys are cut into parts."""
    shape, cache = (1, heads, 1, width), (1, kv_heads, keys, width)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    return model_of([node], {"q": shape, "k": cache, "v": cache}, shape, dtype, 23)


def conv_relu(dtype: str, groups: int = 1) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], group=groups),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return model_of(nodes, {"x": (2, 32, 29, 31)}, (2, 64, 15, 16), dtype, w=(64, 32 // groups, 3, 3), b=(64,))


def depthwise(dtype: str, side: int = 3) -> onnx.ModelProto:
    """Channels last; large enough for several results a thread."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w", "b"], ["c"], pads=[side // 2] * 4, group=64),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 3, 1]),
    ]
    shape = (4, 58, 60, 64)
    return model_of(nodes, {"x": shape}, shape, dtype, w=(64, 1, side, side), b=(64,))


def transpose(dtype: str, rows: int = 517, columns: int = 333) -> onnx.ModelProto:
    """A transpose through shared memory, with tiles that are not full."""
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])
    return model_of([node], {"x": (3, rows, columns)}, (3, columns, rows), dtype)


def max_pool(dtype: str) -> onnx.ModelProto:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return model_of([node], {"x": (2, 16, 33, 35)}, (2, 16, 17, 18), dtype)


def elementwise(dtype: str, rows: int = 997, columns: int = 1003) -> onnx.ModelProto:
    """Broadcasting, odd sizes, a slice that begins at an odd element."""
    nodes = [
        helper.make_node("Constant", [], ["starts"], value_ints=[0, 1]),
        helper.make_node("Constant", [], ["ends"], value_ints=[rows, columns]),
        helper.make_node("Mul", ["x", "r"], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("Add", ["t", "b"], ["s"]),
        helper.make_node("Slice", ["s", "starts", "ends"], ["y"]),
    ]
    inputs: dict[str, tuple[int, ...]] = {"x": (rows, columns), "r": (rows, 1)}
    return model_of(nodes, inputs, (rows, columns - 1), dtype, b=(columns,))


def long_rows(dtype: str, rows: int = 3, columns: int = 200_004) -> onnx.ModelProto:
    """Few rows, so long that several blocks share each."""
    return softmax(dtype, rows, columns)


def columns_sum(dtype: str, rows: int = 4096, columns: int = 333) -> onnx.ModelProto:
    """A reduction across rows, then what it is subtracted from."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    nodes.insert(0, helper.make_node("Constant", [], ["axes"], value_ints=[0]))
    return model_of(nodes, {"x": (rows, columns)}, (rows, columns), dtype)


def long_sums(dtype: str, rows: int = 3, columns: int = 200_004) -> onnx.ModelProto:
    """Rows that are read once, so long that each is cut into parts, whose sums a second launch joins."""
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[1])
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    return model_of([axes, node], {"x": (rows, columns)}, (rows,), dtype)


def largest_places(dtype: str, rows: int = 129, columns: int = 1003) -> onnx.ModelProto:
    """Where each row is largest."""
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)
    return model_of([node], {"x": (rows, columns)}, (), dtype, results={"y": ("int64", (rows,))})


def both_softmaxes(dtype: str, rows: int = 61, columns: int = 192) -> onnx.ModelProto:
    """Rows, then columns, then the largest of all: stages of one launch, where they are joined."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], axis=1),
        helper.make_node("Softmax", ["a"], ["b"], axis=0),
        helper.make_node("ReduceMax", ["b"], ["m"], keepdims=1),
        helper.make_node("Div", ["b", "m"], ["y"]),
    ]
    return model_of(nodes, {"x": (rows, columns)}, (rows, columns), dtype)


def gated(dtype: str, rows: int = 5, width: int = 256, hidden: int = 384) -> onnx.ModelProto:
    """SiLU(x G) * (x U): two halves of one GEMM's columns meet in its epilogue."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Split", ["p"], ["g", "u"], axis=-1, num_outputs=2),
        helper.make_node("Sigmoid", ["g"], ["s"]),
        helper.make_node("Mul", ["g", "s"], ["h"]),
        helper.make_node("Mul", ["h", "u"], ["y"]),
    ]
    return model_of(nodes, {"x": (rows, width)}, (rows, hidden), dtype, w=(width, 2 * hidden))


def lstm(dtype: str, steps: int = 3, batch: int = 5, width: int = 48, hidden: int = 64) -> onnx.ModelProto:
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["a", "", "c"], hidden_size=hidden)
    flat = helper.make_node("Add", ["a", "c"], ["y"])
    w, r, b = (1, 4 * hidden, width), (1, 4 * hidden, hidden), (1, 8 * hidden)
    return model_of([node, flat], {"x": (steps, batch, width)}, (steps, 1, batch, hidden), dtype, w=w, r=r, b=b)


def running_sum(dtype: str, along: int = 1) -> onnx.ModelProto:
    axis = helper.make_node("Constant", [], ["axis"], value_int=along)
    return model_of([axis, helper.make_node("CumSum", ["x", "axis"], ["y"])], {"x": (37, 515)}, (37, 515), dtype, 14)


def largest(dtype: str, rows: int = 37, columns: int = 300) -> onnx.ModelProto:
    count = helper.make_node("Constant", [], ["k"], value_ints=[7])
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=1)
    return model_of(
        [count, node],
        {"x": (rows, columns)},
        (rows, 7),
        dtype,
        results={"y": (dtype, (rows, 7)), "i": ("int64", (rows, 7))},
    )


def scattered(dtype: str) -> onnx.ModelProto:
    """Updates at positions that are known, each of them once."""
    rows = np.random.default_rng(SEED).permutation(64)[:20].astype(np.int64).reshape(20, 1)
    index = helper.make_node("Constant", [], ["i"], value=numpy_helper.from_array(rows))
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"])
    return model_of([index, node], {"x": (64, 33), "u": (20, 33)}, (64, 33), dtype, 16)


def added_up(dtype: str) -> onnx.ModelProto:
    """Updates that meet, and add up."""
    rows = np.random.default_rng(SEED).integers(0, 64, (200, 33))
    index = helper.make_node("Constant", [], ["i"], value=numpy_helper.from_array(rows))
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], axis=0, reduction="add")
    return model_of([index, node], {"x": (64, 33), "u": (200, 33)}, (64, 33), dtype, 16)


def converted(dtype: str, rows: int = 67, columns: int = 103) -> onnx.ModelProto:
    """Through every width of integers, booleans and doubles."""
    nodes, last = [], "x"
    for kind in (TensorProto.INT32, TensorProto.INT8, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.UINT8):
        nodes += [
            helper.make_node("Abs", [last], [f"a{kind}"]),
            helper.make_node("Cast", [f"a{kind}"], [f"c{kind}"], to=kind),
        ]
        last = f"c{kind}"
    nodes += [
        helper.make_node("Cast", [last], ["whole"], to=KINDS[dtype]),
        helper.make_node("Less", ["x", "whole"], ["less"]),
        helper.make_node("Where", ["less", "x", "whole"], ["y"]),
    ]
    return model_of(nodes, {"x": (rows, columns)}, (rows, columns), dtype)


def signal(dtype: str) -> onnx.ModelProto:
    """A dilated convolution of one axis, cut off after its last whole window."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[3], strides=[2], pads=[0, 5])
    return model_of([node], {"x": (3, 20, 131)}, (3, 24, 63), dtype, w=(24, 20, 5))


def looked_up(dtype: str) -> onnx.ModelProto:
    """Rows of a table at positions that are checked on the device."""
    rows, found = (5, 7), {"y": ("int64", (5, 7, 24))}
    return model_of([helper.make_node("Gather", ["t", "x"], ["y"])], {"x": rows}, (), dtype, results=found, t=(50, 24))


def integers(dtype: str, rows: int = 130, width: int = 384, hidden: int = 520) -> onnx.ModelProto:
    node, sums = helper.make_node("MatMulInteger", ["x", "w"], ["y"]), {"y": ("int32", (rows, hidden))}
    return model_of([node], {"x": (rows, width)}, (), dtype, results=sums, w=(width, hidden))


def block_weights(
    dtype: str, rows: int = 130, depth: int = 1040, width: int = 520, codes: str = "uint4"
) -> onnx.ModelProto:
    """Floats times weights of 4 or 8 bits in blocks of 32 along the reduction, with zero points."""
    block, rng = 32, np.random.default_rng(SEED)
    blocks, kind = -(-depth // block), numpy_dtype(codes)
    most = 16 if codes == "uint4" else 256
    scales = (rng.random((blocks, width)) + 0.5) * 4 / most / depth**0.5
    constants = {
        "w": rng.integers(0, most, (depth, width)).astype(kind), "s": scales.astype(numpy_dtype(dtype)),
        "z": rng.integers(0, most, (blocks, width)).astype(kind),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=0, block_size=block),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    return model_of(nodes, {"x": (rows, depth)}, (rows, width), dtype, 21, given=constants)


def small_floats(dtype: str, rows: int = 130, depth: int = 528, width: int = 392) -> onnx.ModelProto:
    """Floats of 8 bits times such weights, with a scale for each column."""
    rng, kind = np.random.default_rng(SEED), numpy_dtype(dtype)
    constants = {
        "sx": np.array(0.02, np.float32), "zx": np.zeros((), kind), "zw": np.zeros(width, kind),
        "sw": rng.uniform(0.001, 0.01, width).astype(np.float32),
        "w": (rng.standard_normal((depth, width)) * 20).astype(kind),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["b"], axis=1),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    results = {"y": ("float32", (rows, width))}
    return model_of(nodes, {"x": (rows, depth)}, (), dtype, 21, results, constants)


def integer_conv(dtype: str) -> onnx.ModelProto:
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    sums = {"y": ("int32", (2, 48, 15, 14))}
    return model_of([node], {"x": (2, 32, 15, 14)}, (), dtype, results=sums, w=(48, 32, 3, 3))


def whole(network: Callable[[], onnx.ModelProto], dtype: str) -> onnx.ModelProto:
    """A small network of many kernels."""
    return half(network()) if dtype == "float16" else network()
