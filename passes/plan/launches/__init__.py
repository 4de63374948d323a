"""Kernel launches: which launches a group has, and which launches wait for which."""
