"""Attention as one kernel on the CPU, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention_graphs import Case, assert_close, attention, inputs_of
from tests.codegen.kernel_harness import run_launches, target
from tilestitch.codegen.cpu.attention import lower_attention
from tilestitch.codegen.cpu.surroundings import Operands
from tilestitch.passes.plan.cpu.attention import AttentionPlan, attention_of
from tilestitch.passes.plan.cpu.isa import isa_named
from tilestitch.passes.plan.cpu.schedules import CpuDotGemmSchedule
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.schedule.cpu.attention import choose_attention


def group(case: Case) -> Operands:
    """The whole graph of a case as one group."""
    graph = attention(case)
    nodes, outputs = tuple(graph.nodes), tuple(graph.outputs)
    roles = roles_of(nodes, outputs)
    assert isinstance(roles, Roles), roles
    made = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v not in made)
    inputs = tuple(v for v in read if v.data is None or v.data.size != 1)
    return Operands(nodes, roles, inputs, outputs)


def plan_in(what: Operands, threads: int) -> AttentionPlan:
    shape = attention_of(what)
    return AttentionPlan(shape, choose_attention(shape, target().isa, threads))


def plan_of(case: Case, threads: int = 2) -> AttentionPlan:
    return plan_in(group(case), threads)


def check(case: Case, threads: int = 2, *, dead_rows: bool = False) -> None:
    """Compile a case, run its tasks in some order, and compare."""
    what = group(case)
    launch = lower_attention(what, plan_in(what, threads))
    feeds = inputs_of(case, dead_rows=dead_rows)
    constants = {v.name: np.asarray(v.data) for v in what.inputs if v.data is not None}
    (result,) = run_launches([launch], {**feeds, **constants}, what.outputs).values()
    assert_close(result, case, feeds)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_every_float(dtype: str) -> None:
    check(Case(queries=17, keys=33, width=24, columns=20, dtype=dtype, mask="float", merge_heads=True))


@pytest.mark.parametrize("mask", ["", "bool", "causal", "positions", "window"])
def test_masks(mask: str) -> None:
    check(Case(queries=19, keys=23, mask=mask))


@pytest.mark.parametrize("mask", ["causal", "positions", "window"])
def test_tasks_leave_out_keys_that_none_of_their_queries_sees(mask: str) -> None:
    case = Case(heads=1, queries=300, keys=330, columns=40, mask=mask)
    plan = plan_of(case)
    assert plan.blocks.largest < 16  # each block leaves out keys of its own
    check(case)
    check(replace(case, queries=150, keys=1200, dtype="float64"), threads=4)
    check(replace(case, keys=150, queries=150, mended=True, kv_heads=1, heads=2), threads=3)


@pytest.mark.parametrize("mask", ["causal", "window", "positions"])
def test_masks_of_the_least_number(mask: str) -> None:
    least = float(np.finfo(np.float32).min)
    check(Case(heads=1, queries=150, keys=170, columns=40, mask=mask, low=least))
    check(Case(heads=1, queries=40, keys=20, mask=mask, low=least))  # some rows see no key, and weigh all alike


def test_keys_after_the_causal_border_are_not_read() -> None:
    """NaN among them does no harm, though a weight of zero times NaN would, but to queries of the same block."""
    case = Case(heads=1, queries=256, keys=256, mask="causal")
    what = group(case)
    block = plan_of(case).blocks.largest
    launch = lower_attention(what, plan_in(what, 2))
    feeds = inputs_of(case)
    feeds["v"][..., 128:, :] = np.nan
    constants = {v.name: np.asarray(v.data) for v in what.inputs if v.data is not None}
    (result,) = run_launches([launch], {**feeds, **constants}, what.outputs).values()
    assert np.isfinite(result[..., : 128 - block, :]).all()


@pytest.mark.parametrize("mended", [False, True])
def test_rows_whose_keys_are_all_hidden_are_nan_or_zero_as_in_the_model(mended: bool) -> None:
    check(Case(queries=6, keys=9, mask="float", mended=mended), dead_rows=True)


@pytest.mark.parametrize("grouped", [False, True])
def test_query_heads_share_keys(grouped: bool) -> None:
    check(Case(heads=6, kv_heads=2, queries=9, keys=14, batch=2, grouped=grouped, softcap=2.0, merge_heads=True))


def test_queries_are_cut_so_that_scores_stay_in_the_cache_and_threads_have_work() -> None:
    long = plan_of(Case(heads=1, queries=40, keys=60_000), threads=1)
    assert long.blocks.all_sizes() == [8, 8, 8, 8, 8] and long.tasks == 1
    few = plan_of(Case(heads=1, queries=33), threads=4)
    assert few.blocks.all_sizes() == [9, 8, 8, 8] and few.tasks == 4
    assert plan_of(Case(heads=8, queries=33), threads=4).tasks == 8


def test_keys_that_do_not_stay_in_the_cache_meet_several_tiles_of_queries() -> None:
    far = Case(heads=1, queries=90, keys=6000, width=64, columns=33, mask="float")
    plans = [plan_of(case, threads=1) for case in (replace(far, keys=512), far)]
    one, several = (plan.first.rows.parts for plan in plans)
    assert one == 1 and several > 1
    check(far, threads=1)


def test_tasks_of_two_sizes() -> None:
    check(Case(heads=1, queries=33, keys=40, mask="float"), threads=4)


@given(
    queries=st.integers(1, 20), keys=st.integers(1, 40), width=st.integers(1, 20), columns=st.integers(1, 20),
    shared=st.integers(1, 3), mask=st.sampled_from(["", "float", "bool", "causal", "positions"]),
    threads=st.integers(1, 3),
)  # fmt: skip
def test_any_shape(queries: int, keys: int, width: int, columns: int, shared: int, mask: str, threads: int) -> None:
    case = Case(2 * shared, queries, keys, width, columns, kv_heads=2, mask=mask)
    check(case if queries <= keys else replace(case, keys=queries), threads)


# -- bfloat16 by an instruction ----------------------------------------------------------------------------------------

PAIRS = isa_named("avx512", half_dot="vdpbf16ps")
multiplies_pairs = pytest.mark.skipif(not target().has("avx512bf16"), reason="this CPU has no AVX512-BF16")


def check_pairs(case: Case, threads: int = 2, *, dead_rows: bool = False) -> None:
    """The same of bfloat16, where both GEMMs multiply pairs."""
    what = group(replace(case, dtype="bfloat16"))
    shape = attention_of(what)
    plan = AttentionPlan(shape, choose_attention(shape, PAIRS, threads))
    assert plan.first.dot is not None and plan.second.dot is not None
    launch = lower_attention(what, plan)
    feeds = inputs_of(replace(case, dtype="bfloat16"), dead_rows=dead_rows)
    constants = {v.name: np.asarray(v.data) for v in what.inputs if v.data is not None}
    (result,) = run_launches([launch], {**feeds, **constants}, what.outputs).values()
    assert_close(result, replace(case, dtype="bfloat16"), feeds)


@multiplies_pairs
@pytest.mark.parametrize("mask", ["", "float", "bool", "causal", "positions", "window"])
@pytest.mark.parametrize("keys", [23, 64])
def test_pairs_under_masks(mask: str, keys: int) -> None:
    check_pairs(Case(queries=19, keys=keys, width=40, columns=20, mask=mask, merge_heads=True))


@multiplies_pairs
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_pairs_at_the_border_of_what_is_seen(mask: str) -> None:
    """Blocks whose last key is the first of a pair, whose other one has no weight."""
    check_pairs(Case(heads=1, queries=150, keys=161, width=64, columns=40, mask=mask), threads=3)


@multiplies_pairs
@pytest.mark.parametrize("mask", ["causal", "window", "positions"])
def test_pairs_under_masks_of_the_least_number(mask: str) -> None:
    least = float(np.finfo(np.float32).min) / 2  # the least bfloat16 is a little more
    check_pairs(Case(heads=1, queries=40, keys=21, mask=mask, low=least))  # some rows see no key, and weigh all alike


@multiplies_pairs
@pytest.mark.parametrize("mended", [False, True])
def test_pairs_of_rows_whose_keys_are_all_hidden(mended: bool) -> None:
    check_pairs(Case(queries=6, keys=9, mask="float", mended=mended), dead_rows=True)


@multiplies_pairs
@given(
    queries=st.integers(1, 20), keys=st.integers(1, 70), width=st.integers(1, 70), columns=st.integers(1, 40),
    shared=st.integers(1, 3), mask=st.sampled_from(["", "float", "bool", "causal", "positions"]),
    threads=st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=15)
def test_pairs_of_any_shape(
    queries: int, keys: int, width: int, columns: int, shared: int, mask: str, threads: int
) -> None:
    case = Case(2 * shared, queries, max(keys, queries), width, columns, kv_heads=2, mask=mask)
    check_pairs(case, threads)


@multiplies_pairs
def test_pairs_of_values_after_what_is_seen_are_not_read() -> None:
    """NaN among them does no harm, but to queries of the same block."""
    case = Case(heads=1, queries=256, keys=256, mask="causal", dtype="bfloat16")
    what = group(case)
    shape = attention_of(what)
    plan = AttentionPlan(shape, choose_attention(shape, PAIRS, 2))
    feeds = inputs_of(case)
    feeds["v"][..., 128:, :] = np.nan
    constants = {v.name: np.asarray(v.data) for v in what.inputs if v.data is not None}
    (result,) = run_launches([lower_attention(what, plan)], {**feeds, **constants}, what.outputs).values()
    assert np.isfinite(result[..., : 128 - plan.blocks.largest, :].astype(np.float32)).all()


def test_a_plan_whose_keys_are_wide_multiplies_no_pairs() -> None:
    what = group(Case(queries=16, keys=32))
    shape = attention_of(what)
    chosen = choose_attention(shape, PAIRS, 1)
    assert not isinstance(chosen.scores, CpuDotGemmSchedule)
    narrow = choose_attention(replace(shape, query_dtype="bfloat16", key_dtype="bfloat16"), PAIRS, 1)
    assert isinstance(narrow.scores, CpuDotGemmSchedule) and not isinstance(narrow.weighed, CpuDotGemmSchedule)
    assert any("multiplies bfloat16 by bfloat16" in reason for reason in AttentionPlan(shape, narrow).reasons())
