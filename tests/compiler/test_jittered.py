"""How far the last bits before quantisation move a reference: `rivals.on_jittered`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilestitch.compiler.cli import rivals

HALVES = np.array([0, 255, *(np.arange(64, 94) + 0.5 + 2 * 2.0**-17)], np.float32)
"""Of a range that makes the scale 1; the others are two units of the last place above halves, half of the jitter."""

DYNAMIC = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
net (float[32] x) => (uint8[32] q) {
  q, s, z = DynamicQuantizeLinear (x)
}"""
STATIC = """<ir_version: 10, opset_import: ["" : 21]>
net (float[32] x) => (uint8[32] q) {
  s = Constant <value = float {1.0}> ()
  z = Constant <value = uint8 {0}> ()
  q = QuantizeLinear (x, s, z)
}"""
BODY = """<ir_version: 10, opset_import: ["" : 21]>
net (float[32] x, bool c) => (uint8[32] q) <float s = {1}, uint8 z = {0}> {
  q = If (c) <
    then_branch = yes () => (uint8[32] a) { a = QuantizeLinear (x, s, z) },
    else_branch = no () => (uint8[32] b) { b, t, p = DynamicQuantizeLinear (x) }
  >
}"""


def moved(model: onnx.ModelProto, **inputs: np.ndarray) -> float:
    """How far the reference moves, jittered."""
    plain = rivals.CHECKERS["onnxruntime"](model)(inputs)[0].astype(np.float64)
    runs = rivals.on_jittered("onnxruntime", model, inputs)
    return float(max(np.abs(run[0].astype(np.float64) - plain).max() for run in runs))


def test_a_dynamic_range_does_not_hide_ties() -> None:
    """Were all numbers scaled alike, so would be the scale that is found, and the codes would stay."""
    assert moved(onnx.parser.parse_model(DYNAMIC), x=HALVES) == 1
    assert moved(onnx.parser.parse_model(DYNAMIC), x=np.rint(HALVES)) == 0


def test_parameters_may_be_constants_of_nodes() -> None:
    assert moved(onnx.parser.parse_model(STATIC), x=HALVES) == 1
    assert moved(onnx.parser.parse_model(STATIC), x=np.rint(HALVES)) == 0


@pytest.mark.parametrize("then", [True, False])
def test_bodies_are_jittered(then: bool) -> None:
    assert moved(onnx.parser.parse_model(BODY), x=HALVES, c=np.array(then)) == 1


@pytest.mark.parametrize(("level", "expected"), [(4, True), (1, False)])
def test_activations_that_a_matmul_rounds(level: int, expected: bool) -> None:
    """At accuracy level 4 `MatMulNBits` rounds a row to 8 bits, with 127 of its largest magnitude as the scale."""
    depth, width = 32, 16
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft",
        K=depth, N=width, bits=4, block_size=32, accuracy_level=level,
    )  # fmt: skip
    codes = np.random.default_rng(0).integers(0, 256, (width, 1, 16)).astype(np.uint8)
    stored = [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(np.ones(width, np.float32), "s")]
    sides = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, size))] for name, size in (("x", 32), ("y", width))
    ]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "net", *sides, stored), opset_imports=imports, ir_version=10)
    row = np.minimum(HALVES, 127).reshape(1, depth)
    assert (moved(model, x=row) >= 1) is expected
