"""Row-wise kernels on CUDA."""
