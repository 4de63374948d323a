"""Native segments on the CPU: loads kernels, keeps a team of threads, and binds values to kernel arguments."""
