"""Chains of models with as many tiles as at full size, but small ones, on the emulated device: in five orders of
blocks, with one, two, three and many of them resident.

    python -m benchmarks.tied_emulated [--match TEXT]

Writes benchmarks/results/tied_emulated.json. The tests run smaller ones; these take minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.codegen.kernel_harness import interpret
from tests.compiled import assert_close
from tests.passes.sync.graphs import attention, convolutions, gated_mlp, layer, narrow_mlp
from tests.passes.sync.tying import retied
from tests.tolerances import SUMS
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes import PassContext, StitchPlan, make_plan
from tilestitch.passes.plan.gemm.tiles import SimtTile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.cuda import gemm_tiles
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.emulator import EmulatorOptions

EDGE = 16
TILE = SimtTile(EDGE, EDGE, EDGE, 4, 4, 2)
"""For one of 128 x 128 at full size."""
CHAINS: dict[str, Callable[[], Graph]] = {
    **{
        f"GPT-3's MLP, 1 of 8, {tokens} token{'s' * (tokens > 1)}": partial(
            narrow_mlp, max(1, tokens // 8), 48 * EDGE, 96 * EDGE
        )
        for tokens in (1, 128, 512, 1024, 2048)
    },
    "GPT-3's attention, 1 of 8, 1 token": lambda: attention(1, 12, EDGE, features=96 * EDGE),
    "GPT-3's attention, 1 of 8, 2048 tokens": lambda: attention(16 * EDGE, 12, EDGE, features=96 * EDGE),
    "LLaMA's MLP, 1 of 8, 512 tokens": lambda: gated_mlp(4 * EDGE, 8, 22 * EDGE, 64 * EDGE),
    "LLaMA's MLP, 1 of 8, 2048 tokens": lambda: gated_mlp(16 * EDGE, 8, 22 * EDGE, 64 * EDGE),
    "ResNet-38, 64 channels of 56 x 56": lambda: convolutions(2, 8, 20),
    "ResNet-38, 128 channels of 28 x 28": lambda: convolutions(2, 16, 10),
    "ResNet-38, 256 channels of 14 x 14": lambda: convolutions(2, 32, 5),
    "ResNet-38, 512 channels of 7 x 7": lambda: convolutions(2, 64, 4),
    "VGG-19, 64 channels of 224 x 224": lambda: convolutions(2, 8, 79),
    "VGG-19, 128 channels of 112 x 112": lambda: convolutions(2, 16, 40),
    "VGG-19, 256 channels of 56 x 56": lambda: convolutions(4, 32, 20),
    "VGG-19, 512 channels of 28 x 28": lambda: convolutions(4, 64, 10),
    "BERT-base, a layer, 512 tokens": lambda: layer(4 * EDGE, 12, 8, 24 * EDGE, gated=False, features=6 * EDGE),
    "Llama, a layer, 512 tokens": lambda: layer(4 * EDGE, 32, EDGE, 86 * EDGE, gated=True, features=32 * EDGE),
}
"""Tiles of 16 x 16 for those of 128 x 128 at full size."""
ORDERS = (
    EmulatorOptions(resident_blocks=1),
    EmulatorOptions(resident_blocks=2, block_order="reversed", thread_order="reversed"),
    EmulatorOptions(resident_blocks=64, block_order="adversarial", thread_order="random", seed=3),
    EmulatorOptions(resident_blocks=3, block_order="adversarial", seed=4),
    EmulatorOptions(resident_blocks=64, block_order="random", seed=5),
)
FORMS = ("tickets", "launches")
GPU = "cuda:sm_90"
RESULT = Path(__file__).parent / "results" / "tied_emulated.json"


def planned(graph: Graph, form: str) -> StitchPlan:
    """GEMMs have the small tile. Rows are left apart from them, but those of attention."""
    target = parse_cuda_target(GPU)
    planner = "stitch" if graph.name in ("attention", "layer") else "xla"
    plan = make_plan(graph, PassContext(target.planned_for, {"planner": planner}))
    groups = [
        replace(g, schedule=replace(g.schedule, tile=TILE, split_k=1, tile_rows=1))
        if isinstance(g.schedule, GemmSchedule) and not g.stages else g
        for g in plan.groups
    ]  # fmt: skip
    return retied(graph, plan, groups, f"{'row' if 'mlp' in graph.name else 'tile'}/{form}")


def matches(chain: str, form: str) -> dict[str, Any]:
    """Raises where a result differs, or the emulated device finds a fault."""
    graph = CHAINS[chain]()
    plan = planned(graph, form)
    tied = [group for group in plan.groups if group.tie == form]
    if not tied:
        raise ValueError(f"{chain}: no kernels are tied as {form}")
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.uniform(-1, 1, v.shape).astype(to_numpy_dtype(v.dtype)) for v in graph.inputs}
    expected = interpret(graph, feeds)[graph.outputs[0]]
    backend = CudaBackend(parse_cuda_target(GPU), BuildOptions(text_only=True))
    assembled = assemble([Planned(graph, plan, ("y",))], backend, keep_source=True, progress=lambda *_: None)
    contents = artifact_bytes(replace(assembled.contents, compiler_version="emulated"))
    for options in ORDERS:
        with load(contents, device=options) as module:
            assert_close(module.run(feeds)["y"], expected, 16 * SUMS[graph.outputs[0].dtype])
    grids = [launch.grid[0] for launch in plan.launches or ()]
    orders = [f"{options.block_order}, {options.resident_blocks} resident" for options in ORDERS]
    return {
        "chain": chain, "form": form, "parts": [len(group.parts) for group in tied], "grids": grids, "orders": orders,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tied_emulated", description=__doc__)
    parser.add_argument("--match", default="", metavar="TEXT", help="chains whose name has this text")
    options = parser.parse_args()
    gemm_tiles._SPEEDS.setdefault(TILE, 0.1)
    known = {(r["chain"], r["form"]): r for r in (json.loads(RESULT.read_text()) if RESULT.exists() else [])}
    for chain in (name for name in CHAINS if options.match in name):
        for form in FORMS:
            known[chain, form] = matches(chain, form)
            print(f"{chain} {form}: matches in {len(ORDERS)} orders", flush=True)
            RESULT.write_text(json.dumps(list(known.values()), indent=1) + "\n")


if __name__ == "__main__":
    main()
