"""Sequences that grow in loops on the host."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tests.frontend.checks import run_ort
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.hostmemory import HostArena


def test_a_sequence_that_grows_in_a_loop_is_not_searched_as_a_whole_in_every_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which of its arrays lie in memory that is used again is known for all but the new one."""
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[n, 2] x, int64 count) => (float[m, 2] y) <bool on = {1}> {
            none = SequenceEmpty()
            all = Loop(count, on, none) <body = b (int64 i, bool go, seq(float[a, 2]) some)
                => (bool going, seq(float[a, 2]) more) <int64[1] nought = {0}, int64 one = {1}> {
                going = Identity(go)  next = Add(i, one)  end = Unsqueeze(next, nought)
                head = Slice(x, nought, end)  twice = Add(head, head)  more = SequenceInsert(some, twice) }>
            y = ConcatFromSequence<axis = 0>(all) }"""
    )
    asked: list[int] = []
    overlaps = HostArena.overlaps

    def counted(memory: HostArena, array: np.ndarray) -> bool:
        asked.append(1)
        return overlaps(memory, array)

    monkeypatch.setattr(HostArena, "overlaps", counted)
    x, numbers = np.arange(80, dtype=np.float32).reshape(40, 2), []
    with load(compile_model(proto, num_threads=1).to_bytes(), num_threads=1) as module:
        for count in (20, 40):
            asked.clear()
            y = module.run({"x": x, "count": np.array(count)})["y"]
            np.testing.assert_array_equal(y, np.concatenate([2 * x[:i] for i in range(1, count + 1)]))
            numbers.append(len(asked))
    assert numbers == [0, 0]


def test_a_tensor_that_is_split_at_constant_places_in_a_loop_has_parts_of_known_sizes() -> None:
    """PyTorch's older exporter writes `tensor_split` so: no list is left, and all is computed in kernels."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 5, 8] x) => (float[n, 5, 8] y)
        <int64 two = {2}, bool yes = {1}, int64[3] places = {0, 1, 3}, int64[1] axis = {1}, int64 one = {1},
        int64[1] nought = {0}, int64[1] last = {3}, int64[1] end = {5}, int64 back = {-1}> {
          none = SequenceEmpty()
          some = Loop(two, yes, none) <body = b (int64 i, bool c, seq(float[]) s) => (bool go, seq(float[]) t) {
            from = Gather(places, i)  next = Add(i, one)  to = Gather(places, next)
            start = Unsqueeze(from, nought)  stop = Unsqueeze(to, nought)
            part = Slice(x, start, stop, axis)  t = SequenceInsert(s, part)  go = Identity(c) }>
          rest = Slice(x, last, end, axis)  all = SequenceInsert(some, rest)
          a = SequenceAt(all, one)  b = SequenceAt(all, back)  first = Slice(x, nought, axis, axis)  c = Neg(a)
          y = Concat<axis = 1>(first, c, b) }"""
    )
    compiled = compile_model(proto)
    assert compiled.explain()["host"]["steps"] == 0
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    want = np.concatenate([x[:, :1], -x[:, 1:3], x[:, 3:]], axis=1)
    with load(compiled.to_bytes()) as module:
        np.testing.assert_array_equal(module.run({"x": x})["y"], want)


def test_a_list_of_items_of_different_sizes_is_mapped_twice() -> None:
    """The sizes of the items are known within each map only."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2] a, float[3, 2] b) => (float[m, 2] y) {
          list = SequenceConstruct(a, b)
          once = SequenceMap(list) <body = f (float[k, 2] v) => (float[k, 2] w) { w = Neg(v) }>
          twice = SequenceMap(once) <body = g (float[k, 2] r) => (float[k, 2] s) { s = Exp(r) }>
          y = ConcatFromSequence<axis = 0>(twice) }"""
    )
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, 2)).astype(np.float32) for rows in (1, 3))
    with load(compile_model(proto).to_bytes()) as module:
        np.testing.assert_allclose(module.run({"a": a, "b": b})["y"], np.exp(-np.concatenate([a, b])), rtol=1e-6)


@pytest.mark.parametrize("trips", [0, 3, 40])
def test_a_turn_that_is_counted_in_a_vector(trips: int) -> None:
    """ONNX Runtime gives a body the rank that it declares for its iteration number."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (int64 most, int64[2] k) => (int64[m] y, int64 count) {
          none = SequenceConstruct(k)
          all = Loop(most, , none) <body = b (int64[1] i, bool c, seq(int64[a]) s) => (bool go, seq(int64[a]) t) {
            item = Concat<axis = 0>(k, i)  t = SequenceInsert(s, item)  go = Identity(c) }>
          y = ConcatFromSequence<axis = 0>(all)  count = SequenceLength(all) }"""
    )
    feeds = {"most": np.array(trips), "k": np.array([7, 8])}
    with load(compile_model(proto).to_bytes()) as module:
        for actual, wanted in zip(module.run(feeds).values(), run_ort(proto, feeds), strict=True):
            np.testing.assert_array_equal(actual, wanted)
