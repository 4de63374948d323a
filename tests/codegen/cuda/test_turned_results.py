"""GEMMs whose neighbouring rows lie together in memory, since a transpose follows: right at odd sizes, too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load

KINDS = {
    "float32": ("float", "fp32", 2e-6),
    "tf32": ("float", "tf32", 2e-3),
    "float16": ("float16", "fp32", 2e-3),
    "bfloat16": ("bfloat16", "fp32", 1e-2),
}


def run(text: str, x: np.ndarray, precision: str, target: str, **weights: np.ndarray) -> tuple[np.ndarray, set[str]]:
    """The result, and the templates that computed it."""
    model: onnx.ModelProto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    compiled = compile_model(model, target, precision=precision, keep_source=True, cache=False)
    kinds = {launch["symbol"].rpartition("_")[0] for k in compiled.explain()["kernels"] for launch in k["launches"]}
    with load(compiled.to_bytes(), device="emulator") as module:
        (result,) = module.run({"x": x}).values()
    return result, kinds


def random(seed: int, *shape: int, kind: str) -> np.ndarray:
    import ml_dtypes

    dtype = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}.get(kind, np.float32)
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def assert_near(got: np.ndarray, exact: np.ndarray, tolerance: float) -> None:
    assert got.shape == exact.shape
    assert np.abs(got.astype(np.float64) - exact).max() <= tolerance * np.abs(exact).max()


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m,k,n", [(130, 72, 72), (33, 40, 17), (2, 3, 257), (16, 4096, 48), (129, 2048, 40)])
def test_matmuls_that_are_stored_transposed(m: int, k: int, n: int, kind: str, target: str) -> None:
    dtype, precision, tolerance = KINDS[kind]
    text = f"""g ({dtype}[2,{m},{k}] x) => ({dtype}[2,{n},{m}] z) {{
        y = MatMul(x, w)  b = Add(y, bias)  z = Transpose<perm=[0,2,1]>(b)
    }}"""
    x, w, bias = (random(seed, *shape, kind=kind) for seed, shape in enumerate([(2, m, k), (k, n), (n,)]))
    got, _ = run(text, x, precision, target, w=w, bias=bias)
    exact = x.astype(np.float64) @ w.astype(np.float64) + bias.astype(np.float64)
    assert_near(got, exact.swapaxes(1, 2), tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels,filters,side", [(64, 64, 17), (128, 40, 9), (8, 136, 24), (256, 1, 5)])
def test_convolutions_of_images_with_channels_last_into_channels_first(
    channels: int, filters: int, side: int, kind: str
) -> None:
    dtype, precision, tolerance = KINDS[kind]
    text = f"""g ({dtype}[2,{side},{side},{channels}] x) => ({dtype}[2,{filters},{side},{side}] z) {{
        t = Transpose<perm=[0,3,1,2]>(x)  y = Conv<pads=[1,1,1,1]>(t, w)  z = Relu(y)
    }}"""
    x, w = random(1, 2, side, side, channels, kind=kind), random(2, filters, channels, 3, 3, kind=kind)
    got, _ = run(text, x, precision, "cuda:sm_90a", w=w)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    exact = sum(
        np.einsum("nhwc,oc->nohw", padded[:, i : i + side, j : j + side], w[:, :, i, j].astype(np.float64))
        for i in range(3)
        for j in range(3)
    )
    assert_near(got, np.maximum(exact, 0), tolerance)


def test_a_large_product_of_half_floats_is_stored_so_by_wgmma() -> None:
    text = """g (float16[512,512] x) => (float16[520,512] z) { y = MatMul(x, w)  z = Transpose<perm=[1,0]>(y) }"""
    x, w = random(1, 512, 512, kind="float16"), random(2, 512, 520, kind="float16")
    got, kinds = run(text, x, "fp32", "cuda:sm_90a", w=w)
    assert_near(got, (x.astype(np.float64) @ w.astype(np.float64)).T, 2e-3)
    assert kinds == {"gemm_wgmma"}, kinds
