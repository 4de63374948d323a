"""What a call costs: tiny models against ONNX Runtime, where little but the call itself takes time.

    python -m benchmarks.calls [--threads N ...] [--rounds N]

All take turns, 100 calls at a time; the least and the median of many rounds count. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.turns import microseconds, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

HEADER = ("model", "threads", "run us", "m(x) us", "run with out us", "onnxruntime us")
CALLS = 100


def _model(nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], output: list[int], weights: Any = ()) -> Any:
    def info(name: str, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes, "tiny", [info(*item) for item in inputs.items()], [info("y", output)], list(weights)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def addition() -> onnx.ModelProto:
    """One Add of 16 numbers."""
    return _model([helper.make_node("Add", ["a", "b"], ["y"])], {"a": [1, 16], "b": [1, 16]}, [1, 16])


def perceptron(*widths: int) -> onnx.ModelProto:
    """Layers of these widths with ReLU between them, one row of input."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i, (k, n) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        matrix = rng.standard_normal((k, n)).astype(np.float32) / np.sqrt(k, dtype=np.float32)
        weights += [numpy_helper.from_array(matrix, f"w{i}"), numpy_helper.from_array(matrix[0], f"b{i}")]
        nodes.append(helper.make_node("Gemm", [x, f"w{i}", f"b{i}"], ["y" if last else f"h{i}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{i}"], [f"r{i}"]))
        x = f"r{i}"
    return _model(nodes, {"x": [1, widths[0]]}, [1, widths[-1]], weights)


def gru_step(hidden: int, width: int) -> onnx.ModelProto:
    """One step of a GRU: the input and the state before give the state after."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 3 * hidden, width), "r": (1, 3 * hidden, hidden), "b": (1, 6 * hidden)}
    weights = [numpy_helper.from_array(rng.uniform(-0.1, 0.1, s).astype(np.float32), n) for n, s in shapes.items()]
    node = helper.make_node("GRU", ["x", "w", "r", "b", "", "h"], ["", "y"], hidden_size=hidden)
    return _model([node], {"x": [1, 1, width], "h": [1, 1, hidden]}, [1, 1, hidden], weights)


def many_inputs(count: int) -> onnx.ModelProto:
    """Features of a recommendation model put together, and one logistic unit."""
    names = [f"x{i}" for i in range(count)]
    column = np.random.default_rng(0).uniform(-0.1, 0.1, (16 * count, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Concat", names, ["c"], axis=1), helper.make_node("MatMul", ["c", "w"], ["m"]),
        helper.make_node("Sigmoid", ["m"], ["y"]),
    ]  # fmt: skip
    return _model(nodes, {name: [1, 16] for name in names}, [1, 1], [numpy_helper.from_array(column, "w")])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "add_16": addition,
    "mlp_16_64_64_10": lambda: perceptron(16, 64, 64, 10),
    "gru_step_32_64": lambda: gru_step(64, 32),
    "inputs_27x16": lambda: many_inputs(27),
    "mlp_256_512_512_10": lambda: perceptron(256, 512, 512, 10),
}


def measure(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """One row: compile, compare the results, and call by turns."""
    proto = MODELS[name]()
    model = load(compile_model(proto, "cpu", num_threads=threads).to_bytes(), num_threads=threads)
    rng = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.input}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    session = onnxruntime_session(proto, threads)
    out = model.run(inputs)
    np.testing.assert_allclose(out["y"], session.run(["y"], inputs)[0], rtol=1e-4, atol=1e-5)
    arrays = tuple(inputs.values())
    ways = {
        "run": lambda: model.run(inputs),
        "call": lambda: model(*arrays),
        "run_out": lambda: model.run(inputs, out),
        "onnxruntime": lambda: session.run(["y"], inputs),
    }
    return {"model": name, "threads": threads, "latency": microseconds(ways, rounds, CALLS)}


def main() -> int:
    """Prints a table of the least times and writes a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description="Measure what a call costs.")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=200, metavar="N")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    options = parser.parse_args()
    results = [measure(name, threads, options.rounds) for name in MODELS for threads in options.threads]
    least = [[f"{times['least_us']:.1f}" for times in result["latency"].values()] for result in results]
    print(table([(r["model"], r["threads"], *row) for r, row in zip(results, least)], HEADER))
    print(f"written to {write_results('calls', results, options.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
