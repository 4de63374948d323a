"""The command line where no model is compiled: arguments, errors and their exit codes, output."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tilestitch import __version__
from tilestitch.compiler.cli import arguments, bench, doctor, errors, inputs, main, output, rivals
from tilestitch.compiler.cli.accuracy import Limits, difference

CLI = [sys.executable, "-m", "tilestitch.compiler.cli"]


# --- start-up and usage -----------------------------------------------------------------------------------------------


def test_help_imports_no_heavy_package() -> None:
    script = (
        "import sys\n"
        "from tilestitch.compiler.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'tvm', 'onnx', 'onnxruntime', 'torch', 'networkx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [[], *([name] for name in main.COMMANDS)])
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main([*command, "--help"])
    assert stop.value.code == 0
    assert "usage: tilestitch" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--version"])
    assert capsys.readouterr().out == f"tilestitch {__version__}\n"


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["frobnicate"],
        ["compile"],
        ["compile", "m.onnx", "-o", "m.tsm", "--shape", "x=1xx3"],
        ["compile", "m.onnx", "-o", "m.tsm", "--threads", "0"],
        ["compile", "m.onnx", "-o", "m.tsm", "--planner", "clever"],
        ["compile", "m.onnx", "-o", "m.tsm", "--shape", "x=1_0x3"],
        ["compile", "m.onnx", "-o", "m.tsm", "--shape", "x=1x"],
        ["compile", "m.onnx", "-o", "m.tsm", "--dim", "batch=1..٤"],
        ["compile", "m.onnx", "-o", "m.tsm", "--favour", "batch=1,"],
        ["bench", "m.tsm", "--rounds", "-1"],
        ["bench", "m.tsm", "--warmup", "1_0"],
        ["run", "m.tsm", "--seed", "+1"],
        ["check", "m.tsm", "m.onnx", "--rtol", "nan"],
    ],
)
def test_wrong_usage_is_exit_code_1(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(wrong)
    captured = capsys.readouterr()
    assert stop.value.code == errors.USER
    assert captured.out == ""
    assert "error:" in captured.err


# --- errors -----------------------------------------------------------------------------------------------------------


class _Unsupported(Exception):
    exit_code = errors.UNSUPPORTED


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.UsageError("no such thing"), errors.USER, "no such thing"),
        (_Unsupported("operator Foo is missing"), errors.UNSUPPORTED, "operator Foo is missing"),
        (errors.AccuracyError("off by one"), errors.ACCURACY, "off by one"),
        (
            ModuleNotFoundError("No module named 'tvm'", name="tvm"),
            errors.ENVIRONMENT,
            "pip install 'tilestitch[compiler]'",
        ),
        (FileNotFoundError(2, "No such file or directory", "a.onnx"), errors.USER, "a.onnx: No such file or directory"),
        (OSError(28, "No space left on device", "a.tsm"), errors.ENVIRONMENT, "a.tsm: No space left on device"),
        (MemoryError(), errors.ENVIRONMENT, "out of memory"),
        (KeyError("surprise"), errors.USER, "internal error: KeyError"),
    ],
)
def test_an_error_is_one_block_without_traceback(
    error: Exception, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: object) -> int:
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    assert main.main(["doctor"]) == code
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_verbose_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(options: object) -> int:
        raise KeyError("surprise")

    monkeypatch.setattr(doctor, "run", fail)
    assert main.main(["doctor", "--verbose"]) == errors.USER
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_is_exit_code_130_and_no_traceback(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs of a shell ignore it
        "from tilestitch.compiler.cli import doctor, main\n"
        "def wait(options):\n"
        "    print('waiting', flush=True)\n"
        "    time.sleep(60)\n"
        "doctor.run = wait\n"
        "sys.exit(main.main(['doctor']))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=30)
    assert process.returncode == errors.INTERRUPTED
    assert complaint.strip() == "interrupted"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_answer_that_cannot_be_written_is_an_error(options: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*CLI, "doctor", *options], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == errors.ENVIRONMENT
    assert done.stderr == "error: standard output cannot be written: No space left on device; send it elsewhere\n"


def test_a_closed_pipe_is_no_error() -> None:
    with subprocess.Popen([*CLI, "doctor", "--json"], stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("command", ["run", "explain", "bench"])
def test_a_missing_artifact_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([command, "nowhere.tsm"]) == errors.USER
    assert "nowhere.tsm: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"PK", b"not an artifact at all" * 100])
def test_a_file_that_is_no_artifact_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.tsm"
    path.write_bytes(content)
    assert main.main(["run", str(path)]) == errors.USER
    assert "m.tsm" in capsys.readouterr().err


def test_the_place_of_the_output_is_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "no" / "m.tsm"
    assert main.main(["compile", "whatever.onnx", "-o", str(missing)]) == errors.USER
    assert "does not exist" in capsys.readouterr().err
    assert main.main(["compile", "whatever.onnx", "-o", str(tmp_path)]) == errors.USER
    assert "is a folder" in capsys.readouterr().err


def test_unknown_targets_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")
    assert main.main(["compile", str(model), "-o", str(tmp_path / "m.tsm"), "--target", "tpu:v5"]) == errors.USER
    assert "--target 'tpu:v5' is not available; give cpu, cpu:NAME, cuda:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--threads", ""], "'' is not a whole number of at least 1"),
        (["--plan", ""], "the name of a file is empty"),
        (["--records", ""], "the name of a file is empty"),
        (["--pass", ""], "--pass names no plug-in"),
        (["--target", ""], "--target '' is not available"),
        (["--cache", "OFF"], "--cache OFF: write off, or ./OFF for a folder of this name"),
        (["--dim", "batch=1..4", "--dim", "batch=1..8"], "--dim batch is given as 1..4 and as 1..8"),
        (["--favour", "batch=1,batch=2"], "--favour batch is given as 1 and as 2"),
    ],
)
def test_slips_in_options_of_compile_are_named(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")
    code: object
    try:
        code = main.main(["compile", str(model), "-o", str(tmp_path / "m.tsm"), *options])
    except SystemExit as stop:
        code = stop.code
    assert code == errors.USER
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("device", ["", ",", "h100,", "h100,,l4"])
def test_a_gpu_without_a_name_is_refused(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")
    assert main.main(["predict", str(model), "--device", device]) == errors.USER
    assert f"--device {device!r}: the name of a GPU is missing" in capsys.readouterr().err


def test_a_gpu_that_is_named_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")
    assert main.main(["predict", str(model), "--device", "h100,l4,h100"]) == errors.USER
    assert "h100 is named twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("os", "'os' is not of the form MODULE:FUNCTION"),
        (":f", "':f' is not of the form MODULE:FUNCTION"),
        ("os:nothing", "has no attribute 'nothing'"),
        ("os:getcwd", "--torch os:getcwd returns str, not a torch.nn.Module"),
    ],
)
def test_what_makes_no_module_is_refused(factory: str, said: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(errors.UsageError, match=said):
        rivals.pytorch(factory)


# --- shapes and inputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=1x3x224x224", ("x", (1, 3, 224, 224))),
        ("x=5", ("x", (5,))),
        ("x=", ("x", ())),
        ("x=0x2", ("x", (0, 2))),
        ("a=b:0=2x3", ("a=b:0", (2, 3))),
    ],
)
def test_shapes(text: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert arguments.parse_shape(text) == expected


def test_a_name_that_comes_again_begins_another_set_of_shapes() -> None:
    pairs = [("ids", (1, 8)), ("mask", (1, 8)), ("ids", (1, 16)), ("mask", (1, 16))]
    assert arguments.shape_sets(pairs) == ({"ids": (1, 8), "mask": (1, 8)}, {"ids": (1, 16), "mask": (1, 16)})
    assert arguments.shape_sets([]) == ()


def spec(name: str, dtype: str, shape: object) -> SimpleNamespace:
    return SimpleNamespace(name=name, dtype=dtype, shape=shape)


def test_missing_inputs_are_random_and_repeatable() -> None:
    specs = [
        spec("x", "float32", (2, 3)),
        spec("ids", "int64", (4,)),
        spec("flag", "bool", ()),
        spec("h", "bfloat16", (2,)),
    ]
    first = inputs.fill_inputs(specs, {}, seed=1)
    again = inputs.fill_inputs(specs, {}, seed=1)
    other = inputs.fill_inputs(specs, {}, seed=2)
    assert [(str(value.dtype), value.shape) for value in first.values()] == [
        ("float32", (2, 3)),
        ("int64", (4,)),
        ("bool", ()),
        ("bfloat16", (2,)),
    ]
    assert set(np.unique(first["ids"])) <= {0, 1}
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["x"], other["x"])


def test_what_is_given_does_not_change_what_is_drawn() -> None:
    specs = [spec("x", "float32", (3,)), spec("y", "float32", (3,))]
    given = np.ones(3, np.float32)
    drawn = inputs.fill_inputs(specs, {}, seed=0)["y"]
    filled = inputs.fill_inputs(specs, {"x": given}, seed=0)
    np.testing.assert_array_equal(filled["y"], drawn)
    assert filled["x"] is given
    assert list(filled) == ["x", "y"]


def test_inputs_that_cannot_be_made_up_or_do_not_exist() -> None:
    with pytest.raises(errors.UsageError, match="cannot be made up"):
        inputs.fill_inputs([spec("names", "string", (2,))], {}, seed=0)
    with pytest.raises(errors.UsageError, match=r"cannot be made up; .* or sizes: --dim n=N"):
        inputs.fill_inputs([spec("x", "float32", ("n", 2))], {}, seed=0)
    with pytest.raises(errors.UsageError, match="no input z; its inputs: x"):
        inputs.fill_inputs([spec("x", "float32", (2,))], {"z": np.ones(2)}, seed=0)


def test_inputs_choose_the_specialisation_that_they_fit() -> None:
    small, large = ([spec("x", "float32", (n,)), spec("y", "float32", (n,))] for n in (2, 5))
    model = SimpleNamespace(specialisations=(small, large))
    assert inputs.make_inputs(model, {}, seed=0)["y"].shape == (2,)
    assert inputs.make_inputs(model, {"x": np.ones(5, np.float32)}, seed=0)["y"].shape == (5,)


def test_inputs_from_files(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(3))
    np.testing.assert_array_equal(inputs.read_inputs([f"a=b={path}"])["a=b"], np.arange(3))
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(errors.UsageError, match=r"not a plain \.npy file"):
        inputs.read_inputs([f"x={path}"])
    path.write_text("0 1 2")
    with pytest.raises(errors.UsageError, match=r"x\.npy is not a \.npy file; write one with numpy\.save"):
        inputs.read_inputs([f"x={path}"])
    np.savez(tmp_path / "x.npz", a=np.ones(1))
    with pytest.raises(errors.UsageError, match="several arrays"):
        inputs.read_inputs([f"x={tmp_path / 'x.npz'}"])
    with pytest.raises(errors.UsageError, match="not of the form"):
        inputs.read_inputs([str(path)])


# --- accuracy ---------------------------------------------------------------------------------------------------------


def test_errors_are_relative_to_the_largest_magnitude() -> None:
    want = np.array([1000.0, 0.0, -1.0], np.float32)
    found = difference("y", want + np.float32(0.05), want)
    assert found.ok
    assert found.error == pytest.approx(5e-5, rel=0.05)
    assert not difference("y", want + np.float32(0.2), want).ok
    assert difference("y", want + np.float32(0.2), want, Limits(rtol=1e-3)).ok
    assert difference("y", want + np.float32(0.2), want, Limits(atol=0.21)).ok
    assert not difference("y", want + np.float32(0.2), want, Limits(atol=0.19)).ok


@pytest.mark.parametrize(
    ("got", "want", "ok"),
    [
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 3]), np.array([1, 2]), False),
        (np.array([1, 2], np.int32), np.array([1, 2], np.int64), False),
        (np.array([2**63 - 1]), np.array([2**63 - 2]), False),
        (np.array([-(2**63)]), np.array([2**63 - 1]), False),
        (np.array([2**64 - 1], np.uint64), np.array([2**64 - 1], np.uint64), True),
        (np.zeros((0,), np.int8), np.zeros((0,), np.int8), True),
        (np.ones((2, 1)), np.ones((1, 2)), False),
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), True),
        (np.array([0.0, 1.0]), np.array([np.nan, 1.0]), False),
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0]), False),
        (np.array([np.inf]), np.array([-np.inf]), False),
        (np.zeros((0, 3)), np.zeros((0, 3)), True),
        (np.zeros(3), np.zeros(3), True),
        (np.float32(1), np.float32(1), True),
        (np.array(["a"], object), np.array(["a"], object), True),
        ([np.ones(2)], [np.ones(2)], True),
        ([np.ones(2)], [np.ones(2), np.ones(2)], False),
        ([], [], True),
        (None, None, True),
        (np.ones(1), None, False),
    ],
)
def test_what_counts_as_equal(got: object, want: object, ok: bool) -> None:
    assert difference("y", got, want).ok is ok


# --- output -----------------------------------------------------------------------------------------------------------


def test_tables_align_numbers_to_the_right() -> None:
    assert output.table([("a", 5), ("bcd", 123)], ("name", "n")) == "name    n\na       5\nbcd   123"
    assert output.table([], ("name", "n")) == "name  n"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.Progress() as progress:
        progress("compiling", 1, 2)
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_leaves_a_clean_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.Progress() as progress:
        progress("compiling kernels", 1, 20)
        progress("writing")
    shown = terminal.getvalue()
    assert shown.startswith("\rcompiling kernels 1/20\rwriting ")
    assert shown.split("\r")[2] == "writing".ljust(len("compiling kernels 1/20"))
    assert shown.endswith(" \r")


def test_doctor_reports_facts_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = main.main(["doctor", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["tilestitch"] == __version__
    assert facts["packages"]["run"]["numpy"] == np.__version__
    assert facts["cpu"]["usable_cores"] >= 1
    assert code == (errors.ENVIRONMENT if facts["problems"] else errors.OK)


def test_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    versions = {"numpy": "2.0", "apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15", "onnx": None}
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name))
    assert main.main(["doctor"]) == errors.ENVIRONMENT
    text = capsys.readouterr().out
    assert "onnx, ml_dtypes not installed; pip install 'tilestitch[compiler]'" in text
    assert "apache-tvm-ffi is 0.1.15" in text


# --- measuring --------------------------------------------------------------------------------------------------------


def test_engines_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SETTLE_S", 0.0)
    calls: list[str] = []
    engines = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    times = bench.interleaved(engines, rounds=7, warmup=1, progress=lambda *_: None)
    assert {name: len(values) for name, values in times.items()} == {"a": 7, "b": 7}
    turn = bench.BURST + 1
    assert "".join(calls) == "ab" + "a" * turn + "b" * turn + "bbb" + "aaa"


def test_runs_before_a_turn_has_settled_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SETTLE_S", 0.05)
    calls: list[None] = []
    times = bench.interleaved({"a": lambda: calls.append(None)}, rounds=3, warmup=0, progress=lambda *_: None)
    assert len(times["a"]) == 3
    assert len(calls) > 4


def test_launches_are_shown_by_branch() -> None:
    def launch(name: str, branch: int, median_us: float) -> dict[str, object]:
        return {"name": name, "onnx_nodes": ["n"], "branch": branch, "median_us": median_us}

    launches = [launch("a", 0, 2.0), launch("b", 1, 3.0), launch("c", 0, 5.0)]
    text = bench.describe({"engines": {}, "speedup": {}, "launches": launches})
    by_branch = text[text.index("one by one") :].split()
    assert by_branch[-6:] == ["0", "2", "7.0", "1", "1", "3.0"]
    assert "one by one" not in bench.describe({"engines": {}, "speedup": {}, "launches": launches[:1]})


@pytest.mark.parametrize("installed", [True, False])
def test_profiles_say_whether_there_are_ranges(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr("tilestitch.runtime.trace.has_ranges", lambda: installed)
    assert ("nsys profile" if installed else "pip install nvtx") in bench.ranges_note()


def test_statistics_of_latencies() -> None:
    values = bench.statistics([float(n) for n in range(1, 102)])
    assert values["p50_us"] == 51
    assert values["min_us"] == 1
    assert values["p95_us"] == pytest.approx(96)
