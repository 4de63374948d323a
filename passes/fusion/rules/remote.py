"""Rules that combine whole kernels: packing of independent ones, and stages separated by a grid barrier.

Packing finds FusionStitching's *remote* patterns (arXiv 2009.10924, section 5.3): kernels that no value connects, but
that one launch can compute side by side. Global stitching is AStitch's (ASPLOS 2022): a kernel reads what an earlier
stage of the same launch has stored. The latency model alone decides on both: a launch is saved, at the cost of a
barrier, and of blocks that all have the resources of the most demanding part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.joined import joined_facts
from tilestitch.cost_model.protocol import LatencyModel, latency_us
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.fusion.search.packs import Packs
from tilestitch.passes.fusion.stages import Combine, Kernels
from tilestitch.passes.plan import Group, WhyNot


@dataclass(frozen=True)
class _Remote:
    """`model`: the latency model. `forced`: combine whatever is legal, regardless of profit."""

    model: LatencyModel = ANALYTICAL
    forced: bool = False

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        """Propose nothing: these rules combine what others have made."""
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None

    def gain_us(self, kernels: Kernels, stages: tuple[tuple[Group, ...], ...]) -> float:
        """Return the microseconds by which the groups of `stages` are slower apart than as one kernel."""
        apart = sum(kernels.latency_us(g, self.model) for stage in stages for g in stage)
        facts = joined_facts([[kernels.facts(g, self.model) for g in stage] for stage in stages])
        return apart - latency_us(self.model, facts, kernels.device)


@dataclass(frozen=True)
class Packing(_Remote):
    """Puts independent kernels of the same step of the critical path side by side, the best pair first."""

    name: ClassVar[str] = "packing"

    def combine(self, kernels: Kernels) -> Iterator[Combine]:
        packs = Packs(kernels, partial(_side_by_side, kernels), self.model, forced=self.forced)
        for launch in packs.climb():
            yield Combine((launch.names,), forced=True)


@dataclass(frozen=True)
class GlobalStitching(_Remote):
    """Makes a kernel and its reader stages of one cooperative launch. GPUs only."""

    name: ClassVar[str] = "global"

    def combine(self, kernels: Kernels) -> Iterator[Combine]:
        if kernels.target.name == "cpu":
            return
        for name in kernels.order:
            while name in kernels.groups and kernels.why_no_part(kernels.groups[name], first=False) is None:
                found = self._best_producer(kernels, kernels.groups[name])
                if found is None:
                    break
                group = kernels.groups[name]
                yield Combine(((found,), (name,)), forced=True)
                whole = kernels.holder((group.parts or (group,))[0].name)
                name = whole if whole != name else ""

    def _best_producer(self, kernels: Kernels, reader: Group) -> str | None:
        best: tuple[float, str] | None = None
        for producer in sorted(kernels.producers[reader.name]):
            group = kernels.groups.get(producer)
            if group is None or kernels.why_no_part(group) is not None:
                continue
            gain = self.gain_us(kernels, ((group,), (reader,)))
            if gain <= 0 and not self.forced:
                figures = {"saved_us": round(gain, 2)}
                reason = "a barrier of the grid is predicted to cost more than the launch that it saves"
                kernels.remarks.append(WhyNot(f"{group.nodes[-1]} -> {reader.nodes[0]}", self.name, reason, figures))
                continue
            best = max(best or (gain, producer), (gain, producer))
        return best[1] if best else None


def _side_by_side(kernels: Kernels, group: Group) -> bool:
    return len(group.stages) < 2 and kernels.why_no_part(group) is None
