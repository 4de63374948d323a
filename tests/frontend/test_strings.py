"""Operators on strings become host steps; on constants they are folded."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.frontend.host_models import check, model, ops
from tilestitch.compiler.ir import TensorType

WORDS = np.array([["a b", "c"], ["", "d e f"]], object)
TYPE = helper.make_tensor_type_proto(TensorProto.STRING, [2, 2])
node = helper.make_node


def test_concat_split_and_match() -> None:
    nodes = [
        node("StringConcat", ["x", "suffix"], ["joined"]),
        node("StringSplit", ["x"], ["parts", "counts"]),
        node("RegexFullMatch", ["x"], ["short"], pattern=".?"),
    ]
    proto = model(nodes, {"x": TYPE}, ["joined", "parts", "counts", "short"], {"suffix": np.array(["!"], object)})
    result = check(proto, {"x": WORDS})
    assert [v.type for v in result.outputs] == [
        TensorType("string", (2, 2)),
        TensorType("string", (2, 2, "?")),
        TensorType("int64", (2, 2)),
        TensorType("bool", (2, 2)),
    ]


def test_normalizer_leaves_a_number_of_words_known_at_run_time() -> None:
    type_ = helper.make_tensor_type_proto(TensorProto.STRING, [3])
    nodes = [node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER", stopwords=["b"], is_case_sensitive=1)]
    result = check(model(nodes, {"x": type_}, ["y"]), {"x": np.array(["a", "b", "c"], object)})
    assert result.outputs[0].type == TensorType("string", ("?",))


def test_tf_idf_has_a_column_for_each_ngram_index() -> None:
    attrs = {
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0],
        "ngram_indexes": [0, 2], "pool_strings": ["a", "b"],
    }  # fmt: skip
    type_ = helper.make_tensor_type_proto(TensorProto.STRING, [2, 2])
    x = np.array([["a", "a"], ["b", "z"]], object)
    result = check(model([node("TfIdfVectorizer", ["x"], ["y"], **attrs)], {"x": type_}, ["y"]), {"x": x})
    assert result.outputs[0].type == TensorType("float32", (2, 3))


def test_equality_of_strings_is_the_primitive() -> None:
    proto = model([node("Equal", ["x", "c"], ["y"])], {"x": TYPE}, ["y"], {"c": np.array(["c"], object)})
    assert ops(check(proto, {"x": WORDS})) == ["equal"]


def test_constants_are_folded() -> None:
    proto = model([node("StringConcat", ["a", "a"], ["y"])], {}, ["y"], {"a": np.array(["x"], object)})
    result = check(proto, {})
    assert ops(result) == []
