"""Sequences that grow in loops on the host."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

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
