"""What `explain --launches` says of machine code."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("cuda.bindings.nvrtc")

from tilestitch.codegen.cuda.machine_code import disassemble
from tilestitch.codegen.errors import DisassemblerError
from tilestitch.compiler.cli import errors, main


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return compiled(tmp_path, [1024])


def compiled(tmp_path: Path, shape: list[int | str]) -> Path:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", value[:1], value[1:])
    model, path = tmp_path / "relu.onnx", tmp_path / "relu.tsm"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), model)
    command = ["compile", str(model), "-o", str(path), "--target", "cuda:sm_80,sm_90a", "--cache", "off"]
    assert main.main(command) == errors.OK
    return path


def test_instructions_and_widths_of_each_architecture(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main.main(["explain", str(artifact), "--launches", "--json"]) == errors.OK
    rows = json.loads(capsys.readouterr().out)["machine_code"]
    assert [row["architecture"] for row in rows] == ["sm_80", "sm_90a"]
    for row in rows:
        assert (row["widest_load_bytes"], row["widest_store_bytes"], row["findings"]) == (16, 16, [])
        assert row["instructions"] == sum(row["groups"].values())
        assert row["instructions_per_byte"] == pytest.approx(row["instructions"] * 256 / 8192, rel=1e-3)
    assert main.main(["explain", str(artifact), "--launches"]) == errors.OK
    assert rows[0]["symbol"] in capsys.readouterr().out.partition("per byte")[2]


def test_of_open_sizes_bytes_are_not_counted_and_grids_are_expressions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compiled(tmp_path, ["rows", "columns"])
    for sizes, grid in ([], "(columns * rows + 255) // 256"), (["--dim", "rows=3,columns=1024"], 12):
        capsys.readouterr()
        assert main.main(["explain", str(path), "--launches", "--json", *sizes]) == errors.OK
        told = json.loads(capsys.readouterr().out)
        assert {row["instructions_per_byte"] for row in told["machine_code"]} == {None}
        assert told["kernels"][0]["launches"][0]["grid"] == [grid, 1, 1]


def test_without_a_disassembler_the_rest_is_said(
    artifact: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise DisassemblerError("nvdisasm is not installed; pip install it")

    monkeypatch.setattr(disassemble, "find_disassembler", missing)
    capsys.readouterr()
    assert main.main(["explain", str(artifact), "--launches"]) == errors.OK
    told = capsys.readouterr().out
    assert "blocks/SM" in told
    assert "machine code not read: nvdisasm is not installed; pip install it" in told
