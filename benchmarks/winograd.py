"""Convolutions of 3 x 3 taps by Winograd's algorithm, as they are written, and in ONNX Runtime: CPU time, one thread.

    taskset -c 1 python -m benchmarks.winograd [--precision bf16] [--rounds N] [-o OUT.json]

Each shape is a model of its own, channels first: as many such convolutions one after the other as a network has, each
with filters of its own and an activation. A single one finds its filters in a cache, where no model has them. Times
are of one of them. All run by turns; the least eighth of the times counts. With a precision, both forms have it,
and the better one of float32 runs besides.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from benchmarks.turns import RESULTS, cpu_microseconds, onnxruntime_session, write_results
from tests.models import Builder
from tilestitch.compiler import compile_model
from tilestitch.runtime import load

SHAPES = (
    (64, 56, "Relu"), (128, 28, "Relu"), (256, 14, "Relu"), (512, 7, "Relu"), (256, 32, "Relu"), (16, 112, "Relu"),
    (8, 64, "Relu"), (64, 57, "Relu"), (64, 32, "Gelu"), (128, 32, "Gelu"),
)  # fmt: skip
"""Channels in and out, pixels along a side, activation."""
FILTERS_BYTES, DEPTHS = 64 << 20, (4, 16)
"""Of all filters of a model, as they are written, and how many convolutions it has at least and at most."""


def depth_of(channels: int) -> int:
    least, most = DEPTHS
    return max(least, min(most, -(-FILTERS_BYTES // (9 * channels * channels * 4))))


def model_of(channels: int, side: int, activation: str) -> ModelProto:
    b, shape, last = Builder(0), (1, channels, side, side), "x"
    for number in reversed(range(depth_of(channels))):
        y = b.op("Conv", last, b.weight(channels, channels, 3, 3), b.weight(channels), pads=[1] * 4)
        last = f"a{number}" if number else "y"
        b.nodes.append(helper.make_node(activation, [y], [last], name=f"/activation_{number}"))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    return b.model("convolutions", [given], [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], 20)


def measure(channels: int, side: int, activation: str, rounds: int, precision: str = "fp32") -> dict[str, Any]:
    model = model_of(channels, side, activation)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, channels, side, side)).astype(np.float32)}
    forms = {"winograd": (True, precision), "as_written": (False, precision)}
    if precision != "fp32":
        forms["float32"] = (True, "fp32")
    modules = {
        name: load(compile_model(model, num_threads=1, winograd=form, precision=of).to_bytes(), num_threads=1)
        for name, (form, of) in forms.items()
    }
    session = onnxruntime_session(model, 1)
    ways: dict[str, Callable[[], Any]] = {name: partial(_result, module, feeds) for name, module in modules.items()}
    ways["onnxruntime"] = lambda: session.run(None, feeds)[0]
    reference = ways["onnxruntime"]()
    depth = depth_of(channels)
    us = {name: each / depth for name, each in cpu_microseconds(ways, rounds).items()}
    errors = {name: float(np.abs(ways[name]() - reference).max() / np.abs(reference).max()) for name in modules}
    return {
        "precision": precision, "channels": channels, "side": side, "activation": activation, "convolutions": depth,
        **{f"{name}_us": round(each, 1) for name, each in us.items()},
        "as_written/winograd": round(us["as_written"] / us["winograd"], 2),
        "onnxruntime/winograd": round(us["onnxruntime"] / us["winograd"], 2),
        **{f"error_{name}": error for name, error in errors.items()},
    }  # fmt: skip


def _result(module: Any, feeds: dict[str, np.ndarray]) -> Any:
    return module.run(feeds)["y"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.winograd", description=__doc__)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--rounds", type=int, default=30, metavar="N")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "winograd.json", metavar="OUT.json")
    options = parser.parse_args(arguments)
    results = []
    for shape in SHAPES:
        results.append(measure(*shape, options.rounds, options.precision))
        print(results[-1], flush=True)
    write_results("winograd", results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
