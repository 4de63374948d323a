"""Measurements of generated kernels: many plans of models, with each kernel timed in place."""
