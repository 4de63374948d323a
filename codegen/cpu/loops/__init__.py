"""Element-wise and row-wise kernels on CPUs."""
