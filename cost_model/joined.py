"""Kernels as one kernel: side by side in a launch, or one after the other with a barrier of the grid or bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .facts import KernelFacts, Launch, Part, Tail


def joined_facts(stages: Sequence[Sequence[KernelFacts]]) -> KernelFacts:
    """The facts of a kernel that computes `stages` one after the other, and the kernels of each side by side.

    Kernels of several launches have their first ones side by side, and so on. A kernel that has stages itself has them
    before those that follow it; side by side with others, its first stage is beside theirs.
    """
    rows: list[list[Part]] = []
    launches: list[Launch] = []
    for stage in stages:
        together = _side_by_side(stage)
        rows += [list(parts) for parts in together[0].stages]
        launches += together[1:]
    first = Launch(tuple(tuple(parts) for parts in rows))
    return KernelFacts((first, *launches))


def _side_by_side(kernels: Sequence[KernelFacts]) -> list[Launch]:
    longest = max(kernel.launches for kernel in kernels)
    found = []
    for number in range(longest):
        beside = [kernel.sequence[number] for kernel in kernels if number < kernel.launches]
        depth = max(len(launch.stages) for launch in beside)
        stages = [[p for launch in beside if at < len(launch.stages) for p in launch.stages[at]] for at in range(depth)]
        found.append(Launch(tuple(map(tuple, stages))))
    return found


def banded_facts(gemm: KernelFacts, rows: KernelFacts, tail: Tail) -> KernelFacts:
    """The facts of a GEMM whose last blocks compute the rows after it, band by band.

    What every row reads, a block finds in its own cache from the second row on; what the GEMM has stored just before is
    read from caches altogether.
    """
    made = {t.value for t in gemm.writes}
    (first,), (second,) = gemm.parts, rows.parts[:1]
    reads = tuple(
        replace(t, footprint_bytes=0)
        if t.value in made
        else replace(t, bytes_requested=min(t.bytes_requested, t.footprint_bytes))
        for t in second.reads
    )
    return KernelFacts((Launch(((first,), (replace(second, reads=reads, tail=tail),)), tie="band"),))
