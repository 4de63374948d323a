"""What is tuned: a plan for known sizes, its tasks, and what they are compiled with and fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts

from .bench import Bench, Compiler, Feeds, bench_of, latencies_us, reads, values_read
from .machine import Machine
from .shares import divided
from .tasks import TuningTask, tasks_of
from .tuner import Tuner

ROUNDS = 5
"""Runs from which the time of each kernel before tuning is taken."""


@dataclass(frozen=True)
class Subject:
    """A plan with its tasks. compiler: of the whole model; trying: of single kernels, which are not cached. feeds: of
    the model; values: what the tasks' kernels read in a run with these. total_us: of all kernels of the plan.
    """

    graph: Graph
    plan: StitchPlan
    tasks: Sequence[TuningTask]
    compiler: Compiler
    trying: Compiler
    feeds: Feeds
    values: Mapping[str, np.ndarray]
    total_us: float

    @staticmethod
    def of(graph: Graph, plan: StitchPlan, machine: Machine, guide: LatencyModel, inputs: Feeds, seed: int) -> Subject:
        """Return the subject of a plan, after some runs of the model. guide: predicts kernels whose time in the model
        cannot be told. Raises UsageError for inputs that do not fit.
        """
        compiler = machine.compiler(plan, trying=False)
        feeds, found_us = machine.apart(lambda: _first_runs(graph, plan, compiler, inputs, seed))
        before_us = found_us or _predicted_us(graph, plan, guide)
        tasks = tasks_of(graph, plan, before_us)
        kernels = [task.kernel for task in tasks]
        values = machine.apart(lambda: values_read(graph, plan, kernels, feeds, compiler)) if kernels else {}
        fed = [task for task in tasks if all(value.name in values for value in reads(graph, task.kernel))]
        trying = machine.compiler(plan, trying=True)
        return Subject(graph, plan, fed, compiler, trying, feeds, values, sum(before_us.values()))

    def tuners(self, count: int, guide: LatencyModel, seed: int) -> list[Tuner]:
        """Return so many tuners, or fewer where there are fewer tasks, among which the tasks are divided."""
        return [Tuner(self._bench, some, guide, seed) for some in divided(self.tasks, count)]

    def _bench(self, task: TuningTask) -> Bench:
        return bench_of(self.graph, task.kernel, self.values, self.trying)


def _first_runs(
    graph: Graph, plan: StitchPlan, compiler: Compiler, inputs: Feeds, seed: int
) -> tuple[Feeds, dict[str, float] | None]:
    """Return all inputs of the model, and the time of each group in runs with them, if it can be told."""
    with compiler.module(graph, plan) as module:
        feeds = make_inputs(module, inputs, seed)
        return feeds, latencies_us(plan, module, feeds, ROUNDS)


def _predicted_us(graph: Graph, plan: StitchPlan, model: LatencyModel) -> dict[str, float]:
    nodes = {node.name: node for node in graph.nodes}
    facts = [group_facts(nodes, group, plan.target, model) for group in plan.groups]
    found = model.predict(facts, device_of(plan.target))
    return {group.name: each.latency_us for group, each in zip(plan.groups, found, strict=True)}
