"""Tuning, from the command line and from Python: an artifact that computes the same, and whose plan is replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.models import cnn, random_inputs, transformer
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.main import main
from tilestitch.compiler.errors import OptionError, TuningError
from tilestitch.compiler.tune.tune import tune_model
from tilestitch.runtime import load


def expected(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, inputs)
    return found


def check(artifact: bytes | Path, model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    with load(artifact, num_threads=1) as module:
        found = module.run(inputs)
    for mine, theirs in zip(found.values(), expected(model, inputs), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [transformer(sequence=5), cnn()], ids=["transformer", "cnn"])
def test_a_tuned_model_computes_the_same_and_replays(model: onnx.ModelProto) -> None:
    tuned = tune_model(model, seconds=2, num_threads=1)
    (plan,) = tuned.plans
    assert sum(task.tried for task in plan.tasks) > 0
    assert plan.after_us <= plan.before_us
    check(tuned.model.to_bytes(), model, random_inputs(model))
    again = compile_model(model, plan=tuned.model.plan, num_threads=1)
    assert again.plan == tuned.model.plan


def test_the_plan_says_what_was_tried_in_vain() -> None:
    tuned = tune_model(transformer(), seconds=1, num_threads=1)
    (plan,) = tuned.plans
    said = {one.subject: one.numbers for one in tuned.model.plan.refusals if one.rule == "tune"}
    assert said.keys() == {task.task.kernel.name for task in plan.tasks if not task.kept}
    assert all(numbers["tried"] >= 0 for numbers in said.values())


def test_no_time_changes_nothing_but_remarks() -> None:
    usual, tuned = compile_model(transformer(), num_threads=1), tune_model(transformer(), seconds=0, num_threads=1)
    assert tuned.model.plan.groups == usual.plan.groups
    assert {task.tried for task in tuned.plans[0].tasks} == {0}


def test_tuning_goes_on_from_a_plan(tmp_path: Path) -> None:
    onnx.save(transformer(), tmp_path / "m.onnx")
    common = ["--threads", "1", "--seconds", "1"]
    assert main(["tune", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "one.tsm"), *common]) == 0
    again = ["--plan", str(tmp_path / "one.tsm"), "-o", str(tmp_path / "two.tsm")]
    assert main(["tune", str(tmp_path / "m.onnx"), *again, *common]) == 0
    check(tmp_path / "two.tsm", transformer(), random_inputs(transformer()))


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its first dimension open."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    return model


def test_each_of_several_shapes_is_tuned_with_the_inputs_that_fit(tmp_path: Path) -> None:
    model = opened(cnn())
    ((name, array),) = random_inputs(cnn()).items()
    shapes: Any = [{name: (size, *array.shape[1:])} for size in (1, 3)]
    tuned = tune_model(model, seconds=2, num_threads=1, shapes=shapes, inputs={name: np.repeat(array[:1], 3, 0)})
    assert [bool(plan.tasks) for plan in tuned.plans] == [True, True]
    for size in (1, 3):
        check(tuned.model.to_bytes(), model, {name: np.repeat(array[:1], size, 0)})


def test_open_sizes_are_left_as_they_are_and_favoured_ones_tuned() -> None:
    model = opened(cnn())
    with pytest.raises(TuningError, match=r"sizes of this model are open.*--favour"):
        tune_model(model, seconds=1, num_threads=1, dims={"batch": (2, 8)})
    tuned = tune_model(model, seconds=1, num_threads=1, dims={"batch": (2, 8)}, favour=[{"batch": 2}])
    assert [bool(plan.untuned) for plan in tuned.plans] == [False, True]
    ((name, array),) = random_inputs(cnn()).items()
    for size in (2, 5):
        check(tuned.model.to_bytes(), model, {name: np.repeat(array[:1], size, 0)})


def beside(*nodes: onnx.NodeProto, inputs: Any = (), outputs: Any = (), constants: Any = ()) -> onnx.ModelProto:
    """A matmul of x, whose kernel is tuned, beside other nodes."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [33, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [33, 80])
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((64, 80)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), *nodes]
    graph = helper.make_graph(nodes, "beside", [x, *inputs], [y, *outputs], [weights, *constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def list_of(name: str, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_value_info(
        name, helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
    )


TEXT = helper.make_tensor_value_info("s", TensorProto.STRING, [2])
ODD = {
    "texts": (
        beside(
            helper.make_node("StringNormalizer", ["s"], ["t"], case_change_action="UPPER"),
            inputs=[TEXT], outputs=[helper.make_tensor_value_info("t", TensorProto.STRING, [2])],
        ),
        {"s": np.array(["a", "b"], object)},
    ),
    "list out": (
        beside(helper.make_node("SequenceConstruct", ["x", "y"], ["l"]), outputs=[list_of("l", [33, None])]), {},
    ),
    "list in": (
        beside(
            helper.make_node("SequenceAt", ["l", "i"], ["z"]), inputs=[list_of("l", [3, 5])],
            outputs=[helper.make_tensor_value_info("z", TensorProto.FLOAT, [3, 5])],
            constants=[numpy_helper.from_array(np.array(1), "i")],
        ),
        {"l": [np.zeros((3, 5), np.float32)] * 2},
    ),
    "random": (
        beside(
            helper.make_node("Sigmoid", ["y"], ["p"]), helper.make_node("Bernoulli", ["p"], ["z"]),
            outputs=[helper.make_tensor_value_info("z", TensorProto.FLOAT, [33, 80])],
        ),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "inputs"), ODD.values(), ids=ODD)
def test_models_with_other_results_than_numbers_are_tuned(model: onnx.ModelProto, inputs: Any) -> None:
    (plan,) = tune_model(model, seconds=0.5, num_threads=1, inputs=inputs).plans
    assert sum(task.tried for task in plan.tasks) > 0 and not plan.lost


def test_inputs_are_those_of_a_size_that_is_tuned() -> None:
    ((name, array),) = random_inputs(cnn()).items()
    with pytest.raises(
        OptionError, match=rf"inputs of the shapes {name} \[9, 9\] fit none of .*{name} \[1, 3, 16, 16\]"
    ):
        tune_model(cnn(), seconds=0, inputs={name: np.zeros((9, 9), np.float32)})
    with pytest.raises(OptionError, match="no input other"):
        tune_model(cnn(), seconds=0, inputs={"other": array, name: np.zeros((9, 9), np.float32)})
    (plan,) = tune_model(cnn(), seconds=1, num_threads=1, inputs={name: array.tolist()}).plans
    assert not plan.lost


def test_remarks_of_earlier_tuning_are_replaced() -> None:
    one = tune_model(transformer(), seconds=0, num_threads=1)
    two = tune_model(transformer(), seconds=0, num_threads=1, plan=one.model.plan)
    before, after = one.model.plan.refusals, two.model.plan.refusals
    assert [r for r in after if r.rule != "tune"] == [r for r in before if r.rule != "tune"]
    about = [r.subject for r in after if r.rule == "tune"]  # in the order of times, which are measured again
    assert about and len(set(about)) == len(about)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"target": "emulator:sm_80"}, "kernels for emulator:sm_80 are not measured"),
        ({"seconds": -1}, "seconds is -1"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"shares": 0}, "shares is 0"),
        ({"expose": ["x"]}, "expose is not supported"),
        ({"donate": ["x"]}, "donate is not supported"),
    ],
)
def test_what_cannot_be_tuned_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        tune_model(cnn(), **options)


def test_the_command_tells_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(cnn(), tmp_path / "m.onnx")
    ((name, array),) = random_inputs(cnn()).items()
    np.save(tmp_path / "x.npy", array)
    command = ["tune", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tsm"), "--threads", "1", "--seconds", "1"]
    assert main([*command, "--input", f"{name}={tmp_path / 'x.npy'}", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["untuned"] == "" and plan["lost"] == []
    assert {"kernel", "us", "kernels", "tried", "failed", "alone", "in_model", "kept"} == set(plan["tasks"][0])
    assert main(["explain", str(tmp_path / "m.tsm"), "--json"]) == 0
    records = ["--records", str(tmp_path / "kernels.db")]
    assert main([*command, "--save-records", str(tmp_path / "kernels.db")]) == 0
    assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m2.tsm"), "--threads", "1", *records]) == 0
    with pytest.raises(SystemExit, match="1"):
        main([*command, "--seconds", "nan"])
    assert main([*command, "--input", f"other={tmp_path / 'x.npy'}"]) == 1
    assert "no input other" in capsys.readouterr().err


def test_where_records_go_is_checked_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(cnn(), tmp_path / "m.onnx")
    command = ["tune", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tsm"), "--threads", "1", "--seconds", "0"]
    for name in ("m.tsm", "m.onnx", "none/kernels.db", "m.html"):
        again = [*command, "--report", str(tmp_path / "m.html"), "--save-records", str(tmp_path / name)]
        assert main(again) == 1
        assert name in capsys.readouterr().err
    assert not (tmp_path / "m.tsm").exists()
