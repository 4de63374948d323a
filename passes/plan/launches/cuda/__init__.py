"""Launches of scheduled groups on GPUs: grids, blocks, shared memory and accessed values, without generating code."""
