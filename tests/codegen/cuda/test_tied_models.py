"""Chains of models that are tied tile by tile: with as many tiles as at full size, but small ones, on the emulated
device in both forms; and at full size as text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import target
from tests.codegen.cuda.test_cuda_tickets import ORDERS, inputs
from tests.codegen.kernel_harness import interpret
from tests.compiled import assert_close
from tests.passes.sync.graphs import attention, convolutions, layer, mlp, narrow_mlp
from tests.passes.sync.tying import retied
from tests.tolerances import SUMS
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, StitchPlan, make_plan
from tilestitch.passes.plan.gemm.tiles import SimtTile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.cuda import gemm_tiles
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes

GPU = "cuda:sm_90"
FORMS = ("tickets", "launches")
SMALL = SimtTile(16, 16, 16, 4, 4, 2)
"""For one of 128 x 128 at full size."""


CHAINS: dict[str, Callable[[], Graph]] = {
    "GPT-3's MLP, 1 of 8, up to 128 tokens": lambda: narrow_mlp(5, 48 * 16, 96 * 16),
    "Llama's MLP, 1 of 8, 256 tokens": lambda: narrow_mlp(2 * 16, 22 * 16, 64 * 16),
    "GPT-3's attention, 1 of 8": lambda: attention(16, 12, 8),
    "ResNet-38, two of a stage": lambda: convolutions(2, 16, 14),
    "VGG-19, four of a stage": lambda: convolutions(4, 8, 7),
    "BERT-base, a layer": lambda: layer(16, 3, 8, 96, gated=False),
    "Llama, a layer": lambda: layer(8, 3, 8, 88, gated=True),
}


def planned(graph: Graph, sync: str, tile: SimtTile | None = None) -> StitchPlan:
    """The plan with chains tied, GEMMs having the given tile."""
    planner = "stitch" if graph.name in ("attention", "layer") else "xla"
    plan = make_plan(graph, PassContext(target(GPU).planned_for, {"planner": planner}))
    groups = [
        replace(g, schedule=replace(g.schedule, tile=tile, split_k=1, tile_rows=1))
        if tile is not None and isinstance(g.schedule, GemmSchedule) and not g.stages and graph.name == "narrow_mlp"
        else g
        for g in plan.groups
    ]
    return retied(graph, plan, groups, sync)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_of_models_match_in_every_order(chain: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gemm_tiles._SPEEDS, SMALL, 0.1)
    graph = CHAINS[chain]()
    plan = planned(graph, f"tile/{form}", SMALL)
    assert form in [group.tie for group in plan.groups]
    feeds = inputs(graph)
    expected = interpret(graph, feeds)[graph.outputs[0]]
    backend = CudaBackend(target(GPU), BuildOptions(text_only=True))
    assembled = assemble([Planned(graph, plan, ("y",))], backend, keep_source=True, progress=lambda *_: None)
    contents = artifact_bytes(replace(assembled.contents, compiler_version="test"))
    for options in (ORDERS[0], ORDERS[2]) if graph.name == "narrow_mlp" else ORDERS:  # which takes seconds
        with load(contents, device=options) as module:
            assert_close(module.run(feeds)["y"], expected, 16 * SUMS[graph.outputs[0].dtype])


FULL: dict[str, Callable[[], Graph]] = {
    "GPT-3's MLP, 1 of 8, 2048 tokens": lambda: mlp(2048, 12288, 4 * 12288 // 8, "float16"),
    "Llama's MLP, 1 of 8, 1024 tokens": lambda: mlp(1024, 8192, 2816, "float16"),
    "VGG-19, two of a stage": lambda: convolutions(2, 256, 56, "float16"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chain", FULL)
def test_chains_of_full_size_are_emitted(chain: str, form: str) -> None:
    graph = FULL[chain]()
    plan = planned(graph, f"row/{form}" if "MLP" in chain else f"tile/{form}")
    (group,) = plan.groups
    launches = lower_group(graph, group, target(GPU))
    assert len(launches) == (1 if form == "tickets" else len(group.parts))
    assert all("ts_ticket_" in kernel_text(launch.func, target(GPU)) for launch in launches)
    assert np.prod([launch.grid[0] for launch in launches]) > 1
