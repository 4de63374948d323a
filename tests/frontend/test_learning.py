"""Operators of ai.onnx.ml give what ONNX Runtime gives, with no step on the host but for texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = os.environ["ORT_TELEMETRY_DISABLED"] = "1"

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.frontend.host_models import check, model, ops, tensor
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.frontend.errors import ConversionError
from tilestitch.compiler.ir import TensorType
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.passes.plan.index_checks import pending_checks
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError

ort = pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
HOLES = np.array([[1, np.nan, 0], [0, 2, np.nan], [0, 0, 0]], np.float32)
COUNTS = np.array([[0, 1, 2], [3, -1, 1]])
TEXTS = np.array([["a", "b"], ["x", "a"]], object)


def ml(op: str, x: np.ndarray, outputs: int = 1, opset: int = 3, **attrs: Any) -> ModelProto:
    names = [f"y{i}" for i in range(outputs)]
    kind = TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], names, "the_node", domain="ai.onnx.ml", **attrs)], "g",
        [helper.make_tensor_value_info("x", kind, ["n", *x.shape[1:]])], [ValueInfoProto(name=n) for n in names],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def agrees(op: str, x: np.ndarray, outputs: int = 1, opset: int = 3, **attrs: Any) -> list[str]:
    """The primitives of what is ONNX Runtime's result."""
    proto = ml(op, x, outputs, opset, **attrs)
    expected = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    imported = import_model(proto, shapes={"x": x.shape})
    for actual, wanted in zip(evaluate(imported.graph, [x]), expected, strict=True):
        assert actual.shape == wanted.shape
        if wanted.dtype.kind in "OUi":
            assert actual.tolist() == wanted.tolist()
        else:
            assert actual.dtype == wanted.dtype
            np.testing.assert_allclose(actual, wanted, rtol=2e-6, atol=1e-6)
    return ops(imported.graph)


def on_host(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith("host.")]


FEATURES: Mapping[str, tuple[str, np.ndarray, Mapping[str, Any]]] = {
    "scaled": ("Scaler", X, {"offset": [0.1, 0.2, 0.3], "scale": [2.0, 3.0, 4.0]}),
    "all_scaled": ("Scaler", X.astype(np.float64), {"offset": [0.5], "scale": [3.0]}),
    "counts_scaled": ("Scaler", COUNTS, {"offset": [0.5], "scale": [3.0]}),
    "by_the_largest": ("Normalizer", np.concatenate([X, -abs(X), 0 * X]), {"norm": "MAX"}),
    "by_the_sum": ("Normalizer", np.concatenate([X, 0 * X]), {"norm": "L1"}),
    "by_the_length": ("Normalizer", np.concatenate([X, 0 * X]), {"norm": "L2"}),
    "holes_filled": ("Imputer", HOLES, {"imputed_value_floats": [7.0, 8, 9], "replaced_value_float": float("nan")}),
    "zeros_filled": ("Imputer", HOLES, {"imputed_value_floats": [7.0], "replaced_value_float": 0.0}),
    "counts_filled": ("Imputer", COUNTS, {"imputed_value_int64s": [7], "replaced_value_int64": -1}),
    "one_hot": ("OneHotEncoder", COUNTS, {"cats_int64s": [0, 1, 3]}),
    "one_hot_of_all": ("OneHotEncoder", COUNTS, {"cats_int64s": [3, -1, 0, 1, 2], "zeros": 0}),
    "put_together": ("FeatureVectorizer", X, {"inputdimensions": [3]}),
    "looked_up": ("LabelEncoder", COUNTS, {"keys_int64s": [1, 2], "values_floats": [0.5, 1.5], "default_float": 9.0}),
    "regression": ("LinearRegressor", X, {"coefficients": [1.0, 2, 3], "intercepts": [0.5]}),
    "two_targets": ("LinearRegressor", X, {"coefficients": [1.0, 2, 3, 4, 5, 6], "targets": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
def test_features_and_linear_models(name: str) -> None:
    op, x, attrs = FEATURES[name]
    assert not on_host(agrees(op, x, **attrs))


def test_what_primitives_can_do_as_they_are() -> None:
    names = agrees("Binarizer", X, threshold=0.5)
    assert names == ["less", "cast"]
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    graph = check(model([node], {"x": tensor(X)}, ["y"], {"i": np.array([[2, 0]])}), {"x": X})
    assert ops(graph) == ["gather"] and graph.outputs[0].type == TensorType("float32", (6, 2))


def test_texts_are_looked_up_on_the_host() -> None:
    names = agrees("LabelEncoder", TEXTS, keys_strings=["a", "b"], values_int64s=[5, 6])
    assert on_host(names) == ["host.LabelEncoder"]
    agrees("LabelEncoder", TEXTS, opset=1, classes_strings=["b", "a"])
    agrees("CategoryMapper", COUNTS, cats_int64s=[0, 1], cats_strings=["no", "yes"], default_string="other")
    assert on_host(agrees("OneHotEncoder", TEXTS, cats_strings=["a", "b", "c"])) == ["host.LabelEncoder"]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("texts", [True, False])
def test_a_category_that_has_to_be_known(texts: bool, known: bool) -> None:
    x = TEXTS if texts else COUNTS + 0.5
    categories = ["x", "b", "a"] if texts else [3, 0, 1, 2, -1]
    proto = ml("OneHotEncoder", x, **{f"cats_{'string' if texts else 'int64'}s": categories[not known :], "zeros": 0})
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    module = load(compile_model(proto, num_threads=1).to_bytes(), num_threads=1)
    if known:
        np.testing.assert_array_equal(module.run({"x": x})["y0"], session.run(None, {"x": x})[0])
    else:
        with pytest.raises(ExecutionError, match="the_node: gather: an index is out of range"):
            module.run({"x": x})


def test_keys_of_tensors_and_nan() -> None:
    attrs = {"keys_tensor": [1.5, np.nan], "values_tensor": [7.0, 8.0], "default_tensor": [-3.0]}
    tensors = {name: numpy_helper.from_array(np.array(data, np.float32)) for name, data in attrs.items()}
    proto = ml("LabelEncoder", HOLES, opset=4, **tensors)
    (result,) = evaluate(import_model(proto, shapes={"x": (3, 3)}).graph, [HOLES * 1.5])
    assert result.tolist() == [[7, 8, -3], [-3, -3, 8], [-3, -3, -3]]


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_linear_classifiers(transform: str) -> None:
    weights = {"coefficients": [1.0, 2, 3, -1, 0.5, 2, 3, 1, 0], "intercepts": [0.1, 0.2, 0.3]}
    agrees("LinearClassifier", X, 2, classlabels_ints=[4, 5, 6], post_transform=transform, **weights)
    two = {"coefficients": weights["coefficients"][:6], "intercepts": [0.0, 0.5], "classlabels_strings": ["no", "yes"]}
    agrees("LinearClassifier", X, 2, post_transform=transform, **two)
    row = {"coefficients": weights["coefficients"][:3], "intercepts": [0.25], "classlabels_strings": ["no", "yes"]}
    agrees("LinearClassifier", np.concatenate([X, HOLES]), 2, post_transform=transform, **row)


# Two trees: x[0] ? (x[2] ? 2 : 3) : 4, with all leaves in the second one's root.
FORKS = {
    "nodes_treeids": [0] * 5 + [1] * 3, "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 2, 0, 0, 0, 1, 0, 0], "nodes_values": [0.1, -0.3, 0.0, 0, 0, 0.2, 0, 0],
    "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0], "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
}  # fmt: skip
LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2]}


def forest(of: str, ids: Sequence[int], weights: Sequence[float], modes: Sequence[str] = ("BRANCH_LEQ",) * 3) -> Any:
    kinds = [modes[0], modes[1], "LEAF", "LEAF", "LEAF", modes[2], "LEAF", "LEAF"]
    leaves = {f"{of}_{name}": places for name, places in LEAVES.items()}
    return FORKS | leaves | {"nodes_modes": kinds, f"{of}_ids": ids, f"{of}_weights": weights}


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize(
    "modes",
    [
        ("BRANCH_LEQ",) * 3,
        ("BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"),
        ("BRANCH_NEQ",) * 3,
        ("BRANCH_NEQ", "BRANCH_LT", "BRANCH_EQ"),
    ],
)
def test_regression_by_trees(aggregate: str, modes: Sequence[str]) -> None:
    attrs = forest("target", [0] * 5, [1.0, -2.5, 3, 0.5, 4], modes)
    equal, endless = np.array([[0.1, 0.2, -0.3]], np.float32), np.array([[-np.inf] * 3, [np.inf] * 3], np.float32)
    x = np.concatenate([X, HOLES, equal, endless])
    missing = {"nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 1, 0, 0]}
    for more in ({}, missing, {"base_values": [0.75]}):
        names = agrees("TreeEnsembleRegressor", x, n_targets=1, aggregate_function=aggregate, **attrs, **more)
        assert not on_host(names)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_classification_by_trees(transform: str) -> None:
    three = forest("class", [0, 1, 2, 1, 0], [1.0, 0.5, 2, 1, 0.5])
    agrees("TreeEnsembleClassifier", X, 2, classlabels_int64s=[7, 8, 9], post_transform=transform, **three)
    for weights in ([1.0, -2.5, 3, 0.5, -4], [0.1, 0.2, 0.3, 0.05, 0.4]):
        two = forest("class", [0] * 5, weights)
        agrees("TreeEnsembleClassifier", X, 2, classlabels_strings=["no", "yes"], post_transform=transform, **two)


@pytest.mark.parametrize("weighted", [0, 1])
def test_of_two_base_values_that_of_the_weighted_class_counts(weighted: int) -> None:
    attrs = forest("class", [weighted] * 5, [1.0, -2.5, 3, 0.5, -4]) | {"classlabels_int64s": [7, 9]}

    def scores(*base: float) -> list[np.ndarray]:
        proto = ml("TreeEnsembleClassifier", X, 2, **attrs, base_values=base)
        return list(evaluate(import_model(proto, shapes={"x": X.shape}).graph, [X]))

    for actual, expected in zip(scores(0.5, -1.25), scores((0.5, -1.25)[weighted]), strict=True):
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(ConversionError, match="3 base_values are given for 2 classes"):
        scores(1.0, 2.0, 3.0)


def test_a_compiled_forest_of_any_number_of_rows() -> None:
    """Where rows are is known to be in the tables, so that nothing is checked on the way."""
    proto = ml("TreeEnsembleRegressor", X, n_targets=1, **forest("target", [0] * 5, [1.0, -2.5, 3, 0.5, 4]))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = compile_model(proto, num_threads=1)
    assert compiled.explain()["host"]["steps"] == 0
    module = load(compiled.to_bytes(), num_threads=1)
    assert [str(x) for (x,) in module.specialisations][:2] == ["x: float32[n:1..3, 3]", "x: float32[n:1.., 3]"]
    for rows in (X, X[:1], X[:0], np.tile(X, (6, 1))):
        np.testing.assert_array_equal(module.run({"x": rows})["y0"], session.run(None, {"x": rows})[0])


def grown(depth: int, modes: Sequence[str], missing: bool, trees: int = 5) -> dict[str, Any]:
    """Trees that ask at random, whose paths end at random from the third test on, and at `depth`."""
    rng = np.random.default_rng(depth)
    lists: dict[str, list[Any]] = {name: [] for name in (*FORKS, "nodes_modes", "nodes_missing_value_tracks_true")}
    leaves: list[tuple[int, int]] = []
    for tree in range(trees):
        ends, number = [(0, 0)], 0  # nodes, and how many tests lead to them
        while ends:
            node, tests = ends.pop()
            is_leaf = tests == depth or (tests > 2 and rng.random() < 0.3)
            children = (0, 0) if is_leaf else (number + 1, number + 2)
            number += 0 if is_leaf else 2
            ends += [] if is_leaf else [(child, tests + 1) for child in children]
            leaves += [(tree, node)] if is_leaf else []
            row = (
                tree, node, int(rng.integers(3)), float(rng.choice([-0.5, 0.0, 0.25, 0.75])), *children,
                "LEAF" if is_leaf else str(rng.choice(modes)), int(missing and rng.random() < 0.5),
            )  # fmt: skip
            for values, value in zip(lists.values(), row, strict=True):
                values.append(value)
    weights = [float(weight) for weight in rng.integers(-8, 8, len(leaves))]
    targets = {"target_treeids": [t for t, _ in leaves], "target_nodeids": [n for _, n in leaves]}
    return {**lists, **targets, "target_ids": [0] * len(leaves), "target_weights": weights, "n_targets": 1}


@pytest.mark.parametrize("depth", [1, 5, 9])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    "modes",
    [["BRANCH_LEQ"], ["BRANCH_LT"], ["BRANCH_GTE"], ["BRANCH_GT"], ["BRANCH_EQ", "BRANCH_NEQ", "BRANCH_LEQ"]],
)
def test_trees_of_any_depth_and_rows_of_any_number(depth: int, missing: bool, modes: Sequence[str]) -> None:
    """Of the deepest, tests are left below 32 exits. Values are those that nodes compare with."""
    proto = ml("TreeEnsembleRegressor", X, **grown(depth, modes, missing))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    values = [-0.5, 0.0, -0.0, 0.25, 0.75, 0.3, np.nan, np.inf, -np.inf, np.nextafter(np.float32(0.25), np.float32(1))]
    x = np.random.default_rng(0).choice(np.array(values, np.float32), (37, 3))
    for rows in (1, 3, 4, 16, 37):
        graph = import_model(proto, shapes={"x": (rows, 3)}).graph
        np.testing.assert_array_equal(evaluate(graph, [x[:rows]])[0], session.run(None, {"x": x[:rows]})[0])
        assert not pending_checks(graph.nodes)


def test_a_forest_whose_places_and_features_fill_more_than_31_bits() -> None:
    stumps, features = 1500, 1 << 20
    asked = np.random.default_rng(1).integers(0, features, stumps)
    asked[0] = features - 1
    each: dict[str, Any] = {
        "nodes_treeids": np.arange(stumps), "nodes_nodeids": [0, 1, 2], "nodes_values": [0.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    }  # fmt: skip
    attrs = {name: list(values) * stumps for name, values in each.items() if name != "nodes_treeids"}
    attrs |= {"nodes_treeids": np.repeat(np.arange(stumps), 3), "nodes_featureids": np.repeat(asked, 3)}
    attrs |= {"target_treeids": np.arange(stumps), "target_nodeids": [1] * stumps, "target_ids": [0] * stumps}
    attrs |= {"target_weights": [1.0] * stumps, "n_targets": 1}
    x = np.random.default_rng(2).standard_normal((2, features)).astype(np.float32)
    x[1, asked[1]] = np.nan
    graph = import_model(ml("TreeEnsembleRegressor", x, **attrs), shapes={"x": x.shape}).graph
    assert evaluate(graph, [x])[0][:, 0].tolist() == (x[:, asked] <= 0).sum(1).tolist()
    assert not pending_checks(graph.nodes)


def stump() -> dict[str, Any]:
    """The attributes of a TreeEnsemble of one test."""
    floats = {"nodes_splits": [0.5], "leaf_weights": [3.0, 4.0]}
    return {
        "n_targets": 2, "aggregate_function": 1, "tree_roots": [0], "nodes_featureids": [0], "nodes_truenodeids": [0],
        "nodes_falsenodeids": [1], "nodes_trueleafs": [1], "nodes_falseleafs": [1], "leaf_targetids": [0, 1],
        "nodes_modes": numpy_helper.from_array(np.array([0], np.uint8)),
        **{name: numpy_helper.from_array(np.array(data, np.float32)) for name, data in floats.items()},
    }  # fmt: skip


def test_the_newest_form_of_trees() -> None:
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **stump())
    graph = check(model([node], {"x": tensor(X)}, ["y"]), {"x": X})
    assert not on_host(ops(graph)) and graph.outputs[0].type == TensorType("float32", (6, 2))


def test_what_cannot_be_is_refused_by_name() -> None:
    def refused(match: str, op: str, **attrs: Any) -> None:
        with pytest.raises(ConversionError, match=f"'the_node'.*{match}"):
            import_model(ml(op, X, 2 if "Classifier" in op else 1, **attrs), shapes={"x": X.shape})

    refused("node 1 of a tree leads", "TreeEnsembleRegressor", **(
        forest("target", [0] * 5, [1.0] * 5) | {"nodes_truenodeids": [1, 9, 0, 0, 0, 1, 0, 0]}))  # fmt: skip
    refused("circles", "TreeEnsembleRegressor", **(
        forest("target", [0] * 5, [1.0] * 5) | {"nodes_truenodeids": [1, 1, 0, 0, 0, 1, 0, 0]}))  # fmt: skip
    for match, wrong in {
        "feature 3, and there are 3": {"nodes_featureids": [3] * 8},
        "feature -1, and": {"nodes_featureids": [-1] * 8},
        "2 values are given for 8 nodes": {"nodes_values": [0.5, 1.0]},
        "1 answers for NaN": {"nodes_missing_value_tracks_true": [1]},
        "target -1, and there are 1": {"target_ids": [0, 0, 0, 0, -1], "n_targets": 1},
        "node 9 of tree": {"target_nodeids": [9] * 5},
    }.items():
        refused(match, "TreeEnsembleRegressor", **(forest("target", [0] * 5, [1.0] * 5) | wrong))
    for match, wrong in {
        "leaf -1, and there are 2": {"nodes_truenodeids": [-1]},
        "leaf 2, and there are 2": {"nodes_falsenodeids": [2]},
        "node 1, and there are 1": {"nodes_falseleafs": [0]},
        "a number for each of 1 nodes": {"nodes_trueleafs": [1, 1]},
        "feature 3, and there are 3": {"nodes_featureids": [3], "post_transform": 4},
        "node 7, and there are 3": {"tree_roots": [7], "post_transform": 4},
    }.items():
        node = helper.make_node("TreeEnsemble", ["x"], ["y"], "the_node", domain="ai.onnx.ml", **(stump() | wrong))
        with pytest.raises(ConversionError, match=f"'the_node'.*{match}"):
            import_model(model([node], {"x": tensor(X)}, ["y"]), shapes={"x": X.shape})
    leaves = forest("class", [0] * 5, [1.0] * 5)
    refused("classlabels_int64s or .* with anything in it; name", "TreeEnsembleClassifier", **leaves)
    refused("PROBIT", "LinearRegressor", coefficients=[1.0, 2, 3], post_transform="PROBIT")
    refused("4 coefficients", "LinearRegressor", coefficients=[1.0, 2, 3, 4])
    refused("norm is 'L3'", "Normalizer", norm="L3")
    refused("listed twice", "OneHotEncoder", cats_int64s=[1, 1], zeros=0)
