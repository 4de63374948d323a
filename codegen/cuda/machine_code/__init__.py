"""Analysis of the kernels' machine code: what in it would be slow or wrong on a GPU."""
