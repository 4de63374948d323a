"""Launches whose blocks wait for each other: how many fit, and the counters they wait by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.runtime.cuda.artifacts import launch, module
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.signed import plain
from tilestitch.runtime.cuda.driver import CudaError
from tilestitch.runtime.errors import ArtifactSchemaError, DeviceError
from tilestitch.runtime.program import Counters, DeviceLaunch, DeviceStep, Program, TensorType, ValueSpec

CUBIN = {"kernels/sm_90a.cubin": b"fake:count_blocks"}
INTS = TensorType("int32", (4,))


def counting(*launches: DeviceLaunch) -> Program:
    """y is what the counter holds after the launches."""
    values = (ValueSpec("counters", TensorType("uint8", (4,)), Counters(4)), ValueSpec("y", INTS))
    return Program("p", (), (1,), values, (DeviceStep(launches),))


def blocks(number: int, elastic: bool) -> DeviceLaunch:
    only = launch("count_blocks", 0, 1, cooperative=True, elastic=elastic)
    return DeviceLaunch(**{**vars(only), "grid": (number, 1, 1)})


def test_counters_begin_at_zero_and_last_from_run_to_run(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, counting(blocks(10, False)), kernels=CUBIN, weights={}) as loaded:
        for run in (1, 2, 3):
            np.testing.assert_array_equal(loaded()["y"], [10 * run] * 4)


def test_more_blocks_than_the_gpu_holds_are_refused_at_load(fake: FakeDriver, tmp_path: Path) -> None:
    fake.gpus[0].multiprocessors = 4
    with module(tmp_path, counting(blocks(8, False)), kernels=CUBIN, weights={}) as loaded:
        loaded()
    with pytest.raises(DeviceError, match=r"needs 9 blocks at a time, .* holds 8 of them; compile again"):
        module(tmp_path, counting(blocks(9, False)), kernels=CUBIN, weights={})


def test_an_elastic_grid_is_made_to_fit(fake: FakeDriver, tmp_path: Path) -> None:
    fake.gpus[0].multiprocessors = 4
    with module(tmp_path, counting(blocks(100, True)), kernels=CUBIN, weights={}) as loaded:
        np.testing.assert_array_equal(loaded()["y"], [8] * 4)
        assert {plain(time.symbol) for time in loaded.profile({})} == {"count_blocks"}
    fake.gpus[0].blocks_per_multiprocessor = 0
    with pytest.raises(DeviceError, match=r"needs 1 blocks at a time, .* holds 0"):
        module(tmp_path, counting(blocks(1, True)), kernels=CUBIN, weights={})


def test_two_launches_do_not_share_counters(fake: FakeDriver, tmp_path: Path) -> None:
    with pytest.raises(ArtifactSchemaError, match="another launch has"):
        module(tmp_path, counting(blocks(1, True), blocks(1, True)), kernels=CUBIN, weights={})


def test_counters_begin_anew_after_a_profile_that_failed_midway(fake: FakeDriver, tmp_path: Path) -> None:
    """Launches are queued one by one then, so that some may have posted what others have not waited for."""
    with module(tmp_path, counting(blocks(10, False)), kernels=CUBIN, weights={}) as loaded:
        loaded()
        fake.fail["cuEventElapsedTime"] = "CUDA_ERROR_LAUNCH_FAILED"
        with pytest.raises(CudaError):
            loaded.profile({})
        fake.fail.clear()
        np.testing.assert_array_equal(loaded()["y"], [10] * 4)
