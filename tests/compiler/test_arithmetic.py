"""How precise a model's arithmetic is, read off its graph; what accuracy checks then allow."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.accuracy import Limits, Tolerance

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def arithmetic(body: str, **options: Any) -> dict[str, Any]:
    """Of the only output of a model."""
    compiled = compile_model(onnx.parser.parse_model(HEADER + body), **options)
    (found,) = compiled.explain()["arithmetic"]
    assert found.pop("output") == "y"
    return dict(found)


def precision(body: str, **options: Any) -> str:
    return str(arithmetic(body, **options)["precision"])


GEMM = "g (float[4,8] x, float[8,4] w) => (float[4,4] y) { [gemm] y = MatMul (x, w) }"


def test_float32_stays_float32() -> None:
    assert arithmetic(GEMM) == {"precision": "float32", "node": "gemm", "bits": 0, "step": None}


@pytest.mark.parametrize(("option", "expected"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_precision_that_was_asked_for_counts(option: str, expected: str) -> None:
    assert arithmetic(GEMM, precision=option) == {
        "precision": expected, "node": "gemm", "bits": 0, "step": None,
    }  # fmt: skip


def test_tf32_counts() -> None:
    assert precision(GEMM, target="emulator:sm_80", precision="tf32") == "tf32"


def test_half_floats_inside_a_model_of_float32_count() -> None:
    found = arithmetic(
        """g (float[4,8] x) => (float[4,4] y) <float16[8,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,
            1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
          [narrow] a = Cast <to = 10> (x)
          [gemm] b = MatMul (a, w)
          [wide] y = Cast <to = 1> (b)
        }"""
    )
    assert (found["precision"], found["node"]) == ("float16", "narrow")


def test_the_coarsest_on_the_way_counts_and_only_that() -> None:
    model = onnx.parser.parse_model(
        HEADER
        + """g (float[4] x) => (float[4] fine, float[4] coarse) {
          a = Cast <to = 16> (x)
          b = Cast <to = 1> (a)
          c = Cast <to = 10> (b)
          coarse = Cast <to = 1> (c)
          fine = Exp (x)
        }"""
    )
    found = {one["output"]: one["precision"] for one in compile_model(model).explain()["arithmetic"]}
    assert found == {"fine": "float32", "coarse": "bfloat16"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("g (float16[2,3] x) => (float[3,2] y) { a = Transpose (x) y = Cast <to = 1> (a) }", "exact"),
        ("g (float16[2] x) => (float[2] y) { a = Cast <to = 1> (x) y = Exp (a) }", "float32"),
        ("g (float[2] x) => (float[2] y) <float16[2] w = {1, 2}> { a = Cast <to = 1> (w) y = Add (x, a) }", "float32"),
        ("g (float16[2] x) => (float[2] y) { a = Add (x, x) y = Cast <to = 1> (a) }", "float16"),
        ("g (int64[2] x) => (int64[2] y) { y = Add (x, x) }", "exact"),
        ("g (uint8[2] x) => (float[2] y) { y = Cast <to = 1> (x) }", "exact"),
        ("g (double[2] x) => (double[2] y) { y = Exp (x) }", "float64"),
        ("g (double[2] x) => (double[2] y) { a = Cast <to = 1> (x) b = Exp (a) y = Cast <to = 11> (b) }", "float32"),
        (
            """g (bool c, float[2] x) => (float[2] y) {
              y = If (c) <
                then_branch = t () => (float[2] a) { h = Cast <to = 10> (x) k = Exp (h) a = Cast <to = 1> (k) },
                else_branch = e () => (float[2] b) { b = Identity (x) }>
            }""",
            "float16",
        ),
    ],
    ids=["moved", "widened", "constant", "added", "integers", "bytes", "double", "narrowed", "branch"],
)
def test_only_what_rounds_counts(body: str, expected: str) -> None:
    assert precision(body) == expected


QUANTISED = """g (float[4] x) => ({type}[4] y) <float s = {{0.5}}, int8 z = {{3}}> {{
  a = Exp (x)
  q = QuantizeLinear (a, s, z)
  {rest}
}}"""


@pytest.mark.parametrize(
    ("type_", "rest", "step"),
    [
        ("int8", "y = Identity (q)", 1.0),
        ("float", "y = DequantizeLinear (q, s, z)", 0.5),
        ("float", "d = DequantizeLinear (q, s, z) n = Neg (d) y = Exp (n)", None),
    ],
    ids=["integers", "floats", "computed"],
)
def test_quantisation_while_the_model_runs_counts(type_: str, rest: str, step: float | None) -> None:
    found = arithmetic(QUANTISED.format(type=type_, rest=rest))
    assert (found["precision"], found["bits"], found["step"]) == ("float32", 8, step)


def test_quantised_weights_do_not_count() -> None:
    found = arithmetic(
        """g (float[2] x) => (float[2] y) <int8[2] w = {1, 2}, float s = {0.5}> {
          d = DequantizeLinear (w, s)
          y = Mul (x, d)
        }"""
    )
    assert (found["precision"], found["bits"]) == ("float32", 0)


# --- rules ---


def inside(precision: str = "exact", bits: int = 0, step: float | None = None) -> dict[str, Any]:
    return {"precision": precision, "node": "n", "bits": bits, "step": step}


@pytest.mark.parametrize(
    ("dtype", "arithmetic", "expected"),
    [
        ("float32", inside("float32"), Tolerance(1e-4, 0.0, "float32")),
        ("float32", inside("float16"), Tolerance(1e-2, 0.0, "float16 inside, in ONNX node n")),
        ("float32", inside("tf32"), Tolerance(1e-2, 0.0, "tf32 inside, in ONNX node n")),
        ("float16", inside("float32"), Tolerance(1e-2, 0.0, "float16")),
        ("float64", inside("float64"), Tolerance(1e-6, 0.0, "float64")),
        ("float64", inside("float32"), Tolerance(1e-4, 0.0, "float32 inside, in ONNX node n")),
        (
            "float32",
            inside("float32", bits=8),
            Tolerance(1 / 127, 0.0, "one step of quantisation to 8 bits inside, 1/127"),
        ),
        ("float32", inside("float32", bits=16), Tolerance(1e-4, 0.0, "float32")),
        ("float32", inside("bfloat16", bits=8), Tolerance(4e-2, 0.0, "bfloat16 inside, in ONNX node n")),
        ("int8", inside("float32", 8, 1.0), Tolerance(0.0, 1.0, "one step of its own quantisation")),
        ("int64", inside("float16", 8), Tolerance(0.0, 0.0, "exact")),
        ("bool", inside("float16"), Tolerance(0.0, 0.0, "exact")),
    ],
)
def test_the_rule_follows_the_arithmetic(dtype: str, arithmetic: dict[str, Any], expected: Tolerance) -> None:
    assert Limits(arithmetic).of(dtype) == expected


def test_a_result_that_is_quantised_may_be_a_step_off() -> None:
    limit = Limits(inside("float32", 8, 0.25)).of("float32")
    assert (limit.rtol, limit.atol) == (1 / 127, 0.25)
    assert "one step of its own quantisation, 0.25" in limit.rule


def test_what_the_user_says_comes_first() -> None:
    found = Limits(inside("float16"), rtol=1e-6).of("float32")
    assert found == Tolerance(1e-6, 0.0, "--rtol")
    assert Limits(inside("float16"), atol=1.0).of("int32") == Tolerance(0.0, 1.0, "--atol")
    assert Limits(inside("float32", 8, 1.0), rtol=0.5).of("uint8") == Tolerance(0.5, 0.0, "--rtol")
    assert Limits(inside("float16"), atol=1.0).of("bool").atol == 0.0


def test_what_moves_the_reference_excuses_no_index() -> None:
    """An index that quantisation decides is another one, not one that is near."""
    assert Limits(inside("float32", 8), moved=0.5).of("int64") == Tolerance(0.0, 0.0, "exact")
    assert Limits(inside("float32", 8), moved=0.5).of("float32").rtol == 1.0
    assert Limits(inside("float32", 8, 1.0), moved=0.5).of("uint8") == Tolerance(
        1.0, 1.0, "what a change of the last bits before quantisation makes of it, 2 times 5.0e-01"
    )
