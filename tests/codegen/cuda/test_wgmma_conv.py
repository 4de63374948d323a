"""Convolutions on Hopper: TMA brings patches of images; on the emulated device, against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.contraction_harness import anchored, assembler_log, check, lower, target
from tests.cost_models import Preferring
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.gemm.conv import conv_geometry, indexed_conv
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm
from tilestitch.codegen.cuda.gemm.tma import cut_to_patches
from tilestitch.codegen.cuda.gemm.wgmma import emit_wgmma
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes.plan.gemm.kernels import why_not_wgmma
from tilestitch.passes.plan.gemm.partition import cut
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.schedule.cuda.gemm_tiles import WGMMA_TILES as TILES
from tilestitch.runtime.emulator import EmulatorOptions

HOPPER = "cuda:sm_90a"


def conv(
    images: tuple[int, ...], filters: tuple[int, ...], dtype: str = "float16", epilogue: bool = True, **attrs: Any
) -> Graph:
    """A channels-last convolution with its residual and tanh. filters: kernel, input channels of a group, outputs."""
    graph, rank = Graph(), len(images) - 2
    x, w = graph.add_input("x", TensorType(dtype, images)), graph.add_input("w", TensorType(dtype, filters))
    plain = {name: (value,) * rank for name, value in (("strides", 1), ("dilations", 1), ("before", 0), ("after", 0))}
    y = graph.emit("conv", x, w, **{**plain, "groups": 1, **attrs}, layout="NXC")
    if epilogue:
        y = graph.emit("tanh", graph.emit("add", y, graph.add_input("r", y.tensor_type)))
    graph.outputs = [y]
    return graph


def lower_for_hopper(graph: Graph) -> tuple[CudaLaunch, ...]:
    return lower(graph, target(HOPPER), Preferring("wgmma"))


def gemm_of(graph: Graph) -> IndexedGemm:
    group = anchored(graph, target(HOPPER))
    return indexed_conv(group, conv_geometry(group.anchor))


SAME = {"before": (1, 1), "after": (1, 1)}
CASES = {
    "1x1": conv((2, 9, 10, 64), (1, 1, 64, 72)),
    "1x1 of few channels": conv((2, 9, 10, 40), (1, 1, 40, 72)),
    "1x1 strided": conv((2, 9, 10, 72), (1, 1, 72, 64), strides=(2, 2)),
    "3x3": conv((2, 9, 11, 64), (3, 3, 64, 72), **SAME),
    "3x3 bfloat16": conv((1, 7, 7, 128), (3, 3, 128, 64), "bfloat16", **SAME),
    "3x3 strided": conv((3, 15, 13, 64), (3, 3, 64, 24), strides=(2, 2), **SAME),
    "48 channels": conv((2, 9, 11, 48), (3, 3, 48, 72), **SAME),
    "104 channels, strided": conv((1, 9, 11, 104), (3, 2, 104, 64), strides=(2, 1), before=(1, 0)),
    "dilated": conv((1, 15, 13, 64), (3, 2, 64, 64), strides=(1, 2), before=(0, 1), after=(1, 0), dilations=(2, 1)),
    "wide strides": conv((2, 17, 17, 64), (4, 4, 64, 64), strides=(4, 4)),
    "odd number of outputs": conv((2, 5, 6, 64), (1, 3, 64, 65), before=(0, 2), after=(0, 2)),
    "groups": conv((2, 9, 10, 128), (3, 3, 64, 128), groups=2, **SAME),
    "one dimension": conv((2, 33, 64), (5, 64, 32), before=(4,)),
    "three dimensions": conv((1, 5, 6, 7, 64), (3, 1, 2, 64, 32), before=(1, 0, 1), after=(1, 0, 0)),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "odd number of outputs"])
def test_convolutions(name: str) -> None:
    (launch,) = check(CASES[name], lower_for_hopper)
    assert launch.kind == "gemm_wgmma"


@pytest.mark.parametrize("channels", [48, 64])
def test_filters_that_run_along_their_channels(channels: int) -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType("float16", (2, 9, 11, channels)))
    w = graph.add_input("w", TensorType("float16", (72, 3, 3, channels)))
    filters = graph.emit("transpose", w, perm=(1, 2, 3, 0))
    same = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1), "groups": 1, "layout": "NXC"}
    graph.outputs = [graph.emit("conv", x, filters, **same)]
    (launch,) = check(graph, lower_for_hopper)
    assert launch.kind == "gemm_wgmma"


def test_bytes() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType("uint8", (2, 9, 11, 96)))
    w = graph.constant(np.random.default_rng(0).integers(-9, 9, (3, 3, 96, 72)).astype(np.int8))
    same = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1), "groups": 1, "layout": "NXC"}
    graph.outputs = [graph.emit("conv", x, w, **same, out_dtype="int32")]
    (launch,) = check(graph, lower_for_hopper)
    assert launch.kind == "gemm_wgmma"


def test_weights_that_tma_cannot_read_have_another_kernel() -> None:
    (launch,) = check(CASES["odd number of outputs"], lower_for_hopper)
    assert launch.kind == "gemm_mma"


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    "tile", [TILES[0], TILES[1], TILES[-1], WgmmaTile(192, 64, 1, False, 2)], ids=lambda t: f"{t.bm}x{t.bn}/{t.cluster}"
)
def test_tiles_with_patches_beyond_the_edges(tile: WgmmaTile, parts: int) -> None:
    def made(graph: Graph) -> tuple[CudaLaunch, ...]:
        group = anchored(graph, target(HOPPER))
        gemm = cut_to_patches(gemm_of(graph), tile.bm)
        return emit_wgmma(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), parts), 2)

    options = EmulatorOptions(block_order="adversarial", thread_order="random", seed=2)
    check(conv((3, 13, 11, 64), (3, 3, 64, 136), **SAME), made, options)


@pytest.mark.parametrize(
    ("images", "output", "rows", "patch"),
    [
        (2, (56, 56), 128, (2, 8, 8)),
        (1, (56, 56), 128, (1, 16, 8)),
        (1, (64, 64), 128, (1, 1, 128)),
        (32, (7, 7), 64, (32, 2, 1)),
        (1, (200,), 64, (1, 64)),
        (128, (1,), 192, (64, 3)),
    ],
)
def test_patches_waste_little(images: int, output: tuple[int, ...], rows: int, patch: tuple[int, ...]) -> None:
    graph = conv((images, *output, 64), (*(1 for _ in output), 64, 64))
    pictures = cut_to_patches(gemm_of(graph), rows).a.pictures
    assert pictures is not None
    assert math.prod(pictures.patch) == rows
    best = math.prod(-(-extent // size) for extent, size in zip((images, *output), patch, strict=True))
    assert math.prod(pictures.counts) <= best


def refused(graph: Graph) -> str | None:
    return why_not_wgmma(gemm_of(graph), target(HOPPER).name, target(HOPPER).specific)


def test_refusals_say_why() -> None:
    assert refused(CASES["3x3"]) is None
    assert refused(conv((1, 9, 9, 60), (1, 1, 60, 64))) == "pixels of x do not lie multiples of 16 bytes apart"
    assert refused(conv((1, 9, 9, 32), (3, 3, 32, 64))) == (
        "x has 32 channels, which leave much of 64 empty for every kernel position"
    )
    assert refused(conv((1, 9, 9, 192), (3, 3, 96, 64), groups=2)) == "a group has 96 channels of x, no multiple of 64"
    assert refused(conv((1, 99, 99, 64), (1, 1, 64, 64), strides=(9, 1))) == (
        "the convolution has strides (9, 1), more than 8"
    )
    assert refused(conv((1, 9, 9, 64), (1, 1, 64, 64), "float32")) == (
        "x is float32, none of float16, bfloat16, int8, uint8, float8_e4m3fn, float8_e5m2"
    )


def test_the_assembler_has_no_complaint() -> None:
    (launch,) = lower_for_hopper(conv((8, 28, 28, 128), (3, 3, 128, 128), **SAME))
    log = assembler_log(launch, "sm_90a", target(HOPPER))
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    assert "C75" not in log
