"""Quantised convolutions whose filters have a zero point each, beside those without, and ONNX Runtime: CPU time of one
thread, in turns.

    python -m benchmarks.filter_zero_points [--rounds N] [--write]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx

from benchmarks.quantised_nets import Net
from benchmarks.turns import cpu_microseconds, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.runtime import load

LAYERS = 4
CASES = ((64, 3, 56), (64, 1, 56), (256, 1, 28), (256, 3, 14))
"""Channels, size of the kernel, side of the image."""


def chain(channels: int, kernel: int, side: int, zeros: bool) -> onnx.ModelProto:
    """Convolutions and ReLUs between bytes. zeros: weights are uint8, with zero points from 60 to 199."""
    net, y = Net(), "x"
    step = (net.constant(np.float32(0.03)), net.constant(np.uint8(120)))
    for _ in range(LAYERS):
        x = net.node("DequantizeLinear", net.node("QuantizeLinear", y, *step), *step)
        low, dtype = (0, np.uint8) if zeros else (-128, np.int8)
        weights = net.random.integers(low, low + 256, (channels, channels, kernel, kernel)).astype(dtype)
        scales = (net.random.uniform(0.5, 1.5, channels) / (100 * kernel * channels**0.5)).astype(np.float32)
        offsets = net.random.integers(60, 200, channels) if zeros else np.zeros(channels)
        operands = (net.constant(weights), net.constant(scales), net.constant(offsets.astype(dtype)))
        w = net.node("DequantizeLinear", *operands, axis=0)
        bias = net.constant(net.random.normal(0, 0.1, channels).astype(np.float32))
        convolved = net.node("Conv", x, w, bias, pads=[kernel // 2] * 4)
        y = net.node("Relu", convolved)
    y = net.node("DequantizeLinear", net.node("QuantizeLinear", y, *step), *step)
    told = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, channels, side, side))
    result = onnx.helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(net.nodes, "chain", [told], [result], net.stored)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


def measure(channels: int, kernel: int, side: int, rounds: int) -> dict[str, object]:
    feeds = {"x": np.random.default_rng(0).normal(size=(1, channels, side, side)).astype(np.float32)}
    ways: dict[str, Callable[[], object]] = {}
    for name, zeros in (("without_us", False), ("zero_points_us", True)):
        model = chain(channels, kernel, side, zeros)
        module = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
        session = onnxruntime_session(model, 1)
        ways[name] = partial(module.run, feeds)
        ways[f"onnxruntime_{name}"] = partial(session.run, None, feeds)
    times = {name: round(value) for name, value in cpu_microseconds(ways, rounds).items()}
    return {"channels": channels, "kernel": kernel, "side": side, "layers": LAYERS, **times}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--write", action="store_true")
    chosen = options.parse_args()
    results = []
    for case in CASES:
        results.append(measure(*case, chosen.rounds))
        print(results[-1], flush=True)
    if chosen.write:
        write_results("filter_zero_points", results)


if __name__ == "__main__":
    main()
