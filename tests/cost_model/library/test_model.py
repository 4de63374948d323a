"""The shipped model, and what its laws promise on any GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.data import Kernel
from tilestitch.cost_model.library.model import SHIPPED, read_model, shipped_model, total_us
from tilestitch.cost_model.library.rows import FAMILIES, OPERANDS, Kind, dram_us, moved_us, row_kernels
from tilestitch.cost_model.library.sheet import DataSheet, chips

FUTURE = DataSheet("FUTURE", 12.0, 200, 2500, 128000, 9000, 192, 200, 1000, 3)

sheets = st.builds(
    DataSheet,
    gpu=st.just("ANY"),
    compute_capability=st.sampled_from([6.0, 6.1, 7.0, 7.5, 8.0, 8.9, 9.0, 12.0]),
    sm_count=st.integers(1, 400),
    boost_clock_mhz=st.floats(300, 4000),
    fp32_gflops=st.floats(500, 200_000),
    dram_bandwidth_gb_s=st.floats(50, 20_000),
    dram_gb=st.floats(2, 400),
    l2_mb=st.floats(0.25, 512),
    tdp_w=st.floats(20, 2000),
    process_nm=st.sampled_from([2, 4, 5, 7, 12, 16, 28]),
)
extents = st.integers(1, 2**15)
kernels = st.one_of(
    st.tuples(st.integers(1, 2**12), extents, extents, extents).map(lambda s: Kernel("bmm", "bmm", s)),
    st.tuples(st.just(1), extents, extents, extents).map(lambda s: Kernel("linear", "linear", s)),
    st.tuples(st.sampled_from(sorted(OPERANDS)), extents, extents).map(lambda s: Kernel("elementwise", s[0], s[1:])),
    st.tuples(extents, extents).map(lambda s: Kernel("softmax", "softmax", s)),
    st.tuples(extents, extents).map(lambda s: Kernel("layernorm", "ln", s)),
    st.tuples(extents, extents).map(lambda s: Kernel("copy", "copy", s)),
    st.tuples(st.integers(1, 256), *[st.integers(1, 4096)] * 2, *[st.integers(1, 7)] * 2, *[st.integers(1, 512)] * 2,
              st.integers(0, 1)).map(lambda s: Kernel("conv", "conv", s)),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(kernels, min_size=1, max_size=6), sheets)
def test_nothing_is_faster_than_the_hardware(asked: list[Kernel], sheet: DataSheet) -> None:
    model = shipped_model()
    found = model.times(asked, model.expected(sheet))
    assert np.isfinite(found.body_us).all()
    assert (found.body_us >= found.least_us).all()
    flops = np.array([2.0 * np.prod([float(x) for x in k.sizes]) * (len(k.sizes) == 4) for k in asked])
    assert (found.body_us * sheet.fp32_gflops * 1e3 >= flops * (1 - 1e-9)).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 4000), sheets)
def test_more_bandwidth_never_makes_a_copy_slower(rows: int, width: int, sheet: DataSheet) -> None:
    model = shipped_model()
    faster = replace(sheet, dram_bandwidth_gb_s=2 * sheet.dram_bandwidth_gb_s)
    row = model.classes["elementwise"]
    asked = row_kernels("elementwise", np.array(["mulu"]), np.array([rows * 1000]), np.array([width]))
    law = replace(row, correction=replace(row.correction, leaf=0 * row.correction.leaf))  # type: ignore[union-attr]
    slow, fast = (float(law.latency_us(asked, law.expected(s))[0]) for s in (sheet, faster))  # type: ignore[arg-type]
    assert fast <= slow * (1 + 1e-9)


def test_a_gpu_of_the_future_is_faster_than_those_of_today() -> None:
    model = shipped_model()
    asked = [Kernel("linear", "linear", (1, 4096, 4096, 4096)), Kernel("elementwise", "add", (65536, 4096))]
    today = model.times(asked, model.expected(model.sheets["A100-40GB"])).body_us
    assert (model.times(asked, model.expected(FUTURE)).body_us < today).all()


def test_convolutions_of_three_taps_may_take_less_than_their_direct_arithmetic() -> None:
    model = shipped_model()
    sheet = model.sheets["V100-32GB"]
    unit, strided = (Kernel("conv", "conv", (32, 512, 512, 3, 3, 28, 28, unit)) for unit in (1, 0))
    found = model.times([unit, strided], model.expected(sheet))
    direct_us = 2.0 * 32 * 28 * 28 * 9 * 512 * 512 / (sheet.fp32_gflops * 1e3)
    assert found.least_us[0] < found.body_us[0] < direct_us < found.body_us[1]


def test_boards_of_little_power_do_not_reach_their_peak() -> None:
    """A board of 72 W cannot feed as many lanes as it has; given more power, it can."""
    model = shipped_model()
    weak = DataSheet("weak", 8.9, 58, 2040, 30290, 300, 24, 48, 72, 5)
    asked = [Kernel("linear", "linear", (1, 8192, 4096, 4096))]
    flops = 2.0 * 8192 * 4096 * 4096
    shares = [
        flops / (float(model.times(asked, model.expected(sheet)).body_us[0]) * sheet.fp32_gflops * 1e3)
        for sheet in (weak, replace(weak, tdp_w=300.0))
    ]
    assert shares[0] < 0.5 < 0.7 < shares[1] < 0.93


def test_names_of_gpus_say_nothing() -> None:
    model = shipped_model()
    sheet = model.sheets["T4"]
    asked = [Kernel("softmax", "softmax", (4096, 512))]
    named = model.times(asked, model.expected(replace(sheet, gpu="something else"))).body_us
    assert named == pytest.approx(model.times(asked, model.expected(sheet)).body_us)


def test_a_total_counts_every_launch() -> None:
    model = shipped_model()
    asked = [Kernel("softmax", "softmax", (4096, 512)), Kernel("layernorm", "ln", (4096, 512))]
    times = model.times(asked, model.expected(FUTURE))
    assert total_us(times, np.array([2.0, 0.0])) == pytest.approx(2 * total_us(times, np.array([1.0, 0.0])))
    assert model.times([], model.expected(FUTURE)).body_us.shape == (0,)


def test_the_shipped_file_is_small_and_says_what_it_was_made_of() -> None:
    found = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert SHIPPED.stat().st_size < 2_000_000
    assert {"recipe", "data", "validation", "intervals"} <= found.keys()
    assert all(len(digest) == 64 for digest in found["data"].values())
    assert json.loads(json.dumps(shipped_model().to_json())) == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "gpus": {}}'])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(MeasurementError, match="train"):
        read_model(path)


def test_rows_are_read_again_from_memory_where_the_cache_does_not_hold_those_under_way() -> None:
    """Softmax has read a row twice before it computes results, layer normalisation once; element-wise never do."""
    chip = chips([DataSheet("ANY", 7.0, 80, 1380, 14029, 900, 32, 6, 250, 12)])
    rows, widths = np.full(3, 65536), np.array([1100, 2048, 65536])

    def times_moved(kind: Kind, op: str) -> list[float]:
        asked = row_kernels(kind, np.full(3, op), rows, widths)
        traits = FAMILIES[kind].usual
        return (moved_us(asked, chip, traits) / dram_us(asked, chip)).tolist()

    assert times_moved("softmax", "softmax") == pytest.approx([1.0, 1.3, 2.0], abs=0.06)
    assert times_moved("layernorm", "ln")[1:] == pytest.approx([1.5, 1.5], abs=0.06)
    assert times_moved("elementwise", "relu") == [1.0, 1.0, 1.0]
    few = row_kernels("softmax", np.full(1, "softmax"), np.full(1, 1), widths[2:])
    assert moved_us(few, chip, FAMILIES["softmax"].usual) == pytest.approx(dram_us(few, chip))
