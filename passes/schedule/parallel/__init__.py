"""Concurrency of independent launches: their order, branches and priorities; see docs/parallel_launches.md."""
