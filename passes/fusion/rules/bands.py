"""The rule that computes row statistics in the launch of the preceding GEMM, band by band (`row_bands`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.protocol import LatencyModel, hardly_slower, latency_us
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.fusion.rules.few_rows import MOST_ROWS
from tilestitch.passes.fusion.stages import Combine, Kernels
from tilestitch.passes.plan import Group, GroupKind, WhyNot
from tilestitch.passes.schedule.cuda.band_facts import band_extents


@dataclass(frozen=True)
class Bands:
    """Fuses a GEMM with the row-wise kernel that reads it, if the latency model predicts a gain.

    `model`: the latency model. `forced`: wherever legal. GPUs only.
    """

    model: LatencyModel = ANALYTICAL
    forced: bool = False
    name: ClassVar[str] = "bands"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        """Propose nothing: this rule combines what others have made."""
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None

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
                yield Combine(((name,), (best[1],)), forced=True, tie="band")

    def _gain_us(self, kernels: Kernels, gemm: Group, after: Group) -> float | None:
        """Return the microseconds that one launch saves (slightly negative is accepted); None where it costs more, or
        is illegal (a remark).
        """
        subject = f"{gemm.nodes[-1]} -> {after.nodes[0]}"
        whole = kernels.combined(Combine(((gemm.name,), (after.name,)), tie="band"), self.name)
        if isinstance(whole, WhyNot):
            kernels.remarks.append(replace(whole, subject=subject))
            return None
        if self.forced:
            return 0.0
        rows, columns, _ = band_extents(kernels.nodes, *whole.parts)
        if min(rows, columns) <= MOST_ROWS:
            reason = "so few rows or columns have a kernel whose blocks have no bands of rows"
            kernels.remarks.append(WhyNot(subject, self.name, reason, {"rows": rows, "columns": columns}))
            return None
        facts = kernels.facts(whole, self.model)
        apart = kernels.latency_us(gemm, self.model) + kernels.latency_us(after, self.model)
        together = latency_us(self.model, facts, kernels.device)
        if hardly_slower(together, apart):
            return apart - together
        reason = "the rows that the last block of a band computes are predicted to take longer than a launch"
        tail = facts.parts[-1].tail
        assert tail is not None
        figures = {"saved_us": round(apart - together, 2), "tail_rows": tail.rows}
        kernels.remarks.append(WhyNot(subject, self.name, reason, figures))
        return None
