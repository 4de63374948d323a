"""The contract of passes: protocol, context and result.

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
"""Positions of a plug-in's pass in the pipeline. `imported`: on the graph as imported; `canonical`: after
simplification, before layouts and precision are chosen; `final`: after all others. A clean-up follows each of them.
"""


@dataclass(frozen=True)
class PassResult:
    """Result of `run`: the graph, whether anything changed, and notes for users (one line each)."""

    graph: Graph
    modified: bool
    notes: tuple[str, ...] = ()

    @classmethod
    def counted(cls, graph: Graph, count: int, what: str) -> PassResult:
        """Return the result of so many changes."""
        return cls(graph, count > 0, (f"{count} {what}",) if count else ())


@runtime_checkable
class Pass(Protocol):
    """A graph transformation. Implementations are frozen dataclasses; see the module's docstring."""

    name: ClassVar[str]

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """Run the pass. Raises PassError if it cannot do its work; never for a graph where there is nothing to do."""
        ...


class Listener(Protocol):
    """An observer of passes: dumps the IR, takes times, verifies. It must not change the graph."""

    def before(self, pass_: Pass, graph: Graph) -> None: ...

    def after(self, pass_: Pass, result: PassResult, seconds: float) -> None: ...


@dataclass
class PassContext:
    """One compilation as the passes see it. The only mutable part is the bisection counter.

    `bisect_limit` (None: no limit) is the number of pass executions to perform; later ones are skipped, so that
    bisection finds the first pass that breaks a result. `passes_run` counts them.
    """

    target: TargetInfo = field(default_factory=TargetInfo)
    options: Mapping[str, Any] = field(default_factory=dict)
    listeners: Sequence[Listener] = ()
    rules: Sequence[Any] = ()
    """Fusion rules of plug-ins (`plugins.guards.GuardedRule`), which precede the built-in ones."""
    plugins: Sequence[Any] = ()
    """The loaded plug-ins (`plan.PluginRecord`), recorded in the plan."""
    cost_model: LatencyModel = ANALYTICAL
    """The latency model that rules consult."""
    kernels_of: KernelsOf = no_kernels
    """The kernels of plug-ins for a group of a graph, if there are any."""
    bisect_limit: int | None = None
    passes_run: int = 0

    @property
    def judged_schedules(self) -> Mapping[str, float]:
        """Templates for which the model has learned to rank schedules, with the least predicted relative gain for
        deviating from the rules' choice; other models only know bytes and operations.
        """
        found: Mapping[str, float] = getattr(self.cost_model, "judges_schedules", {})
        return found

    @property
    def least_gain(self) -> float | None:
        """Least relative gain of predicted time for deviating from the rules' plan, from a model that knows its own
        errors; None if it does not, or does not cover the target.
        """
        found: float | None = None if self.target.is_gpu else getattr(self.cost_model, "least_gain", None)
        return found

    def may_run(self) -> bool:
        """Count one pass execution; False once the bisection limit is used up."""
        self.passes_run += 1
        return self.bisect_limit is None or self.passes_run <= self.bisect_limit


def interface_of(graph: Graph) -> tuple[list[tuple[str, Type]], list[Type]]:
    """Return the interface that passes preserve: names and types of the inputs, types of the outputs."""
    return [(v.name, v.type) for v in graph.inputs], [v.type for v in graph.outputs]


def broken_interface(before: tuple[list[tuple[str, Type]], list[Type]], graph: Graph) -> str | None:
    """Return how a pass changed the interface `before` of `graph`, or None."""
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
