"""What commands may write: never over their own inputs, never over what is no file; and all or nothing."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.models import cnn
from tilestitch.compiler.cli import errors, main
from tilestitch.compiler.driver import compile_model
from tilestitch.runtime import archive

CLI = [sys.executable, "-m", "tilestitch.compiler.cli"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(cnn(), path)
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The complaint of a command whose arguments make no sense."""
    assert main.main([*map(str, arguments)]) == errors.USER
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ")
    assert "internal error" not in complaint
    return complaint


# --- an output is never an input ---


def symlinked(path: Path) -> Path:
    other = path.with_name("symlink")
    other.symlink_to(path)
    return other


def hard_linked(path: Path) -> Path:
    other = path.with_name("hardlink")
    os.link(path, other)
    return other


@pytest.mark.parametrize(
    "spelled",
    [lambda path: path, lambda path: path.parent / "." / path.name, symlinked, hard_linked, os.path.relpath],
    ids=["same", "dot", "symlink", "hard link", "relative"],
)
@pytest.mark.parametrize("option", ["-o", "--report"])
def test_compile_never_replaces_its_model(
    option: str, spelled: object, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model.read_bytes()
    output = spelled(model)  # type: ignore[operator]
    other = ["-o", model.with_name("fresh.tsm")] if option != "-o" else []
    assert str(model) in refused(capsys, "compile", model, *other, option, output)
    assert model.read_bytes() == before


def test_compile_replaces_neither_plan_nor_external_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 64]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model, data, plan = tmp_path / "m.onnx", tmp_path / "m.data", tmp_path / "plan.json"
    onnx.save(proto, model, save_as_external_data=True, location="m.data", size_threshold=0)
    plan.write_text("{}")
    before = data.read_bytes()
    assert "m.data" in refused(capsys, "compile", model, "-o", data)
    assert "plan.json" in refused(capsys, "compile", model, "-o", plan, "--plan", plan)
    assert data.read_bytes() == before


def test_the_outputs_of_one_command_are_different_files(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = model.with_name("both")
    assert "both" in refused(capsys, "compile", model, "-o", both, "--report", both)
    weights = model.with_name("m.tsm.weights.safetensors")
    refused(capsys, "compile", model, "-o", model.with_name("m.tsm"), "--strip-weights", "--report", weights)
    assert not both.exists()


def test_stripped_weights_never_replace_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unlucky = model.with_name("m.tsm.weights.safetensors")
    model.rename(unlucky)
    before = unlucky.read_bytes()
    refused(capsys, "compile", unlucky, "-o", model.with_name("m.tsm"), "--strip-weights")
    assert unlucky.read_bytes() == before


@pytest.mark.parametrize("inside", ["final.onnx", "0/final.onnx"])
def test_dumps_never_replace_the_model(inside: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model.with_name("ir")
    unlucky = folder / inside
    unlucky.parent.mkdir(parents=True)
    shutil.copy(model, unlucky)
    output = model.with_name("m.tsm")
    assert "final.onnx" in refused(capsys, "compile", unlucky, "-o", output, "--dump-ir", folder)
    assert unlucky.read_bytes() == model.read_bytes()


def test_run_explain_and_bench_never_replace_their_inputs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact, array = model.with_name("m.tsm"), model.with_name("x.npy")
    compile_model(model).save(artifact)
    np.save(array, np.zeros((1, 3, 16, 16), np.float32))
    before = artifact.read_bytes(), array.read_bytes()
    refused(capsys, "run", artifact, "-o", artifact)
    refused(capsys, "run", artifact, "--input", f"x={array}", "-o", array)
    refused(capsys, "explain", artifact, "--report", artifact)
    refused(capsys, "bench", artifact, "--rounds", "1", "--trace", artifact)
    assert (artifact.read_bytes(), array.read_bytes()) == before


# --- an output is a regular file ---


@pytest.mark.parametrize("name", ["device", "pipe", "link"])
def test_what_is_no_regular_file_is_not_replaced(name: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = model.with_name("pipe")
    os.mkfifo(output)
    if name == "link":
        output = symlinked(output)
    if name == "device":
        output = Path(os.devnull)
    for arguments in (["-o", output], ["-o", model.with_name("m.tsm"), "--report", output]):
        assert "no regular file" in refused(capsys, "compile", model, *arguments)
    assert not output.is_file()
    with pytest.raises(archive.ArtifactWriteError, match="no regular file"), archive.atomic_file(output):
        pass


@pytest.mark.parametrize("command", ["compile", "run", "explain", "bench"])
def test_an_empty_name_is_named(command: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    option = {"compile": "-o", "run": "-o", "explain": "--report", "bench": "--trace"}[command]
    assert "is empty" in refused(capsys, command, model, option, "")
    assert "is empty" in refused(capsys, "compile", "", "-o", model.with_name("m.tsm"))
    assert "is empty" in refused(capsys, "compile", model, "-o", model.with_name("m.tsm"), "--dump-ir", "")


def test_a_folder_for_dumps_that_is_a_file_is_refused_first(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = model.with_name("m.tsm")
    assert "is a file" in refused(capsys, "compile", model, "-o", output, "--dump-ir", model)
    assert not output.exists()


@pytest.mark.parametrize("options", [["-o", "m.tsm"], ["-o", "../m.tsm", "--dump-ir", "new/dumps"]])
def test_a_folder_that_cannot_be_written_is_refused_first(
    options: list[str], model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = model.with_name("locked")
    locked.mkdir()
    monkeypatch.chdir(locked)
    access = os.access  # root may write anywhere
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).resolve() != locked and access(path, mode))
    assert "cannot be written to; name a" in refused(capsys, "compile", model, *options)
    assert not list(locked.iterdir())


@pytest.mark.parametrize("seed", ["-1", "x"])
@pytest.mark.parametrize("command", [["run", "m.tsm"], ["example", "resnet50", "-o", "m.onnx"]])
def test_a_seed_is_a_natural_number(command: list[str], seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main([*command, "--seed", seed])
    assert stop.value.code == errors.USER
    assert "--seed" in capsys.readouterr().err


def test_names_of_files_need_be_no_unicode_text(model: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    artifact, page = (os.fsencode(model.parent) + name for name in (b"/m\xff.tsm", b"/\xfe.html"))
    for arguments in (["compile", model, "-o", artifact], ["explain", artifact, "--report", page], ["run", artifact]):
        done = subprocess.run([*CLI, *arguments], capture_output=True, env=environment, check=False)
        assert (done.returncode, done.stderr) == (errors.OK, b"")
    assert os.path.exists(artifact) and os.path.exists(page)


# --- all or nothing ---

LIMITED = """
import resource, sys
from tilestitch.compiler.cli import main
import tilestitch.codegen.cpu.backend, tilestitch.compiler.frontend
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main.main(sys.argv[2:]))
"""


def limited(most_bytes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command in a process whose files must not become larger: what a full disk does to them."""
    command = [sys.executable, "-c", LIMITED, str(most_bytes), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_full_disk_leaves_neither_artifact_nor_weights(tmp_path: Path) -> None:
    compiled = compile_model(cnn(), strip_weights=True)
    compiled.save(tmp_path / "m.tsm")
    weights = tmp_path / "m.tsm.weights.safetensors"
    artifact_bytes, weights_bytes = (tmp_path / "m.tsm").stat().st_size, weights.stat().st_size
    assert artifact_bytes > weights_bytes, "the limit must let the weights through, and not the artifact"
    weights.unlink()
    (tmp_path / "m.tsm").write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (weights_bytes, limits[1]))
    try:
        with pytest.raises(archive.ArtifactWriteError, match=r"m\.tsm"):
            compiled.save(tmp_path / "m.tsm")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["m.tsm"]
    assert (tmp_path / "m.tsm").read_text() == "old"


def test_a_full_disk_is_named_by_the_dump_that_failed(model: Path) -> None:
    done = limited(100, "compile", model, "-o", model.with_name("m.tsm"), "--dump-ir", model.with_name("ir"))
    assert done.returncode == errors.ENVIRONMENT
    assert ".tsir: cannot be written" in done.stderr
    assert not list(model.with_name("ir").iterdir())


@pytest.mark.parametrize("name", ["other.onnx", "other.tsm", "other.safetensors", "other.ONNX"])
def test_outputs_of_a_run_replace_no_model(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_model(cnn()).save(tmp_path / "m.tsm")
    (tmp_path / name).write_text("old")
    assert "name an .npz file" in refused(capsys, "run", tmp_path / "m.tsm", "-o", tmp_path / name)
    assert (tmp_path / name).read_text() == "old"


TERMINATED = """
import signal, sys, time
from tilestitch.compiler.cli import doctor, main
from tilestitch.runtime.archive import atomic_file
def wait(options):
    with atomic_file(sys.argv[1]) as file:
        file.write(b"half")
        print("writing", flush=True)
        time.sleep(60)
doctor.run = wait
sys.exit(main.main(["doctor"]))
"""


def test_termination_is_exit_code_143_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TERMINATED, str(tmp_path / "file")]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, complaint = process.communicate(timeout=30)
    assert process.returncode == errors.TERMINATED
    assert complaint.strip() == "terminated"
    assert not list(tmp_path.iterdir())


def test_signals_are_as_before_after_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main.main(["explain", "nowhere.tsm"]) == errors.USER
    assert signal.getsignal(signal.SIGTERM) == before
