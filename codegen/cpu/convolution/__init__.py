"""Convolutions, transposed convolutions, and windows on CPUs."""
