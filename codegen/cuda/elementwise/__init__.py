"""Element-wise kernels, data movement and transposes on CUDA."""
