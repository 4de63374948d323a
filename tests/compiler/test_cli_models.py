"""The commands on small models, from ONNX file to artifact and on."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper

from tests.models import cnn, random_inputs, transformer
from tilestitch.compiler.cli import bisect, errors, main, rivals
from tilestitch.compiler.cli.explain import read_explain
from tilestitch.compiler.frontend import ModelError
from tilestitch.runtime.artifact import read_artifact

CLI = [sys.executable, "-m", "tilestitch.compiler.cli"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small CNN: cnn.onnx, compiled as cnn.tsm with a report."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(cnn(), folder / "cnn.onnx")
    arguments = ["compile", str(folder / "cnn.onnx"), "-o", str(folder / "cnn.tsm")]
    assert main.main([*arguments, "--report", str(folder / "compiled.html")]) == errors.OK
    return folder


def result(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """What a command prints with --json."""
    capsys.readouterr()
    assert main.main([*map(str, arguments), "--json"]) == errors.OK
    return json.loads(capsys.readouterr().out)


def test_compile_reports_what_it_made(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = result(capsys, "compile", folder / "cnn.onnx", "-o", tmp_path / "m.tsm", "--threads", 1)
    assert facts["bytes"] == (tmp_path / "m.tsm").stat().st_size
    assert facts["planner"] == "stitch"
    assert facts["kernels"] > 0
    assert "</html>" in (folder / "compiled.html").read_text()


def test_compiling_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for name, cache in (("a.tsm", str(tmp_path / "kernels")), ("b.tsm", "off")):
        command = ["compile", str(folder / "cnn.onnx"), "-o", str(tmp_path / name), "--cache", cache]
        assert main.main(command) == errors.OK
    assert (tmp_path / "a.tsm").read_bytes() == (tmp_path / "b.tsm").read_bytes()


def test_run_with_given_and_random_inputs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = cnn()
    inputs = random_inputs(model, seed=3)
    np.save(tmp_path / "x.npy", inputs["x"])
    out = tmp_path / "out.npz"
    facts = result(capsys, "run", folder / "cnn.tsm", "--input", f"x={tmp_path / 'x.npy'}", "-o", out)
    assert facts["outputs"][0]["name"] == "y"
    assert facts["outputs"][0]["shape"] == [1, 10]
    expected = onnx.reference.ReferenceEvaluator(model).run(None, inputs)[0]
    np.testing.assert_allclose(np.load(out)["y"], expected, rtol=1e-4, atol=1e-5)
    one = result(capsys, "run", folder / "cnn.tsm", "--seed", 1)
    assert one == result(capsys, "run", folder / "cnn.tsm", "--seed", 1)
    assert one != result(capsys, "run", folder / "cnn.tsm", "--seed", 2)


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (np.zeros((1, 3, 16, 15), np.float32), "x"),
        (np.zeros((3, 16, 16), np.float32), "x"),
        (np.zeros((1, 3, 16, 16), np.int32), "x"),
    ],
)
def test_inputs_that_do_not_fit(
    array: np.ndarray, complaint: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", array)
    assert main.main(["run", str(folder / "cnn.tsm"), "--input", f"x={tmp_path / 'x.npy'}"]) == errors.USER
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert "internal error" not in captured.err


@pytest.mark.parametrize("against", ["onnxruntime", "reference"])
def test_check_agrees(against: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = result(capsys, "check", folder / "cnn.tsm", folder / "cnn.onnx", "--against", against)
    assert facts["ok"] is True
    assert facts["outputs"][0]["error"] < 1e-4


def test_check_finds_another_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(cnn(seed=1), tmp_path / "other.onnx")
    assert main.main(["check", str(folder / "cnn.tsm"), str(tmp_path / "other.onnx")]) == errors.ACCURACY
    assert "DIFFERS" in capsys.readouterr().out


def test_check_against_a_model_with_inputs_of_other_shapes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = cnn()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value += 1
    for out in model.graph.output:
        out.type.tensor_type.shape.dim[0].dim_param = "any"
    onnx.save(model, tmp_path / "other.onnx")
    assert main.main(["check", str(folder / "cnn.tsm"), str(tmp_path / "other.onnx")]) == errors.USER
    assert "they are not the same model" in capsys.readouterr().err


@pytest.mark.parametrize("against", ["onnxruntime", "reference"])
def test_check_against_a_model_with_other_inputs(
    against: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(transformer(), tmp_path / "t.onnx")
    assert main.main(["check", str(folder / "cnn.tsm"), str(tmp_path / "t.onnx"), "--against", against]) == errors.USER
    assert "no input ids, which the model needs" in capsys.readouterr().err


def test_check_compares_with_the_model_as_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime makes one integer GEMM of this, whose results are up to a step of the quantisation away."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[16,32] x, float[32,16] w) => (float[16,16] y)
        <float s = {0.1}, float t = {0.05}, float u = {0.02}, int8 z = {0}> {
          qx = QuantizeLinear (x, s, z)
          a = DequantizeLinear (qx, s, z)
          qw = QuantizeLinear (w, t, z)
          b = DequantizeLinear (qw, t, z)
          p = MatMul (a, b)
          q = QuantizeLinear (p, u, z)
          y = DequantizeLinear (q, u, z)
        }"""
    )
    inputs = random_inputs(model)
    fused, written = rivals.onnxruntime(model)(inputs)[0], rivals.CHECKERS["onnxruntime"](model)(inputs)[0]
    assert np.abs(fused - written).max() > 0.019
    onnx.save(model, tmp_path / "q.onnx")
    assert main.main(["compile", str(tmp_path / "q.onnx"), "-o", str(tmp_path / "q.tsm")]) == errors.OK
    assert main.main(["check", str(tmp_path / "q.tsm"), str(tmp_path / "q.onnx")]) == errors.OK


def test_bisect_finds_nothing_where_nothing_is_wrong(folder: Path) -> None:
    options = argparse.Namespace(against="reference", rtol=None, atol=None, threads=1, device="cpu")
    explained, plan = read_explain(folder / "cnn.tsm"), read_artifact(folder / "cnn.tsm").plan[0]
    found = bisect.first_difference(plan, explained, folder / "cnn.onnx", random_inputs(cnn()), options)
    assert found == (None, bisect.NOTHING)


@pytest.mark.parametrize("hidden", [False, True])
def test_bisect_names_the_kernel_that_differs_first(
    hidden: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reference has one wrong weight here; HIDDEN: the fault is not seen while many results are exposed."""
    convolution = [node for node in cnn().graph.node if node.op_type == "Conv"][2]

    def faulty(model: onnx.ModelProto | Path) -> rivals.Run:
        copy = onnx.load(model) if isinstance(model, Path) else onnx.ModelProto.FromString(model.SerializeToString())
        weight = next(tensor for tensor in copy.graph.initializer if tensor.name == convolution.input[1])
        if not hidden or len(copy.graph.output) <= 2:
            weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 2, weight.name))
        return rivals.reference(copy)

    monkeypatch.setitem(rivals.CHECKERS, "reference", faulty)
    arguments = ["check", str(folder / "cnn.tsm"), str(folder / "cnn.onnx"), "--against", "reference", "--bisect"]
    assert main.main([*arguments, "--json"]) == errors.ACCURACY
    found = json.loads(capsys.readouterr().out)["first_difference"]
    kernels = {kernel["name"]: kernel for kernel in read_explain(folder / "cnn.tsm")["kernels"]}
    assert convolution.name in kernels[found["kernel"]]["onnx_nodes"]
    assert found["node"] in kernels[found["kernel"]]["onnx_nodes"]


def test_explain(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explained = result(capsys, "explain", folder / "cnn.tsm")
    keys = {"name", "kind", "memory_bound", "onnx_nodes", "composition", "bytes_read", "bytes_written", "sync"}
    for kernel in explained["kernels"]:
        assert keys <= set(kernel)
    for refusal in explained["refusals"]:
        assert set(refusal) == {"subject", "rule", "reason", "numbers"}
    assert {"target", "planner", "buffers", "host_steps"} <= set(explained)
    nodes = {name for kernel in explained["kernels"] for name in kernel["onnx_nodes"]}
    assert nodes <= set(bisect.node_names(cnn()))
    node = sorted(nodes)[0]
    assert main.main(["explain", str(folder / "cnn.tsm"), "--node", node, "--report", str(tmp_path / "r.html")]) == 0
    assert "</html>" in (tmp_path / "r.html").read_text()
    capsys.readouterr()
    assert main.main(["explain", str(folder / "cnn.tsm"), "--node", node, "--launches"]) == 0
    told = capsys.readouterr().out
    assert any(launch["symbol"] in told for kernel in explained["kernels"] for launch in kernel["launches"])
    about = result(capsys, "explain", folder / "cnn.tsm", "--node", node)
    assert all(node in kernel["onnx_nodes"] for kernel in about["kernels"])
    assert main.main(["explain", str(folder / "cnn.tsm"), "--node", node + "x"]) == errors.USER
    assert f"there is {node}" in capsys.readouterr().err
    assert main.main(["explain", str(folder / "cnn.tsm"), "--edge", node, node]) == 0
    assert "are in one kernel" in capsys.readouterr().out
    assert main.main(["explain", str(folder / "cnn.tsm"), "--edge", node, "missing"]) == errors.USER
    assert "'missing'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: whole[:-20], "is not an ONNX model, or is truncated"),
        (lambda whole: b"some text", "is not an ONNX model, or is truncated"),
        (lambda whole: b"", "is empty"),
        (
            lambda whole: helper.make_model(onnx.GraphProto()).SerializeToString(),
            "is not an ONNX model: it holds no graph",
        ),
    ],
    ids=["truncated", "text", "empty file", "empty graph"],
)
@pytest.mark.parametrize(
    "command",
    [
        ["check", "--against", "onnxruntime"],
        ["check", "--against", "reference"],
        ["bench", "--against", "onnxruntime", "--model"],
    ],
    ids=["check", "reference", "bench"],
)
def test_a_file_to_compare_with_that_is_no_model(
    content: Callable[[bytes], bytes],
    message: str,
    command: list[str],
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(content((folder / "cnn.onnx").read_bytes()))
    name, *options = command
    assert main.main([name, str(folder / "cnn.tsm"), *options, str(damaged)]) == errors.USER
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ")
    assert f"{damaged} {message}" in complaint
    with pytest.raises(ModelError, match=re.escape(str(damaged))):
        rivals.jittered(damaged)


def test_a_model_that_onnx_runtime_refuses(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = cnn()
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, tmp_path / "m.onnx")
    assert main.main(["check", str(folder / "cnn.tsm"), str(tmp_path / "m.onnx")]) == errors.USER
    assert capsys.readouterr().err.startswith("error: ONNX Runtime cannot load the model (")


def test_external_data_that_is_missing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(cnn(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    for against, message in (("onnxruntime", "cannot load the model"), ("reference", "external data cannot be read")):
        command = ["check", str(folder / "cnn.tsm"), str(tmp_path / "m.onnx"), "--against", against]
        assert main.main(command) == errors.USER
        assert message in capsys.readouterr().err


def test_bench(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", folder / "cnn.tsm", "--against", "onnxruntime", "--model", folder / "cnn.onnx"]
    facts = result(capsys, *command, "--rounds", 6, "--warmup", 1, "--threads", 1, "--profile")
    assert set(facts["engines"]) == {"tilestitch", "onnxruntime"}
    assert facts["speedup"]["onnxruntime"] > 0
    assert len(facts["launches"]) >= 1
    assert main.main(["bench", str(folder / "cnn.tsm"), "--against", "onnxruntime"]) == errors.USER
    assert "--model" in capsys.readouterr().err


def test_bench_against_openvino(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    command = ["bench", folder / "cnn.tsm", "--against", "openvino", "--model", folder / "cnn.onnx"]
    facts = result(capsys, *command, "--rounds", 2, "--warmup", 1, "--threads", 1)
    assert set(facts["engines"]) == {"tilestitch", "openvino"}


def test_openvino_takes_an_input_by_its_name_in_the_model() -> None:
    """OpenVINO removes the subtraction of zero, and calls the input by the result's name, too."""
    pytest.importorskip("openvino")
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[3] some_input) => (float[3] y)
        <float zero = {0.0}> { a_result = Sub(some_input, zero)  y = Relu(a_result) }"""
    (y,) = rivals.openvino(onnx.parser.parse_model(text), 1)({"some_input": np.array([-1, 0, 2], np.float32)})
    assert y.tolist() == [0, 0, 2]


def test_bench_against_an_engine_that_is_not_installed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    command = ["bench", str(folder / "cnn.tsm"), "--against", "openvino", "--model", str(folder / "cnn.onnx")]
    assert main.main(command) == errors.ENVIRONMENT
    assert "pip install 'tilestitch[bench]'" in capsys.readouterr().err


def test_a_specialisation_for_each_set_of_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=0)], "g", [x], [y])
    path, out = tmp_path / "m.onnx", tmp_path / "m.tsm"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    assert main.main(["compile", str(path), "-o", str(out), "--shape", "x=2x3", "--shape", "x=5x3"]) == errors.OK
    for size in (2, 5):
        np.save(tmp_path / "x.npy", np.ones((size, 3), np.float32))
        given = f"x={tmp_path / 'x.npy'}"
        assert result(capsys, "run", out, "--input", given)["outputs"][0]["shape"] == [size, 3]
        assert result(capsys, "check", out, path, "--input", given)["ok"]
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    assert main.main(["run", str(out), "--input", given]) == errors.USER
    complaint = capsys.readouterr().err
    assert "2" in complaint
    assert "5" in complaint


def test_a_node_that_breaks_its_definition_is_the_models_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, z, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [s]) for n, s in (("x", 2), ("z", 3), ("y", 2)))
    graph = helper.make_graph([helper.make_node("Add", ["x", "z"], ["y"], name="sum")], "g", [x, z], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "m.onnx")
    assert main.main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tsm")]) == errors.USER
    assert "node 'sum' (Add)" in capsys.readouterr().err


def test_unsupported_operators_are_all_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="first", domain="com.example"),
        helper.make_node("Twist", ["a"], ["y"], name="second", domain="com.example"),
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [value], [out]), opset_imports=opsets, ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    code = main.main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tsm")])
    captured = capsys.readouterr()
    assert code == errors.UNSUPPORTED
    for word in ("Frobnicate", "first", "Twist", "second"):
        assert word in captured.err
    assert not (tmp_path / "m.tsm").exists()


@pytest.mark.parametrize("content", [b"", b"\x08", b"this is no model", b"\xff" * 100])
def test_a_file_that_is_no_model(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert main.main(["compile", str(path), "-o", str(tmp_path / "m.tsm")]) == errors.USER
    captured = capsys.readouterr()
    assert "m.onnx" in captured.err
    assert "internal error" not in captured.err
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("number", "codes"),
    # Python may end itself by SIGINT when it came while C code was calling Python; a shell shows 130 for both.
    [(signal.SIGINT, (errors.INTERRUPTED, -signal.SIGINT)), (signal.SIGTERM, (errors.TERMINATED,))],
)
def test_ending_a_compilation_leaves_nothing(tmp_path: Path, number: signal.Signals, codes: tuple[int, ...]) -> None:
    onnx.save(transformer(layers=12, hidden=64), tmp_path / "m.onnx")
    dump = tmp_path / "dump"
    command = [*CLI, "compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tsm"), "--dump-ir", str(dump)]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        while process.poll() is None and not dump.exists():
            time.sleep(0.05)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("compiled before the signal came")
    assert process.returncode in codes, complaint
    assert "Traceback" not in complaint
    assert {file.name for file in tmp_path.iterdir()} <= {"m.onnx", "dump"}


def test_running_needs_no_compiler(folder: Path) -> None:
    """`run` never imports what only the compiler needs."""
    script = (
        "import sys\n"
        "from tilestitch.compiler.cli.main import main\n"
        f"assert main(['run', {str(folder / 'cnn.tsm')!r}]) == 0\n"
        "print(sorted({'tvm', 'tvm_ffi', 'onnx', 'networkx', 'xgboost', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- stripped weights, caches and compilers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def stripped(folder: Path) -> tuple[Path, Path]:
    """An artifact without weights, and its weights."""
    artifact = folder / "stripped.tsm"
    assert main.main(["compile", str(folder / "cnn.onnx"), "-o", str(artifact), "--strip-weights"]) == errors.OK
    return artifact, artifact.with_name("stripped.tsm.weights.safetensors")


@pytest.mark.parametrize(
    "command", [["run"], ["check", "cnn.onnx"], ["bench", "--rounds", "1", "--warmup", "1"]], ids=lambda c: c[0]
)
def test_stripped_weights_are_given_with_an_option(
    command: list[str], folder: Path, stripped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, weights = stripped
    arguments = [command[0], str(artifact), *(str(folder / a) if a.endswith("onnx") else a for a in command[1:])]
    assert main.main(arguments) == errors.USER
    assert "or --weights on the command line" in capsys.readouterr().err
    result(capsys, *arguments, "--weights", weights)
    assert main.main([*arguments, "--weights", str(folder / "none")]) == errors.USER


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", value[:1], value[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "relu.onnx"
    )
    return tmp_path / "relu.onnx"


def cuda(model: Path, *options: str) -> int:
    return main.main(["compile", str(model), "-o", str(model.with_suffix(".tsm")), "--target", "cuda:sm_80", *options])


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_compiled_kernels_are_kept_where_the_user_says(
    relu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "default"))
    assert cuda(relu, "--cache", "off") == errors.OK
    assert files(tmp_path / "default") == []
    assert cuda(relu, "--cache", str(tmp_path / "mine")) == errors.OK
    assert files(tmp_path / "default") == []
    kept = files(tmp_path / "mine")
    assert len(kept) == 2  # a cubin, and PTX for newer GPUs
    assert cuda(relu) == errors.OK
    assert [path.name for path in files(tmp_path / "default")] == [path.name for path in kept]


def test_a_compiler_that_writes_nothing(relu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda(relu, "--cache", "off", "--nvcc", "/bin/true") == errors.USER
    assert "'/bin/true' succeeded and wrote no code" in capsys.readouterr().err


def test_another_compiler(relu: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "error: asked for $*" >&2; exit 1; }\n')
    nvcc.chmod(0o755)
    assert cuda(relu, "--cache", "off", "--nvcc", str(nvcc)) == errors.UNSUPPORTED
    assert "asked for -cubin -arch=sm_80" in capsys.readouterr().err
    assert cuda(relu, "--nvcc", str(tmp_path / "none")) == errors.USER
    assert "there is no CUDA compiler" in capsys.readouterr().err


@pytest.mark.parametrize(
    "target, option, reason",
    [
        ("cpu", ["--nvcc", "nvcc"], "--nvcc is about compiling CUDA; it does nothing for --target cpu"),
        ("emulator", ["--cache", "off"], "--cache keeps compiled kernels; for --target emulator none are compiled"),
    ],
)
def test_options_that_do_nothing_for_a_target_are_refused(
    target: str, option: list[str], reason: str, relu: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compile", str(relu), "-o", str(relu.with_suffix(".tsm")), "--target", target, *option]
    assert main.main(command) == errors.USER
    assert reason in capsys.readouterr().err


def test_a_cache_that_is_a_file(relu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda(relu, "--cache", str(relu)) == errors.USER
    assert "is a file; name a folder" in capsys.readouterr().err
