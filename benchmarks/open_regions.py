"""What schedules by region of a range are predicted to gain over one for all of it, on GPUs that need not be there.

    python -m benchmarks.open_regions [NAME ...] [--devices H200 A100] [--precision fp16] [--points N]
    python -m benchmarks.open_regions --compile [NAME ...]

Each model is planned for its ranges twice, with decision tables and without; both plans are predicted at sizes from end
to end. NAME is one of `benchmarks.open_models`, and may end with an exporter (`minilm.script`). With --compile, small
models of `tests.open_models` are compiled both ways instead: CPU seconds and bytes of the artifact. Results go to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.open_indices import NAMES as SMALL
from benchmarks.open_models.catalogue import MODELS
from benchmarks.open_models.model import export
from benchmarks.parallel import context_of
from benchmarks.turns import write_results
from tests.open_models.catalogue import fixture_of
from tests.open_models.sizes import Sizes, spread
from tilestitch.compiler.driver import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.sizes import at, is_open
from tilestitch.compiler.ir.substitute import data_at, graph_at
from tilestitch.passes.contract import PassContext
from tilestitch.passes.errors import PassError
from tilestitch.passes.open import cases as chooser
from tilestitch.passes.open.plan import MOST_CASES
from tilestitch.passes.open.regions import with_regions
from tilestitch.passes.open.typical import typical_sizes
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.planner import make_plan, predicted_us

DEFAULT = (
    "resnet50.script", "mobilenetv2.script", "bert_base.script", "minilm.script", "gpt2.script", "llama.script",
    "whisper_decoder.script", "keras_cnn.keras", "dlrm.script",
)  # fmt: skip
HEADER = (
    "model",
    "device",
    "kernels",
    "with tables",
    "schedules more",
    "sizes",
    "one schedule us",
    "by region us",
    "gain",
)


def planned(path: Path, ranges: Mapping[str, tuple[int, int]], context: PassContext) -> tuple[StitchPlan, Graph]:
    graph = with_regions(run_pipeline(import_model(path, ranges=ranges).graph, context))
    return make_plan(graph, context), graph


def us_at(plan: StitchPlan, graph: Graph, sizes: Sizes, context: PassContext) -> float:
    """Of all launches at some sizes, each with the schedule of its region."""
    groups = tuple(_at(group, sizes) for group in plan.groups)
    return predicted_us(data_at(replace(plan, groups=groups), sizes), graph_at(graph, sizes), context)


def _at(group: Group, sizes: Sizes) -> Group:
    if group.cases is None:
        return group
    value = at(group.cases.size, sizes)
    assert not is_open(value)
    return replace(group, schedule=group.cases.at(value).schedule, cases=None)


def rows_of(name: str, device: str, precision: str, points: int) -> Iterator[dict[str, Any]]:
    model, exporter = MODELS[name.partition(".")[0]], name.partition(".")[2]
    path = export(model, name.partition(".")[0], exporter)
    plans = {}
    for most in (1, 4):
        usual = context_of(device, precision=precision, search=True)
        context = replace(usual, options={**usual.options, MOST_CASES: most})
        plans[most] = (*planned(path, model.ranges, context), context)
    cased = [group for group in plans[4][0].groups if group.cases is not None]
    for sizes in spread(model.ranges, points):
        try:
            known = typical_sizes(plans[1][1], sizes)
        except PassError:
            continue
        us = {most: us_at(plan, graph, known, context) for most, (plan, graph, context) in plans.items()}
        yield {
            "model": name, "device": device, "precision": precision, "kernels": len(plans[4][0].groups),
            "with_tables": len(cased), "more": sum(len(group.cases.cases) - 1 for group in cased if group.cases),
            "sizes": known, "one_schedule_us": round(us[1], 2), "by_region_us": round(us[4], 2),
        }  # fmt: skip


def compiled(name: str, target: str) -> dict[str, Any]:
    fixture = fixture_of(name)
    found: dict[str, Any] = {"model": name, "target": target}
    for label, most in (("one_schedule", 1), ("by_region", 4)):
        chooser.MOST_REGIONS = most
        start = time.process_time()
        made = compile_model(fixture.model, target, dims=dict(fixture.ranges), num_threads=1, cache=False)
        found[label] = {"cpu_s": round(time.process_time() - start, 2), "bytes": len(made.to_bytes())}
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_regions", description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    parser.add_argument("--devices", nargs="+", default=["H200", "A100"])
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--points", type=int, default=5, help="how many sizes of each model")
    parser.add_argument("--compile", metavar="TARGET", help="compile small models instead")
    parser.add_argument("-o", "--output", type=Path, help="where to write the results")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    if options.compile is not None:
        for name in options.names or SMALL:
            rows.append(compiled(name, options.compile))
            print(rows[-1], flush=True)
    else:
        print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
        for name in options.names or DEFAULT:
            for device in options.devices:
                for row in rows_of(name, device, options.precision, options.points):
                    rows.append(row)
                    print(f"| {' | '.join(map(str, _shown(row)))} |", flush=True)
        gains = [log(row["one_schedule_us"] / row["by_region_us"]) for row in rows]
        print(f"geometric mean {exp(mean(gains)):.3f}, {len(rows)} sizes")
    write_results("open_regions", rows, options.output)
    return 0


def _shown(row: Mapping[str, Any]) -> Iterator[Any]:
    yield from (row[key] for key in ("model", "device", "kernels", "with_tables", "more"))
    yield ", ".join(f"{name}={size}" for name, size in row["sizes"].items())
    yield from (row["one_schedule_us"], row["by_region_us"], f"{row['one_schedule_us'] / row['by_region_us']:.2f}")


if __name__ == "__main__":
    sys.exit(main())
