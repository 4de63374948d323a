"""Chains of models at full size, apart and tied tile by tile: what is planned and predicted, and that it compiles.

    python -m benchmarks.tied [--match TEXT] [--sync auto,row/launches] [--table]

Every plan is checked, and every kernel of a chain is compiled to machine code. Writes benchmarks/results/tied.json. No
GPU is needed, and nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.passes.sync.graphs import attention, convolutions, gated_mlp, layer, mlp
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions, compile_kernels
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, check_plan, make_plan
from tilestitch.passes.explain import explain_plan

HALF = "float16"
HIDDEN = 22016 // 8
"""LLaMA 65B's, split over eight GPUs."""


def tokens(count: int) -> str:
    return f"{count} token{'s' * (count > 1)}"


CHAINS: dict[str, Callable[[], Graph]] = {
    **{f"GPT-3's MLP, 1 of 8, {tokens(n)}": partial(mlp, n, 12288, 4 * 12288 // 8, HALF)
       for n in (1, 64, 256, 512, 768, 1024, 1280, 1536, 2048)},
    **{f"GPT-3's attention, 1 of 8, {tokens(n)}": partial(attention, n, 12, 128, HALF, 12288) for n in (1, 512, 2048)},
    **{f"LLaMA's MLP, 1 of 8, {tokens(n)}": partial(gated_mlp, n, 8192, HIDDEN, 8192, HALF)
       for n in (1, 512, 1280, 2048)},
    "ResNet-38, 64 channels of 56 x 56": lambda: convolutions(2, 64, 56, HALF),
    "ResNet-38, 128 channels of 28 x 28": lambda: convolutions(2, 128, 28, HALF),
    "ResNet-38, 256 channels of 14 x 14": lambda: convolutions(2, 256, 14, HALF),
    "ResNet-38, 512 channels of 7 x 7": lambda: convolutions(2, 512, 7, HALF),
    "VGG-19, 64 channels of 224 x 224": lambda: convolutions(2, 64, 224, HALF),
    "VGG-19, 128 channels of 112 x 112": lambda: convolutions(2, 128, 112, HALF),
    "VGG-19, 256 channels of 56 x 56": lambda: convolutions(4, 256, 56, HALF),
    "VGG-19, 512 channels of 28 x 28": lambda: convolutions(4, 512, 28, HALF),
    "BERT-base, a layer, 512 tokens": lambda: layer(512, 12, 64, 3072, gated=False, dtype=HALF, features=768),
    "Llama, a layer, 512 tokens": lambda: layer(512, 32, 128, 11008, gated=True, dtype=HALF, features=4096),
}  # fmt: skip
TARGETS = {"A100": "cuda:a100", "H100": "cuda:h100"}
SYNCS = {"A100": ("auto", "row/tickets", "tile/tickets"), "H100": ("auto", "row/launches", "tile/launches")}
RESULT = Path(__file__).parent / "results" / "tied.json"


def compiled(chain: str, device: str, sync: str) -> dict[str, Any]:
    """What a chain becomes. Raises if a plan is refused, or a kernel does not compile."""
    graph, target = CHAINS[chain](), parse_cuda_target(TARGETS[device])
    plans = {
        how: make_plan(graph, PassContext(target.planned_for, {"sync": how}, cost_model=AnalyticalModel()))
        for how in ("off", sync)
    }
    for plan in plans.values():
        check_plan(plan, graph)
    told = {how: explain_plan(graph, plan) for how, plan in plans.items()}
    launches = [launch for group in plans[sync].groups for launch in lower_group(graph, group, target)]
    compile_kernels(launches, target, BuildOptions(1), lambda *_: None)
    apart_us, tied_us = (told[how]["prediction"]["total_us"] for how in ("off", sync))
    tied = [group for group in plans[sync].groups if group.tie in ("tickets", "launches")]
    edges = [edge for kernel in told[sync]["kernels"] for edge in kernel.get("tiles", ()) if "saved_us" in edge]
    return {
        "chain": chain, "device": device, "sync": sync, "launches_apart": len(plans["off"].launches or ()),
        "launches": len(launches), "forms": [group.tie for group in tied],
        "parts": [[part.name for part in group.parts] for group in tied],
        "kinds": dict(Counter(launch.kind for launch in launches)),
        "policies": [edge["policy"] for edge in edges], "saved_us": [edge["saved_us"] for edge in edges],
        "predicted_apart_us": apart_us, "predicted_us": tied_us, "predicted_gain": round(1 - tied_us / apart_us, 4),
        "refusals": dict(Counter(why.rule for why in plans[sync].refusals if why.rule.startswith("sync"))),
    }  # fmt: skip


def rows(match: str, syncs: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for chain in (name for name in CHAINS if match in name):
        for device in TARGETS:
            for sync in (each for each in SYNCS[device] if not syncs or each in syncs):
                yield compiled(chain, device, sync)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """As docs/measurements/tile_sync.md has it: what `auto` makes of each chain."""
    known = {(row["chain"], row["device"]): row for row in rows if row["sync"] == "auto"}
    heads = ["chain", *(f"{device}: launches, `auto` | predicted, µs" for device in TARGETS)]
    lines = [f"| {' | '.join(heads)} |", "|---" * 5 + "|"]
    for chain in CHAINS:
        cells = [cell for device in TARGETS for cell in _cells(known[chain, device])]
        lines.append(f"| {' | '.join([chain, *cells])} |")
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, str]:
    forms = f" ({', '.join(dict.fromkeys(row['forms']))})" if row["forms"] else ""
    times = f"{row['predicted_apart_us']:.1f} → {row['predicted_us']:.1f}"
    return f"{row['launches_apart']} → {row['launches']}{forms}", times


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tied", description=__doc__)
    parser.add_argument("--match", default="", metavar="TEXT", help="chains whose name has this text")
    parser.add_argument("--sync", default="", metavar="SYNC,SYNC", help="only these")
    parser.add_argument("--table", action="store_true", help="print the table of the docs, and compile nothing")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(RESULT.read_text())))
        return
    syncs = tuple(filter(None, options.sync.split(",")))
    known = {
        (r["chain"], r["device"], r["sync"]): r for r in (json.loads(RESULT.read_text()) if RESULT.exists() else [])
    }
    for row in rows(options.match, syncs):
        known[row["chain"], row["device"], row["sync"]] = row
        what = (
            f"{row['chain']:42} {row['device']} {row['sync']:14} {row['launches_apart']} -> {row['launches']} launches"
        )
        print(f"{what}, {row['predicted_apart_us']:.1f} -> {row['predicted_us']:.1f} us predicted", flush=True)
        unfinished = RESULT.with_suffix(".part")
        unfinished.write_text(json.dumps(list(known.values()), indent=1) + "\n")
        os.replace(unfinished, RESULT)


if __name__ == "__main__":
    main()
