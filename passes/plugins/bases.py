"""Base classes of plug-ins: every method has a default that changes nothing.

A plug-in is a frozen dataclass that derives from one of these, or from several; its fields are its arguments, and its
class variable `name` identifies it for `--pass`, in `explain` and in artifacts.
"""

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
"""Version of `tilestitch.passes.api`. It increases when a plug-in that worked might stop working."""


class Plugin(ABC):
    """Base class of all plug-ins. `api_version`: the `API_VERSION` that the plug-in was written for."""

    name: ClassVar[str]
    api_version: ClassVar[int] = 1


class GraphPass(Plugin):
    """Rewrites the graph, at `place` (see `PLACES`)."""

    place: ClassVar[str] = PLACES[-1]

    @abstractmethod
    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """Return the rewritten graph: `graph` changed in place, or a new one; inputs and outputs keep their number,
        order and types.
        """


class Rule(Plugin):
    """Influences which nodes become one kernel."""

    def propose(self, state: PlannerView) -> Iterator[Fuse]:
        """Yield the fusions that are wanted; each is tried at once, so that the next look at `state` shows the
        result.
        """
        return iter(())

    def forbid(self, state: PlannerView, nodes: Sequence[Node]) -> WhyNot | None:
        """Return why `nodes` must not be one kernel, or None; called before any fusion, including those of other
        rules.
        """
        return None

    def combine(self, kernels: KernelsView) -> Iterator[Combine]:
        """Yield whole kernels that should share a launch, after all nodes have been assigned to kernels."""
        return iter(())


class Schedule(Plugin):
    """Provides its own kernels for some groups."""

    @abstractmethod
    def schedule(self, graph: Graph, group: Group, target: KernelTarget) -> Sequence[OwnKernel] | None:
        """Return the kernels that compute `group`, in launch order; None leaves it to tilestitch's own template.

        Called once for groups that are equal except for names, so the result must depend only on the group's nodes.
        """


class CostModel(Plugin):
    """Predicts how long kernels take; the planner uses it in place of the analytical model.

    A model that predicts many kernels at once, or knows its uncertainty and what bounds them, also defines
    `predict(batch, device) -> Sequence[Prediction]`, which is then called instead.
    """

    @abstractmethod
    def latency_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        """Return the microseconds of `kernel` on an idle `device`, including its launches; finite and not negative."""
