"""Devices and latency models that the passes choose by."""
