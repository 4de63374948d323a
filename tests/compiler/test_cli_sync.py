"""`--sync`: kernels that wait for tiles of each other, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.main import main

TARGET = "emulator:sm_80"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two GEMMs, the second one of what the first one stores."""
    random = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("up", (40, 70)), ("down", (70, 40)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["u"], name="/up"),
        helper.make_node("Relu", ["u"], ["h"], name="/relu"),
        helper.make_node("MatMul", ["h", "down"], ["y"], name="/down"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [70, 40]) for name in "xy"]
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], weights)
    path = tmp_path / "mlp.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def compiled(model: Path, name: str, *options: str, target: str = TARGET) -> Path:
    artifact = model.with_name(f"{name}.tsm")
    assert main(["compile", str(model), "-o", str(artifact), "--target", target, *options]) == errors.OK
    return artifact


def test_a_chain_is_one_kernel_that_computes_the_same(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = compiled(model, "row", "--sync", "row")
    assert main(["check", str(artifact), str(model), "--against", "reference", "--device", "emulator"]) == errors.OK
    capsys.readouterr()
    assert main(["explain", str(artifact), "--launches"]) == errors.OK
    told = capsys.readouterr().out
    assert "1 kernels" in told and "row" in told and "waves of blocks become" in told
    assert main(["explain", str(artifact), "--json"]) == errors.OK
    explained = json.loads(capsys.readouterr().out)
    (kernel,) = explained["kernels"]
    assert [(edge["policy"], edge["semaphores"]) for edge in kernel["tiles"]] == [("row", 3)]
    assert explained["options"]["sync"] == "row"


def test_what_waits_within_a_kernel_is_told_without_being_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "small.onnx"
    assert main(["example", "transformer", "-o", str(model)]) == errors.OK
    artifact = compiled(model, "bands", target="emulator:sm_90a")
    capsys.readouterr()
    assert main(["explain", str(artifact), "--launches"]) == errors.OK
    assert " band " in capsys.readouterr().out


def test_off_gives_the_same_bytes_as_no_word_of_it(model: Path) -> None:
    assert compiled(model, "off", "--sync", "off").read_bytes() == compiled(model, "default").read_bytes()


def test_a_plan_with_tickets_is_replayed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = compiled(model, "tile", "--sync", "tile")
    capsys.readouterr()
    assert main(["plan", "show", str(artifact)]) == errors.OK
    plan = model.with_name("plan.json")
    plan.write_text(capsys.readouterr().out)
    again = compiled(model, "again", "--plan", str(plan))
    capsys.readouterr()
    assert main(["plan", "diff", str(artifact), str(again), "--json"]) == errors.OK
    assert json.loads(capsys.readouterr().out)["differences"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--sync", "rows"],
            "there is no synchronisation 'rows'; give one of auto, model, model/queues, off, tile, row, strided, "
            "kernel",
        ),
        (["--sync", "row", "--target", "cpu"], "kernels of cpu follow each other; give off or auto"),
    ],
)
def test_what_there_is_not_is_refused(
    model: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options if "--target" in options else [*options, "--target", TARGET]
    assert main(["compile", str(model), "-o", str(model.with_name("no.tsm")), *given]) == errors.USER
    assert said in capsys.readouterr().err


def test_the_machine_code_has_nothing_that_it_must_not_have(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No fence in a loop that multiplies or waits, no load past the caches' coherence, nothing spilled."""
    pytest.importorskip("cuda.bindings.nvrtc")
    artifact = compiled(model, "cuda", "--sync", "tile", "--cache", "off", target="cuda:sm_80,sm_90a")
    capsys.readouterr()
    assert main(["explain", str(artifact), "--launches", "--json"]) == errors.OK
    rows = json.loads(capsys.readouterr().out)["machine_code"]
    assert [(row["architecture"], row["findings"]) for row in rows] == [("sm_80", []), ("sm_90a", [])]


def test_a_policy_of_ones_own_is_named_by_module_and_class(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = compiled(model, "own", "--sync", "examples.sync_policy:HalfRows")
    capsys.readouterr()
    assert main(["explain", str(artifact), "--json"]) == errors.OK
    explained = json.loads(capsys.readouterr().out)
    (kernel,) = explained["kernels"]
    assert [edge["policy"] for edge in kernel["tiles"]] == ["half_rows"]
    assert "half_rows" in [plugin["name"] for plugin in explained["plugins"]]


def test_a_policy_takes_arguments_and_a_form(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "tilestitch.passes.sync.policies:RowSync{rows=2}/launches"
    artifact = compiled(model, "rows", "--sync", text, target="emulator:sm_90")
    assert main(["check", str(artifact), str(model), "--against", "reference", "--device", "emulator"]) == errors.OK
    capsys.readouterr()
    assert main(["explain", str(artifact), "--launches"]) == errors.OK
    told = capsys.readouterr().out
    assert "as launches that overlap" in told and "tied  |#" in told and "apart |#" in told
    assert main(["explain", str(artifact), "--json"]) == errors.OK
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert [(edge["policy"], edge["semaphores"]) for edge in kernel["tiles"]] == [("row", 2)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("examples.sync_policy:Nothing", "has no attribute 'Nothing'"),
        ("no_such_module:Policy", "no_such_module"),
        ("tilestitch.passes.sync.bounds:Needs", "no dataclass with a `name`"),
        ("tile/branches", "there is no form 'branches'"),
        ("tile/", "there is no form ''"),
        ("off/tickets", "off has no form 'tickets'"),
        ("model/tickets", "model has no form 'tickets'"),
        ("tilestitch.passes.sync.policies:RowSync{lines=2}", "lines"),
    ],
)
def test_what_is_no_policy_is_refused(model: Path, given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", str(model), "-o", str(model.with_name("x.tsm")), "--target", TARGET, "--sync", given]
    assert main(arguments) == errors.USER
    assert said in capsys.readouterr().err
