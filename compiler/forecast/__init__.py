"""Forecasts of a model's latency on a GPU that need not be present, for our plan or for PyTorch."""
