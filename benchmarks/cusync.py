"""What is predicted of the MLPs that cuSync's authors measured on an A100, beside what they measured.

    python -m benchmarks.cusync

Once as our planner has them, kernels apart and as `row` in one launch; and once with their tiles, in their form: two
launches, the second of which begins when all blocks of the first have begun. Nothing is timed here, and nothing of the
cost model was fitted to these figures. Writes benchmarks/results/cusync.json.

Measured: `src/ml-bench/transformer/results/mlp-{gpt3,llama}-a100.csv` of github.com/parasailteam/cusync (A100-80GB,
CUDA 12.2, float16), the mean of the fastest 18 of 20 runs; tiles and parts of the reduction: `tile_sizes_db.py` there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.passes.sync.graphs import gated_mlp, halved_mlp, mlp
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.protocol import latency_us
from tilestitch.passes import PassContext, TargetInfo, check_plan, make_plan
from tilestitch.passes.explain import explain_plan
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.gemm.tiles import MmaTile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.cuda import gemm_tiles
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.passes.sync.check import Parts
from tilestitch.passes.sync.cost import beside_facts
from tilestitch.passes.sync.policies import RowSync, edge_of

TARGET = TargetInfo("cuda", device="A100", architectures=("sm_80",))
MODEL = AnalyticalModel()
HALF = "float16"
TOKENS = tuple(range(512, 3073, 256))
WIDTHS = {"gpt3": (12288, 4 * 12288 // 8), "llama": (8192, 2816)}
"""Width and hidden width. LLaMA's has two GEMMs of the hidden width, which are one of twice the width with them."""
STEP = 32
"""Of the reduction, of one stage of ours; theirs have one or two of these."""
RESULT = Path(__file__).parent / "results" / "cusync.json"


@dataclass(frozen=True)
class Tiles:
    """Of a GEMM: rows and columns of a tile, rows and columns of a warp's, and k of a stage; stages, and parts."""

    tile: tuple[int, int, int, int, int]
    stages: int
    split_k: int = 1

    @property
    def schedule(self) -> GemmSchedule:
        rows, columns, warp_rows, warp_columns, k = self.tile
        tile = MmaTile(rows, columns, STEP, rows // warp_rows, columns // warp_columns, self.stages * k // STEP)
        gemm_tiles._SPEEDS.setdefault(tile, gemm_tiles._SPEEDS[gemm_tiles.MMA_TILES[0]])
        return GemmSchedule(tile, self.split_k, 0, 1)


WIDE, WIDE_64 = (128, 256, 64, 64, 32), (128, 256, 64, 64, 64)
TALL, TALL_64 = (256, 128, 64, 64, 32), (256, 128, 64, 64, 64)
SQUARE, SQUARE_64 = (128, 128, 64, 64, 32), (128, 128, 64, 64, 64)
ODD, LOW = (160, 128, 80, 64, 32), (64, 256, 64, 64, 32)
Pair = tuple[Tiles, Tiles]


def _both(tile: tuple[int, int, int, int, int], stages: int, split_k: int = 1) -> Pair:
    return Tiles(tile, stages, split_k), Tiles(tile, stages)


LARGE_GPT3 = _both(WIDE, 3), _both(TALL, 3)
LARGE_LLAMA = _both(TALL_64, 3), _both(TALL_64, 3)
THEIRS: dict[str, dict[int, tuple[Pair, Pair]]] = {
    "gpt3": {
        512: (_both(WIDE_64, 3), _both(WIDE_64, 3)),
        768: (_both(WIDE_64, 3, 3), _both(WIDE_64, 3, 4)),
        1024: (_both(TALL, 4, 3), _both(TALL, 4, 3)),
        1280: ((Tiles(ODD, 4), Tiles(TALL, 5)), (Tiles(ODD, 4, 2), Tiles(TALL, 5))),
        1536: ((Tiles(WIDE, 5, 2), Tiles(TALL, 5)), (Tiles(WIDE, 5, 2), Tiles(TALL, 5))),
        1792: (_both(WIDE, 5, 2), _both(WIDE, 5)),
        2048: (_both(WIDE, 3), _both(WIDE_64, 3)),
        **dict.fromkeys(TOKENS[7:], LARGE_GPT3),
    },
    "llama": {
        512: ((Tiles(WIDE_64, 3), Tiles(LOW, 4)), (Tiles(SQUARE_64, 3), Tiles(SQUARE, 4))),
        768: ((Tiles(ODD, 4, 3), Tiles(WIDE_64, 3)), (Tiles(ODD, 4, 3), Tiles(WIDE_64, 3))),
        1024: (_both(SQUARE, 3, 3), _both(SQUARE, 3)),
        1280: ((Tiles(SQUARE, 5, 2), Tiles(TALL_64, 3)), _both(SQUARE, 5)),
        1536: (_both(TALL, 3, 2), _both(TALL, 3)),
        1792: (_both(WIDE, 4), _both(WIDE, 4)),
        2048: ((Tiles(SQUARE, 3), Tiles(TALL, 3)), _both(SQUARE, 4)),
        **dict.fromkeys(TOKENS[7:], LARGE_LLAMA),
    },
}
"""By tokens the tiles of the two GEMMs of the baseline, and of RowSync."""
MEASURED: dict[str, tuple[tuple[float, float], ...]] = {
    "gpt3": (
        (743.08, 752.36), (1098.70, 1089.48), (1516.71, 1409.54), (1831.65, 1505.39), (2218.84, 1721.00),
        (2587.19, 1997.48), (2893.82, 2315.78), (2901.33, 2479.67), (3027.68, 2790.57), (3619.21, 3093.73),
        (3428.81, 3402.47),
    ),
    "llama": (
        (408.46, 407.21), (564.68, 526.90), (721.35, 688.24), (848.10, 802.53), (999.42, 972.57), (1163.09, 1044.08),
        (1360.78, 1200.13), (1534.92, 1287.85), (1779.66, 1580.20), (1870.51, 1533.10), (1957.43, 1623.44),
    ),
}  # fmt: skip
"""Microseconds of the baseline and of the best policy, by tokens."""


def ours_us(graph: Graph, sync: str) -> float:
    plan = make_plan(graph, PassContext(TARGET, {"sync": sync}, cost_model=MODEL))
    check_plan(plan, graph)
    found: float = explain_plan(graph, plan)["prediction"]["total_us"]
    return found


def theirs_us(graph: Graph, tiles: tuple[Pair, Pair]) -> tuple[float, float]:
    """Two GEMMs one after the other, and with the second waiting for rows of the first."""
    nodes, device = {node.name: node for node in graph.nodes}, device_of(TARGET)
    assert isinstance(device, Device)
    planned = make_plan(graph, PassContext(TARGET, {}, cost_model=MODEL)).groups

    def groups(pair: Pair) -> list[Group]:
        return [replace(group, schedule=own.schedule) for group, own in zip(planned, pair, strict=True)]

    apart, tied = map(groups, tiles)
    apart_us = sum(latency_us(MODEL, group_facts(nodes, group, TARGET, MODEL), device) for group in apart)
    parts = Parts.of(nodes, tied)
    assert not isinstance(parts, str), parts
    edge = edge_of(parts.pair(0, 1), RowSync())
    assert edge is not None
    facts = [group_facts(nodes, group, TARGET, MODEL) for group in tied]
    return apart_us, latency_us(MODEL, beside_facts(parts, [edge], facts, device), device)


def row(name: str, tokens: int, measured_us: tuple[float, float]) -> dict[str, Any]:
    width, hidden = WIDTHS[name]
    gated = name == "llama"
    own = gated_mlp(tokens, width, hidden, width, HALF) if gated else mlp(tokens, width, hidden, HALF)
    two = halved_mlp(tokens, width, hidden, HALF) if gated else own
    pairs = {
        "ours": (ours_us(own, "off"), ours_us(own, "row")), "theirs": theirs_us(two, THEIRS[name][tokens]),
        "measured": measured_us,
    }  # fmt: skip
    return {
        "mlp": name, "tokens": tokens,
        **{f"{who}_us": [round(us, 1) for us in pair] for who, pair in pairs.items()},
        **{f"{who}_gain": round(1 - pair[1] / pair[0], 4) for who, pair in pairs.items()},
    }  # fmt: skip


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's."""
    first, second = (np.argsort(np.argsort(values)) for values in (one, other))
    return float(np.corrcoef(first, second)[0, 1])


def of(rows: Sequence[dict[str, Any]], name: str, key: str) -> list[Any]:
    return [row[key] for row in rows if row["mlp"] == name]


def correlations(rows: Sequence[dict[str, Any]], name: str) -> tuple[float, float]:
    """Of the measured gains with those predicted for our plans, and with their tiles."""
    measured = of(rows, name, "measured_gain")
    ours, theirs = (rank_correlation(of(rows, name, f"{who}_gain"), measured) for who in ("ours", "theirs"))
    return ours, theirs


def table(rows: Sequence[dict[str, Any]], name: str) -> str:
    """As docs/measurements/tile_sync.md has it."""

    def line(what: str, values: Sequence[Any], of: Callable[[Any], str] = str) -> str:
        return f"| {' | '.join([what, *map(of, values)])} |"

    def percent(gain: float) -> str:
        return f"{100 * gain:.1f}"

    columns = of(rows, name, "tokens")
    return "\n".join(
        [
            line("tokens", columns), line("---", ["---"] * len(columns)).replace(" ", ""),
            line("predicted, %", of(rows, name, "ours_gain"), percent),
            line("predicted with their tiles, %", of(rows, name, "theirs_gain"), percent),
            line("measured, %", of(rows, name, "measured_gain"), percent),
            line("predicted with their tiles, µs apart", of(rows, name, "theirs_us"), lambda us: f"{us[0]:.0f}"),
            line("measured, µs apart", of(rows, name, "measured_us"), lambda us: f"{us[0]:.0f}"),
        ]
    )  # fmt: skip


def main() -> None:
    rows = [row(name, n, us) for name in MEASURED for n, us in zip(TOKENS, MEASURED[name], strict=True)]
    RESULT.write_text(json.dumps(rows, indent=1) + "\n")
    for name in MEASURED:
        print(table(rows, name))
        ours, theirs = correlations(rows, name)
        print(f"rank correlation: {ours:.2f} as our planner has it, {theirs:.2f} with their tiles")


if __name__ == "__main__":
    main()
