"""What each planner makes of the benchmark models, for the CPU and for an H200: nothing is compiled or run.

    python -m benchmarks.fusion [--models NAME ...] [--planners NAME ...] [--targets NAME ...] [--check]

Ours are counted from plans; `inductor` is PyTorch's own compiler, counted from the code that it generates for the GPU
(`benchmarks.inductor`). Writes benchmarks/results/fusion.json, and docs/fusion_table.md between its markers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tilestitch.compiler.cli.output import table
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, make_plan, run_pipeline
from tilestitch.passes.explain import explain_plan
from tilestitch.passes.plan.target import TargetInfo

from . import inductor, models

MODELS = inductor.MODELS
TARGETS = {"CPU": TargetInfo("cpu"), "H200": TargetInfo("cuda", device="H200")}
INDUCTOR = "inductor"
COLUMNS = ("none", "injective", "xla", INDUCTOR, "stitch", "explore")
CONTRACTIONS = frozenset({"contraction", "attention"})
BASELINE, OURS = "xla", "stitch"
MOST_KERNELS = 0.35
MOST_TRAFFIC = 0.5
ROOT = Path(__file__).parent
RESULT = ROOT / "results" / "fusion.json"
PAGE = ROOT.parent / "docs" / "fusion_table.md"
BEGIN, END = "<!-- begin: python -m benchmarks.fusion -->", "<!-- end -->"
HEADER = ("model", "target", "planner", "kernels", "launches", "memory-bound", "their traffic MB", "predicted ms")
VERSIONS = ("tilestitch", "torch", "triton", "transformers", "onnx")


@dataclass(frozen=True)
class Row:
    """One plan. `memory_bound_kernels` and `memory_bound_bytes` (read and written) leave out contractions.

    `kernels` and `predicted_us` are None, like the bytes, where a compiler that is not ours was counted.
    `predicted_us`: all kernels one after another.
    """

    model: str
    target: str
    planner: str
    kernels: int | None
    launches: int
    memory_bound_kernels: int
    memory_bound_bytes: int | None
    predicted_us: float | None
    planning_s: float
    kinds: Mapping[str, int] | None = None
    """Of a compiler that is not ours: launches by kind."""

    def cells(self) -> tuple[object, ...]:
        traffic = "" if self.memory_bound_bytes is None else f"{self.memory_bound_bytes / 1e6:.2f}"
        predicted = "" if self.predicted_us is None else f"{self.predicted_us / 1e3:.3f}"
        kernels = "" if self.kernels is None else self.kernels
        counts = kernels, self.launches, self.memory_bound_kernels
        return self.model, self.target, self.planner, *counts, traffic, predicted


def measure(name: str, target: str, planner: str) -> Row:
    """The plan of the benchmark model `name`. `inductor` is counted for the GPU, whatever the target."""
    start = time.perf_counter()
    if planner == INDUCTOR:
        found = inductor.count(inductor.generated(name))
        seconds = time.perf_counter() - start
        return Row(name, target, planner, None, found.launches, found.memory_bound, None, None, seconds, asdict(found))
    context = PassContext(TARGETS[target], options={"planner": planner})
    graph = run_pipeline(import_model(models.export(name)).graph, context)
    return counted(name, target, planner, graph)


def counted(name: str, target: str, planner: str, graph: Graph) -> Row:
    """The plan of a canonical graph."""
    context = PassContext(TARGETS[target], options={"planner": planner})
    start = time.perf_counter()
    plan = make_plan(graph, context)
    planning_s = time.perf_counter() - start
    kernels = explain_plan(graph, plan)["kernels"]
    bound = [k for k in kernels if not _multiplies(k)]
    # What lies beside a GEMM in one launch is no kernel of its own, but it moves its bytes all the same.
    beside = [p for k in kernels if _multiplies(k) for s in k["stages"] for p in s if p["kind"] not in CONTRACTIONS]
    traffic = sum(k["bytes_read"] + k["bytes_written"] for k in (*bound, *beside))
    launches = len(plan.launches or ()) if plan.target.is_gpu else len(kernels)
    predicted_us = sum(k["predicted_us"] for k in kernels)
    return Row(name, target, planner, len(kernels), launches, len(bound), traffic, predicted_us, planning_s)


def _multiplies(kernel: Mapping[str, Any]) -> bool:
    """Whether a GEMM or a convolution is in a kernel."""
    kinds = {kernel["kind"], *(part["kind"] for stage in kernel["stages"] for part in stage)}
    return not kinds.isdisjoint(CONTRACTIONS)


def wanted(names: Iterable[str], targets: Iterable[str], planners: Sequence[str]) -> list[tuple[str, str, str]]:
    """Model, target and planner of each row. Inductor is counted for the GPU only."""
    targets = tuple(targets)
    rows = [(name, target, planner) for name in names for target in targets for planner in planners]
    return [row for row in rows if row[2] != INDUCTOR or TARGETS[row[1]].is_gpu]


def ratios(rows: Sequence[Row]) -> list[tuple[str, str, float, float]]:
    """For each model and target that has both: our memory-bound kernels, and their traffic, over the baseline's."""
    found = []
    for theirs in (row for row in rows if row.planner == BASELINE):
        for ours in rows:
            if (ours.model, ours.target, ours.planner) != (theirs.model, theirs.target, OURS):
                continue
            kernels = ours.memory_bound_kernels / max(1, theirs.memory_bound_kernels)
            traffic = (ours.memory_bound_bytes or 0) / max(1, theirs.memory_bound_bytes or 0)
            found.append((ours.model, ours.target, kernels, traffic))
    return found


def goals(kernels: float, traffic: float) -> str:
    """Which goals such ratios miss; empty if none."""
    missed = [("kernels", kernels > MOST_KERNELS), ("traffic", traffic > MOST_TRAFFIC)]
    return ", ".join(f"{name} missed" for name, is_missed in missed if is_missed)


def markdown(rows: Sequence[Row]) -> str:
    """Launches side by side for each target, then ours against the baseline, then all that was counted."""
    parts = []
    for target in dict.fromkeys(row.target for row in rows):
        parts += [
            f"Launches (of these memory-bound), {target}:",
            _side_by_side([r for r in rows if r.target == target]),
        ]
    found = ratios(rows)
    percent = [(m, t, f"{kernels:.0%}", f"{traffic:.0%}", goals(kernels, traffic)) for m, t, kernels, traffic in found]
    goal = f"goal: at most {MOST_KERNELS:.0%} of the kernels and {MOST_TRAFFIC:.0%} of their traffic"
    parts += [f"`{OURS}` against `{BASELINE}`, memory-bound kernels ({goal}):"]
    parts += [_grid(("model", "target", "kernels", "traffic", "goals"), percent)]
    both = [f"{model} ({target})" for model, target, kernels, traffic in found if not goals(kernels, traffic)]
    missed = [f"{model} ({target})" for model, target, kernels, traffic in found if goals(kernels, traffic)]
    parts += [f"Both goals are met on {', '.join(both) or 'none'}; missed on {', '.join(missed) or 'none'}."]
    return "\n\n".join((*parts, "All that was counted:", _grid(HEADER, [row.cells() for row in rows])))


def _side_by_side(rows: Sequence[Row]) -> str:
    planners = [p for p in COLUMNS if any(row.planner == p for row in rows)]
    lines = []
    for model in dict.fromkeys(row.model for row in rows):
        found = {row.planner: f"{row.launches} ({row.memory_bound_kernels})" for row in rows if row.model == model}
        lines.append((model, *(found.get(p, "") for p in planners)))
    return _grid(("model", *("inductor (its own counts)" if p == INDUCTOR else p for p in planners)), lines)


def _grid(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def write(page: Path, text: str) -> None:
    """Replace what stands between the markers of `page`. Raises SystemExit if it has none."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} lacks the markers {BEGIN} and {END}; put them back")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def save(rows: Sequence[Row], given: Sequence[str], path: Path) -> None:
    now = datetime.datetime.now(datetime.timezone.utc)
    content = {
        "date": now.isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", "benchmarks.fusion", *given]),
        "versions": {name: found for name in VERSIONS if (found := _version(name)) is not None},
        "results": [asdict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main(arguments: list[str] | None = None) -> int:
    """Prints and writes the table; with --check, exit code 3 if a goal is missed."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusion", description="Count what the planners make.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--planners", nargs="+", choices=COLUMNS, default=list(COLUMNS), metavar="NAME")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS), metavar="NAME")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    parser.add_argument("-o", "--output", type=Path, default=RESULT, metavar="OUT.json")
    options = parser.parse_args(given)
    rows = []
    for name, target, planner in wanted(options.models, options.targets, options.planners):
        rows.append(measure(name, target, planner))
        print("  ".join(map(str, rows[-1].cells())), file=sys.stderr)
        save(rows, given, options.output)
    print(table([row.cells() for row in rows], HEADER))
    missed = 0
    for model, target, kernels, traffic in ratios(rows):
        verdict = goals(kernels, traffic)
        missed += bool(verdict)
        print(f"{model}, {target}: {kernels:.0%} of the kernels, {traffic:.0%} of the traffic; {verdict or 'both met'}")
    if len(rows) == len(wanted(MODELS, TARGETS, COLUMNS)):
        write(PAGE, markdown(rows))
        print(f"written to {options.output} and {PAGE}")
    return 3 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
