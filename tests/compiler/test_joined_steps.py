"""Kernels whose sizes earlier kernels find, run in one native call: results, room for them, and errors."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import Module, load
from tilestitch.runtime.cpu.segment import NativeSegment
from tilestitch.runtime.errors import ExecutionError, InputError

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
FOUND = """(float[n] x) => (int64[1, k] y, float[k] z) <float zero = {0}> {
    q = Greater(x, zero)  y = NonZero(q)  z = Compress<axis = 0>(x, q) }"""


def compiled(text: str, threads: int = 1) -> Module:
    return load(compile_model(parser.parse_model(HEAD + text), num_threads=threads).to_bytes(), num_threads=threads)


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the native steps that are run one by one."""
    runs, run = [0], NativeSegment.run

    def counted(segment: NativeSegment, *arguments: object) -> None:
        runs[0] += 1
        run(segment, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeSegment, "run", counted)
    return runs


def expect_found(module: Module, x: np.ndarray) -> None:
    found = module.run({"x": x})
    np.testing.assert_array_equal(found["y"], np.stack(np.nonzero(x > 0)))
    np.testing.assert_array_equal(found["z"], x[x > 0])


@pytest.mark.parametrize("threads", [1, 2])
def test_results_of_any_number_need_one_native_call(segments: list[int], threads: int) -> None:
    rng = np.random.default_rng(0)
    with compiled(FOUND, threads) as module:
        for _ in range(2):
            expect_found(module, np.full(97, -1, np.float32))
        segments[0] = 0
        for share in (0.5, 0, 1, 0.01, 1, 0.3):
            x = np.where(rng.random(97) < share, 1, -1) * rng.random(97).astype(np.float32)
            expect_found(module, x.astype(np.float32))
        expect_found(module, np.array([np.nan, -0.0, 0.0, np.inf] * 24 + [1], np.float32))
        assert segments[0] == 0


def test_room_grows_with_what_is_found(segments: list[int]) -> None:
    ones, none = np.ones(5001, np.float32), -np.ones(5001, np.float32)
    with compiled(FOUND) as module:
        for x in (none, none, ones, ones, none, ones):
            expect_found(module, x)
        segments[0] = 0
        expect_found(module, ones)
        assert segments[0] == 0


def test_what_is_too_large_to_be_copied_is_found_step_by_step() -> None:
    with compiled(FOUND) as module:
        for count in (300, 300, 300, 70001, 70001, 70001, 300, 1, 1, 1):
            expect_found(module, np.ones(count, np.float32))
            expect_found(module, np.linspace(-1, 1, count, dtype=np.float32))


def test_sizes_that_follow_each_other_are_found_in_one_call(segments: list[int]) -> None:
    text = """(float[n] x) => (float[k] z) <float zero = {0}, float one = {1}> {
        a = Greater(x, zero)  y = Compress<axis = 0>(x, a)  b = Less(y, one)  z = Compress<axis = 0>(y, b) }"""
    rng = np.random.default_rng(1)
    with compiled(text) as module:
        for index in range(7):
            if index == 4:
                segments[0] = 0
            x = rng.normal(size=53).astype(np.float32) * index
            np.testing.assert_array_equal(module.run({"x": x})["z"], x[(x > 0) & (x < 1)])
        assert segments[0] == 0


def test_out_and_later_runs_do_not_share_memory() -> None:
    with compiled(FOUND) as module:
        x = np.ones(31, np.float32)
        found = [module.run({"x": x * (index + 1)})["z"] for index in range(5)]
        for index, z in enumerate(found):
            np.testing.assert_array_equal(z, np.full(31, index + 1, np.float32))
        z = np.empty(31, np.float32)
        module.run({"x": x * 9}, out={"z": z})
        np.testing.assert_array_equal(z, np.full(31, 9, np.float32))


def test_sizes_that_do_not_fit_are_refused_in_every_run() -> None:
    text = """(float[n] x, float[n] w) => (float[k] z) <float zero = {0}> {
        a = Greater(x, zero)  y = Compress<axis = 0>(x, a)  b = Greater(w, zero)  v = Compress<axis = 0>(w, b)
        z = Add(y, v) }"""
    even, odd = np.array([1, -1, 1, -1, 2], np.float32), np.array([-1, 1, -1, 1, -2], np.float32)
    with compiled(text) as module:
        for _ in range(4):
            np.testing.assert_array_equal(module.run({"x": even, "w": even})["z"], [2, 2, 4])
            with pytest.raises(ExecutionError):
                module.run({"x": even, "w": odd})


def test_artifacts_without_the_function_are_run_step_by_step(
    segments: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilestitch.runtime.cpu.library.Library._optional", lambda library, symbol: None)
    with compiled(FOUND) as module:
        for _ in range(4):
            expect_found(module, np.ones(7, np.float32))
        assert segments[0] == 8


def test_indices_that_are_out_of_range_are_reported_in_every_run() -> None:
    text = """(float[n] x, int64[n] i) => (float[k] z) <float zero = {0}> {
        a = Greater(x, zero)  j = Compress<axis = 0>(i, a)  z = Gather(x, j) }"""
    x = np.array([1, -1, 3], np.float32)
    with compiled(text) as module:
        for _ in range(4):
            np.testing.assert_array_equal(module.run({"x": x, "i": np.array([2, 9, -3])})["z"], [3, 1])
            with pytest.raises(ExecutionError, match="Gather"):
                module.run({"x": x, "i": np.array([3, 0, 0])})


def test_optional_inputs_come_and_go() -> None:
    text = """g (optional(float[n, 3]) o, float[n, 3] d) => (float[n, 3] y) {
        has = OptionalHasElement(o)
        y = If(has) <then_branch = t () => (float[n, 3] v) { v0 = OptionalGetElement(o)  v = Exp(v0) },
            else_branch = e () => (float[n, 3] v) { v = Neg(d) }> }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> ' + text)
    with load(compile_model(model, num_threads=1).to_bytes(), num_threads=1) as module:
        for rows in (1, 5, 5, 5, 1, 1):
            d = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
            np.testing.assert_allclose(module.run({"o": d, "d": d})["y"], np.exp(d), rtol=1e-6)
            np.testing.assert_array_equal(module.run({"o": None, "d": d})["y"], -d)
            np.testing.assert_array_equal(module.run({"d": d})["y"], -d)
            with pytest.raises(InputError):
                module.run({"o": np.ones((rows + 1, 3), np.float32), "d": d})
            with pytest.raises(InputError):
                module.run({"o": d, "d": None})


def test_results_that_are_parts_of_others_are_copied() -> None:
    text = """(string[n] x) => (string[n] y, string[m] z) <int64[1] a = {1}, int64[1] b = {3}> {
        y = StringNormalizer<is_case_sensitive = 1>(x)  z = Slice(y, a, b) }"""
    with compiled(text) as module:
        for _ in range(3):
            found = module.run({"x": np.array(["a", "b", "c", "d"], object)})
            assert not np.shares_memory(found["y"], found["z"])
            assert found["y"].tolist() == ["a", "b", "c", "d"]
            assert found["z"].tolist() == ["b", "c"]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 97])
def test_items_of_a_sequence_are_mapped(count: int) -> None:
    text = """g (float[n, 2] x, float[n, 2] z, float[2] c) => (float[m, 2] y, int64 l) <float[1, 2] none = {0, 0}> {
        p = SplitToSequence<axis = 0>(x)  q = SplitToSequence<axis = 0>(z)
        r, s = SequenceMap(p, q) <body = b (float[1, 2] v, float[1, 2] w) => (float[1, 2] a, float[1, 2] d) {
            m = Mul(v, w)  a = Add(m, c)  d = Sub(v, w) }>
        l = SequenceLength(s)  t = SequenceInsert(r, none)  y = ConcatFromSequence<axis = 0>(t) }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> ' + text)
    x, c = np.random.default_rng(0).normal(size=(2, count, 2)).astype(np.float32), np.array([2, -3], np.float32)
    with load(compile_model(model, num_threads=1).to_bytes(), num_threads=1) as module:
        for _ in range(3):
            found = module.run({"x": x[0], "z": x[1], "c": c})
            np.testing.assert_allclose(found["y"][:-1], x[0] * x[1] + c, rtol=1e-6)
            assert found["l"] == count


def test_bodies_of_sizes_that_come_again_compute_the_same() -> None:
    """The sizes of a body are remembered by the shapes of what it reads."""
    text = """g (float[n, 8] x, int64 count) => (float[m, 8] y) <bool on = {1}> {
        none = SequenceEmpty()
        all = Loop(count, on, none) <body = b (int64 i, bool go, seq(float[a, 8]) some)
            => (bool going, seq(float[a, 8]) more) <int64[1] nought = {0}, int64 three = {3}, int64 one = {1}> {
            going = Identity(go)  part = Mod(i, three)  next = Add(part, one)  end = Unsqueeze(next, nought)
            head = Slice(x, nought, end)  twice = Add(head, head)  more = SequenceInsert(some, twice) }>
        y = ConcatFromSequence<axis = 0>(all) }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    with load(compile_model(model, num_threads=1).to_bytes(), num_threads=1) as module:
        for rows, count in ((3, 1), (3, 7), (5, 7), (3, 20), (5, 20)):
            x = np.arange(8 * rows, dtype=np.float32).reshape(rows, 8)
            wanted = np.concatenate([2 * x[: 1 + i % 3] for i in range(count)])
            np.testing.assert_array_equal(module.run({"x": x, "count": np.array(count)})["y"], wanted)


def test_a_result_that_kernels_only_read_may_be_an_input() -> None:
    text = """g (seq(float[5]) q) => (float[5] v, float[5] z) <int64 i = {0}> { v = SequenceAt(q, i)  z = Exp(v) }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> ' + text)
    with load(compile_model(model, num_threads=1).to_bytes(), num_threads=1) as module:
        for _ in range(3):
            x = np.arange(5, dtype=np.float32)
            found = module.run({"q": [x]})
            assert not np.shares_memory(found["v"], x)
            np.testing.assert_array_equal(found["v"], x)
