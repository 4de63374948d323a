"""How far the exploration of fusion is from the optimum, on random small graphs that can be solved exactly.

    python -m benchmarks.fusion_gap [--graphs N] [--nodes N] [--k N] [--beam N] [--write]

For every graph and device the predicted latency of the plan that is found, without help from the rules of the default
planner, is compared with the least of all plans. The graphs are the same in every run. `--write` writes
docs/measurements/fusion_gap.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.strategies import graphs
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import print_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.cpu import CpuDevice
from tilestitch.cost_model.devices import find_device
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel
from tilestitch.cost_model.random_model import RandomModel
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.explore import Explore, seed
from tilestitch.passes.fusion.search.exact import exact
from tilestitch.passes.fusion.search.space import Space
from tilestitch.passes.plan.target import TargetInfo

from .planners import markdown

PAGE = Path(__file__).parents[1] / "docs" / "measurements" / "fusion_gap.md"
HEADER = ("latencies", "mean gap", "largest", "not optimal", "rules of `stitch`, mean gap")
FEWEST, MOST = 4, 16
"""Nodes of a graph that counts."""
GOAL, OPTIMAL = 2, 1e-6
"""Percent."""

SETTINGS: dict[str, tuple[TargetInfo, AnyDevice, LatencyModel]] = {
    "cpu": (TargetInfo("cpu", 2), CpuDevice(cores=2), AnalyticalModel()),
    # Small graphs are nothing but launches on real machines. Without them bytes and arithmetic decide.
    "cpu, free launches": (
        TargetInfo("cpu", 2),
        CpuDevice(name="free launches", cores=2, launch_us=0.0),
        AnalyticalModel(),
    ),
    "H100": (TargetInfo("cuda:sm_90a"), find_device("h100"), AnalyticalModel()),
    # Latencies without rhyme or reason are the hardest to search.
    "random latencies": (TargetInfo("cpu", 2), CpuDevice(cores=2), RandomModel()),
}


@dataclass(frozen=True)
class Gap:
    """One graph on one device, in predicted microseconds."""

    optimum_us: float
    search_us: float
    rules_us: float

    @property
    def percent(self) -> float:
        return 100 * (self.search_us / self.optimum_us - 1) if self.optimum_us else 0.0

    @property
    def rules_percent(self) -> float:
        return 100 * (self.rules_us / self.optimum_us - 1) if self.optimum_us else 0.0


def gap(graph: Graph, target: TargetInfo, device: AnyDevice, explore: Explore) -> Gap:
    space = Space(Fusion(graph, target), explore.model, device)
    _, optimum_us = exact(space)
    return Gap(optimum_us, explore.search(space).predicted_us, space.total_us(seed(space)))


def random_graphs(count: int, nodes: int) -> list[Graph]:
    """The same `count` different graphs of 4 to 16 nodes in every run."""
    found: dict[str, Graph] = {}

    @settings(max_examples=20 * count, derandomize=True, database=None, deadline=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(graphs(max_nodes=nodes))
    def collect(graph: Graph) -> None:
        if len(found) < count and FEWEST <= len(graph.nodes) <= MOST:
            found.setdefault(print_graph(graph), graph)

    _call(collect)
    return list(found.values())


def _call(test: Callable[[], None]) -> None:
    test()


def report(options: argparse.Namespace) -> int:
    drawn = random_graphs(options.graphs, options.nodes)
    rows, worst_mean = [], 0.0
    for name, (target, device, model) in SETTINGS.items():
        explore = Explore(options.k, options.beam, seeded=False, model=model)
        gaps = [gap(g, target, device, explore) for g in drawn]
        mean = sum(g.percent for g in gaps) / len(gaps)
        missed = sum(g.percent > OPTIMAL for g in gaps)
        rules = sum(g.rules_percent for g in gaps) / len(gaps)
        rows.append((name, f"{mean:.3f} %", f"{max(g.percent for g in gaps):.1f} %", missed, f"{rules:.1f} %"))
        if isinstance(model, AnalyticalModel):
            worst_mean = max(worst_mean, mean)
    text = page(rows, f"{len(drawn)} graphs of {FEWEST} to {MOST} nodes, k={options.k}, beam={options.beam}")
    print(text)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    return 0 if worst_mean < GOAL else 3


def page(rows: Iterable[Sequence[object]], what: str) -> str:
    return "\n\n".join([
        "# Search against the optimum",
        "<!-- written by: python -m benchmarks.fusion_gap --write -->",
        f"{what}: predicted latency of what the search finds by itself, without help of the rules of the default "
        f"planner, over the least of all plans. The goal is a mean of less than {GOAL} % under the analytical model.",
        markdown(HEADER, rows),
    ]) + "\n"  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Prints the page; exit code 3 if a mean gap under the analytical model misses the goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusion_gap", description="Search against optimum.")
    parser.add_argument("--graphs", type=int, default=200, metavar="N")
    parser.add_argument("--nodes", type=int, default=9, metavar="N", help="steps of a graph, each one or two nodes")
    parser.add_argument("--k", type=int, default=3, metavar="N", help="patterns kept for each node (default 3)")
    parser.add_argument("--beam", type=int, default=3, metavar="N", help="sets of patterns kept (default 3)")
    parser.add_argument("--write", action="store_true", help="write the page to docs/measurements")
    return report(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
