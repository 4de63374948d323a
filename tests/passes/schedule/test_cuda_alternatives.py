"""Other schedules of a kernel for a GPU: each is one that its template can emit, and computes the same."""

from __future__ import annotations

import shutil
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.models import random_inputs
from tilestitch.compiler import compile_model
from tilestitch.compiler.tune.tasks import with_schedules
from tilestitch.passes.plan_check import check_plan
from tilestitch.passes.schedule.cuda.alternatives import alternatives
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.runtime import load

SAMPLED = 2
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def model(nodes: Any, shapes: Any, dtype: int = FLOAT, **weights: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(5)
    made = [rng.standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(dtype)) for shape in weights.values()]
    x, y = (helper.make_tensor_value_info(name, dtype, shape) for name, shape in zip("xy", shapes, strict=True))
    constants = [numpy_helper.from_array(array, name) for name, array in zip(weights, made, strict=True)]
    graph = helper.make_graph(nodes, "one", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def node(op: str, *names: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(names[:-1]), [names[-1]], **attributes)


def attention() -> onnx.ModelProto:
    nodes = [node("MatMul", "x", "k", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p", "v", "y")]
    return model(nodes, [(2, 37, 16), (2, 37, 16)], k=(2, 16, 50), v=(2, 50, 16))


def norm_after_gemm() -> onnx.ModelProto:
    nodes = [node("MatMul", "x", "w", "m"), node("LayerNormalization", "m", "g", "b", "y", axis=-1)]
    return model(nodes, [(45, 96), (45, 128)], w=(96, 128), g=(128,), b=(128,))


KERNELS = {
    "gemm": model([node("MatMul", "x", "w", "y")], [(45, 72), (45, 56)], w=(72, 56)),
    "gemm of halves": model([node("MatMul", "x", "w", "y")], [(45, 72), (45, 56)], HALF, w=(72, 56)),
    "gemv": model([node("MatMul", "x", "w", "y")], [(2, 1032), (2, 56)], w=(1032, 56)),
    "convolution": model([node("Conv", "x", "w", "y")], [(1, 16, 9, 9), (1, 24, 7, 7)], w=(24, 16, 3, 3)),
    "depthwise": model([node("Conv", "x", "w", "y", group=16)], [(1, 16, 9, 9), (1, 16, 7, 7)], w=(16, 1, 3, 3)),
    "attention": attention(),
    "norm after gemm": norm_after_gemm(),
    "softmax": model([node("Softmax", "x", "y", axis=-1)], [(33, 120), (33, 120)]),
    "element-wise": model([node("Tanh", "x", "y")], [(33, 120), (33, 120)]),
    "pooling": model([node("MaxPool", "x", "y", kernel_shape=[3, 3])], [(1, 8, 12, 12), (1, 8, 10, 10)]),
}  # fmt: skip
TARGETS = ("emulator:sm_80", "emulator:sm_90a")


def planned(kind: str, target: str) -> Any:
    """The graph and plan of a kernel, and its alternatives."""
    (one,) = compile_model(KERNELS[kind], target).specialisations
    (group,) = one.plan.groups
    nodes = {each.name: each for each in one.graph.nodes}
    return one.graph, one.plan, group, alternatives(nodes, group, Gpu.of(one.plan.target))


@pytest.mark.parametrize("kind", KERNELS)
def test_all_are_legal_and_differ(kind: str) -> None:
    graph, plan, group, others = planned(kind, "emulator:sm_90a")
    assert len(others) >= 2 and group not in others and len(set(others)) == len(others)
    for other in others:
        check_plan(with_schedules(graph, plan, {group.name: other}, lambda *_: None), graph)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")
@pytest.mark.parametrize("kind", KERNELS)
def test_some_compute_the_same(kind: str) -> None:
    target = Random(kind).choice(TARGETS)
    graph, plan, group, others = planned(kind, target)
    inputs = random_inputs(KERNELS[kind])
    expected = run(KERNELS[kind], target, plan, inputs)
    for other in Random(kind).sample(others, SAMPLED):
        found = run(KERNELS[kind], target, with_schedules(graph, plan, {group.name: other}, lambda *_: None), inputs)
        tolerance = (2e-3 if expected.dtype == np.float16 else 1e-5) * float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, 0, tolerance, err_msg=str(other))


def run(proto: onnx.ModelProto, target: str, plan: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with load(compile_model(proto, target, plan=plan).to_bytes(), device="emulator") as module:
        (found,) = module.run(inputs).values()
    return np.asarray(found).astype(np.float64) if found.dtype != np.float16 else found
