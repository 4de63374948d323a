"""Kernels ask memory for whole sectors, and meet few bank conflicts: counted on the emulated device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions, Requests


def excess(
    model: str, inputs: dict[str, np.ndarray], precision: str = "fp32", **weights: np.ndarray
) -> dict[tuple[str, str, str], float]:
    """Transactions over the least, by template, memory, and whether it is read or written; the worst kernel of each."""
    proto: onnx.ModelProto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {model}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    artifact = compile_model(proto, "cuda:sm_90a", precision=precision, keep_source=True, cache=False).to_bytes()
    seen: list[tuple[str, Sequence[Requests]]] = []
    options = EmulatorOptions(on_requests=lambda symbol, found: seen.append((symbol, found)))
    with load(artifact, device=options) as module:
        module.run(inputs)
    worst: dict[tuple[str, str, str], float] = {}
    for symbol, found in seen:
        for space in ("global", "shared"):
            for way in ("read", "write"):
                own = [one for one in found if one.space == space and one.is_write == (way == "write")]
                least = sum(one.least_transactions for one in own)
                if least:
                    key = symbol.rpartition("_")[0], space, way
                    worst[key] = max(worst.get(key, 0.0), sum(one.transactions for one in own) / least)
    return worst


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("m", "k", "n"), [(128, 256, 128), (130, 384, 520), (64, 2048, 64), (16, 512, 2048)])
def test_gemms_of_float32_meet_few_bank_conflicts(m: int, k: int, n: int) -> None:
    model = f"g (float[{m},{k}] x, float[{k},{n}] w) => (float[{m},{n}] y) {{ y = MatMul(x, w) }}"
    found = excess(model, {"x": random(m, k), "w": random(k, n)})
    assert found["gemm_simt", "shared", "write"] < 1.5
    assert found["gemm_simt", "shared", "read"] < 1.1
    assert found["gemm_simt", "global", "write"] < 1.1


@pytest.mark.parametrize(("dtype", "onnx_dtype"), [("float32", "float"), ("float16", "float16")])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_rows_of_gemvs_are_read_without_bank_conflicts(dtype: str, onnx_dtype: str, rows: int) -> None:
    """With the weights along k, a lane of float16 reads eight neighbours of each row."""
    model = f"""g ({onnx_dtype}[{rows},1024] x, {onnx_dtype}[520,1024] w) => ({onnx_dtype}[{rows},520] y) {{
        t = Transpose<perm=[1,0]>(w)  y = MatMul(x, t)
    }}"""
    found = excess(model, {"x": random(rows, 1024, dtype=dtype), "w": random(520, 1024, dtype=dtype)})
    assert found["gemv", "shared", "read"] == found["gemv", "shared", "write"] == 1


@pytest.mark.parametrize(
    ("onnx_dtype", "precision", "template"),
    [("float", "fp32", "gemm_simt"), ("float", "tf32", "gemm_mma"), ("float16", "fp32", "gemm_mma")],
)
@pytest.mark.parametrize(("channels", "filters", "side"), [(3, 32, 32), (64, 64, 24), (512, 40, 8)])
def test_convolutions_read_and_write_images_with_channels_first_in_whole_sectors(
    onnx_dtype: str, precision: str, template: str, channels: int, filters: int, side: int
) -> None:
    """Neighbouring threads have neighbouring pixels, also where the reduction is cut into parts (the last shape)."""
    model = f"""g ({onnx_dtype}[2,{channels},{side},{side}] x) => ({onnx_dtype}[2,{filters},{side},{side}] y) {{
        y = Conv<pads=[1,1,1,1]>(x, w)
    }}"""
    dtype = "float32" if onnx_dtype == "float" else onnx_dtype
    w = random(filters, channels, 3, 3, dtype=dtype)
    found = excess(model, {"x": random(2, channels, side, side, dtype=dtype)}, precision, w=w)
    assert found[template, "global", "read"] < 2.5
    assert found[template, "global", "write"] < 1.5


@pytest.mark.parametrize("turned", [False, True])
def test_sums_of_wgmma_leave_in_whole_sectors_and_without_bank_conflicts(turned: bool) -> None:
    sizes, after = ("512,1024", "z = Transpose<perm=[1,0]>(y)") if turned else ("1024,512", "z = Relu(y)")
    model = f"g (float16[1024,512] x) => (float16[{sizes}] z) {{ y = MatMul(x, w)  {after} }}"
    found = excess(model, {"x": random(1024, 512, dtype="float16")}, w=random(512, 512, dtype="float16"))
    assert found["gemm_wgmma", "shared", "read"] == found["gemm_wgmma", "shared", "write"] == 1
    assert found["gemm_wgmma", "global", "write"] == 1


def test_few_rows_that_lie_side_by_side_are_written_without_bank_conflicts() -> None:
    model = (
        "g (float[1024,8] x, float[1024,520] w) => (float[8,520] y) { t = Transpose<perm=[1,0]>(x)  y = MatMul(t, w) }"
    )
    found = excess(model, {"x": random(1024, 8), "w": random(1024, 520)})
    assert found["gemv", "shared", "read"] == found["gemv", "shared", "write"] == 1
