"""Models to train on: the same for the same seed, and of templates that other models have few kernels of."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kernel_models import main
from benchmarks.kernel_operators import FAMILIES, OPERATORS, model_of
from tilestitch.compiler.frontend import import_model
from tilestitch.passes import PassContext, TargetInfo, make_plan, run_pipeline

TEMPLATES = {
    "vgg_pools": "cpu_window", "mobilenet_windows": "cpu_window", "decode_values": "cpu_gemv", "powers": "cpu_gemv",
    "beam": "cpu_sort", "unet_ups": "cpu_conv_transpose", "pyramid": "cpu_winograd",
}  # fmt: skip


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("planner", ["none", "xla"])
def test_a_family_has_kernels_of_its_template(family: str, planner: str) -> None:
    context = PassContext(TargetInfo("cpu", 1, isa="avx512"), {"planner": planner})
    graph = run_pipeline(import_model(model_of(family, 0)).graph, context)
    templates = [group.schedule.template for group in make_plan(graph, context).groups if group.schedule is not None]
    assert templates.count(TEMPLATES[family]) == OPERATORS


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        assert main([str(tmp_path / folder), "--operators", "--each", "1"]) == 0
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(f"{family}-0.onnx" for family in FAMILIES)
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_families_can_be_chosen(tmp_path: Path) -> None:
    assert main([str(tmp_path), "--each", "1", "--operators", "pyramid", "beam"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beam-0.onnx", "pyramid-0.onnx"]
