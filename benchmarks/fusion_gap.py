"""How far the exploration of fusion is from the optimum, on random small graphs that can be solved exactly.

    python -m benchmarks.fusion_gap [--graphs N] [--nodes N] [--k N] [--beam N] [--models NAME ...]

For every graph and device the predicted latency of the plan that is found, without help from the rules of the default
planner, is compared with the least of all plans. The graphs are the same in every run. With
`--models`, prints what the planners make of the benchmark models instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.strategies import graphs
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import print_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.cpu import CpuDevice
from tilestitch.cost_model.devices import find_device
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel, latency_us
from tilestitch.cost_model.random_model import RandomModel
from tilestitch.passes.contract import PassContext
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.cost.facts import group_facts, nodes_by_name
from tilestitch.passes.fusion.rules.explore import Explore, seed
from tilestitch.passes.fusion.search.exact import exact
from tilestitch.passes.fusion.search.space import Space
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan
from tilestitch.passes.schedule.device import device_of

MODELS = Path(__file__).parent / "models"
FEWEST, MOST = 4, 16  # nodes of a graph that counts

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


def report_gaps(options: argparse.Namespace) -> int:
    drawn = random_graphs(options.graphs, options.nodes)
    print(f"{len(drawn)} graphs of {FEWEST} to {MOST} nodes, k={options.k}, beam={options.beam}")
    worst_mean = 0.0
    for name, (target, device, model) in SETTINGS.items():
        explore = Explore(options.k, options.beam, seeded=False, model=model)
        gaps = [gap(g, target, device, explore) for g in drawn]
        mean = sum(g.percent for g in gaps) / len(gaps)
        missed = sum(g.percent > 1e-6 for g in gaps)
        rules = sum(g.rules_percent for g in gaps) / len(gaps)
        print(f"{name}: mean gap {mean:.3f} %, largest {max(g.percent for g in gaps):.1f} %, {missed} graphs not "
              f"optimal; the rules of the default planner: mean {rules:.1f} %")  # fmt: skip
        if isinstance(model, AnalyticalModel):
            worst_mean = max(worst_mean, mean)
    return 0 if worst_mean < 2 else 3


def report_models(names: list[str]) -> int:
    from tilestitch.compiler.frontend import import_model

    target = TargetInfo("cpu", 2)
    device, model = device_of(target), AnalyticalModel()
    for name in names:
        graph = run_pipeline(import_model(MODELS / f"{name}.onnx").graph, PassContext(target))
        for planner in ("none", "injective", "xla", "stitch", "explore"):
            start = time.process_time()
            plan = make_plan(graph, PassContext(target, {"planner": planner}))
            seconds = time.process_time() - start
            nodes = nodes_by_name(graph)
            facts = [group_facts(nodes, g, target) for g in plan.groups]
            total = sum(latency_us(model, f, device) for f in facts)
            moved = sum(f.footprint_bytes for f in facts)
            bound = [f for f in facts if not f.fma]
            print(f"{name:12} {planner:10} {len(graph.nodes):5} nodes {len(facts):4} kernels, {len(bound):4} of them "
                  f"no GEMMs, {sum(f.footprint_bytes for f in bound) / 1e6:8.2f} of {moved / 1e6:8.2f} MB in those, "
                  f"{total:9.0f} us predicted, planned in {seconds:.1f} s of one core", flush=True)  # fmt: skip
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Prints the gaps; exit code 3 if a mean gap under the analytical model is 2 % or more."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusion_gap", description="Search against optimum.")
    parser.add_argument("--graphs", type=int, default=200, metavar="N")
    parser.add_argument("--nodes", type=int, default=9, metavar="N", help="steps of a graph, each one or two nodes")
    parser.add_argument("--k", type=int, default=3, metavar="N", help="patterns kept for each node (default 3)")
    parser.add_argument("--beam", type=int, default=3, metavar="N", help="sets of patterns kept (default 3)")
    parser.add_argument("--models", nargs="+", metavar="NAME")
    options = parser.parse_args(arguments)
    return report_models(options.models) if options.models else report_gaps(options)


if __name__ == "__main__":
    sys.exit(main())
