"""Functions of bytes between quantised layers are looked up, and give what the model's own operators give."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.quantised_models import Sketch, unoptimised
from tilestitch.codegen.cpu.target import host_target, parse_target
from tilestitch.codegen.cpu.toolchain.tables import Unit
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.runtime import load

TARGETS = ("cpu", "cpu:x86-64-v4", "cpu:x86-64-v3")
FUNCTIONS = ("Sigmoid", "Tanh", "HardSwish", "Gelu", "SiLU", "LeakyRelu", "Elu")
ALL = np.arange(256, dtype=np.uint8)


def function(s: Sketch, name: str, x: str) -> str:
    if name == "SiLU":
        return s.node("Mul", x, s.there_and_back(s.node("Sigmoid", x), 1 / 255, 0, "uint8"))
    if name == "Gelu":
        half = s.node("Mul", x, s.constant(np.float32(0.5)))
        inner = s.node("Erf", s.node("Div", x, s.constant(np.float32(np.sqrt(2)))))
        return s.node("Mul", half, s.node("Add", inner, s.constant(np.float32(1))))
    return s.node(name, x)


def between(name: str, dtype: str, to: str, shape: tuple[int, ...]) -> bytes:
    """A byte, dequantised, put through a function, and quantised."""
    s = Sketch()
    x = s.dequantise("x", np.float32(0.04), np.asarray(101 if dtype == "uint8" else -5, dtype))
    y = s.quantise(function(s, name, x), 0.03, 40 if to == "uint8" else -90, to)
    return s.model({"x": (dtype, shape)}, y, to)


def tables_of(model: bytes, target: TargetInfo | None = None) -> list[str]:
    graph = import_model(onnx.load_from_string(model)).graph
    target = target or TargetInfo(isa="avx512", dot="vpdpbusd")
    return [n.attrs["table"] for n in run_pipeline(graph, PassContext(target)).nodes if n.op == "look_up"]


@pytest.mark.parametrize(("name", "dtype", "to"), [
    *((name, "uint8", "uint8") for name in FUNCTIONS),
    ("SiLU", "int8", "int8"), ("SiLU", "uint8", "int8"), ("SiLU", "int8", "uint8"),
])  # fmt: skip
def test_every_byte_is_what_onnx_runtime_makes_of_it(name: str, dtype: str, to: str) -> None:
    model = between(name, dtype, to, (256,))
    assert len(tables_of(model)) == 1
    x = ALL.view(dtype)
    actual = load(compile_model(model, num_threads=1).to_bytes()).run({"x": x})
    expected = unoptimised(model, {"x": x})
    (result,) = actual.values()
    assert result.dtype == expected.dtype
    assert np.abs(result.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("shape", [(), (7,), (67,), (3, 5, 131), (0, 4)])
def test_any_size_on_every_vector_unit(
    shape: tuple[int, ...], unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    if unit is Unit.BYTES and Unit.of(host_target()) is not unit:
        pytest.skip("this CPU has no AVX512-VBMI")
    monkeypatch.setattr(Unit, "of", staticmethod(lambda target: unit))
    model = between("SiLU", "int8", "uint8", shape)
    x = np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)
    (result,) = load(compile_model(model, num_threads=1, cache=False).to_bytes()).run({"x": x}).values()
    assert result.shape == shape
    assert np.abs(result.astype(int) - unoptimised(model, {"x": x}).astype(int)).max(initial=0) <= 1


def test_which_unit_looks_up() -> None:
    assert Unit.of(parse_target("cpu:x86_64-linux-gnu/znver4")) is Unit.BYTES
    assert Unit.of(parse_target("cpu:x86_64-linux-gnu/x86-64-v4")) is Unit.WORDS
    assert Unit.of(parse_target("cpu:x86_64-linux-gnu/x86-64-v3")) is Unit.LOADS
    assert Unit.of(parse_target("cpu:aarch64-linux-gnu/neoverse-v2")) is Unit.LOADS


@pytest.mark.parametrize("target", TARGETS)
def test_after_a_convolution_and_beside_other_readers(target: str) -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.03, 128, "uint8")
    y = s.there_and_back(s.node("Conv", x, s.weights((24, 5, 3, 3), "int8", 0, 0), pads=[1] * 4), 0.3, 120, "uint8")
    z = s.there_and_back(function(s, "SiLU", y), 0.2, 9, "uint8")
    total = s.there_and_back(
        s.node("Add", s.node("Conv", z, s.weights((24, 24, 1, 1), "int8", 0, 0)), y), 2, 99, "uint8"
    )
    model = s.model({"x": ("float32", (1, 5, 9, 11))}, total)
    feeds = {"x": np.random.default_rng(3).normal(0, 1.5, (1, 5, 9, 11)).astype(np.float32)}
    (result,) = load(compile_model(model, target, num_threads=1).to_bytes()).run(feeds).values()
    assert np.abs(result - unoptimised(model, feeds)).max() <= 2.0001
    assert len(tables_of(model)) == 1


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_few_operations_beside_a_table_become_part_of_it(isa: str) -> None:
    """SiLU is x times a sigmoid that is quantised on the way, and so a table already."""
    model = onnx.load_from_string(between("SiLU", "uint8", "uint8", (64,)))
    graph = run_pipeline(import_model(model).graph, PassContext(TargetInfo(isa=isa)))
    assert [node.op for node in graph.nodes] == ["look_up"]


def test_operators_of_onnx_runtime() -> None:
    """Sigmoid and LeakyRelu of integers, one after the other."""
    s = Sketch()
    scales = [s.constant(np.float32(v)) for v in (0.05, 0.004, 0.01)]
    zeros = [s.constant(np.uint8(v)) for v in (90, 3, 60)]
    y = s.node("QLinearSigmoid", "x", scales[0], zeros[0], scales[1], zeros[1], domain="com.microsoft")
    y = s.node("QLinearLeakyRelu", y, scales[1], zeros[1], scales[2], zeros[2], alpha=0.3, domain="com.microsoft")
    model = helper.make_model(
        helper.make_graph(
            s.nodes, "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, (256,))],
            [helper.make_tensor_value_info(y, TensorProto.UINT8, (256,))], s.constants,
        ), opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=9,
    ).SerializeToString()  # fmt: skip
    assert tables_of(model)
    (result,) = load(compile_model(model, num_threads=1).to_bytes()).run({"x": ALL}).values()
    assert np.abs(result.astype(int) - unoptimised(model, {"x": ALL}).astype(int)).max() <= 1


def test_what_is_no_function_of_one_byte_or_takes_few_steps_is_no_table() -> None:
    s = Sketch()
    x, y = (s.dequantise(name, np.float32(0.04), np.uint8(9)) for name in "xy")
    z = s.quantise(s.node("Mul", s.node("Sigmoid", x), y), 0.03, 4, "uint8")
    assert not tables_of(s.model({"x": ("uint8", (64,)), "y": ("uint8", (64,))}, z, "uint8"))
    s = Sketch()
    y = s.quantise(s.node("Relu", s.dequantise("x", np.float32(0.04), np.uint8(9))), 0.03, 4, "uint8")
    assert not tables_of(s.model({"x": ("uint8", (64,))}, y, "uint8"))


def test_gpus_compute() -> None:
    assert not tables_of(between("Sigmoid", "uint8", "uint8", (64,)), TargetInfo(name="cuda"))


@pytest.mark.parametrize(("isa", "count"), [("avx512", 1), ("avx2", 0), ("neon", 1), ("sse", 1)])
def test_where_entries_are_loaded_one_by_one_more_operations_are_as_fast(isa: str, count: int) -> None:
    assert len(tables_of(between("HardSwish", "uint8", "uint8", (64,)), TargetInfo(isa=isa))) == count
    assert tables_of(between("Sigmoid", "uint8", "uint8", (64,)), TargetInfo(isa=isa))


def test_scales_of_each_channel_are_no_table() -> None:
    s = Sketch()
    x = s.dequantise("x", s.scales(4), np.zeros(4, np.uint8), axis=1)
    y = s.quantise(s.node("Sigmoid", x), 0.003, 4, "uint8")
    assert not tables_of(s.model({"x": ("uint8", (2, 4, 8))}, y, "uint8"))
