"""Half floats on the CPU: GEMMs and convolutions in float16 and bfloat16 against float32 and ONNX Runtime.

    python -m benchmarks.halves [--cases NAME ...] [--rounds N]

One thread. All take turns, so that what one of them reads is in no one's favour in a cache. Results go to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.turns import microseconds, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.runtime import load

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
RIVALS = ("float32", "float16")
"""What ONNX Runtime has such operators for on CPUs."""

Build = Callable[[str], tuple[onnx.ModelProto, dict[str, np.ndarray]]]


def _model(node: onnx.NodeProto, x: np.ndarray, w: np.ndarray, output: list[int], constant: bool, dtype: str) -> Any:
    kind = TYPES[dtype]
    inputs = {"x": x} if constant else {"x": x, "w": w}
    graph = helper.make_graph(
        [node], "halves",
        [helper.make_tensor_value_info(name, kind, value.shape) for name, value in inputs.items()],
        [helper.make_tensor_value_info("y", kind, output)],
        [numpy_helper.from_array(w, "w")] if constant else [],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), inputs


def _random(dtype: str, *shape: int) -> np.ndarray:
    numbers = np.random.default_rng(len(shape)).standard_normal(shape)
    return (numbers / np.sqrt(shape[-1])).astype(to_numpy_dtype(dtype))


def gemm(m: int, k: int, n: int, constant: bool = True) -> Build:
    """[m, k] by [k, n]; the right matrix is a weight, or an input."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return lambda dtype: _model(node, _random(dtype, m, k), _random(dtype, k, n), [m, n], constant, dtype)


def convolution(channels: int, out: int, size: int, kernel: int) -> Build:
    """A convolution of a square image with padding."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[kernel // 2] * 4)
    return lambda dtype: _model(
        node, _random(dtype, 1, channels, size, size), _random(dtype, out, channels, kernel, kernel),
        [1, out, size, size], True, dtype,
    )  # fmt: skip


CASES: dict[str, Build] = {
    "row 1x768x3072": gemm(1, 768, 3072),
    "row 1x3072x768": gemm(1, 3072, 768),
    "row 1x4096x4096": gemm(1, 4096, 4096),
    "rows 8x1024x1024": gemm(8, 1024, 1024),
    "row by an input 1x1024x4096": gemm(1, 1024, 4096, constant=False),
    "matmul 128x768x768": gemm(128, 768, 768),
    "matmul 64x3072x768": gemm(64, 3072, 768),
    "conv 3x3 64->64 at 56": convolution(64, 64, 56, 3),
    "conv 1x1 256->512 at 28": convolution(256, 512, 28, 1),
}


def measure(name: str, rounds: int) -> dict[str, Any]:
    """One row: every data type and engine."""
    ways: dict[str, Callable[[], object]] = {}
    for dtype in TYPES:
        proto, inputs = CASES[name](dtype)
        model = load(compile_model(proto, "cpu", num_threads=1).to_bytes(), num_threads=1)
        ways[dtype] = lambda model=model, inputs=inputs: model.run(inputs)  # type: ignore[misc]
        if dtype in RIVALS:
            session = onnxruntime_session(proto, 1)
            ways[f"onnxruntime {dtype}"] = lambda session=session, inputs=inputs: session.run(None, inputs)  # type: ignore[misc]
    return {"case": name, "latency": microseconds(ways, rounds, 1)}


def main() -> int:
    """Prints a table of the least times and writes a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.halves", description="Measure half floats on the CPU.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=300, metavar="N")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    options = parser.parse_args()
    results = [measure(name, options.rounds) for name in options.cases]
    header = ("us", *results[0]["latency"])
    print(table([(r["case"], *(f"{t['least_us']:.0f}" for t in r["latency"].values())) for r in results], header))
    print(f"written to {write_results('halves', results, options.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
