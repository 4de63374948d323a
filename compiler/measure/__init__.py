"""Measures kernels that we generate: many plans of models, each kernel of each timed where it runs."""
