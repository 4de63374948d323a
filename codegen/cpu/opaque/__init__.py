"""Sorting, running sums, scatters and index checks on CPUs."""
