"""Runs native segments on the CPU: loads the kernels, keeps a team of threads, binds values to kernel arguments."""
