"""What a launch is predicted to take whose parts leave each other less room than they have alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.passes.sync.graphs import mlp
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.constants import GPU_HAND_OVER_US, GPU_LAUNCH_US
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.on_gpu import resident_blocks
from tilestitch.cost_model.protocol import latency_us
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.plan.gemm.tiles import MmaTile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.cuda.gemm_tiles import MMA_TILES
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.passes.sync.check import Parts
from tilestitch.passes.sync.cost import drawn_facts, launches_of, one_launch, slots
from tilestitch.passes.sync.policies import KernelSync, edge_of

GPU = TargetInfo("cuda", device="A100", architectures=("sm_80",))
MODEL = AnalyticalModel()


@pytest.mark.parametrize("small", [MMA_TILES[3], MMA_TILES[5]], ids=lambda tile: f"{tile.bm}x{tile.bn}")
def test_a_tile_takes_what_is_predicted_with_as_few_blocks_on_its_multiprocessor(small: MmaTile) -> None:
    """Two GEMMs one after the other in one launch: as long as each would take alone if an SM held no more of its blocks
    than of the launch, and the hand-over.
    """
    graph = mlp(2048, 4096, 4096, "float16")
    planned = make_plan(graph, PassContext(GPU, {})).groups
    groups = [
        replace(group, schedule=GemmSchedule(tile, 1, 0, 1))
        for group, tile in zip(planned, (small, MMA_TILES[0]), strict=True)
    ]
    nodes, device = {node.name: node for node in graph.nodes}, device_of(GPU)
    assert isinstance(device, Device)
    parts = Parts.of(nodes, groups)
    assert not isinstance(parts, str)
    edge = edge_of(parts.pair(0, 1), KernelSync())
    assert edge is not None
    kernels = [group_facts(nodes, group, GPU, MODEL) for group in groups]
    steps = launches_of(parts, kernels)
    launch = one_launch(steps)
    held = resident_blocks(launch, device)
    assert held < resident_blocks(steps[0].sequence[-1], device)
    alone_us = [
        latency_us(MODEL, KernelFacts((replace(step.sequence[-1], resident=held),)), device) - GPU_LAUNCH_US
        for step in steps
    ]
    found = drawn_facts(parts, [edge], slots(launch, device), kernels, device)
    assert latency_us(MODEL, found, device) == pytest.approx(GPU_LAUNCH_US + sum(alone_us) + GPU_HAND_OVER_US, 1e-6)
