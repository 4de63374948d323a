"""Quantised models on GPUs: tensor cores multiply bytes, and results are ONNX Runtime's up to a step of the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node as onnx_node

from tests.compiler.quantised_models import BYTES, Sketch, unoptimised
from tests.compiler.test_quantised import convolution, floats, layer
from tests.cost_models import Preferring
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.ir import Kind, kind_of
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.rewrite.integers import MOST_REDUCED
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions

ORDERS = ("in_order", "reversed", "adversarial")


def templates(compiled: CompiledModel) -> set[str]:
    """Of all contractions, which multiply bytes."""
    contractions = [node for node in compiled.specialisations[0].graph.nodes if kind_of(node.op) is Kind.CONTRACTION]
    assert all(value.dtype in BYTES for node in contractions for value in node.inputs)
    parts = [part for group in compiled.plan.groups for part in group.parts or (group,)]
    schedules = [part.schedule for part in parts if part.kind is GroupKind.CONTRACTION]
    return {each.tile.template if isinstance(each, GemmSchedule) else "direct" for each in schedules}


def check(
    model: bytes, feeds: Mapping[str, np.ndarray], step: float, template: str = "mma", target: str = "emulator",
    orders: tuple[str, ...] = ("adversarial",), passes: Sequence[Any] = (),
) -> CompiledModel:  # fmt: skip
    """Equal up to a step of the output, in each order of blocks, of kernels that multiply bytes."""
    compiled = compile_model(model, target, keep_source=True, passes=passes)
    expected, artifact = unoptimised(model, feeds), compiled.to_bytes()
    for order in orders:
        with load(artifact, device=EmulatorOptions(block_order=order, seed=3)) as module:
            (actual,) = module.run(dict(feeds)).values()
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        assert difference.max(initial=0) <= step * 1.0001, order
    assert templates(compiled) == {template}
    return compiled


@pytest.mark.parametrize("left", [("uint8", 0), ("uint8", 131), ("int8", -128), ("int8", 3)])
@pytest.mark.parametrize("right", [("int8", 0), ("int8", -128), ("uint8", 128), ("uint8", 3)])
def test_pairs_of_bytes_and_zero_points(left: tuple[str, int], right: tuple[str, int]) -> None:
    check(layer(9, 37, 21, left, right, True, ("uint8", 7)), {"x": floats(9, 37)}, 0.05)


def test_a_single_weight() -> None:
    check(layer(9, 1, 1, ("uint8", 3), ("int8", 3), False, ("uint8", 7)), {"x": floats(9, 1)}, 0.05, "gemv")
    check(convolution((1, 1, 3, 3), (1, 1, 1, 1), ("uint8", 0), False), {"x": floats(1, 1, 3, 3)}, 0.05, "gemv")


def test_orders_of_blocks_and_a_plan_that_is_read_back() -> None:
    model, feeds = layer(70, 64, 130, ("int8", 3), ("int8", 0), True, ("int8", 7)), {"x": floats(70, 64)}
    compiled = check(model, feeds, 0.05, orders=ORDERS)
    again = compile_model(model, "emulator", keep_source=True, plan=compiled.plan)
    assert again.plan == compiled.plan and again.to_bytes() == compiled.to_bytes()


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("width", [1, 21, 64])
def test_few_rows(rows: int, width: int) -> None:
    check(layer(rows, 80, width, ("uint8", 3), ("int8", 0), True, ("uint8", 7)), {"x": floats(rows, 80)}, 0.05, "gemv")


def test_extremes_do_not_saturate() -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.5, 0, "uint8")
    w = s.dequantise(s.constant(np.full((512, 16), -128, np.int8)), np.float32(0.01), np.int8(0))
    model = s.model({"x": ("float32", (20, 512))}, s.node("MatMul", x, w))
    check(model, {"x": np.full((20, 512), 200, np.float32)}, 512 * 127.5 * 1.28 * 512 * np.finfo(np.float32).eps)


@pytest.mark.parametrize(("rows", "template"), [(2, "gemv"), (9, "mma")])
@pytest.mark.parametrize("right", [("uint8", 0, 255), ("uint8", 255, 0)])
def test_sums_as_large_as_32_bits_hold(rows: int, template: str, right: tuple[str, int, int]) -> None:
    """255 times 255, 33,025 times, of either sign: 2^31 less 33,023."""
    depth, (dtype, zero, value) = MOST_REDUCED, right
    s = Sketch()
    x = s.dequantise("x", np.float32(2**-8), np.uint8(0))
    w = s.dequantise(s.constant(np.full((depth, 12), value, dtype)), np.float32(2**-8), BYTES[dtype](zero))
    model = s.model({"x": ("uint8", (rows, depth))}, s.node("MatMul", x, w))
    compiled = compile_model(model, "emulator", keep_source=True)
    assert templates(compiled) == {template}
    with load(compiled.to_bytes(), device="emulator") as module:
        (actual,) = module.run({"x": np.full((rows, depth), 255, np.uint8)}).values()
    exact = (value - zero) * 255 * depth
    assert abs(exact) == 2**31 - 33_023
    np.testing.assert_array_equal(actual, np.full((rows, 12), np.float32(exact) * np.float32(2**-16)))


def test_bytes_by_wgmma() -> None:
    """Quantised in a kernel of its own, since warpgroups read what lies in memory."""
    s = Sketch()
    x = s.dequantise("x", np.float32(0.03), np.uint8(131))
    y = s.there_and_back(s.node("MatMul", x, s.weights((96, 144), "int8", 0, 1)), 0.05, 7, "uint8")
    model = s.model({"x": ("uint8", (150, 96))}, y)
    feeds = {"x": s.bytes((150, 96), "uint8")}
    check(model, feeds, 0.05, "wgmma", "emulator:sm_90a", ORDERS, [Preferring("wgmma")])


@pytest.mark.parametrize("left", [("uint8", 0), ("uint8", 114), ("int8", 0), ("int8", -128), ("int8", 5)])
def test_convolutions(left: tuple[str, int]) -> None:
    """Around images there is the zero point."""
    model = convolution((1, 16, 9, 7), (24, 16, 3, 3), left, True, pads=[1, 1, 1, 1], strides=[2, 1])
    check(model, {"x": floats(1, 16, 9, 7)}, 0.05)


@pytest.mark.parametrize(
    ("x", "w", "groups"),
    [((2, 3, 9, 7), (24, 3, 3, 3), 1), ((1, 32, 5, 7), (48, 16, 3, 3), 2), ((1, 5, 9), (3, 5, 1), 1)],
)
def test_channels_and_groups(x: tuple[int, ...], w: tuple[int, ...], groups: int) -> None:
    model = convolution(x, w, ("uint8", 114), True, group=groups)
    small = w[0] <= 8
    check(model, {"x": floats(*x)}, 0.05, "gemv" if small else "mma")


def test_dynamic_quantisation() -> None:
    s = Sketch()
    s.nodes.append(onnx_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]))
    total = s.node("MatMulInteger", "q", s.constant(s.bytes((50, 24), "int8")), "zero")
    y = s.node("Mul", s.node("Cast", total, to=1), s.node("Mul", "scale", s.constant(s.scales(24))))
    model, x = s.model({"x": ("float32", (14, 50))}, y), floats(14, 50)
    check(model, {"x": x}, 1e-5 * float(np.abs(unoptimised(model, {"x": x})).max()))


def test_a_residual_is_read_as_bytes() -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.03, 100, "uint8")
    first = s.node("Relu", s.node("Conv", x, s.weights((16, 8, 1, 1), "int8", 0, 0)))
    first = s.there_and_back(first, 0.02, 3, "uint8")
    second = s.there_and_back(s.node("Conv", first, s.weights((16, 16, 1, 1), "int8", 0, 0)), 0.03, 120, "uint8")
    model = s.model({"x": ("float32", (1, 8, 7, 7))}, s.there_and_back(s.node("Add", second, first), 0.05, 90, "uint8"))
    check(model, {"x": floats(1, 8, 7, 7)}, 0.05)


def test_any_number_of_rows() -> None:
    s = Sketch()
    y = s.node("MatMul", s.there_and_back("x", 0.03, 131, "uint8"), s.weights((48, 24), "int8", 0, 1))
    model = s.model({"x": ("float32", ("n", 48))}, s.there_and_back(y, 0.05, 7, "uint8"))
    artifact = compile_model(model, "emulator", keep_source=True).to_bytes()
    with load(artifact, device="emulator") as module:
        for rows in (1, 9, 70):
            x = floats(rows, 48)
            (actual,) = module.run({"x": x}).values()
            assert np.abs(actual - unoptimised(model, {"x": x})).max() <= 0.05 * 1.0001


def test_weights_stay_bytes_and_kernels_do_not_spill() -> None:
    model = layer(300, 512, 512, ("uint8", 128), ("int8", 0), True, ("uint8", 128))
    for target in ("cuda:sm_80", "cuda:sm_90a"):
        compiled = compile_model(model, target)
        assert templates(compiled) <= {"mma", "wgmma"}
        weights = compiled.contents.weights
        assert sum(array.nbytes for array in weights.values()) < 1.1 * 512 * 512
        launches = [launch for kernel in compiled.explain()["kernels"] for launch in kernel["launches"]]
        codes = [code for launch in launches for code in launch["machine_code"]]
        assert codes and all(code["local_bytes"] == 0 for code in codes)


def test_before_tensor_cores_multiplied_bytes_floats_are() -> None:
    """Of activations; weights stay bytes, which become floats as they are read."""
    compiled = compile_model(layer(9, 32, 24, ("uint8", 128), ("int8", 0), True, ("uint8", 128)), "cuda:sm_75")
    contractions = [node for node in compiled.specialisations[0].graph.nodes if kind_of(node.op) is Kind.CONTRACTION]
    assert [node.op for node in contractions] == ["block_matmul"]
    assert contractions[0].inputs[0].dtype == "float32"
