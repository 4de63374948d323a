"""Laws of many parts at a time say what the laws of one kernel say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost_model.kernels import parts
from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.facts import KernelFacts, Launch, Part
from tilestitch.cost_model.on_cpu import predict_on_cpu
from tilestitch.cost_model.on_cpu_batch import BOUNDS, Columns, laws_of


@given(st.lists(parts, max_size=6), st.sampled_from([1, 2, 7]), st.sampled_from([0, 2048]))
@settings(max_examples=150, deadline=None)
def test_laws_in_a_batch_are_those_of_each_kernel(asked: list[Part], cores: int, tile_bytes: int) -> None:
    cpu = CpuDevice(cores=cores, tile_bytes_per_cycle=tile_bytes)
    found = laws_of(Columns.of(asked), cpu)
    for at, part in enumerate(asked):
        alone = predict_on_cpu(KernelFacts((Launch(((part,),)),)), cpu)
        batched = (found.latency_us[at], found.low_us[at], found.high_us[at])
        assert batched == pytest.approx((alone.latency_us, alone.low_us, alone.high_us), rel=1e-12, abs=1e-12)
        assert BOUNDS[found.bound[at]] == alone.bound
