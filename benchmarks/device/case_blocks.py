"""Small ONNX models of several kernels that belong together: turns of a state, experts, quantised layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.device.case_models import SEED, model_of
from benchmarks.experts import Layer
from tilestitch.runtime.dtypes import numpy_dtype


def linear_attention(dtype: str, tokens: int = 6, heads: int = 4, size: int = 64) -> onnx.ModelProto:
    """The gated delta rule, a state that every token decays, corrects and reads: turns as launches of one graph."""
    width = heads * size
    nodes = [
        helper.make_node("Abs", ["d"], ["most"]),
        helper.make_node("Neg", ["most"], ["decay"]),
        helper.make_node("Sigmoid", ["r"], ["rate"]),
        helper.make_node("LinearAttention", ["q", "k", "v", "past", "decay", "rate"], ["y", "state"],
                         q_num_heads=heads, kv_num_heads=heads, update_rule="gated_delta"),
    ]  # fmt: skip
    wide, narrow, state = (1, tokens, width), (1, tokens, heads), (1, heads, size, size)
    inputs: dict[str, tuple[int, ...]] = {"q": wide, "k": wide, "v": wide, "past": state, "d": narrow, "r": narrow}
    return model_of(nodes, inputs, (), dtype, 27, {"y": (dtype, wide), "state": (dtype, state)})


def turns(dtype: str, steps: int = 7, rows: int = 24, width: int = 72) -> onnx.ModelProto:
    """A loop with a known number of turns: each uses its number, a product by a constant, and the state before."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(numpy_dtype(dtype)))
    state = (rows, width)

    def info(name: str, elements: int, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, elements, shape)

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Cast", ["number"], ["scale"], to=kind),
            helper.make_node("MatMul", ["s", "w"], ["p"]),
            helper.make_node("Mul", ["x", "scale"], ["a"]),
            helper.make_node("Add", ["p", "a"], ["b"]),
            helper.make_node("Tanh", ["b"], ["n"]),
            helper.make_node("Softmax", ["n"], ["o"], axis=-1),
        ],
        "turn",
        [info("number", onnx.TensorProto.INT64, ()), info("going", onnx.TensorProto.BOOL, ()), info("s", kind, state)],
        [info("on", onnx.TensorProto.BOOL, ()), info("n", kind, state), info("o", kind, state)],
    )
    known = {"count": np.array(steps, np.int64), "begin": np.array(True)}
    node = helper.make_node("Loop", ["count", "begin", "x"], ["last", "y"], body=body)
    results = {"last": (dtype, state), "y": (dtype, (steps, *state))}
    return model_of([node], {"x": state}, (), dtype, results=results, given=known, w=(width, width))


def outer_products(dtype: str, batch: int = 7, rows: int = 130, columns: int = 260) -> onnx.ModelProto:
    """Columns times rows, which no GEMM computes, added to matrices."""
    nodes = [helper.make_node("MatMul", ["x", "z"], ["p"]), helper.make_node("Add", ["p", "s"], ["y"])]
    shape = (batch, rows, columns)
    return model_of(nodes, {"x": (batch, rows, 1), "z": (batch, 1, columns), "s": shape}, shape, dtype)


def computed_matrices(dtype: str, heads: int = 6, depth: int = 136, width: int = 200) -> onnx.ModelProto:
    """A row times a matrix that is computed as it is read."""
    nodes = [
        helper.make_node("Sigmoid", ["d"], ["g"]),
        helper.make_node("Mul", ["s", "g"], ["m"]),
        helper.make_node("MatMul", ["x", "m"], ["y"]),
    ]
    inputs: dict[str, tuple[int, ...]] = {"x": (heads, 1, depth), "s": (heads, depth, width), "d": (heads, 1, 1)}
    return model_of(nodes, inputs, (heads, 1, width), dtype)


def experts(dtype: str, rows: int = 40, width: int = 128, hidden: int = 264, count: int = 4) -> onnx.ModelProto:
    """Every expert computes every row, weighted by a router: GEMMs that are grouped."""
    nodes = [helper.make_node("MatMul", ["x", "router"], ["l"]), helper.make_node("Softmax", ["l"], ["p"], axis=-1),
             helper.make_node("Split", ["p"], [f"p{e}" for e in range(count)], axis=-1, num_outputs=count)]  # fmt: skip
    for e in range(count):
        nodes += [
            helper.make_node("MatMul", ["x", f"up{e}"], [f"h{e}"]),
            helper.make_node("Gelu", [f"h{e}"], [f"g{e}"]),
            helper.make_node("MatMul", [f"g{e}", f"down{e}"], [f"o{e}"]),
            helper.make_node("Mul", [f"o{e}", f"p{e}"], [f"y{e}"]),
        ]
    nodes.append(helper.make_node("Sum", [f"y{e}" for e in range(count)], ["y"]))
    weights: dict[str, Any] = {"router": (width, count)}
    weights |= {f"up{e}": (width, hidden) for e in range(count)} | {f"down{e}": (hidden, width) for e in range(count)}
    return model_of(nodes, {"x": (rows, width)}, (rows, width), dtype, **weights)


def chosen_experts(dtype: str, rows: int) -> onnx.ModelProto:
    """The best three of seven experts of each row, by weights of 4 bits in blocks; some may have no row."""
    return Layer(7, 3, 160, 96).model(rows, dtype)


def quantised(dtype: str, channels: int = 32, side: int = 15) -> onnx.ModelProto:
    """Convolutions between bytes: products of integers, a depthwise one, a function of bytes, a sum of two scales."""
    rng, kind = np.random.default_rng(SEED), numpy_dtype(dtype)
    given = {
        "s": np.array(0.03, kind), "z": np.array(3, np.int8), "t": np.array(0.02, kind), "o": np.array(-5, np.int8),
        "ws": rng.uniform(0.001, 0.01, channels).astype(kind), "wz": np.zeros(channels, np.int8),
        "w": rng.integers(-100, 100, (channels, channels, 3, 3)).astype(np.int8),
        "v": rng.integers(-100, 100, (channels, 1, 3, 3)).astype(np.int8),
    }  # fmt: skip

    def around(name: str, scale: str, zero: str) -> list[onnx.NodeProto]:
        return [helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name}_q"]),
                helper.make_node("DequantizeLinear", [f"{name}_q", scale, zero], [f"{name}_d"])]  # fmt: skip

    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("DequantizeLinear", ["v", "ws", "wz"], ["vd"], axis=0),
        *around("x", "s", "z"),
        helper.make_node("Conv", ["x_d", "wd"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        *around("r", "s", "z"),
        helper.make_node("Conv", ["r_d", "vd"], ["e"], pads=[1, 1, 1, 1], group=channels),
        *around("e", "t", "o"),
        helper.make_node("Sigmoid", ["e_d"], ["g"]),
        *around("g", "t", "o"),
        helper.make_node("Add", ["g_d", "r_d"], ["y"]),
    ]
    shape = (2, channels, side, side)
    return model_of(nodes, {"x": shape}, shape, dtype, 21, given=given)
