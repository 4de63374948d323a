"""Base classes of plug-ins: every method has a default that changes nothing.

A plug-in is a frozen dataclass that derives from one of these, or from several; its fields are its arguments, and its
class variable `name` is what `--pass`, `explain` and artifacts call it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice
from tilestitch.passes.contract import PLACES, PassContext, PassResult
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.fusion.stages import Combine
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.own_kernels import KernelTarget, OwnKernel

from .views import KernelsView, PlannerView

API_VERSION = 1
"""Version of `tilestitch.passes.api`. It grows when a plug-in that worked could stop working."""


class Plugin(ABC):
    """What all plug-ins have. `api_version`: the `API_VERSION` that the plug-in was written for."""

    name: ClassVar[str]
    api_version: ClassVar[int] = 1


class GraphPass(Plugin):
    """Rewrites the graph, at `place` (see `PLACES`)."""

    place: ClassVar[str] = PLACES[-1]

    @abstractmethod
    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """May change `graph` or return a new one; inputs and outputs stay in number, order and type."""


class Rule(Plugin):
    """Takes part in the decision which nodes become one kernel."""

    def propose(self, state: PlannerView) -> Iterator[Fuse]:
        """Unions that are wanted; each is tried at once, so the next look at `state` sees the result."""
        return iter(())

    def forbid(self, state: PlannerView, nodes: Sequence[Node]) -> WhyNot | None:
        """Asked before any union, other rules' included: why `nodes` must not be one kernel, or None."""
        return None

    def combine(self, kernels: KernelsView) -> Iterator[Combine]:
        """Whole kernels that are wanted in one launch, once all nodes have found theirs."""
        return iter(())


class Schedule(Plugin):
    """Brings kernels of its own for some groups."""

    @abstractmethod
    def schedule(self, graph: Graph, group: Group, target: KernelTarget) -> Sequence[OwnKernel] | None:
        """Return the kernels that compute `group`, in launch order; None: tilestitch's own template does it.

        Asked once for groups that are equal but for names, so the answer depends on nothing but the group's nodes.
        """


class CostModel(Plugin):
    """Predicts how long kernels take; the planner asks it in place of the analytical model.

    A model that predicts many kernels at once, or knows how sure it is and what bounds them, defines
    `predict(batch, device) -> Sequence[Prediction]`, too, which is asked instead.
    """

    @abstractmethod
    def latency_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        """Return the microseconds of `kernel` on an idle `device`, its launches included; finite and not negative."""
