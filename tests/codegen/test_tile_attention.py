"""Attention in the tile registers of AMX: results under masks, of any shape and of open sizes, and what plans may say.

Where the CPU has no such registers, a unit in C does the instructions of the machine code that it refuses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import parser

from tests.amx import cpu_with_tiles
from tests.attention_graphs import Case, assert_close, inputs_of
from tests.codegen.kernel_harness import run_launches
from tests.codegen.test_cpu_attention import group
from tilestitch.codegen.cpu.attention import lower_attention
from tilestitch.compiler import compile_model
from tilestitch.passes.plan.cpu.attention import AttentionPlan, AttentionShape, attention_of
from tilestitch.passes.plan.cpu.isa import isa_named
from tilestitch.passes.plan.cpu.schedules import CpuAttentionSchedule
from tilestitch.passes.schedule.cpu.attention import choose_attention, in_tiles
from tilestitch.runtime import load

ISA = isa_named("avx512", half_dot="vdpbf16ps", tile_dots=("tdpbf16ps",))
MASKS = ["", "float", "bool", "causal", "positions", "window"]


def tiles_of(shape: AttentionShape, threads: int) -> CpuAttentionSchedule:
    schedule = in_tiles(shape, ISA, threads)
    assert schedule is not None and schedule.scores.template == schedule.weighed.template == "cpu_tile_gemm"
    return schedule


def result_of(case: Case, feeds: dict[str, np.ndarray], threads: int) -> np.ndarray:
    what = group(case)
    shape = attention_of(what)
    launch = lower_attention(what, AttentionPlan(shape, tiles_of(shape, threads)))
    constants = {v.name: np.asarray(v.data) for v in what.inputs if v.data is not None}
    (result,) = run_launches([launch], {**feeds, **constants}, what.outputs, cpu_with_tiles()).values()
    return result


def check(case: Case, threads: int = 2, *, dead_rows: bool = False) -> None:
    case = replace(case, dtype="bfloat16")
    feeds = inputs_of(case, dead_rows=dead_rows)
    assert_close(result_of(case, feeds, threads), case, feeds)


@pytest.mark.parametrize("mask", MASKS)
def test_masks(unit: Any, mask: str) -> None:
    """One tile of rows, and less than two of keys; then two of rows, and several of keys."""
    check(Case(queries=9, keys=23, width=40, columns=20, mask=mask, merge_heads=True))
    check(Case(heads=1, queries=75, keys=161, width=64, columns=40, mask=mask), threads=3)


@pytest.mark.parametrize("mask", ["causal", "window", "positions"])
def test_masks_of_the_least_number(unit: Any, mask: str) -> None:
    check(Case(heads=1, queries=40, keys=21, mask=mask, low=float(np.finfo(np.float32).min) / 2))


@pytest.mark.parametrize("mended", [False, True])
def test_rows_whose_keys_are_all_hidden(unit: Any, mended: bool) -> None:
    check(Case(queries=6, keys=9, mask="float", mended=mended), dead_rows=True)


def test_blocks_of_several_tiles_of_queries(unit: Any) -> None:
    case = Case(heads=1, queries=90, keys=3000, width=64, columns=33, dtype="bfloat16")
    shape = attention_of(group(case))
    assert AttentionPlan(shape, tiles_of(shape, 1)).first.rows.parts > 1
    check(case, threads=1)


def test_keys_after_the_causal_border_are_not_read(unit: Any) -> None:
    """NaN among them does no harm, but to queries of the same block, or whose keys are in the same tile."""
    case = Case(heads=1, queries=256, keys=256, mask="causal", dtype="bfloat16")
    feeds = inputs_of(case)
    feeds["v"][..., 128:, :] = np.nan
    assert np.isfinite(result_of(case, feeds, 2)[..., : 128 - 32, :].astype(np.float32)).all()


@given(
    queries=st.integers(1, 70), keys=st.integers(1, 100), width=st.integers(1, 70), columns=st.integers(1, 40),
    shared=st.integers(1, 3), mask=st.sampled_from(MASKS[:-1]), threads=st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shape(
    unit: Any, queries: int, keys: int, width: int, columns: int, shared: int, mask: str, threads: int
) -> None:
    check(Case(2 * shared, queries, max(keys, queries), width, columns, kv_heads=2, mask=mask), threads)


def test_a_model_of_any_length(permitted: None, unit: Any) -> None:
    compiled = compile_model(attention_of_any_length(), str(cpu_with_tiles()), precision="bf16", dims={"n": (1, 600)})
    (schedule,) = (s for g in compiled.plan.groups if isinstance(s := g.schedule, CpuAttentionSchedule))
    assert schedule.block == 32 and schedule.scores.template == schedule.weighed.template == "cpu_tile_gemm"
    with load(compiled.to_bytes(), num_threads=2) as module:
        for length in (1, 2, 15, 33, 64, 97, 600):
            q, k, v = (halves(2, length, 64, seed=seed) for seed in range(3))
            scores = q @ k.swapaxes(1, 2) / 8
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            expected = weights / weights.sum(-1, keepdims=True) @ v
            np.testing.assert_allclose(module.run({"q": q, "k": k, "v": v})["y"], expected, atol=2e-2)


def attention_of_any_length() -> onnx.ModelProto:
    return parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]>\n'
        "attend (float[2, n, 64] q, float[2, n, 64] k, float[2, n, 64] v) => (float[2, n, 64] y) {"
        " kt = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, kt) c = Constant<value = float {0.125}>() t = Mul(s, c)"
        " p = Softmax<axis = -1>(t) y = MatMul(p, v) }"
    )


def halves(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16).astype(np.float32)


# -- plans -------------------------------------------------------------------------------------------------------------


def test_tiles_are_chosen_where_they_are_estimated_to_be_faster() -> None:
    long = attention_of(group(Case(queries=128, keys=128, width=64, columns=64, dtype="bfloat16")))
    assert choose_attention(long, ISA, 1) == tiles_of(long, 1)
    few = attention_of(group(Case(queries=2, keys=8, width=8, columns=8, dtype="bfloat16")))
    assert choose_attention(few, ISA, 1).scores.template == "cpu_dot_gemm"
    floats = attention_of(group(Case(queries=128, keys=128, width=64, columns=64)))
    assert in_tiles(floats, ISA, 1) is None


def test_weights_are_whole_tiles() -> None:
    """19 rows and 40 keys are two tiles of rows, and two of 32 keys, in rows of an odd number of cache lines."""
    shape = attention_of(group(Case(queries=19, keys=40, width=64, columns=64, dtype="bfloat16")))
    plan = AttentionPlan(shape, tiles_of(shape, 1))
    assert plan.weights_shape == (32, 96) and plan.second.steps == 32 and not list(plan.reasons())


def test_a_panel_of_half_a_tile_of_keys_is_refused() -> None:
    shape = attention_of(group(Case(queries=19, keys=40, width=64, columns=64, dtype="bfloat16")))
    plan = tiles_of(shape, 1)
    narrow = replace(plan.scores, vectors=1, block_panels=3)
    (reason,) = AttentionPlan(shape, replace(plan, scores=narrow)).reasons()
    assert "tiles are of weights of 32 keys; panels of 16 are none" in reason


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("scores", {"vectors": 0}, "scores: a register tile of 16 x 0 vectors has not 1 to 256 of them"),
        ("weighed", {"rows": 0}, "weighed: a register tile of 0 x 2 vectors has not 1 to 256 of them"),
        ("weighed", {"block_panels": 0}, "weighed: a task has 1 tiles by 0 panels"),
        ("weighed", {"stage_left": True}, "weighed: a left operand that lies in whole tiles is read there"),
        ("scores", {"stage_left": False}, "scores: rows are read where they lie in whole tiles"),
    ],
)
def test_tiles_that_there_are_not_are_refused_by_name(part: str, change: dict[str, Any], reason: str) -> None:
    shape = attention_of(group(Case(queries=9, keys=40, width=64, columns=64, dtype="bfloat16")))
    schedule = tiles_of(shape, 1)
    changed = replace(schedule, **{part: replace(getattr(schedule, part), **change)})
    assert next(AttentionPlan(shape, changed).reasons()).startswith(reason)
    list(AttentionPlan(shape, changed).reasons())  # any other reasons are given, too: none of them divides by 0
