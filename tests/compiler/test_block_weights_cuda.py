"""Weights in blocks stay packed on GPUs, too: results are ONNX Runtime's, of kernels that read the blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.compiler.quantised_models import unoptimised
from tests.compiler.test_block_weights import floats, model, n_bits, random
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions

TOLERANCE = {"float32": 2e-6, "float16": 3e-3, "bfloat16": 2e-2}
"""Of the largest result."""


def kernels(compiled: CompiledModel) -> list[str]:
    """Templates of those that multiply by weights in blocks."""
    graph = compiled.specialisations[0].graph
    named = {node.name for node in graph.nodes if node.op == "block_matmul"}
    parts = [part for group in compiled.plan.groups for part in group.parts or (group,)]
    schedules = [part.schedule for part in parts if named & set(part.nodes)]
    return [each.tile.template for each in schedules if isinstance(each, GemmSchedule)]


def check(
    data: bytes, x: np.ndarray, kernel: str, expected: np.ndarray | None = None,
    orders: tuple[str, ...] = ("reversed",), precision: str = "fp32",
) -> CompiledModel:  # fmt: skip
    compiled = compile_model(data, "emulator", keep_source=True, precision=precision)
    wanted = (unoptimised(data, {"x": x}) if expected is None else expected).astype(np.float64)
    for order in orders:
        with load(compiled.to_bytes(), device=EmulatorOptions(block_order=order, seed=3)) as loaded:
            actual = loaded.run({"x": x})["y"]
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(wanted))
        np.testing.assert_array_equal(actual[~finite], wanted[~finite])
        tolerance = TOLERANCE[x.dtype.name if precision == "fp32" else "float16"] * np.abs(wanted[finite]).max()
        assert np.abs(actual.astype(np.float64)[finite] - wanted[finite]).max() <= tolerance
    assert kernels(compiled) == [kernel]
    return compiled


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 128), (8, 32), (2, 16)])
def test_matmul_n_bits(bits: int, block: int, zeros: bool) -> None:
    x = floats(3, 200)
    check(n_bits(x, 70, bits, block, zeros, bias=True), x, "gemv")


@pytest.mark.parametrize(("rows", "kernel"), [(1, "gemv"), (17, "mma")])
def test_half_floats_in_several_orders(rows: int, kernel: str) -> None:
    x = floats(rows, 96, dtype=np.float16)
    check(n_bits(x, 50, zeros=True), x, kernel, orders=("in_order", "reversed", "adversarial"))


@pytest.mark.parametrize(("rows", "kernel"), [(2, "gemv"), (30, "simt")])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number(value: float, rows: int, kernel: str) -> None:
    x = floats(rows, 70)
    x[0, 3] = value
    check(n_bits(x, 20, zeros=True), x, kernel)


def test_lower_precision_is_of_the_floats_that_multiply() -> None:
    """Activations become half floats, and so do weights, tile by tile; they stay packed."""
    x = floats(20, 128)
    check(n_bits(x, 48, zeros=True), x, "mma", precision="fp16")
    check(n_bits(x, 48), x, "mma", precision="tf32")


def test_weights_that_half_floats_cannot_hold_stay_float32() -> None:
    x = floats(20, 32)
    arrays = {"w": random(1).integers(0, 256, (8, 2, 8)).astype(np.uint8), "s": np.full((8, 2), 1e5, np.float32)}
    attrs = {"K": 32, "N": 8, "bits": 4, "block_size": 16, "domain": "com.microsoft"}
    data = model([helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], **attrs)], x, 8, arrays)
    check(data, x, "gemv", precision="fp16")


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8"])
def test_dequantised_in_blocks(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    codes, points = (random(s).integers(0, 8, shape) for s, shape in ((1, (70, 21)), (3, (5, 21))))
    scales = (random(2).random((5, 21)) * 0.1).astype(np.float32)
    weights = ((codes - points.repeat(16, 0)[:70]) * scales.repeat(16, 0)[:70]).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    x = floats(4, 70)
    arrays = {"w": codes.astype(kind), "s": scales, "z": points.astype(kind)}
    check(model(nodes, x, 21, arrays), x, "gemv", x @ weights)


@pytest.mark.parametrize("quant_type", [0, 1])
@pytest.mark.parametrize(("rows", "kernel"), [(1, "gemv"), (13, "simt")])
def test_tables_of_floats(quant_type: int, rows: int, kernel: str) -> None:
    x = floats(rows, 128)
    arrays = {
        "w": random(1).integers(0, 256, 128 * 24 // 2).astype(np.uint8),
        "s": random(2).random(128 * 24 // 64).astype(np.float32),
    }
    attrs = {"K": 128, "N": 24, "block_size": 64, "quant_type": quant_type, "domain": "com.microsoft"}
    check(model([helper.make_node("MatMulBnb4", ["x", "w", "s"], ["y"], **attrs)], x, 24, arrays), x, kernel)


def test_activations_are_not_rounded() -> None:
    """An `accuracy_level` of 4 allows to; kernels of GPUs multiply floats."""
    x = floats(2, 64)
    proto = onnx.load_from_string(n_bits(x, 16))
    proto.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", 4))
    weights = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    codes = np.stack([weights["w"] & 15, weights["w"] >> 4], -1).reshape(16, 2, 32).astype(np.float64) - 8
    expected = x.astype(np.float64) @ (codes * weights["s"][..., None]).reshape(16, 64).T
    check(proto.SerializeToString(), x, "gemv", expected)


def test_rows_of_any_number() -> None:
    proto = onnx.load_from_string(n_bits(floats(2, 72), 37, zeros=True))
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    data = proto.SerializeToString()
    with load(compile_model(data, "emulator", keep_source=True).to_bytes(), device="emulator") as loaded:
        for rows in (1, 8, 40):
            x = floats(rows, 72)
            np.testing.assert_allclose(loaded.run({"x": x})["y"], unoptimised(data, {"x": x}), rtol=1e-4, atol=1e-4)


def test_weights_stay_packed_in_the_artifact() -> None:
    x = floats(1, 1024)
    data = n_bits(x, 1024)
    assert len(compile_model(data, "cuda:sm_80").to_bytes()) < len(data) + 64_000


def test_the_cost_model_is_told_of_the_packed_bytes() -> None:
    (kernel,) = compile_model(n_bits(floats(1, 1024), 1024), "cuda:sm_80").explain()["kernels"]
    codes, scales = 1024 * 1024 // 2, 1024 * 32 * 4
    assert codes + scales <= kernel["bytes_read"] <= 1.02 * (codes + scales)
