"""The harness around ONNX's backend tests: what is compared how, what a dying worker costs, what is reported."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto

from tests.models import cnn
from tilestitch.compiler.conformance import engines, report
from tilestitch.compiler.conformance.__main__ import main
from tilestitch.compiler.conformance.cases import Case, load_cases
from tilestitch.compiler.conformance.compare import Mismatch, compare
from tilestitch.compiler.conformance.outcome import Outcome, cause, classify
from tilestitch.compiler.conformance.pool import run_all
from tilestitch.compiler.conformance.remote import remote
from tilestitch.compiler.conformance.sampling import class_of, sample
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.emulator.build import build_device

FOREIGN = "cpu:x86_64-linux-gnu/x86-64" if platform.machine() == "aarch64" else "cpu:aarch64-linux-gnu/generic"
VARIED = {
    "sequence_insert_at_back", "optional_has_element_empty_optional_input", "string_concat", "cast_FLOAT_to_BFLOAT16",
    "relu",
}  # fmt: skip

# --- cases ------------------------------------------------------------------------------------------------------------


def test_the_light_models_come_with_inputs_and_outputs() -> None:
    cases = load_cases(["light"])
    assert len(cases) == 9
    inputs, outputs = next(cases[0].data_sets())
    assert inputs[0].dtype == np.float32
    assert inputs[0].max() < 1
    assert outputs[0].shape == (1, 1000)


def test_cases_from_folders() -> None:
    cases = {case.name: case for case in load_cases(["simple"])}
    assert len(cases) == 21
    assert not any("gradient" in name for name in cases)
    inputs, outputs = next(cases["test_sequence_model1"].data_sets())
    assert [value.shape for value in inputs] == [(2, 3, 4), (1, 3, 4), (3, 3, 4)]
    assert len(outputs) == 1


def test_a_sample_is_spread_over_operators_and_types() -> None:
    cases = load_cases(["node"])
    classes = {class_of(case) for case in cases}
    chosen = sample(cases, 300)
    assert chosen == sample(cases[::-1], 300)[::-1]
    assert len({class_of(case) for case in chosen}) == len(chosen) == 300
    assert {class_of(case) for case in sample(cases, len(classes))} == classes
    assert sample(cases, 10**6) == cases


# --- comparing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (np.float32([1.0005]), np.float32([1])),
        (np.float16([1.005]), np.float16([1])),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf])),
        (np.array([1.0156], ml_dtypes.bfloat16), np.array([1], ml_dtypes.bfloat16)),
        (np.array([3], ml_dtypes.int4), np.array([3], ml_dtypes.int4)),
        (np.array(["a", "b"], object), np.array(["a", "b"], np.str_)),
        (np.zeros((0, 2)), np.zeros((0, 2))),
        ([np.ones(2)], [np.ones(2)]),
        (None, None),
    ],
)
def test_equal_enough(got: Any, want: Any) -> None:
    compare([got], [want])


@pytest.mark.parametrize(
    ("got", "want", "aspect"),
    [
        (np.float32([1.01]), np.float32([1]), "value"),
        (np.float64([np.nan]), np.float64([1]), "value"),
        (np.int64([1]), np.int64([2]), "value"),
        (np.array(["a"], object), np.array(["b"], object), "value"),
        (np.float32([1]), np.float64([1]), "dtype"),
        (np.ones((1, 2)), np.ones(2), "shape"),
        ([np.ones(2)], [np.ones(2)] * 2, "structure"),
        (np.ones(2), [np.ones(2)], "structure"),
        (None, np.ones(2), "structure"),
    ],
)
def test_not_equal(got: Any, want: Any, aspect: str) -> None:
    with pytest.raises(Mismatch) as mismatch:
        compare([got], [want])
    assert mismatch.value.aspect == aspect


def test_a_case_widens_tolerances_and_never_narrows_them() -> None:
    compare([np.float32([1.01])], [np.float32([1])], rtol=0.1)
    compare([np.float32([1.0005])], [np.float32([1])], rtol=1e-9)


def test_the_number_of_outputs_counts() -> None:
    with pytest.raises(Mismatch, match="2 values instead of 1"):
        compare([np.ones(1)] * 2, [np.ones(1)])


# --- workers ----------------------------------------------------------------------------------------------------------


def _misbehaving() -> engines.Prepare:
    """Does what the case's graph is called."""

    def prepare(model: ModelProto) -> engines.Run:
        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            if model.graph.name == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if model.graph.name == "leaves":
                os._exit(7)
            if model.graph.name == "hangs":
                time.sleep(60)
            if model.graph.name == "raises":
                raise ValueError("no such luck")
            return [np.ones(3)] if model.graph.name == "wrong" else [np.zeros(3)]

        return run

    return prepare


def _case(name: str) -> Case:
    model = ModelProto()
    model.graph.name = name
    return Case(name, "node", 1e-3, 1e-7, built=model, built_data=(([], [np.zeros(3)]),))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_case_that_kills_its_process_costs_itself_only(jobs: int) -> None:
    names = ["right", "dies", "right", "leaves", "raises", "hangs", "wrong", "right"]
    seen: list[Outcome] = []
    outcomes = run_all(_misbehaving, [_case(name) for name in names], jobs, 1.0, seen.append)
    assert [outcome.name for outcome in outcomes] == names
    assert [outcome.status for outcome in outcomes] == [
        "pass", "crash", "pass", "crash", "error", "timeout", "wrong", "pass",
    ]  # fmt: skip
    assert outcomes[1].reason == "the process was ended by SIGKILL"
    assert outcomes[3].reason == "the process exited with code 7"
    assert outcomes[4].reason == "ValueError: no such luck"
    assert len(seen) == len(names)


def test_an_engine_that_cannot_start_does_not_hang() -> None:
    def broken() -> engines.Prepare:
        raise ImportError("nothing here")

    (outcome,) = run_all(broken, [_case("right")], 1, 10.0, lambda _: None)
    assert outcome.status == "error"
    assert "nothing here" in outcome.reason


# --- a machine that this one is not -----------------------------------------------------------------------------------


def test_another_python_runs_what_is_compiled_here() -> None:
    """Sequences, empty optionals, strings and bfloat16 go there and back; errors come back as what they were."""
    cases = [case for case in load_cases(["node"]) if case.name.removeprefix("test_") in VARIED]
    outcomes = run_all(partial(remote, "cpu", sys.executable), cases, 1, 60.0, lambda _: None)
    assert [outcome.reason for outcome in outcomes] == [""] * len(VARIED)


def test_what_the_other_python_cannot_run_is_its_outcome() -> None:
    (relu,) = (case for case in load_cases(["node"]) if case.name == "test_relu")
    (wrong_machine,) = run_all(partial(remote, FOREIGN, sys.executable), [relu], 1, 60.0, lambda _: None)
    assert (wrong_machine.status, "this machine is" in wrong_machine.reason) == ("error", True)
    (ended,) = run_all(partial(remote, "cpu", f"{sys.executable} -c 'pass'"), [relu], 1, 60.0, lambda _: None)
    assert (ended.status, "ended with 0" in ended.reason) == ("error", True)


# --- outcomes and reports ---------------------------------------------------------------------------------------------


class _Unsupported(Exception):
    exit_code = 2


def test_reasons() -> None:
    assert classify(_Unsupported("no\nmore")) == ("unsupported", "_Unsupported: no more")
    assert classify(ValueError()) == ("error", "ValueError: no message")
    assert classify(Mismatch("shape", "output 0 is (1,) instead of (2,)"))[0] == "wrong"


def test_the_same_cause_in_different_words() -> None:
    first = Outcome("a", "node", "", "error", "KeyError: node 'x_1' has 3 inputs of shape [1, 2]")
    second = Outcome("b", "node", "", "error", "KeyError: node 'y' has 12 inputs of shape [7]")
    assert cause(first) == cause(second)
    wrong = [Outcome("c", "node", "", "wrong", f"value: output 0: {n} off") for n in (1, 2)]
    assert cause(wrong[0]) == cause(wrong[1]) == "wrong: wrong value"


def test_page_counts_every_case_and_names_every_failure() -> None:
    outcomes = [Outcome("good", "node", "Add", "pass"), Outcome("bad", "light", "", "error", "E: a * b | c")]
    versions = {"onnx": "1", "tilestitch": "2", "emulator": "2"}
    page = report.page({"tilestitch": outcomes, "emulator": outcomes[:1]}, versions)
    cpu, emulator = page.split("## tilestitch on the emulated GPU")
    assert "| node | 1 | 1 |" in cpu
    assert "| all | 2 | 1 | 0 | 1 | 0 | 0 | 0 | 50.0 % |" in cpu
    assert "`bad`: E: a \\* b \\| c" in cpu
    assert "| all | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 100.0 % |" in emulator
    assert "`good`" not in page


def test_changes_since_another_run() -> None:
    before = {"node/a": "pass", "node/b": "error", "node/c": "pass"}
    now = [Outcome("a", "node", "", "wrong", "value"), *(Outcome(name, "node", "", "pass") for name in "bc")]
    assert report.changes(now, before) == "newly passing: 1\n  b\nNO LONGER PASSING: 1\n  a  value"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = ["--engine", "reference", "--kind", "simple", "--filter", "relu|sign", "--json", str(out)]
    assert main(arguments) == 0
    content = json.loads(out.read_text())
    assert [case["name"] for case in content["cases"]] == ["test_sign_model", "test_single_relu_model"]
    assert content["passed"] == 2
    assert main([*arguments, "--compare", str(out)]) == 0
    assert "NO LONGER PASSING: 0" in capsys.readouterr().out
    assert main([*arguments, "--traceback"]) == 0
    assert main([*arguments, "--sample", "1"]) == 0
    assert len(json.loads(out.read_text())["cases"]) == 1
    assert main(["--kind", "simple", "--filter", "there is no such case"]) == 1


def test_command_with_two_engines(tmp_path: Path) -> None:
    build_device(EmulatorOptions())  # raises, so that the test is skipped, where nothing can compile for it
    page = tmp_path / "page.md"
    arguments = ["--kind", "simple", "--filter", "sign", "--engine", "tilestitch", "--engine", "emulator"]
    assert main([*arguments, "--jobs", "1", "--write", str(page)]) == 0
    assert page.read_text().count("| simple | 1 | 1 |") == 2


def test_engines_agree_on_a_model() -> None:
    model = cnn()
    inputs = [np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)]
    outputs = [engines.ENGINES[name]()(model)(inputs) for name in ("onnxruntime", "reference")]
    compare(outputs[0], outputs[1])
