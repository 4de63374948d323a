"""Texts are cut into tokens as ONNX Runtime cuts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.frontend.errors import ConversionError
from tilestitch.compiler.ir.evaluate import evaluate

ort = pytest.importorskip("onnxruntime")

TEXTS = np.array(["the cat's  sat", "a ñandú, b", "", "  x\n", "aXbXX c_1"], object)


def tokenizer(shape: Sequence[int], **attrs: Any) -> ModelProto:
    settings = {"mark": 0, "mincharnum": 1, "pad_value": "#"} | attrs
    node = helper.make_node("Tokenizer", ["x"], ["y"], "the_node", domain="com.microsoft", **settings)
    x = helper.make_tensor_value_info("x", TensorProto.STRING, shape)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [x], [ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


WAYS: Mapping[str, Mapping[str, Any]] = {
    "words": {"tokenexp": "[a-zA-Z0-9_]+"},
    "whole_words": {"tokenexp": r"\b\w\w+\b", "mark": 1},
    "repeated": {"tokenexp": "[aX]{1,2}b?"},
    "last": {"tokenexp": r"\S$"},
    "all_characters": {"tokenexp": ".", "mark": 1},
    "characters_of_a_line": {"tokenexp": "[^\n]"},
    "no_separator": {"separators": [""]},
    "separators_in_turn": {"separators": [" ", "[,X]+"], "mincharnum": 2},
    "spaces": {"separators": [r"\s+"], "mark": 1, "pad_value": ""},
    "nothing": {"tokenexp": "Q", "mark": 1},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:4].reshape(2, 2)], ids=["list", "table"])
def test_tokens(texts: np.ndarray, way: str) -> None:
    proto = tokenizer(texts.shape, **WAYS[way])
    (expected,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": texts})
    (found,) = evaluate(import_model(proto).graph, [texts])
    if way == "nothing":  # ONNX Runtime leaves the last axis out
        assert found.shape == (*texts.shape, 0)
    else:
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "match, attrs",
    {
        "'a\\|ab'; supported are characters": {"tokenexp": "a|ab"},
        "'a\\+\\?'; supported": {"tokenexp": "a+?"},
        "'\\[\\[:alpha:\\]\\]'; supported": {"tokenexp": "[[:alpha:]]"},
        "'x\\*', which nothing at all": {"separators": ["x*"]},
        "mincharnum is 0": {"tokenexp": "a", "mincharnum": 0},
        "mincharnum is 2 for tokens of one": {"separators": [""], "mincharnum": 2},
        "neither separators nor tokenexp": {},
    }.items(),
)
def test_what_cannot_be_is_refused_by_name(match: str, attrs: Mapping[str, Any]) -> None:
    with pytest.raises(ConversionError, match=f"'the_node'.*{match}"):
        import_model(tokenizer([3], **attrs))
