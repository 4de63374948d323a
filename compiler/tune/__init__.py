"""Tuning: schedules of a model's kernels, measured on the machine at hand."""
