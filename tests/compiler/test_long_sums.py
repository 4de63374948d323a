"""Long reductions of floats on CPUs: the error does not grow as that of numbers added up one after the other."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load

DEPTH = 300_007
"""A prime: no part of the reduction is as long as another. Added up one by one, so many numbers of one sign are 3e-5 of
their sum off.
"""
ALLOWED = 3e-6
OPSET = '<ir_version: 10, opset_import: ["" : 21]>'


def uniform(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).random(shape, dtype=np.float32)


def off(model: onnx.ModelProto, inputs: dict[str, np.ndarray], exact: np.ndarray, **options: object) -> float:
    with load(compile_model(model, num_threads=1, **options).to_bytes(), num_threads=1) as module:
        (result,) = module.run(inputs).values()
    return float(np.abs(result - exact).max() / np.abs(exact).max())


def product(text: str, weights: np.ndarray | None = None) -> onnx.ModelProto:
    model = parser.parse_model(f"{OPSET} {text}")
    if weights is not None:
        model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 17), (6, 16), (33, 5)])
@pytest.mark.parametrize("constant", [True, False])
def test_matmuls(rows: int, columns: int, constant: bool) -> None:
    x, w = uniform(rows, DEPTH), uniform(DEPTH, columns)
    second = "" if constant else f", float[{DEPTH},{columns}] w"
    text = f"g (float[{rows},{DEPTH}] x{second}) => (float[{rows},{columns}] y) {{ y = MatMul (x, w) }}"
    inputs = {"x": x} if constant else {"x": x, "w": w}
    assert off(product(text, w if constant else None), inputs, x.astype(np.float64) @ w) < ALLOWED


def test_a_matrix_that_lies_along_the_reduction() -> None:
    x, w = uniform(1, DEPTH), uniform(9, DEPTH)
    text = f"g (float[1,{DEPTH}] x, float[9,{DEPTH}] w) => (float[1,9] y) {{ y = Gemm <transB = 1> (x, w) }}"
    assert off(product(text), {"x": x, "w": w}, x.astype(np.float64) @ w.T) < ALLOWED


@pytest.mark.parametrize("depth", [1, 4097, DEPTH])
@pytest.mark.parametrize("turned", [True, False])
def test_a_reduction_of_any_length(depth: int, turned: bool) -> None:
    x, w = uniform(1, depth), uniform(*((9, depth) if turned else (depth, 9)))
    sizes = "9,k" if turned else "k,9"
    text = f"g (float[1,k] x, float[{sizes}] w) => (float[1,9] y) {{ y = Gemm <transB = {int(turned)}> (x, w) }}"
    exact = x.astype(np.float64) @ (w.T if turned else w)
    assert off(product(text), {"x": x, "w": w}, exact, dims={"k": (1, 400_000)}) < ALLOWED


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_weights_that_stay_bytes(rows: int) -> None:
    """One scale for each column makes one block of the whole reduction."""
    x, codes = uniform(rows, DEPTH), np.random.default_rng(0).integers(0, 128, (DEPTH, 3)).astype(np.int8)
    scale = np.array([0.5, 0.25, 2], np.float32)
    model = product(
        f"""g (float[{rows},{DEPTH}] x) => (float[{rows},3] y) <float[3] s = {{0.5, 0.25, 2}}, int8[3] z = {{0, 1, 5}}>
        {{ d = DequantizeLinear <axis = 1> (w, s, z) y = MatMul (x, d) }}""",
        codes,
    )
    exact = x.astype(np.float64) @ ((codes.astype(np.float64) - [0, 1, 5]) * scale)
    assert off(model, {"x": x}, exact) < ALLOWED
