"""GEMMs on GPUs as plain data: operands, tiles, partitions, the kernels that compute them, and legality of
schedules.
"""
