"""Launches of scheduled groups on GPUs: grids, blocks, shared memory and what each touches, without generating code."""
