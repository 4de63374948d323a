"""Devices and latency models, on which the passes base their choices."""
