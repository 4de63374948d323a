"""In-place times of kernels in whole models, with interleaved runs of several plans."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch import __version__
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cpu.backend import CpuBackend
from tilestitch.codegen.cpu.target import CpuTarget
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.cost_model.records import Machine, Record
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.schedules import schedule_to_json
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.host_runs import HOST_PREFIX
from tilestitch.runtime.session import Module

from .plans import structure_digest

Inputs = Mapping[str, Any]
TOLERANCE = 1e-2
"""Tolerance between the results of two plans, which may round half floats at different points."""


@dataclass(frozen=True)
class Subject:
    """A model as the planner gets it, and what its plans are made with."""

    name: str
    graph: Graph
    output_names: tuple[str, ...]
    context: PassContext
    backend: CpuBackend
    inputs: Inputs | None

    @staticmethod
    def of(path: Path, target: CpuTarget, threads: int, model: LatencyModel) -> Subject:
        """Return a subject with inputs from a .npz file beside the model, or random ones. Raises the errors of frontend
        and passes.
        """
        backend = CpuBackend(target, threads)
        context = PassContext(backend.planned_for(threads), {"planner": "stitch"}, cost_model=model)
        imported = import_model(path)
        graph = run_pipeline(imported.graph, context)
        beside = path.with_suffix(".npz")
        inputs = dict(np.load(beside)) if beside.is_file() else None
        return Subject(path.stem, graph, tuple(imported.output_names), context, backend, inputs)

    def compiled(self, plan: StitchPlan) -> Module:
        """Return the model compiled by a plan, ready to run."""
        planned = Planned(self.graph, plan, self.output_names)
        assembled = assemble([planned], self.backend, keep_source=False, progress=lambda *_: None)
        contents = replace(assembled.contents, compiler_version=__version__)
        return load(artifact_bytes(contents), device="cpu", num_threads=self.backend.threads)


@dataclass(frozen=True)
class Times:
    """Minimum microseconds of each launch of a plan, and of whole runs; and the number of both."""

    launches_us: np.ndarray
    whole_us: float
    rounds: int


def time_in_turns(modules: Sequence[Module], inputs: Inputs | None, rounds: int, most_s: float) -> list[Times]:
    """Run each module once a round, whole and with its launches timed, until the rounds or the seconds are used up.

    A slowdown of the machine longer than a round affects all of them; the minimum counts.
    """
    feeds = inputs if inputs is not None else make_inputs(modules[0], {}, seed=0)
    launches: list[np.ndarray | None] = [None] * len(modules)
    whole = [float("inf")] * len(modules)
    until = time.monotonic() + most_s
    for module in modules:
        module.run(feeds)
    done = 0
    while done < rounds and (not done or time.monotonic() <= until):
        done += 1
        for place, module in enumerate(modules):
            start = time.perf_counter_ns()
            module.run(feeds)
            whole[place] = min(whole[place], (time.perf_counter_ns() - start) / 1000)
            found = np.array([t.microseconds for t in module.profile(feeds) if not t.symbol.startswith(HOST_PREFIX)])
            before = launches[place]
            launches[place] = found if before is None else np.minimum(before, found)
    return [Times(us, each, done) for us, each in zip(launches, whole, strict=True) if us is not None]


def why_other_results(module: Module, reference: Module, inputs: Inputs | None) -> str | None:
    """Return which output differs from another plan's by more than rounding and summation order explain; None if none
    does.
    """
    feeds = inputs if inputs is not None else make_inputs(reference, {}, seed=0)
    expected = reference.run(feeds)
    for name, found in module.run(feeds).items():
        one, other = (np.asarray(result, np.float64) for result in (found, expected[name]))
        most = np.abs(other[np.isfinite(other)]).max(initial=0.0)
        if not np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * most, equal_nan=True):
            return f"output {name} differs from what the rules' plan computes"
    return None


def records_of(subject: Subject, plan: StitchPlan, times: Times, machine: Machine) -> Iterator[Record]:
    """Yield a record for each structure and schedule of a plan: the minimum over equal kernels.

    Nothing for a plan with launches in nested graphs, as a profile does not distinguish these.
    """
    launches = plan.launches or ()
    if len(launches) != len(times.launches_us) or plan.bodies:
        return
    nodes = {node.name: node for node in subject.graph.nodes}
    spent: dict[str, float] = {}
    for launch, us in zip(launches, times.launches_us.tolist(), strict=True):
        spent[launch.group] = spent.get(launch.group, 0.0) + us
    least: dict[tuple[str, str], Record] = {}
    for group in plan.groups:
        structure = structure_digest(nodes, group, plan.target)
        us = spent.get(group.name, 0.0)
        if structure is None or us <= 0:
            continue
        schedule = _schedule_text(group)
        kernel = group_facts(nodes, group, plan.target, subject.context.cost_model)
        record = Record(machine, structure, schedule, kernel, us, times.rounds, subject.name)
        other = least.get((structure, schedule))
        if other is None or us < other.latency_us:
            least[structure, schedule] = record
    yield from least.values()


def _schedule_text(group: Any) -> str:
    def of(one: Any) -> Any:
        own = None if one.schedule is None else schedule_to_json(one.schedule)
        return [own, [[of(part) for part in stage] for stage in one.stages]] if one.stages else own

    return json.dumps(of(group), separators=(",", ":"), sort_keys=True)
