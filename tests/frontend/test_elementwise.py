"""Element-wise operators: every one against ONNX's reference, with broadcasting, odd dtypes and old opsets."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.frontend.checks import assert_close, check_node, floats, ints, node_model, run

UNARY = [
    "Abs",
    "Neg",
    "Floor",
    "Ceil",
    "Round",
    "Exp",
    "Sin",
    "Cos",
    "Tan",
    "Atan",
    "Sinh",
    "Cosh",
    "Tanh",
    "Asinh",
    "Erf",
    "Sign",
    "Relu",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "HardSwish",
    "HardSigmoid",
    "Mish",
    "Elu",
    "Selu",
    "Celu",
    "LeakyRelu",
    "ThresholdedRelu",
    "Shrink",
    "Gelu",
    "Swish",
    "Identity",
]


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("shape", [(1,), (7,), (0, 3), (2, 3, 5)])
def test_unary(op: str, shape: tuple[int, ...]) -> None:
    check_node(op, [3 * floats(*shape)])


def test_scalars() -> None:
    for op in ("Exp", "Relu", "Erf"):
        check_node(op, [np.asarray(floats())])


@pytest.mark.parametrize("op", ["Sqrt", "Log", "Acos", "Asin", "Atanh", "Reciprocal"])
def test_unary_on_positive_operands(op: str) -> None:
    check_node(op, [np.linspace(0.05, 0.95, 11, dtype=np.float32)])


def test_acosh() -> None:
    check_node("Acosh", [np.linspace(1.0, 5.0, 11, dtype=np.float32)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("op", ["Exp", "Tanh", "Gelu", "Sigmoid", "Relu"])
def test_other_float_dtypes(op: str, dtype: str) -> None:
    x = floats(3, 5).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    check_node(op, [x])


def test_softplus_and_sigmoid_do_not_overflow() -> None:
    x = np.array([-1e4, -100, 0, 100, 1e4], np.float32)
    (y,) = run(node_model("Softplus", [x]), {"x0": x})
    assert_close(y, np.array([0, 0, np.log(2), 100, 1e4], np.float32))
    (y,) = run(node_model("Sigmoid", [x]), {"x0": x})
    assert_close(y, np.array([0, 0, 0.5, 1, 1], np.float32))


@pytest.mark.parametrize(("op", "attrs"), [
    ("Gelu", {"approximate": "tanh"}), ("Elu", {"alpha": 0.3}), ("Celu", {"alpha": 2.0}), ("Swish", {"alpha": 0.5}),
    ("HardSigmoid", {"alpha": 0.4, "beta": 0.1}), ("Shrink", {"lambd": 1.0, "bias": 0.3}),
    ("LeakyRelu", {"alpha": 0.2}), ("ThresholdedRelu", {"alpha": 0.5}), ("Selu", {"alpha": 2.0, "gamma": 3.0}),
])  # fmt: skip
def test_activation_attributes(op: str, attrs: dict[str, object]) -> None:
    check_node(op, [floats(4, 7)], attrs)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Less", "LessOrEqual", "Greater",
                                "GreaterOrEqual", "Equal", "PRelu"])  # fmt: skip
def test_binary_broadcasts(op: str) -> None:
    x = np.abs(floats(2, 3, 5)) + 0.5
    check_node(op, [x, floats(3, 1, seed=1)])


def test_integer_division_is_towards_zero_and_mod_has_the_sign_of_the_divisor() -> None:
    a, b = ints(7, -7, 7, -7, dtype="int32"), ints(2, 2, -2, -2, dtype="int32")
    (y,) = run(node_model("Div", [a, b]), {"x0": a, "x1": b})
    assert y.tolist() == [3, -3, -3, 3]
    check_node("Mod", [a, b])
    check_node("Mod", [a.astype(np.float32), b.astype(np.float32)], {"fmod": 1})


@pytest.mark.parametrize(("op", "attrs"), [
    ("BitwiseAnd", {}), ("BitwiseOr", {}), ("BitwiseXor", {}),
    ("BitShift", {"direction": "LEFT"}), ("BitShift", {"direction": "RIGHT"}),
])  # fmt: skip
def test_bits(op: str, attrs: dict[str, object]) -> None:
    check_node(op, [ints(0, 1, 200, 255, dtype="uint8"), ints(3, 7, 1, 2, dtype="uint8")], attrs)


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op: str) -> None:
    check_node(op, [np.array([[True, False]]), np.array([[True], [False]])])


@pytest.mark.parametrize("attrs", [{}, {"detect_negative": 0}, {"detect_positive": 0}])
def test_is_inf(attrs: dict[str, object]) -> None:
    check_node("IsInf", [np.array([1, np.inf, -np.inf, np.nan], np.float32)], attrs)


def test_variadic_operators_take_any_number_of_operands() -> None:
    for count in (1, 2, 4):
        operands = [floats(2, 3, seed=i) for i in range(count)]
        for op in ("Sum", "Mean", "Max", "Min"):
            check_node(op, operands)


@pytest.mark.parametrize("bounds", [(None, None), (-0.5, None), (None, 0.5), (-0.5, 0.5), (0.5, -0.5)])
def test_clip_with_absent_bounds(bounds: tuple[float | None, float | None]) -> None:
    check_node("Clip", [floats(9), *(None if b is None else np.float32(b).reshape(()) for b in bounds)])


def test_clip_before_opset_11_takes_attributes() -> None:
    check_node("Clip", [floats(9)], {"min": -0.25}, opset=6)


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_broadcast_attributes_before_opset_7(op: str) -> None:
    a, b = floats(2, 3, 4), floats(3, seed=1)
    (y,) = run(node_model(op, [a, b], {"broadcast": 1, "axis": 1}, opset=6), {"x0": a, "x1": b})
    assert_close(y, a + b[:, None] if op == "Add" else a * b[:, None])


@pytest.mark.parametrize("to", [TensorProto.INT8, TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.BFLOAT16,
                                TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.DOUBLE])  # fmt: skip
def test_cast(to: int) -> None:
    check_node("Cast", [np.array([-3.7, -0.2, 0, 1.5, 7.2], np.float32)], {"to": to})


def test_pow_of_mixed_dtypes_has_the_dtype_of_the_base() -> None:
    check_node("Pow", [floats(5), ints(0, 1, 2, 3, -1, dtype="int32")])


def test_where_and_swiglu() -> None:
    check_node("Where", [floats(2, 3) > 0, floats(2, 3), floats(3, seed=1)])
    check_node("SwiGLU", [floats(2, 6), floats(2, 6, seed=1)])


def test_dropout_at_inference_is_the_identity_with_a_mask_of_ones() -> None:
    x = floats(2, 3)
    model = node_model("Dropout", [x], outputs=2)
    y, mask = run(model, {"x0": x})
    assert_close(y, x)
    assert mask.dtype == bool and mask.all()


def test_numbers_that_half_floats_do_not_hold_are_infinite_without_a_warning() -> None:
    x = floats(8, dtype="float16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = run(node_model("Elu", [x], {"alpha": 1e9}), {"x0": x})
    np.testing.assert_array_equal(result, np.where(x < 0, np.float16(-np.inf), x))
