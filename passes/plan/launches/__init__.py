"""Launches of kernels: what is launched for a group, and which launches wait for which."""
