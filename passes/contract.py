"""What a pass is, what it is told, and what it gives back.

A pass is a frozen dataclass with a class variable `name` and a method `run(graph, context) -> PassResult`. Its fields
are its command-line arguments, so a pass is written `name{field=value}` (see `pipeline_text`). `run` may change the
graph it is given or return a new one; it keeps inputs and outputs in number, order and type, and every node it makes
names its origins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from tilestitch.compiler.ir import Graph, Type
from tilestitch.compiler.ir.types import types_compatible
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan.launches.own import KernelsOf, no_kernels

from .plan.target import TargetInfo

PLACES = ("imported", "canonical", "final")
"""Where a pass of a plug-in runs. imported: on the graph as it was imported; canonical: once that is simplified, before
layouts and precision are chosen; final: after all others. A clean-up follows each of them."""


@dataclass(frozen=True)
class PassResult:
    """What `run` returns: the graph, whether anything changed, and notes for people (one line each)."""

    graph: Graph
    modified: bool
    notes: tuple[str, ...] = ()


@runtime_checkable
class Pass(Protocol):
    """Graph to graph. Implementations are frozen dataclasses; see the module's docstring."""

    name: ClassVar[str]

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """Raise PassError if the pass cannot do its work; never for a graph where there is nothing to do."""
        ...


class Listener(Protocol):
    """Watches passes run: dumps the IR, takes times, verifies. It must not change the graph."""

    def before(self, pass_: Pass, graph: Graph) -> None: ...

    def after(self, pass_: Pass, result: PassResult, seconds: float) -> None: ...


@dataclass
class PassContext:
    """One compilation as the passes see it. The only mutable part is the bisection counter.

    `bisect_limit` (None: no limit) is the number of pass executions that are allowed; later ones are left out, so that
    the first pass that spoils a result is found by halving. `passes_run` counts them.
    """

    target: TargetInfo = field(default_factory=TargetInfo)
    options: Mapping[str, Any] = field(default_factory=dict)
    listeners: Sequence[Listener] = ()
    rules: Sequence[Any] = ()
    """Fusion rules of plug-ins (`plugins.guards.GuardedRule`), asked before the built-in ones."""
    plugins: Sequence[Any] = ()
    """What was loaded (`plan.PluginRecord`); recorded in the plan."""
    cost_model: LatencyModel = ANALYTICAL
    """What rules ask how long kernels take."""
    kernels_of: KernelsOf = no_kernels
    """The kernels that plug-ins bring for a group of a graph, if any does."""
    bisect_limit: int | None = None
    passes_run: int = 0

    @property
    def judged_schedules(self) -> Mapping[str, float]:
        """Templates of which the model has learned what choices are worth, and the share of the predicted time that
        another choice than the rules' must promise; other models know bytes and operations.
        """
        found: Mapping[str, float] = getattr(self.cost_model, "judges_schedules", {})
        return found

    @property
    def least_gain(self) -> float | None:
        """The share of the predicted time that another plan than the rules' must promise, by a model that knows its
        own errors; None: it does not, or knows nothing of the target.
        """
        found: float | None = None if self.target.is_gpu else getattr(self.cost_model, "least_gain", None)
        return found

    def may_run(self) -> bool:
        """Count one pass execution; False once the bisection limit is used up."""
        self.passes_run += 1
        return self.bisect_limit is None or self.passes_run <= self.bisect_limit


def interface_of(graph: Graph) -> tuple[list[tuple[str, Type]], list[Type]]:
    """Return what passes keep: names and types of the inputs, types of the outputs."""
    return [(v.name, v.type) for v in graph.inputs], [v.type for v in graph.outputs]


def broken_interface(before: tuple[list[tuple[str, Type]], list[Type]], graph: Graph) -> str | None:
    """Return what a pass did that it must not, where `graph` no longer has the interface that was there before."""
    inputs, outputs = before
    if inputs != [(v.name, v.type) for v in graph.inputs]:
        changed = "inputs"
    elif len(outputs) != len(graph.outputs) or not all(
        types_compatible(old, new.type) for old, new in zip(outputs, graph.outputs, strict=True)
    ):
        changed = "outputs"
    else:
        return None
    return f"changed the {changed} of graph {graph.name}; their number, order and types must stay"
