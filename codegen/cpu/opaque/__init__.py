"""Sorting, cumulative sums, scatters and index checks on CPUs."""
