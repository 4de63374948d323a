"""Rules that combine whole kernels: packing of independent ones, stages separated by a grid barrier, block by block,
and band by band.

Packing finds FusionStitching's *remote* patterns (arXiv 2009.10924, section 5.3): kernels that no value connects, but
that one launch can compute side by side. Global stitching is AStitch's (ASPLOS 2022): a kernel reads what an earlier
stage of the same launch has stored. Block stitching is FusionStitching's *block composition* (section 4) and AStitch's
*regional* scheme: kernels of different parallelism, such as a softmax over one axis and a sum over another, are one
launch without a grid barrier. The latency model alone decides on all of them: a launch is saved, at the cost of a
barrier, and of blocks that all have the resources of the most demanding part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.joined import joined_facts
from tilestitch.cost_model.protocol import LatencyModel, hardly_slower, latency_us
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.fusion.search.packs import Packs
from tilestitch.passes.fusion.stages import Combine, Kernels
from tilestitch.passes.plan import Group, GroupKind, WhyNot
from tilestitch.passes.plan.gemm.units import FEW_ROWS
from tilestitch.passes.schedule.cuda.band_facts import band_extents
from tilestitch.passes.schedule.facts import group_facts


@dataclass(frozen=True)
class _Combining:
    """`model`: the latency model. `forced`: combine whatever is legal, regardless of profit."""

    model: LatencyModel = ANALYTICAL
    forced: bool = False
    name: ClassVar[str]
    tie: ClassVar[str]

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        """Propose nothing: these rules combine what others have made."""
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None

    def _apart_us(self, kernels: Kernels, first: Group, second: Group) -> float:
        return kernels.latency_us(first, self.model) + kernels.latency_us(second, self.model)

    def _whole(self, kernels: Kernels, first: Group, second: Group) -> Group | None:
        """Return two groups as stages of one kernel; None if that is illegal (a remark)."""
        whole = kernels.combined(Combine(((first.name,), (second.name,)), tie=self.tie), self.name)
        if not isinstance(whole, WhyNot):
            return whole
        kernels.remarks.append(replace(whole, subject=_subject(first, second)))
        return None

    def _refuse(self, kernels: Kernels, first: Group, second: Group, reason: str, numbers: dict[str, Any]) -> None:
        kernels.remarks.append(WhyNot(_subject(first, second), self.name, reason, numbers))


@dataclass(frozen=True)
class Packing(_Combining):
    """Puts independent kernels of the same step of the critical path side by side, the best pair first."""

    name: ClassVar[str] = "packing"

    def combine(self, kernels: Kernels) -> Iterator[Combine]:
        packs = Packs(kernels, partial(_side_by_side, kernels), self.model, forced=self.forced)
        for launch in packs.climb():
            yield Combine((launch.names,), forced=True)


@dataclass(frozen=True)
class _Growing(_Combining):
    """Makes a kernel and the best of its producers stages of one launch, and goes on with that kernel. GPUs only."""

    def combine(self, kernels: Kernels) -> Iterator[Combine]:
        if kernels.target.name == "cpu":
            return
        for name in kernels.order:
            while name in kernels.groups and self._may_read(kernels, kernels.groups[name]):
                found = self._best_producer(kernels, kernels.groups[name])
                if found is None:
                    break
                group = kernels.groups[name]
                yield Combine(((found,), (name,)), forced=True, tie=self.tie)
                whole = kernels.holder((group.parts or (group,))[0].name)
                name = whole if whole != name else ""

    def _may_read(self, kernels: Kernels, reader: Group) -> bool:
        """Return whether a kernel can be the last stage of a launch."""
        raise NotImplementedError

    def _best_producer(self, kernels: Kernels, reader: Group) -> str | None:
        best: tuple[float, str] | None = None
        for producer in sorted(kernels.producers[reader.name]):
            group = kernels.groups.get(producer)
            gain = None if group is None else self._gain_us(kernels, group, reader)
            if gain is not None:
                best = max(best or (gain, producer), (gain, producer))
        return best[1] if best else None

    def _gain_us(self, kernels: Kernels, group: Group, reader: Group) -> float | None:
        """Return the microseconds that one launch saves; None where it saves none, or is illegal (a remark)."""
        raise NotImplementedError


@dataclass(frozen=True)
class GlobalStitching(_Growing):
    """Makes a kernel and its reader stages of one cooperative launch. GPUs only."""

    name: ClassVar[str] = "global"
    tie: ClassVar[str] = "barrier"

    def _may_read(self, kernels: Kernels, reader: Group) -> bool:
        return kernels.why_no_part(reader, first=False) is None

    def _gain_us(self, kernels: Kernels, group: Group, reader: Group) -> float | None:
        if kernels.why_no_part(group) is not None:
            return None
        facts = joined_facts([[kernels.facts(group, self.model)], [kernels.facts(reader, self.model)]])
        gain = self._apart_us(kernels, group, reader) - latency_us(self.model, facts, kernels.device)
        if gain > 0 or self.forced:
            return gain
        reason = "a barrier of the grid is predicted to cost more than the launch that it saves"
        self._refuse(kernels, group, reader, reason, {"saved_us": round(gain, 2)})
        return None


@dataclass(frozen=True)
class BlockStitching(_Growing):
    """Makes a kernel and its reader stages of one launch with a slab per block, which each block computes in sequence.
    GPUs only.
    """

    name: ClassVar[str] = "block"
    tie: ClassVar[str] = "block"

    def _may_read(self, kernels: Kernels, reader: Group) -> bool:
        return _has_slabs(reader)

    def _gain_us(self, kernels: Kernels, group: Group, reader: Group) -> float | None:
        if not _has_slabs(group) or not _reduces(group, reader):
            return None
        whole = self._whole(kernels, group, reader)
        if whole is None or self.forced:
            return None if whole is None else 0.0
        facts = group_facts(kernels.nodes, whole, kernels.target, self.model)
        gain = self._apart_us(kernels, group, reader) - latency_us(self.model, facts, kernels.device)
        if gain > 0:
            return gain
        reason = "one launch of blocks that compute a slab of both is predicted to take longer than two"
        self._refuse(kernels, group, reader, reason, {"saved_us": round(gain, 2)})
        return None


@dataclass(frozen=True)
class Bands(_Combining):
    """Computes row statistics in the launch of the preceding GEMM, band by band (`cost/row_bands.py`). GPUs only."""

    name: ClassVar[str] = "bands"
    tie: ClassVar[str] = "band"

    def combine(self, kernels: Kernels) -> Iterator[Combine]:
        if kernels.target.name == "cpu":
            return
        for name in kernels.order:
            gemm = kernels.groups.get(name)
            if gemm is None or gemm.kind is not GroupKind.CONTRACTION:
                continue
            best: tuple[float, str] | None = None
            for reader in sorted(kernels.readers[name]):
                after = kernels.groups.get(reader)
                if after is None or after.kind is not GroupKind.ROWWISE:
                    continue
                gain = self._gain_us(kernels, gemm, after)
                if gain is not None:
                    best = max(best or (gain, reader), (gain, reader))
            if best is not None:
                yield Combine(((name,), (best[1],)), forced=True, tie=self.tie)

    def _gain_us(self, kernels: Kernels, gemm: Group, after: Group) -> float | None:
        """Return the microseconds that one launch saves (slightly negative is accepted); None where it costs more, or
        is illegal (a remark).
        """
        whole = self._whole(kernels, gemm, after)
        if whole is None or self.forced:
            return None if whole is None else 0.0
        rows, columns, _ = band_extents(kernels.nodes, *whole.parts)
        if min(rows, columns) <= FEW_ROWS:
            reason = "so few rows or columns have a kernel whose blocks have no bands of rows"
            self._refuse(kernels, gemm, after, reason, {"rows": rows, "columns": columns})
            return None
        facts = kernels.facts(whole, self.model)
        apart = self._apart_us(kernels, gemm, after)
        together = latency_us(self.model, facts, kernels.device)
        if hardly_slower(together, apart):
            return apart - together
        tail = facts.parts[-1].tail
        assert tail is not None
        reason = "the rows that the last block of a band computes are predicted to take longer than a launch"
        figures = {"saved_us": round(apart - together, 2), "tail_rows": tail.rows}
        self._refuse(kernels, gemm, after, reason, figures)
        return None


def _side_by_side(kernels: Kernels, group: Group) -> bool:
    return len(group.stages) < 2 and kernels.why_no_part(group) is None


def _has_slabs(group: Group) -> bool:
    return group.tie == "block" or group.kind in (GroupKind.INJECTIVE, GroupKind.ROWWISE)


def _reduces(*groups: Group) -> bool:
    return any(part.kind is GroupKind.ROWWISE for group in groups for part in group.parts or (group,))


def _subject(first: Group, second: Group) -> str:
    return f"{first.nodes[-1]} -> {second.nodes[0]}"
