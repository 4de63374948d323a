"""Favoured sizes and all others of a model multiply by the same weights, which an artifact has once."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tilestitch.codegen.cpu.target import host_target
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


def integers(rows: str = "n") -> tuple[ModelProto, np.ndarray]:
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g (uint8[{rows}, {K}] x) => (int32[{rows}, {3 * N}] y) {{ y = MatMulInteger(x, w) }}""")
    weights = np.random.default_rng(0).integers(-128, 128, (K, 3 * N)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model, weights


@pytest.mark.parametrize("sizes", [[1], [1, 64], [5]])
def test_bytes_that_instructions_take_in_groups_are_stored_once(sizes: list[int], tmp_path: Path) -> None:
    model, weights = integers()
    compiled = compile_model(model, "cpu:x86-64-v4,+avx512vnni", cache=False, favour=[{"n": n} for n in sizes])
    compiled.save(tmp_path / "m.tsm")
    assert stored_bytes(tmp_path / "m.tsm") < 1.3 * weights.nbytes
    if host_target().dot != "vpdpbusd":
        return
    loaded = load(tmp_path / "m.tsm")
    for n in (1, 2, 5, 64, 67):
        x = np.random.default_rng(n).integers(0, 256, (n, K)).astype(np.uint8)
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], x.astype(np.int32) @ weights.astype(np.int32))


def test_bfloat16_that_instructions_take_in_pairs_is_stored_once(tmp_path: Path) -> None:
    model, _ = perceptron("float32")
    target = "cpu:x86-64-v4,+avx512vnni,+avx512bf16"
    compile_model(model, target, cache=False, favour=[{"n": 1}], precision="bf16").save(tmp_path / "m.tsm")
    assert stored_bytes(tmp_path / "m.tsm") < 1.3 * K * N * 2


@pytest.mark.parametrize(("bits", "accuracy", "zeros"), [(8, 0, False), (8, 4, True), (4, 4, False), (4, 4, True)])
@pytest.mark.parametrize("sizes", [[1], [1, 7]])
def test_blocks_are_stored_once(bits: int, accuracy: int, zeros: bool, sizes: list[int], tmp_path: Path) -> None:
    depth, width, block, rng = 1088, N, 32, np.random.default_rng(0)
    blocks = depth // block
    text = ", ".join(["x", "w", "s"] + ["z"] * zeros)
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[n, {depth}] x) => (float[n, {width}] y) {{
            y = com.microsoft.MatMulNBits <K = {depth}, N = {width}, bits = {bits}, block_size = {block},
                                           accuracy_level = {accuracy}> ({text}) }}""")
    packed = rng.integers(0, 256, (width, blocks, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (width, blocks)).astype(np.float32)
    points = rng.integers(0, 256, (width, -(-blocks * bits // 8))).astype(np.uint8)
    stored = {"w": packed, "s": scales, "z": points}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in stored.items() if k != "z" or zeros)
    favour = [{"n": n} for n in sizes]
    compile_model(model, "cpu:x86-64-v4,+avx512vnni", cache=False, favour=favour).save(tmp_path / "m.tsm")
    assert stored_bytes(tmp_path / "m.tsm") < 1.3 * (packed.nbytes + scales.nbytes)
    if host_target().dot != "vpdpbusd":
        return
    compile_model(model, "cpu:x86-64-v4,+avx512vnni", cache=False).save(tmp_path / "apart.tsm")
    loaded, apart = load(tmp_path / "m.tsm"), load(tmp_path / "apart.tsm")
    for n in (1, 2, 7, 13):
        x = {"x": rng.standard_normal((n, depth)).astype(np.float32)}
        result, expected = loaded.run(x)["y"], apart.run(x)["y"]
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_a_plan_with_shared_panels_is_replayed_as_it_is(tmp_path: Path) -> None:
    model, _ = perceptron("float32")
    first = compile_model(model, cache=False, favour=[{"n": 1}])
    first.save(tmp_path / "a.tsm")
    compile_model(model, cache=False, plan=tmp_path / "a.tsm").save(tmp_path / "b.tsm")
    assert stored_bytes(tmp_path / "b.tsm") == stored_bytes(tmp_path / "a.tsm")
