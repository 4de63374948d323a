"""Element-wise work, data movement and transposes on CUDA."""
