"""Matmuls of two quantised operands that are known at run time only, against unoptimised ONNX Runtime."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from tilestitch.codegen.cpu.target import host_target
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.passes.plan.cpu.schedules import CpuDotGemmSchedule
from tilestitch.runtime import load

here = pytest.mark.skipif(host_target().dot != "vpdpbusd", reason="this CPU has no vpdpbusd")
SIGNS = list(itertools.product(("uint8", "int8"), repeat=2))
SHAPES = [((3, 9, 20), (3, 20, 33)), ((2, 3, 17, 41), (3, 41, 16)), ((4, 12, 5), (5, 40))]


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g ' + text)


def sizes(shape: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def integers(left: str, right: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], zeros: str) -> onnx.ModelProto:
    y = sizes(tuple("pqrs"[: len(shapes[0])]))
    return parsed(
        f"({left}{sizes(shapes[0])} a, {right}{sizes(shapes[1])} b) => (int32{y} y) "
        f"<{zeros}> {{ y = MatMulInteger(a, b, za, zb) }}"
    )


def floats(left: str, right: str, a: str, b: str, zeros: str) -> onnx.ModelProto:
    return parsed(
        f"({left}{a} a, {right}{b} b) => (float[p, q, r] y) <{zeros}, float sa = {{0.02}}, float sb = {{0.03}}> {{"
        " af = DequantizeLinear(a, sa, za)  bf = DequantizeLinear(b, sb, zb)  y = MatMul(af, bf) }"
    )


def draw(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def multiplies_bytes(compiled: CompiledModel) -> bool:
    return any(isinstance(group.schedule, CpuDotGemmSchedule) for group in compiled.plan.groups)


@here
@pytest.mark.parametrize(("left", "right"), SIGNS)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_integers_are_exact(left: str, right: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """ONNX Runtime wants neither zero point to be of the other sign."""
    model = integers(left, right, shapes, f"{left} za = {{101}}, {right} zb = {{77}}")
    compiled = compile_model(model)
    assert multiplies_bytes(compiled)
    a, b = draw(left, shapes[0], 1), draw(right, shapes[1], 2)
    with load(compiled.to_bytes()) as module:
        y = module.run({"a": a, "b": b})["y"]
    np.testing.assert_array_equal(y, (a.astype(np.int32) - 101) @ (b.astype(np.int32) - 77))


@here
@pytest.mark.parametrize(("left", "right"), SIGNS)
def test_dequantised_operands(left: str, right: str) -> None:
    model = floats(left, right, "[2, 9, 20]", "[2, 20, 33]", f"{left} za = {{3}}, {right} zb = {{0}}")
    compiled = compile_model(model)
    assert multiplies_bytes(compiled)
    feeds = {"a": draw(left, (2, 9, 20), 1), "b": draw(right, (2, 20, 33), 2)}
    with load(compiled.to_bytes()) as module:
        y = module.run(feeds)["y"]
    np.testing.assert_allclose(y, expected(model, feeds), rtol=1e-5, atol=1e-5)


@here
def test_columns_and_rows_of_any_number() -> None:
    """The reduction is fixed; of an open one, 32 bits might not hold the sum."""
    model = floats("uint8", "uint8", "[2, m, 20]", "[2, 20, n]", "uint8 za = {3}, uint8 zb = {131}")
    compiled = compile_model(model, dims={"m": (1, 60), "n": (1, 60)})
    assert multiplies_bytes(compiled)
    with load(compiled.to_bytes()) as module:
        for m, n in ((1, 1), (9, 33), (60, 16), (33, 60)):
            feeds = {"a": draw("uint8", (2, m, 20), 1), "b": draw("uint8", (2, 20, n), 2)}
            np.testing.assert_allclose(module.run(feeds)["y"], expected(model, feeds), rtol=1e-5, atol=1e-5)


def test_both_zero_points_over_an_open_reduction() -> None:
    """Their product counts once for each step."""
    model = parsed(
        "(uint8[m, k] a, int8[k, 5] b) => (int32[p, q] y)"
        " <uint8 za = {88}, int8 zb = {-98}> { y = MatMulInteger(a, b, za, zb) }"
    )
    with load(compile_model(model).to_bytes()) as module:
        for m, k in ((1, 1), (3, 7), (2, 65)):
            a, b = draw("uint8", (m, k), 1), draw("int8", (k, 5), 2)
            y = module.run({"a": a, "b": b})["y"]
            np.testing.assert_array_equal(y, (a.astype(np.int32) - 88) @ (b.astype(np.int32) + 98))


@here
@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [("[2, 4, 20]", "[2, 20, 33]", "4 rows by what is known"), ("[2, 9, 40000]", "[2, 40000, 3]", "sums of 40000")],
)
def test_what_stays_in_floats(a: str, b: str, reason: str) -> None:
    compiled = compile_model(floats("uint8", "int8", a, b, "uint8 za = {3}, int8 zb = {0}"))
    assert not multiplies_bytes(compiled)
    assert any(reason in note["note"] for note in compiled.explain()["notes"] if note["pass"] == "integers")
