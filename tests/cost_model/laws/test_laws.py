"""The laws bound what they must: nothing overlaps better than perfectly, no chip does more than it can."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilestitch.cost_model.laws import compute, memory

times = st.floats(0.0, 1e7)


@given(times, times, st.floats(1.0, 20.0))
def test_overlapping_times_take_between_the_longer_and_their_sum(first: float, second: float, sharpness: float) -> None:
    found = float(compute.smooth_max(first, second, sharpness))
    assert max(first, second) * (1 - 1e-12) <= found <= (first + second) * (1 + 1e-9)


def test_the_sharper_the_corner_the_closer_to_the_longer_time() -> None:
    assert compute.smooth_max(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert compute.smooth_max(3.0, 4.0, 1.0) == pytest.approx(7.0)
    assert compute.smooth_max(0.0, 0.0, 2.0) == 0.0


def test_lanes_follow_from_peak_and_clock() -> None:
    assert compute.lanes_per_sm(19492, 108, 1410) == pytest.approx(64, rel=0.01)


def test_pascal_issues_on_its_float_lanes_only_and_volta_four_warps_a_cycle() -> None:
    assert compute.issued_per_us(6.0, 9340, 56, 1303) == pytest.approx(56 * 1303 * 64, rel=0.01)
    assert compute.issued_per_us(7.0, 14029, 80, 1380) == 80 * 1380 * 128


@pytest.mark.parametrize(("blocks", "rounds"), [(0, 0), (1, 1), (132, 1), (133, 2), (2**31, 16268816)])
def test_the_fullest_sm_computes_whole_blocks(blocks: int, rounds: int) -> None:
    assert compute.blocks_of_fullest_sm(blocks, 132) == rounds


def test_check_bits_cost_bandwidth_beside_the_chip_only() -> None:
    found = memory.dram_bytes_per_us(np.array([300.0, 1555.0]), np.array([8.9, 8.0]))
    assert found.tolist() == [300e3 * 0.875, 1555e3]


def test_what_fits_the_cache_need_not_move() -> None:
    assert memory.least_dram_us(1e6, 4e6, 900) == 0.0
    assert memory.least_dram_us(94e6, 4e6, 900) == pytest.approx(100.0)


def test_lanes_that_take_every_issue_slot_wait_for_other_instructions() -> None:
    half, full = (compute.issue_slowdown(9.0, lanes, 0.08, 0.03) for lanes in (64, 128))
    assert half == 1.0 and full == pytest.approx(1.11)
    assert compute.issue_slowdown(6.1, 128, 0.08, 0.03) == 1.0  # two instructions a cycle
    assert compute.issue_slowdown(8.9, 128, 0.16, 0.03) == pytest.approx(1.28)  # half as many loads


def test_operations_take_less_energy_on_finer_processes() -> None:
    assert compute.energy_scale(12) == compute.energy_scale(16) == pytest.approx(1.0)
    assert 0.28 < compute.energy_scale(6) < 0.4
    assert compute.energy_scale(5) / compute.energy_scale(16) == pytest.approx(0.28, abs=0.005)


def test_a_board_slows_down_where_its_power_does_not_suffice() -> None:
    weak, strong = (compute.slowdown(10.0, 8.141e6, watts, 12) for watts in (70, 700))
    assert weak == pytest.approx(81.41 / 50) and strong < 1


def test_short_kernels_are_over_before_power_limits_them() -> None:
    assert compute.throttled(10.0, 300.0) < 0.05 < 0.9 < compute.throttled(10_000.0, 300.0)


def test_sms_of_small_chips_hold_fewer_threads() -> None:
    found = compute.threads_per_sm(np.array([6.0, 6.1, 7.0, 7.5, 8.0, 8.6, 8.9, 9.0, 10.3, 12.0]))
    assert found.tolist() == [2048, 2048, 2048, 1024, 2048, 1536, 1536, 2048, 2048, 1536]


def test_an_l2_cache_of_two_partitions_holds_what_is_read_twice() -> None:
    assert memory.near_l2_bytes(np.full(4, 40e6), np.array([7.0, 7.5, 8.0, 8.9])).tolist() == [40e6, 40e6, 20e6, 40e6]
