"""A target names the machine that it is planned for."""

from __future__ import annotations

import pytest

from tilestitch.cost_model.devices import DeviceError
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.schedule.device import device_of


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (TargetInfo("cuda"), "H100 SXM"),
        (TargetInfo("cuda:sm_80"), "A100 40GB"),
        (TargetInfo("cuda:sm_90a,sm_80"), "A100 40GB"),
        (TargetInfo("cuda:h200"), "H200"),
        (TargetInfo("cuda", device="T4"), "T4"),
    ],
)
def test_facts_and_schedules_are_for_the_gpu_that_is_named(target: TargetInfo, name: str) -> None:
    assert device_of(target).name == Gpu.of(target).device.name == name


def test_a_gpu_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(DeviceError, match="no GPU called"):
        device_of(TargetInfo("cuda:voodoo"))
