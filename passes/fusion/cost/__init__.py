"""What groups cost: facts for the latency models, and quick estimates of what a union saves."""
