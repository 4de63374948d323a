"""From a model to one whose kernels were tuned on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.compiler.compiled import CompiledModel, Specialisation
from tilestitch.compiler.driver import compile_model
from tilestitch.compiler.errors import OptionError, TuningError
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.types import is_static_tensor
from tilestitch.compiler.prepare import Progress
from tilestitch.cost_model.models import model_named
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.cost_model.records import Machine as RecordedMachine
from tilestitch.cost_model.records import Record
from tilestitch.passes.plan import Group, StitchPlan, WhyNot
from tilestitch.passes.plugins.load import Installed, load_plugins

from .bench import Feeds
from .confirm import confirmed
from .gpu import Gpu
from .machine import Builds, Cpu, Machine
from .records import records_of
from .shares import Lost, Tell, tune_side_by_side
from .subject import Subject
from .tasks import TuningTask
from .tuner import Tried

RULE = "tune"
SECONDS = 120.0
GUIDE = "learned"
"""The latency model that says which schedules are tried first, by default."""


@dataclass(frozen=True)
class TunedTask:
    """A task with what was tried. alone, in_model: the time of its best schedule relative to that before tuning, by
    itself on a share of the machine, and in the model (None: not measured). kept: whether the model has it.
    """

    task: TuningTask
    tried: int
    failed: int
    alone: float
    in_model: float | None
    kept: bool


@dataclass(frozen=True)
class TunedPlan:
    """The plan of a specialisation. before_us, after_us: of all its kernels (`Confirmed`). lost: processes of tuners
    that ended by themselves. untuned: why the plan was not tuned; empty if it was. records: of the kernels as they were
    measured in the model.
    """

    plan: StitchPlan
    tasks: tuple[TunedTask, ...] = ()
    before_us: float = 0.0
    after_us: float = 0.0
    lost: tuple[Lost, ...] = ()
    untuned: str = ""
    records: tuple[Record, ...] = ()


@dataclass(frozen=True)
class Tuned:
    """A tuned model, and what was tried for each of its specialisations."""

    model: CompiledModel
    plans: tuple[TunedPlan, ...]


def tune_model(
    model: Any,
    target: str = "cpu",
    *,
    seconds: float = SECONDS,
    shares: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str = "cuda:0",
    progress: Progress | None = None,
    report: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Tuned:
    """Compile a model, measure other schedules of its kernels on this machine, and compile it with those that are
    faster.

    seconds: for trying schedules, divided among the specialisations; compiling and confirming take more. shares: tuners
    that work side by side, each on cores of its own (default: as many as there are). inputs: of the model, by name, for
    specialisations of their shapes; random ones for the rest, which `seed` determines. options: those of
    `compile_model`, of which `plan` is where tuning starts, and `cost_model` says which schedules are tried first
    (default: learned). device: the GPU to measure on, for GPU targets; this process must not have used it.

    Raises TuningError if there is nothing to tune, OptionError for options that tuning does not support, DeviceError
    for a GPU that cannot be used, and the errors of `compile_model`.
    """
    _check(target, seconds, shares, options)
    machine, guide = _machine(target, device, options), model_named(options.get("cost_model") or GUIDE)
    first = compile_model(model, target, progress=progress, **options)
    static = [one for one in first.specialisations if not one.graph.symbols]
    if not static:
        raise TuningError(
            "all sizes of this model are open, and schedules are measured for known ones; give some with --shape or "
            "--favour"
        )
    _check_inputs(inputs or {}, [one.graph for one in static])
    search = _Search(machine, guide, seconds / len(static), shares, seed, progress or (lambda *_: None))
    plans = tuple(search.tuned(one, inputs or {}) for one in first.specialisations)
    given = {key: value for key, value in options.items() if key not in SIZES}
    given["plan"] = [one.plan for one in plans]
    return Tuned(compile_model(model, target, progress=progress, report=report, **given), plans)


def _machine(target: str, device: str, options: Mapping[str, Any]) -> Machine:
    installed = None if options.get("installed_plugins", True) else Installed()
    plugins = load_plugins(options.get("passes", ()), installed)
    builds = Builds(target, options.get("cache", True), options.get("nvcc"), plugins.schedules)
    if target.startswith("cpu"):
        return Cpu(builds, options.get("num_threads") or len(os.sched_getaffinity(0)))
    named = parse_cuda_target(target)
    return Gpu.of(builds, device, named.multiprocessors if named.is_share else None)


SIZES = ("shapes", "dims", "favour")
"""Options whose values a plan has."""


def _check(target: str, seconds: float, shares: int | None, options: Mapping[str, Any]) -> None:
    if target.partition(":")[0] not in ("cpu", "cuda"):
        raise OptionError(f"kernels for {target} are not measured; give --target cpu, or cuda:NAME for a GPU")
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        raise OptionError(f"seconds is {seconds!r}; give a number, 0 or more")
    if shares is not None and (not isinstance(shares, int) or shares < 1):
        raise OptionError(f"shares is {shares!r}; give an integer, 1 or more, or None")
    for name in ("expose", "donate"):
        if options.get(name):
            raise OptionError(f"{name} is not supported when tuning; leave it out, and give it with the tuned plan")


def _check_inputs(inputs: Feeds, graphs: Sequence[Graph]) -> None:
    """Raise OptionError unless inputs are of the model, and fit one of the graphs that are tuned."""
    types = {value.name: value.type for value in graphs[0].inputs}
    unknown = sorted(set(inputs) - set(types))
    if unknown:
        raise OptionError(f"the model has no input {', '.join(unknown)}; its inputs: {', '.join(types) or 'none'}")
    if all(_of_other_shapes(graph, inputs) for graph in graphs):
        given = ", ".join(
            f"{name} {list(np.shape(one))}" for name, one in inputs.items() if name in _tensors(graphs[0])
        )
        sizes = "; ".join(", ".join(f"{name} {list(s)}" for name, s in _tensors(graph).items()) for graph in graphs)
        raise OptionError(f"inputs of the shapes {given} fit none of the sizes that are tuned ({sizes}); give others")


@dataclass(frozen=True)
class _Search:
    """How plans are tuned. seconds: for each of them."""

    machine: Machine
    guide: LatencyModel
    seconds: float
    shares: int | None
    seed: int
    tell: Progress

    def tuned(self, one: Specialisation, inputs: Feeds) -> TunedPlan:
        graph, plan = one.graph, one.plan
        if graph.symbols:
            return TunedPlan(plan, untuned="its sizes are open; --favour gives some of them kernels of their own")
        self.tell("measuring the kernels as they are", 0, 0)
        fitting = {} if _of_other_shapes(graph, inputs) else inputs
        subject = Subject.of(graph, plan, self.machine, self.guide, fitting, self.seed)
        if not subject.tasks:
            return TunedPlan(plan, untuned=_why_no_tasks(plan))
        shares = self.machine.shares(self.shares)
        tuners = subject.tuners(len(shares), self.guide, self.seed)
        tried, lost = tune_side_by_side(tuners, shares[: len(tuners)], self.seconds, self._telling(Saved(subject)))
        if lost and not tried:
            raise TuningError(f"no schedule could be tried: {lost[0].reason}; report this as a bug")
        self.tell("comparing in the whole model", 0, 0)
        return self.machine.apart(lambda: _confirmed(subject, tried, lost, self.machine.recorded, self.guide))

    def _telling(self, saved: Saved) -> Tell:
        numbers = count(1)

        def tell(one: Tried) -> None:
            share = 100 * saved.add(one)
            self.tell(f"tuning: {next(numbers)} schedules tried, {share:.1f} % of the time saved", 0, 0)

        return tell


def _why_no_tasks(plan: StitchPlan) -> str:
    if not plan.groups and plan.bodies:
        return "all its kernels are in branches, loops, or slices of a batch, whose kernels are not measured"
    return "none of its kernels has another schedule and operands that other kernels store"


def _of_other_shapes(graph: Graph, inputs: Feeds) -> bool:
    """Return whether inputs are for another specialisation."""
    shapes = _tensors(graph)
    return any(name in shapes and np.shape(one) != shapes[name] for name, one in inputs.items())


def _tensors(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs of known size."""
    return {v.name: v.tensor_type.sizes for v in graph.inputs if is_static_tensor(v.type)}


@dataclass
class Saved:
    """How much of the model's time the best schedules so far save, by themselves."""

    subject: Subject
    best: dict[str, float] = field(default_factory=dict)

    def add(self, one: Tried) -> float:
        """Add what was tried; return the saved fraction of the model's time."""
        if one.ratio is not None:
            self.best[one.structure] = min(one.ratio, self.best.get(one.structure, 1.0))
        saved_us = sum(task.latency_us * (1 - self.best.get(task.structure, 1.0)) for task in self.subject.tasks)
        return saved_us / self.subject.total_us


def _confirmed(
    subject: Subject, tried: Sequence[Tried], lost: Sequence[Lost], machine: RecordedMachine | None, model: LatencyModel
) -> TunedPlan:
    best = best_of(tried)
    found = [(task, best[task.structure][1]) for task in subject.tasks if task.structure in best]
    proven = confirmed(subject.graph, subject.plan, found, subject.feeds, subject.compiler)
    schedules = {group.name: group for group in proven.plan.groups}
    rows = []
    for task in subject.tasks:
        ratios = [one.ratio for one in tried if one.structure == task.structure]
        alone, _ = best.get(task.structure, (1.0, None))
        in_model = proven.ratios.get(task.structure)
        kept = schedules[task.kernel.name] != task.kernel
        rows.append(TunedTask(task, len(ratios), ratios.count(None), alone, in_model, kept))
    remarks = [_remark(row) for row in rows if not row.kept]
    earlier = [one for one in proven.plan.refusals if one.rule != RULE]  # of tuning that this one went on from
    tuned = replace(proven.plan, refusals=(*earlier, *remarks))
    records = [] if machine is None else [
        record
        for plan, times in proven.measured
        for record in records_of(subject.graph, plan, times, machine, model, subject.graph.name)
    ]  # fmt: skip
    return TunedPlan(tuned, tuple(rows), proven.before_us, proven.after_us, tuple(lost), records=tuple(records))


def best_of(tried: Sequence[Tried]) -> dict[str, tuple[float, Group]]:
    """Return the best schedule of each task, with its ratio, where one was faster than that before tuning."""
    best: dict[str, tuple[float, Group]] = {}
    for one in tried:
        least, _ = best.get(one.structure, (1.0, None))
        if one.ratio is not None and one.ratio < least:
            best[one.structure] = one.ratio, one.group
    return best


def _remark(row: TunedTask) -> WhyNot:
    """Return why a kernel has the schedule that it had before tuning."""
    numbers = {"tried": row.tried, "failed": row.failed, "best_alone": round(row.alone, 3)}
    if row.in_model is not None:
        numbers["best_in_model"] = round(row.in_model, 3)
    reason = "no other schedule that was tried is faster in the model" if row.tried else "no other schedule was tried"
    return WhyNot(row.task.kernel.name, RULE, reason, numbers)
