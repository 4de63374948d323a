"""The products that part B3 of the device queue measures: every tile, and what the compiler would take among them."""

from __future__ import annotations

import json

import pytest

from benchmarks.device import b3_gemm, gemm_bundle
from benchmarks.device.gemm_bundle import SHAPES, TARGET, Shape, candidates, device_launch, group_of
from tilestitch.codegen.cuda.contraction import matmul_product
from tilestitch.codegen.cuda.gemm_wgmma import TILES
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.runtime.program import DeviceLaunch


@pytest.mark.parametrize("shape", [Shape("small", 300, 256, 128, epilogue=True), Shape("tall", 256, 256, 65536)])
def test_every_kernel_is_listed_once_and_one_is_planned(shape: Shape) -> None:
    group = group_of(shape, parse_cuda_target(TARGET))
    found = list(candidates(shape, group))
    assert [facts["planned"] for facts, _ in found].count(True) == 1
    fitting = [tile for tile in TILES if tile.suits(matmul_product(group))]
    assert len(found) == len(fitting) + 1 + (shape.name == "tall")
    (output,) = group.outputs
    for _, launches in found:
        for launch in launches:
            made = device_launch(launch, "k", output.name)
            assert DeviceLaunch.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_names_of_shapes_are_unique() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)


def test_both_sides_agree_on_the_numbers_of_values() -> None:
    assert b3_gemm.VALUES == gemm_bundle.VALUES
