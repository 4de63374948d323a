"""Kernels as one kernel: side by side in a launch, or behind each other with a barrier of the grid or bands between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .protocol import KernelFacts, Traffic


def joined_facts(stages: Sequence[Sequence[KernelFacts]]) -> KernelFacts:
    """The facts of a kernel that computes `stages` one after the other, and the kernels of each side by side.

    What they do is added up; what a task needs is what the neediest of them needs.
    """
    flat = [facts for stage in stages for facts in stage]
    return KernelFacts(
        kind="stitched",
        dtype=flat[0].dtype,
        reads=_merged([t for f in flat for t in f.reads]),
        writes=_merged([t for f in flat for t in f.writes]),
        fma=sum(f.fma for f in flat),
        cheap=sum(f.cheap for f in flat),
        transcendental=sum(f.transcendental for f in flat),
        elements=max(f.elements for f in flat),
        tasks=max(sum(f.tasks for f in stage) for stage in stages),
        threads=max(f.threads for f in flat),
        shared_bytes=max(f.shared_bytes for f in flat),
        registers=max(f.registers for f in flat),
        barriers=sum(max(f.barriers for f in stage) for stage in stages),
        launches=max(f.launches for f in flat),
        staged=sum(f.staged for f in flat),
        grid_barriers=len(stages) - 1,
    )


def banded_facts(
    product: KernelFacts, behind: KernelFacts, tail_rows: int, tail_bytes: int, tail_blocks: int
) -> KernelFacts:
    """The facts of a product whose last blocks compute what lies behind it, band by band.

    What every row reads, a block finds in its own cache from the second row on; what the product has stored just before
    is read from caches altogether.
    """
    made = {t.value for t in product.writes}
    reads = tuple(
        replace(t, footprint_bytes=0)
        if t.value in made
        else replace(t, bytes_requested=min(t.bytes_requested, t.footprint_bytes))
        for t in behind.reads
    )
    return replace(
        joined_facts([[product], [replace(behind, reads=reads)]]),
        tasks=product.tasks,
        threads=product.threads,
        shared_bytes=product.shared_bytes,
        barriers=behind.barriers,
        launches=product.launches,
        grid_barriers=0,
        tail_rows=tail_rows,
        tail_bytes=tail_bytes,
        tail_blocks=tail_blocks,
    )


def _merged(traffic: Sequence[Traffic]) -> tuple[Traffic, ...]:
    """What several kernels do to one tensor: its bytes lie in memory once."""
    found: dict[str, Traffic] = {}
    for t in traffic:
        other = found.get(t.value, Traffic(t.value, 0, 0))
        most = max(t.footprint_bytes, other.footprint_bytes)
        found[t.value] = Traffic(t.value, t.bytes_requested + other.bytes_requested, most)
    return tuple(found.values())
