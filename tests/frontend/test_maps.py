"""Maps are dicts, as with ONNX Runtime: what classifiers give of each row, and what vectorizers take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = os.environ["ORT_TELEMETRY_DISABLED"] = "1"

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, TypeProto, helper

from tests.frontend.host_models import model, tensor
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import errors, main
from tilestitch.compiler.cli.accuracy import difference
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.frontend.errors import ConversionError
from tilestitch.compiler.ir import MapType, SequenceType
from tilestitch.runtime import load
from tilestitch.runtime.errors import ArtifactSchemaError, ExecutionError, InputError
from tilestitch.runtime.types import type_from_json

ort = pytest.importorskip("onnxruntime")

INTEGERS: dict[str, Any] = {"classlabels_int64s": [7, -1, 3]}
TEXTS: dict[str, Any] = {"classlabels_strings": ["b", "a", "ü"]}
SCORES = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)


def zip_map(labels: dict[str, Any]) -> ModelProto:
    """Softmax of any number of rows, and maps of them."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["scores"]),
        helper.make_node("ZipMap", ["scores"], ["y"], "the_node", domain="ai.onnx.ml", **labels),
    ]
    return model(nodes, {"x": tensor(SCORES, shape=["n", 3])}, ["y"], opset=18)


def of_maps(op: str, key: int, value: int, **attrs: Any) -> ModelProto:
    mapping = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, ()))
    node = helper.make_node(op, ["x"], ["y"], "the_node", domain="ai.onnx.ml", **attrs)
    return model([node], {"x": mapping}, ["y"], opset=18, declared={"y": TypeProto()})


def onnx_runtime(proto: ModelProto, x: Any) -> Any:
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.mark.parametrize("labels", [INTEGERS, TEXTS], ids=["integers", "texts"])
@pytest.mark.parametrize("rows", [0, 1, 5, 30])
def test_a_row_of_scores_is_a_dict_of_classes(labels: dict[str, Any], rows: int) -> None:
    proto, x = zip_map(labels), SCORES[:rows]
    with load(compile_model(proto).to_bytes()) as module:
        actual = module.run({"x": x})["y"]
        again = module.run({"x": x})["y"]
    wanted = onnx_runtime(proto, x)
    assert [*map(dict.keys, actual)] == [*map(dict.keys, wanted)]
    assert {type(v) for one in actual for v in one.values()} <= {float}
    assert {type(k) for one in actual for k in one} == {type(k) for one in wanted for k in one}
    np.testing.assert_allclose([[a[k] for k in w] for a, w in zip(actual, wanted, strict=True)],
                               [[*w.values()] for w in wanted], rtol=1e-6)  # fmt: skip
    assert actual == again
    assert not any(a is b for a, b in zip(actual, again, strict=True))


def test_the_type_is_told_and_scores_are_compiled() -> None:
    compiled = compile_model(zip_map(TEXTS))
    with load(compiled.to_bytes()) as module:
        assert str(module.outputs[0]) == "y: sequence<map<string, float32>>"
    facts = compiled.explain()
    assert {node for kernel in facts["kernels"] for node in kernel["onnx_nodes"]} == {"Softmax_0"}
    assert [one["rule"] for one in facts["host"]["reasons"]] == ["host.map"]
    assert import_model(zip_map(INTEGERS)).graph.outputs[0].type == SequenceType(MapType("int64", "float32"))


def test_of_classes_named_twice_the_last_counts() -> None:
    proto = zip_map({"classlabels_strings": ["a", "b", "a"]})
    with load(compile_model(proto).to_bytes()) as module:
        for rows in (1, 20):
            actual, wanted = module.run({"x": SCORES[:rows]})["y"], onnx_runtime(proto, SCORES[:rows])
            assert [*actual[0]] == ["a", "b"]
            assert actual[-1]["a"] == pytest.approx(wanted[-1]["a"])


@pytest.mark.parametrize(
    ("key", "name"), [(TensorProto.STRING, "string_vocabulary"), (TensorProto.INT64, "int64_vocabulary")]
)
@pytest.mark.parametrize("value", [TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING])
def test_a_dict_becomes_a_row(key: int, name: str, value: int) -> None:
    words: list[Any] = ["b", "a", "c"] if key == TensorProto.STRING else [3, 1, 2]
    sample: Any = {TensorProto.FLOAT: 1.5, TensorProto.INT64: 4, TensorProto.STRING: "four"}[value]
    with load(compile_model(of_maps("DictVectorizer", key, value, **{name: words})).to_bytes()) as module:
        row = module.run({"x": {words[1]: sample, type(words[0])(9): sample}})["y"]
        nothing = module.run({"x": {}})["y"]
    absent = "" if value == TensorProto.STRING else 0
    assert row.tolist() == [[absent, sample, absent]]
    assert nothing.tolist() == [[absent] * 3]
    assert row.dtype == nothing.dtype == {TensorProto.FLOAT: np.float32, TensorProto.INT64: np.int64}.get(value, object)


@pytest.mark.parametrize("form", ["DENSE", "SPARSE"])
@pytest.mark.parametrize("cast", ["TO_FLOAT", "TO_INT64", "TO_STRING"])
def test_cast_maps_are_those_of_onnx_runtime(form: str, cast: str) -> None:
    proto = of_maps("CastMap", TensorProto.INT64, TensorProto.FLOAT, map_form=form, cast_to=cast, max_map=5)
    with load(compile_model(proto).to_bytes()) as module:
        for x in ({3: 1.5, 0: 2.25, 1: -2.7}, {4: 1e9, 9: 3.0}):
            actual, wanted = module.run({"x": x})["y"], onnx_runtime(proto, x)
            assert actual.tolist() == wanted.tolist()
            assert actual.dtype == wanted.dtype


def test_texts_are_cast_to_numbers() -> None:
    with load(compile_model(of_maps("CastMap", TensorProto.INT64, TensorProto.STRING)).to_bytes()) as module:
        assert module.run({"x": {3: "1.5", 1: "-2"}})["y"].tolist() == [[-2.0, 1.5]]
        with pytest.raises(ExecutionError, match=r"the_node.*'one' is no number"):
            module.run({"x": {3: "one"}})


@pytest.mark.parametrize(
    ("x", "problem"),
    [
        ([1.0], "is a list; it needs a dict"),
        ({1: 1.0}, "the key 1; give keys that are string"),
        ({"a": "b"}, "the value 'b'; give values that are float32"),
        ({"a": True}, "the value True"),
    ],
)
def test_what_is_no_such_map_is_refused(x: Any, problem: str) -> None:
    proto = of_maps("DictVectorizer", TensorProto.STRING, TensorProto.FLOAT, string_vocabulary=["a"])
    with load(compile_model(proto).to_bytes()) as module, pytest.raises(InputError, match=problem):
        module.run({"x": x})


def test_models_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"the_node.*2 class labels for 3 columns"):
        import_model(zip_map({"classlabels_int64s": [1, 2]}))
    with pytest.raises(ConversionError, match=r"the_node.*vocabulary is of int64 and the keys of the map are string"):
        import_model(of_maps("DictVectorizer", TensorProto.STRING, TensorProto.FLOAT, int64_vocabulary=[1]))
    with pytest.raises(ConversionError, match=r"the_node.*CastMap takes maps of int64"):
        import_model(of_maps("CastMap", TensorProto.STRING, TensorProto.FLOAT))


def test_forged_types_are_refused() -> None:
    right = {"key": "int64", "value": "float32"}
    type_from_json({"map": right}, "type")
    for forged in ({**right, "key": "float32"}, {"key": "int64"}, {**right, "value": "bool"}, {**right, "x": 1}, 3):
        with pytest.raises(ArtifactSchemaError):
            type_from_json({"map": forged}, "type")


def test_commands_know_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(zip_map(TEXTS), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", SCORES)
    given = ["--input", f"x={tmp_path / 'x.npy'}"]
    assert main.main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tsm")]) == errors.OK
    assert main.main(["check", str(tmp_path / "m.tsm"), str(tmp_path / "m.onnx"), *given]) == errors.OK
    assert main.main(["run", str(tmp_path / "m.tsm"), *given, "-o", str(tmp_path / "y.npz")]) == errors.OK
    saved = np.load(tmp_path / "y.npz")
    assert saved["y.keys"].tolist() == ["b", "a", "ü"]
    np.testing.assert_allclose(saved["y.values"].sum(1), 1.0, rtol=1e-6)
    capsys.readouterr()


def test_maps_are_compared_by_key_with_the_tolerance_of_float32() -> None:
    one = [{"a": 0.1, "b": 0.9}]
    assert difference("y", [{"b": 0.9 + 1e-7, "a": 0.1}], one).ok
    assert not difference("y", [{"b": 0.901, "a": 0.1}], one).ok
    assert not difference("y", [{"b": 0.9, "c": 0.1}], one).ok
    assert not difference("y", [0.1], one).ok
