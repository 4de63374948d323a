"""The rule that composes kernels block by block: each block computes a slab of them, in sequence.

FusionStitching's *block composition* (arXiv 2009.10924, section 4) and AStitch's *regional* scheme (ASPLOS 2022):
kernels of different parallelism, such as a softmax over one axis and a sum over another, are one launch without a grid
barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.protocol import LatencyModel, latency_us
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.fusion.stages import Combine, Kernels
from tilestitch.passes.plan import Group, GroupKind, WhyNot
from tilestitch.passes.schedule.facts import group_facts


@dataclass(frozen=True)
class BlockStitching:
    """Makes a kernel and its reader stages of one launch with a slab per block, if the model predicts a gain.

    `model`: the latency model. `forced`: wherever legal. GPUs only.
    """

    model: LatencyModel = ANALYTICAL
    forced: bool = False
    name: ClassVar[str] = "block"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        """Propose nothing: this rule combines what others have made."""
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None

    def combine(self, kernels: Kernels) -> Iterator[Combine]:
        if kernels.target.name == "cpu":
            return
        for name in kernels.order:
            while name in kernels.groups and _has_slabs(kernels.groups[name]):
                found = self._best_producer(kernels, kernels.groups[name])
                if found is None:
                    break
                group = kernels.groups[name]
                yield Combine(((found,), (name,)), forced=True, tie="block")
                whole = kernels.holder((group.parts or (group,))[0].name)
                name = whole if whole != name else ""

    def _best_producer(self, kernels: Kernels, reader: Group) -> str | None:
        best: tuple[float, str] | None = None
        for producer in sorted(kernels.producers[reader.name]):
            group = kernels.groups.get(producer)
            if group is None or not _has_slabs(group) or not _reduces(group, reader):
                continue
            gain = self._gain_us(kernels, group, reader)
            if gain is not None:
                best = max(best or (gain, producer), (gain, producer))
        return best[1] if best else None

    def _gain_us(self, kernels: Kernels, group: Group, reader: Group) -> float | None:
        """Return the microseconds that one launch saves; None where it saves none, or is illegal (a remark)."""
        subject = f"{group.nodes[-1]} -> {reader.nodes[0]}"
        whole = kernels.combined(Combine(((group.name,), (reader.name,)), tie="block"), self.name)
        if isinstance(whole, WhyNot):
            kernels.remarks.append(replace(whole, subject=subject))
            return None
        if self.forced:
            return 0.0
        apart = kernels.latency_us(group, self.model) + kernels.latency_us(reader, self.model)
        together = group_facts(kernels.nodes, whole, kernels.target, self.model)
        gain = apart - latency_us(self.model, together, kernels.device)
        if gain > 0:
            return gain
        reason = "one launch of blocks that compute a slab of both is predicted to take longer than two"
        kernels.remarks.append(WhyNot(subject, self.name, reason, {"saved_us": round(gain, 2)}))
        return None


def _has_slabs(group: Group) -> bool:
    return group.tie == "block" or group.kind in (GroupKind.INJECTIVE, GroupKind.ROWWISE)


def _reduces(*groups: Group) -> bool:
    return any(part.kind is GroupKind.ROWWISE for group in groups for part in group.parts or (group,))
