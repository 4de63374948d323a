"""Layers of a mixture of experts with weights of 4 bits in blocks (QMoE), with an open number of tokens, against ONNX
Runtime.

    python -m benchmarks.experts [--rounds N] [--tokens 1 16 128]

Both take turns, with one thread; the least CPU time counts. Weights are random, experts are chosen by a router.
Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.quantised import MEBIBYTE, least_ms, relative_error
from benchmarks.turns import onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load
from tilestitch.runtime.dtypes import numpy_dtype

BLOCK = 32
HEADER = (
    "experts", "best", "width", "inner", "tokens", "ms", "ONNX Runtime, ms", "times as fast", "error",
    "artifact, MiB", "model, MiB",
)  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """Two matrices an expert, the first of which has columns for gate and linear part."""

    experts: int
    best: int
    width: int
    inner: int

    def model(self, tokens: int | str = "tokens", dtype: str = "float32") -> onnx.ModelProto:
        """x[tokens, width], a router, and QMoE."""
        kind = numpy_dtype(dtype)
        rng, stored = np.random.default_rng(0), []

        def store(name: str, array: np.ndarray) -> str:
            stored.append(numpy_helper.from_array(array, name))
            return name

        def matrices(name: str, columns: int, depth: int) -> list[str]:
            codes = rng.integers(0, 256, (self.experts, columns, depth // 2), np.uint8)
            scales = rng.uniform(0.2, 1, (self.experts, columns, depth // BLOCK)) / (5 * depth**0.5)
            bias = rng.standard_normal((self.experts, columns)) / 10
            parts = {"codes": codes, "scales": scales.astype(kind), "bias": bias.astype(kind)}
            return [store(f"{name}.{part}", array) for part, array in parts.items()]

        router = store("router", (rng.standard_normal((self.width, self.experts)) / self.width**0.5).astype(kind))
        up, down = matrices("up", 2 * self.inner, self.width), matrices("down", self.width, self.inner)
        attrs = {
            "k": self.best, "expert_weight_bits": 4, "block_size": BLOCK, "normalize_routing_weights": 1,
            "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0,
            "swiglu_limit": 7.0,
        }  # fmt: skip
        nodes = [
            helper.make_node("MatMul", ["x", router], ["logits"]),
            helper.make_node("QMoE", ["x", "logits", *up, *down], ["y"], domain="com.microsoft", **attrs),
        ]
        element = helper.np_dtype_to_tensor_dtype(kind)
        formal = [helper.make_tensor_value_info(name, element, [tokens, self.width]) for name in "xy"]
        graph = helper.make_graph(nodes, "experts", formal[:1], formal[1:], stored)
        domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=10)


LAYERS = (Layer(32, 4, 1024, 1024), Layer(8, 2, 1024, 2048), Layer(128, 8, 1024, 384), Layer(32, 4, 512, 512))


def measured(layer: Layer, counts: list[int], rounds: int) -> list[dict[str, Any]]:
    rows, proto = [], layer.model()
    with tempfile.TemporaryDirectory() as folder:
        model, artifact = Path(folder) / "experts.onnx", Path(folder) / "experts.tsm"
        onnx.save(proto, model)
        compile_model(model, num_threads=1).save(artifact)
        rival = onnxruntime_session(model, 1)
        sizes = [round(path.stat().st_size / MEBIBYTE, 2) for path in (artifact, model)]
        with load(artifact, num_threads=1) as ours:
            for tokens in counts:
                x = np.random.default_rng(tokens).standard_normal((tokens, layer.width)).astype(np.float32)
                error = relative_error(ours.run({"x": x})["y"], rival.run(None, {"x": x})[0])
                least = least_ms(
                    {"ours": partial(ours.run, {"x": x}), "onnxruntime": partial(rival.run, None, {"x": x})}, rounds
                )
                rows.append(
                    {**asdict(layer), "tokens": tokens, "ours_ms": round(least["ours"], 2),
                     "onnxruntime_ms": round(least["onnxruntime"], 2),
                     "against_onnxruntime": round(least["onnxruntime"] / least["ours"], 2), "relative_error": error,
                     "artifact_mib": sizes[0], "model_mib": sizes[1]}
                )  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16, 128, 512, 2048])
    options = parser.parse_args()
    rows = [row for layer in LAYERS for row in measured(layer, options.tokens, options.rounds)]
    print(table([list(row.values()) for row in rows], HEADER))
    write_results("experts", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
