"""Attention on GPUs as plain data: operands, softmax, masks by position, tiles, and which schedules are refused."""
