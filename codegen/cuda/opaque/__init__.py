"""Pooling, running sums, sorting, scatters and index checks on CUDA."""
