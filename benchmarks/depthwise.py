"""Depthwise convolutions of many taps: several columns at a time, one, and ONNX Runtime. CPU time, one thread.

    taskset -c 1 python -m benchmarks.depthwise [--rounds N] [-o OUT.json]

Each row is a model of its own: so many such convolutions one after the other, each with an activation. Times are of one
of them. chosen: what is compiled; by_column: the same plan with sums of one column, of up to eight vectors, at a time.
All run by turns; the least eighth of the times counts.
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
from tilestitch.compiler import compile_model
from tilestitch.passes.plan.cpu.schedules import CpuWindowSchedule
from tilestitch.passes.plan.stitch_plan import StitchPlan
from tilestitch.runtime import load

SHAPES: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] = (
    (256, (200,), (9,)), (384, (100,), (15,)), (256, (200,), (31,)), (768, (49,), (127,)),
    (128, (28, 28), (1, 11)), (128, (28, 28), (13, 13)), (64, (28, 28), (31, 31)),
)  # fmt: skip
"""Channels, pixels along each side, taps; padding keeps the sides."""
DEPTH, MOST_VECTORS = 8, 8
"""Convolutions of a model, and vectors of one column."""


def model_of(channels: int, sides: tuple[int, ...], taps: tuple[int, ...]) -> ModelProto:
    b, shape, last = Builder(0), (1, channels, *sides), "x"
    pads = [tap // 2 for tap in taps] * 2
    for number in reversed(range(DEPTH)):
        y = b.op("Conv", last, b.weight(channels, 1, *taps), b.weight(channels), pads=pads, group=channels)
        last = f"a{number}" if number else "y"
        b.nodes.append(helper.make_node("Relu", [y], [last], name=f"/activation_{number}"))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    return b.model("depthwise", [given], [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], 20)


def by_column(plan: StitchPlan) -> StitchPlan:
    """The plan with one column at a time, in all windows in loops."""
    groups = []
    for group in plan.groups:
        schedule = group.schedule
        if isinstance(schedule, CpuWindowSchedule) and schedule.columns > 1 and schedule.form == "channels":
            vectors = min(MOST_VECTORS, schedule.block_channels // schedule.lanes)
            channels = -(-schedule.block_channels // (vectors * schedule.lanes)) * vectors * schedule.lanes
            group = replace(group, schedule=replace(schedule, columns=1, vectors=vectors, block_channels=channels))
        groups.append(group)
    return replace(plan, groups=tuple(groups), launches=None, edges=None)


def measure(channels: int, sides: tuple[int, ...], taps: tuple[int, ...], rounds: int) -> dict[str, Any]:
    model = model_of(channels, sides, taps)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, channels, *sides)).astype(np.float32)}
    chosen = compile_model(model, num_threads=1)
    single = compile_model(model, num_threads=1, plan=by_column(chosen.plan))
    modules = {name: load(each.to_bytes(), num_threads=1) for name, each in (("chosen", chosen), ("by_column", single))}
    session = onnxruntime_session(model, 1)
    ways: dict[str, Callable[[], Any]] = {
        **{name: lambda module=module: module.run(feeds)["y"] for name, module in modules.items()},  # type: ignore[misc]
        "onnxruntime": lambda: session.run(None, feeds)[0],
    }
    reference = ways["onnxruntime"]()
    us = {name: each / DEPTH for name, each in cpu_microseconds(ways, rounds).items()}
    return {
        "channels": channels, "sides": sides, "taps": taps,
        **{f"{name}_us": round(each, 1) for name, each in us.items()},
        "by_column/chosen": round(us["by_column"] / us["chosen"], 2),
        "onnxruntime/chosen": round(us["onnxruntime"] / us["chosen"], 2),
        "error": float(np.abs(ways["chosen"]() - reference).max() / np.abs(reference).max()),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.depthwise", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, metavar="N")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "depthwise.json", metavar="OUT.json")
    options = parser.parse_args(arguments)
    results = []
    for shape in SHAPES:
        results.append(measure(*shape, options.rounds))
        print(results[-1], flush=True)
    write_results("depthwise", results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
