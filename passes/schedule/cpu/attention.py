"""Attention on a CPU: how many queries a task has."""

from __future__ import annotations

from math import ceil

from tilestitch.passes.plan.parts import Softmax
from tilestitch.passes.plan.schedules import CpuAttentionSchedule

LEAST_QUERIES, PACKED_QUERIES = 8, 16
"""Least queries of a task, and those whose products take as long as packing keys and values."""
UNEVENNESS = 0.3
"""Part of a task that the slowest of several threads works longer than the others."""


def choose_attention(softmax: Softmax, threads: int) -> CpuAttentionSchedule:
    """The schedule of an attention group."""
    return CpuAttentionSchedule(attention_rows(softmax.heads, max(1, softmax.queries), threads))


def attention_rows(heads: int, queries: int, threads: int) -> int:
    """Queries of a task: those with which the slowest thread is done first.

    Every task packs the keys and values of its head.
    """
    parts = range(1, max(1, queries // LEAST_QUERIES) + 1)

    def makespan(rows: int) -> float:
        rounds = ceil(heads * ceil(queries / rows) / threads) + (UNEVENNESS if threads > 1 else 0.0)
        return rounds * (rows + PACKED_QUERIES)

    return min(dict.fromkeys(ceil(queries / p) for p in parts), key=lambda rows: (makespan(rows), -rows))
