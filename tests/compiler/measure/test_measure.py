"""Kernels of small models are measured on this machine: each has a record, and random plans compute the same."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.models import cnn, transformer
from tilestitch.compiler.measure.__main__ import main
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.training.record_files import read_records


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    for name, model in (("cnn", cnn()), ("transformer", transformer())):
        onnx.save(model, folder / f"{name}.onnx")
    models = [str(folder / f"{name}.onnx") for name in ("cnn", "transformer")]
    few = ["--plans", "2", "--schedules", "2", "--rounds", "2"]
    assert main([*models, "--records", str(folder / "r.db"), "--export", str(folder / "r.jsonl.gz"), *few]) == 0
    return folder


def test_records_are_of_both_models_with_schedules_and_facts(measured: Path) -> None:
    records = read_records(measured / "r.db")
    assert {record.model for record in records} == {"cnn", "transformer"}
    assert all(isinstance(record.kernel, KernelFacts) and record.latency_us > 0 for record in records)
    assert {part.template for record in records for part in record.kernel.parts} >= {
        "cpu_conv",
        "cpu_gemm",
        "cpu_loops",
    }
    of_a_structure = {record.structure: 0 for record in records}
    for record in records:
        of_a_structure[record.structure] += 1
    assert max(of_a_structure.values()) > 1


def test_exported_records_are_imported_into_another_file(measured: Path, tmp_path: Path) -> None:
    assert main(["--records", str(tmp_path / "r.db"), "--import", str(measured / "r.jsonl.gz")]) == 0
    assert read_records(tmp_path / "r.db") == read_records(measured / "r.db")


def test_a_model_that_is_none_is_left_out_and_told(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.onnx").write_text("no model")
    assert main([str(tmp_path / "odd.onnx"), "--records", str(tmp_path / "r.db")]) == 1
    assert "left out" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--plans", "--schedules", "--rounds", "--threads"])
def test_none_of_what_is_measured_is_no_measurement(option: str, measured: Path) -> None:
    with pytest.raises(SystemExit):
        main([str(measured / "cnn.onnx"), "--records", str(measured / "none.db"), option, "0"])
    assert not (measured / "none.db").exists()


def test_a_planner_makes_the_first_plan_and_a_model_another(tmp_path: Path) -> None:
    onnx.save(cnn(), tmp_path / "cnn.onnx")
    counts = []
    for more in (["--planner", "none"], [], ["--searched", "random"]):
        few = ["--plans", "1", "--schedules", "1", "--rounds", "1", "--records", str(tmp_path / f"{len(counts)}.db")]
        assert main([str(tmp_path / "cnn.onnx"), *few, *more]) == 0
        counts.append(len(read_records(tmp_path / f"{len(counts)}.db")))
    assert counts[0] > counts[1] and counts[2] >= counts[1]
