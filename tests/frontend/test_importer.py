"""Loading: what is accepted, what is refused with one clear error, input shapes, external data, functions."""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.frontend.checks import assert_close, floats
from tilestitch.compiler.frontend import (
    ConversionError,
    DeclarationWarning,
    FrontendError,
    ModelError,
    UnsupportedOperatorsError,
    checked_model,
    convert_checked,
    import_model,
)
from tilestitch.compiler.frontend.importer import ImportedModel
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.sizes import Symbol, size_of

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def info(name: str, shape: list[int | str | None] | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray] | None = None,
    *,
    opsets: dict[str, int] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> ModelProto:
    stored = [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "main", inputs, outputs, stored)
    imports = [helper.make_opsetid(d, v) for d, v in (opsets or {"": 21}).items()]
    return helper.make_model(graph, opset_imports=imports, functions=functions or [], ir_version=10)


def linear(shape: list[int | str | None]) -> ModelProto:
    return model_of(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        [info("x", shape)], [info("y", None)], {"w": floats(4, 3)},
    )  # fmt: skip


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_saved_model_is_loaded_and_keeps_its_names(tmp_path: Path) -> None:
    onnx.save(linear([2, 4]), tmp_path / "m.onnx")
    imported = import_model(tmp_path / "m.onnx")
    assert imported.input_names == ("x",) and imported.output_names == ("y",)
    assert [v.name for v in imported.graph.outputs] == ["y"]
    assert [n.origins for n in imported.graph.nodes] == [("MatMul_0",), ("Relu_0",)]
    assert imported.graph.nodes[0].output.name == "h"
    assert imported.opsets == {"": 21}


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 64, os.urandom(200)])
def test_files_that_are_no_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError):
        import_model(tmp_path / "m.onnx")


def test_truncated_and_missing_files(tmp_path: Path) -> None:
    data = linear([2, 4]).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data[: len(data) - 20])
    with pytest.raises(ModelError):
        import_model(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="cannot read"):
        import_model(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="cannot read"):
        import_model(tmp_path)


def test_the_checker_is_not_given_large_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read, or copy, each byte several times. What it does not see is checked when it is read."""
    given: list[object] = []
    check = onnx.checker.check_model
    monkeypatch.setattr(onnx.checker, "check_model", lambda model: given.append(model) or check(model))
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])],
        [info("x", [3, 37])], [info("y", [3, 41])], {"w": floats(37, 41), "b": floats(41)},
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    for source in (model, tmp_path / "m.onnx"):
        found = [v.data for v in import_model(source).graph.constants]
        assert [v.shape for v in found if v is not None] == [(37, 41), (41,)]
    assert [isinstance(each, ModelProto) and each.ByteSize() < 1000 for each in given] == [True, True]
    for number, told in ((0, r"tensor 'w' \(float32, shape \(37, 41\)\) cannot be read"), (1, "checker rejects")):
        broken = ModelProto.FromString(model.SerializeToString())
        broken.graph.initializer[number].raw_data = broken.graph.initializer[number].raw_data[:-4]
        with pytest.raises(ModelError, match=told):
            import_model(broken)
    typed = ModelProto.FromString(model.SerializeToString())
    typed.graph.initializer[0].float_data.extend([0.0])
    with pytest.raises(ModelError, match="checker rejects"):
        import_model(typed)


def test_a_newer_operator_set_says_so() -> None:
    model = linear([2, 4])
    model.opset_import[0].version = 1000
    with pytest.raises(ModelError, match="1000"):
        import_model(model)


def test_a_circle_of_nodes_is_named() -> None:
    cyclic = model_of(
        [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"], name="mine"),
         helper.make_node("Exp", ["b"], ["y"])],
        [info("x", [2])], [info("y", [2])],
    )  # fmt: skip
    with pytest.raises(ModelError, match="nodes mine -> Add_0 -> mine go round in a circle"):
        import_model(cyclic)


def test_the_checker_runs() -> None:
    twice = model_of([helper.make_node("Relu", ["x"], ["y"])] * 2, [info("x", [2])], [info("y", [2])])
    with pytest.raises(ModelError):
        import_model(twice)
    wrong_attribute = model_of([helper.make_node("Relu", ["x"], ["y"], alpha=1.0)], [info("x", [2])], [info("y", [2])])
    with pytest.raises(ModelError):
        import_model(wrong_attribute)


def test_what_tools_leave_behind_is_accepted() -> None:
    """An output that was added by name only, and an initialiser that is no input before IR version 4."""
    model = linear([2, 4])
    model.ir_version = 3
    model.graph.output.append(onnx.ValueInfoProto(name="h"))
    x = floats(2, 4)
    y, h = evaluate(import_model(model).graph, [x])
    w = numpy_helper.to_array(model.graph.initializer[0])
    assert_close(h, x @ w)
    assert_close(y, np.maximum(x @ w, 0))


def test_nodes_in_any_order() -> None:
    """Appended ones, too, in a branch, whose values the branch takes from outside, and in a function."""
    twice = helper.make_function(
        "own", "Quadruple", ["a"], ["b"],
        [helper.make_node("Add", ["c", "c"], ["b"]), helper.make_node("Add", ["a", "a"], ["c"])],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    then = [helper.make_node("Neg", ["n"], ["then"]), helper.make_node("Abs", ["late"], ["n"])]
    other = [helper.make_node("Identity", ["late"], ["else"])]
    branches = {
        "then_branch": helper.make_graph(then, "then", [], [info("then", None)]),
        "else_branch": helper.make_graph(other, "else", [], [info("else", None)]),
    }
    model = model_of(
        [helper.make_node("If", ["flag"], ["y"], **branches),
         helper.make_node("Quadruple", ["x"], ["late"], domain="own")],
        [info("x", [3]), info("flag", [], TensorProto.BOOL)], [info("y", None)],
        opsets={"": 21, "own": 1}, functions=[twice],
    )  # fmt: skip
    before = model.SerializeToString(deterministic=True)
    graph, x = import_model(model).graph, floats(3)
    for flag, wanted in ((True, -np.abs(4 * x)), (False, 4 * x)):
        assert_close(evaluate(graph, [x, np.array(flag)])[0], wanted)
    assert model.SerializeToString(deterministic=True) == before


def test_nodes_in_any_order_where_a_branch_has_names_of_outer_values() -> None:
    """Its result is called what the node's own is, and another value what a later one is."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["late"], ["later"]), helper.make_node("Neg", ["later"], ["y"])],
            name, [], [info("y", None)],
        )
        for name, op in (("then", "Abs"), ("else", "Identity"))
    }  # fmt: skip
    model = model_of(
        [helper.make_node("If", ["flag"], ["y"], **branches),
         helper.make_node("Exp", ["y"], ["later"]),
         helper.make_node("Abs", ["x"], ["late"])],
        [info("x", [3]), info("flag", [], TensorProto.BOOL)], [info("later", None)],
    )  # fmt: skip
    x = floats(3)
    assert_close(evaluate(import_model(model).graph, [x, np.array(True)])[0], np.exp(-np.abs(x)))


def test_all_missing_operators_are_named_at_once() -> None:
    nodes = [
        helper.make_node("FusedThing", ["x"], ["a"], domain="com.microsoft", name="first"),
        helper.make_node("FusedThing", ["a"], ["b"], domain="com.microsoft", name="second"),
        helper.make_node("Other", ["b"], ["y"], domain="my.domain"),
    ]
    model = model_of(nodes, [info("x", [2])], [info("y", [2])], opsets={"": 21, "com.microsoft": 1, "my.domain": 1})
    with pytest.raises(UnsupportedOperatorsError) as raised:
        import_model(model)
    assert raised.value.nodes["com.microsoft.FusedThing (opset 1)"] == ("first", "second")
    assert "my.domain.Other" in str(raised.value)


def test_operators_of_later_operator_sets_are_said_to_be() -> None:
    nodes = [helper.make_node("CumProd", ["x", "axis"], ["y"])]
    model = model_of(nodes, [info("x", [2])], [info("y", [2])], {"axis": np.array(0)}, opsets={"": 21})
    with pytest.raises(UnsupportedOperatorsError, match=r"ai.onnx.CumProd \(opset 21, defined from 26 on"):
        import_model(model)


def test_contradicting_output_declarations() -> None:
    relu = [helper.make_node("Relu", ["x"], ["y"])], [info("x", [2])]
    with pytest.raises(ModelError, match="declared"):
        import_model(model_of(*relu, [info("y", [2], INT64)]))
    with pytest.warns(
        DeclarationWarning, match=r"'y' is declared as float32\[2,1\], but what the model computes has 1 dim"
    ):
        assert import_model(model_of(*relu, [info("y", [2, 1])])).graph.outputs[0].type == TensorType("float32", (2,))
    with pytest.warns(DeclarationWarning, match=r"'y' is declared as float32\[7\], .* has size 2 in dimension 0"):
        assert import_model(model_of(*relu, [info("y", [7])])).graph.outputs[0].type == TensorType("float32", (2,))


def test_of_nothing_other_sizes_than_the_declared_ones_are_no_contradiction(recwarn: pytest.WarningsRecorder) -> None:
    """Of an empty batch the -1 of a Reshape is 0."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    model = model_of(nodes, [info("x", ["n", 4])], [info("y", ["n", 2, 2])], {"shape": np.array([0, -1, 2])})
    assert import_model(model, {"x": (0, 4)}).graph.outputs[0].type == TensorType("float32", (0, 0, 2))
    assert not recwarn.list


# -- shapes --------------------------------------------------------------------------------------------------------


def test_open_dimensions_stay_symbols() -> None:
    graph = import_model(linear(["batch", 4])).graph
    assert graph.outputs[0].type == TensorType("float32", ("batch", 3))


def test_given_shapes_set_named_dimensions_everywhere() -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "z"], ["y"])], [info("x", ["n", 2]), info("z", ["n", "m"])], [info("y", None)]
    )
    graph = import_model(model, {"x": (5, 2)}).graph
    assert [v.type for v in graph.inputs] == [TensorType("float32", (5, 2)), TensorType("float32", (5, "m"))]


@pytest.mark.parametrize("shapes", [{"x": (2,)}, {"x": (2, 5)}, {"missing": (1,)}, {"x": (-1, 4)}])
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ModelError, match="; give"):
        import_model(linear(["batch", 4]), shapes)


def test_shapes_that_fit_their_inputs_and_not_a_node_are_named_with_it() -> None:
    inputs = [info("x", ["a", "b"]), info("z", ["c", "d"])]
    model = model_of([helper.make_node("MatMul", ["x", "z"], ["y"], name="m")], inputs, [info("y", None)])
    message = r"node 'm'.*inner dimensions 4 and 3.*shapes are given: x of \[2, 4\], z of \[3, 5\]; give others"
    with pytest.raises(ConversionError, match=message):
        import_model(model, {"x": (2, 4), "z": (3, 5)})


def test_contradicting_sizes_of_one_named_dimension() -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "z"], ["y"])], [info("x", ["n"]), info("z", ["n"])], [info("y", None)]
    )
    with pytest.raises(ModelError, match="'n'"):
        import_model(model, {"x": (2,), "z": (3,)})


def test_a_dimension_that_must_be_known_says_how_to_give_it() -> None:
    w = floats(3, 2, 3, 3)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c", auto_pad="SAME_UPPER")
    model = model_of([node], [info("x", [1, 2, "h", "w_"])], [info("y", None)], {"w": w})
    with pytest.raises(ConversionError, match=r"'c'.*--shape"):
        import_model(model)
    assert import_model(model, {"x": (1, 2, 5, 5)}).graph.outputs[0].shape == (1, 3, 5, 5)


def test_initialisers_that_are_inputs_too_are_constants() -> None:
    model = linear([2, 4])
    model.graph.input.append(info("w", [4, 3]))
    assert import_model(model).input_names == ("x",)


# -- external data ---------------------------------------------------------------------------------------------------


def external(tmp_path: Path) -> tuple[Path, ModelProto]:
    path = tmp_path / "m.onnx"
    onnx.save(linear([2, 4]), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path, onnx.load(path, load_external_data=False)


def test_initialisers_are_read_once_for_all_sizes(tmp_path: Path) -> None:
    """From files and from the model itself: planning knows by them that constants are the same."""
    path = tmp_path / "m.onnx"
    onnx.save(linear(["n", 4]), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    for model in (checked_model(path), checked_model(linear(["n", 4]))):
        first, second = (convert_checked(model, {"x": (n, 4)}).graph for n in (2, 5))
        (one,), (other,) = ([c.data for c in graph.constants if c.shape == (4, 3)] for graph in (first, second))
        assert one is other


def test_external_data_is_memory_mapped(tmp_path: Path) -> None:
    path, _ = external(tmp_path)
    graph = import_model(path).graph
    (weight,) = (c for c in graph.constants if c.shape == (4, 3))
    assert weight.data is not None
    base = weight.data
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert_close(weight.data, floats(4, 3))


@pytest.mark.parametrize("location", ["/etc/passwd", "../w.bin", "sub/../../w.bin", "", "missing.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path, model = external(folder)
    (tmp_path / "w.bin").write_bytes((folder / "w.bin").read_bytes())
    entries = model.graph.initializer[0].external_data
    next(e for e in entries if e.key == "location").value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError):
        import_model(path)


def test_links_are_refused(tmp_path: Path) -> None:
    path, _ = external(tmp_path)
    (tmp_path / "w.bin").rename(tmp_path / "elsewhere")
    (tmp_path / "w.bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError):
        import_model(path)
    (tmp_path / "w.bin").unlink()
    os.link(tmp_path / "elsewhere", tmp_path / "w.bin")
    with pytest.raises(ModelError):
        import_model(path)


@pytest.mark.parametrize(("key", "value"), [("length", "1000"), ("offset", "40"), ("offset", "-1"), ("length", "8")])
def test_external_data_beyond_the_file_is_refused(tmp_path: Path, key: str, value: str) -> None:
    path, model = external(tmp_path)
    entries = {e.key: e for e in model.graph.initializer[0].external_data}
    if key not in entries:
        entries[key] = model.graph.initializer[0].external_data.add(key=key)
    entries[key].value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError):
        import_model(path)


def test_a_model_in_memory_has_no_folder(tmp_path: Path) -> None:
    _, model = external(tmp_path)
    with pytest.raises(ModelError):
        import_model(model)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
def test_packed_external_data(tmp_path: Path, dtype: str) -> None:
    values = np.arange(-2, 5).clip(0 if dtype.startswith("u") else -2, 1)
    model = model_of([helper.make_node("Cast", ["w"], ["y"], to=FLOAT)], [], [info("y", [7])], opsets={"": 25})
    model.ir_version = 13
    model.graph.initializer.append(numpy_helper.from_array(values.astype(getattr(ml_dtypes, dtype)), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (y,) = import_model(tmp_path / "m.onnx").graph.outputs
    assert y.data is not None and y.data.tolist() == values.tolist()


# -- functions and outputs -----------------------------------------------------------------------------------------


def scaled_function() -> onnx.FunctionProto:
    """y = LeakyRelu(x, alpha) + x, with the attribute handed through and a default."""
    node = helper.make_node("LeakyRelu", ["a"], ["b"])
    reference = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    node.attribute.append(reference)
    function = helper.make_function(
        "my", "Leak", ["a"], ["c"], [node, helper.make_node("Add", ["b", "a"], ["c"])], [helper.make_opsetid("", 21)]
    )
    function.attribute_proto.append(helper.make_attribute("slope", 0.5))
    return function


@pytest.mark.parametrize("attrs", [{}, {"slope": 0.25}])
def test_model_local_functions_are_inlined(attrs: dict[str, float]) -> None:
    node = helper.make_node("Leak", ["x"], ["y"], domain="my", name="call", **attrs)
    model = model_of(
        [node], [info("x", [3])], [info("y", [3])], opsets={"": 21, "my": 1}, functions=[scaled_function()]
    )
    graph = import_model(model).graph
    assert {n.origins for n in graph.nodes} == {("call",)}
    x = np.array([-2, 0, 4], np.float32)
    slope = attrs.get("slope", 0.5)
    assert_close(evaluate(graph, [x])[0], np.where(x < 0, slope * x, x).astype(np.float32) + x)


def test_recursive_functions_are_an_error() -> None:
    body = [helper.make_node("Loopy", ["a"], ["b"], domain="my")]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
    function = helper.make_function("my", "Loopy", ["a"], ["b"], body, imports)
    node = helper.make_node("Loopy", ["x"], ["y"], domain="my")
    model = model_of([node], [info("x", [3])], [info("y", [3])], opsets={"": 21, "my": 1}, functions=[function])
    with pytest.raises(ModelError, match="function Loopy calls itself"):
        import_model(model)


def nested_functions(count: int, calls: int) -> onnx.ModelProto:
    """Functions F0, F1, ... each of which calls the one before so often; F0 is one Relu."""
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
    functions = []
    for number in range(count):
        op, domain = (f"F{number - 1}", "my") if number else ("Relu", "")
        places = ["a", *(f"t{i}" for i in range(1, calls)), "b"] if number else ["a", "b"]
        body = [helper.make_node(op, [i], [o], domain=domain) for i, o in pairwise(places)]
        functions.append(helper.make_function("my", f"F{number}", ["a"], ["b"], body, imports))
    node = helper.make_node(f"F{count - 1}", ["x"], ["y"], domain="my")
    return model_of([node], [info("x", [3])], [info("y", [3])], opsets={"": 21, "my": 1}, functions=functions)


def test_functions_that_would_expand_to_billions_of_nodes_are_refused_with_the_number() -> None:
    with pytest.raises(ModelError, match=r"1,073,741,824 nodes once its functions are expanded.*at most 250,000"):
        import_model(nested_functions(31, calls=2))


def test_functions_that_nest_deeper_than_any_exporter_makes_them_are_refused() -> None:
    with pytest.raises(ModelError, match="nest deeper than 64"):
        import_model(nested_functions(400, calls=1))
    assert [n.op for n in import_model(nested_functions(60, calls=1)).graph.nodes] == ["maximum"]


def test_outputs_may_be_inputs_constants_or_repeated() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Identity", ["k"], ["b"])]
    nodes += [helper.make_node("Relu", ["x"], ["c"]), helper.make_node("Identity", ["c"], ["d"])]
    outputs = [info(n, [2]) for n in "abcd"]
    imported = import_model(model_of(nodes, [info("x", [2])], outputs, {"k": np.array([7, 8], np.float32)}))
    assert imported.output_names == ("a", "b", "c", "d")
    x = np.array([-1, 1], np.float32)
    a, b, c, d = evaluate(imported.graph, [x])
    assert a.tolist() == [-1, 1] and b.tolist() == [7, 8] and c.tolist() == d.tolist() == [0, 1]


def test_two_outputs_of_one_name_are_refused() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2]), info("y", [2])])
    with pytest.raises(ModelError, match="several outputs named y; remove"):
        import_model(model)


@pytest.mark.parametrize("op", ["Range", "HannWindow"])
def test_results_that_no_memory_holds_when_compiling_name_their_node(op: str) -> None:
    """They are computed when the model is imported, since the operands are constants."""
    operands = {"first": 0, "most": 2**42, "step": 1} if op == "Range" else {"most": 2**42}
    node = helper.make_node(op, list(operands), ["y"], name="absurd")
    model = model_of([node], [], [info("y", None)], {name: np.int64(number) for name, number in operands.items()})
    with pytest.raises(ConversionError, match=r"node 'absurd' .* no memory"):
        import_model(model)


def test_tensors_beyond_any_memory_are_refused() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x", ["n", 1 << 40])], [info("y", None)])
    with pytest.raises(ModelError, match=r"'x' is .* more than a process can address"):
        import_model(model, {"x": (1 << 40, 1 << 40)})
    assert import_model(model, {"x": (1, 1 << 40)}).graph.inputs[0].shape == (1, 1 << 40)
    expand = model_of(
        [helper.make_node("Expand", ["x", "s"], ["y"])], [info("x", [1, 1])], [info("y", None)],
        {"s": np.array([1 << 33, 1 << 33], np.int64)},
    )  # fmt: skip
    with pytest.raises(ModelError, match="more than a process can address"):
        import_model(expand)


def sparse_weights(values: list[float], indices: np.ndarray, dims: list[int]) -> ModelProto:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    model = model_of(nodes, [info("x", [2, 3])], [info("y", [2, 3])])
    stored = numpy_helper.from_array(np.array(values, np.float32), "w")
    positions = numpy_helper.from_array(np.array(indices, np.int64), "w_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(stored, positions, dims))
    return model


@pytest.mark.parametrize("indices", [np.array([1, 5]), np.array([[0, 1], [1, 2]])], ids=["flat", "coordinates"])
def test_sparse_initialisers_are_stored_dense(indices: np.ndarray) -> None:
    imported = import_model(sparse_weights([7, 8], indices, [2, 3]))
    (y,) = evaluate(imported.graph, [np.zeros((2, 3), np.float32)])
    assert y.tolist() == [[0, 7, 0], [0, 0, 8]]


@pytest.mark.parametrize("indices", [np.array([1, 6]), np.array([[0, 1], [1, 3]]), np.array([5, -1]), np.array([1])])
def test_sparse_initialisers_with_wrong_indices(indices: np.ndarray) -> None:
    with pytest.raises(ModelError):
        import_model(sparse_weights([7, 8], indices, [2, 3]))


def test_intermediate_values_can_be_exposed() -> None:
    imported = import_model(linear([2, 4]), expose=["h"])
    assert imported.output_names == ("y", "h")
    y, h = evaluate(imported.graph, [floats(2, 4, seed=1)])
    assert_close(y, np.maximum(h, 0))


def test_shape_arithmetic_folds_away() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    graph = import_model(model_of(nodes, [info("x", [2, 3, 4])], [info("y", None)], constants)).graph
    assert [n.op for n in graph.nodes] == ["reshape"]
    assert graph.outputs[0].shape == (2, 12)


def test_damaged_models_never_crash(tmp_path: Path) -> None:
    data = linear([2, 4]).SerializeToString()
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data)
        for place in rng.integers(0, len(damaged), 2):
            damaged[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "m.onnx").write_bytes(damaged)
        with contextlib.suppress(FrontendError):
            import_model(tmp_path / "m.onnx")


def test_a_constant_index_out_of_range_is_left_to_the_run() -> None:
    node = helper.make_node("Gather", ["k", "i"], ["y"])
    graph = import_model(model_of([node], [], [info("y", [1])], {"k": floats(3), "i": np.array([7])})).graph
    assert [n.op for n in graph.nodes] == ["gather"]


def test_a_quotient_by_a_size_of_0_has_no_value_there() -> None:
    m, n = (size_of(Symbol(name, 1)) for name in "mn")
    model = ImportedModel(Graph("g"), (), (), {}, {}, known={"part": m // n, "whole": m * n})
    assert model.empty_with(["n"]) == ("whole",)
