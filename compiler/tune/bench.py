"""A kernel of a model as a graph of its own, which is compiled and timed with the inputs it has in the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

import numpy as np

from tilestitch import __version__
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.backend import Backend
from tilestitch.codegen.schedule import Schedule
from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.passes.contract import PassContext
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.plan_check import check_plan
from tilestitch.passes.planner import plan_of_groups, storing
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.dtypes import numpy_dtype

from .timing import Module, RunTime

Feeds: TypeAlias = Mapping[str, Any]
Load: TypeAlias = Callable[[bytes], Module]
"""Loads an artifact on what it is measured on."""
_OTHER_DATA = np.ones(1 << 20, np.float32)  # not zeros, all of which would be one page of memory


@dataclass(frozen=True)
class Compiler:
    """What plans of a graph are compiled with. evict: empties the caches before a profile, where modules do not;
    run_us: times a run; schedules: of plug-ins.
    """

    context: PassContext
    backend: Backend
    load: Load
    evict: Callable[[], None]
    run_us: RunTime
    schedules: Sequence[Schedule] = ()

    def module(self, graph: Graph, plan: StitchPlan) -> Module:
        """Return the graph compiled by a plan; its outputs have the names of the graph's values, numbered."""
        return self.load(self.artifact(graph, plan))

    def artifact(self, graph: Graph, plan: StitchPlan) -> bytes:
        names = tuple(f"{number}.{value.name}" for number, value in enumerate(graph.outputs))
        planned = Planned(graph, plan, names)
        assembled = assemble(
            [planned], self.backend, keep_source=False, progress=lambda *_: None, schedules=self.schedules
        )
        contents = replace(assembled.contents, compiler_version=__version__)
        return artifact_bytes(contents, deflate=False)


def latencies_us(plan: StitchPlan, module: Module, feeds: Feeds, rounds: int) -> dict[str, float] | None:
    """Return the minimum latency of each group over so many runs; None if a profile does not say which group a launch
    is of, as for nested graphs.
    """
    least: np.ndarray | None = None
    module.run(feeds)
    for _ in range(rounds):
        times = np.array([each.microseconds for each in module.profile(feeds) if not each.on_host])
        least = times if least is None else np.minimum(least, times)
    return None if least is None else of_groups(plan, least)


def of_groups(plan: StitchPlan, times_us: np.ndarray) -> dict[str, float] | None:
    """Return the time of each group as the sum over its launches; None if these are not the plan's launches."""
    launches = plan.launches or ()
    if len(launches) != len(times_us) or plan.bodies:
        return None
    found: dict[str, float] = {}
    for launch, us in zip(launches, times_us.tolist(), strict=True):
        found[launch.group] = found.get(launch.group, 0.0) + us
    return found


@dataclass(frozen=True)
class Bench:
    """A kernel as a graph of its own, whose inputs are what it reads in the model."""

    graph: Graph
    compiler: Compiler
    feeds: Feeds

    def artifact(self, group: Group) -> bytes:
        """Return the kernel compiled with the schedule of `group`. Raises PlanError or CodegenError if it cannot be."""
        plan = plan_of_groups(self.graph, (group,), self.compiler.context)
        check_plan(plan, self.graph, kernels_of=self.compiler.context.kernels_of)
        return self.compiler.artifact(self.graph, plan)

    def time_in_turns(self, modules: Sequence[Module], rounds: int) -> list[float]:
        """Return the minimum microseconds of each module's launches, which take turns with cold caches."""
        least = [inf] * len(modules)
        for _ in range(rounds):
            for place, module in enumerate(modules):
                self.compiler.evict()
                us = sum(launch.microseconds for launch in module.profile(self.feeds))
                least[place] = min(least[place], us)
        return least


def bench_of(graph: Graph, kernel: Group, values: Feeds, compiler: Compiler) -> Bench:
    """Return the bench of a kernel. values: of what it reads, by name (`values_read`)."""
    members = set(kernel.nodes)
    nodes = [node for node in graph.nodes if node.name in members]
    bench = Graph(f"{graph.name}.bench")
    inputs = {value: bench.add_input(value.name, value.type) for value in _read(nodes)}
    bench.copy_nodes(nodes, {(node, v): inputs[v] for node in nodes for v in node.inputs if v in inputs})
    made = {value.name: value for node in bench.nodes for value in node.outputs}
    bench.outputs = [made[name] for name in kernel.outputs]
    return Bench(bench, compiler, {value.name: values[value.name] for value in inputs})


def reads(graph: Graph, kernel: Group) -> list[Value]:
    """Return the values that a kernel reads, but for constants."""
    members = set(kernel.nodes)
    return _read([node for node in graph.nodes if node.name in members])


def _read(nodes: Sequence[Node]) -> list[Value]:
    made = {value for node in nodes for value in node.outputs}
    return list(dict.fromkeys(v for n in nodes for v in n.inputs if not v.is_constant and v not in made))


def evict() -> None:
    """Read more than the caches of a core hold, so that a kernel finds its operands as far away as in a model."""
    _OTHER_DATA.sum()


def values_read(
    graph: Graph, plan: StitchPlan, kernels: Sequence[Group], feeds: Feeds, compiler: Compiler
) -> dict[str, np.ndarray]:
    """Return what kernels read in a run of the model, by name: their operands, but for constants. Those that no kernel
    stores in memory of its own are missing.
    """
    read = {value for kernel in kernels for value in reads(graph, kernel)}
    roots = {v.name: plan.buffers.aliases.get(v.name, v.name) for v in read}
    given = {v.name for v in graph.inputs}
    own = {name for group in plan.groups for name in group.outputs} - set(plan.buffers.places)
    wanted = sorted(set(roots.values()) & own - given)
    values = dict(feeds)
    if wanted:
        exposing = graph.clone()
        names = [f"{number}.{name}" for number, name in enumerate(wanted, len(exposing.outputs))]
        with compiler.module(exposing, storing(plan, exposing, wanted, compiler.context.kernels_of)) as module:
            results = module.run(feeds)
        values.update(zip(wanted, (results[name] for name in names), strict=True))
    found = {v: values[roots[v.name]] for v in read if roots[v.name] in values}
    return {v.name: np.asarray(one, numpy_dtype(v.tensor_type.dtype)).reshape(v.shape) for v, one in found.items()}
