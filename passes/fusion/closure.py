"""What the nodes of a graph depend on while they are merged: sets of node numbers as bit masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .bitsets import bits


@dataclass(eq=False)
class Reach:
    """A merged set of nodes (`mask`), and all that it depends on (`above`). `reads`, `readers`: numbers of other nodes
    that its nodes read, and that read them.
    """

    mask: int
    above: int
    reads: list[int]
    readers: list[int]


class Closure:
    """The reach of every node by its number; numbers are a topological order.

    What depends on a node is not kept, as it would take twice the memory of what the node depends on; it is found
    through readers.
    """

    def __init__(self, before: Iterable[Iterable[int]]) -> None:
        """Compute the closure. `before`: the operands of each node."""
        self.of: list[Reach] = []
        for number, operands in enumerate(before):
            reads = list(dict.fromkeys(operands))
            above = 0
            for operand in reads:
                above |= self.of[operand].above | 1 << operand
                self.of[operand].readers.append(number)
            self.of.append(Reach(1 << number, above, reads, []))

    def copy(self) -> Closure:
        """Return an independent copy."""
        other = object.__new__(Closure)
        twins = {id(reach): replace(reach) for reach in self.of}
        other.of = [twins[id(reach)] for reach in self.of]
        return other

    def between(self, merged: Sequence[Reach]) -> int | None:
        """Return an operand of `merged` that depends on them, and so would depend on itself if they were one node."""
        mask = mask_of(merged)
        operands = {number for reach in merged for number in reach.reads if not mask >> number & 1}
        return min((number for number in operands if self.of[number].above & mask), default=None)

    def merge(self, parts: Sequence[Reach]) -> Reach:
        """Merge `parts`. Nothing may be between them."""
        mask = above = 0
        for part in parts:
            mask |= part.mask
            above |= part.above
        reads = [number for part in parts for number in part.reads if not mask >> number & 1]
        readers = [number for part in parts for number in part.readers if not mask >> number & 1]
        whole = Reach(mask, above & ~mask, reads, readers)
        for part in parts:
            for number in bits(part.mask):
                self.of[number] = whole
        self._tell_readers(whole)
        return whole

    def _tell_readers(self, whole: Reach) -> None:
        """Add a merged set and all above it to what is above its readers, and theirs, unless they have it already."""
        known = whole.above | whole.mask
        waiting = [whole]
        while waiting:
            for number in waiting.pop().readers:
                reader = self.of[number]
                if known & ~reader.above:
                    reader.above |= known
                    waiting.append(reader)


def mask_of(merged: Iterable[Reach]) -> int:
    mask = 0
    for reach in merged:
        mask |= reach.mask
    return mask
