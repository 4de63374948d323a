"""Quick bounds rise with what is saved and fall with what is done again, at the rates of the machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost_model.kernels import kernels
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.bounds import launch_bytes, least_us, most_bytes_gained, most_operations_again
from tilestitch.cost_model.constants import GPU_LAUNCH_US
from tilestitch.cost_model.devices import CpuDevice, devices, find_device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.models import RandomModel
from tilestitch.cost_model.protocol import AnyDevice, latency_us

counts = st.integers(0, 1 << 40)
machines = st.sampled_from([CpuDevice(cores=1), *devices()])


@given(counts, counts, st.integers(0, 1 << 30), machines)
def test_more_may_be_done_again_where_more_is_saved(saved: int, more: int, results: int, machine: AnyDevice) -> None:
    least = most_operations_again(saved, results, machine)
    assert 0 < least <= most_operations_again(saved + more, results, machine)


@given(counts, st.integers(0, 1 << 30), st.integers(0, 100), machines)
def test_what_may_be_done_again_hardly_makes_a_kernel_score_below_its_parts(
    saved: int, results: int, launches: int, machine: AnyDevice
) -> None:
    """A pattern with as much arithmetic again as profit allows, and a launch saved at least, is worth looking at."""
    again = most_operations_again(saved, results, machine)
    assert most_bytes_gained(saved, launches + 1, again, machine) > -1e-6 * (saved + launch_bytes(machine))


@given(st.integers(1, 1 << 20), st.integers(1, 8), st.sampled_from(devices()))
def test_few_threads_of_a_gpu_do_less_again_in_the_time_of_a_launch(results: int, times: int, gpu: AnyDevice) -> None:
    few, more = (most_operations_again(0, count, gpu) for count in (results, times * results))
    assert few <= more <= times * few + times


@pytest.mark.parametrize("name", ["T4", "A100", "H200"])
def test_a_launch_of_a_gpu_is_worth_no_more_bytes_than_its_l2_cache_moves_meanwhile(name: str) -> None:
    gpu = find_device(name)
    port_bytes_per_cycle = 64
    moved = GPU_LAUNCH_US / 1e6 * gpu.clock_hz * gpu.sm_count * port_bytes_per_cycle / 2
    assert launch_bytes(CpuDevice(cores=1)) < launch_bytes(gpu) < moved


@given(kernels, machines)
def test_no_kernel_takes_less_than_the_least(kernel: KernelFacts, machine: AnyDevice) -> None:
    assert 0 < least_us(ANALYTICAL, machine) <= latency_us(ANALYTICAL, kernel, machine)


def test_nothing_is_known_of_the_least_that_other_models_say() -> None:
    assert least_us(RandomModel(1), CpuDevice(cores=1)) == 0
