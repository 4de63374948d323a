"""What detectors do with boxes, over open numbers of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import parser

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError

pytest.importorskip("onnxruntime")

TARGETS = ["cpu", pytest.param("emulator", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"))]
HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '


def boxes(*counts: int, size: float = 100.0) -> np.ndarray:
    random = np.random.default_rng(sum(counts))
    centers, sides = random.random((*counts, 2)) * size, random.random((*counts, 2)) * size / 4
    return np.concatenate([centers - sides, centers + sides], -1).astype(np.float32)


def assert_equal_to_onnxruntime(
    text: str, dims: dict[str, tuple[int, int]], given: Sequence[dict[str, Any]], target: str
) -> Any:
    model = parser.parse_model(HEAD + text)
    compiled = compile_model(model, target, dims=dims)
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), target, num_threads=2) as module:
        for feeds in given:
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])
    return compiled


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("centers", [0, 1])
@pytest.mark.parametrize(("most", "least"), [(5, None), (1000, 0.3), (0, 0.1), (3, 2.0)])
def test_suppression_keeps_what_onnxruntime_keeps(most: int, least: float | None, centers: int, target: str) -> None:
    score = "" if least is None else ", t"
    text = (
        "(float[b, n, 4] x, float[b, c, n] s) => (int64[k, 3] y)\n"
        f"<int64[1] m = {{{most}}}, float[1] o = {{0.5}}, float[1] t = {{{least or 0}}}>\n"
        f"{{ y = NonMaxSuppression<center_point_box={centers}>(x, s, m, o{score}) }}"
    )
    random = np.random.default_rng(0)
    sizes = [(1, 1, 1), (2, 3, 7), (1, 5, 97), (2, 1, 1000)]
    given = [
        {"x": np.abs(boxes(b, n)) if centers else boxes(b, n), "s": random.random((b, c, n)).astype(np.float32)}
        for b, c, n in sizes
    ]
    compiled = assert_equal_to_onnxruntime(text, {"b": (1, 4), "c": (1, 20), "n": (1, 5000)}, given, target)
    assert [reason["operators"] for reason in compiled.explain()["host"]["reasons"]] == [["Extent"]]


@pytest.mark.parametrize("target", TARGETS)
def test_of_equal_scores_the_first_box_is_kept(target: str) -> None:
    text = (
        "(float[1, n, 4] x, float[1, 1, n] s) => (int64[k, 3] y) <int64[1] m = {9}, float[1] o = {0.5}>\n"
        "{ y = NonMaxSuppression(x, s, m, o) }"
    )
    same = np.tile(boxes(1, 1), (1, 6, 1)) + np.repeat(np.arange(3), 2).astype(np.float32).reshape(1, 6, 1) * 200
    given = [{"x": same, "s": np.full((1, 1, 6), 0.5, np.float32)}]
    assert_equal_to_onnxruntime(text, {"n": (1, 9)}, given, target)


@pytest.mark.parametrize("target", TARGETS)
def test_boxes_that_are_filtered_before_are_suppressed_whatever_is_left(target: str) -> None:
    text = (
        "(float[n, 4] x, float[n] s, bool[n] q) => (float[k, 4] y, int64[r, 3] z)\n"
        "<int64[1] m = {100}, float[1] o = {0.5}, int64[1] a = {0}, int64[2] d = {0, 1}, int64 two = {2}>\n"
        "{ bx = Compress<axis=0>(x, q)  sc = Compress<axis=0>(s, q)  b3 = Unsqueeze(bx, a)  s3 = Unsqueeze(sc, d)\n"
        "z = NonMaxSuppression(b3, s3, m, o)  i = Gather<axis=1>(z, two)  y = Gather(bx, i) }"
    )
    random = np.random.default_rng(0)
    given = [
        {"x": boxes(n), "s": random.random(n).astype(np.float32), "q": random.random(n) < density}
        for n in (1, 2, 17, 97, 1000)
        for density in (0, 0.5, 1)
    ]
    assert_equal_to_onnxruntime(text, {"n": (1, 5000)}, given, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("mode", "ratio"), [("avg", 0), ("avg", 2), ("max", 0), ("max", 1)])
def test_regions_are_pooled_from_images_of_any_size(mode: str, ratio: int, coordinates: str, target: str) -> None:
    text = (
        "(float[1, c, h, w] x, float[n, 4] r, int64[n] i) => (float[n, c, 3, 5] y)\n"
        f'{{ y = RoiAlign<mode="{mode}", output_height=3, output_width=5, sampling_ratio={ratio}, spatial_scale=0.25,\n'
        f'coordinate_transformation_mode="{coordinates}">(x, r, i) }}'
    )
    random = np.random.default_rng(0)
    given = [
        {"x": random.standard_normal((1, c, h, w)).astype(np.float32), "r": boxes(n), "i": np.zeros(n, np.int64)}
        for c, h, w, n in ((1, 1, 1, 1), (3, 7, 9, 5), (17, 25, 25, 97), (64, 33, 31, 20))
    ]
    compiled = assert_equal_to_onnxruntime(
        text, {"c": (1, 256), "n": (1, 5000), "h": (1, 99), "w": (1, 99)}, given, target
    )
    assert compiled.explain()["host"]["steps"] == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_region_of_an_image_that_is_not_there_is_a_fault(target: str) -> None:
    text = "(float[b, 2, 4, 4] x, float[n, 4] r, int64[n] i) => (float[n, 2, 1, 1] y) { y = RoiAlign(x, r, i) }"
    compiled = compile_model(parser.parse_model(HEAD + text), target, dims={"b": (1, 9), "n": (1, 9)})
    feeds = {"x": np.ones((2, 2, 4, 4), np.float32), "r": boxes(3), "i": np.array([0, 2, 1])}
    with load(compiled.to_bytes(), target) as module, pytest.raises(ExecutionError, match="out of range"):
        module.run(feeds)


@pytest.mark.parametrize("target", TARGETS)
def test_of_no_boxes_no_classes_and_no_images_nothing_is_kept(target: str) -> None:
    """At all sizes that nothing was said of; of scores that are often equal, the boxes that come first."""
    text = (
        "(float[b, n, 4] x, float[b, c, n] s) => (int64[k, 3] y)\n"
        "<int64[1] m = {300}, float[1] o = {0.5}, float[1] t = {0.1}>\n"
        "{ y = NonMaxSuppression(x, s, m, o, t) }"
    )
    random = np.random.default_rng(0)
    given = [
        {"x": boxes(b, n), "s": np.round(random.random((b, c, n)) * 3).astype(np.float32) / 3}
        for b, n, c in [(1, 257, 2), (1, 1, 1), (2, 0, 3), (2, 5, 0), (0, 5, 1)]
    ]
    assert_equal_to_onnxruntime(text, {}, given, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ratio", [0, 1, 3])
def test_regions_of_an_image_without_pixels_are_zero(ratio: int, target: str) -> None:
    text = (
        "(float[1, 2, h, 4] x, float[n, 4] r, int64[n] i) => (float[n, 2, 1, 1] y)"
        f" {{ y = RoiAlign<sampling_ratio = {ratio}>(x, r, i) }}"
    )
    compiled = compile_model(parser.parse_model(HEAD + text), target)
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes(), target) as module:
        feeds = {"x": np.ones((1, 2, 0, 4), np.float32), "r": boxes(3), "i": np.zeros(3, np.int64)}
        np.testing.assert_array_equal(module.run(feeds)["y"], np.zeros((3, 2, 1, 1), np.float32))
