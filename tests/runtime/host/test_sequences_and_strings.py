"""Sequences, optionals and strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.host.reference import onnx_outputs, run
from tilestitch.runtime.host import TABLE, HostError

A, B, C = (np.full(2, v) for v in range(3))


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))


def test_insert_and_erase_leave_the_old_sequence_alone() -> None:
    sequence = [A, B]
    assert same(run("SequenceInsert", sequence, C), [A, B, C])
    assert same(run("SequenceInsert", sequence, C, np.array(-2)), [C, A, B])
    assert same(run("SequenceInsert", sequence, C, np.array(2)), [A, B, C])
    assert same(run("SequenceErase", sequence), [A])
    assert same(run("SequenceErase", sequence, np.array(0)), [B])
    assert same(sequence, [A, B])


def test_positions_count_from_both_ends() -> None:
    assert run("SequenceAt", [A, B], np.array(-1)) is B
    assert run("SequenceLength", []) == 0
    for position in (2, -3):
        with pytest.raises(HostError, match=f"position {position}"):
            run("SequenceAt", [A, B], np.array(position))
    with pytest.raises(HostError, match="position 3"):
        run("SequenceInsert", [A, B], C, np.array(3))


def test_concat_from_sequence_joins_or_stacks() -> None:
    np.testing.assert_array_equal(run("ConcatFromSequence", [A, B], axis=0), [0, 0, 1, 1])
    np.testing.assert_array_equal(run("ConcatFromSequence", [A, B], axis=-1, new_axis=1), np.stack([A, B], -1))
    with pytest.raises(HostError, match="empty sequence"):
        run("ConcatFromSequence", [], axis=0)


@pytest.mark.parametrize("split", [None, np.array(2), np.array([1, 4, 0])])
@pytest.mark.parametrize("axis", [0, -1])
def test_split_to_sequence_agrees_with_onnx(axis: int, split: np.ndarray | None) -> None:
    x = np.arange(25).reshape(5, 5)
    (expected,) = onnx_outputs("SplitToSequence", [x, split], axis=axis)
    for got, want in zip(run("SplitToSequence", x, split, axis=axis), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_split_to_sequence_may_drop_the_axis() -> None:
    assert [p.shape for p in run("SplitToSequence", np.zeros((3, 2)), keepdims=0)] == [(2,)] * 3


def test_an_optional_is_none_or_its_value() -> None:
    assert run("Optional") is None
    assert run("Optional", A) is A
    assert run("OptionalHasElement", None) == np.array(False)
    assert run("OptionalHasElement", [A]) == np.array(True)
    assert run("OptionalGetElement", A) is A
    with pytest.raises(HostError, match="empty optional"):
        run("OptionalGetElement", None)
    assert run("none") is None


# --- strings ---------------------------------------------------------------------------------------------------------


def strings(*items: str) -> np.ndarray:
    return np.array(items, object)


def test_string_concat_broadcasts() -> None:
    result = run("StringConcat", strings("a", "b").reshape(2, 1), strings("x", "y"))
    assert result.tolist() == [["ax", "ay"], ["bx", "by"]]


@pytest.mark.parametrize("attrs", [{}, {"delimiter": "."}, {"delimiter": ".", "maxsplit": 1}, {"delimiter": ""}])
def test_string_split_fills_up_with_empty_strings(attrs: dict[str, Any]) -> None:
    x = strings("a.b.c d", " e  f", "", "g").reshape(2, 2)
    parts, counts = TABLE["StringSplit"]([x], attrs)
    expected_parts, expected_counts = onnx_outputs("StringSplit", [x], 2, **attrs)
    assert parts.tolist() == expected_parts.tolist()
    np.testing.assert_array_equal(counts, expected_counts)


def test_string_split_of_nothing() -> None:
    parts, counts = TABLE["StringSplit"]([np.zeros((0, 2), object)], {})
    assert (parts.shape, counts.shape) == ((0, 2, 0), (0, 2))


@pytest.mark.parametrize("sensitive", [0, 1])
@pytest.mark.parametrize("action", ["NONE", "LOWER", "UPPER"])
def test_string_normalizer_drops_stopwords_and_changes_case(action: str, sensitive: int) -> None:
    x = strings("Monday", "monday", "Tuesday")
    attrs = {"case_change_action": action, "is_case_sensitive": sensitive, "stopwords": ["monday"]}
    kept = ["Monday", "Tuesday"] if sensitive else ["Tuesday"]
    change = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[action]
    assert run("StringNormalizer", x, **attrs).tolist() == [change(w) for w in kept]


def test_string_normalizer_without_words_left_gives_one_empty_string() -> None:
    result = run("StringNormalizer", strings("a").reshape(1, 1), stopwords=["a"], is_case_sensitive=1)
    assert result.tolist() == [[""]]


def test_regex_matches_the_whole_string() -> None:
    assert run("RegexFullMatch", strings("abc", "abcd"), pattern="[a-c]+").tolist() == [True, False]
    with pytest.raises(HostError, match="regular expression"):
        run("RegexFullMatch", strings("a"), pattern="(")


NGRAMS = {
    "ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6], "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
    "weights": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
}  # fmt: skip


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skip"), [(1, 1, 0), (1, 2, 0), (2, 2, 0), (1, 2, 5), (2, 2, 3)])
@pytest.mark.parametrize("shape", [(12,), (2, 6)])
def test_tf_idf_counts_ngrams_with_skips(shape: tuple[int, ...], least: int, most: int, skip: int, mode: str) -> None:
    x = np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8]).reshape(shape)
    attrs = dict(NGRAMS, mode=mode, min_gram_length=least, max_gram_length=most, max_skip_count=skip)
    (expected,) = onnx_outputs("TfIdfVectorizer", [x], **attrs)
    np.testing.assert_array_equal(run("TfIdfVectorizer", x, **attrs), expected)


@pytest.mark.parametrize("line", [np.array(["a", "bb"], object), np.array([1, 2], np.float32)])
def test_one_element_is_an_array_of_the_same_dtype(line: np.ndarray) -> None:
    item = run("gather", line, np.array(1), axis=0)
    for alone in (item, run("SplitToSequence", line, axis=0, keepdims=0)[1]):
        assert isinstance(alone, np.ndarray)
        assert (alone.dtype, alone.shape, alone.item()) == (line.dtype, (), line[1])


def test_equal_texts_are_split_alike() -> None:
    x = np.array([["a,b", "c", "a,b"], ["", "a,b", "d,e,f"]], object)
    parts, counts = TABLE["StringSplit"]([x], {"delimiter": ","})
    assert parts.tolist() == [
        [["a", "b", ""], ["c", "", ""], ["a", "b", ""]],
        [["", "", ""], ["a", "b", ""], ["d", "e", "f"]],
    ]
    assert counts.tolist() == [[2, 1, 2], [1, 2, 3]]
    (tokens,) = TABLE["Tokenizer"]([x], {"separators": [","], "mincharnum": 1, "mark": 1, "pad_value": "-"})
    assert tokens[0].tolist() == [["\x02", "a", "b", "\x03", "-"], ["\x02", "c", "\x03", "-", "-"]] + [
        ["\x02", "a", "b", "\x03", "-"]
    ]


def test_texts_of_different_shapes_are_joined() -> None:
    (joined,) = TABLE["StringConcat"]([np.array([["a"], ["b"]], object), np.array(["x", "y", ""], object)], {})
    assert joined.tolist() == [["ax", "ay", "a"], ["bx", "by", "b"]]
    (none,) = TABLE["StringConcat"]([np.empty((0, 2), object), np.empty((0, 2), object)], {})
    assert none.shape == (0, 2)
