"""Sizes of open dimensions on the command line: inputs are made up accordingly, and wrong ones are one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tilestitch.codegen import assemble
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.cli import errors, main

pytest.importorskip("onnxruntime")

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, past, 2] x, float[batch, new, 2] w) => (float[batch, t, 2] y)
{ n = Neg(w)  y = Concat<axis=1>(x, n) }"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sizes")
    onnx.save(onnx.parser.parse_model(TEXT), path / "m.onnx")
    assert main.main(["compile", str(path / "m.onnx"), "-o", str(path / "m.tsm"), "--dim", "batch=1..8"]) == errors.OK
    return path


def told(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """What a command says: its answer, or its error."""
    capsys.readouterr()
    assert main.main([*map(str, arguments)]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def test_compile_tells_the_ranges_and_which_are_defaults(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("compile", folder / "m.onnx", "-o", folder / "n.tsm", "--dim", "batch=1..8")
    assert "compiled for batch 1..8, past 1.. (default), new 1.. (default)\n" in told(capsys, errors.OK, *command)
    first, empty, *_ = json.loads(told(capsys, errors.OK, *command, "--json"))["sizes"]
    assert {"name": "batch", "low": 1, "high": 8, "default": False} in first
    assert {"name": "past", "low": 0, "high": 0, "default": True} in empty


@pytest.mark.parametrize(
    ("dims", "shape"), [(["batch=2,past=3,new=4"], [2, 7, 2]), (["batch=1", "past=0, new=1"], [1, 1, 2])]
)
def test_inputs_have_the_sizes_that_are_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str], dims: list[str], shape: list[int]
) -> None:
    sizes = [part for text in dims for part in ("--dim", text)]
    (output,) = json.loads(told(capsys, errors.OK, "run", folder / "m.tsm", *sizes, "--json"))["outputs"]
    assert output["shape"] == shape
    (checked,) = json.loads(told(capsys, errors.OK, "check", folder / "m.tsm", folder / "m.onnx", *sizes, "--json"))[
        "outputs"
    ]
    assert (checked["shape"], checked["ok"]) == (shape, True)
    assert "tilestitch" in told(capsys, errors.OK, "bench", folder / "m.tsm", *sizes, "--rounds", 1, "--warmup", 1)


def test_inputs_from_files_give_sizes_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "x.npy", np.ones((2, 5, 2), np.float32))
    given = ("run", folder / "m.tsm", "--input", f"x={folder / 'x.npy'}")
    (output,) = json.loads(told(capsys, errors.OK, *given, "--dim", "new=1", "--json"))["outputs"]
    assert output["shape"] == [2, 6, 2]
    assert "--dim past=4, but input x has 5 there" in told(capsys, errors.USER, *given, "--dim", "new=1,past=4")


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (["bach=2"], "--dim bach: no input has such an open dimension; there are batch:1..8, past:0.., new:0.."),
        (["batch=9"], "--dim batch=9: the artifact was compiled for sizes from 1 to 8"),
        (["batch=2"], "or sizes: --dim past=N,new=N"),
        (["batch=2", "batch=3"], "--dim batch is given as 2 and as 3"),
    ],
)
@pytest.mark.parametrize("command", ["run", "explain"])
def test_wrong_sizes_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, dims: list[str], message: str
) -> None:
    if command == "explain" and message.startswith("or sizes"):
        message = "sizes of past, new are missing; add --dim past=N"
    sizes = [part for text in dims for part in ("--dim", text)]
    assert message in told(capsys, errors.USER, command, folder / "m.tsm", *sizes)


@pytest.mark.parametrize("text", ["batch", "batch=", "=3", "batch=x", "batch=-1", "batch=2,,", "batch=1..2"])
def test_text_that_is_no_size_is_wrong_usage(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(["run", str(folder / "m.tsm"), "--dim", text])
    assert stop.value.code == errors.USER
    assert "is not of the form NAME=8,NAME=77" in capsys.readouterr().err


def test_explain_speaks_of_the_specialisation_that_runs_the_sizes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("explain", folder / "m.tsm", "--json", "--dim")
    large = json.loads(told(capsys, errors.OK, *command, "batch=4,past=1000,new=3000"))
    assert (large["at"]["specialisation"], large["at"]["sizes"]["past"]) == (0, 1000)
    assert all(isinstance(launch["tasks"], int) for kernel in large["kernels"] for launch in kernel["launches"])
    assert json.loads(told(capsys, errors.OK, *command, "batch=4,past=0,new=3"))["at"]["specialisation"] == 1


def test_a_static_artifact_has_no_sizes_to_give(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    static = folder / "s.tsm"
    command = ("compile", folder / "m.onnx", "-o", static, "--shape", "x=1x2x2", "--shape", "w=1x2x2")
    assert "compiled for" not in told(capsys, errors.OK, *command)
    assert "there are none" in told(capsys, errors.USER, "run", static, "--dim", "batch=1")


def test_why_open_dimensions_are_left_to_the_host_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kernel of ours that cannot be compiled would be, which must not go unnoticed."""

    def failing_once(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        raise KernelError("kernel k cannot be compiled: no reason", ["Exp_0"])

    monkeypatch.setattr(assemble, "assemble", failing_once)
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Exp(x) }'
        ),
        tmp_path / "m.onnx",
    )
    capsys.readouterr()
    assert main.main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tsm")]) == errors.OK
    reason = "not all sizes can be compiled: kernel k cannot be compiled: no reason (ONNX nodes: Exp_0)"
    assert reason in capsys.readouterr().err
    assert reason in told(capsys, errors.OK, "explain", tmp_path / "m.tsm")


def test_sizes_that_the_data_decides_are_not_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b] x, bool[b] m) => (float[n] y) { c = Compress(x, m)  y = Exp(c) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    facts = json.loads(told(capsys, errors.OK, "compile", tmp_path / "m.onnx", "-o", tmp_path / "m.tsm", "--json"))
    assert [[symbol["name"] for symbol in sizes] for sizes in facts["sizes"]] == [["b"], ["b"]]
    explained = json.loads(told(capsys, errors.OK, "explain", tmp_path / "m.tsm", "--json", "--dim", "b=7"))
    assert explained["at"]["sizes"] == {"b": 7}
    assert facts["kernels"] == len(explained["kernels"]) > len([k for k in explained["kernels"] if "body" not in k])
