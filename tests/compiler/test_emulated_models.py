"""Whole models on the emulated device, in several orders of blocks, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests import tolerances
from tests.cost_models import Preferring
from tests.models import random_inputs
from tests.networks import bert, gpt2, half, residual_block
from tilestitch.compiler.driver import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.emulator import EmulatorOptions


def wide_bert() -> ModelProto:
    """Large enough for warpgroups, and with rows that are multiples of 16 bytes."""
    return bert(batch=2, length=40, hidden=64, heads=2)


MODELS: dict[str, tuple[Callable[[], ModelProto], str, str]] = {
    "bert": (bert, "float32", "emulator"),
    "gpt2": (gpt2, "float32", "emulator"),
    "residual_block": (residual_block, "float32", "emulator"),
    "bert_float16": (bert, "float16", "emulator"),
    "bert_hopper": (wide_bert, "float16", "emulator:sm_90a"),
}
"""How a model is made, what its floats become, and what it is compiled for."""


def inputs_of(model: ModelProto) -> dict[str, np.ndarray]:
    inputs = random_inputs(model)
    if "ids" in inputs:
        inputs["ids"] = np.random.default_rng(5).integers(0, 50, inputs["ids"].shape)
    if "keep" in inputs:
        inputs["keep"] = np.ones_like(inputs["keep"])
        inputs["keep"][-1, 4:] = 0
    return inputs


@cache
def expected(name: str) -> np.ndarray:
    """What ONNX Runtime computes in float32."""
    make, dtype, _ = MODELS[name]
    model = make()
    for tensor in model.graph.initializer if dtype == "float16" else ():
        if tensor.data_type == 1:
            rounded = np.frombuffer(tensor.raw_data, np.float32).astype(np.float16).astype(np.float32)
            tensor.raw_data = rounded.tobytes()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs_of(model))[0])


@cache
def compiled(name: str) -> bytes:
    make, dtype, target = MODELS[name]
    model = half(make()) if dtype == "float16" else make()
    passes = [Preferring("wgmma")] if name == "bert_hopper" else ()
    return compile_model(model, target, keep_source=True, passes=passes).to_bytes()


@pytest.mark.parametrize("order", ["in_order", "reversed", "adversarial"])
@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_agrees_with_onnx_runtime(name: str, order: str) -> None:
    make, dtype, _ = MODELS[name]
    with load(compiled(name), device=EmulatorOptions(block_order=order, seed=7)) as module:
        result = module.run(inputs_of(make()))["y"]
    want = expected(name)  # of half floats: float32 arithmetic on the same weights
    assert result.dtype == dtype
    np.testing.assert_allclose(result, want, rtol=0, atol=tolerances.MODELS[dtype] * np.abs(want).max())


def test_gemms_of_half_floats_use_warpgroups_on_hopper() -> None:
    members = read_artifact(compiled("bert_hopper")).member_names
    kinds = {member.split("/")[-1].rsplit("_", 1)[0] for member in members if member.endswith(".cu")}
    assert "gemm_wgmma" in kinds
    assert "gemm_simt" not in kinds


def test_packed_weights_of_bytes_reach_hopper_through_a_tensor_map() -> None:
    """Two GEMMs of the same weights' shape: their kernel is lowered once and renamed."""
    random = np.random.default_rng(3)
    weights = [random.integers(-128, 128, (160, 160)).astype(np.int8) for _ in range(2)]
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w0"], ["p"]),
        helper.make_node("Cast", ["p"], ["q"], to=TensorProto.INT8),
        helper.make_node("MatMulInteger", ["q", "w1"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "bytes", [helper.make_tensor_value_info("x", TensorProto.INT8, (40, 160))],
        [helper.make_tensor_value_info("y", TensorProto.INT32, (40, 160))],
        [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(weights)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    artifact = compile_model(model, "emulator:sm_90a", keep_source=True, passes=[Preferring("wgmma")]).to_bytes()
    assert any("gemm_wgmma" in member for member in read_artifact(artifact).member_names)
    x = random.integers(-128, 128, (40, 160)).astype(np.int8)
    with load(artifact, device="emulator") as module:
        result = module.run({"x": x})["y"]
    first = (x.astype(np.int32) @ weights[0].astype(np.int32)).astype(np.int8)
    np.testing.assert_array_equal(result, first.astype(np.int32) @ weights[1].astype(np.int32))
