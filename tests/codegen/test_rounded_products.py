"""Products that are added to on their way to a jump are rounded by themselves: the element that ONNX Runtime chooses.

The emulated device fuses multiplications and additions here, as CUDA's compiler does.
"""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions


def _has_fma() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return platform.machine() == "aarch64" or (cpuinfo.exists() and " fma " in cpuinfo.read_text())


pytestmark = pytest.mark.skipif(not _has_fma(), reason="this processor has no fused multiply-adds")
TARGETS = ("cpu", "cuda:sm_90a")


def results(model: str, feeds: dict[str, np.ndarray], target: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What ONNX Runtime gives, and what we do."""
    proto: onnx.ModelProto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {model}')
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    artifact = compile_model(proto, target, keep_source=True, cache=False).to_bytes()
    with load(artifact, device="cpu" if target == "cpu" else EmulatorOptions(fused=True)) as module:
        return expected, list(module.run(feeds).values())


def near_whole(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y, z of which x * y + z is a whole number but for rounding."""
    numbers = np.random.default_rng(seed)
    x, y = numbers.standard_normal((2, count)).astype(np.float32)
    whole = np.round(3 * x * y).astype(np.float32)
    return x, y, whole - x * y


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "jump",
    ["Floor(z)", "Ceil(z)", "Cast<to=6>(z)", "Mod<fmod=1>(z, one)", "Less(zero, d)", "Sign(d)"],
)  # fmt: skip
def test_sums_of_products_fall_on_the_same_side_of_whole_numbers(jump: str, target: str) -> None:
    dtype = {"Cast": "int32", "Less": "bool"}.get(jump[:4], "float")
    model = f"""g (float[4099] x, float[4099] y, float[4099] c) => ({dtype}[4099] r, float[4099] z) {{
        one = Constant<value=float {{1.0}}>()  zero = Constant<value=float {{0.0}}>()
        p = Mul(x, y)  z = Add(p, c)  n = Round(z)  d = Sub(z, n)  r = {jump}
    }}"""
    x, y, c = near_whole(4099)
    expected, got = results(model, {"x": x, "y": y, "c": c}, target)
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("jump", ["ArgMax<axis=1>(z)", "ArgMin<axis=1>(z)", "Ceil(most)", "Floor(least)"])
def test_the_same_elements_of_rows_are_equal(jump: str, target: str) -> None:
    """All sums are 0 but for the rounding of products: the first one of each row is the largest and the smallest."""
    dtype = "int64" if jump.startswith("Arg") else "float"
    model = f"""g (float[37,61] x, float[37,61] y, float[37,61] c) => ({dtype}[37,1] r) <int64[1] axis = {{1}}> {{
        p = Mul(x, y)  z = Add(p, c)  most = ReduceMax(z, axis)  least = ReduceMin(z, axis)  r = {jump}
    }}"""
    x, y = np.random.default_rng(5).standard_normal((2, 37, 61)).astype(np.float32)
    (expected,), (got,) = results(model, {"x": x, "y": y, "c": -(x * y)}, target)
    np.testing.assert_array_equal(expected, got)


@pytest.mark.parametrize(("height", "width"), [(1, 97), (97, 31), (194, 257)])
@pytest.mark.parametrize("target", TARGETS)
def test_grid_sample_chooses_the_same_elements_halfway_between_them(height: int, width: int, target: str) -> None:
    model = f"""g (float[1,1,{height},{width}] x, float[1,40,40,2] grid) => (float[1,1,40,40] y) {{
        y = GridSample<mode="nearest">(x, grid)
    }}"""
    numbers = np.random.default_rng(1)
    sizes = np.array([width, height], np.float32)
    halves = numbers.integers(0, 8, (1, 40, 40, 2)) / 2
    grid = ((halves + 0.5) / (sizes / 2) - 1).astype(np.float32)
    x = np.arange(height * width, dtype=np.float32).reshape(1, 1, height, width) + 1
    expected, got = results(model, {"x": x, "grid": grid}, target)
    np.testing.assert_array_equal(expected[0], got[0])


@pytest.mark.parametrize("target", TARGETS)
def test_regions_have_the_same_number_of_samples(target: str) -> None:
    """Sides of bins are whole numbers but for rounding; the samples of a bin are one more for each."""
    model = """g (float[1,3,40,37] x, float[50,4] r, int64[50] n) => (float[50,3,3,7] y) {
        y = RoiAlign<output_height=3, output_width=7, spatial_scale=0.3, sampling_ratio=0>(x, r, n)
    }"""
    numbers = np.random.default_rng(3)
    start = numbers.uniform(0, 20, (50, 2))
    sides = np.stack([7 * numbers.integers(1, 4, 50), 3 * numbers.integers(1, 8, 50)], 1)
    r = (np.concatenate([start, start + sides], 1) / 0.3).astype(np.float32)
    x = numbers.standard_normal((1, 3, 40, 37)).astype(np.float32)
    expected, got = results(model, {"x": x, "r": r, "n": np.zeros(50, np.int64)}, target)
    np.testing.assert_allclose(expected[0], got[0], rtol=1e-4, atol=1e-5)
