"""What is tuned: a plan for known sizes, its tasks, and what they are compiled with and fed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilestitch.codegen.cpu.target import parse_target
from tilestitch.codegen.schedule import KernelsOfPlugins, Schedule
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.machine import machine_of
from tilestitch.compiler.targets import backend_of
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.cost_model.records import Machine as RecordedMachine
from tilestitch.passes.contract import PassContext
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.runtime import load

from .bench import Bench, Compiler, Feeds, bench_of, latencies_us, reads, values_read
from .shares import divided, shares_of
from .tasks import TuningTask, tasks_of
from .tuner import Tuner

ROUNDS = 5
"""Runs from which the time of each kernel before tuning is taken."""


@dataclass(frozen=True)
class Machine:
    """What kernels are compiled for. threads: of a run; cache: of compiled kernels, as in `compile_model`; schedules:
    those of plug-ins.
    """

    target: str
    threads: int
    cache: Any
    schedules: Sequence[Schedule] = ()

    def compiler(self, plan: StitchPlan, cache: Any) -> Compiler:
        backend = backend_of(self.target, self.threads, cache, None)
        kernels_of = KernelsOfPlugins(self.schedules, backend.target_of_schedules)
        context = PassContext(plan.target, kernels_of=kernels_of)
        return Compiler(context, backend, partial(load, device="cpu", num_threads=self.threads), self.schedules)

    @property
    def described(self) -> RecordedMachine:
        """This machine, as records name it."""
        return machine_of(parse_target(self.target), self.threads)

    def shares(self, wanted: int | None) -> list[tuple[int, ...]]:
        return shares_of(sorted(os.sched_getaffinity(0)), self.threads, wanted)


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
        compiler = machine.compiler(plan, machine.cache)
        with compiler.module(graph, plan) as module:
            feeds = make_inputs(module, inputs, seed)
            found_us = latencies_us(plan, module, feeds, ROUNDS)
        before_us = found_us or _predicted_us(graph, plan, guide)
        tasks = tasks_of(graph, plan, before_us)
        values = values_read(graph, plan, [task.kernel for task in tasks], feeds, compiler)
        fed = [task for task in tasks if all(value.name in values for value in reads(graph, task.kernel))]
        trying = machine.compiler(plan, False)
        return Subject(graph, plan, fed, compiler, trying, feeds, values, sum(before_us.values()))

    def tuners(self, count: int, guide: LatencyModel, seed: int) -> list[Tuner]:
        """Return so many tuners, or fewer where there are fewer tasks, among which the tasks are divided."""
        return [Tuner(self._bench, some, guide, seed) for some in divided(self.tasks, count)]

    def _bench(self, task: TuningTask) -> Bench:
        return bench_of(self.graph, task.kernel, self.values, self.trying)


def _predicted_us(graph: Graph, plan: StitchPlan, model: LatencyModel) -> dict[str, float]:
    nodes = {node.name: node for node in graph.nodes}
    facts = [group_facts(nodes, group, plan.target, model) for group in plan.groups]
    found = model.predict(facts, device_of(plan.target))
    return {group.name: each.latency_us for group, each in zip(plan.groups, found, strict=True)}
