"""The GEMMs that part B3 of the device queue measures: every tile, and what the compiler would take among them."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchmarks.device import b3_gemm, gemm_bundle
from benchmarks.device.cards import CARDS
from benchmarks.device.gemm_bundle import SHAPES, TARGET, Convolution, Shape, candidates, device_launch, group_of
from benchmarks.device.gemm_facts import TILE_FACTS
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.passes.schedule.cuda.gemm_tiles import WGMMA_TILES as TILES
from tilestitch.runtime.program import DeviceLaunch


@pytest.mark.parametrize(
    "shape",
    [
        Shape("small", 300, 256, 128, epilogue=True),
        Shape("tall", 256, 256, 65536),
        Convolution("images", 2, 14, 64, 128, stride=2),
    ],
)
def test_every_kernel_is_listed_once_and_one_is_planned_for_each_card(shape: Shape | Convolution) -> None:
    group = group_of(shape, parse_cuda_target(TARGET))
    found = list(candidates(group))
    assert sorted(card for facts, _ in found for card in facts["planned"]) == sorted(CARDS)
    kinds = [facts["kernel"] for facts, _ in found]
    assert kinds.count("gemm_mma") == 1
    assert len(kinds) > len(TILES) // 2
    (output,) = group.outputs
    for _, launches in found:
        for launch in launches:
            made = device_launch(launch, "k", output.name)
            assert DeviceLaunch.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_kernel_is_launched_as_it_was_compiled() -> None:
    """Kernels of clusters fault or hang when they are launched without one."""
    group = group_of(Shape("large", 4096, 4096, 256), parse_cuda_target(TARGET))
    clusters = set()
    for facts, launches in candidates(group):
        for launch in launches:
            made = device_launch(launch, "k", group.outputs[0].name)
            assert (made.cluster, made.cooperative) == (launch.cluster, launch.cooperative)
            assert facts.get("cluster", 1) == made.cluster[0]
            clusters.add(made.cluster)
    assert clusters == {(1, 1, 1), (2, 1, 1)}


def test_rows_tell_all_tiles_apart() -> None:
    tiles = {tuple(getattr(tile, name) for name in TILE_FACTS) for tile in TILES}
    assert len(tiles) == len(TILES)


def test_names_of_shapes_are_unique() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)


def test_both_sides_agree_on_the_numbers_of_values() -> None:
    assert b3_gemm.VALUES == gemm_bundle.VALUES


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_pytorch_gets_the_shapes_that_we_get(shape: Shape | Convolution) -> None:
    group = group_of(shape, parse_cuda_target(TARGET))
    work = b3_gemm.WORK[type(shape).__name__.lower()](asdict(shape))
    assert (work.a, work.b) == tuple(value.shape for value in group.inputs[:2])
    assert work.y == group.outputs[0].shape
