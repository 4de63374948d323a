"""`tilestitch plan`: a plan is shown, edited by hand, compared, replayed and checked."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.models import transformer
from tilestitch.compiler.cli.main import main
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.program import DeviceStep

TARGET = "emulator:sm_80"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and its artifact for the emulated device."""
    folder = tmp_path_factory.mktemp("plan")
    model, artifact = folder / "model.onnx", folder / "model.tsm"
    onnx.save(transformer(layers=1, hidden=32, sequence=16), model)
    assert main(["compile", str(model), "-o", str(artifact), "--target", TARGET]) == 0
    return model, artifact


def shown(artifact: Path, capsys: pytest.CaptureFixture[str]) -> dict:  # type: ignore[type-arg]
    capsys.readouterr()
    assert main(["plan", "show", str(artifact)]) == 0
    return json.loads(capsys.readouterr().out)


def test_replaying_a_plan_gives_the_same_bytes(
    compiled: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = compiled
    plan, again = tmp_path / "plan.json", tmp_path / "again.tsm"
    plan.write_text(json.dumps(shown(artifact, capsys)))
    assert main(["compile", str(model), "-o", str(again), "--target", TARGET, "--plan", str(plan)]) == 0
    assert again.read_bytes() == artifact.read_bytes()


def test_an_edited_tile_is_obeyed_and_shows_as_one_difference(
    compiled: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = compiled
    plan = shown(artifact, capsys)
    group = next(g for g in plan["groups"] if g["schedule"] and g["schedule"]["template"] == "gemm")
    tile = {"template": "simt", "bm": 64, "bn": 64, "bk": 16, "tm": 4, "tn": 4, "slices": 1}
    assert group["schedule"]["tile"] != tile
    group["schedule"]["tile"], group["schedule"]["split_k"] = tile, 1
    plan["launches"] = plan["edges"] = None
    edited, out = tmp_path / "edited.json", tmp_path / "edited.tsm"
    edited.write_text(json.dumps(plan))
    assert main(["compile", str(model), "-o", str(out), "--target", TARGET, "--plan", str(edited)]) == 0
    capsys.readouterr()
    assert main(["plan", "diff", str(artifact), str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["differences"]
    name = group["name"]
    assert found and all(one["path"].startswith((f"groups[{name}].schedule", f"launches.{name}.")) for one in found)
    assert main(["explain", str(out), "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    (kernel,) = (k for k in kernels if k["name"] == group["name"])
    assert [launch["block"] for launch in kernel["launches"] if launch["symbol"].startswith("gemm")] == [[256, 1, 1]]


def compiled_by(plan: dict, compiled: tuple[Path, Path], tmp_path: Path) -> tuple[int, Path]:  # type: ignore[type-arg]
    """The exit code of compiling by an edited plan, and the artifact."""
    edited, out = tmp_path / "edited.json", tmp_path / "edited.tsm"
    edited.write_text(json.dumps(plan))
    return main(["compile", str(compiled[0]), "-o", str(out), "--target", TARGET, "--plan", str(edited)]), out


def test_one_more_edge_is_obeyed(
    compiled: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = shown(compiled[1], capsys)
    pairs = {(before, after) for before, after, *_ in plan["edges"]}
    last = len(plan["launches"]) - 1
    assert (0, last) not in pairs
    plan["edges"].append([0, last, "full", "by hand"])
    code, out = compiled_by(plan, compiled, tmp_path)
    assert code == 0
    (step,) = read_artifact(out).programs[0].steps
    assert isinstance(step, DeviceStep)
    assert {(edge.before, edge.after) for edge in step.edges} == {*pairs, (0, last)}


def test_an_edge_that_is_needed_cannot_be_taken_out(
    compiled: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = shown(compiled[1], capsys)
    _, after, _, reason = plan["edges"].pop(2)
    code, _ = compiled_by(plan, compiled, tmp_path)
    said = capsys.readouterr().err
    assert code == 1
    assert f"launch {after} (" in said and f"must wait for {reason}: no edges lead from" in said


@pytest.mark.parametrize("edge", [[3, 3, "full", ""], [4, 2, "full", ""], [0, 10**6, "full", ""], [0, 1, "later", ""]])
def test_edges_that_make_no_sense_are_refused(
    edge: list,
    compiled: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],  # type: ignore[type-arg]
) -> None:
    plan = shown(compiled[1], capsys)
    plan["edges"].append(edge)
    assert compiled_by(plan, compiled, tmp_path)[0] == 1
    assert "edge" in capsys.readouterr().err


def test_a_launch_that_its_schedule_does_not_give_is_refused(
    compiled: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = shown(compiled[1], capsys)
    right = list(plan["launches"][1]["grid"])
    plan["launches"][1]["grid"] = [right[0] + 1, 1, 1]
    assert compiled_by(plan, compiled, tmp_path)[0] == 1
    assert f"grid is [{right[0] + 1}, 1, 1], its schedule gives {right}" in capsys.readouterr().err


def test_temporaries_that_overlap_are_refused(
    compiled: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = shown(compiled[1], capsys)
    found = plan["buffers"]["temporaries"]
    assert found, "rows after a GEMM read what it stores in temporary memory"
    plan["buffers"]["temporaries"] = [[*each[:2], 0, each[3]] for each in found]
    assert compiled_by(plan, compiled, tmp_path)[0] == 1
    assert "temporary" in capsys.readouterr().err


def test_equal_plans_differ_in_nothing(compiled: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, artifact = compiled
    capsys.readouterr()
    assert main(["plan", "diff", str(artifact), str(artifact)]) == 0
    assert capsys.readouterr().out == "the plans decide the same\n"


def test_a_plan_that_fits_is_said_to_fit(compiled: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, artifact = compiled
    assert main(["plan", "check", str(artifact), str(model), "--target", TARGET]) == 0
    assert "fits" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["cpu", "emulator:sm_90a"])
def test_a_plan_for_another_machine_is_refused(
    compiled: tuple[Path, Path], target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = compiled
    assert main(["plan", "check", str(artifact), str(model), "--target", target]) == 1
    assert "it was made for" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "x"}', "null", "7"])
def test_what_is_no_plan_is_refused_by_the_name_of_its_file(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.json"
    file.write_text(text)
    assert main(["plan", "show", str(file)]) == 1
    assert "broken.json" in capsys.readouterr().err
