"""The command line and plug-ins: warnings, what is left out, what doctor says; hints that name what exists."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import doctor, errors, main
from tilestitch.compiler.cli.example import NAMES
from tilestitch.compiler.example_models import EXAMPLES
from tilestitch.passes.api import PluginWarning
from tilestitch.passes.plugins import load
from tilestitch.runtime import load as load_artifact

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]

GOOD = """
from dataclasses import dataclass
from typing import ClassVar
from tilestitch.passes.api import GraphPass, PassResult

@dataclass(frozen=True)
class Good(GraphPass):
    name: ClassVar[str] = "good"

    def run(self, graph, context):
        return PassResult(graph, False, ("was here",))

@dataclass(frozen=True)
class Needy(Good):
    word: str
    name: ClassVar[str] = "needy"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three entry points of installed packages: one that works, one that needs an argument, one that is broken."""
    (tmp_path / "good_package.py").write_text(GOOD)
    (tmp_path / "broken_package.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    entries = tuple(
        importlib.metadata.EntryPoint(name, value, load.ENTRY_POINT_GROUP)
        for name, value in (("good", "good_package:Good"), ("needy", "good_package:Needy"), ("bad", "broken_package:X"))
    )
    monkeypatch.setattr(load, "entry_points", lambda: entries)
    (tmp_path / "m.onnx").write_bytes(EXAMPLES["mlp"](0).SerializeToString())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def notes(folder: Path) -> list[str]:
    from tilestitch.compiler.cli.explain import read_explain

    return [note["note"] for note in read_explain(folder / "m.tsm")["notes"] if note["pass"] == "good"]


def test_a_broken_package_is_named_in_a_warning_and_the_rest_works(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["compile", "m.onnx", "-o", "m.tsm"]) == errors.OK
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("warning: broken_package:X: broken_package:X cannot be loaded: ModuleNotFoundError")
    assert line.endswith("broken_package.py:1; it takes no part")
    assert notes(installed) == ["was here"]


def test_in_python_the_warning_is_a_warning(installed: Path) -> None:
    with pytest.warns(PluginWarning, match="not_there_at_all"):
        compile_model("m.onnx")


def test_no_plugins_leaves_out_what_is_installed(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["compile", "m.onnx", "-o", "m.tsm", "--no-plugins"]) == errors.OK
    assert capsys.readouterr().err == ""
    assert notes(installed) == []
    assert "broken_package" not in sys.modules


def test_explain_lists_plugins_with_their_arguments(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["compile", "m.onnx", "-o", "m.tsm", "--pass", "needy{word=now}"]) == errors.OK
    assert main.main(["explain", "m.tsm"]) == errors.OK
    said = capsys.readouterr().out
    assert "plug-ins: needy{word=now} (good_package:Needy), good (good_package:Good)" in said


def test_explain_shows_notes(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["compile", "m.onnx", "-o", "m.tsm"]) == errors.OK
    assert main.main(["explain", "m.tsm"]) == errors.OK
    said = capsys.readouterr().out
    assert "notes of passes:\n" in said and "\n  good: was here\n" in said


def test_doctor_lists_plugins_and_says_which_are_broken(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main.main(["doctor", "--json"])
    found = {p["name"]: p for p in json.loads(capsys.readouterr().out)["plugins"]}
    assert found["good"]["problem"] == found["good"]["remark"] == ""
    assert "not_there_at_all" in found["bad"]["problem"]
    assert found["needy"]["remark"] == "takes part where it is named, with word"
    main.main(["doctor"])
    assert "good (good_package:Good): ok" in capsys.readouterr().out


def test_running_a_model_imports_no_plugin(installed: Path) -> None:
    with pytest.warns(PluginWarning):
        compile_model("m.onnx").save("m.tsm")
    for name in ("good_package", "broken_package"):
        sys.modules.pop(name, None)
    assert main.main(["run", "m.tsm"]) == errors.OK
    assert "good_package" not in sys.modules


# -- what to install ---------------------------------------------------------------------------------------------------


def extras() -> dict[str, list[str]]:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed: dict[str, list[str]] = data["project"]["optional-dependencies"]
    return {extra: [re.split(r"[<>=\[]", entry)[0] for entry in entries] for extra, entries in listed.items()}


def sources() -> list[Path]:
    folders = ("runtime", "compiler", "cost_model", "passes", "codegen")
    return [*(p for f in folders for p in (ROOT / f).rglob("*.py")), ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


def test_every_extra_that_a_hint_names_exists() -> None:
    named = {
        extra.strip()
        for path in sources()
        for group in re.findall(r"(?:tilestitch|'\.)\[([\w, -]+)\]'", path.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    assert named and named <= set(extras())


def test_the_extra_that_a_missing_package_is_told_brings_it() -> None:
    distributions = {"tvm": "apache-tvm", "tvm_ffi": "apache-tvm-ffi"}
    for module, extra in main.EXTRAS.items():
        assert distributions.get(module, module) in extras()[extra]


def test_the_extra_that_doctor_names_brings_the_packages() -> None:
    for use, extra in doctor.EXTRAS.items():
        assert set(doctor.PACKAGES[use]) <= set(extras()[extra])


def test_doctor_reports_nvrtc_and_compilers(capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["doctor", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["tools"]) == {"C++", "C", "nvcc"}
    nvrtc = facts["nvrtc"]
    assert nvrtc["problem"] or (90 in nvrtc["architectures"] and Path(nvrtc["headers"], "cuda_fp16.h").exists())


def test_doctor_tells_how_to_get_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tilestitch.codegen.cuda.toolchain import nvrtc

    def missing() -> None:
        raise nvrtc.NvrtcMissingError("not there")

    monkeypatch.setattr(nvrtc, "version", missing)
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    monkeypatch.setenv("PATH", "")
    main.main(["doctor"])
    said = capsys.readouterr().out
    for part in ("apt-get install g++", "'tilestitch[cuda-compiler]'", "'tilestitch[check]'", "nvrtc    not there"):
        assert part in said


# -- examples ----------------------------------------------------------------------------------------------------------


def test_the_command_offers_the_examples_that_there_are() -> None:
    assert set(NAMES) == set(EXAMPLES)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_an_example_is_the_same_every_time_and_computes_finite_numbers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert main.main(["example", name, "-o", str(path)]) == errors.OK
    assert path.read_bytes() == EXAMPLES[name](0).SerializeToString() != EXAMPLES[name](1).SerializeToString()
    (spec,) = (load_artifact(compile_model(path).to_bytes())).inputs
    with load_artifact(compile_model(path).to_bytes()) as module:
        (output,) = module.run({spec.name: np.ones(spec.shape, spec.dtype)}).values()
    assert np.isfinite(output).all() and output.std() > 0


def test_resnet50_has_its_layers() -> None:
    model = EXAMPLES["resnet50"](0)
    onnx.checker.check_model(model, full_check=True)
    ops = [node.op_type for node in model.graph.node]
    assert (ops.count("Conv"), ops.count("MatMul")) == (53, 1)
    parameters = sum(int(np.prod(w.dims)) for w in model.graph.initializer)
    assert parameters == 25_557_032 + 2 * 26_560, "those of the published network, and the running statistics"
