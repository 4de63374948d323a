"""GEMMs by weights that come from memory, as in models: the reduction outermost or not, and ONNX Runtime. CPU time.

    taskset -c 1 python -m benchmarks.gemms [--rounds N] [-o OUT.json]

Each row is a model of its own: layers from k to n features and back, with weights of their own, so many that no cache
keeps them from one run to another. Times are of one layer. chosen: what is compiled; whole: each panel of columns goes
through the whole reduction, as many rows a task as half of the second-level cache holds. All run by turns; the least
eighth of the times counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from benchmarks.turns import RESULTS, cpu_microseconds, onnxruntime_session, write_results
from tests.models import Builder
from tilestitch.codegen.cpu.target import host_target
from tilestitch.compiler import compile_model
from tilestitch.passes.plan.cpu.schedules import CpuGemmSchedule
from tilestitch.passes.plan.stitch_plan import StitchPlan
from tilestitch.runtime import load

SHAPES = (
    (64, 4096, 4096), (128, 3072, 768), (197, 3072, 768), (512, 3072, 768), (128, 4096, 4096), (512, 4096, 4096),
    (197, 768, 768), (512, 768, 768),
)  # fmt: skip
"""Rows, features before and after a layer."""
WEIGHTS_BYTES, DEPTHS = 128 << 20, (2, 24)
"""Of all weights of a model, and how many layers it has at least and at most."""


def depth_of(k: int, n: int) -> int:
    least, most = DEPTHS
    return max(least, min(most, WEIGHTS_BYTES // (k * n * 4)) // 2 * 2)


def model_of(m: int, k: int, n: int) -> ModelProto:
    b, last, depth = Builder(0), "x", depth_of(k, n)
    for number in range(depth):
        before, after = (k, n) if number % 2 == 0 else (n, k)
        result = "y" if number == depth - 1 else f"a{number}"
        product = b.op("MatMul", last, b.weight(before, after))
        b.nodes.append(helper.make_node("Relu", [product], [result], name=f"/activation_{number}"))
        last = result
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (m, k))
    return b.model("gemms", [given], [helper.make_tensor_value_info("y", TensorProto.FLOAT, (m, k))], 20)


def in_whole_reductions(plan: StitchPlan, k: int, n: int) -> StitchPlan:
    """The plan without reductions that are outermost."""
    groups = []
    for number, group in enumerate(plan.groups):
        schedule, reduction = group.schedule, k if number % 2 == 0 else n
        if isinstance(schedule, CpuGemmSchedule) and schedule.k_outer:
            tiles = max(1, host_target().isa.l2_bytes // 2 // (schedule.rows * reduction * 4))
            panels = -(-max(k, n) // (schedule.vectors * schedule.lanes))
            whole = replace(schedule, k_outer=False, k_block=reduction, block_tiles=tiles, block_panels=panels)
            group = replace(group, schedule=whole)
        groups.append(group)
    return replace(plan, groups=tuple(groups), launches=None, edges=None)


def measure(m: int, k: int, n: int, rounds: int) -> dict[str, Any]:
    model = model_of(m, k, n)
    feeds = {"x": np.random.default_rng(0).standard_normal((m, k)).astype(np.float32)}
    chosen = compile_model(model, num_threads=1)
    whole = compile_model(model, num_threads=1, plan=in_whole_reductions(chosen.plan, k, n))
    modules = {name: load(each.to_bytes(), num_threads=1) for name, each in (("chosen", chosen), ("whole", whole))}
    session = onnxruntime_session(model, 1)
    ways: dict[str, Callable[[], Any]] = {
        **{name: lambda module=module: module.run(feeds)["y"] for name, module in modules.items()},  # type: ignore[misc]
        "onnxruntime": lambda: session.run(None, feeds)[0],
    }
    reference, depth = ways["onnxruntime"](), depth_of(k, n)
    us = {name: each / depth for name, each in cpu_microseconds(ways, rounds).items()}
    schedules = [group.schedule for group in chosen.plan.groups[:2]]
    return {
        "m": m, "k": k, "n": n, "layers": depth,
        "outermost": [isinstance(each, CpuGemmSchedule) and each.k_outer for each in schedules],
        **{f"{name}_us": round(each, 1) for name, each in us.items()},
        "whole/chosen": round(us["whole"] / us["chosen"], 2),
        "onnxruntime/chosen": round(us["onnxruntime"] / us["chosen"], 2),
        "gflop_per_s": round(2 * m * k * n / us["chosen"] / 1e3),
        "error": float(np.abs(ways["chosen"]() - reference).max() / np.abs(reference).max()),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gemms", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, metavar="N")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "gemms.json", metavar="OUT.json")
    options = parser.parse_args(arguments)
    results = []
    for shape in SHAPES:
        results.append(measure(*shape, options.rounds))
        print(results[-1], flush=True)
    write_results("gemms", results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
