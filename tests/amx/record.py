"""Writes models compiled for CPUs with AMX (and others) with inputs and results: `python -m tests.amx.record FOLDER`.

What is in the folder is run by `replay.py` on such a machine, or on one that emulates it: see docs/cpu_kernels.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = os.environ["ORT_TELEMETRY_DISABLED"] = "1"

import numpy as np
import onnx
import onnxruntime

from tests.amx import built, cpu_with_tiles, emulated
from tests.codegen.test_matrix_tile_convs import network
from tests.codegen.test_matrix_tiles import recurrence, two_layers
from tests.codegen.test_tile_attention import attention_of_any_length
from tests.compiler.quantised_models import Sketch
from tests.models import random_inputs
from tests.networks import bert, vit
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.cpu import features

Feeds = dict[str, np.ndarray]
TILES = "tiles"
TARGETS = {
    TILES: "", "sapphirerapids": "cpu:sapphirerapids", "no_tiles": "cpu:sapphirerapids,-amx-tile",
    "cooperlake": "cpu:cooperlake", "alderlake": "cpu:alderlake", "icelake": "cpu:icelake-server",
}  # fmt: skip
"""`tiles`: with AMX and no feature that this machine lacks but those, so that `unit.c` can run it here, too."""
TOLERANCES = {"bf16": 0.02, "fp16": 0.005, "fp32": 0.03}
"""Of the largest magnitude; fp32: quantised models, whose results are whole steps."""


@dataclass(frozen=True)
class Model:
    """A model, several feeds for it, and the ranges of its open dimensions."""

    proto: onnx.ModelProto
    feeds: Sequence[Feeds]
    dims: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    precisions: tuple[str, ...] = ("bf16", "fp16")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def models() -> dict[str, Model]:
    attention = [{name: normal(2, n, 64) for name in "qkv"} for n in (1, 33, 97)]
    images = [{"x": normal(1, 64, *size)} for size in ((4, 4), (7, 17), (33, 31))]
    encoder, classifier = bert(batch=2, length=33, hidden=128, heads=2), vit()
    return {
        "two_layers": Model(two_layers(), [{"x": normal(n, 96)} for n in (1, 16, 33, 300)], {"rows": (1, 300)}),
        "attention": Model(attention_of_any_length(), attention, {"n": (1, 600)}),
        "recurrence": Model(recurrence(20, 64), [{"x": normal(3, 20, 64)}]),
        "images": Model(network("15, 18"), [{"x": normal(1, 64, 15, 18)}]),
        "images_open": Model(network("height, width"), images, {"height": (4, 40), "width": (4, 40)}),
        "bert": Model(encoder, [random_inputs(encoder, 1)]),
        "vit": Model(classifier, [random_inputs(classifier, 1)]),
        "quantised_mlp": Model(quantised_mlp(), [{"x": normal(70, 200)}], precisions=("fp32",)),
        "quantised_convs": Model(quantised_convs(), [{"x": normal(1, 64, 19, 18)}], precisions=("fp32",)),
    }


def quantised_mlp() -> onnx.ModelProto:
    sketch = Sketch(1)
    x = sketch.there_and_back("x", 0.02, 128, "uint8")
    for shape in ((200, 256), (256, 96)):
        h = sketch.node("Relu", sketch.node("MatMul", x, sketch.weights(shape, "int8", 0, 1)))
        x = sketch.there_and_back(h, 0.3, 3, "uint8")
    return onnx.ModelProto.FromString(sketch.model({"x": ("float32", (70, 200))}, x))


def quantised_convs() -> onnx.ModelProto:
    sketch = Sketch(2)
    x = sketch.there_and_back("x", 0.02, 128, "uint8")
    for cin, cout, side in ((64, 64, 3), (64, 96, 1), (96, 64, 3)):
        weights = sketch.weights((cout, cin, side, side), "int8", 0, 0)
        h = sketch.node("Conv", x, weights, kernel_shape=[side] * 2, pads=[side // 2] * 4)
        x = sketch.there_and_back(sketch.node("Relu", h), 0.5, 3, "uint8")
    return onnx.ModelProto.FromString(sketch.model({"x": ("float32", (1, 64, 19, 18))}, x))


def record(folder: Path, model: Model, name: str, target: str, precision: str, unit: Any = None) -> dict[str, Any]:
    """Writes one artifact and its feeds; gives what `replay.py` has to know."""
    text = TARGETS[target] or str(cpu_with_tiles())
    compiled = compile_model(model.proto, text, precision=precision, num_threads=1, dims=model.dims)
    case = f"{name}-{target}-{precision}"
    compiled.save(folder / f"{case}.tsm")
    for number, feeds in enumerate(model.feeds):
        arrays = {f"in_{key}": value for key, value in feeds.items()}
        arrays |= {f"expected_{i}": value for i, value in enumerate(unoptimised(model.proto, feeds))}
        if unit is not None and target == TILES:
            arrays |= {f"unit_{i}": value for i, value in enumerate(by_unit(compiled.to_bytes(), feeds, unit))}
        np.savez(folder / f"{case}.{number}.npz", **arrays)
    needs = [f for f in compiled.contents.target.features if f.startswith(("amx", "avx512", "avxvnni"))]
    return {"case": case, "feeds": len(model.feeds), "tolerance": TOLERANCES[precision], "features": needs}


def unoptimised(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def by_unit(artifact: bytes, feeds: Feeds, unit: Any) -> list[np.ndarray]:
    with emulated(unit), load(artifact, num_threads=1) as module:
        return [np.asarray(value) for value in module.run(feeds).values()]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    flags = features.cpu_flags() | {"amx_tile", "amx_int8", "amx_bf16"}
    features.cpu_flags, features.refused_tiles = lambda: flags, lambda: ""  # type: ignore[assignment]
    unit = built(Path(tempfile.mkdtemp()))
    cases = [
        record(folder, model, name, target, precision, unit)
        for name, model in models().items()
        for target in TARGETS
        for precision in model.precisions
        if precision != "fp16" or target == "sapphirerapids"
    ]
    (folder / "cases.json").write_text(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
