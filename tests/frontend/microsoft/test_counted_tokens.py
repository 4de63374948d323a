"""TfIdfVectorizer of a Tokenizer's tokens counts those of each text, as ONNX Runtime counts them in padded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir.evaluate import evaluate

ort = pytest.importorskip("onnxruntime")

WORDS = ("red", "green", "blue", "cyan", "x")
POOL: dict[str, Any] = {
    "pool_strings": ["red", "blue", "green", "red", "blue", "blue", "blue", "red", "green", "blue"],
    "ngram_counts": [0, 3, 7], "ngram_indexes": [4, 0, 2, 5, 1, 6], "mode": "TF", "max_skip_count": 0,
    "min_gram_length": 1, "max_gram_length": 3,
}  # fmt: skip


def proto(shape: Sequence[int | str], pool: dict[str, Any], flat: bool = True, **attrs: Any) -> ModelProto:
    settings = {"mark": 0, "mincharnum": 1, "pad_value": "#", "tokenexp": "[a-z#]+"} | attrs
    nodes = [
        helper.make_node("Tokenizer", ["x"], ["t"], domain="com.microsoft", **settings),
        helper.make_node("Flatten", ["t"], ["f"], axis=1),
        helper.make_node("TfIdfVectorizer", ["f" if flat else "t"], ["y"], **pool),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.STRING, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes if flat else [nodes[0], nodes[2]], "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def texts(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    made = [" ".join(rng.choice(WORDS, rng.integers(0, 7))) for _ in range(int(np.prod(shape)))]
    return np.array(made, object).reshape(shape)


def check(model: ModelProto, x: np.ndarray, counted: bool) -> None:
    graph = import_model(model, ranges={}).graph
    assert any(node.op == "host.TokenizedTfIdf" for node in graph.nodes) == counted
    assert any(node.op == "host.Tokenizer" for node in graph.nodes) != counted
    (expected,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = evaluate(import_model(model, {"x": x.shape}).graph, [x])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("count", [1, 2, 7, 31])
@pytest.mark.parametrize("column", [True, False])
def test_texts_one_by_one(count: int, column: bool) -> None:
    x = texts(count, 1) if column else texts(count)
    check(proto(["n", 1] if column else ["n"], POOL, flat=column), x, True)


@pytest.mark.parametrize(
    "pool", [{"mode": "IDF", "weights": [0.5, 2, 3, 4, 5, 6]}, {"mode": "TFIDF", "max_skip_count": 2}], ids=str
)
@pytest.mark.parametrize("attrs", [{"mark": 1}, {"mincharnum": 4}, {"tokenexp": "Q"}], ids=str)
def test_ways_to_cut_and_to_count(pool: dict[str, Any], attrs: dict[str, Any]) -> None:
    x = np.concatenate([texts(13, 1), texts(5, 1)])  # some twice
    if attrs.get("tokenexp") == "Q":
        x[3] = "Q"  # without any token ONNX Runtime leaves the last axis out
    check(proto(["n", 1], {**POOL, **pool}, **attrs), x, True)


def test_several_texts_of_a_row_are_counted_with_what_pads_them() -> None:
    pool = {**POOL, "max_gram_length": 2}
    check(proto(["n", 3], pool), texts(5, 3), False)


def test_padding_that_is_counted_stays() -> None:
    pool = {**POOL, "pool_strings": ["#", *POOL["pool_strings"][1:]]}
    check(proto(["n", 1], pool), texts(6, 1), False)
