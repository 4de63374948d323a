"""Cost of groups: facts for the latency models, and quick estimates of the gain of a union."""
