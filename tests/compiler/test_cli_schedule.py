"""`tilestitch explain --schedule` and `--trace`: predicted schedules of launches on GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilestitch.compiler.cli.main import main


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Three matmuls of one input, each with a softmax, and their sum."""
    weights = [numpy_helper.from_array(np.roll(np.eye(32, dtype=np.float32), i, 0), f"w{i}") for i in range(3)]
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"m{i}"]) for i in range(3)]
    nodes += [helper.make_node("Softmax", [f"m{i}"], [f"s{i}"]) for i in range(3)]
    nodes.append(helper.make_node("Sum", [f"s{i}" for i in range(3)], ["y"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 32]) for name in "xy")
    graph = helper.make_graph(nodes, "branches", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def test_the_schedule_is_printed_and_traced(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact, trace = str(tmp_path / "m.tsm"), tmp_path / "trace.json"
    given = ["compile", model, "-o", artifact, "--target", "emulator:sm_80", "--planner", "none"]
    assert main([*given, "--branch-memory", "60000"]) == 0
    capsys.readouterr()
    assert main(["explain", artifact, "--schedule", "--trace", str(trace)]) == 0
    said = capsys.readouterr().out
    assert "predicted on A100" in said and "critical path (*)" in said and "waits for %m" in said
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert len({event["tid"] for event in events if event["ph"] == "X"}) > 1
    assert main(["explain", artifact, "--json"]) == 0
    schedule = json.loads(capsys.readouterr().out)["schedule"]
    assert schedule["arena_bytes"] <= schedule["one_at_a_time_bytes"] + 60000


def test_a_cpu_has_none(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = str(tmp_path / "m.tsm")
    assert main(["compile", model, "-o", artifact]) == 0
    assert main(["explain", artifact, "--schedule"]) == 1
    assert "compile it for a GPU" in capsys.readouterr().err


@pytest.mark.parametrize("nbytes", ["-1", "1.5", "many", ""])
def test_odd_numbers_of_bytes_are_refused(
    nbytes: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["compile", model, "-o", str(tmp_path / "m.tsm"), f"--branch-memory={nbytes}"])
    assert "is no number of bytes" in capsys.readouterr().err
