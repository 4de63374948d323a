"""Donated caches whose new rows go to places that only the data tells: of GroupQueryAttention, and of fixed length."""

from __future__ import annotations

import shutil
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.errors import OptionError
from tilestitch.runtime import Module, load
from tilestitch.runtime.errors import ExecutionError, InputError

GROUPED = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[b,s,256] q, float[b,s,128] k, float[b,s,128] v, float[b,2,p,64] past_k, float[b,2,p,64] past_v,
       int64[b,t] mask)
    => (float[b,s,256] y, float[b,2,r,64] new_k, float[b,2,r,64] new_v) {
      one = Constant <value = int64[1] {1}> ()
      sums = ReduceSum (mask, one)
      last = Sub (sums, one)
      lengths = Cast <to = 6> (last)
      sizes = Shape (mask)
      size = Gather (sizes, one)
      total = Cast <to = 6> (size)
      y, new_k, new_v = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (
        q, k, v, past_k, past_v, lengths, total)
    }""")
PASTS = {"past_k": "new_k", "past_v": "new_v"}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")
TARGETS = ["cpu", pytest.param("emulator", marks=needs_compiler)]


@cache
def compiled(target: str) -> CompiledModel:
    return compile_model(GROUPED, target, donate=["past_*"], num_threads=2, host_steps=False)


def loaded(target: str) -> Module:
    return load(compiled(target).to_bytes(), device=target, donate=["past_*"])


@cache
def session() -> ort.InferenceSession:
    return ort.InferenceSession(GROUPED.SerializeToString(), providers=["CPUExecutionProvider"])


def step(seed: int, batch: int, new: int, total: int) -> dict[str, Any]:
    """New rows, after which the first sequence has `total` and each other one three less, on its right."""
    random = np.random.default_rng(seed)
    feeds = {name: random.standard_normal((batch, new, 64 * n)).astype(np.float32) for name, n in zip("qkv", (4, 2, 2))}
    mask = np.ones((batch, total), np.int64)
    mask[1:, total - 3 :] = 0
    return {**feeds, "mask": mask}


def rows_of(cache: np.ndarray, total: int) -> list[np.ndarray]:
    """What each sequence has in a cache."""
    return [cache[i, :, : total - 3 * bool(i)] for i in range(len(cache))]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_whole_buffer_stays_the_cache(target: str, batch: int) -> None:
    """It is written where new rows belong, and what lies after them is never seen, NaN neither."""
    ours = {name: np.full((batch, 2, 40, 64), np.nan, np.float32) for name in PASTS}
    theirs = {name: np.zeros((batch, 2, 40, 64), np.float32) for name in PASTS}
    given, total = dict(ours), 0
    with loaded(target) as module:
        for seed, new in enumerate((5, 1, 1, 1) if batch > 1 else (5, 1, 3, 1, 16)):
            total += new
            feeds = step(seed, batch, new, total)
            found = module.run({**feeds, **ours})
            y, *kept = session().run(None, {**feeds, **theirs})
            ours = {name: found[PASTS[name]] for name in PASTS}
            theirs = dict(zip(PASTS, kept))
            valid = slice(None) if new == 1 else slice(0, new - 3 * (batch > 1))
            assert_close(np.asarray(found["y"])[:, valid], y[:, valid], MODELS["float32"])
            for name in PASTS if target == "cpu" else ():
                assert ours[name].ctypes.data == given[name].ctypes.data and ours[name].shape == (batch, 2, 40, 64)
                for one, other in zip(rows_of(ours[name], total), rows_of(theirs[name], total), strict=True):
                    np.testing.assert_array_equal(one, other)
                assert np.isnan(given[name][:, :, total:]).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_cache_as_long_as_its_tokens_grows_in_its_buffer(target: str) -> None:
    """From an empty one on, which moves when its buffer is full."""
    ours = theirs = {name: np.zeros((1, 2, 0, 64), np.float32) for name in PASTS}
    places, total = set(), 0
    with loaded(target) as module:
        for seed in range(24):
            total += 1 + (seed == 0)
            feeds = step(seed, 1, 1 + (seed == 0), total)
            found = module.run({**feeds, **ours})
            y, *kept = session().run(None, {**feeds, **theirs})
            ours, theirs = {name: found[PASTS[name]] for name in PASTS}, dict(zip(PASTS, kept))
            assert_close(np.asarray(found["y"]), y, MODELS["float32"])
            for name in PASTS:
                np.testing.assert_array_equal(np.asarray(ours[name]), theirs[name])
            places.add(ours["past_k"].ctypes.data if target == "cpu" else 0)
    assert len(places) == (2 if target == "cpu" else 1)  # rooms of 16 and 34 rows


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_store_new_rows_alone_and_attention_reads_the_buffer(target: str) -> None:
    found = []
    for specialisation in compiled(target).specialisations:
        graph, plan = specialisation.graph, specialisation.plan
        stores = [node for node in graph.nodes if node.op == "append"]
        assert {node.output.name for node in stores} == set(PASTS.values())
        assert not any(node.op in ("pad", "gather_nd") for node in graph.nodes)
        found += [group for group in plan.groups if group.kind.value == "attention"]
    assert found and all(set(PASTS.values()) <= set(group.inputs) for group in found)


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_that_the_cache_has_no_place_for(target: str) -> None:
    """The mask says that there are more tokens than the cache and this step's."""
    feeds = step(0, 1, 1, 4)
    pasts = {name: np.zeros((1, 2, 8, 64), np.float32) for name in PASTS}
    with loaded(target) as module, pytest.raises(ExecutionError, match="past_k: the place of a new row is not below"):
        module.run({**feeds, **pasts, "mask": np.full((1, 4), 2)})


@pytest.mark.parametrize("target", TARGETS)
def test_a_cache_is_whole_after_a_run_that_has_no_place_for_a_row(target: str) -> None:
    """Its heads are not as long as a vector: zeros after the last row, none here, were stored before it."""
    text = onnx.printer.to_text(GROUPED).replace("256]", "32]").replace("128]", "16]").replace("64]", "8]")
    compiled = compile_model(onnx.parser.parse_model(text), target, donate=["past_*"])
    feeds = {"q": np.ones((1, 1, 32), np.float32), **dict.fromkeys("kv", np.ones((1, 1, 16), np.float32))}
    pasts = {name: np.ones((1, 2, 8, 8), np.float32) for name in PASTS}
    module = load(compiled.to_bytes(), device=target, donate=["past_*"])
    with module, pytest.raises(ExecutionError, match="the place of a new row is not below"):
        module.run({**feeds, **pasts, "mask": np.array([[2, 1, 1, 1]])})
    assert all((past == 1).all() for past in pasts.values())


TOLD = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[b,s,256] q, float[b,s,128] k, float[b,s,128] v, float[b,2,p,64] past_k, float[b,2,p,64] past_v,
       int32[b] lengths, int32 total)
    => (float[b,s,256] y, float[b,2,r,64] new_k, float[b,2,r,64] new_v) {
      y, new_k, new_v = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (
        q, k, v, past_k, past_v, lengths, total)
    }"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_number_of_tokens_that_is_an_input(target: str) -> None:
    """Sequences differ in length: what lies after a shorter one is NaN at first, and reached by attention."""
    model = onnx.parser.parse_model(TOLD)
    compiled = compile_model(model, target, donate=["past_*"], num_threads=1).to_bytes()
    run = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run
    with load(compiled, device=target, donate=["past_*"]) as module:
        for steps in ([(5, [5]), (3, [8]), (1, [9])], [(5, [5, 2, 3]), (1, [6, 3, 4]), (1, [7, 4, 5])]):
            batch = len(steps[0][1])
            given = {name: np.full((batch, 2, 24, 64), np.nan, np.float32) for name in PASTS}
            ours, theirs = given, {name: np.zeros_like(array) for name, array in given.items()}
            for new, lengths in steps:
                counts = {"lengths": np.array(lengths, np.int32) - 1, "total": np.array(max(lengths), np.int32)}
                feeds = {name: array for name, array in step(new, batch, new, 9).items() if name != "mask"}
                found = module.run({**feeds, **counts, **ours})
                y, *rows = run(None, {**feeds, **counts, **theirs})
                ours, theirs = {name: found[PASTS[name]] for name in PASTS}, dict(zip(PASTS, rows))
                for i, length in enumerate(lengths):
                    valid = slice(0, min(new, length))
                    assert_close(np.asarray(found["y"])[i, valid], y[i, valid], MODELS["float32"])
                    for name in PASTS:
                        ours_of, theirs_of = (np.asarray(kept[name])[i, :, :length] for kept in (ours, theirs))
                        np.testing.assert_array_equal(ours_of, theirs_of)
                        assert target != "cpu" or ours[name] is given[name]
        with pytest.raises(ExecutionError, match="0 must be at most"):
            module.run({**feeds, **counts, **given, "total": np.array(26, np.int32)})


def test_rows_of_padded_queries_are_not_stored_in_donated_caches() -> None:
    """Their places may lie beyond the cache."""
    told = TOLD.replace("int32 total", "int32 total, int32[b] rows").replace("s, total)", f"s, total{',' * 10} rows)")
    with pytest.raises(OptionError, match="a cache is read by one"):
        compile_model(onnx.parser.parse_model(told), donate=["past_*"])


STORED = {
    "ScatterND": """<ir_version: 10, opset_import: ["" : 20]>
    g (float[b,2,40,64] past, float[b,2,s,64] new, int64[s] at) => (float[b,2,40,64] whole, float[b,2,64] sums) {
      front = Transpose <perm = [2, 0, 1, 3]> (past)
      axis = Constant <value = int64[1] {1}> ()
      places = Unsqueeze (at, axis)
      rows = Transpose <perm = [2, 0, 1, 3]> (new)
      stored = ScatterND (front, places, rows)
      whole = Transpose <perm = [1, 2, 0, 3]> (stored)
      two = Constant <value = int64[1] {2}> ()
      sums = ReduceSum <keepdims = 0> (whole, two)
    }""",
    "TensorScatter": """<ir_version: 12, opset_import: ["" : 24]>
    g (float[b,2,40,64] past, float[b,2,s,64] new, int64[b] at) => (float[b,2,40,64] whole, float[b,2,64] sums) {
      whole = TensorScatter <axis = 2, mode = "circular"> (past, new, at)
      two = Constant <value = int64[1] {2}> ()
      sums = ReduceSum <keepdims = 0> (whole, two)
    }""",
}


@cache
def storing(form: str, target: str) -> CompiledModel:
    return compile_model(onnx.parser.parse_model(STORED[form]), target, donate=["past"], host_steps=False)


def places_of(form: str, batch: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """An input, and the places [batch, rows] that it means: some negative, some beyond the end of a ring."""
    random = np.random.default_rng(seed)
    if form == "ScatterND":
        at = random.permutation(40)[:rows] - 40 * (seed % 2)
        return at, np.tile(at % 40, (batch, 1))
    at = random.integers(30, 40, batch)
    return at, (at[:, None] + np.arange(rows)) % 40


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", STORED)
def test_rows_are_stored_in_a_cache_of_fixed_length(form: str, target: str) -> None:
    with load(storing(form, target).to_bytes(), device=target, donate=["past"]) as module:
        for seed, (batch, rows) in enumerate(((1, 1), (3, 5), (2, 1), (1, 40))):
            past, new = np.ones((batch, 2, 40, 64), np.float32), np.full((batch, 2, rows, 64), seed + 2, np.float32)
            at, places = places_of(form, batch, rows, seed)
            wanted = past.copy()
            for i, line in enumerate(places):
                wanted[i][:, line] = new[i]
            found = module.run({"past": past, "new": new, "at": at})
            np.testing.assert_array_equal(np.asarray(found["whole"]), wanted)
            assert_close(np.asarray(found["sums"]), wanted.sum(2), MODELS["float32"])
            assert target != "cpu" or found["whole"].ctypes.data == past.ctypes.data


@pytest.mark.parametrize("form", STORED)
def test_what_stores_rows_copies_no_cache(form: str) -> None:
    ops = {node.op for one in storing(form, "cpu").specialisations for node in one.graph.nodes}
    assert "append" in ops and not ops & {"scatter_nd", "scatter_elements"}


@pytest.mark.parametrize("target", TARGETS)
def test_a_place_outside_of_a_cache_of_fixed_length(target: str) -> None:
    feeds = {"past": np.ones((1, 2, 40, 64), np.float32), "new": np.ones((1, 2, 1, 64), np.float32)}
    with load(storing("ScatterND", target).to_bytes(), device=target, donate=["past"]) as module:
        for place in (40, -41):
            with pytest.raises(ExecutionError, match="past: the place of a new row is not below 40"):
                module.run({**feeds, "at": np.array([place])})


def test_a_buffer_that_is_input_and_output() -> None:
    """Programs for ONNX Runtime bind one buffer to both; nothing need be donated at load, and nothing else is taken."""
    with load(compiled("cpu").to_bytes()) as module:
        pasts = {name: np.zeros((1, 2, 40, 64), np.float32) for name in PASTS}
        theirs, total = {name: array.copy() for name, array in pasts.items()}, 0
        for seed, new in enumerate((5, 1, 3)):
            total += new
            feeds = step(seed, 1, new, total)
            found = module.run({**feeds, **pasts}, {PASTS[name]: array for name, array in pasts.items()})
            y, *kept = session().run(None, {**feeds, **theirs})
            theirs = dict(zip(PASTS, kept))
            assert_close(found["y"], y, MODELS["float32"])
            for name, array in pasts.items():
                assert found[PASTS[name]] is array
                np.testing.assert_array_equal(array[:, :, :total], theirs[name][:, :, :total])
        full = {name: np.zeros((1, 2, total, 64), np.float32) for name in PASTS}
        with pytest.raises(InputError, match="'new_k' does not fit where input 'past_k' lies"):
            module.run({**step(0, 1, 1, total + 1), **full}, {PASTS[name]: array for name, array in full.items()})
        with pytest.raises(InputError, match="give the array that is input 'past_k'"):
            module.run({**feeds, **pasts}, {"new_k": np.zeros((1, 2, 40, 64), np.float32)})
