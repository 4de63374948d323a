"""`tilestitch check` and its `--bisect` on models as people have them: which rule is applied, and what is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import numpy_helper

from tests.models import cnn, in_half, transformer
from tilestitch.codegen.compute import elementwise
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import bisect, errors, main, rivals
from tilestitch.compiler.cli.explain import read_explain


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    """A command's exit code, and what it gives with --json."""
    capsys.readouterr()
    code = main.main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def compiled(folder: Path, model: onnx.ModelProto, *options: object) -> tuple[Path, Path]:
    """The artifact and the model's file."""
    onnx.save(model, folder / "m.onnx")
    arguments = ["compile", folder / "m.onnx", "-o", folder / "m.tsm", *options]
    assert main.main([*map(str, arguments)]) == errors.OK
    return folder / "m.tsm", folder / "m.onnx"


def with_fault(model: onnx.ModelProto, weight: str) -> rivals.Run:
    """The reference, with one weight doubled."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    tensor = next(tensor for tensor in copy.graph.initializer if tensor.name == weight)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, tensor.name))
    return rivals.reference(copy)


def plant_fault(monkeypatch: pytest.MonkeyPatch, weight: str) -> None:
    def faulty(model: onnx.ModelProto | Path) -> rivals.Run:
        return with_fault(onnx.load(model) if isinstance(model, Path) else model, weight)

    monkeypatch.setitem(rivals.CHECKERS, "reference", faulty)


# --- tolerances ---


def test_half_floats_inside_are_not_held_to_the_tolerance_of_float32(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, path = compiled(tmp_path, in_half(cnn()))
    code, facts = command(capsys, "check", artifact, path)
    assert (code, facts["ok"]) == (errors.OK, True)
    (y,) = facts["outputs"]
    assert (y["dtype"], y["tolerance"]) == ("float32", 1e-2)
    assert y["rule"].startswith("float16 inside, in ONNX node x_half")
    assert main.main(["check", str(artifact), str(path)]) == errors.OK
    assert "float16 inside" in capsys.readouterr().out


def test_tolerances_that_are_given_take_the_place_of_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, path = compiled(tmp_path, cnn(), "--precision", "fp16")
    assert command(capsys, "check", artifact, path)[0] == errors.OK
    code, facts = command(capsys, "check", artifact, path, "--rtol", 1e-7)
    assert (code, facts["outputs"][0]["rule"]) == (errors.ACCURACY, "--rtol")
    assert command(capsys, "check", artifact, path, "--rtol", 0, "--atol", 1)[0] == errors.OK
    with pytest.raises(SystemExit) as stop:
        main.main(["check", str(artifact), str(path), "--rtol", "-1"])
    assert stop.value.code == errors.USER


@pytest.mark.parametrize("option", ["--rtol", "--atol"])
@pytest.mark.parametrize("value", ["inf", "1e400", "nan", "-1"])
def test_a_limit_that_everything_or_nothing_keeps_is_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(["check", "m.tsm", "m.onnx", f"{option}={value}"])
    assert f"{value!r} is no finite number of at least 0" in capsys.readouterr().err


QUANTISED = """<ir_version: 10, opset_import: ["" : 21]>
net (float[64,64] x, float[64,64] w) => (uint8[64,64] q, float[64,64] y)
<float s = {0.013}, uint8 z = {128}, float t = {0.021}> {
  qx = QuantizeLinear (x, s, z)
  a = DequantizeLinear (qx, s, z)
  p = MatMul (a, w)
  q = QuantizeLinear (p, t, z)
  y = DequantizeLinear (q, t, z)
}"""


def test_a_quantised_result_may_be_one_step_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, path = compiled(tmp_path, onnx.parser.parse_model(QUANTISED))

    def steps_off(steps: int) -> Any:
        def reference(model: onnx.ModelProto | Path) -> rivals.Run:
            evaluate = rivals.reference(model)

            def run(inputs: Any) -> Any:
                q, y = evaluate(inputs)
                q = q.copy()
                row, column = np.argwhere((q > 50) & (q < 200))[0]
                q[row, column] += steps
                y[row, column] += np.float32(0.021 * steps)
                return q, y

            return run

        return reference

    for steps, code in ((1, errors.OK), (2, errors.ACCURACY)):
        monkeypatch.setitem(rivals.CHECKERS, "reference", steps_off(steps))
        found, facts = command(capsys, "check", artifact, path, "--against", "reference")
        assert found == code
        assert "one step of its own quantisation" in facts["outputs"][0]["rule"]


def amplifying(scale: float = 100.0) -> onnx.ModelProto:
    """A step of its quantisation is SCALE steps of the result: what is rounded lies halfway between two of them."""
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[8] x) => (float[8] y) <float s = {{1}}, int8 z = {{0}}, float k = {{{scale}}}, float[8] h =
          {{0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5}}> {{
          a = Add (x, h)
          q = QuantizeLinear (a, s, z)
          d = DequantizeLinear (q, s, z)
          e = Sin (d)
          y = Mul (e, k)
        }}"""
    )


def test_more_is_allowed_where_the_reference_itself_is_moved_by_the_last_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, path = compiled(tmp_path, amplifying())
    np.save(tmp_path / "x.npy", np.zeros(8, np.float32))
    given = ("--input", f"x={tmp_path / 'x.npy'}", "--against", "reference")
    assert command(capsys, "check", artifact, path, *given)[0] == errors.OK
    # The reference rounds the other way, as it might if it added in another order.
    monkeypatch.setitem(rivals.CHECKERS, "reference", lambda model: rivals.reference(_nudged(model)))
    code, facts = command(capsys, "check", artifact, path, *given)
    assert code == errors.OK
    assert "a change of the last bits before quantisation" in facts["outputs"][0]["rule"]
    # A fault of the same size elsewhere is not excused: nothing moves there.
    np.save(tmp_path / "x.npy", np.full(8, 0.25, np.float32))
    plant_fault(monkeypatch, "k")
    code, facts = command(capsys, "check", artifact, path, *given)
    assert (code, facts["outputs"][0]["rule"]) == (errors.ACCURACY, "one step of quantisation to 8 bits inside, 1/127")


def _nudged(model: onnx.ModelProto | Path) -> onnx.ModelProto:
    copy = onnx.load(model) if isinstance(model, Path) else onnx.ModelProto.FromString(model.SerializeToString())
    tensor = next(tensor for tensor in copy.graph.initializer if tensor.name == "h")
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1 + 2**-21), "h"))
    return copy


def test_what_the_reference_lacks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX's own evaluator has no DequantizeLinear of operator set 17."""
    artifact, path = compiled(tmp_path, onnx.parser.parse_model(QUANTISED.replace("21", "17")))
    assert main.main(["check", str(artifact), str(path), "--against", "reference"]) == errors.USER
    complaint = capsys.readouterr().err
    assert "ONNX's reference cannot run the model" in complaint
    assert "check --against onnxruntime instead" in complaint


# --- what the artifact records ---


def test_an_artifact_records_how_it_was_compiled(tmp_path: Path) -> None:
    artifact, _ = compiled(
        tmp_path, cnn(), "--precision", "bf16", "--planner", "injective", "--threads", 1, "--shape", "x=1x3x16x16",
        "--cost-model", "random",
        "--pass", "examples.custom_pass.tilestitch_example_rules.hard_gelu:HardGelu{slope=0.5}",
    )  # fmt: skip
    assert read_explain(artifact)["options"] == {
        "target": "cpu", "precision": "bf16", "planner": "injective", "cost_model": "random", "threads": 1,
        "passes": ["examples.custom_pass.tilestitch_example_rules.hard_gelu:HardGelu{slope=0.5}"],
        "installed_plugins": True, "records": None, "frozen": False,
        "shapes": {"x": [1, 3, 16, 16]}, "dims": None,
    }  # fmt: skip


def test_passes_that_were_given_in_python_are_recorded_as_texts() -> None:
    from examples.custom_pass.tilestitch_example_rules.hard_gelu import HardGelu

    name = "examples.custom_pass.tilestitch_example_rules.hard_gelu:HardGelu"
    recorded = compile_model(cnn(), passes=[HardGelu, HardGelu(slope=0.5)]).explain()["options"]["passes"]
    assert recorded == [name, f"{name}{{slope=0.5}}"]
    assert compile_model(cnn(), passes=HardGelu(slope=0.5)).explain()["options"]["passes"] == [recorded[1]]


@pytest.mark.parametrize(("reads", "gives"), [("INT4", "FLOAT"), ("FLOAT", "INT4"), ("FLOAT", "BFLOAT16")])
def test_what_onnx_runtime_raises_for_types_that_numpy_lacks_is_a_sentence(
    reads: str, gives: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, path = compiled(tmp_path, casting(reads, gives))
    for command, remedy in (
        (["check", artifact, path], "check --against reference instead"),
        (["bench", artifact, "--against", "onnxruntime", "--model", path], "leave out --against onnxruntime"),
    ):
        assert main.main([*map(str, command)]) == errors.USER
        complaint = capsys.readouterr().err
        assert "error: ONNX Runtime cannot run the model (" in complaint
        assert complaint.rstrip().endswith(remedy)


def test_floats_of_eight_bits_agree_with_onnx_runtime_that_gives_them_as_integers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, path = compiled(tmp_path, casting("FLOAT", "FLOAT8E4M3FN"))
    code, facts = command(capsys, "check", artifact, path)
    assert (code, facts["outputs"][0]["dtype"]) == (errors.OK, "float8_e4m3fn")


def casting(reads: str, gives: str) -> onnx.ModelProto:
    before, after = (onnx.TensorProto.DataType.Value(name) for name in (reads, gives))
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=after)
    x, y = (onnx.helper.make_tensor_value_info(name, type_, [4]) for name, type_ in (("x", before), ("y", after)))
    graph = onnx.helper.make_graph([node], "casting", [x], [y])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


# --- bisecting ---


def first(capsys: pytest.CaptureFixture[str], artifact: Path, path: Path, *options: object) -> Any:
    code, facts = command(capsys, "check", artifact, path, "--bisect", *options)
    assert code == errors.ACCURACY
    assert facts["bisect"]
    return facts["first_difference"]


def test_with_half_floats_the_first_layer_that_differs_is_named_with_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = transformer()
    artifact, path = compiled(tmp_path, model, "--precision", "fp16")
    found = first(capsys, artifact, path, "--rtol", 1e-5)
    order = [node.name for node in model.graph.node]
    gemms = [node.name for node in model.graph.node if node.op_type == "MatMul"]
    assert order.index(gemms[0]) <= order.index(found["node"]) < order.index(gemms[4])
    assert 1e-5 < found["error"] < 1e-2


def test_a_pass_of_the_users_is_found_guilty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = transformer()
    rule = "examples.custom_pass.tilestitch_example_rules.hard_gelu:HardGelu{slope=2.0}"
    artifact, path = compiled(tmp_path, model, "--pass", rule)
    found = first(capsys, artifact, path)
    order = [node.name for node in model.graph.node]
    erf = next(node.name for node in model.graph.node if node.op_type == "Erf")
    following = [
        node.name for node in model.graph.node if node.op_type == "MatMul" and order.index(node.name) > order.index(erf)
    ]
    assert order.index(erf) <= order.index(found["node"]) <= order.index(following[0]) + 2


@pytest.mark.parametrize("given", ["--planner", "--plan"])
def test_planner_and_plan_are_kept(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = transformer()
    compile_model(model, planner="none").plan.save(tmp_path / "plan.json")
    artifact, path = compiled(tmp_path, model, given, "none" if given == "--planner" else tmp_path / "plan.json")
    gemm = [node for node in model.graph.node if node.op_type == "MatMul"][-1]
    plant_fault(monkeypatch, gemm.input[1])
    planners = []
    import tilestitch.compiler.driver as driver

    compile_again = driver.compile_model

    def spy(*arguments: Any, **options: Any) -> Any:
        planners.append(options)
        return compile_again(*arguments, **options)

    monkeypatch.setattr(driver, "compile_model", spy)
    found = first(capsys, artifact, path, "--against", "reference")
    assert found["node"] == gemm.name
    kernels = {kernel["name"]: kernel for kernel in read_explain(artifact)["kernels"]}
    assert kernels[found["kernel"]]["onnx_nodes"] == [gemm.name]
    assert planners[0]["plan"] is not None
    assert all(options["planner"] == "none" for options in planners)


def edited_plan(folder: Path, model: onnx.ModelProto) -> Path:
    """A plan that compiling the model does not lead to: one of another planner, under a false name."""
    plan = compile_model(model, planner="injective").plan.to_json()
    (folder / "plan.json").write_text(json.dumps({**plan, "planner": "stitch"}))
    return folder / "plan.json"


def test_a_fault_of_the_model_is_found_through_an_edited_plan_whose_kernels_store_another_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = cnn()
    artifact, path = compiled(tmp_path, model, "--plan", edited_plan(tmp_path, model))
    convolution = [node for node in model.graph.node if node.op_type == "Conv"][2]
    plant_fault(monkeypatch, convolution.input[1])
    found = first(capsys, artifact, path, "--against", "reference")
    kernels = {kernel["name"]: kernel for kernel in read_explain(artifact)["kernels"]}
    assert convolution.name in kernels[found["kernel"]]["onnx_nodes"]


@pytest.mark.parametrize("edited", [False, True])
def test_a_wrong_kernel_is_found_by_what_it_makes_of_what_it_reads(
    edited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = cnn()
    plan = ["--plan", edited_plan(tmp_path, model)] if edited else ["--planner", "injective"]
    right = elementwise.RULES["exp"]
    monkeypatch.setitem(elementwise.RULES, "exp", lambda operation: right(operation) + 1)  # type: ignore[arg-type]
    artifact, path = compiled(tmp_path, model, *plan)
    code, facts = command(capsys, "check", artifact, path, "--bisect")
    assert code == errors.ACCURACY
    kernels = {kernel["name"]: kernel for kernel in read_explain(artifact)["kernels"]}
    found = facts["first_difference"]
    assert kernels[found["kernel"]]["nodes"] == ["sub_5", "exp"]
    assert found["node"] == "/output"
    assert facts["bisect"].endswith(bisect.AS_READ)


OF_ANY_NUMBER_OF_ROWS = """<ir_version: 8, opset_import: ["" : 17]>
net (float[n,8] x) => (float[n,8] y) <float[8] w = {1,2,3,4,5,6,7,8}> {
  [soft] a = Softmax <axis = 0> (x)
  [scaled] b = Mul (a, w)
  [again] y = Softmax <axis = 1> (b)
}"""


def test_the_specialisation_that_the_inputs_fit_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(OF_ANY_NUMBER_OF_ROWS)
    artifact, path = compiled(tmp_path, model, "--shape", "x=2x8", "--shape", "x=5x8", "--planner", "none")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32))
    plant_fault(monkeypatch, "w")
    found = first(capsys, artifact, path, "--against", "reference", "--input", f"x={tmp_path / 'x.npy'}")
    assert (found["node"], found["shape"]) == ("scaled", [5, 8])


def test_the_plan_of_open_dimensions_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(OF_ANY_NUMBER_OF_ROWS)
    artifact, path = compiled(tmp_path, model, "--planner", "none")
    plant_fault(monkeypatch, "w")
    monkeypatch.setattr(bisect, "_by_names", lambda *_: [])  # which plans anew
    found = first(capsys, artifact, path, "--against", "reference", "--dim", "n=5")
    assert (found["node"], found["kernel"], found["shape"]) == ("scaled", "mul", [5, 8])


def test_the_plan_of_sizes_that_are_found_when_it_runs_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[4,8] x) => (float[4,8] y, float[m] z)
        <float[8] w = {1,2,3,4,5,6,7,8}, int64[1] flat = {-1}, float zero = {0}, float[1] one = {1}> {
          [soft] a = Softmax <axis = 0> (x)
          [scaled] b = Mul (a, w)
          [again] y = Softmax <axis = 1> (b)
          [found] places = NonZero (x)
          [count] some = Size (places)
          [any] number = Cast <to = 1> (some)
          [more] is_more = Greater (number, zero)
          z = If (is_more) <
            then_branch = most () => (float[k] u) {
              pairs = Reshape (places, flat)
              u = Cast <to = 1> (pairs)
            },
            else_branch = none () => (float[1] v) { v = Identity (one) }
          >
        }"""
    )
    artifact, path = compiled(tmp_path, model, "--planner", "none")
    plant_fault(monkeypatch, "w")
    monkeypatch.setattr(bisect, "_by_names", lambda *_: [])  # which plans anew
    found = first(capsys, artifact, path, "--against", "reference")
    assert found["node"] == "scaled"


def test_a_loop_whose_results_differ_is_named_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[4,4] x, float[4,4] w) => (float[4,4] y) <int64 n = {40}, bool t = {1}> {
          [first] a = Tanh (x)
          [turns] b = Loop (n, t, a) <body = once (int64 i, bool go, float[4,4] s) => (bool on, float[4,4] next) {
            on = Identity (go)
            p = MatMul (s, w)
            next = Tanh (p)
          }>
          [last] y = Neg (b)
        }"""
    )
    artifact, path = compiled(tmp_path, model, "--precision", "bf16")
    found = first(capsys, artifact, path, "--rtol", 1e-5)
    assert (found["node"], found["kernel"]) == ("turns", "loop")
    assert "in host step 'loop'" in found["text"]


def test_another_model_is_said_to_be_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact, _ = compiled(tmp_path, transformer(seed=1))
    onnx.save(transformer(seed=2), tmp_path / "other.onnx")
    code, facts = command(capsys, "check", artifact, tmp_path / "other.onnx", "--bisect")
    assert code == errors.ACCURACY
    assert (facts["first_difference"], facts["bisect"]) == (None, bisect.ANOTHER)


def test_bisecting_on_the_emulated_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[4,8] x) => (float[4,8] y) <float[8] w = {1,2,3,4,5,6,7,8}> {
          [soft] a = Softmax <axis = 0> (x)
          [scaled] b = Mul (a, w)
          [again] y = Softmax <axis = 1> (b)
        }"""
    )
    artifact, path = compiled(tmp_path, model, "--target", "emulator:sm_80", "--planner", "none")
    plant_fault(monkeypatch, "w")
    found = first(capsys, artifact, path, "--against", "reference", "--device", "emulator")
    assert found["node"] == "scaled"
