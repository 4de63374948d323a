"""Small ONNX models, one or more for each kernel family, in the data types and precisions that the family has.

Right or wrong is decided on them, so that they carry their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.networks import bert, gpt2, half, residual_block
from tilestitch.runtime.dtypes import numpy_dtype

SEED = 20261
KINDS = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32, "int64": TensorProto.INT64,
}  # fmt: skip


def _model(
    nodes: list[Any], inputs: dict[str, tuple[int, ...]], output: tuple[int, ...], dtype: str, opset: int = 20,
    results: Mapping[str, tuple[str, tuple[int, ...]]] | None = None, **weights: Any,
) -> onnx.ModelProto:  # fmt: skip
    """Inputs and weights, given by their shapes, are of `dtype`. So is the output `y`, unless there are other
    `results`, by name.
    """
    rng = np.random.default_rng(SEED)
    made = [numpy_helper.from_array(_weight(rng, dtype, shape), name) for name, shape in weights.items()]
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
    return _model([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": shape}, shape, dtype)


def layer_norm(dtype: str, rows: int = 513, columns: int = 768) -> onnx.ModelProto:
    shape = (rows, columns)
    nodes = [
        helper.make_node("Add", ["x", "r"], ["s"]),
        helper.make_node("LayerNormalization", ["s", "g", "b"], ["y"], axis=-1),
    ]
    return _model(nodes, {"x": shape, "r": shape}, shape, dtype, g=(columns,), b=(columns,))


def linear_gelu(dtype: str, rows: int = 130, width: int = 384, hidden: int = 520) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Gelu", ["s"], ["y"]),
    ]
    return _model(nodes, {"x": (rows, width)}, (rows, hidden), dtype, w=(width, hidden), b=(hidden,))


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
    return _model(nodes, {"x": shape, "r": shape}, shape, dtype, w=(width, width), b=column, g=column, h=column)


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
    return _model(nodes, {"q": shape, "k": shape, "v": shape}, shape, dtype)


def wide_gemm(dtype: str, m: int = 1032, k: int = 512, n: int = 2056) -> onnx.ModelProto:
    """Both operands are inputs: a large GEMM whose weights need not travel."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    return _model(nodes, {"x": (m, k), "w": (k, n)}, (m, n), dtype)


def wide_conv(dtype: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return _model(nodes, {"x": (2, 128, 57, 55)}, (2, 192, 29, 28), dtype, w=(192, 128, 3, 3), b=(192,))


def causal_attention(
    dtype: str, heads: int = 6, kv_heads: int = 2, queries: int = 200, keys: int = 333, width: int = 128
) -> onnx.ModelProto:
    """Query heads that share keys; each query sees the keys up to its own position, counted from the first key."""
    shape, cache = (1, heads, queries, width), (1, kv_heads, keys, width)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    return _model([node], {"q": shape, "k": cache, "v": cache}, shape, dtype, 23)


def decode_attention(
    dtype: str, heads: int = 8, kv_heads: int = 2, keys: int = 2050, width: int = 64
) -> onnx.ModelProto:
    """One query a head against a long cache: the keys are cut into parts."""
    shape, cache = (1, heads, 1, width), (1, kv_heads, keys, width)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    return _model([node], {"q": shape, "k": cache, "v": cache}, shape, dtype, 23)


def conv_relu(dtype: str, groups: int = 1) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], group=groups),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return _model(nodes, {"x": (2, 32, 29, 31)}, (2, 64, 15, 16), dtype, w=(64, 32 // groups, 3, 3), b=(64,))


def turned(dtype: str, rows: int = 517, columns: int = 333) -> onnx.ModelProto:
    """A transpose through shared memory, with tiles that are not full."""
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])
    return _model([node], {"x": (3, rows, columns)}, (3, columns, rows), dtype)


def max_pool(dtype: str) -> onnx.ModelProto:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return _model([node], {"x": (2, 16, 33, 35)}, (2, 16, 17, 18), dtype)


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
    return _model(nodes, inputs, (rows, columns - 1), dtype, b=(columns,))


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
    return _model(nodes, {"x": (rows, columns)}, (rows, columns), dtype)


def gated(dtype: str, rows: int = 5, width: int = 256, hidden: int = 384) -> onnx.ModelProto:
    """SiLU(x G) * (x U): two halves of one GEMM's columns meet in its epilogue."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Split", ["p"], ["g", "u"], axis=-1, num_outputs=2),
        helper.make_node("Sigmoid", ["g"], ["s"]),
        helper.make_node("Mul", ["g", "s"], ["h"]),
        helper.make_node("Mul", ["h", "u"], ["y"]),
    ]
    return _model(nodes, {"x": (rows, width)}, (rows, hidden), dtype, w=(width, 2 * hidden))


def lstm(dtype: str, steps: int = 3, batch: int = 5, width: int = 48, hidden: int = 64) -> onnx.ModelProto:
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["a", "", "c"], hidden_size=hidden)
    flat = helper.make_node("Add", ["a", "c"], ["y"])
    w, r, b = (1, 4 * hidden, width), (1, 4 * hidden, hidden), (1, 8 * hidden)
    return _model([node, flat], {"x": (steps, batch, width)}, (steps, 1, batch, hidden), dtype, w=w, r=r, b=b)


def running_sum(dtype: str) -> onnx.ModelProto:
    axis = helper.make_node("Constant", [], ["axis"], value_int=1)
    return _model([axis, helper.make_node("CumSum", ["x", "axis"], ["y"])], {"x": (37, 515)}, (37, 515), dtype, 14)


def largest(dtype: str) -> onnx.ModelProto:
    count = helper.make_node("Constant", [], ["k"], value_ints=[7])
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=1)
    return _model(
        [count, node], {"x": (37, 300)}, (37, 7), dtype, results={"y": (dtype, (37, 7)), "i": ("int64", (37, 7))}
    )


def scattered(dtype: str) -> onnx.ModelProto:
    """Updates at positions that are known, each of them once."""
    rows = np.random.default_rng(SEED).permutation(64)[:20].astype(np.int64).reshape(20, 1)
    index = helper.make_node("Constant", [], ["i"], value=numpy_helper.from_array(rows))
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"])
    return _model([index, node], {"x": (64, 33), "u": (20, 33)}, (64, 33), dtype, 16)


def looked_up(dtype: str) -> onnx.ModelProto:
    """Rows of a table at positions that are checked on the device."""
    rows, found = (5, 7), {"y": ("int64", (5, 7, 24))}
    return _model([helper.make_node("Gather", ["t", "x"], ["y"])], {"x": rows}, (), dtype, results=found, t=(50, 24))


def integers(dtype: str, rows: int = 130, width: int = 384, hidden: int = 520) -> onnx.ModelProto:
    node, sums = helper.make_node("MatMulInteger", ["x", "w"], ["y"]), {"y": ("int32", (rows, hidden))}
    return _model([node], {"x": (rows, width)}, (), dtype, results=sums, w=(width, hidden))


def integer_conv(dtype: str) -> onnx.ModelProto:
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    sums = {"y": ("int32", (2, 48, 15, 14))}
    return _model([node], {"x": (2, 32, 15, 14)}, (), dtype, results=sums, w=(48, 32, 3, 3))


def whole(network: Callable[[], onnx.ModelProto], dtype: str) -> onnx.ModelProto:
    """A small network of many kernels."""
    return half(network()) if dtype == "float16" else network()


@dataclass(frozen=True)
class Variant:
    """The data type of a case's tensors, and the precision that it is compiled with."""

    dtype: str
    precision: str = "fp32"


VARIANTS = {
    "float32": Variant("float32"),
    "float16": Variant("float16"),
    "bfloat16": Variant("bfloat16"),
    "tf32": Variant("float32", "tf32"),
    "int8": Variant("int8"),
    "uint8": Variant("uint8"),
    "int64": Variant("int64"),
}
FLOATS = ("float32", "float16", "bfloat16")
GEMMS = (*FLOATS, "tf32")
TWO = ("float32", "float16")


@dataclass(frozen=True)
class Family:
    """A case in its variants. smoke: the variants that are run first, with what the emulated device made of them."""

    make: Callable[[str], onnx.ModelProto]
    variants: tuple[str, ...]
    smoke: tuple[str, ...] = ()


CASES = {
    "elementwise": Family(elementwise, FLOATS),
    "elementwise_small": Family(partial(elementwise, rows=67, columns=103), ("float32",), ("float32",)),
    "turned": Family(turned, TWO),
    "turned_small": Family(partial(turned, rows=65, columns=37), ("float16",), ("float16",)),
    "softmax": Family(softmax, FLOATS),
    "softmax_small": Family(partial(softmax, rows=9, columns=1000), FLOATS, ("float32", "bfloat16")),
    "long_rows": Family(long_rows, FLOATS),
    "long_rows_small": Family(partial(long_rows, rows=2, columns=66_004), ("float32",), ("float32",)),
    "columns_sum": Family(columns_sum, TWO),
    "columns_sum_small": Family(partial(columns_sum, rows=70, columns=33), ("float32",), ("float32",)),
    "layer_norm": Family(layer_norm, FLOATS),
    "decode_gemm": Family(decode_gemm, FLOATS, ("float16",)),
    "linear_gelu": Family(linear_gelu, GEMMS),
    "gemm_small": Family(partial(wide_gemm, m=136, k=72, n=264), GEMMS, ("float32", "tf32", "float16", "bfloat16")),
    "wide_gemm": Family(wide_gemm, GEMMS),
    "tall_gemm": Family(partial(wide_gemm, m=128, k=16384, n=136), GEMMS),
    "large_gemm": Family(partial(wide_gemm, m=4100, k=1032, n=4104), GEMMS),
    "cluster_gemm": Family(partial(wide_gemm, m=2048, k=64, n=1024), ("float16", "bfloat16"), ("float16",)),
    "wide_cluster_gemm": Family(partial(wide_gemm, m=2048, k=64, n=2048), ("float16",), ("float16",)),
    "dense_norm": Family(dense_norm, FLOATS),
    "dense_norm_small": Family(partial(dense_norm, rows=40, width=128), ("float16",), ("float16",)),
    "dense_norm_apart": Family(dense_norm, TWO),
    "dense_norm_large": Family(partial(dense_norm, rows=4096), TWO),
    "dense_norm_large_apart": Family(partial(dense_norm, rows=4096), TWO),
    "gated": Family(gated, GEMMS, ("float16",)),
    "gated_large": Family(partial(gated, rows=300), GEMMS),
    "lstm": Family(lstm, ("float32",), ("float32",)),
    "attention": Family(attention, GEMMS),
    "attention_small": Family(partial(attention, heads=1, length=33), GEMMS, ("float32", "float16")),
    "causal_attention": Family(causal_attention, GEMMS),
    "decode_attention": Family(decode_attention, FLOATS),
    "decode_attention_small": Family(partial(decode_attention, keys=1100), ("float16",), ("float16",)),
    "conv_relu": Family(conv_relu, GEMMS, ("float32",)),
    "wide_conv": Family(wide_conv, GEMMS),
    "grouped_conv": Family(partial(conv_relu, groups=4), TWO, ("float32",)),
    "max_pool": Family(max_pool, TWO, ("float32",)),
    "running_sum": Family(running_sum, ("float32",), ("float32",)),
    "largest": Family(largest, ("float32",), ("float32",)),
    "scattered": Family(scattered, ("float32",), ("float32",)),
    "looked_up": Family(looked_up, ("int64",), ("int64",)),
    "integers": Family(integers, ("int8", "uint8")),
    "integers_small": Family(partial(integers, rows=40, width=96, hidden=72), ("int8", "uint8"), ("int8",)),
    "integers_wide": Family(partial(integers, rows=512, width=256, hidden=512), ("int8",)),
    "integers_few": Family(partial(integers, rows=2), ("int8",)),
    "integer_conv": Family(integer_conv, ("uint8",), ("uint8",)),
    "bert_2_layers": Family(partial(whole, bert), TWO, ("float32", "float16")),
    "gpt2_2_layers": Family(partial(whole, gpt2), TWO, ("float32",)),
    "residual_block": Family(partial(whole, residual_block), TWO, ("float32",)),
}
