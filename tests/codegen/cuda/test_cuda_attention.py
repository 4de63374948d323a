"""Attention as one kernel on CUDA: executed on the emulated device in several orders, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention_graphs import Case, assert_close, attention, inputs_of
from tests.codegen.cuda.contraction_harness import anchored, resources, run, target
from tests.codegen.kernel_harness import one_group
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.attention.mma import emit_mma
from tilestitch.codegen.cuda.attention.operands import Attended, attended
from tilestitch.codegen.cuda.attention.simt import emit_simt
from tilestitch.codegen.cuda.attention.walk import Walk, walk
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.toolchain.text import PRELUDE, kernel_text
from tilestitch.codegen.errors import KernelError
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.attention.tiles import AttentionMmaTile, AttentionSimtTile, padded
from tilestitch.passes.plan.schedules import OpenAttentionSchedule
from tilestitch.passes.schedule.kernels import schedule_group
from tilestitch.runtime.emulator import EmulatorOptions

ORDERS = [
    EmulatorOptions(),
    EmulatorOptions(block_order="reversed", thread_order="reversed", resident_blocks=1),
    EmulatorOptions(block_order="random", thread_order="random", seed=3),
]


def described(case: Case, name: str = "cuda:sm_80") -> Attended:
    return attended(anchored(attention(case), target(name)))


def lower(case: Case, name: str = "cuda:sm_80") -> tuple[CudaLaunch, ...]:
    graph = attention(case)
    by_name, group = {node.name: node for node in graph.nodes}, one_group(graph, GroupKind.ATTENTION)
    group = schedule_group(by_name, group, target(name).planned_for, AnalyticalModel())
    return lower_group(graph, group, target(name))


def check(
    case: Case, launches: Sequence[CudaLaunch] | None = None, orders: Sequence[EmulatorOptions] = ORDERS[:1],
    *, dead_rows: bool = False,
) -> list[str]:  # fmt: skip
    """Run a case in every order and compare; returns the kinds of its launches."""
    graph = attention(case)
    launches = lower(case) if launches is None else launches
    feeds = inputs_of(case, dead_rows=dead_rows)
    constants = {v.name: np.asarray(v.data) for v in graph.constants}
    for options in orders:
        (result,) = run(launches, {**feeds, **constants}, graph.outputs, options).values()
        assert_close(result, case, feeds)
    return [launch.kind for launch in launches]


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float16", "attention_mma"),
        ("bfloat16", "attention_mma"),
        ("float32", "attention_simt"),
        ("float64", "attention_simt"),
    ],
)
def test_every_float_in_several_orders(dtype: str, kind: str) -> None:
    case = Case(queries=37, keys=70, width=24, columns=40, dtype=dtype, mask="float", merge_heads=True)
    assert check(case, orders=ORDERS) == [kind]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mask", ["", "bool", "causal", "positions", "window"])
def test_masks(mask: str, dtype: str) -> None:
    check(Case(queries=70, keys=131, mask=mask, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mended", [False, True])
def test_rows_whose_keys_are_all_hidden_are_nan_or_zero_as_in_the_model(mended: bool, dtype: str) -> None:
    check(Case(queries=6, keys=9, mask="float", mended=mended, dtype=dtype), dead_rows=True)


def extreme_rows(keys: int, largest: float) -> np.ndarray:
    """Masks whose numbers are so large that log2(e) times one of them is not near enough, or infinite."""
    few, first = np.arange(keys) % 3, np.arange(keys) < keys // 2
    big = min(largest / 4, 1e7)
    return np.array([
        np.full(keys, -largest), np.full(keys, max(-largest, -1e9)), np.full(keys, -np.inf),
        2000 - few, -2000 + few, big * (1 + few), -big * (1 + few),
        np.where(first, -5000, few), np.where(first, few, 5000), np.where(first, -np.inf, -largest),
        np.where(few == 0, 1020 + first * 8, -np.inf), np.where(few == 0, largest, 0),
        np.full(keys, max(-largest, -3e12)), np.full(keys, min(largest, 1e20)),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "tf32"), [("float16", False), ("float32", False), ("float32", True), ("float64", False)]
)
@pytest.mark.parametrize("parts", ["one", "known", "open"])
def test_scores_of_any_size(parts: str, dtype: str, tf32: bool) -> None:
    """Queries are 0, so that a score is its mask exactly, in any precision."""
    keys = 70 if parts == "one" else 1030
    rows = extreme_rows(keys, 65504.0 if dtype == "float16" else float(np.finfo(np.float32).max))
    case = Case(heads=1, queries=len(rows), keys=keys, mask="float", dtype=dtype, tf32=tf32)
    launches, graph, feeds = lower(case), attention(case), inputs_of(case)
    assert (launches[-1].kind == "join") == (parts != "one")
    if parts == "open" and not tf32:
        launches = split_at_run_time(case, 7)
    feeds["q"] = np.zeros_like(feeds["q"])
    feeds["mask"] = np.broadcast_to(rows, feeds["mask"].shape).astype(feeds["mask"].dtype)
    (result,) = run(launches, feeds, graph.outputs).values()
    assert_close(result, case, feeds)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("grouped", [False, True])
def test_query_heads_that_share_keys_are_rows_of_one_tile(grouped: bool, dtype: str) -> None:
    case = Case(heads=6, kv_heads=2, queries=3, keys=40, width=16, batch=2, grouped=grouped, dtype=dtype)
    what = described(case)
    assert (what.batch, what.rows) == (4, 9)
    assert what.key.memory is not None
    check(case)
    check(replace(case, queries=33, mask="float"))


@pytest.mark.parametrize(("width", "columns"), [(1, 1), (33, 17), (80, 80), (128, 64), (256, 256)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_widths(width: int, columns: int, dtype: str) -> None:
    check(Case(heads=1, queries=18, keys=35, width=width, columns=columns, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_few_queries_cut_the_keys_into_parts(dtype: str) -> None:
    case = Case(queries=1, keys=1030, width=16, columns=24, dtype=dtype, mask="float")
    launches = lower(case)
    assert [launch.kind.split("_")[0] for launch in launches] == ["attention", "join"]
    assert launches[0].grid[0] > 2
    check(case, launches, ORDERS)
    check(replace(case, queries=3, mended=True, mask="float"), dead_rows=True)


def test_parts_without_any_visible_key_count_for_nothing() -> None:
    case = Case(heads=1, queries=3, keys=1030, mask="window")
    what = described(case)
    launches = emit_simt(what, AttentionSimtTile(16, 16, 8, 8, 4), Walk(16, 16, 1, 65, 5, 1))
    check(case, launches, ORDERS)


def split_at_run_time(case: Case, parts: int, bm: int = 16) -> tuple[CudaLaunch, ...]:
    """Launches with memory for the sums of as many parts."""
    what = described(case)
    tile: AttentionMmaTile | AttentionSimtTile = AttentionSimtTile(
        bm, 16, case.width, case.columns, 8 if case.dtype == "float64" else 4
    )
    if case.dtype in ("float16", "bfloat16"):
        tile = AttentionMmaTile(bm // 16, 16, padded(case.width), padded(case.columns))
    tiles = what.batch * -(-what.rows // bm)
    steps = walk(what, OpenAttentionSchedule(tile, kept_rows=parts * tiles * bm))
    assert steps.parts == parts
    return emit_mma(what, tile, steps) if isinstance(tile, AttentionMmaTile) else emit_simt(what, tile, steps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("parts", [1, 2, 4, 5, 13])
def test_the_last_block_combines_keys_that_are_split_at_run_time(parts: int, dtype: str) -> None:
    case = Case(queries=37, keys=230, width=24, columns=40, dtype=dtype, mask="float", merge_heads=True)
    launches = split_at_run_time(case, parts)
    assert check(case, launches, ORDERS) == [launches[0].kind]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "changed",
    [
        {"mask": "window", "queries": 3}, {"mask": "causal", "queries": 70}, {"mask": "positions"}, {"columns": 7},
        {"heads": 6, "kv_heads": 2, "grouped": True},
    ],
)  # fmt: skip
def test_parts_split_at_run_time_may_see_no_key_or_end_early(changed: dict[str, Any], dtype: str) -> None:
    case = replace(Case(queries=5, keys=230, dtype=dtype), **changed)
    check(case, split_at_run_time(case, 14), ORDERS)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mended", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_hidden_rows_whose_keys_are_split_at_run_time(parts: int, mended: bool, dtype: str) -> None:
    case = Case(queries=6, keys=90, mask="float", mended=mended, dtype=dtype)
    check(case, split_at_run_time(case, parts), dead_rows=True)


@pytest.mark.parametrize(("warps", "fragments"), [(1, 1), (4, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("bn", [16, 48, 64])
def test_tiles_for_the_tensor_cores(warps: int, fragments: int, bn: int) -> None:
    case = Case(heads=1, queries=67, keys=67, width=32, columns=48, dtype="float16", mask="causal")
    tile = AttentionMmaTile(warps, bn, 32, 48, fragments)
    check(case, emit_mma(described(case), tile, Walk(tile.bm, bn, -(-67 // tile.bm), -(-67 // bn), 1, 1)))


@pytest.mark.parametrize(("bm", "rows"), [(16, 4), (32, 8), (64, 4), (64, 8)])
@pytest.mark.parametrize("bn", [16, 64])
def test_tiles_for_the_ordinary_units(bm: int, rows: int, bn: int) -> None:
    case = Case(heads=1, queries=67, keys=67, width=12, columns=20, mask="causal")
    tile = AttentionSimtTile(bm, bn, 12, 20, 4, rows)
    check(case, emit_simt(described(case), tile, Walk(bm, bn, -(-67 // bm), -(-67 // bn), 1, 1)))


def test_keys_that_no_query_of_a_tile_sees_are_not_read() -> None:
    """NaN among keys after the causal border does no harm, though weights of zero times NaN would."""
    case = Case(heads=1, queries=70, keys=140, mask="causal")
    case = replace(case, keys=70)
    graph, feeds = attention(case), inputs_of(case)
    feeds["v"][..., 66:, :] = np.nan
    constants = {v.name: np.asarray(v.data) for v in graph.constants}
    what = described(case)
    launches = emit_simt(what, AttentionSimtTile(32, 16, 8, 8, 4), Walk(32, 16, 3, 5, 1, 1))
    (result,) = run(launches, {**feeds, **constants}, graph.outputs).values()
    assert np.isfinite(result[..., :64, :]).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@settings(max_examples=8)
@given(
    queries=st.integers(1, 20), keys=st.integers(1, 40), width=st.integers(1, 20), columns=st.integers(1, 20),
    shared=st.integers(1, 3), mask=st.sampled_from(["", "float", "positions"]),
)  # fmt: skip
def test_any_shape(dtype: str, queries: int, keys: int, width: int, columns: int, shared: int, mask: str) -> None:
    keys = max(queries, keys)
    check(Case(2 * shared, queries, keys, width, columns, dtype, kv_heads=2, mask=mask))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_kernels_keep_their_sums_in_registers(dtype: str, width: int, architecture: str) -> None:
    case = Case(heads=70, queries=256, keys=512, width=width, columns=width, dtype=dtype, mask="float")
    name = f"cuda:{architecture}"
    launches = lower(case, name)
    for launch in launches:
        registers, spilled = resources(launch, architecture, target(name))
        assert spilled == 0
        assert registers * launch.threads <= 65536
        assert launch.shared_bytes <= target(name).device.shared_bytes_per_block


@pytest.mark.parametrize(("width", "columns"), [(8, 8), (33, 17), (64, 64), (128, 96), (256, 256)])
def test_tf32_where_it_was_asked_for(width: int, columns: int) -> None:
    case = Case(queries=21, keys=70, width=width, columns=columns, mask="float", tf32=True)
    assert check(case, orders=ORDERS[:2]) == ["attention_mma"]
    assert [launch.kind for launch in lower(case, "cuda:sm_75")] == ["attention_simt"]


def test_tf32_of_few_queries_that_share_keys() -> None:
    case = Case(heads=6, kv_heads=2, queries=2, keys=600, width=32, columns=40, mask="positions", tf32=True)
    assert check(case) == ["attention_mma", "join"]


@pytest.mark.parametrize("width", [64, 128])
def test_tf32_keeps_its_sums_in_registers(width: int) -> None:
    (launch,) = lower(Case(heads=70, queries=256, keys=512, width=width, columns=width, mask="float", tf32=True))
    assert resources(launch, "sm_80")[1] == 0


def test_gpus_without_tensor_cores_for_half_floats() -> None:
    case = Case(queries=5, keys=9, dtype="bfloat16")
    launches = lower(case, "cuda:sm_75")
    assert [launch.kind for launch in launches] == ["attention_simt"]
    check(case, launches)


def test_what_fits_no_shared_memory_is_a_clear_error() -> None:
    case = Case(queries=5, keys=64, width=256, columns=256, dtype="float64")
    with pytest.raises(KernelError, match="bytes of shared memory of cuda:sm_75; compile with --planner injective"):
        lower(case, "cuda:sm_75")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("queries", [1, 4000])
def test_tensors_whose_positions_need_64_bits(queries: int, dtype: str) -> None:
    case = Case(heads=256, queries=queries, keys=4000 if queries > 1 else 1 << 24, dtype=dtype, mask="float")
    launch, *_ = lower(case)
    assert "int64_t" in kernel_text(launch.func, target()).partition(PRELUDE)[2]
