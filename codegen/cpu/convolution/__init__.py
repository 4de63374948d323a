"""Convolutions, transposed ones, and windows on CPUs."""
