"""Pooling, cumulative sums, sorting, scatters and index checks on CUDA."""
