"""Fusion of kernel facts: in parallel in one launch, or in sequence with grid barriers or bands."""

from collections.abc import Sequence
from dataclasses import replace

from .facts import KernelFacts, Launch, Part, Tail


def joined_facts(stages: Sequence[Sequence[KernelFacts]]) -> KernelFacts:
    """Return the facts of a kernel that computes `stages` in sequence, and the kernels of each in parallel.

    For kernels with several launches, the last ones are fused, and preceding ones come first. A kernel with stages of
    its own has them before the following ones; in parallel with others, its first stage is parallel to theirs.
    """
    before: list[Launch] = []
    rows: list[tuple[Part, ...]] = []
    for stage in stages:
        before += (launch for kernel in stage for launch in kernel.sequence[:-1])
        beside = [kernel.sequence[-1].stages for kernel in stage]
        depth = max(map(len, beside))
        rows += (tuple(p for found in beside if at < len(found) for p in found[at]) for at in range(depth))
    return KernelFacts((*before, Launch(tuple(rows))))


def listed_facts(kernels: Sequence[KernelFacts]) -> KernelFacts:
    """Return the facts of parallel kernels on a CPU: their first launches form one list of tasks, then their second
    ones.

    CPU launches have no stages.
    """
    depth = max(kernel.launches for kernel in kernels)
    numbered = ([kernel.sequence[at] for kernel in kernels if at < kernel.launches] for at in range(depth))
    return KernelFacts(tuple(Launch((tuple(p for launch in beside for p in launch.parts),)) for beside in numbered))


def banded_facts(gemm: KernelFacts, rows: KernelFacts, tail: Tail) -> KernelFacts:
    """Return the facts of a GEMM whose last blocks compute the rows after it, band by band.

    From the second row on, a block finds what every row reads in its own cache; what the GEMM has just stored is read
    entirely from caches.
    """
    made = {t.value for t in gemm.writes}
    first, second = gemm.parts[-1], rows.parts[-1]
    reads = tuple(
        replace(t, footprint_bytes=0)
        if t.value in made
        else replace(t, bytes_requested=min(t.bytes_requested, t.footprint_bytes))
        for t in second.reads
    )
    return KernelFacts((Launch(((first,), (replace(second, reads=reads, tail=tail),)), tie="band"),))
