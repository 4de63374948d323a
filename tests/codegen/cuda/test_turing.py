"""float16 on GPUs of compute capability 7.5: tensor cores in steps of 8, without asynchronous copies."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from tilestitch.compiler import compile_model
from tilestitch.compiler.compiled import CompiledModel
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions

MODELS = {
    "matmul": "(float16[67,133] a, float16[133,70] b) => (float16[67,70] y) { y = MatMul(a, b) }",
    "few columns": "(float16[3,33,40] a, float16[3,40,17] b) => (float16[3,33,17] y) { y = MatMul(a, b) }",
    "split-K": "(float16[33,2048] a, float16[2048,64] b) => (float16[33,64] y) { y = MatMul(a, b) }",
    "convolution": "(float16[2,24,13,13] a, float16[40,24,3,3] b) => (float16[2,40,13,13] y) "
    "{ y = Conv<pads=[1,1,1,1]>(a, b) }",
    "attention": "(float16[1,3,70,40] a, float16[1,3,65,40] b, float16[1,3,65,40] c) => (float16[1,3,70,40] y) "
    "{ y = Attention(a, b, c) }",
    "wide attention": "(float16[1,2,70,256] a, float16[1,2,65,256] b, float16[1,2,65,256] c) "
    "=> (float16[1,2,70,256] y) { y = Attention(a, b, c) }",
}


def parsed(text: str) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> g {text}')


def inputs_of(model: ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: random.uniform(-1, 1, shape).astype(np.float16) for name, shape in shapes.items()}


def templates(compiled: CompiledModel) -> set[str]:
    return {group.schedule.tile.template for group in compiled.plan.groups}  # type: ignore[union-attr]


@pytest.mark.parametrize("targets", ["sm_75", "sm_75,sm_80"])
@pytest.mark.parametrize("name", MODELS)
def test_halves_are_multiplied_by_tensor_cores(name: str, targets: str) -> None:
    model = parsed(MODELS[name])
    feeds = inputs_of(model)
    (expected,) = ReferenceEvaluator(model).run(None, {name: a.astype(np.float32) for name, a in feeds.items()})
    compiled = compile_model(model, f"emulator:{targets}")
    assert templates(compiled) <= {"mma", "attention_mma"}
    for order in ("in_order", "adversarial"):
        with load(compiled.to_bytes(), device=EmulatorOptions(block_order=order)) as module:
            result = module.run(feeds)["y"].astype(np.float32)
        np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_the_assembler_takes_the_kernels_for_turing_and_spills_no_register(name: str) -> None:
    compiled = compile_model(parsed(MODELS[name]), "cuda:t4,a100", keep_source=True)
    launches = [launch for kernel in compiled.explain()["kernels"] for launch in kernel["launches"]]
    codes = [code for launch in launches for code in launch["machine_code"]]
    assert {code["architecture"] for code in codes} == {"sm_75", "sm_80"}
    assert all(code["local_bytes"] == 0 for code in codes)
    assert max(launch["shared_bytes"] for launch in launches) <= 64 * 1024


def test_stages_beyond_two_are_not_worth_their_shared_memory_without_asynchronous_copies() -> None:
    stages = {}
    for target in ("t4", "a100"):
        (group,) = compile_model(parsed(MODELS["matmul"]), f"emulator:{target}").plan.groups
        stages[target] = group.schedule.tile.stages  # type: ignore[union-attr]
    assert stages == {"t4": 2, "a100": 4}


@pytest.mark.parametrize("dtype", ["float", "bfloat16", "int8"])
def test_other_types_are_multiplied_by_ordinary_units(dtype: str) -> None:
    operator = "MatMulInteger" if dtype == "int8" else "MatMul"
    result = "int32" if dtype == "int8" else dtype
    text = f"({dtype}[67,133] a, {dtype}[133,70] b) => ({result}[67,70] y) {{ y = {operator}(a, b) }}"
    assert templates(compile_model(parsed(text), "emulator:sm_75")) == {"simt"}
