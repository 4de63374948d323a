"""What XLA's fusion would do, as limits on our own rules: the baseline that stitching is measured against.

XLA passes values between operators of one kernel inside a thread only. So a reduction ends its kernel, a value that
several threads would have to compute again is stored if it is expensive, and products are library calls, whose epilogue
can add a vector or a matrix and clamp at zero. Sibling reductions of equally shaped operands share a kernel
(multi-output fusion).
Source: FusionStitching (arXiv 2009.10924) section 2, AStitch (ASPLOS'22) section 2; XLA's GPU fusion passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, kind_of, op_spec
from tilestitch.passes.plan import WhyNot

from .clusters import Fusion
from .rules import Fuse

LIBRARY_EPILOGUES = frozenset({"add", "maximum"})


@dataclass(frozen=True)
class XlaLimits:
    """Forbids whatever XLA would not put into one kernel; proposes nothing."""

    name: ClassVar[str] = "xla"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        subject = " + ".join(n.name for n in nodes)
        reason = _behind_reduction(nodes) or _around_contraction(nodes) or _expensive_again(nodes)
        return WhyNot(subject, self.name, reason) if reason else None


def _behind_reduction(nodes: Sequence[Node]) -> str | None:
    members = set(nodes)
    for node in nodes:
        if kind_of(node.op) is Kind.REDUCTION and any(u in members for o in node.outputs for u in o.users):
            return f"the kernel ends with the reduction {node.name}"
    return None


def _around_contraction(nodes: Sequence[Node]) -> str | None:
    """A product takes what the library's epilogue can do: add, then clamp, each once."""
    anchors = [n for n in nodes if kind_of(n.op) in (Kind.CONTRACTION, Kind.OPAQUE)]
    if not anchors:
        return None
    others = [n.op for n in nodes if n not in anchors]
    if any(op not in LIBRARY_EPILOGUES for op in others) or len(set(others)) < len(others):
        return f"{anchors[0].name} is a library call, whose epilogue cannot do that"
    return None


def _expensive_again(nodes: Sequence[Node]) -> str | None:
    """An expensive value that a reader in the kernel broadcasts would be computed once for every reader's element."""
    members = set(nodes)
    for node in nodes:
        if not op_spec(node.op).expensive and kind_of(node.op) is not Kind.REDUCTION:
            continue
        size = node.output.tensor_type.num_elements
        for user in node.output.users:
            if user in members and user.output.tensor_type.num_elements > size:
                return f"{node.name} is expensive and would be computed again for every element of {user.name}"
    return None
