"""GEMMs on GPUs as plain data: operands, tiles, cuts, which kernels compute them, and which schedules are refused."""
