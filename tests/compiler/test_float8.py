"""Floats of 8 bits: conversions are ml_dtypes' on every target, and tensor cores multiply them from sm_89 on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.cost_models import Preferring
from tilestitch.codegen.cuda.machine_code.disassemble import disassemble
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.ir import Kind, kind_of
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions

KINDS = {"e4m3fn": TensorProto.FLOAT8E4M3FN, "e5m2": TensorProto.FLOAT8E5M2}
PAIRS = [(a, b) for a in KINDS for b in KINDS]
ORDERS = ("in_order", "reversed", "adversarial")
TOLERANCE = {"float32": 2e-6, "float16": 3e-3}
"""Of the largest result."""


def small(kind: str) -> Any:
    return getattr(ml_dtypes, f"float8_{kind}")


def model(nodes: Sequence[Any], x: np.ndarray, constants: dict[str, np.ndarray], result: Any = None) -> bytes:
    stored = [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()]
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(result or x.dtype))
    graph = helper.make_graph(nodes, "m", inputs, [helper.make_tensor_value_info("y", kind, None)], stored)
    opset = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


# -- conversions -------------------------------------------------------------------------------------------------------


def hard_numbers(kind: str) -> np.ndarray:
    """All that there are, what lies halfway between two of them and next to that, and what is beyond."""
    every = np.arange(256, dtype=np.uint8).view(small(kind)).astype(np.float32)
    finite = np.unique(every[np.isfinite(every)])
    halves = (finite[1:] + finite[:-1]) / np.float32(2)
    near = [np.nextafter(halves, np.float32(towards)) for towards in (np.inf, -np.inf)]
    beyond = [
        np.inf,
        -np.inf,
        np.nan,
        1e30,
        -1e30,
        464,
        np.nextafter(np.float32(464), 500),
        61440,
        65536,
        1e-40,
        -1e-44,
    ]
    return np.concatenate([every, halves, *near, np.array(beyond)]).astype(np.float32)


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v2", "emulator"])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_conversions_are_those_of_ml_dtypes(kind: str, saturate: int, target: str) -> None:
    """There and back in one kernel; out of range is the largest number, or NaN (e4m3fn) and infinity (e5m2)."""
    x = hard_numbers(kind)
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=KINDS[kind], saturate=saturate),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    compiled = compile_model(model(nodes, x, {}), target, keep_source=True)
    assert not compiled.explain()["host_steps"]
    with load(compiled.to_bytes(), device="emulator" if target == "emulator" else "cpu") as loaded:
        (actual,) = loaded.run({"x": x}).values()
    largest = float(ml_dtypes.finfo(small(kind)).max)
    with np.errstate(all="ignore"):
        expected = (np.clip(x, -largest, largest) if saturate else x).astype(small(kind)).astype(np.float32)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual[actual == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_small_floats_are_inputs_outputs_and_moved(kind: str, target: str) -> None:
    x = np.arange(256, dtype=np.uint8).reshape(16, 16).view(small(kind))
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("Concat", ["t", "x"], ["c"], axis=1),
        helper.make_node("Reshape", ["c", "shape"], ["y"]),
    ]
    compiled = compile_model(model(nodes, x, {"shape": np.array([4, 128])}), target, keep_source=True)
    with load(compiled.to_bytes(), device=target) as loaded:
        (actual,) = loaded.run({"x": x}).values()
    expected = np.concatenate([x.T, x], 1).reshape(4, 128)
    finite = np.isfinite(expected.astype(np.float32))
    assert actual.dtype == x.dtype
    np.testing.assert_array_equal(actual.view(np.uint8)[finite], expected.view(np.uint8)[finite])
    np.testing.assert_array_equal(actual.astype(np.float32)[~finite], expected.astype(np.float32)[~finite])


# -- contractions ------------------------------------------------------------------------------------------------------


def quantised(
    rows: int, depth: int, width: int, kinds: tuple[str, str] = ("e4m3fn", "e4m3fn"), dtype: Any = np.float32,
    by_column: bool = True, back: bool = False, given: bool = False,
) -> tuple[bytes, np.ndarray]:  # fmt: skip
    """A matmul of what was quantised, and its input. back: the result is quantised, too; given: so is the input."""
    random, (left, right) = np.random.default_rng(1), kinds
    count = (width,) if by_column else ()
    constants = {
        "w": (random.standard_normal((depth, width)) * 20).astype(small(right)),
        "sw": (random.random(count) * 0.01 + 0.001).astype(dtype), "sx": np.array(0.02, dtype),
        "zx": np.zeros((), small(left)), "zw": np.zeros(count, small(right)),
    }  # fmt: skip
    nodes = [] if given else [helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"])]
    nodes += [
        helper.make_node("DequantizeLinear", ["x" if given else "q", "sx", "zx"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["b"], axis=1),
        helper.make_node("MatMul", ["a", "b"], ["m" if back else "y"], name="product"),
    ]
    if back:
        nodes += [
            helper.make_node("QuantizeLinear", ["m", "sx", "zx"], ["r"]),
            helper.make_node("DequantizeLinear", ["r", "sx", "zx"], ["y"]),
        ]
    x = floats(rows, depth, dtype=dtype)
    x = (x * dtype(50)).astype(small(left)) if given else x
    return model(nodes, x, constants, dtype), x


def multiplied(compiled: CompiledModel) -> set[str]:
    """The dtypes that contractions read."""
    nodes = compiled.specialisations[0].graph.nodes
    return {v.dtype for node in nodes if kind_of(node.op) is Kind.CONTRACTION for v in node.inputs}


def templates(compiled: CompiledModel) -> set[str]:
    parts = [part for group in compiled.plan.groups for part in group.parts or (group,)]
    return {p.schedule.tile.template for p in parts if isinstance(p.schedule, GemmSchedule)}


def check(
    data: bytes, x: np.ndarray, template: str, target: str = "emulator:sm_89", orders: Sequence[str] = ("adversarial",),
    passes: Sequence[Any] = (),
) -> CompiledModel:  # fmt: skip
    """Equal to ONNX's own reference, of kernels that multiply floats of 8 bits."""
    compiled = compile_model(data, target, keep_source=True, passes=passes)
    (expected,) = ReferenceEvaluator(data).run(None, {"x": x})
    for order in orders:
        with load(compiled.to_bytes(), device=EmulatorOptions(block_order=order, seed=3)) as loaded:
            (actual,) = loaded.run({"x": x}).values()
        assert actual.dtype == expected.dtype
        wanted, difference = expected.astype(np.float64), np.abs(actual.astype(np.float64) - expected)
        assert difference.max() <= TOLERANCE[expected.dtype.name] * np.abs(wanted).max(), order
    assert multiplied(compiled) <= {"float8_e4m3fn", "float8_e5m2"} and templates(compiled) == {template}
    return compiled


@pytest.mark.parametrize("kinds", PAIRS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_pairs_of_kinds(kinds: tuple[str, str], dtype: Any) -> None:
    check(*quantised(40, 70, 37, kinds, dtype), "mma")


@pytest.mark.parametrize(("rows", "depth", "width"), [(1, 96, 64), (3, 33, 21), (8, 31, 1)])
def test_few_rows(rows: int, depth: int, width: int) -> None:
    check(*quantised(rows, depth, width, by_column=False), "gemv")


@pytest.mark.parametrize("kinds", PAIRS)
def test_warpgroups_where_results_are_halves(kinds: tuple[str, str]) -> None:
    data, x = quantised(150, 96, 144, kinds, np.float16)
    check(data, x, "wgmma", "emulator:sm_90a", ORDERS, [Preferring("wgmma")])


def test_no_warpgroups_where_results_are_float32() -> None:
    """wgmma keeps fewer bits of their sums, unless the precision allows it."""
    data, x = quantised(40, 4096, 64, given=True)
    check(data, x, "mma", "emulator:sm_90a", passes=[Preferring("wgmma")])
    compiled = compile_model(data, "emulator:sm_90a", precision="tf32", passes=[Preferring("wgmma")], keep_source=True)
    assert templates(compiled) == {"wgmma"}
    (product,) = (made for kernel in compiled.explain()["kernels"] for made in kernel["multiplies"])
    assert product["operands"] == ["float8_e4m3fn", "float8_e4m3fn"]


def test_many_bits_cut_off_do_not_add_up() -> None:
    """All products are positive, so that what wgmma cuts off of every sum has one sign: 128 times would be too much."""
    depth = 4096
    x = np.random.default_rng(3).uniform(0.5, 2, (64, depth)).astype(small("e4m3fn"))
    w = np.random.default_rng(4).uniform(0.5, 2, (depth, 64)).astype(small("e4m3fn"))
    constants = {"w": w, "s": np.array(2**-4, np.float16), "z": np.zeros((), small("e4m3fn"))}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    data = model(nodes, x, constants, np.float16)
    compiled = compile_model(data, "emulator:sm_90a", keep_source=True, passes=[Preferring("wgmma")])
    assert templates(compiled) == {"wgmma"}
    with load(compiled.to_bytes(), device="emulator") as loaded:
        (actual,) = loaded.run({"x": x}).values()
    expected = x.astype(np.float64) @ w.astype(np.float64) / 256
    assert np.abs(actual / expected - 1).max() < 2e-3


def test_orders_of_blocks() -> None:
    check(*quantised(130, 200, 70), "mma", orders=ORDERS)


def test_a_convolution() -> None:
    """The padding is 0 whatever the scale is."""
    random = np.random.default_rng(1)
    constants = {
        "w": (random.standard_normal((24, 16, 3, 3)) * 20).astype(small("e4m3fn")), "zx": np.zeros((), small("e4m3fn")),
        "sw": (random.random(24) * 0.01).astype(np.float32), "zw": np.zeros(24, small("e4m3fn")),
        "sx": np.array(0.02, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "sx", "zx"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["b"], axis=0),
        helper.make_node("Conv", ["a", "b"], ["y"], pads=[1, 1, 1, 1], strides=[2, 1]),
    ]
    x = floats(1, 16, 9, 7)
    check(model(nodes, x, constants), x, "mma")


def test_operands_that_a_run_computes() -> None:
    """Both, with a scale each, as attention has them."""
    constants = {"s": np.array(0.05, np.float32), "z": np.zeros((), small("e4m3fn"))}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["y"]),
    ]
    x = floats(2, 33, 48)
    check(model(nodes, x, constants), x, "mma")


@pytest.mark.parametrize("target", ["cuda:sm_89", "cuda:sm_90a"])
def test_weights_stay_bytes_and_kernels_do_not_spill(target: str) -> None:
    for rows in (4, 300):
        compiled = compile_model(quantised(rows, 512, 512, back=True)[0], target)
        assert multiplied(compiled) == {"float8_e4m3fn"}
        assert sum(array.nbytes for array in compiled.contents.weights.values()) < 1.1 * 512 * 512
        launches = [launch for kernel in compiled.explain()["kernels"] for launch in kernel["launches"]]
        codes = [code for launch in launches for code in launch["machine_code"]]
        assert codes and all(code["local_bytes"] == 0 for code in codes)
    cubins = [data for name, data in compiled.contents.kernels.items() if name.endswith(".cubin")]
    found = {i.name for code in disassemble((target[5:], cubin) for cubin in cubins) for i in code.instructions}
    assert "HMMA" in found and not {"QMMA", "QGMMA"} & found  # which keep fewer bits of sums than float32 has


@pytest.mark.parametrize("target", ["emulator:sm_80", "cpu"])
def test_where_nothing_multiplies_them_floats_are_and_it_is_said(target: str) -> None:
    data, x = quantised(40, 96, 64)
    compiled = compile_model(data, target, keep_source=True)
    assert multiplied(compiled) == {"float32"}
    (note,) = (note["note"] for note in compiled.explain()["notes"] if note["pass"] == "float8")
    assert note.startswith("product multiplies float32:") and "from sm_89 on" in note
    (expected,) = ReferenceEvaluator(data).run(None, {"x": x})
    with load(compiled.to_bytes(), device=target.partition(":")[0]) as loaded:
        (actual,) = loaded.run({"x": x}).values()
    assert np.abs(actual - expected).max() <= TOLERANCE["float32"] * np.abs(expected).max()


def test_a_scale_that_makes_infinities_is_not_moved() -> None:
    """Zero times an infinity is NaN before the sum, and infinity after it."""
    constants = {"w": np.full((32, 16), 448).astype(small("e4m3fn")), "s": np.array(1e36, np.float32)}
    constants |= {"z": np.zeros((), small("e4m3fn"))}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    x = np.zeros((20, 32), small("e4m3fn"))
    compiled = compile_model(model(nodes, x, constants, np.float32), "emulator:sm_89", keep_source=True)
    assert multiplied(compiled) == {"float32"}
