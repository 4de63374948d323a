"""Quick bounds rise with what is saved and fall with what is done again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilestitch.cost_model.bounds import launch_bytes, most_bytes_gained, most_operations_again
from tilestitch.cost_model.constants import GPU_LAUNCH_US, GPU_RATES
from tilestitch.cost_model.devices import find_device

counts = st.integers(0, 1 << 40)


@given(counts, counts)
def test_more_may_be_done_again_where_more_is_saved(saved: int, more: int) -> None:
    assert 0 < most_operations_again(saved) <= most_operations_again(saved + more)


@given(counts, st.integers(0, 100))
def test_what_may_be_done_again_never_makes_a_kernel_score_below_its_parts(saved: int, launches: int) -> None:
    """A pattern with as much arithmetic again as profit allows, and a launch saved at least, is worth looking at."""
    assert most_bytes_gained(saved, launches + 1, most_operations_again(saved)) > 0


def test_a_launch_of_a_gpu_is_worth_the_bytes_that_move_meanwhile() -> None:
    device = find_device("H200")
    moved = GPU_LAUNCH_US / 1e6 * device.dram_bytes_per_second * GPU_RATES[90].bandwidth_share
    assert launch_bytes(on_gpu=True) == pytest.approx(moved, rel=0.15) and launch_bytes(on_gpu=False) < moved
