"""Quantised models on CPUs that have AVX2 and no VNNI: weights of 7 bits are multiplied by `vpmaddubsw`, and others, of
which pairs would saturate, by `vpmaddwd`. Results are exact by both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from tilestitch.codegen.cpu.target import host_target
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.main import main
from tilestitch.compiler.driver import CompiledModel
from tilestitch.runtime import load

TARGET = "cpu:x86-64-v3"
pytestmark = pytest.mark.skipif(not host_target().has("avx2"), reason="this CPU has no AVX2")
MATMUL = "(TYPE[9, 70] x) => (int32[9, 40] y) <TYPE zx = {7}> { y = MatMulInteger(x, w, zx, zw) }"
CONV = """(TYPE[2, 6, 8, 9] x) => (int32[2, 20, 8, 9] y) <TYPE zx = {7}> {
    y = ConvInteger <pads = [1, 1, 1, 1]> (x, w, zx, zw)
}"""
QDQ = """(float[9, 70] x) => (float[9, 40] y) <float sx = {0.01}, uint8 zx = {100}> {
    q = QuantizeLinear(x, sx, zx)  d = DequantizeLinear(q, sx, zx)
    dw = DequantizeLinear <axis = 1> (w, sw, zw)  y = MatMul(d, dw)
}"""
DYNAMIC = """(float[9, 70] x) => (float[9, 40] y) {
    q, sx, zx = DynamicQuantizeLinear(x)  i = MatMulInteger(q, w, zx, zw)
    f = Cast <to = 1> (i)  s = Mul(sx, sw)  y = Mul(f, s)
}"""


def made(text: str, **constants: Any) -> onnx.ModelProto:
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 20]> g ' + text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items())
    return model


def weights(shape: tuple[int, ...], dtype: str, bits: int, zero: int) -> np.ndarray:
    """With the largest and the least ones, and those, in pairs."""
    most = 1 << (bits - 1)
    found = np.random.default_rng(bits).integers(-most, most, shape)
    found[found % 3 == 0] = -most
    return (found + zero).astype(dtype)


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def ran(compiled: CompiledModel, x: np.ndarray) -> np.ndarray:
    with load(compiled.to_bytes()) as module:
        return module.run({"x": x})["y"]


def instructions(compiled: CompiledModel) -> set[str]:
    return {each for kernel in compiled.explain()["kernels"] for each in kernel["instructions"]}


@pytest.mark.parametrize(("bits", "instruction"), [(7, "vpmaddubsw"), (8, "vpmaddwd")])
@pytest.mark.parametrize(
    ("left", "dtype", "zero"), [("uint8", "int8", 0), ("int8", "int8", 0), ("uint8", "uint8", 128)]
)
@pytest.mark.parametrize(("text", "shape"), [(MATMUL, (70, 40)), (CONV, (20, 6, 3, 3))], ids=["matmul", "conv"])
def test_integers_are_exact(
    text: str, shape: tuple[int, ...], left: str, dtype: str, zero: int, bits: int, instruction: str
) -> None:
    w = weights(shape, dtype, bits, zero)
    model = made(text.replace("TYPE", left), w=w, zw=np.asarray(zero, dtype))
    compiled = compile_model(model, target=TARGET)
    assert instructions(compiled) == {instruction}
    x, info = np.random.default_rng(0).choice([0, 255], (9, 70) if text == MATMUL else (2, 6, 8, 9)), np.iinfo(left)
    x = (x + info.min).astype(left)
    w = w.astype(np.int64) - zero
    if text == MATMUL:
        np.testing.assert_array_equal(ran(compiled, x), (x.astype(np.int64) - 7) @ w)
        return
    padded = np.pad(x.astype(np.int64) - 7, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_array_equal(ran(compiled, x), np.einsum("bchwij,ocij->bohw", windows, w))


@pytest.mark.parametrize("text", [QDQ, DYNAMIC], ids=["qdq", "dynamic"])
def test_zero_points_of_columns(text: str) -> None:
    """What is left of uint8 weights with a zero point each is of 7 bits."""
    zeros = (np.arange(40) * 3 + 64).astype(np.uint8)
    w = (np.random.default_rng(0).integers(-64, 65, (70, 40)) + zeros).astype(np.uint8)
    model = made(text, w=w, zw=zeros, sw=np.full(40, 0.02, np.float32))
    compiled = compile_model(model, target=TARGET)
    assert instructions(compiled) == {"vpmaddubsw"}
    x = (np.random.default_rng(1).standard_normal((9, 70)) * 2).astype(np.float32)
    np.testing.assert_allclose(ran(compiled, x), expected(model, x), rtol=1e-5, atol=1e-4)


def test_explain_says_which_and_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w = weights((70, 40), "int8", 7, 0)
    w[4, 5], w[5, 5] = 100, 31
    told = {}
    for name, each in (("large", w), ("small", w // 2)):
        compiled = compile_model(made(MATMUL.replace("TYPE", "uint8"), w=each, zw=np.int8(0)), target=TARGET)
        compiled.save(tmp_path / f"{name}.tsm")
        (kernel,) = [kernel for kernel in compiled.explain()["kernels"] if kernel["instructions"]]
        main(["explain", str(tmp_path / f"{name}.tsm"), "--node", kernel["multiplies"][0]["node"]])
        told[name] = kernel, capsys.readouterr().out
    kernel, text = told["large"]
    assert kernel["instructions"] == ["vpmaddwd"] and kernel["multiplies"][0]["largest_pair"] == 131
    assert "vpmaddubsw would saturate: two weights of one sign sum to 131, not to 128" in text
    kernel, text = told["small"]
    assert kernel["instructions"] == ["vpmaddubsw"] and "largest_pair" not in kernel["multiplies"][0]
    assert "by vpmaddubsw" in text and "saturate" not in text
