"""Favoured sizes and all others of a model multiply by the same weights, which an artifact has once."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load

K, N = 384, 2080


def perceptron(dtype: str, rows: str = "n") -> tuple[ModelProto, np.ndarray]:
    kind = {"float32": "float", "float16": "float16"}[dtype]
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({kind}[{rows}, {K}] x) => ({kind}[{rows}, {N}] y) {{ product = MatMul(x, w)  y = Relu(product) }}""")
    weights = np.random.default_rng(0).standard_normal((K, N)).astype(dtype) / np.array(K, dtype) ** 0.5
    model.graph.initializer.append(numpy_helper.from_array(weights.astype(dtype), "w"))
    return model, weights.astype(np.float64)


def stored_bytes(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        return sum(info.file_size for info in archive.infolist() if info.filename.endswith(".safetensors"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "options",
    [{"favour": [{"n": 1}]}, {"favour": [{"n": 1}, {"n": 64}]}, {"shapes": [{"x": (50, K)}, {"x": (1, K)}]}],
    ids=["one_row", "two_sizes", "shapes"],
)
def test_weights_are_stored_once_for_all_sizes(dtype: str, options: dict[str, Any], tmp_path: Path) -> None:
    model, weights = perceptron(dtype)
    compile_model(model, cache=False, **options).save(tmp_path / "m.tsm")
    assert stored_bytes(tmp_path / "m.tsm") < 1.3 * K * N * np.dtype(dtype).itemsize
    loaded = load(tmp_path / "m.tsm")
    for n in (1, 50, *(() if "shapes" in options else (2, 64))):
        x = np.random.default_rng(n).standard_normal((n, K)).astype(dtype)
        tolerance = 1e-5 if dtype == "float32" else 4e-3
        expected = np.maximum(x.astype(np.float64) @ weights, 0)
        np.testing.assert_allclose(loaded.run({"x": x})["y"], expected, rtol=tolerance, atol=tolerance)


def test_a_plan_with_shared_panels_is_replayed_as_it_is(tmp_path: Path) -> None:
    model, _ = perceptron("float32")
    first = compile_model(model, cache=False, favour=[{"n": 1}])
    first.save(tmp_path / "a.tsm")
    compile_model(model, cache=False, plan=tmp_path / "a.tsm").save(tmp_path / "b.tsm")
    assert stored_bytes(tmp_path / "b.tsm") == stored_bytes(tmp_path / "a.tsm")
